# SPDX-License-Identifier: Apache-2.0

"""``topodns explain``: prints the answer that a client would get, and why."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED, STATUSES, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import coloured, write, write_result
from dnsserver.cli.parser import CommandParser, Example, add_output_format, parse_argument, program
from dnsserver.cli.settings_flags import add_flags, add_settings, flags_of, given_flags, settings_of
from dnsserver.settings import values
from dnsserver.settings.answering import AnswerSettings, ClientSettings, SeveralClustersSettings
from dnsserver.settings.flags import flags_in, single, switch
from dnsserver.settings.reading import option
from dnsserver.settings.settings import DEFAULT_SERVER, Settings, SourceSettings
from locator.findings import ClusterCode
from locator.model import Node, Object

if TYPE_CHECKING:
    from collections.abc import Callable

    from dnsserver.answers.decision import UpstreamAnswer
    from dnsserver.tools.explain.explanation import Explanation

# What messages call the arguments: ``naming.NAME`` and ``naming.CLIENT``, and those of the HTTP API.
ARGUMENTS = {"name": "NAME", "type": "TYPE", "client": "--client", "namespace": "-n"}
# The themes whose settings a running server has of its own.
OF_A_SERVER = (SourceSettings, AnswerSettings, SeveralClustersSettings, ClientSettings)

UNREAD = (ClusterCode.ClusterUnreachable.name, ClusterCode.InvalidClusterFile.name)
TYPES = ("A", "AAAA", "CNAME", "NS", "PTR", "SOA", "SRV", "TXT")  # that answers have

EXAMPLES = (
    Example("What does a pod get for a Service? Ask as you ask kubectl:",
            "topodns explain svc/memcached -n shop --client pod/frontend-0"),
    Example("The same from a dump, for an address, with the reason for every endpoint:",
            "topodns explain memcached.shop --client 10.244.2.16 --candidates --snapshot cluster.yaml"),
    Example("What would a client anywhere in zone eu-west-b get?",
            "topodns explain memcached.shop --client topology.kubernetes.io/zone=eu-west-b --snapshot cluster.yaml"),
    Example("What does a running server answer, from what it has read?",
            "topodns explain memcached.shop --client 10.244.2.16 --server http://127.0.0.1:9153"),
    Example("Why did somebody get nothing of a Service before I looked?",
            "topodns explain svc/orders-db -n shop --last"),
    Example("Another record type, as JSON for a program:",
            "topodns explain memcached.shop SRV --client node/node-a1 -o json --snapshot cluster.yaml"),
)  # fmt: skip
STATUSES = {
    **STATUSES,
    EXIT_DONE: "the answer is printed; a name that does not exist, or a constraint that is not met, is an answer, too",
    EXIT_FAILED: "the API server, or the server of --server, cannot be reached, or refuses",
}


@dataclass(frozen=True, kw_only=True)
class ExplainFlags:
    """Who asks."""

    client: str | None = single(
        None,
        values.as_it_is("ADDR"),
        help="Who asks: an address, a prefix, pod/NAME, node/NAME, or labels of nodes, separated by commas, such as "
        "topology.kubernetes.io/zone=a",
    )
    """Necessary: without a client, no endpoint is near."""

    namespace: str | None = single(
        None,
        values.IN_NAMESPACE,
        short="-n",
        help="Namespace of svc/NAME and pod/NAME, and of a partial name without one",
        shown="the only one of --serve-namespace, or that of the kubeconfig's context; with --snapshot: default",
    )
    """As kubectl has it, but a name that topodns does not serve would be NXDOMAIN."""

    last: bool = switch(
        help="Print the last decision about the Service NAME that was unmet or spilled, or found no ready endpoint, as "
        "a running server keeps it; --client is not necessary then"
    )
    """The server is that of ``--server``, by default the one on this machine."""


def add_arguments(parser: CommandParser) -> None:
    """Add the question, the client, the output format and the settings."""
    parser.usage = f"{parser.prog} NAME [TYPE] --client ADDR [flags]"
    parser.positionals.add_argument(
        "name", metavar="NAME", nargs="?", help="Name to query, whole or partial (memcached.shop), svc/NAME or NS/NAME"
    )
    parser.positionals.add_argument(
        "type",
        metavar="TYPE",
        nargs="?",
        default="A",
        help=f"Record type, such as {', '.join(TYPES[:-1])} or {TYPES[-1]} (default: A). A word with a dot or a slash "
        "is a PATH",
    )
    add_flags(parser, ExplainFlags)
    add_output_format(parser)
    parser.words["type"] = TYPES
    add_settings(parser, "explain", common=("candidates",))


def run(arguments: Namespace) -> int:
    """Print the decision that ``topodns serve`` would answer from."""
    from dnsserver.tools.explain import naming

    if is_path(arguments.type):
        arguments.paths, arguments.type = [arguments.type, *arguments.paths], "A"
    flags = flags_of(arguments, ExplainFlags)
    if flags.last and arguments.name is not None:
        return _print_last(arguments, flags)
    if arguments.name is None or flags.client is None:
        is_name = arguments.name is None
        missing, what = ("NAME", naming.EXPECTED_NAME) if is_name else ("--client", naming.EXPECTED_CLIENT)
        raise WrongInput(f"{missing}: missing, expected {what}; see '{program()} explain --help'")
    settings = settings_of(arguments)
    from dnsserver.message.records import type_number

    name = parse_argument("NAME", naming.parse_name, arguments.name, naming.EXPECTED_NAME)
    types = naming.EXPECTED_TYPE
    if arguments.name in naming.KIND_WORDS:  # kubectl also takes two words
        types = f"{arguments.name}/{arguments.type} as NAME, or {types}"
    qtype = parse_argument("TYPE", type_number, arguments.type, f"{types}, or a PATH with a dot or a slash")
    for path in arguments.paths:
        if path.upper() in TYPES:
            raise WrongInput(f"PATH: {path!r} found behind another PATH or TYPE, expected one TYPE, before all PATHs")
    client = parse_argument("--client", naming.parse_asker, flags.client, naming.EXPECTED_CLIENT)
    if settings.server is not None:
        return _ask(settings.server, arguments, flags, settings)
    from dnsserver.cli.cluster import read_objects
    from dnsserver.programs.from_settings import authority_of

    kinds: tuple[type[Object], ...] = (client.kind,) if isinstance(client, naming.ObjectReference) else ()
    reading, authority = read_objects(settings, kinds), authority_of(settings)
    for finding in reading.publication.findings:
        if finding.code in UNREAD:  # the answer lacks what that cluster has
            say(str(finding))
    served = settings.serve_namespace
    cluster = reading.clusters.client
    usual = "default" if cluster is None else cluster.namespace
    usual = served[0] if len(served) == 1 else usual  # a name elsewhere is NXDOMAIN
    objects = {kind: naming.by_key(found) for kind, found in reading.objects.items()}
    known = naming.NameContext(reading.publication.snapshot, objects, flags.namespace or usual)
    explained = partial(naming.explain_named, name, qtype, client, known, authority, candidates=settings.candidates)
    try:
        explanation = _looked_up(explained, qtype, settings)
    except naming.UnknownName as error:
        raise WrongInput(f"{ARGUMENTS[error.argument]}: {error}") from None
    _print(explanation, arguments.output)
    if isinstance(client, naming.LabelledClient) and Node.__name__ not in reading.own.lacks:
        constraint = explanation.constraint
        for hint in naming.topology_hints(client, constraint.keys if constraint else (), reading.nodes):
            say(f"--client: {hint}")
    return EXIT_DONE


def _print_last(arguments: Namespace, flags: ExplainFlags) -> int:
    """Print the last decision about a Service that a server keeps. Raises CommandError."""
    service = parse_argument("NAME", values.SERVICE.read, arguments.name, values.SERVICE.expected)
    settings = settings_of(arguments)
    if settings.snapshot:
        raise WrongInput("--last: a dump found, expected none: the decisions are those of a running server (--server)")
    from dnsserver.cli.remote import RemoteServer
    from dnsserver.tools.api.operations import DECISIONS, LAST_DECISIONS_DECODER

    key = service.key(lambda: flags.namespace or "default")
    asked = {"service": key, "client": flags.client, "limit": "1"}
    server = RemoteServer(settings.server or DEFAULT_SERVER, {"service": "NAME", "client": "--client"})
    found = server.get_as(LAST_DECISIONS_DECODER, DECISIONS, asked)
    if not found["items"]:
        since = found["since"]
        kept = f"that was unmet or spilled, or found no ready endpoint; they are kept since {since}"
        raise WrongInput(f"NAME: no decision about {key} found {kept}")
    _print(found["items"][0], arguments.output)
    return EXIT_DONE


def is_path(word: str) -> bool:
    """Whether a word behind NAME is a PATH: no record type has a dot or a slash."""
    return word == "-" or "." in word or "/" in word


def _looked_up(explained: Callable[..., Explanation], qtype: int, settings: Settings) -> Explanation:
    """Return what *explained* returns, with what the upstream says of names outside the zones, as ``serve`` asks it."""
    missing: list[str] = []
    explanation = explained(outside=missing.append)
    if not missing:
        return explanation
    import trio

    from dnsserver.metrics.counters import Counts
    from dnsserver.net.upstream import Upstream
    from dnsserver.programs.from_settings import upstream_of

    async def compute(outside: Callable[[str], UpstreamAnswer | None]) -> Explanation:
        return explained(outside=outside)

    return trio.run(Upstream(upstream_of(settings), Counts()).find_all, compute, qtype)


def _ask(url: str, arguments: Namespace, flags: ExplainFlags, settings: Settings) -> int:
    """Print what the running server at *url* would answer. Raises CommandError."""
    own = {name for theme in OF_A_SERVER for name in flags_in(theme)} - {"server"}
    for name in given_flags(arguments):
        if name in own:
            what = "PATH" if name == "snapshot" and arguments.paths else option(name)
            raise WrongInput(f"{what}: given together with --server, expected only one of them")
    from dnsserver.cli.remote import RemoteServer
    from dnsserver.tools.api.operations import EXPLAIN
    from dnsserver.tools.explain.explanation import DECODER

    parameters = {
        "name": arguments.name,
        "type": arguments.type,
        "client": flags.client,
        "namespace": flags.namespace,
        "candidates": "true" if settings.candidates else None,
    }
    _print(RemoteServer(url, ARGUMENTS).get_as(DECODER, EXPLAIN, parameters), arguments.output)
    return EXIT_DONE


def _print(explanation: Explanation, output: str) -> None:
    if output == "text":
        from dnsserver.tools.explain.explanation_text import INDENT, as_text
        from dnsserver.tools.tap.lines import TailLine

        if isinstance(explanation, TailLine):
            write(f"{'decided':<{INDENT}}{explanation.time}\n")
        write(as_text(explanation, colour=coloured()))
        return
    import msgspec  # loaded late: text does not need it

    write_result(msgspec.to_builtins(explanation), output)
