"""How a setting is given on the command line: the fields of ``Settings`` are made here, each with its flag.

Pure. To a type checker, what makes a field returns a value of the field's type, as ``dataclasses.field`` does: a field
whose type, default and syntax do not agree is an error.
"""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any, NamedTuple, TypeVar

from dnsserver.settings.values import SWITCH, Syntax

T = TypeVar("T")
D = TypeVar("D")

# The headings of --help, in order.
CLUSTER = "Cluster to read"
ANSWERS = "Names and answers"
CLIENTS = "Clients and forwarders"
CONTROLLER = "Controller"
SERVER = "Server"
LOGGING = "Logging"
THEMES = (CLUSTER, ANSWERS, CLIENTS, CONTROLLER, SERVER, LOGGING)

# The commands that a flag is for.
SERVING = ("serve",)
READING = (*SERVING, "explain", "check")
CONTROLLING = ("controller",)
RUNNING = (*SERVING, *CONTROLLING)
ALL = (*READING, *CONTROLLING)


class Flag(NamedTuple):
    """How a setting is given on the command line, and what ``--help`` says of it.

    ``shown`` is the default in words, where the default itself does not tell. The ``syntax`` of a repeatable flag is
    that of one value; a value that is read as None adds nothing.
    """

    syntax: Syntax[object]
    theme: str
    help: str
    commands: tuple[str, ...]
    shown: str
    repeatable: bool

    @property
    def switch(self) -> bool:
        """Whether the flag alone, without a value, switches something on."""
        return self.syntax is SWITCH


def single(
    default: T, syntax: Syntax[T], *, theme: str, help: str, commands: tuple[str, ...] = READING, shown: str = ""
) -> T:
    """Return a field for a flag that is given once."""
    return field(default=default, metadata={Flag: Flag(syntax, theme, help, commands, shown, repeatable=False)})


def repeatable(
    default: D, syntax: Syntax[T | None], *, theme: str, help: str, shown: str, commands: tuple[str, ...] = READING
) -> D | tuple[T, ...]:
    """Return a field for a flag that can be given several times; the field holds all values in order."""
    return field(default=default, metadata={Flag: Flag(syntax, theme, help, commands, shown, repeatable=True)})


def switch(*, theme: str, help: str, commands: tuple[str, ...] = READING) -> bool:
    """Return a field for something that is off unless it is switched on."""
    return single(False, SWITCH, theme=theme, help=help, commands=commands, shown="off")


def flag_of(setting: Field[Any]) -> Flag:
    """Return the flag of a field."""
    flag = setting.metadata[Flag]
    assert isinstance(flag, Flag)
    return flag
