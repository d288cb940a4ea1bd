"""``topodns check``: reports problems in a cluster."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.parser import Parser, add_output_format
from dnsserver.cli.settings_flags import add_settings, settings_of


def add_arguments(parser: Parser) -> None:
    """Add the output format and the settings."""
    add_output_format(parser)
    add_settings(parser, "check")


def run(arguments: Namespace) -> int:
    """Print all findings. The exit status is 1 if one of them is an error."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import read_cluster
    from dnsserver.cli.report import report

    return report(read_cluster(settings).findings, arguments.output)
