# SPDX-License-Identifier: Apache-2.0

"""Adapts argparse: errors are one line, a switch never takes the next argument as its value, and help has examples."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple, NoReturn, TypeVar

from dnsserver.cli.errors import WrongInput

T = TypeVar("T")

MAX_FILE = 16 << 20  # octets of settings, or of a Corefile: a ConfigMap has at most one sixteenth of that
PLUGIN = "kubectl-topodns"  # the program that kubectl looks for when somebody types ``kubectl topodns``


def program() -> str:
    """Return how the user has called topodns: ``topodns``, or ``kubectl topodns``."""
    return "kubectl topodns" if Path(sys.argv[0]).name == PLUGIN else "topodns"


class Example(NamedTuple):
    """A command line that does what ``about`` says. It calls the program ``topodns``."""

    about: str
    command: str

    def called(self) -> str:
        """Return the command line as the user calls the program."""
        return re.sub(r"(^|\| |<\()topodns(?= )", rf"\g<1>{program()}", self.command)  # elsewhere, it is no command


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of one command; also formats the help of ``topodns`` itself.

    The help ends with *examples*, and with what each exit status means.
    """

    def __init__(
        self,
        *,
        prog: str,
        description: str,
        usage: str = "[flags]",
        epilog: str | None = None,
        examples: Sequence[Example] = (),
        statuses: Mapping[int, str] | None = None,
    ) -> None:
        self.examples, self.statuses = examples, statuses or {}
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
        """The flags that are not settings, and the settings that this command often needs."""
        self.switches: set[str] = set()
        """The flags that mean ``FLAG=on`` when given without a value."""
        self.words: dict[str, Sequence[str]] = {}
        """The words that a flag takes beside other values, by its destination; shells complete them."""
        self.flags.add_argument("-h", "--help", action="store_true", help="Print this help")

    def parse(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the parsed arguments, and those that the command does not take. Raises WrongInput."""
        for flag, value in pairwise(argv):
            if flag in self.switches and value in ("on", "off"):  # else it would be an argument, such as a file
                raise WrongInput(f"{flag}: {value} found behind it, expected {flag}={value}")
        return self.parse_known_intermixed_args(
            [f"{argument}=on" if argument in self.switches else argument for argument in argv]
        )

    def known_flags(self) -> list[str]:
        """Return all flags of the command."""
        return [flag for action in self.actions() for flag in action.option_strings]

    def actions(self) -> list[argparse.Action]:
        """Return all arguments and flags of the command."""
        return self._actions  # argparse has no public access

    def groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yield each group of the help that has arguments or flags, by its heading."""
        for group in self._action_groups:
            if group.title and group._group_actions:
                yield group.title, group._group_actions

    def format_help(self) -> str:
        """Return the help, with examples and exit statuses at its end."""
        parts = [super().format_help()]
        if self.examples:
            lines = [f"  # {example.about}\n  {example.called()}\n" for example in self.examples]
            parts.append("Examples:\n" + "\n".join(lines))
        if self.statuses:
            width = shutil.get_terminal_size().columns - 2  # as argparse wraps
            lines = [
                textwrap.fill(text, width, initial_indent=f"  {status:<4}", subsequent_indent=" " * 6)
                for status, text in self.statuses.items()
            ]
            parts.append("Exit status:\n" + "".join(f"{line}\n" for line in lines))
        return "\n".join(parts)

    def error(self, message: str) -> NoReturn:
        """Raise WrongInput."""
        message = message.removeprefix("argument ")
        if refused := re.fullmatch(r"(\S+): invalid choice: (.*) \(choose from (.*)\)", message):
            flag, found, words = refused.groups()
            message = f"{flag}: {found}, expected {one_of(words.replace(chr(39), '').split(', '))}"
        elif missing := re.fullmatch(r"(\S+): expected one argument", message):
            flag = missing[1].split("/")[-1]  # the long one
            (value,) = {_value_of(action) for action in self._actions if flag in action.option_strings}
            message = f"{flag}: no value found, expected {value}"
        raise WrongInput(f"{message}; see '{self.prog} --help'")


def _value_of(action: argparse.Action) -> str:
    """Return what stands for the value of a flag."""
    return str(action.metavar) if action.metavar else one_of(tuple(action.choices or ()))


class _Formatter(argparse.HelpFormatter):
    """Wraps help texts without breaking words at hyphens, as in ``kube-system``."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def add_output_format(parser: CommandParser, *more: str) -> None:
    """Add ``-o``, the choice between text for people, JSON and YAML for programs, and *more*."""
    choices = ("text", "json", "yaml", *more)
    parser.flags.add_argument(
        "-o", dest="output", choices=choices, default="text", help="Output format (default: text)"
    )


def one_of(words: Sequence[str]) -> str:
    """Return words as a message lists them: ``a, b or c``."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def read_file(path: str, expected: str, opened: IO[bytes] | None = None) -> bytes:
    """Return the content of a file that somebody has named, and that is *opened* if it is standard input.

    Raises WrongInput if it cannot be read, or is endless.
    """
    try:
        with nullcontext(opened) if opened is not None else open(path, "rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror}, expected {expected}") from None
    if len(content) > MAX_FILE:
        raise WrongInput(f"{path}: more than {MAX_FILE >> 20} MiB, expected {expected}")
    return content


def parse_argument(name: str, parse: Callable[[str], T], text: str, expected: str) -> T:
    """Return ``parse(text)``. Raises WrongInput with the message of its ValueError and what was *expected*."""
    try:
        return parse(text)
    except ValueError as error:
        raise WrongInput(f"{name}: {error}, expected {expected}") from None
