# SPDX-License-Identifier: Apache-2.0

"""Prints the manual page ``topodns.1`` from the commands and their flags: ``make man``; a release has it, too."""

from __future__ import annotations

import textwrap
from argparse import Action
from collections.abc import Iterator

from dnsserver import __version__
from dnsserver.cli.dispatch import COMMANDS, overview, parser_of
from dnsserver.cli.parser import CommandParser

WIDTH = 78  # of lines, where roff has no say
ENVIRONMENT = {
    "TOPODNS_...": "A setting: the flag in capitals, with _ for -, so TOPODNS_LOG_LEVEL for --log-level. White space "
    "separates the values of a repeatable flag. A flag overrides the variable, and the variable overrides the file.",
    "TOPODNS_CONFIG": "The file for --config.",
    "KUBECONFIG": "Kubeconfigs, separated by colons, if --kubeconfig does not name one.",
    "NO_COLOR": "If set, output on a terminal has no colours.",
    "TERM": "If it is dumb, output has neither colours nor a line that says what is being read.",
}


def document() -> str:
    """Return the page in roff, with the macros of man(7)."""
    return "".join(f"{line}\n" for line in _page())


def _page() -> Iterator[str]:
    whole = overview()
    yield f'.TH TOPODNS 1 "" "topodns {__version__}" "User Commands"'
    yield from _section("NAME", "topodns \\- topology-aware DNS for Kubernetes headless Services")
    yield from _section("SYNOPSIS", ".B topodns", "COMMAND [flags]", ".br", ".B kubectl topodns", "COMMAND [flags]")
    yield from _section("DESCRIPTION", _text(whole.description or ""), ".PP", _text(whole.epilog or ""))
    yield ".SH COMMANDS"
    for name, summary in COMMANDS.items():
        yield from (".TP", f".B {_word(name)}", _text(f"{summary}."))
    for name in COMMANDS:
        yield f'.SH "TOPODNS {_word(name.upper())}"'
        yield from _command(parser_of(name))
    yield ".SH ENVIRONMENT"
    for variable, meaning in ENVIRONMENT.items():
        yield from (".TP", f".B {_word(variable)}", _text(meaning))
    yield ".SH EXIT STATUS"
    yield from _statuses(whole)
    yield from _section("SEE ALSO", ".BR kubectl (1),", ".BR dig (1)")


def _section(heading: str, *lines: str) -> Iterator[str]:
    yield from (f'.SH "{heading}"', *lines)


def _command(parser: CommandParser) -> Iterator[str]:
    yield _text(parser.description or "")
    yield from (".PP", f".B {_word(parser.format_usage().removeprefix('usage: ').strip())}")
    for title, actions in parser.groups():
        yield f'.SS "{_word(title)}"'
        for action in actions:
            yield from (".TP", f".B {_word(_name_of(action))}", _text((action.help or "").replace("%%", "%")))
    yield '.SS "Examples"'
    for number, example in enumerate(parser.examples):
        yield from ([".PP"] if number else [])
        yield from (_text(example.about), ".PP", ".RS 4", ".nf", _word(example.command), ".fi", ".RE")
    yield '.SS "Exit status"'
    yield from _statuses(parser)


def _name_of(action: Action) -> str:
    """Return a flag with its value as ``--help`` shows it, or the name of an argument."""
    value = action.metavar or (f"{{{','.join(action.choices)}}}" if action.choices else "")
    if not action.option_strings:
        return str(value)
    flags = ", ".join(action.option_strings)
    if action.nargs == 0 or not value:
        return flags
    return f"{flags} [{value}]" if action.nargs == "?" else f"{flags} {value}"


def _statuses(parser: CommandParser) -> Iterator[str]:
    for status, meaning in parser.statuses.items():
        yield from (".TP", f".B {status}", _text(meaning))


def _word(text: str) -> str:
    """Return a text of one line in which nothing is an escape of roff."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")


def _text(text: str) -> str:
    """Return a text, in lines, in which nothing is a request or an escape of roff."""
    lines = textwrap.wrap(_word(text), WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in lines)


if __name__ == "__main__":
    print(document(), end="")
