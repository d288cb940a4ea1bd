# SPDX-License-Identifier: Apache-2.0

"""``topodns tail``: prints the decisions of a running server as it makes them, or the last ones that it kept."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, Failed, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import as_yaml, coloured, write, write_as_it_is, write_json
from dnsserver.cli.parser import CommandParser, Example, add_output_format, one_of
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, settings_of
from dnsserver.settings import values
from dnsserver.settings.flags import single
from dnsserver.settings.settings import DEFAULT_SERVER
from dnsserver.settings.values import ServiceName
from dnsserver.text import counted
from locator.topology.selection import OUTCOMES, UNWANTED_OUTCOMES

ARGUMENTS = {"service": "--service", "client": "--client", "outcome": "--outcome", "limit": "--last"}

EXAMPLES = (
    Example("What does the server on this machine answer right now?", "topodns tail"),
    Example("Which clients of a Service get nothing?", "topodns tail --service shop/orders-db --outcome unmet"),
    Example("Who got nothing, or was passed on, before I looked?", "topodns tail --last 20"),
    Example("What do the pods of a node get, as JSON for a program?", "topodns tail --client 10.244.2.0/24 -o json"),
)
STATUSES = {
    **STATUSES,
    EXIT_DONE: "the decisions of --last are printed",
    EXIT_FAILED: "the server cannot be reached, refuses, or has ended",
}


@dataclass(frozen=True, kw_only=True)
class TailFlags:
    """Which decisions are printed: without any of these, all."""

    service: ServiceName | None = single(None, values.SERVICE, help="Only decisions about names of this Service")
    """Also those of its endpoints, and those about it from other clusters."""

    namespace: str = single("default", values.IN_NAMESPACE, short="-n", help="Namespace of svc/NAME in --service")
    """``tail`` reads no kubeconfig, whose context could name another one."""

    client: str | None = single(None, values.as_it_is("ADDR|CIDR"), help="Only decisions for this address or network")
    """As the client was named, whoever sent the query."""

    outcome: str | None = single(
        None,
        values.choice("WORD", *OUTCOMES),
        help=f"Only decisions with this outcome: {one_of(OUTCOMES)}; unmet also finds NXDOMAIN where no endpoint of "
        "the Service is ready",
    )
    """How the endpoints were chosen. Whoever asks for ``unmet`` wants to know who got nothing."""

    last: int | None = single(
        None,
        values.whole_number(1, 1000),  # kept.MAX_KEPT
        help="Print as many of the decisions that the server keeps, and end: the last ones that were "
        f"{one_of(UNWANTED_OUTCOMES)}, or NXDOMAIN since no endpoint of the Service is ready",
    )
    """A server with a console keeps a thousand of these, some of each Service."""


def add_arguments(parser: CommandParser) -> None:
    """Add the filters, the output format and the settings."""
    add_flags(parser, TailFlags)
    add_output_format(parser)
    add_settings(parser, "tail", common=("server",))


def run(arguments: Namespace) -> int:
    """Print decisions until the server ends, or this process is interrupted."""
    settings, flags = settings_of(arguments), flags_of(arguments, TailFlags)
    import msgspec

    from dnsserver.cli.remote import RemoteServer
    from dnsserver.tools.api.operations import DECISIONS, TAIL, BadParameter, read_parameters

    url = settings.server or DEFAULT_SERVER
    given = {"service": flags.service and flags.service.key(lambda: flags.namespace)}
    given |= {"client": flags.client, "outcome": flags.outcome}
    given |= {"limit": None if flags.last is None else str(flags.last)}
    operation = TAIL if flags.last is None else DECISIONS
    parameters = {name: text for name, text in given.items() if text is not None}
    try:
        read_parameters(operation.parameters, parameters.items())
    except BadParameter as error:
        raise WrongInput(f"{ARGUMENTS[error.parameter]}: {error}") from None
    server = RemoteServer(url, ARGUMENTS)
    try:
        if operation is DECISIONS:
            return _print_last(server.get(DECISIONS, parameters), arguments.output)
        for name, data in server.events(TAIL, parameters):
            if name == "lost":
                lost = counted(int(msgspec.json.decode(data)["lost"]), "decision")
                say(f"{lost} left out: the server makes more than it can tell this reader")
            else:
                _print(data.encode(), arguments.output, with_day=False)
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
        raise Failed(f"--server {url}: {error}, expected a topodns of this version") from None
    raise Failed(f"--server {url}: the server has ended")


def _print_last(page: bytes, output: str) -> int:
    """Print the decisions of a page of kept ones, and say so if there are none."""
    import msgspec

    found = msgspec.json.decode(page)
    for line in found["items"]:
        _print(msgspec.json.encode(line), output, with_day=True)
    if not found["items"]:
        kept = f"the server keeps those that were {one_of(UNWANTED_OUTCOMES)}, or found no ready endpoint, since "
        kept += found["since"]
        say(f"no such decision is kept; {kept}")
    return EXIT_DONE


def _print(line: bytes, output: str, *, with_day: bool) -> None:
    import msgspec

    from dnsserver.tools.tap.lines import DECODER, as_text

    if output == "text":
        write(as_text(DECODER.decode(line), colour=coloured(), with_day=with_day))
    elif output == "json":
        write_json(f"{msgspec.json.encode(msgspec.json.decode(line)).decode()}\n")
    else:
        write_as_it_is(f"---\n{as_yaml(msgspec.json.decode(line))}")
