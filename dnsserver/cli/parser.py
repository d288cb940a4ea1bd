"""Adapts argparse: errors are one line, and a switch never takes the next argument as its value."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from dnsserver.cli.errors import WrongInput

T = TypeVar("T")

PLUGIN = "kubectl-topodns"  # the program that kubectl looks for when somebody types ``kubectl topodns``


def program() -> str:
    """Return how the user has called topodns: ``topodns``, or ``kubectl topodns``."""
    return "kubectl topodns" if Path(sys.argv[0]).name == PLUGIN else "topodns"


class Parser(argparse.ArgumentParser):
    """Parses the arguments of one command; also formats the help of ``topodns`` itself."""

    def __init__(self, *, prog: str, description: str, usage: str = "[flags]", epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.positionals = self.add_argument_group("Arguments")
        """The positional arguments."""
        self.flags = self.add_argument_group("Flags")
        """The flags that are not settings."""
        self.switches: set[str] = set()
        """The flags that mean ``FLAG=on`` when given without a value."""
        self.flags.add_argument("-h", "--help", action="store_true", help="Print this help")

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed arguments, and those that the command does not take. Raises WrongInput."""
        return self.parse_known_intermixed_args(
            [f"{argument}=on" if argument in self.switches else argument for argument in argv]
        )

    def known_flags(self) -> list[str]:
        """Return all flags of the command."""
        return [flag for action in self._actions for flag in action.option_strings]  # argparse has no public access

    def error(self, message: str) -> NoReturn:
        """Raise WrongInput."""
        raise WrongInput(f"{message[:1].lower()}{message[1:]}; see '{self.prog} --help'")


class _Formatter(argparse.HelpFormatter):
    """Wraps help texts without breaking words at hyphens, as in ``kube-system``."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def add_output_format(parser: Parser, *more: str) -> None:
    """Add ``-o``, the choice between text for people, JSON for programs, and *more*."""
    parser.flags.add_argument(
        "-o", dest="output", choices=("text", "json", *more), default="text", help="Output format (default: text)"
    )


def parse_argument(name: str, parse: Callable[[str], T], text: str, expected: str) -> T:
    """Return ``parse(text)``. Raises WrongInput with the message of its ValueError and what was *expected*."""
    try:
        return parse(text)
    except ValueError as error:
        raise WrongInput(f"{name}: {error}, expected {expected}") from None
