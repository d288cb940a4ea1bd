# SPDX-License-Identifier: Apache-2.0

"""What a fix changes in a damaged Corefile: the lines at fault, and nothing else."""

from __future__ import annotations

import difflib
import re

import pytest

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.checks import check, fixed
from dnsserver.tools.corefile.stub_zones import read
from tests.kit.corefiles import Case, corefiles

TO = [parse_upstream("10.96.0.53")]
CASES = corefiles("fixed")
DAMAGED = {name: case for name, case in CASES.items() if case.changes}
UNDECIDED = {name: case for name, case in CASES.items() if case.undecided}


def changes(old: str, new: str) -> list[str]:
    """Return the lines that differ, those that went first, and without the ends of lines."""
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    return [f"{line[0]}{line[2:]}" for line in lines if line[0] in "+-"]


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
def test_only_the_lines_at_fault_change(case: Case) -> None:
    """Then nothing is found any more, and what is whole stays whole."""
    corefile = read(case.text, forwarder=case.forwarder, to=TO)
    after = fixed(corefile, stub=case.stub)
    assert sorted(changes(case.text, after.text)) == sorted(case.changes)
    assert check(corefile)
    assert check(read(after.text, forwarder=case.forwarder, to=TO)) == []
    assert fixed(after).text == after.text
    assert set(re.findall(r"\r?\n", after.text)) == set(re.findall(r"\r?\n", case.text))


@pytest.mark.parametrize("case", UNDECIDED.values(), ids=UNDECIDED)
def test_what_needs_a_decision_is_left(case: Case) -> None:
    """A rule in a block for other names, too, would name clients to their servers."""
    corefile = read(case.text, forwarder=case.forwarder, to=TO)
    assert check(corefile)
    assert fixed(corefile).text == case.text


def test_a_block_of_others_at_the_port_of_the_fallback() -> None:
    """Only one that answers from the API server is a fallback."""
    others = "corp.example:5301 {\n    forward . 192.0.2.53\n}\n"
    assert check(read(CASES["plain"].text + others, forwarder="coredns", to=TO)) == []
