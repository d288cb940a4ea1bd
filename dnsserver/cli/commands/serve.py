# SPDX-License-Identifier: Apache-2.0

"""``topodns serve``: answers DNS queries."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES
from dnsserver.cli.parser import CommandParser, Example
from dnsserver.cli.settings_flags import add_settings, settings_of

EXAMPLES = (
    Example("Answer from the cluster of the current kubeconfig, at 127.0.0.1:1053:", "topodns serve"),
    Example(
        "Answer from a dump, and let this machine name its clients by EDNS client subnet:",
        "topodns serve --snapshot cluster.yaml --trusted-forwarder 127.0.0.0/8",
    ),
    Example(
        "Listen on all addresses, and resolve the targets of ExternalName Services:",
        "topodns serve --listen 0.0.0.0:53 --upstream 192.0.2.53",
    ),
    Example(
        "Read the settings from a file; its keys are the flags without --:", "topodns serve --config settings.yaml"
    ),
)
STATUSES = {
    **STATUSES,
    EXIT_DONE: "ended by SIGTERM or SIGINT, after it had finished the queries that it had begun",
    EXIT_FAILED: "an address or a port cannot be bound",
}


def add_arguments(parser: CommandParser) -> None:
    """Add the settings."""
    add_settings(parser, "serve", common=("zone", "trusted_forwarder", "listen", "http"))


def run(arguments: Namespace) -> int:
    """Answer DNS queries until SIGTERM or SIGINT arrives."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.programs import server

    with cluster_errors(or_dump=True):
        server.serve(settings)
    return EXIT_DONE
