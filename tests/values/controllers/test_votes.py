# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, the counting: which addresses leave the answers, and until when."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.conversion import canonical_address
from locator.api.decoding import RESOURCES, decode_untrusted
from locator.health.rules import health_name
from locator.health.votes import HEALTHY, NO_VOTE, TOO_OLD, UNHEALTHY, VOTE_SECONDS, Votes
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


def test_a_vote_counts_to_the_end_of_its_last_moment() -> None:
    votes = Votes(["a"])
    votes.observe("a", [health(AGAINST)], now=10, unix_time=UNIX_TIME)
    assert votes.expire(10 + VOTE_SECONDS) == set() and votes.voted_out(WEB)
    assert votes.due == math.nextafter(10 + VOTE_SECONDS, math.inf)
    assert votes.expire(votes.due) == {WEB}
    assert not votes.voted_out(WEB) and votes.due is None


def test_what_explain_shows() -> None:
    """Of each configured cluster: its vote, that it is too old, or that there is none."""
    votes = Votes("abcd")
    votes.observe("a", [health(AGAINST)], now=0, unix_time=UNIX_TIME)
    votes.observe("b", [health(FOR)], now=0, unix_time=UNIX_TIME)
    votes.observe("c", [health(AGAINST, at=-40)], now=0, unix_time=UNIX_TIME)
    assert votes.of_address(WEB, ADDRESS) == {"a": UNHEALTHY, "b": HEALTHY, "c": TOO_OLD, "d": NO_VOTE}
    assert votes.of_address(WEB, OTHER) == dict.fromkeys("abcd", NO_VOTE)
    assert votes.numbers == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_clusters_that_come_and_go() -> None:
    """One that comes is among all at once, also while it votes for nobody; one that goes takes its votes along."""
    votes = Votes("ab")
    for cluster in "ab":
        votes.observe(cluster, [health(AGAINST)], now=0, unix_time=UNIX_TIME)
    found = [bool(votes.voted_out(WEB))]
    for change in (votes.add, votes.add, votes.remove, votes.remove):
        change("cd"[len(found) % 2 == 0])
        found.append(bool(votes.voted_out(WEB)))
    assert found == [True, True, False, True, True]
    votes.remove("b")
    votes.add("c")
    assert not votes.voted_out(WEB) and votes.of_address(WEB, ADDRESS) == {"a": UNHEALTHY, "c": NO_VOTE}
    assert votes.expire(VOTE_SECONDS + 1) == {WEB} and votes.due is None


# -- against a brute force, with clocks that differ by hours


class Seen(NamedTuple):
    """A vote as the reader must see it: which addresses it is against, when it ends to count, and whether it counts."""

    against: tuple[bool, bool]
    until: float
    counts: bool = True

    def at(self, now: float) -> Seen:
        return self._replace(counts=now <= self.until + 1e-5)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("renews", "renews", "renews", "is-listed-again", "is-gone", "time-passes", "time-passes")),
        st.integers(0, 4),
        st.tuples(st.booleans(), st.booleans()),
        st.floats(-9 * HOURS, 9 * HOURS) | st.floats(-40, 5),
        st.sampled_from((7.0, 29.0)),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(number=st.integers(1, 5), punctual=st.booleans(), steps=STEPS)
def test_any_history(number: int, punctual: bool, steps: Sequence[tuple[str, int, Any, float, float]]) -> None:
    """More than half of all clusters decide on each address. At first sight, a vote's age goes by the time in it.

    From then on it counts for 30 s after it was seen to change, whatever its cluster's clock says and even if that is
    set back. Each vote that turns, ends or counts again is a change, and a renewal is none. *punctual* readers expire
    votes when they are due, others later.
    """
    votes, now = Votes(map(str, range(number))), 0.0
    seen: dict[int, Seen] = {}
    latest: dict[int, ServiceHealth] = {}
    for renewals, (what, cluster, said, skew, seconds) in enumerate(steps):
        if what == "time-passes":
            now += seconds
            while punctual and votes.due is not None and votes.due <= now:
                assert votes.expire(votes.due) == {WEB}
            seen = {place: vote.at(now) for place, vote in seen.items()} if punctual else seen
            continue
        if cluster >= number:
            continue
        ended = {place: vote.at(now) for place, vote in seen.items()} != seen
        before = {place: (vote.against, vote.counts) for place, vote in seen.items()}
        if what == "is-gone":
            latest.pop(cluster, None)
            seen.pop(cluster, None)
        elif what == "renews":
            written_at = now + skew - renewals * 1e-3  # another time for each
            age = max(0.0, now - written_at)
            seen[cluster] = Seen(said, now + VOTE_SECONDS - (0.0 if cluster in latest else age))
            latest[cluster] = health({ADDRESS: not said[0], OTHER: not said[1]}, at=written_at)
        given_votes = [replace(latest[cluster])] if cluster in latest else []
        changed = votes.observe(str(cluster), given_votes, now=now, unix_time=UNIX_TIME + now)
        seen = {place: vote.at(now) for place, vote in seen.items()}
        after = {place: (vote.against, vote.counts) for place, vote in seen.items()}
        assert changed == ({WEB} if ended or before != after else set())
        against = [sum(vote.against[at] for vote in seen.values() if vote.counts) for at in (0, 1)]
        assert votes.voted_out(WEB) == {
            address for address, count in zip((ADDRESS, OTHER), against, strict=True) if count > number / 2
        }
        ends = [vote.until for vote in seen.values() if vote.counts]
        assert votes.due == (pytest.approx(min(ends), abs=1e-5) if ends else None)


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
