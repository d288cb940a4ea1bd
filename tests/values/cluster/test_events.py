# SPDX-License-Identifier: Apache-2.0

"""The Event on a Service with an invalid constraint: what it says, and how it is posted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.decoding import uid_untrusted
from locator.api.events import MAX_MESSAGE, event_of
from locator.cluster.event_poster import post
from locator.cluster.responses import Refused
from locator.findings import ClusterCode
from locator.model import Finding
from locator.topology.annotations import CLIENTS, MAX_OVERLOAD
from locator.topology.service_checks import is_told_by_event
from tests.kit.api_objects import TOPOLOGY_KEYS, service
from tests.kit.in_memory import snapshot_of
from tests.kit.kube import Item

FIELD = f"metadata.annotations[{TOPOLOGY_KEYS}]"
WRONG = ClusterCode.InvalidTopologyKeys.finding(
    "Service",
    "shop",
    "web",
    field=FIELD,
    message="invalid constraint: 'x' is listed twice",
    expected="distinct label keys",
)
TIMESTAMP = "2026-01-01T00:00:00Z"


def event(
    finding: Finding = WRONG, uid: str = "u1", instance: str = "pod-1", timestamp: str = TIMESTAMP
) -> dict[str, Any]:
    return event_of(finding, uid, instance=instance, timestamp=timestamp)


def test_an_event() -> None:
    """The Event has the fields by which `kubectl describe service` finds it."""
    said = event()
    assert said.pop("metadata").keys() == {"namespace", "name"}
    assert said == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u1"},
        "type": "Warning",
        "reason": "InvalidTopology",
        "message": f"{FIELD}: invalid constraint: 'x' is listed twice, expected distinct label keys",
        "source": {"component": "topodns"},
        "reportingComponent": "topodns",
        "reportingInstance": "pod-1",
        "firstTimestamp": TIMESTAMP,
        "lastTimestamp": TIMESTAMP,
        "count": 1,
    }


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (event(instance="pod-2"), True),
        (event(timestamp="2026-01-01T00:00:07Z"), True),
        (event(uid="u2"), False),
        (event(replace(WRONG, message="invalid constraint: 'y' is listed twice")), False),
        (event(replace(WRONG, field="spec.topologyKeys")), False),
        (event(replace(WRONG, name="api")), False),
    ],
    ids=[
        "another-replica",
        "later",
        "another-service-of-that-name",
        "another-mistake",
        "another-field",
        "another-name",
    ],
)
def test_its_name_is_what_it_says(other: Item, same: bool) -> None:
    """The Event's name is made of its content, so that all replicas choose the same name."""
    assert (other["metadata"]["name"] == event()["metadata"]["name"]) is same


def test_a_long_message_is_cut() -> None:
    said = event(replace(WRONG, message="x" * 2000))["message"]
    assert len(said) == MAX_MESSAGE and said.endswith("…")


@pytest.mark.parametrize(
    ("annotations", "told"),
    [
        ({TOPOLOGY_KEYS: "a,a"}, 1),
        ({TOPOLOGY_KEYS: "*,a"}, 1),
        ({TOPOLOGY_KEYS: "a,*"}, 0),
        ({TOPOLOGY_KEYS: ""}, 0),
        ({TOPOLOGY_KEYS: "a,*", MAX_OVERLOAD: "1"}, 1),
        ({TOPOLOGY_KEYS: "a,*", MAX_OVERLOAD: "1.5", CLIENTS: "shop;"}, 1),
        ({TOPOLOGY_KEYS: "a,a", MAX_OVERLOAD: "1.5", CLIENTS: "shop"}, 1),
        ({MAX_OVERLOAD: "1.5"}, 0),
    ],
    ids=["twice", "any-first", "valid", "none", "max-overload", "clients", "invalid-and-unheard", "unheard"],
)
def test_what_is_told(annotations: dict[str, str], told: int) -> None:
    """Only findings on what a Service asks for and is invalid become Events."""
    broken = service("web", annotations={**annotations, "topodns.io/unknown": ""}, ports=[(None, 0, "TCP")])
    found = snapshot_of(broken).findings
    assert len([finding for finding in found if is_told_by_event(finding)]) == told
    assert len(found) > told


@given(st.text(), st.text(), st.binary())
def test_whatever_is_wrong_becomes_an_event(message: str, field: str, raw: bytes) -> None:
    """Any such finding gives an Event that JSON can hold, with a name that the API allows."""
    said = event(replace(WRONG, message=message, field=field), uid=uid_untrusted(raw))
    json.dumps(said)
    assert said["metadata"]["name"].startswith("web.") and len(said["metadata"]["name"]) == len("web.") + 16


class Refusing:
    """A cluster that answers the POSTs of Events with these statuses, or *without* the Service; it records all."""

    def __init__(self, statuses: Sequence[int], without: bool) -> None:
        self.statuses, self.without = list(statuses), without
        self.asked: list[str] = []

    def request(self, method: str, path: str, **more: Any) -> bytes:
        self.asked.append(method)
        if method == "POST" and self.statuses:
            raise Refused(self.statuses.pop(0), "Refused", "for the test")
        if method == "GET" and self.without:
            raise Refused(404, "NotFound", "for the test")
        return b'{"metadata":{"uid":"u1"}}'


@pytest.mark.parametrize(
    ("statuses", "without", "posts", "logged"),
    [((), False, 1, 0), ((500, 429), False, 3, 0), ((409,), False, 1, 0), ((403,), False, 1, 1),
     ((500,) * 20, False, 6, 1), ((), True, 0, 0), ((404,), False, 1, 0)],
    ids=["taken", "taken-in-the-end", "there-already", "no-right", "given-up", "service-gone", "namespace-gone"],
)  # fmt: skip
def test_tries(
    statuses: tuple[int, ...], without: bool, posts: int, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The poster tries several times, with pauses; then it logs the failure and posts the next Event."""
    refusing: Any = Refusing(statuses, without)

    async def main() -> None:
        send, receive = trio.open_memory_channel[Finding](1)
        send.send_nowait(WRONG)
        send.close()
        await post(refusing, receive, "pod-1")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (refusing.asked.count("POST"), len(caplog.records)) == (posts, logged)
