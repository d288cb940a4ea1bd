"""``topodns explain``: prints what a client would be answered, and why."""

from __future__ import annotations

import json
from argparse import Namespace

from dnsserver.cli.errors import DONE, WrongInput
from dnsserver.cli.output import coloured, write
from dnsserver.cli.parser import Parser, add_output_format, parsed
from dnsserver.cli.settings_flags import add_settings, settings_of
from dnsserver.names import labels_of
from locator.ip import parse_client


def add_arguments(parser: Parser) -> None:
    """Add the question, the client, and the flags that say which cluster."""
    parser.usage = f"{parser.prog} NAME [TYPE] --client ADDR [flags]"
    parser.words.add_argument("name", metavar="NAME", nargs="?", help="The name that the client asks for")
    parser.words.add_argument("type", metavar="TYPE", nargs="?", default="A", help="The record type (default: A)")
    parser.flags.add_argument("--client", metavar="ADDR", help="The client's address, or the prefix of a client subnet")
    add_output_format(parser)
    add_settings(parser, "explain")


def run(arguments: Namespace) -> int:
    """Print the decision that a server would answer from."""
    if arguments.name is None or arguments.client is None:
        missing, what = ("NAME", "a domain name") if arguments.name is None else ("--client", "the client's address")
        raise WrongInput(f"{missing}: missing, expected {what}; see 'topodns explain --help'")
    settings = settings_of(arguments)
    from dnsserver.answers.explain import as_text, explain
    from dnsserver.cli.cluster import read_cluster
    from dnsserver.from_settings import authority_of
    from dnsserver.message.records import type_number

    name = parsed("NAME", labels_of, arguments.name, "a domain name")
    qtype = parsed("TYPE", type_number, arguments.type, "a record type such as A, AAAA or SRV")
    client = parsed("--client", parse_client, arguments.client, "an address or a prefix")
    snapshot = read_cluster(settings).snapshot
    explained = explain(name, qtype, client, snapshot, authority_of(settings))
    if arguments.output == "json":
        write(json.dumps(explained, indent=2) + "\n")
    else:
        write(as_text(explained, colour=coloured()))
    return DONE
