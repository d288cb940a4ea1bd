# SPDX-License-Identifier: Apache-2.0

"""What an upstream has answered: how long that is remembered, and for whom."""

from __future__ import annotations

import dns.rcode
import pytest
import trio

from dnsserver.metrics.counters import Counts
from dnsserver.net import upstream
from dnsserver.net.upstream import Upstream
from tests.kit.elsewhere import HERE, Behaviour, Elsewhere, asking, says, silent

A, SOA, AAAA = 1, 6, 28
NXDOMAIN, SERVFAIL = dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL
TARGET = "example.org"
SHOP, OTHER = "shop", "other"  # namespaces
ALIAS, ALIAS_2 = "example.org. 50 IN CNAME a.example.net.", "a.example.net. 40 IN CNAME b.example.net."

LIFETIMES: dict[str, tuple[Behaviour, int]] = {
    "its TTL": (says(HERE), 60),
    "the least TTL of all": (says(ALIAS, ALIAS_2, "b.example.net. 30 IN A 192.0.2.3"), 30),
    "the least is the alias's": (says("example.org. 5 IN CNAME b.example.net.", "b.example.net. 30 IN A 192.0.2.3"), 5),
    "300 s at most": (says("example.org. 86400 IN A 192.0.2.1"), 300),
    "NXDOMAIN": (says(rcode=NXDOMAIN, soa=7), 7),
    "NODATA": (says(soa=7), 7),
    "negative 30 s at most": (says(rcode=NXDOMAIN, soa=3600), 30),
    "alias to nothing": (says(ALIAS, rcode=NXDOMAIN, soa=20), 20),
    "failure": (says(rcode=SERVFAIL), 5),
    "silence": (silent, 5),
    "TTL 0 is for the current query only": (says("example.org. 0 IN A 192.0.2.1"), 0),
}


@pytest.mark.parametrize(("behaviour", "seconds"), LIFETIMES.values(), ids=LIFETIMES)
def test_an_answer_is_remembered_as_long_as_it_lives(behaviour: Behaviour, seconds: int) -> None:
    """RFC 2308 for negative answers; RFC 9520 for failures, so that a dead upstream is not asked each time."""

    @asking(behaviour)
    async def _(elsewhere: Upstream, server: Elsewhere, counts: Counts) -> None:
        first = await elsewhere.find(TARGET, A, SHOP)
        asked = len(server.asked)
        if seconds:
            await trio.sleep(seconds - 0.1)
            before = trio.current_time()
            again = await elsewhere.find(TARGET, A, SHOP)
            assert trio.current_time() == before and len(server.asked) == asked
            assert first.failed == again.failed
            await trio.sleep(0.2)
        await elsewhere.find(TARGET, A, SHOP)
        assert len(server.asked) > asked and counts.upstream["remembered"] == bool(seconds)


def test_ttls_count_down() -> None:
    """RFC 1035, 3.2.1: a cached record has the rest of its TTL, never below 0."""

    @asking(says(ALIAS, "a.example.net. 30 IN A 192.0.2.3"))
    async def _(elsewhere: Upstream, server: Elsewhere, _: Counts) -> None:
        for seconds, expected in ((0, [50, 30]), (0.9, [50, 30]), (1, [49, 29]), (27, [22, 2]), (1, [21, 1])):
            await trio.sleep(seconds)
            found = await elsewhere.find(TARGET, A, SHOP)
            assert [record.ttl for record in (*found.aliases, *found.records)] == expected
        assert len(server.asked) == 1


NEGATIVE: dict[str, tuple[Behaviour, int, int | None]] = {
    # behaviour -> rcode, TTL of the SOA
    "NXDOMAIN": (says(rcode=NXDOMAIN, soa=20), 3, 20),
    "NODATA": (says(soa=20), 0, 20),
    "a minimum above the TTL": (says(soa=86400), 0, 3600),
    "over an alias": (says(ALIAS, rcode=NXDOMAIN, soa=20), 3, 20),
    "without an SOA": (says(rcode=NXDOMAIN, soa=None), 3, None),
    "with records there is none": (says(HERE, soa=20), 0, None),
}


@pytest.mark.parametrize(("behaviour", "rcode", "ttl"), NEGATIVE.values(), ids=NEGATIVE)
def test_a_negative_answer_has_its_soa(behaviour: Behaviour, rcode: int, ttl: int | None) -> None:
    """With the lesser of its TTL and its minimum (RFC 2308, 3), which counts down."""

    @asking(behaviour)
    async def _(elsewhere: Upstream, _: Elsewhere, __: Counts) -> None:
        for seconds in (0, 5):
            await trio.sleep(seconds)
            found = await elsewhere.find(TARGET, A, SHOP)
            soa = [] if ttl is None else [("", SOA, ttl - seconds)]
            assert found.rcode == rcode and [(row.name, row.rtype, row.ttl) for row in found.soa] == soa
            assert all(str(row.data).startswith("ns.example. admin.example. 1 2 3 4 ") for row in found.soa)


def test_types_and_names_are_remembered_apart() -> None:
    """An answer for one type says nothing about another."""

    @asking(says(HERE))
    async def _(elsewhere: Upstream, server: Elsewhere, _: Counts) -> None:
        for target, qtype in ((TARGET, A), (TARGET, AAAA), ("example.net", A)) * 2:
            await elsewhere.find(target, qtype, SHOP)
        assert [name for name, _ in server.asked] == [TARGET, TARGET, "example.net"]


def test_memory_is_bounded_and_no_namespace_displaces_the_answers_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the memory is full, whoever fills most of it loses the oldest answer."""
    assert upstream.MAX_REMEMBERED == 1024
    monkeypatch.setattr(upstream, "MAX_REMEMBERED", 64)

    @asking(says())
    async def _(elsewhere: Upstream, _: Elsewhere, __: Counts) -> None:
        for qtype in range(256, 256 + 20):
            await elsewhere.find(TARGET, qtype, OTHER)
        for qtype in range(1000, 1000 + 64 + 20):
            await elsewhere.find(TARGET, qtype, SHOP)
        kept = [qtype for qtype in range(256, 1100) if elsewhere.answer_at_once(TARGET, qtype, SHOP)]
        assert kept == [*range(256, 256 + 20), *range(1000 + 40, 1000 + 84)]
