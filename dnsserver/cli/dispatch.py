"""Finds the command that is asked for, runs it, and turns what ends it into a message and an exit status.

A command's module is imported when the command is asked for, and imports in ``run`` what the work needs. So ``--help``
and ``version`` wait for no DNS library, no Kubernetes client and no event loop.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn, Protocol, cast

from dnsserver.cli.errors import DONE, WRONG, CommandError, WrongInput
from dnsserver.cli.output import write
from dnsserver.cli.parser import Parser
from dnsserver.settings.spelling import nearest

# A row for each command: its name, which is also that of its module in ``commands``, and what it does.
COMMANDS = {
    "serve": "Answer DNS queries",
    "explain": "Print what a client would be answered, and why",
    "check": "Report what is wrong in a cluster",
    "controller": "Keep a PodLocator up to date for each pod",
    "corefile": "Print the stub block for a forwarder, or check a Corefile",
    "version": "Print the versions of topodns, Python and the libraries",
}


class Command(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: Parser) -> None:
        """Add the command's own arguments."""

    def run(self, arguments: Namespace) -> int:
        """Do what the command does; return its exit status. Raises CommandError."""


def run_command(words: Sequence[str]) -> int:
    """Run the command that *words* ask for, and print what ends it early; return its exit status."""
    try:
        return _run(words)
    except CommandError as error:
        if text := str(error):
            print(f"topodns: {text}", file=sys.stderr)
        return error.status


def _run(words: Sequence[str]) -> int:
    name = words[0] if words else ""
    if name in ("", "help", "-h", "--help"):
        write(_overview())
        return DONE if name else WRONG
    if name == "--version":
        name = "version"
    if name not in COMMANDS:
        raise WrongInput(f"{name}: unknown command{nearest(name, COMMANDS)}; see 'topodns --help'")
    command = cast(Command, import_module(f"dnsserver.cli.commands.{name}"))
    parser = Parser(prog=f"topodns {name}", description=f"{COMMANDS[name]}.")
    command.add_arguments(parser)
    arguments, unknown = parser.parse(words[1:])
    if arguments.help:
        write(parser.format_help())
        return DONE
    if unknown:
        _refuse(unknown[0], name, parser)
    return command.run(arguments)


def _overview() -> str:
    """Return the help of ``topodns`` itself."""
    parser = Parser(
        prog="topodns",
        usage="COMMAND [flags]",
        description="A DNS server for Kubernetes that gives each client the nearest endpoints of a headless Service.",
        epilog="'topodns COMMAND --help' lists the flags of a command. A setting can also be given in a file (--config "
        "FILE) or in an environment variable (TOPODNS_LOG_LEVEL for --log-level). A flag overrides the variable, and "
        "the variable overrides the file.",
    )
    commands = parser.add_argument_group("Commands")
    for name, summary in COMMANDS.items():
        commands.add_argument(name, help=summary)
    return parser.format_help()


def _refuse(word: str, name: str, parser: Parser) -> NoReturn:
    """Raise WrongInput for a word that the command *name* does not know."""
    from dnsserver.settings.fields import FLAGS

    flag = word.partition("=")[0]
    if not word.startswith("-") or word == "-":
        raise WrongInput(f"{word!r} found, expected nothing more after {name}")
    if (setting := FLAGS.get(flag.removeprefix("--").replace("-", "_"))) is not None:
        raise WrongInput(f"{flag}: a flag of {' and '.join(setting.commands)}, not of {name}")
    raise WrongInput(f"{flag}: unknown flag{nearest(flag, parser.known_flags())}; see 'topodns {name} --help'")
