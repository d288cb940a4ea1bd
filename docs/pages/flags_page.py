# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/flags.md`` from the commands and the settings: ``make docs``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from dnsserver.cli.dispatch import COMMANDS, parser_of
from dnsserver.cli.parser import CommandParser
from dnsserver.settings.fields import FLAGS, THEMES, Settings, Theme
from dnsserver.settings.flags import Flag, flags_in
from dnsserver.settings.reading import ENVIRONMENT, option

HEAD = """\
# Flags

Made from the code. `topodns COMMAND --help` prints the same for one command.

## Commands

| command | what it does |
| --- | --- |
"""
SETTINGS = """
## Settings

You can give each of these flags also in the environment, or in a file: [The command line](command-line.md#settings)
says how. An unknown flag, or an unknown key in the file, is an error, and an unknown variable a warning. The variables
that Kubernetes makes for a Service called `topodns`, such as `TOPODNS_PORT`, count as neither. An empty variable counts
as not set.
"""
SETTINGS_HEAD = """
| flag and variable | default | meaning | commands |
| --- | --- | --- | --- |
"""
FOOT = """
<!-- Printed by "make docs" from the commands, and from dnsserver/settings/. -->
"""


def document() -> str:
    """Return the page."""
    overview = "".join(f"| [`{name}`](#{name}) | {summary} |\n" for name, summary in COMMANDS.items())
    return HEAD + overview + "".join(map(_command, COMMANDS)) + SETTINGS + "".join(map(_theme, THEMES)) + FOOT


def _command(name: str) -> str:
    parser = parser_of(name)
    rows = "".join(f"| {words} | {_cell(_help(action))} |\n" for words, action in _own(parser))
    table = f"\n| argument or flag | meaning |\n| --- | --- |\n{rows}" if rows else ""
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    themes = [theme.title for theme in THEMES if any(name in flag.commands for flag in _of(theme).values())]
    links = ", ".join(f"[{theme}](#{_anchor(theme)})" for theme in themes)
    more = f"\nIts settings: {links}.\n" if links else ""
    lines = "\n\n".join(f"# {example.about}\n{example.command}" for example in parser.examples)
    examples = f"\n```sh\n{lines}\n```\n" if lines else ""
    statuses = "".join(f"| {status} | {_cell(text)} |\n" for status, text in parser.statuses.items())
    ends = f"\n| exit status | meaning |\n| --- | --- |\n{statuses}" if statuses else ""
    return f"\n### {name}\n\n{COMMANDS[name]}.\n\n```\n{usage}\n```\n{table}{more}{examples}{ends}"


def _own(parser: CommandParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the arguments of a command and its flags that are no settings, or are written otherwise, too."""
    settings = {option(name) for name in FLAGS}
    for action in sorted(parser.actions(), key=lambda action: bool(action.option_strings)):
        names = action.option_strings or [""]
        if not settings.issuperset(names) and "--help" not in names:
            value = action.metavar or ("|".join(action.choices) if action.choices else "")
            value = "" if action.option_strings and action.nargs == "?" else value  # of a switch
            yield (
                ", ".join(f"`{' '.join(filter(None, (name, str(value))))}`".replace("|", r"\|") for name in names),
                action,
            )


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _of(theme: Theme) -> dict[str, Flag]:
    return {name: FLAGS[name] for name in flags_in(theme.settings)}


def _theme(theme: Theme) -> str:
    rows = "".join(_setting(name, flag) for name, flag in _of(theme).items())
    return f"\n### {theme.title}\n{SETTINGS_HEAD}{rows}"


def _setting(name: str, flag: Flag) -> str:
    value = "" if flag.switch else f" {flag.syntax.metavar}"
    default = _cell(str(flag.shown or getattr(Settings(), name)))
    meaning = _cell(flag.help) + ("; repeatable" if flag.repeatable else "")
    names = f"`{option(name)}{value}` `{ENVIRONMENT}{name.upper()}`"
    return f"| {names} | {default} | {meaning} | {', '.join(flag.commands)} |\n"


def _cell(text: str) -> str:
    """Return a text as a cell of a table: neither its stars nor its angle brackets nor its bars mean anything."""
    return re.sub(r"([*|<_])", r"\\\1", text)


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


if __name__ == "__main__":
    print(document(), end="")
