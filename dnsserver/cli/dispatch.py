"""Runs a command, and turns its errors into a message and an exit status.

Only the module of the given command is imported, and it imports in ``run`` what its work needs. So ``--help`` and
``version`` load no DNS library, no Kubernetes client and no event loop.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from dnsserver.cli.errors import DONE, WRONG, CommandError, WrongInput
from dnsserver.cli.output import write
from dnsserver.cli.parser import Parser, program
from dnsserver.spelling import nearest, suggestion

# One row per command: its name, which is also the name of its module in ``commands``, and what it does.
COMMANDS = {
    "serve": "Answer DNS queries",
    "explain": "Print the answer that a client would get, and why",
    "check": "Report problems in a cluster",
    "controller": "Keep a PodLocator up to date for each pod",
    "webhook": "Set the topology hints of EndpointSlices whose Service asks for them",
    "corefile": "Print the stub block for a forwarder, or check a Corefile",
    "version": "Print the versions of topodns, Python and the libraries",
}


class Command(Protocol):
    """The functions that a command's module defines."""

    def add_arguments(self, parser: Parser) -> None:
        """Add the command's arguments and flags."""

    def run(self, arguments: Namespace) -> int:
        """Run the command; return its exit status. Raises CommandError."""


def run_command(argv: Sequence[str]) -> int:
    """Run the command that *argv* names, without the program's name in front; return its exit status.

    A ``CommandError`` is printed to standard error.
    """
    try:
        return _run(argv)
    except CommandError as error:
        if text := str(error):
            print(f"topodns: {text}", file=sys.stderr)
        return error.status


def _run(argv: Sequence[str]) -> int:
    name = argv[0] if argv else ""
    if name in ("", "help", "-h", "--help"):
        write(_overview())
        return DONE if name else WRONG
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        raise WrongInput(f"{name}: unknown command{suggestion(name, COMMANDS)}; see '{program()} --help'")
    command = cast(Command, import_module(f"dnsserver.cli.commands.{name}"))
    parser = Parser(prog=f"{program()} {name}", description=f"{COMMANDS[name]}.")
    command.add_arguments(parser)
    arguments, unknown = parser.parse(argv[1:])
    if arguments.help:
        write(parser.format_help())
        return DONE
    if unknown:
        _reject(unknown[0], name, parser)
    return command.run(arguments)


def _overview() -> str:
    """Return the text of ``topodns --help``."""
    parser = Parser(
        prog=program(),
        usage="COMMAND [flags]",
        description="A DNS server for Kubernetes that gives each client the nearest endpoints of a headless Service.",
        epilog=f"'{program()} COMMAND --help' lists the flags of a command. You can also set most flags in a "
        "file (--config FILE) or in an environment variable (TOPODNS_LOG_LEVEL for --log-level). A flag overrides the "
        "variable, and the variable overrides the file.",
    )
    commands = parser.add_argument_group("Commands")
    for name, summary in COMMANDS.items():
        commands.add_argument(name, help=summary)
    return parser.format_help()


def _reject(argument: str, name: str, parser: Parser) -> NoReturn:
    """Raise WrongInput for an argument that the command *name* does not take."""
    from dnsserver.settings.fields import FLAGS

    flag = argument.partition("=")[0]
    if not argument.startswith("-") or argument == "-":
        raise WrongInput(f"{argument!r} found, expected no more arguments after {name}")
    if (setting := FLAGS.get(flag.removeprefix("--").replace("-", "_"))) is not None:
        *others, last = setting.commands
        commands = f"{', '.join(others)} and {last}" if others else last
        raise WrongInput(f"{flag}: a flag of {commands}, not of {name}")
    raise WrongInput(f"{flag}: unknown flag{nearest(flag, parser.known_flags())}; see '{parser.prog} --help'")
