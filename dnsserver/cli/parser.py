"""argparse as topodns needs it: its errors are one line, and a switch never takes the next word for its value."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from dnsserver.cli.errors import WrongInput

T = TypeVar("T")


class Parser(argparse.ArgumentParser):
    """The arguments of one command, or of ``topodns`` itself."""

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
        self.words = self.add_argument_group("Arguments")
        """What stands without a flag."""
        self.flags = self.add_argument_group("Flags")
        """The flags that belong to no theme."""
        self.switches: set[str] = set()
        """The flags that stand for ``FLAG=on`` without a value."""
        self.flags.add_argument("-h", "--help", action="store_true", help="Print this help")

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the arguments, and the words that are none. Raises WrongInput."""
        return self.parse_known_intermixed_args([f"{word}=on" if word in self.switches else word for word in words])

    def known_flags(self) -> list[str]:
        """Return every flag that the command has."""
        return [flag for action in self._actions for flag in action.option_strings]  # argparse shows them nowhere else

    def error(self, message: str) -> NoReturn:
        """Raise WrongInput."""
        raise WrongInput(f"{message[:1].lower()}{message[1:]}; see '{self.prog} --help'")


class _Formatter(argparse.HelpFormatter):
    """Help whose lines never break within ``kube-system``."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def add_output_format(parser: Parser) -> None:
    """Add ``-o``, for commands that print for people or for programs."""
    parser.flags.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="Format of the output (default: text)"
    )


def parsed(name: str, parse: Callable[[str], T], text: str, expected: str) -> T:
    """Return what an argument says. Raises WrongInput, with what *parse* says in its ValueError."""
    try:
        return parse(text)
    except ValueError as error:
        raise WrongInput(f"{name}: {error}, expected {expected}") from None
