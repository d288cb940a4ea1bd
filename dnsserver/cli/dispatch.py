# SPDX-License-Identifier: Apache-2.0

"""Runs a command, and turns its errors into a message and an exit status.

Only the module of the given command is imported, and it imports in ``run`` what its work needs. So ``--help`` and
``version`` load no DNS library, no Kubernetes client and no event loop.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from dnsserver.cli.errors import EXIT_DONE, EXIT_WRONG, STATUSES, CommandError, WrongInput
from dnsserver.cli.log_format import say, set_up_logging
from dnsserver.cli.output import write
from dnsserver.cli.parser import CommandParser, Example, program
from dnsserver.spelling import nearest, suggestion

# One row per command: its name, which is also the name of its module in ``commands``, and what it does.
COMMANDS = {
    "serve": "Answer DNS queries",
    "explain": "Print the answer that a client would get, and why",
    "tail": "Print the decisions of a running server as it makes them",
    "clients": "Print which workloads asked for a Service, and the annotation for them",
    "check": "Report problems in a cluster",
    "simulate": "Show who would get what, and what that does to load and cross-zone traffic",
    "console": "Show a cluster in a browser, without answering DNS queries",
    "controller": "Keep a PodLocator for each pod, and the status of ServicePolicies",
    "webhook": "Set the topology hints of EndpointSlices whose Service asks for them",
    "doctor": "Examine a running installation, from the forwarders to the API server",
    "dump": "Write an archive for a bug report: objects, flags, metrics and logs",
    "corefile": "Print the stub block for a forwarder, or check or fix a Corefile",
    "completion": "Print the code by which a shell completes commands, flags and values",
    "version": "Print the versions of topodns, Python and the libraries",
}
# What to try first. A terminal shows the end of the overview, and so these.
EXAMPLES = (
    Example("Begin here. What would your cluster gain? This only reads it:", "topodns simulate"),
    Example("Look at it in a browser:", "topodns console"),
    Example("Is anything wrong in it?", "topodns check"),
    Example(
        "Each of them takes a dump, too. What would a client get, and why?",
        "topodns explain memcached.shop --client 10.244.2.16 --snapshot cluster.yaml",
    ),
    Example("Answer DNS queries, at 127.0.0.1:1053:", "topodns serve"),
)


class Command(Protocol):
    """What a command's module defines."""

    EXAMPLES: Sequence[Example]
    """At least one for each thing that people do with the command."""
    STATUSES: Mapping[int, str]
    """What each exit status means."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the command's arguments and flags."""

    def run(self, arguments: Namespace) -> int:
        """Run the command; return its exit status. Raises CommandError."""


def run_command(argv: Sequence[str]) -> int:
    """Run the command that *argv* names, without the program's name in front; return its exit status.

    A ``CommandError`` is printed to standard error.
    """
    set_up_logging("text")  # until the settings are read
    try:
        return _run(argv)
    except CommandError as error:
        if text := str(error):
            say(text, logging.ERROR)
        return error.status


def complete(words: Sequence[str]) -> int:
    """Print what completes a command line, for the shell, or for kubectl, which gives its *words*; return the status.

    A shell gives the command line in the environment.
    """
    status: int = import_module("dnsserver.cli.commands.completion").complete(words)
    return status


def _run(argv: Sequence[str]) -> int:
    name = argv[0] if argv else ""
    if name == "help" and len(argv) > 1:
        return _run([argv[1], "--help"])
    if name in ("", "help", "-h", "--help"):
        write(overview().format_help())
        return EXIT_DONE if name else EXIT_WRONG
    if name == "--version":
        name = "version"
    if name.startswith("-"):
        raise WrongInput(f"{name}: a flag found, expected a command before all flags; see '{program()} --help'")
    if name not in COMMANDS:
        raise WrongInput(f"{name}: unknown command{suggestion(name, COMMANDS)}; see '{program()} --help'")
    parser = parser_of(name)
    arguments, unknown = parser.parse(argv[1:])
    if arguments.help:
        write(parser.format_help())
        return EXIT_DONE
    if unknown:
        _reject(unknown[0], name, parser)
    return module_of(name).run(arguments)


def parser_of(name: str) -> CommandParser:
    """Return the parser of the command *name*, a row of ``COMMANDS``."""
    command = module_of(name)
    parser = CommandParser(
        prog=f"{program()} {name}",
        description=f"{COMMANDS[name]}.",
        examples=command.EXAMPLES,
        statuses=command.STATUSES,
    )
    command.add_arguments(parser)
    return parser


def module_of(name: str) -> Command:
    """Return the module of a command, which is imported now."""
    return cast(Command, import_module(f"dnsserver.cli.commands.{name}"))


def overview() -> CommandParser:
    """Return the parser of ``topodns`` itself, whose help is an overview of the commands."""
    parser = CommandParser(
        prog=program(),
        usage="COMMAND [flags]",
        description="A DNS server for Kubernetes that gives each client the nearest endpoints of a headless Service.",
        epilog=f"'{program()} COMMAND --help' lists the flags of a command. You can also set most flags in a "
        "file (--config FILE) or in an environment variable (TOPODNS_LOG_LEVEL for --log-level). A flag overrides the "
        "variable, and the variable overrides the file.",
        examples=EXAMPLES,
        statuses=STATUSES,
    )
    parser.flags.add_argument("--version", action="store_true", help=f"{COMMANDS['version']}, as 'version' does")
    commands = parser.add_argument_group("Commands")
    for name, summary in COMMANDS.items():
        commands.add_argument(name, help=summary)
    return parser


def _reject(argument: str, name: str, parser: CommandParser) -> NoReturn:
    """Raise WrongInput for an argument that the command *name* does not take."""
    flag = argument.partition("=")[0]
    if not argument.startswith("-") or argument == "-":
        raise WrongInput(f"{argument!r} found, expected no more arguments after {name}")
    if others := [other for other in COMMANDS if flag in parser_of(other).known_flags()]:
        *rest, last = others
        commands = f"{', '.join(rest)} and {last}" if rest else last
        raise WrongInput(f"{flag}: a flag of {commands}, not of {name}")
    raise WrongInput(f"{flag}: unknown flag{nearest(flag, parser.known_flags())}; see '{parser.prog} --help'")
