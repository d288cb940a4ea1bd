"""``topodns serve``: answers DNS queries."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext

from dnsserver.cli.errors import DONE
from dnsserver.cli.parser import Parser
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the settings."""
    add_settings(parser, "serve")


def run(arguments: Namespace) -> int:
    """Answer DNS queries until SIGTERM or SIGINT arrives."""
    settings = settings_of(arguments)
    from dnsserver import app
    from dnsserver.cli.cluster import cluster_errors, dump_errors

    with cluster_errors(), dump_errors() if settings.snapshot or settings.cluster else nullcontext():
        app.serve(settings)
    return DONE
