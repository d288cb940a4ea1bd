# SPDX-License-Identifier: Apache-2.0

"""What the page on balanced nearness says in numbers: ``simulate`` and the oracle say the same."""

from __future__ import annotations

import re
from statistics import mean

import pytest

from tests.kit.commands_in_process import Run
from tests.kit.page_commands import table
from tests.kit.this_machine import ROOT
from tests.oracle.steadiness import OVERLOADS, changes

PAGE = ROOT / "docs" / "balance.md"
CHOICES = table(PAGE, "Example: the own zone")
STEADY = table(PAGE, "How steady it is")
EVENTS = {"a client pod comes": "pod comes", "an endpoint comes": "endpoint comes", "an endpoint goes": "endpoint goes"}


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if choice not in ("the clients get", "---")])
def test_a_choice_has_the_numbers_of_simulate(topodns: Run, choice: str) -> None:
    """With the values of ``--with`` that stand beside it."""
    tried, cross_zone, greatest = CHOICES[choice]
    flags = [word for value in re.findall(r"`(\S+)`", tried) for word in ("--with", value)]
    snapshot = str(ROOT / "examples" / "uneven.yaml")
    ran = topodns("simulate", "--service", "shop/catalog", *flags, "--snapshot", snapshot, "-o", "json")
    (service,) = ran.json["services"]
    assert f"{100 * service['cross_zone']['after']:.1f} %" == cross_zone
    assert f"{service['max_overload']:.2f} x" == greatest


@pytest.mark.parametrize("event", EVENTS)
def test_so_many_clients_get_another_answer(event: str) -> None:
    """As ``python -m tests.oracle.steadiness`` prints for 50 nodes and 15 endpoints."""
    found = [changes(EVENTS[event], overload, endpoints=15, nodes=50, clusters=60) for overload in OVERLOADS]
    changed = [mean(one.changed for one in some) for some in found]
    without = mean(one.without for one in found[0])
    assert STEADY[f"get another answer: {event}"] == [f"{figure:.1f}" for figure in (*changed, without)]
    lost = [mean(one.lost for one in some) for some in found]
    assert STEADY[f"lose one that stays: {event}"] == [*(f"{figure:.1f}" for figure in lost), "0.0"]
