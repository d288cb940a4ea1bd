# SPDX-License-Identifier: Apache-2.0

"""``topodns controller``: keeps PodLocators and the status of ServicePolicies, and what else it is told to keep."""

from __future__ import annotations

from argparse import Namespace

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES
from dnsserver.cli.parser import CommandParser, Example
from dnsserver.cli.settings_flags import add_settings, settings_of

EXAMPLES = (
    Example(
        "Write PodLocators, with the labels of topology only:", "topodns controller --labels 'topology.kubernetes.io/*'"
    ),
    Example(
        "Distribute what a federation API holds to two clusters:",
        "topodns controller --federate fed.example.com=federation.kubeconfig --cluster-name east --cluster "
        "west=west.kubeconfig",
    ),
    Example(
        "Probe load balancers, too, also those of another cluster:",
        "topodns controller --health --cluster-name east --cluster west=west.kubeconfig",
    ),
    Example(
        "Let external-dns publish the names of the federation:",
        "topodns controller --publish --federation fed.example.com --cluster-name east --cluster west=west.kubeconfig",
    ),
)
STATUSES = {**STATUSES, EXIT_DONE: "ended by SIGTERM or SIGINT", EXIT_FAILED: "an address or a port cannot be bound"}


def add_arguments(parser: CommandParser) -> None:
    """Add the settings."""
    add_settings(parser, "controller", common=("federate", "health", "labels", "publish"))


def run(arguments: Namespace) -> int:
    """Keep up to date what the controller writes, until SIGTERM or SIGINT."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.programs import controller

    with cluster_errors():
        controller.run(settings)
    return EXIT_DONE
