# SPDX-License-Identifier: Apache-2.0

"""Declares a setting, or a flag of one command: a field of a record, with the flag that sets it on the command line.

Pure. ``single``, ``repeatable``, ``several`` and ``switch`` claim to return a value of the field's type, as
``dataclasses.field`` does. So a type checker reports a field whose type, default and syntax do not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar

from dnsserver.settings.values import SWITCH, Syntax

T = TypeVar("T")
D = TypeVar("D")

# Commands that share flags; what a single command has names it in place.
SERVING = ("serve",)
ASKING = ("explain", "tail", "clients")
READING = (*SERVING, "explain", "check", "simulate", "console")
WITH_CLUSTERS = (*READING, "controller")  # they take --cluster
WRITING = ("controller", "webhook")
ENDING_LATE = (*SERVING, "webhook")
SERVING_HTTP = (*SERVING, "console", *WRITING)
EVERY_COMMAND = (*READING, *WRITING, "doctor", "dump")


class Flag(NamedTuple):
    """The flag of a field, and its text in ``--help``.

    ``shown`` describes the default where the value itself would not explain it, and is empty otherwise. ``syntax``
    parses one value; in a repeatable flag, a value that parses to None adds nothing. ``several``: it parses to several
    values, of which each counts once however often it is given. ``old_name`` is what the field was called, empty if it
    has its first name: for a release, ``serve``, files and the environment take it with a warning. ``short`` is a
    shorter spelling, such as ``-n``. A command's own flag is of no theme, and no other command has it.
    """

    syntax: Syntax[object]
    help: str
    shown: str = ""
    repeatable: bool = False
    several: bool = False
    commands: tuple[str, ...] = ()
    old_name: str = ""
    short: str = ""
    theme: str = ""

    @property
    def switch(self) -> bool:
        """Whether the flag needs no value: alone it means ``on``."""
        return self.syntax is SWITCH

    def described(self, default: object) -> str:
        """Return the text in ``--help``, with the default."""
        words = [*([] if default is None and not self.shown else [f"default: {self.shown or default}"])]
        words += ["repeatable"] if self.repeatable else []
        return f"{self.help} ({'; '.join(words)})" if words else self.help


def single(
    default: D, syntax: Syntax[T], *, help: str, commands: tuple[str, ...] = (), shown: str = "", short: str = ""
) -> D | T:
    """Return a field whose flag may be given once. Without *commands*, those of its theme have it."""
    return field(default=default, metadata={Flag: Flag(syntax, help, shown, commands=commands, short=short)})


def repeatable(
    default: D, syntax: Syntax[T | None], *, help: str, shown: str, commands: tuple[str, ...] = (), old_name: str = ""
) -> D | tuple[T, ...]:
    """Return a field whose flag may be given several times. The field holds all values in order."""
    flag = Flag(syntax, help, shown, repeatable=True, commands=commands, old_name=old_name)
    return field(default=default, metadata={Flag: flag})


def several(
    default: D, syntax: Syntax[tuple[T, ...]], *, help: str, shown: str, commands: tuple[str, ...] = ()
) -> D | tuple[T, ...]:
    """Return a field whose flag may be given several times, and each time for several values."""
    flag = Flag(syntax, help, shown, repeatable=True, several=True, commands=commands)
    return field(default=default, metadata={Flag: flag})


def switch(*, help: str, commands: tuple[str, ...] = ()) -> bool:
    """Return a boolean field that is off by default."""
    return single(False, SWITCH, help=help, commands=commands, shown="off")


def flags_in(record: type) -> Mapping[str, Flag]:
    """Return the flags of a record by field."""
    return {setting.name: _flag_of(setting) for setting in fields(record)}


def _flag_of(setting: Field[Any]) -> Flag:
    flag = setting.metadata[Flag]
    assert isinstance(flag, Flag)
    return flag
