"""``topodns serve``: answers DNS until a signal ends it."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import DONE
from dnsserver.cli.parser import Parser
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the flags of a server."""
    add_settings(parser, "serve")


def run(arguments: Namespace) -> int:
    """Answer DNS until SIGTERM or SIGINT."""
    settings = settings_of(arguments)
    from dnsserver import app
    from dnsserver.cli.cluster import cluster_errors

    with cluster_errors():
        app.serve(settings)
    return DONE
