"""``topodns explain``: prints the answer that a client would get, and why."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from dnsserver.cli.errors import DONE, FAILED, STATUSES, WrongInput
from dnsserver.cli.log_format import say
from dnsserver.cli.output import coloured, write
from dnsserver.cli.parser import Example, Parser, add_output_format, parse_argument, program
from dnsserver.cli.settings_flags import add_settings, settings_of
from locator.finding_codes import ClusterCode
from locator.model import Object, is_dns_label

TYPES = ("A", "AAAA", "CNAME", "NS", "PTR", "SOA", "SRV", "TXT")  # that answers have

EXAMPLES = (
    Example("What does a pod get for a Service? Ask as you ask kubectl:",
            "topodns explain svc/memcached -n shop --client pod/frontend-0"),
    Example("The same from a dump, for an address, with the reason for every endpoint:",
            "topodns explain memcached.shop --client 10.244.2.16 --candidates --snapshot cluster.yaml"),
    Example("What would a client anywhere in zone eu-west-b get?",
            "topodns explain memcached.shop --client topology.kubernetes.io/zone=eu-west-b --snapshot cluster.yaml"),
    Example("Another record type, as JSON for a program:",
            "topodns explain memcached.shop SRV --client node/node-a1 -o json --snapshot cluster.yaml"),
)  # fmt: skip
STATUSES = {
    **STATUSES,
    DONE: "the answer is printed; a name that does not exist, or a constraint that is not met, is an answer, too",
    FAILED: "the API server cannot be reached, or refuses",
}


def add_arguments(parser: Parser) -> None:
    """Add the question, the client, the output format and the settings."""
    parser.usage = f"{parser.prog} NAME [TYPE] --client ADDR [flags]"
    parser.positionals.add_argument(
        "name", metavar="NAME", nargs="?", help="Name to query, whole or partial (memcached.shop), or svc/NAME"
    )
    parser.positionals.add_argument(
        "type",
        metavar="TYPE",
        nargs="?",
        default="A",
        help=f"Record type, such as {', '.join(TYPES[:-1])} or {TYPES[-1]} (default: A)",
    )
    parser.flags.add_argument(
        "--client",
        metavar="ADDR",
        help="Who asks: an address, a prefix, pod/NAME, node/NAME, or labels of nodes, separated by commas, such as "
        "topology.kubernetes.io/zone=a",
    )
    parser.flags.add_argument(
        "-n",
        dest="in_namespace",
        metavar="NAMESPACE",
        help="Namespace of svc/NAME and pod/NAME, and of a partial name without one (default: the only one of "
        "--namespace, or that of the kubeconfig's context; with --snapshot: default)",
    )
    add_output_format(parser, "yaml")
    parser.words["type"] = TYPES
    add_settings(parser, "explain", common=("candidates",))


def run(arguments: Namespace) -> int:
    """Print the decision that ``topodns serve`` would answer from."""
    from dnsserver.cli import kubectl_names

    if arguments.name is None or arguments.client is None:
        is_name = arguments.name is None
        missing, what = ("NAME", kubectl_names.NAMES) if is_name else ("--client", kubectl_names.CLIENTS)
        raise WrongInput(f"{missing}: missing, expected {what}; see '{program()} explain --help'")
    settings = settings_of(arguments)
    from dnsserver.answers.explain import explain
    from dnsserver.cli.cluster import read_objects
    from dnsserver.from_settings import authority_of
    from dnsserver.message.records import type_number

    name = parse_argument("NAME", kubectl_names.parse_name, arguments.name, kubectl_names.NAMES)
    types = "a record type such as A, AAAA or SRV"
    if arguments.name in kubectl_names.KINDS:  # kubectl also takes two words
        types = f"{arguments.name}/{arguments.type} as NAME, or {types}"
    qtype = parse_argument("TYPE", type_number, arguments.type, types)
    client = parse_argument("--client", kubectl_names.parse_asker, arguments.client, kubectl_names.CLIENTS)
    if arguments.in_namespace is not None and not is_dns_label(arguments.in_namespace):
        raise WrongInput(f"-n: {arguments.in_namespace!r}, expected the name of a namespace")
    kinds: tuple[type[Object], ...] = (client.kind,) if isinstance(client, kubectl_names.Reference) else ()
    reading, authority = read_objects(settings, kinds), authority_of(settings)
    for finding in reading.publication.findings:
        if finding.code == ClusterCode.ClusterUnreachable.name:  # the answer lacks what that cluster has
            say(str(finding))
    snapshot = reading.publication.snapshot
    usual = settings.namespace[0] if len(settings.namespace) == 1 else reading.namespace  # a name elsewhere is NXDOMAIN
    known = kubectl_names.Known(snapshot, reading.objects, arguments.in_namespace or usual)
    explanation = explain(
        kubectl_names.question_name(name, known, authority),
        qtype,
        kubectl_names.asker_named(client, known),
        snapshot,
        authority,
        candidates=settings.candidates,
    )
    write(_rendered(explanation, arguments.output))
    if isinstance(client, kubectl_names.Topology):
        keys = (explanation["constraint"] or {}).get("keys", ())
        for hint in kubectl_names.topology_hints(client, keys, reading.nodes):
            say(f"--client: {hint}")
    return DONE


def _rendered(explanation: dict[str, Any], output: str) -> str:
    if output == "json":
        return json.dumps(explanation, indent=2) + "\n"
    if output == "yaml":
        import yaml  # loaded late: other outputs do not need it

        return yaml.safe_dump(explanation, sort_keys=False, allow_unicode=True)
    from dnsserver.answers.explanation_text import as_text

    return as_text(explanation, colour=coloured())
