# SPDX-License-Identifier: Apache-2.0

"""Defines the fields of ``Settings``, each with the flag that sets it on the command line.

Pure. ``single``, ``repeatable`` and ``switch`` claim to return a value of the field's type, as ``dataclasses.field``
does. So a type checker reports a field whose type, default and syntax do not agree.
"""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any, NamedTuple, TypeVar

from dnsserver.settings.values import SWITCH, Syntax

T = TypeVar("T")
D = TypeVar("D")

# The headings of --help, in their order.
OUTPUT = "Output"
CLUSTER_TO_READ = "Cluster to read"
ANSWERS = "Names and answers"
CLUSTERS = "Several clusters"
CLIENTS_AND_FORWARDERS = "Clients and forwarders"
CONTROLLER = "Controller"
WEBHOOK = "Webhook"
SERVER = "Server"
LOGGING = "Logging"
THEMES = (OUTPUT, CLUSTER_TO_READ, ANSWERS, CLUSTERS, CLIENTS_AND_FORWARDERS, CONTROLLER, WEBHOOK, SERVER, LOGGING)

# The commands that have a flag.
SERVING = ("serve",)
EXPLAINING = ("explain",)
ASKING = ("explain", "tail")
CHECKING = ("check",)
SIMULATING = ("simulate",)
SHOWING = ("console",)
READING = (*SERVING, *EXPLAINING, *CHECKING, *SIMULATING, *SHOWING)
CONTROLLING = ("controller",)
PROBING = (*READING, *CONTROLLING)
HINTING = ("webhook",)
WRITING = (*CONTROLLING, *HINTING)
ANSWERING = (*SERVING, *HINTING)
RUNNING = (*SERVING, *SHOWING, *WRITING)
EXAMINING = ("doctor",)
DUMPING = ("dump",)
EVERY_COMMAND = (*READING, *WRITING, *EXAMINING, *DUMPING)


class Flag(NamedTuple):
    """The flag of a setting, and its text in ``--help``.

    ``shown`` describes the default where the value itself would not explain it, and is empty otherwise. ``syntax``
    parses one value; in a repeatable flag, a value that parses to None adds nothing. ``several``: it parses to several
    values, of which each counts once however often it is given. ``old_name`` is what the field was called, empty if it
    has its first name: for a release, ``serve``, files and the environment take it with a warning.
    """

    syntax: Syntax[object]
    theme: str
    help: str
    commands: tuple[str, ...]
    shown: str
    repeatable: bool
    several: bool = False
    old_name: str = ""

    @property
    def switch(self) -> bool:
        """Whether the flag needs no value: alone it means ``on``."""
        return self.syntax is SWITCH


def single(
    default: T, syntax: Syntax[T], *, theme: str, help: str, commands: tuple[str, ...] = READING, shown: str = ""
) -> T:
    """Return a field whose flag may be given once."""
    return field(default=default, metadata={Flag: Flag(syntax, theme, help, commands, shown, repeatable=False)})


def repeatable(
    default: D,
    syntax: Syntax[T | None],
    *,
    theme: str,
    help: str,
    shown: str,
    commands: tuple[str, ...] = READING,
    old_name: str = "",
) -> D | tuple[T, ...]:
    """Return a field whose flag may be given several times. The field holds all values in order."""
    flag = Flag(syntax, theme, help, commands, shown, repeatable=True, old_name=old_name)
    return field(default=default, metadata={Flag: flag})


def several(default: D, syntax: Syntax[tuple[T, ...]], *, theme: str, help: str, shown: str) -> D | tuple[T, ...]:
    """Return a field whose flag may be given several times, and each time for several values."""
    flag = Flag(syntax, theme, help, READING, shown, repeatable=True, several=True)
    return field(default=default, metadata={Flag: flag})


def switch(*, theme: str, help: str, commands: tuple[str, ...] = READING) -> bool:
    """Return a boolean field that is off by default."""
    return single(False, SWITCH, theme=theme, help=help, commands=commands, shown="off")


def flag_of(setting: Field[Any]) -> Flag:
    """Return the flag of a field."""
    flag = setting.metadata[Flag]
    assert isinstance(flag, Flag)
    return flag
