# SPDX-License-Identifier: Apache-2.0

"""Look-ups of an upstream: equal ones are one, each namespace has its share, and answers are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import dns.rcode
import pytest
import trio
import trio.testing

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.net import upstream
from dnsserver.net.upstream import Upstream
from tests.kit.elsewhere import HERE, Behaviour, Elsewhere, after, asking, says, silent, slow_ones_never

NXDOMAIN, SERVFAIL = dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL
A, SOA, MX, TXT, AAAA = 1, 6, 15, 16, 28
TARGET, SHOP = "example.org", "shop"


class Lookers:
    """Queries for example.org that wait: what each found, and after how many seconds."""

    def __init__(self, elsewhere: Upstream) -> None:
        self._elsewhere = elsewhere
        self.found: list[UpstreamAnswer] = []
        self.seconds: list[float] = []

    async def look(self, delay: float = 0) -> None:
        await trio.sleep(delay)
        began = trio.current_time()
        self.found.append(await self._elsewhere.find(TARGET, A, SHOP))
        self.seconds.append(trio.current_time() - began)


def test_equal_look_ups_are_one() -> None:
    """A hundred clients at once cause one upstream query, even for an answer with TTL 0."""

    @asking(after(0.5, says("example.org. 0 IN A 192.0.2.1")))
    async def _(elsewhere: Upstream, server: Elsewhere, counts: Counts) -> None:
        lookers = Lookers(elsewhere)
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(lookers.look)
        assert [len(said.records) for said in lookers.found] == [1] * 100
        assert len(server.asked) == 1 and counts.upstream == {"answered": 100}


def test_who_joins_late_waits_no_longer_than_the_look_up() -> None:
    """If the look-up fails, it fails for all at once."""

    @asking(silent)
    async def _(elsewhere: Upstream, _: Elsewhere, __: Counts) -> None:
        lookers = Lookers(elsewhere)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lookers.look)
            nursery.start_soon(lookers.look, 1.5)
        assert all(said.failed for said in lookers.found)
        assert sorted(lookers.seconds) == [pytest.approx(0.3, abs=0.02), pytest.approx(1.8, abs=0.02)]


@pytest.mark.parametrize(
    ("behaviour", "leaves_after", "joined", "failed"),
    [(after(0.5, says(HERE)), 0.3, (0.1,) * 3, False), (silent, 1.6, (0.1, *(1.5,) * 20), True)],
    ids=["answer", "silence"],
)
def test_when_the_asker_leaves_those_who_joined_still_get_their_answer(
    behaviour: Behaviour, leaves_after: float, joined: Sequence[float], failed: bool
) -> None:
    """If the first client disconnects, another asks for all; each keeps its own deadline."""

    @asking(behaviour)
    async def _(elsewhere: Upstream, server: Elsewhere, _: Counts) -> None:
        lookers = Lookers(elsewhere)
        async with trio.open_nursery() as nursery:
            for delay in joined:
                nursery.start_soon(lookers.look, delay)
            with trio.move_on_after(leaves_after):
                await elsewhere.find(TARGET, A, SHOP)
        assert [said.failed for said in lookers.found] == [failed] * len(joined)
        assert max(lookers.seconds) < 2 and len(server.asked) >= 2


# Shares


Asked = tuple[str, int, str]  # name, type, namespace
SEVERAL_TYPES = (A, AAAA, SOA, MX, TXT, 33, 35, 64, 65)
ATTACKS: dict[str, list[Asked]] = {
    "many names": [(f"slow{n}.example.org", A, "evil") for n in range(400)],
    "many types": [(f"slow{n}.example.org", qtype, "evil") for n in range(50) for qtype in SEVERAL_TYPES],
    "one name": [("slow.example.org", A, "evil")] * 2000,
    "many names that are remembered": [(f"n{n}.example.org", A, "evil") for n in range(400)],
    "several namespaces": [(f"slow{n}.example.org", A, f"evil{n % 20}") for n in range(800)],
    "a hundred namespaces": [(f"slow{n}.example.org", A, f"evil{n % 100}") for n in range(800)],
    "names of others": [("slow.good.example.org", A, "evil"), *[(f"slow{n}", A, "evil") for n in range(300)]],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_other_namespaces_are_answered_whatever_one_asks_for(attack: Sequence[Asked]) -> None:
    """However many names of a namespace are never answered, those of another one are looked up at once."""

    @asking(slow_ones_never)
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        async with trio.open_nursery() as nursery:

            async def attacked() -> None:
                while True:
                    for asked in attack:
                        nursery.start_soon(elsewhere.find, *asked)
                    await trio.sleep(0.3)

            nursery.start_soon(attacked)
            await trio.sleep(1)
            for number in range(12):
                said = await elsewhere.find(f"x{number}.example.net", A, "good")
                assert not said.failed, number
                await trio.sleep(0.05)
            assert "good" not in counts.refused_lookups.numbers
            nursery.cancel_scope.cancel()


def test_the_share_of_a_namespace() -> None:
    """16 look-ups at a time; others wait for half of the time, then they are refused, which is not remembered.

    Nor is it that a look-up had no answer in what was left after the wait for its turn.
    """
    taken: dict[str, tuple[float, int]] = {}

    @asking(slow_ones_never)
    async def _(elsewhere: Upstream, server: Elsewhere, counts: Counts) -> None:

        async def look(name: str) -> None:
            began, said = trio.current_time(), await elsewhere.find(name, A, SHOP)
            assert said.failed and said.extended_error is not None
            taken[name] = trio.current_time() - began, said.extended_error[0]
            if said.extended_error[0] == 23:
                assert said.extended_error[1] == (
                    "too many look-ups of namespace shop: at most 16 at a time, and 256 queries that wait"
                )

        async with trio.open_nursery() as nursery:
            for number in range(upstream.LOOKUPS_EACH):
                nursery.start_soon(look, f"slow{number}")
            await trio.testing.wait_all_tasks_blocked(0.001)
            nursery.start_soon(look, "slow16")
            await trio.sleep(1)
            nursery.start_soon(look, "slow17")  # its turn comes when the first ones end
        assert taken.pop("slow16") == (pytest.approx(0.9, abs=0.05), 23)
        assert len(taken) == 17
        assert all(found == (pytest.approx(1.8, abs=0.05), 22) for found in taken.values())
        assert counts.upstream == {"failed": 17, "refused": 1}
        assert counts.refused_lookups.due(0) == [SHOP]
        asked = [name for name, _ in server.asked]
        for name, again in (("slow0", False), ("slow16", True), ("slow17", True)):
            await elsewhere.find(name, A, SHOP)
            assert ([other for other, _ in server.asked[len(asked) :]].count(name) > 0) == again, name


def test_queries_beyond_the_share_are_refused_at_once() -> None:
    """As many of a namespace wait as may; those of another one are none of them."""

    @asking(silent)
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(upstream.WAITING_EACH):
                assert elsewhere.answer_at_once(TARGET, A, SHOP) is None, number
                nursery.start_soon(elsewhere.find, TARGET, A, SHOP)
                await trio.testing.wait_all_tasks_blocked()
            refused = elsewhere.answer_at_once("example.net", A, SHOP)
            assert refused is not None and refused.failed and refused.extended_error is not None
            assert refused.extended_error[0] == 23
            assert await elsewhere.find(TARGET, A, SHOP) == refused
            assert elsewhere.answer_at_once(TARGET, A, "other") is None
            nursery.cancel_scope.cancel()
        assert counts.upstream == {"refused": 2}


def test_what_another_namespace_asks_for_needs_no_turn_of_its_own() -> None:
    """Whoever joins a look-up takes no place; and one that waits begins with the first namespace that has room."""

    @asking(slow_ones_never)
    async def _(elsewhere: Upstream, server: Elsewhere, counts: Counts) -> None:
        async with trio.open_nursery() as nursery:
            for namespace in ("evil", "good"):
                for number in range(upstream.LOOKUPS_EACH):
                    nursery.start_soon(elsewhere.find, f"slow{number}", A, namespace)
                    await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(elsewhere.find, "waits", A, namespace)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert counts.upstream["answered"] == (2 if namespace == "good" else 0)
            assert [name for name, _ in server.asked].count("waits") == 1
            nursery.cancel_scope.cancel()


# What is remembered

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
            await elsewhere.find(TARGET, qtype, "other")
        for qtype in range(1000, 1000 + 64 + 20):
            await elsewhere.find(TARGET, qtype, SHOP)
        kept = [qtype for qtype in range(256, 1100) if elsewhere.answer_at_once(TARGET, qtype, SHOP)]
        assert kept == [*range(256, 256 + 20), *range(1000 + 40, 1000 + 84)]
