# SPDX-License-Identifier: Apache-2.0

"""The areas of the map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.tools.console.pages.areas import (
    MAX_AREAS,
    MAX_NODES,
    STEPS,
    Area,
    Areas,
    DomainTotals,
    Site,
    any_trouble,
    areas_of,
    troubles_of,
)
from locator.model import REGION, ZONE

KEYS = (REGION, ZONE, "example.com/rack")


@st.composite
def some_sites(draw: st.DrawFn) -> list[Site]:
    values = [st.sampled_from(["", *map(str, range(most))]) for most in (2, draw(st.sampled_from([2, 60])), 40)]
    counts = st.integers(0, 3)
    return [
        Site("local", f"n{number}", dict(zip(KEYS, draw(st.tuples(*values)), strict=True)), *draw(st.tuples(
            counts, counts, st.booleans(), counts)))
        for number in range(draw(st.sampled_from([0, 1, 10, 120])))
    ]  # fmt: skip


def everything(areas: Sequence[Area]) -> Iterator[Area]:
    for area in areas:
        yield area
        yield from everything(area.areas)


def weights(areas: Sequence[Area]) -> int:
    return sum(area.totals.weight for area in areas)


def drawn(sites: list[Site]) -> Areas:
    async def draw() -> Areas:
        return await areas_of(sites, KEYS, ())

    return trio.run(draw)


@given(some_sites())
def test_nothing_is_lost(sites: list[Site]) -> None:
    """Areas have what is in the areas within them, and the page all sites, as long as none is left out."""
    found = drawn(sites)
    if found.areas and not found.more_areas:
        assert weights(found.areas) == DomainTotals(sites).weight
    for area in everything(found.areas):
        assert not area.areas or weights(area.areas) == area.totals.weight
        assert 1 <= area.size <= STEPS and len(area.nodes) + area.more >= area.totals.nodes * (not area.areas)
    assert len(found.nodes) + found.more_nodes == (0 if found.areas else len(sites))


@given(some_sites())
def test_a_map_is_small(sites: list[Site]) -> None:
    """However many domains and nodes there are."""
    found = drawn(sites)
    areas = list(everything(found.areas))
    assert len(areas) <= MAX_AREAS
    assert sum(len(area.nodes) for area in areas) + len(found.nodes) <= MAX_NODES


def test_a_trouble_within() -> None:
    """As a whole nothing is wrong, but one zone has clients and no endpoint: the map is not well."""
    sites = [Site("local", zone, {REGION: "r", ZONE: zone, KEYS[2]: ""}, zone == "a", 1, known=True) for zone in "ab"]
    whole = DomainTotals(sites)
    assert not troubles_of(whole, "", whole)
    assert any_trouble(drawn(sites).areas) and not any_trouble(drawn(sites[:1]).areas)
