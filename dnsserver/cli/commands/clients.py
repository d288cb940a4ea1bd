# SPDX-License-Identifier: Apache-2.0

"""``topodns clients``: prints who asked a running server for a Service, and the annotation that says so."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.output import write, write_result
from dnsserver.cli.parser import CommandParser, Example, add_output_format, parse_argument, program
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, settings_of
from dnsserver.settings import values
from dnsserver.settings.flags import single
from dnsserver.settings.settings import DEFAULT_SERVER
from dnsserver.text import duration, table

if TYPE_CHECKING:
    from dnsserver.tools.api.operations import Clients

EXAMPLES = (
    Example("Which workloads asked the server on this machine for a Service in the last hour?",
            "topodns clients shop/memcached"),
    Example("The same as kubectl names it, of a server elsewhere, as JSON for a program:",
            "topodns clients svc/memcached -n shop --server http://127.0.0.1:9153 -o json"),
)  # fmt: skip
STATUSES = {
    **STATUSES,
    EXIT_DONE: "printed; that nobody asked is an answer, too",
    EXIT_FAILED: "the server cannot be reached, or refuses",
}
MAX_OTHERS = 5  # workloads that did not ask, in the text


@dataclass(frozen=True, kw_only=True)
class ClientsFlags:
    """Of which Service."""

    namespace: str = single("default", values.IN_NAMESPACE, short="-n", help="Namespace of svc/NAME")
    """``clients`` reads no kubeconfig, whose context could name another one."""


def add_arguments(parser: CommandParser) -> None:
    """Add the Service, the output format and the settings."""
    parser.usage = f"{parser.prog} NS/NAME [flags]"
    parser.positionals.add_argument(
        "service", metavar="NS/NAME", nargs="?", help="The Service, as NAMESPACE/NAME, NAME.NAMESPACE or svc/NAME"
    )
    add_flags(parser, ClientsFlags)
    add_output_format(parser)
    add_settings(parser, "clients", common=("server",))


def run(arguments: Namespace) -> int:
    """Print who asked for the Service."""
    settings, flags = settings_of(arguments), flags_of(arguments, ClientsFlags)
    syntax = values.SERVICE
    if arguments.service is None:
        raise WrongInput(f"NS/NAME: missing, expected {syntax.expected}; see '{program()} clients --help'")
    service = parse_argument("NS/NAME", syntax.read, arguments.service, syntax.expected)
    from dnsserver.cli.remote import RemoteServer
    from dnsserver.tools.api.operations import CLIENTS, CLIENTS_DECODER

    server = RemoteServer(settings.server or DEFAULT_SERVER, {"service": "NS/NAME"})
    found = server.get_as(CLIENTS_DECODER, CLIENTS, {"service": service.key(lambda: flags.namespace)})
    if arguments.output == "text":
        write(_as_text(found))
    else:
        write_result(found, arguments.output)
    return EXIT_DONE


def _as_text(found: Clients) -> str:
    from dnsserver.tools.simulation.as_if import annotating_command
    from locator.printable import printable_values

    found = printable_values(found)
    service, lasting = found["service"], duration(max(1, found["seconds"]))
    if not found["workloads"]:
        return f"nobody that topodns can locate asked this server for {service} in the last {lasting}\n"
    rows = [("NAMESPACE", "WORKLOAD", "CLIENTS", "LAST ASKED")]
    rows += [
        (
            row["namespace"] or "-",
            row["name"] if row["namespace"] is None else f"{row['kind']} {row['name']}",
            str(row["pods"]),
            row["last_seen"],
        )
        for row in found["workloads"]
    ]
    lines = [f"asked this server for {service} in the last {lasting}:", "", *table(rows)]
    if not found["complete"]:
        lines += ["", "There were more clients than the server can remember: others may have asked, too."]
    if found["proposal"] is not None:
        annotation, _, value = found["proposal"].partition(": ")
        lines += ["", "To say in the cluster who asks:", "", f"    {annotating_command(service, {annotation: value})}"]
    if found["others"]:
        largest = [f"{row['namespace']}/{row['name']} ({row['pods']})" for row in found["others"][:MAX_OTHERS]]
        more = found["other_workloads"] - len(largest)
        lines += [
            "",
            "It covers workloads that did not ask, too: "
            + ", ".join([*largest, *([f"and {more} more"] if more > 0 else [])])
            + ". A selector leaves them out: NAMESPACE/LABEL=VALUE.",
        ]
    return "\n".join(lines) + "\n"
