# SPDX-License-Identifier: Apache-2.0

"""``topodns console``: shows a cluster in a browser, without answering DNS queries."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.output import write
from dnsserver.cli.parser import CommandParser, Example
from dnsserver.cli.settings_flags import ONE_NAMESPACE, add_settings, settings_of

EXAMPLES = (
    Example("Look at a dump of a cluster in a browser:", "topodns console cluster.yaml"),
    Example("Look at the live cluster of another context:", "topodns console --context staging"),
    Example("Several files, which are read again when they change, at a port of your choice:",
            "topodns console nodes.yaml services.yaml --http 127.0.0.1:8080"),
)  # fmt: skip
STATUSES = {**STATUSES, EXIT_DONE: "ended by SIGTERM or SIGINT", EXIT_FAILED: "the port cannot be bound"}


def add_arguments(parser: CommandParser) -> None:
    """Add the paths of dumps and the settings."""
    add_settings(parser, "console", common=("http",), also=ONE_NAMESPACE)


def run(arguments: Namespace) -> int:
    """Show the console until SIGTERM or SIGINT arrives."""
    settings = settings_of(arguments)
    from dnsserver.cli.cluster import cluster_errors
    from dnsserver.http.guard import is_loopback
    from dnsserver.programs import console
    from dnsserver.settings.values import ListenAddress
    from locator.ip import address_text, parse_address

    listen = ListenAddress(parse_address("127.0.0.1"), 0) if settings.http is None else settings.http
    if not isinstance(listen, ListenAddress) or not is_loopback(address_text(listen.address)):
        raise WrongInput(f"--http: {listen} found, expected an address of this machine alone, such as 127.0.0.1:8080")
    settings = replace(settings, http=listen, console=True)
    with cluster_errors(or_dump=True):
        console.show(settings, lambda url: write(f"{url}\n"))
    return EXIT_DONE
