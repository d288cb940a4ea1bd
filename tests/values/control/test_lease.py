# SPDX-License-Identifier: Apache-2.0

"""Leader election: each rule by itself, and that there is never a second leader, whatever happens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.control.lease import LeaderElection, Lease, LeaseWrite, lease_untrusted

TIMESTAMP = "2026-01-01T00:00:00.000000Z"
LATER = "2026-01-01T00:01:00.000000Z"


def election(identity: str = "a", **more: float) -> LeaderElection:
    return LeaderElection(identity, "topodns", "controller", **more)


def held(version: str, holder: str = "a", duration: int = 15, transitions: int = 0) -> Lease:
    return Lease(version, holder, duration, transitions, TIMESTAMP)


def leading(now: float = 0.0) -> LeaderElection:
    one = election()
    one.not_found()
    assert one.acquire_or_renew(now, TIMESTAMP) is not None
    one.observed(held("1"), began=now, now=now + 0.1, written=True)
    assert one.is_leader(now)
    return one


def test_who_finds_no_lease_makes_one() -> None:
    """The new Lease has the form that other tools expect: whole seconds, MicroTime, 0 transitions."""
    one = election(duration=14.2)
    assert one.acquire_or_renew(0.0, TIMESTAMP) is None  # it is read first
    one.not_found()
    assert one.acquire_or_renew(0.0, TIMESTAMP) == LeaseWrite(
        "POST",
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": "topodns", "name": "controller"},
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "leaseTransitions": 0,
                "acquireTime": TIMESTAMP,
                "renewTime": TIMESTAMP,
            },
        },
    )
    assert not one.is_leader(0.0)  # asked for is not granted


def test_a_leader_writes_until_the_deadline_after_it_began_to_renew() -> None:
    one = leading(now=100.0)
    assert one.is_leader(109.9) and not one.is_leader(110.0)
    write = one.acquire_or_renew(105.0, LATER)
    assert write is not None and write.method == "PUT"
    assert write.body["metadata"]["resourceVersion"] == "1"
    assert (write.body["spec"]["acquireTime"], write.body["spec"]["renewTime"]) == (TIMESTAMP, LATER)
    one.observed(held("2"), began=105.0, now=109.0, written=True)  # the answer took four seconds
    assert one.is_leader(114.9) and not one.is_leader(115.0)


@pytest.mark.parametrize("seconds", [3, 60])
def test_a_follower_waits_for_the_holders_own_duration(seconds: int) -> None:
    """A follower counts the Lease's duration by its own clock, from when it first saw that version."""
    one = election("b")
    one.observed(held("7", duration=seconds, transitions=4), began=1000.0, now=1000.5, written=False)
    assert one.acquire_or_renew(1000.4 + seconds, TIMESTAMP) is None
    one.observed(held("7", duration=seconds, transitions=4), began=1001.0, now=1001.5, written=False)
    write = one.acquire_or_renew(1000.5 + seconds, LATER)
    assert write is not None and write.body["metadata"]["resourceVersion"] == "7"
    spec = write.body["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["acquireTime"]) == ("b", 5, LATER)


def test_a_lease_given_back_is_taken_at_once() -> None:
    one, other = leading(), election("b")
    write = one.release(1.0, LATER)
    assert write is not None and not one.is_leader(1.0)
    assert (write.body["spec"]["holderIdentity"], write.body["spec"]["leaseDurationSeconds"]) == (None, 1)
    other.observed(held("2", "", 1), began=1.0, now=1.0, written=False)
    assert other.acquire_or_renew(1.0, TIMESTAMP) is not None


@pytest.mark.parametrize("late", [False, True], ids=["never-held", "ran-out"])
def test_what_is_not_held_is_not_given_back(late: bool) -> None:
    one = leading() if late else election()
    assert one.release(11.0, TIMESTAMP) is None


@pytest.mark.parametrize(
    ("raw", "lease"),
    [
        (b'{"metadata":{"resourceVersion":"7"}}', Lease("7")),
        (b'{"metadata":{"resourceVersion":"7"},"spec":{"holderIdentity":"x","leaseDurationSeconds":9,'
         b'"leaseTransitions":2,"acquireTime":"t","renewTime":"u"}}', Lease("7", "x", 9, 2, "t")),
        (b'{"metadata":{},"spec":{"holderIdentity":7}}', None),
        (b"<html>", None),
        (b"\xff", None),
    ],
    ids=["bare", "whole", "wrong-type", "no-json", "no-text"],
)  # fmt: skip
def test_reading(raw: bytes, lease: Lease | None) -> None:
    assert lease_untrusted(raw) == lease


@pytest.mark.parametrize("times", [(2, 10, 10), (10, 10, 15), (0, 10, 15)])
def test_times_must_rise(times: tuple[float, float, float]) -> None:
    """Each time must be longer than the one before: otherwise two could write, or the leader lose its Lease."""
    retry, deadline, duration = times
    with pytest.raises(ValueError, match="expected in rising order"):
        election(retry=retry, deadline=deadline, duration=duration)


# Whatever happens


class ModelServer:
    """Keeps one Lease and compares versions; carries out requests at once, late or never."""

    def __init__(self) -> None:
        self.item: dict[str, Any] | None = None
        self.version = 0

    def carry_out(self, write: LeaseWrite | None) -> bytes | int:
        """Return the Lease, or the status of a refusal."""
        if write is None:
            return 404 if self.item is None else json.dumps(self.item).encode()
        if write.method == "POST" and self.item is not None:
            return 409
        if write.method == "PUT":
            if self.item is None:
                return 404
            if write.body["metadata"]["resourceVersion"] != self.item["metadata"]["resourceVersion"]:
                return 409
        self.version += 1
        self.item = json.loads(json.dumps(write.body))
        self.item["metadata"]["resourceVersion"] = str(self.version)
        return json.dumps(self.item).encode()


class Replica:
    """A replica with its own clock, and the request that it waits for."""

    def __init__(self, identity: str, offset: float) -> None:
        duration = 60.0 if identity.startswith("a") else 15.0  # each states its own
        self.election = LeaderElection(identity, "ns", "lease", duration=duration, deadline=duration - 5.0, retry=2.0)
        self.offset = offset
        self.write: LeaseWrite | None = None
        self.began: float | None = None
        self.answer: bytes | int | None = None
        self.writes_until = float("-inf")  # when the last write that it may have begun is over

    def restart(self) -> None:
        """Start again under another name, as after a crash."""
        self.__init__(f"{self.election.identity}+", self.offset)  # type: ignore[misc]


class Electing:
    """Replicas ask, stop, continue and restart; requests are slow, lost or late; clocks differ."""

    def __init__(self, offsets: Sequence[float]) -> None:
        self.server = ModelServer()
        self.time = 0.0
        self.replicas = [Replica(name, offset) for name, offset in zip("ab", offsets, strict=True)]
        self.late: list[LeaseWrite | None] = []
        for _ in range(2):
            self.step(0)

    def now(self, replica: Replica) -> float:
        return self.time + replica.offset

    def ask(self, which: int, arrives: str) -> None:
        """Send a request and give up the one before, which may still be carried out."""
        replica = self.replicas[which]
        replica.began, replica.answer = self.now(replica), None
        replica.write = replica.election.acquire_or_renew(replica.began, TIMESTAMP)
        if arrives == "now":
            replica.answer = self.server.carry_out(replica.write)
        elif arrives == "late":
            self.late.append(replica.write)

    def arrive_late(self) -> None:
        if self.late:
            self.server.carry_out(self.late.pop(0))

    def hear(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.began is None or replica.answer is None:
            return
        if isinstance(replica.answer, bytes):
            lease = lease_untrusted(replica.answer)
            assert lease is not None
            written = replica.write is not None
            replica.election.observed(lease, began=replica.began, now=self.now(replica), written=written)
        elif replica.answer == 404 and replica.write is None:
            replica.election.not_found()
        else:
            replica.election.write_refused()
        replica.began = replica.answer = None

    def step(self, which: int) -> None:
        self.ask(which, "now")
        self.hear(which)

    def end(self, which: int, crash: bool) -> None:
        """At an orderly end, writes end before the replica gives the Lease back."""
        replica = self.replicas[which]
        if not crash:
            replica.writes_until = float("-inf")
            write = replica.election.release(self.now(replica), TIMESTAMP)
            if write is not None:
                self.server.carry_out(write)
        until = replica.writes_until
        replica.restart()
        replica.writes_until = until  # what is under way arrives

    def time_passes(self, seconds: float) -> None:
        self.time += seconds

    def nobody_writes_while_another_may(self) -> None:
        """No write overlaps another leader's, even one that began in the last moment of the Lease."""
        for replica in self.replicas:
            if replica.election.is_leader(self.now(replica)):
                for other in self.replicas:
                    assert other is replica or other.writes_until <= self.time + 1e-6
                replica.writes_until = self.time + 5.0

    def finish(self) -> None:
        """Once all works again, a replica leads soon."""
        for _ in range(40):
            self.time += 2.0
            for which in range(2):
                self.step(which)
        assert any(replica.election.is_leader(self.now(replica)) for replica in self.replicas)


# What happens, and how often among a hundred happenings: dense enough that what must come together often does.
HAPPENINGS: Mapping[str, tuple[int, Callable[[random.Random], tuple[Any, ...]]]] = {
    "step": (40, lambda rng: (rng.randrange(2),)),
    "time_passes": (30, lambda rng: (rng.choice((1.0, 4.9, 5.1, 9.9, 15.0)),)),
    "ask": (12, lambda rng: (rng.randrange(2), rng.choice(("now", "now", "late", "never")))),
    "hear": (12, lambda rng: (rng.randrange(2),)),
    "end": (3, lambda rng: (rng.randrange(2), rng.random() < 0.5)),
    "arrive_late": (3, lambda rng: ()),
}


@settings(max_examples=400)
@given(st.integers(0, 10**9))
def test_there_is_never_a_second(seed: int) -> None:
    """Whatever happens, there is at most one leader, and in the end there is one."""
    rng = random.Random(seed)
    electing = Electing([rng.choice((-1e6, 0.0, 1e6)) for _ in range(2)])
    for what in rng.choices(list(HAPPENINGS), [weight for weight, _ in HAPPENINGS.values()], k=40):
        getattr(electing, what)(*HAPPENINGS[what][1](rng))
        electing.nobody_writes_while_another_may()
    electing.finish()


def test_who_held_it_last() -> None:
    """This replica, until it sees another holder or none: also when its time is over and it hears nothing."""
    assert not election().held_last
    one = leading(0.0)
    assert one.held_last and not one.is_leader(1000.0)
    one.observed(held("9", "b"), began=1001.0, now=1001.0, written=False)
    assert not one.held_last
    one.not_found()
    assert not one.held_last
