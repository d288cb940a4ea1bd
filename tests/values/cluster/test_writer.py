# SPDX-License-Identifier: Apache-2.0

"""What becomes of a controller's write, by what the API server answers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from locator.api.deltas import Put, Replace
from locator.cluster.leading import writer as writer_module
from locator.cluster.leading.writer import Writer
from locator.cluster.responses import Refused, Unreachable
from locator.control.reconciler import Reconciler, Rules
from locator.control.writes import BEHIND, CONFLICT, DONE, FAILED, LATE, REFUSED, UNREACHABLE
from locator.hints.rules import HintRules
from locator.podlocators.rules import LocatorRules
from locator.policies.rules import PolicyRules
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, node, pod_locator, service, service_policy
from tests.kit.controlled import merged, record
from tests.kit.hint_worlds import HINTED
from tests.kit.waiting import PATIENCE, until_in_trio

POLICY = service_policy("near", ZONE)
SLICE = endpoint_slice("web", 0, [endpoint("10.0.0.1", nodeName="n1", zone="a")], labels=HINTED)
HINTS = [node("n1", {ZONE: "a"}), service("web"), SLICE]
ORPHAN = [pod_locator("web", "shop", ["10.0.0.1"])]
VERSION = {"metadata": {"resourceVersion": "7"}}
MISSING = Refused(404, "NotFound", "no")


class Leading:
    """An elector that leads for as many looks as are *left*."""

    margin = 10.0

    def __init__(self, left: int) -> None:
        self.left = left

    def is_leader(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def on_observed(self, subscriber: object) -> None:
        pass


class Answering:
    """An API server that gives these answers, one after the other, whatever is asked."""

    def __init__(self, answers: Sequence[Exception | bytes]) -> None:
        self.answers = list(answers)

    def request(self, method: str, path: str, **more: Any) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


ROWS: Sequence[tuple[str, type[Rules], list[Item], list[Exception | bytes], int, str, str]] = [
    ("changed-meanwhile", PolicyRules, [POLICY], [Refused(409, "Conflict", "no")], 9, CONFLICT, ""),
    ("invalid", PolicyRules, [POLICY], [Refused(422, "Invalid", "no")], 9, REFUSED, "near: 422 Invalid: no"),
    ("test-of-a-json-patch-failed", HintRules, HINTS, [Refused(422, "Invalid", "no")], 9, CONFLICT, ""),
    ("gone", PolicyRules, [POLICY], [MISSING, MISSING], 9, DONE, ""),
    ("no-status-in-the-crd", PolicyRules, [POLICY], [MISSING, b'{"metadata":{"uid":"u"}}'], 9, REFUSED,
     "near: 404 NotFound: its CRD declares no status: apply the CRD"),
    ("gone-slice", HintRules, HINTS, [MISSING], 9, DONE, ""),
    ("nobody-is-there", PolicyRules, [POLICY], [Unreachable("away")], 9, UNREACHABLE, "near: away"),
    ("a-bug", PolicyRules, [POLICY], [ZeroDivisionError("a bug")], 9, FAILED, "near: a bug"),
    ("another-leads-by-now", PolicyRules, [POLICY], [], 1, LATE, ""),
    ("its-pod-lives", LocatorRules, ORPHAN, [b'{"metadata":{"uid":"u1"}}'], 9, BEHIND, ""),
    ("its-pod-is-gone", LocatorRules, ORPHAN, [MISSING, b"{}"], 9, DONE, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "items", "answers", "leads", "result", "logged"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_what_becomes_of_a_write(
    kind: Any, items: list[Item], answers: list[Exception | bytes], leads: int, result: str, logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """What does not fit the version that is there is no failure. What is done is not looked at again."""
    reconciler = Reconciler(kind(lambda: "2026-01-01T00:00:04Z") if kind is PolicyRules else kind())
    for of_kind, resource in kind.resources.items():
        listed = [merged(thing, VERSION) for thing in items if thing["kind"] == resource.name]
        reconciler.apply(Replace(of_kind, [record(kind.resources, thing) for thing in listed]))
    client: Any = Answering(answers)
    elector: Any = Leading(leads)

    async def main() -> Writer:
        writer = Writer(client, elector, reconciler, field_manager="tests")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await until_in_trio(writer.writes.total)
            nursery.cancel_scope.cancel()
        return writer

    writer = trio.run(main)
    assert [what for _, what in writer.writes] == [result] and client.answers == []
    assert writer.waiting == (result != DONE)
    assert logged in caplog.text and bool(logged) == bool(caplog.text)
    if result in (BEHIND, REFUSED, UNREACHABLE):  # what may never succeed comes after all others
        reconciler.queue.add("other/x")
        assert reconciler.queue.get(math.inf) == "other/x"


@pytest.mark.parametrize(
    "failure",
    [
        Refused(403, "Forbidden", "exceeded quota"),
        Refused(500, "InternalError", "failed calling webhook"),
        Unreachable("https://api: silent for 2.5 s", "silent"),
    ],
    ids=["quota", "webhook", "webhook that hangs"],
)
def test_a_write_that_always_fails_delays_no_other_one(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it has failed: this is about that object, and not about the API server."""
    monkeypatch.setattr(writer_module, "boot_seconds", trio.current_time)
    reconciler = Reconciler(PolicyRules(lambda: "2026-01-01T00:00:04Z"))
    for kind in PolicyRules.resources:
        reconciler.apply(Replace(kind, []))

    class Refusing:
        """An API server that takes all objects but one."""

        def request(self, method: str, path: str, **more: Any) -> bytes:
            if "/near" in path:
                raise failure
            return b"{}"

    client: Any = Refusing()
    elector: Any = Leading(1_000_000)

    clock = MockClock()

    async def main() -> None:
        writer = Writer(client, elector, reconciler, field_manager="tests")

        async def until_counted(times: int, *results: str, pass_time: bool) -> None:
            deadline = time.monotonic() + PATIENCE
            while sum(number for (_, what), number in writer.writes.items() if what in results) < times:
                assert time.monotonic() < deadline
                if pass_time:
                    clock.jump(1.0)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            reconciler.apply(Put(record(PolicyRules.resources, merged(POLICY, VERSION))))
            writer.wake()
            await until_counted(8, REFUSED, UNREACHABLE, pass_time=True)
            other = merged(service_policy("other", ZONE), VERSION)
            reconciler.apply(Put(record(PolicyRules.resources, other)))
            writer.wake()
            await until_counted(1, DONE, pass_time=False)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
