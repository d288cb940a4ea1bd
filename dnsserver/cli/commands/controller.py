"""``topodns controller``: keeps a PodLocator up to date for each pod, and probes load balancers."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import DONE
from dnsserver.cli.parser import Parser
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the settings."""
    add_settings(parser, "controller")


def run(arguments: Namespace) -> int:
    """Keep PodLocators, and with ``--health`` ServiceHealths, up to date until SIGTERM or SIGINT arrives."""
    settings = settings_of(arguments)
    from dnsserver import controller_app
    from dnsserver.cli.cluster import cluster_errors, dump_errors

    with cluster_errors(), dump_errors():
        controller_app.run(settings)
    return DONE
