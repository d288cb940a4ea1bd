# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, the counting: which addresses leave the answers, and until when."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.conversion import canonical_address, service_of
from locator.api.decoding import RESOURCES, decode_untrusted
from locator.health.rules import health_name
from locator.health.votes import HEALTHY, NONE, TOO_OLD, UNHEALTHY, VOTE_SECONDS, Votes
from locator.model import HealthEntry, ServiceHealth

WEB, ADDRESS, OTHER = "shop/web", "192.0.2.1", "192.0.2.2"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
UNIX_TIME = EPOCH.timestamp()
HOURS = 3600.0


def written(at: float) -> str:
    """Return the time *at* seconds after the beginning of the year, as a prober writes it."""
    return (EPOCH + timedelta(seconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def health(votes: Mapping[str, bool], at: float = 0.0, *, service: str = WEB) -> ServiceHealth:
    entries = tuple(HealthEntry(address, healthy) for address, healthy in votes.items())
    return ServiceHealth(health_name(service), service, entries, written(at))


AGAINST, FOR = {ADDRESS: False}, {ADDRESS: True}


def voting(number: int, against: int) -> Votes:
    """Return the votes of a *number* of clusters, of which the first ones have just voted against the address."""
    votes = Votes(f"c{place}" for place in range(number))
    for place in range(against):
        votes.observe(f"c{place}", [health(AGAINST)], now=0, unix_time=UNIX_TIME)
    return votes


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("against", range(6))
def test_more_than_half_of_all_clusters_decide(number: int, against: int) -> None:
    """Clusters that say nothing count among all: an isolated prober removes nothing."""
    votes = voting(number, min(number, against))
    for place in range(against, number, 2):
        votes.observe(f"c{place}", [health(FOR)], now=0, unix_time=UNIX_TIME)
    assert bool(votes.voted_out(WEB)) == (min(number, against) > number / 2)


def test_each_address_is_counted_by_itself() -> None:
    """Votes against two addresses are not one majority."""
    votes = Votes("abc")
    changed = [
        votes.observe(cluster, [health({ADDRESS: first, OTHER: second})], now=0, unix_time=UNIX_TIME)
        for cluster, first, second in [("a", False, True), ("b", True, False), ("c", False, True)]
    ]
    assert changed == [{WEB}] * 3
    assert votes.voted_out(WEB) == {ADDRESS}
    assert votes.voted_out("shop/other") == frozenset()


@pytest.mark.parametrize(
    ("renewed", "counts_for"),
    [
        pytest.param(written(0), 30, id="now"),
        pytest.param(written(-12), 18, id="12 s ago"),
        pytest.param(written(-30), 0, id="30 s ago"),
        pytest.param(written(-30.001), None, id="a millisecond more"),
        pytest.param(written(-5 * HOURS), None, id="hours ago"),
        pytest.param(written(5 * HOURS), 30, id="in the future"),
        pytest.param("2026-01-01T01:00:00+01:00", 30, id="another time zone"),
        pytest.param("2026-01-01T00:00:00", None, id="no time zone"),
        pytest.param("yesterday", None, id="no time"),
        pytest.param("", None, id="empty"),
    ],
)
def test_age_at_first_sight(renewed: str, counts_for: float | None) -> None:
    """It goes by the time that stands in the vote; a time in the future is now, one that is unreadable too old."""
    votes = Votes(["a"])
    votes.observe(
        "a", [ServiceHealth("web.shop", WEB, (HealthEntry(ADDRESS, False),), renewed)], now=1000, unix_time=UNIX_TIME
    )
    assert bool(votes.voted_out(WEB)) == (counts_for is not None)
    assert votes.due == (None if counts_for is None else pytest.approx(1000 + counts_for, abs=1e-6))


@pytest.mark.parametrize("skew", [-7 * HOURS, -31, -5, 0, 5, 31, 7 * HOURS])
def test_from_then_on_age_goes_by_the_readers_clock(skew: float) -> None:
    """Whatever the prober's clock says, a vote counts for 30 s after it was seen to change."""
    votes = Votes(["a"])
    votes.observe("a", [health(FOR, at=skew)], now=0, unix_time=UNIX_TIME)
    votes.observe("a", [health(AGAINST, at=10 + skew)], now=10, unix_time=UNIX_TIME + 10)
    assert votes.voted_out(WEB)
    votes.observe("a", [health(AGAINST, at=10 + skew)], now=39, unix_time=UNIX_TIME + 39)  # the same vote, listed again
    assert votes.expire(40) == set() and votes.voted_out(WEB)
    assert votes.due == math.nextafter(40, math.inf)
    assert votes.expire(votes.due) == {WEB}
    assert not votes.voted_out(WEB) and votes.due is None


def test_a_clock_that_is_set_back_renews() -> None:
    """Any change of the time is a renewal."""
    votes = Votes(["a"])
    for now, at in enumerate((HOURS, 0.0, -HOURS)):
        votes.observe("a", [health(AGAINST, at=at)], now=now * 20, unix_time=UNIX_TIME + now * 20)
        assert votes.voted_out(WEB) == {ADDRESS}


def test_time_alone_takes_the_majority_away() -> None:
    """As soon as too few votes are left, and no earlier."""
    votes = Votes("abc")
    for now, cluster in enumerate("abc"):
        votes.observe(cluster, [health(AGAINST, at=now)], now=now, unix_time=UNIX_TIME + now)
    first = votes.due
    assert first == math.nextafter(VOTE_SECONDS, math.inf)
    assert votes.expire(first) == {WEB} and votes.voted_out(WEB)
    second = votes.due
    assert second == math.nextafter(VOTE_SECONDS + 1, math.inf)
    assert votes.expire(second) == {WEB} and not votes.voted_out(WEB)


def test_an_entry_that_moves() -> None:
    """Its new address is another entry, and nobody has voted against it."""
    votes = voting(3, 2)
    assert votes.observe("c0", [health({OTHER: True}, at=1)], now=1, unix_time=UNIX_TIME) == {WEB}
    assert votes.voted_out(WEB) == frozenset()


def test_what_is_gone_votes_no_more() -> None:
    """A ServiceHealth that was deleted takes its votes along."""
    votes = voting(3, 2)
    assert votes.observe("c1", [], now=1, unix_time=UNIX_TIME + 1) == {WEB}
    assert not votes.voted_out(WEB)
    assert votes.observe("c0", [], now=1, unix_time=UNIX_TIME + 1) == {WEB}
    assert votes.due is None


def test_a_renewal_changes_nothing() -> None:
    """Nor does a message. What was computed from the votes stays as it is; only ``due`` moves."""
    votes = voting(3, 2)
    for now in range(5, 100, 5):
        same = ServiceHealth("web.shop", WEB, (HealthEntry(ADDRESS, False, "", f"{now}"),), written(now))
        assert [votes.observe(cluster, [same], now=now, unix_time=UNIX_TIME) for cluster in ("c0", "c1")] == [
            set(),
            set(),
        ]
        assert votes.due == math.nextafter(now + VOTE_SECONDS, math.inf)
    assert votes.voted_out(WEB) == {ADDRESS}


def test_what_has_changed() -> None:
    """Each vote that turns, becomes too old, or counts again, whether or not that decides anything."""
    votes = Votes("abc")
    assert votes.observe("a", [health(FOR)], now=0, unix_time=UNIX_TIME) == {WEB}
    assert votes.observe("a", [health(AGAINST, at=1)], now=1, unix_time=UNIX_TIME) == {WEB}
    assert votes.observe("b", [], now=32, unix_time=UNIX_TIME) == {WEB}, "the vote of another cluster is too old"
    assert votes.of_address(WEB, ADDRESS)["a"] == TOO_OLD
    assert votes.observe("a", [health(AGAINST, at=1)], now=33, unix_time=UNIX_TIME) == set()
    assert votes.observe("a", [health(AGAINST, at=34)], now=34, unix_time=UNIX_TIME) == {WEB}
    assert votes.of_address(WEB, ADDRESS)["a"] == UNHEALTHY


def test_what_explain_shows() -> None:
    """Of each configured cluster: its vote, that it is too old, or that there is none."""
    votes = Votes("abcd")
    votes.observe("a", [health(AGAINST)], now=0, unix_time=UNIX_TIME)
    votes.observe("b", [health(FOR)], now=0, unix_time=UNIX_TIME)
    votes.observe("c", [health(AGAINST, at=-40)], now=0, unix_time=UNIX_TIME)
    assert votes.of_address(WEB, ADDRESS) == {"a": UNHEALTHY, "b": HEALTHY, "c": TOO_OLD, "d": NONE}
    assert votes.of_address(WEB, OTHER) == dict.fromkeys("abcd", NONE)
    assert votes.numbers == {"a": 1, "b": 1, "c": 0, "d": 0}


# -- against a brute force, with clocks that differ by hours

Step = tuple[str, int, bool]  # what happens, in which cluster, and how the prober votes
STEPS = st.lists(
    st.tuples(st.sampled_from(("vote", "vote", "seconds", "long", "gone")), st.integers(0, 4), st.booleans()),
    max_size=40,
)
SECONDS = {"seconds": 7.0, "long": 29.0}


@given(number=st.integers(1, 5), skews=st.lists(st.floats(-9 * HOURS, 9 * HOURS), min_size=5, max_size=5), steps=STEPS)
def test_any_history(number: int, skews: Sequence[float], steps: Sequence[Step]) -> None:
    """What is voted out follows from when each vote was last seen to change; ``due`` is when time changes that."""
    votes, now = Votes(map(str, range(number))), 0.0
    last: dict[int, tuple[bool, float]] = {}  # by cluster: whether it is against, and when that ends to count
    renewals = 0
    for what, cluster, against in steps:
        if what in SECONDS:
            later = now + SECONDS[what]
            while votes.due is not None and votes.due <= later:
                votes.expire(votes.due)
            now = later
        elif cluster < number:
            given_votes = []
            if what == "gone":
                last.pop(cluster, None)
            else:
                renewals += 1  # each renewal has another time
                age = max(0.0, -skews[cluster] - renewals * 1e-3) if cluster not in last else 0.0
                last[cluster] = (against, now - age + VOTE_SECONDS)
                given_votes = [health({ADDRESS: not against}, at=now + skews[cluster] + renewals * 1e-3)]
            votes.observe(str(cluster), given_votes, now=now, unix_time=UNIX_TIME + now)
        counted = sum(against for against, until in last.values() if now <= until + 1e-5)
        assert bool(votes.voted_out(WEB)) == (counted * 2 > number)
        assert votes.due is None or votes.due > now


# -- the objects


def decoded(name: str, status: Any) -> Any:
    raw = {"metadata": {"name": name, "resourceVersion": "7"}, "status": status}
    return decode_untrusted(RESOURCES[ServiceHealth], json.dumps(raw).encode())


GOOD = {"address": ADDRESS, "healthy": False, "since": "s", "message": "m"}


@pytest.mark.parametrize(
    ("name", "status", "entries", "field"),
    [
        pytest.param("web.shop", {"entries": [GOOD]}, [HealthEntry(ADDRESS, False, "s", "m")], None, id="as written"),
        pytest.param("web.shop", {"entries": [{**GOOD, "address": "LB.example."}]},
                     [HealthEntry("lb.example", False, "s", "m")], None, id="in upper case"),
        pytest.param("web.shop", None, [], None, id="no status"),
        pytest.param("web.shop", {"entries": None, "renewTime": None, "service": None}, [], None, id="nulls"),
        pytest.param("web.shop", {"entries": [GOOD, {**GOOD, "healthy": True}]}, [HealthEntry(ADDRESS, True, "s", "m")],
                     None, id="an address twice"),
        pytest.param("web.shop", {"entries": [{"healthy": True}, GOOD]}, [HealthEntry(ADDRESS, False, "s", "m")],
                     "status.entries[0]", id="an entry without address"),
        pytest.param("web.shop", {"entries": [{"address": ADDRESS}]}, [], "status.entries[0]", id="without a vote"),
        pytest.param("web.shop", {"service": {"namespace": "shop", "name": "web"}}, [], None, id="its Service"),
        pytest.param("web.shop", {"service": {"namespace": "web", "name": "shop"}}, None, "status.service",
                     id="another Service"),
        pytest.param("web.shop", {"entries": [GOOD], "renewTime": None}, [HealthEntry(ADDRESS, False, "s", "m")],
                     "status.renewTime", id="votes without a time"),
        pytest.param("web.shop", {"renewTime": "yesterday"}, [], "status.renewTime", id="no time"),
        pytest.param("web.shop", {"renewTime": "2026-01-01T00:00:00"}, [], "status.renewTime", id="no time zone"),
        pytest.param("web", {}, None, "metadata.name", id="no namespace"),
        pytest.param("web.shop.x", {}, None, "metadata.name", id="three labels"),
        pytest.param(".shop", {}, None, "metadata.name", id="no name"),
        pytest.param("web.shop", {"entries": [{"address": 7}]}, None, "status.entries[0].address", id="a number"),
        pytest.param("web.shop", "healthy", None, "status", id="a text"),
    ],
)  # fmt: skip
def test_what_is_read(name: str, status: Any, entries: list[HealthEntry] | None, field: str | None) -> None:
    """An odd entry votes for nobody, an odd object neither; each is a finding."""
    if isinstance(status, dict):
        status = {"renewTime": written(0), **status}
    read = decoded(name, status)
    assert (None if read.built is None else list(read.built.entries)) == entries
    assert [finding.field for finding in read.findings] == ([] if field is None else [field])
    if read.built is not None:
        assert (read.built.service, read.built.key, read.built.version) == (WEB, name, "7")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("192.0.2.1", "192.0.2.1"), ("2001:DB8:0::1", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1"),
     ("LB.Example.com.", "lb.example.com"), ("lb.example.com", "lb.example.com")],
)  # fmt: skip
def test_one_text_for_an_address(text: str, canonical: str) -> None:
    """Votes of different probers meet, however the address is written."""
    assert canonical_address(text) == canonical


def test_names() -> None:
    """NAME.NAMESPACE of the Service, and back."""
    assert (health_name(WEB), service_of("web.shop")) == ("web.shop", WEB)
