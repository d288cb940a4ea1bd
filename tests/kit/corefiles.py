# SPDX-License-Identifier: Apache-2.0

"""Corefiles, and what topodns makes of them: the tables in ``tests/corefiles``, which say what their fields mean."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence

import msgspec

from tests.kit.this_machine import ROOT


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Corefile, or what is printed, and what is expected of it."""

    text: str = ""
    flags: Sequence[str] = ()
    printed: str = ""
    found: Sequence[str] = ()
    message: str = ""
    of: str = ""
    old: str = ""
    new: str = ""
    ends: str = "\n"
    changes: Sequence[str] = ()
    undecided: bool = False
    forwarder: str = "coredns"
    stub: str = ""


def corefiles(table: str) -> dict[str, Case]:
    """Return a table by the names of its cases."""
    read = tomllib.loads((ROOT / "tests" / "corefiles" / f"{table}.toml").read_text())
    cases = msgspec.convert(read, dict[str, Case])
    for name, case in cases.items():
        text = re.sub(r"^\{(\w+)\}\n", lambda part: cases[part[1]].text, case.text, flags=re.MULTILINE)
        if case.of:
            text = cases[case.of].text
            assert not case.old or text.count(case.old) == 1, name
        text = text.replace(case.old, case.new) if case.old else text
        cases[name] = msgspec.structs.replace(case, text=text.replace("\n", case.ends))
    return cases
