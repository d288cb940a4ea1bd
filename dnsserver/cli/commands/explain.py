"""``topodns explain``: prints the answer that a client would get, and why."""

from __future__ import annotations

import json
from argparse import Namespace

from dnsserver.cli.errors import DONE, WrongInput
from dnsserver.cli.output import coloured, write
from dnsserver.cli.parser import Parser, add_output_format, parse_argument
from dnsserver.cli.settings_flags import add_settings, settings_of
from dnsserver.names import labels_of
from locator.ip import parse_client


def add_arguments(parser: Parser) -> None:
    """Add the question, the client, the output format and the settings."""
    parser.usage = f"{parser.prog} NAME [TYPE] --client ADDR [flags]"
    parser.positionals.add_argument("name", metavar="NAME", nargs="?", help="Name to query")
    parser.positionals.add_argument("type", metavar="TYPE", nargs="?", default="A", help="Record type (default: A)")
    parser.flags.add_argument("--client", metavar="ADDR", help="Address or subnet of the client")
    parser.flags.add_argument(
        "--candidates", action="store_true", help="List every endpoint, and why it was chosen or not"
    )
    add_output_format(parser)
    add_settings(parser, "explain")


def run(arguments: Namespace) -> int:
    """Print the decision that ``topodns serve`` would answer from."""
    if arguments.name is None or arguments.client is None:
        missing, what = ("NAME", "a domain name") if arguments.name is None else ("--client", "the client's address")
        raise WrongInput(f"{missing}: missing, expected {what}; see 'topodns explain --help'")
    settings = settings_of(arguments)
    from dnsserver.answers.explain import explain
    from dnsserver.answers.explanation_text import as_text
    from dnsserver.cli.cluster import read_cluster
    from dnsserver.from_settings import authority_of
    from dnsserver.message.records import type_number

    name = parse_argument("NAME", labels_of, arguments.name, "a domain name")
    qtype = parse_argument("TYPE", type_number, arguments.type, "a record type such as A, AAAA or SRV")
    client = parse_argument("--client", parse_client, arguments.client, "an address or a prefix")
    snapshot = read_cluster(settings).snapshot
    explanation = explain(name, qtype, client, snapshot, authority_of(settings), candidates=arguments.candidates)
    if arguments.output == "json":
        write(json.dumps(explanation, indent=2) + "\n")
    else:
        write(as_text(explanation, colour=coloured()))
    return DONE
