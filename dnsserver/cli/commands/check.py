"""``topodns check``: reports what is wrong in a cluster."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.parser import Parser, add_output_format
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the flags that say which cluster, and how to print."""
    add_output_format(parser)
    add_settings(parser, "check")


def run(arguments: Namespace) -> int:
    """Print all findings; the exit status says whether there is an error among them."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import read_cluster
    from dnsserver.cli.report import report

    return report(read_cluster(settings).findings, arguments.output)
