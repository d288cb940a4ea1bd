# SPDX-License-Identifier: Apache-2.0

"""``explain`` about balanced Services: what each endpoint expects, and why a client is passed on from the nearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dnsserver.text import MAGENTA, PLAIN
from dnsserver.tools.explain.explanation import DECODER, Explanation
from dnsserver.tools.explain.explanation_text import as_text
from locator.topology.annotations import CLIENTS
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    imported_slice,
    service,
    service_import,
    service_policy,
)
from tests.kit.crowded_zone import ADDRESSES, balanced, crowded
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import snapshot_of

UNKNOWN = "203.0.113.9"


def explained(items: Sequence[Item], client: str, flags: dict[str, Any] | None = None) -> Explanation:
    snapshot, at = snapshot_of(items, flags), ADDRESSES.get(client, client)
    return explanation_of(snapshot, "web.shop.svc.cluster.local", at, flags=flags, candidates=True)


FULL_ZONE = f"those with the client's {ZONE} have no room for its node"
WITH_ROOM = "of these, the ones that have room for the client's node"
IN_VAIN = "no key has room for the client's node, so the last one counts as if it had"
EVERY = "passed on to every ready endpoint"
FULL = "no room for its node, which is passed on: it expects"
POLICIES = [service_policy("in-region", REGION), service_policy("near", ZONE, "Preferred")]

REASONS = {
    # case: items, client, outcome and reason, [(chosen, why)] by address
    "there-is-room": (
        crowded(balanced(f"{ZONE},*")), "a2", "nearest: the endpoints nearest to the client",
        [(True, f"has the client's {ZONE}")] * 2 + [(False, f"{ZONE} is b, not a"), (False, f"{ZONE} is c, not a")]),
    "passed-on": (
        crowded(balanced(f"{ZONE},*")), "a1", f"spilled: {EVERY}: {FULL_ZONE}",
        [(True, f"passed on: {FULL_ZONE}")] * 4),
    "passed-on-to-others": (
        crowded(balanced(f"{HOSTNAME},{ZONE},*", "1.1")), "a3", f"spilled: {EVERY}: {FULL_ZONE}; {WITH_ROOM}",
        [(False, f"full: has the client's {ZONE}, but {FULL} 3 of at most 3.3 clients")] * 2
        + [(True, f"passed on: {FULL_ZONE}")] * 2),
    "some-have-no-room": (
        crowded(balanced(f"{HOSTNAME},{ZONE},*"), uneven=True), "a3",
        f"nearest: the endpoints nearest to the client; {WITH_ROOM}",
        [(False, f"full: has the client's {ZONE}, but no room for its node: it expects 3.67 of at most 3.84 clients"),
         (True, f"has the client's {ZONE}"), (False, f"{ZONE} is b, not a"), (False, f"{ZONE} is c, not a"),
         (False, "")]),
    "too-few-have-room": (
        crowded(balanced(f"{HOSTNAME},{ZONE},*", least="2"), uneven=True), "a3",
        f"spilled: {EVERY}: {FULL_ZONE}; {WITH_ROOM}",
        [(False, f"full: has the client's {ZONE}, but {FULL} 3.67 of at most 3.84 clients"),
         (True, ""), (True, ""), (True, ""), (False, "")]),
    "too-few-have-room-and-others-are-next": (
        crowded(balanced(f"{HOSTNAME},{ZONE},{RACK}", least="2"), uneven=True), "a3",
        f"spilled: passed on to the endpoints with the client's {RACK}: {FULL_ZONE}",
        [(False, f"full: has the client's {ZONE}, but {FULL} 3.67 of at most 3.84 clients"),
         (False, f"has the client's {ZONE}, but too few with it have room (min-endpoints is 2)"),
         (True, f"has the client's {RACK}; {FULL_ZONE}"), (True, ""), (False, "")]),
    "hard": (
        crowded(balanced(ZONE)), "a1", f"nearest: the endpoints nearest to the client; {IN_VAIN}",
        [(True, f"has the client's {ZONE}; {IN_VAIN}")] * 2
        + [(False, f"{ZONE} is b, not a"), (False, f"{ZONE} is c, not a")]),
    "too-few-and-full": (
        crowded(balanced(f"{ZONE},{REGION},*", least="2")), "b1",
        f"spilled: {EVERY}: those with the client's {ZONE} are too few (min-endpoints is 2), and those with the "
        f"client's {REGION} have no room for its node; {WITH_ROOM}",
        [(False, f"full: has the client's {REGION}, but {FULL} 3.5 of at most 3.6 clients")] * 2 + [(True, "")] * 2),
    "policies": (
        crowded(balanced(None), *POLICIES), "a1",
        f"spilled: passed on to the endpoints with the client's {REGION}: those with the client's {REGION} and {ZONE} "
        f"have no room for its node; {IN_VAIN}",
        [(True, f"has the client's {REGION}; those with the client's {REGION} and {ZONE} have no room for its node; "
                f"{IN_VAIN}")] * 3 + [(False, f"{REGION} is r2, not r1 (policy in-region)")]),
    "hints": (
        crowded(balanced(None), hints=True), "a1",
        f"spilled: {EVERY}: those whose hints name the client's zone have no room for its node",
        [(True, "passed on: those whose hints name the client's zone have no room for its node")] * 4),
    "unknown-client": (
        crowded(balanced(f"{ZONE},*")), UNKNOWN,
        "all: every ready endpoint: the client cannot be located, and the constraint allows any",
        [(True, "the client cannot be located, and the constraint allows any")] * 4),
}  # fmt: skip


@pytest.mark.parametrize(("items", "client", "reason", "expected"), REASONS.values(), ids=REASONS)
def test_why(items: list[Item], client: str, reason: str, expected: list[tuple[bool, str]]) -> None:
    """The reason says which endpoints have no room for the client's node; so does the one for each of these."""
    said = explained(items, client)
    assert f"{said.outcome}: {said.reason}" == reason
    rows = [(row.chosen, row.why) for row in sorted(said.candidates, key=lambda row: row.addresses)]
    assert [(chosen, why if text else "") for (chosen, why), (_, text) in zip(rows, expected, strict=True)] == expected


def decoded(said: Explanation) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(said))


def test_balance_as_json() -> None:
    """``balance`` has the numbers of the plan, and when the client's node comes in turn."""
    said = explained(crowded(balanced(f"{ZONE},*", "1.5")), "a1")
    loads = [("10.0.0.1", 4.0), ("10.0.0.2", 4.0), ("10.0.0.3", 2.0), ("10.0.0.4", 2.0)]
    rows = [{"address": address, "expected": expected, "full": False} for address, expected in loads]
    assert decoded(said)["balance"] == {
        "max_overload": 1.5, "clients": 12, "cap": 4.5, "slot": 255, "endpoints": rows,
    }  # fmt: skip
    full = explained(crowded(balanced(f"{ZONE},*")), UNKNOWN)
    assert full.balance and (full.balance.slot, [row.full for row in full.balance.endpoints]) == (
        None, [True, True, False, False],
    )  # fmt: skip


NO_BALANCE = {
    "no-annotation": (crowded(service("web", keys=f"{ZONE},*")), "web", {}),
    "invalid": (crowded(balanced(f"{ZONE},*", "many")), "web", {}),
    "no-constraint": (crowded(balanced(None)), "web", {}),
    "invalid-constraint": (crowded(balanced(f"*,{ZONE}")), "web", {}),
    "zonal-name": (crowded(balanced(f"{ZONE},*")), "a.pin._zone.web", {}),
    "endpoint": (crowded(balanced(f"{ZONE},*")), "10-0-0-1.web", {}),
    "no-service": (crowded(), "none", {}),
    "other-zone-s-default": (crowded(balanced(None)), "web", {"zone": ["cluster.local", "near.local"],
                             "default-topology-keys": [f"near.local={ZONE},*"]}),
}  # fmt: skip


@pytest.mark.parametrize(("items", "name", "flags"), NO_BALANCE.values(), ids=NO_BALANCE)
def test_no_balance(items: list[Item], name: str, flags: dict[str, Any]) -> None:
    """``balance`` is null where max-overload is not in effect for what decides about the name."""
    said = explanation_of(snapshot_of(items, flags), f"{name}.shop.svc.cluster.local", ADDRESSES["a1"], flags=flags)
    assert decoded(said)["balance"] is None
    assert "balance" not in as_text(said)


def test_a_zones_default_is_balanced_in_that_zone() -> None:
    """The constraint that decides is that of the DNS zone that is asked; each has its own plan."""
    flags = {"zone": ["cluster.local", "near.local"], "default-topology-keys": [f"near.local={ZONE},*"]}
    snapshot = snapshot_of(crowded(balanced(None)), flags)
    said = explanation_of(snapshot, "web.shop.svc.near.local", ADDRESSES["a1"], flags=flags)
    assert said.balance and (said.outcome, said.balance.clients) == ("spilled", 12)


def test_an_import_is_not_its_namesake() -> None:
    """A multi-cluster Service is not balanced, whatever the Service of its name in the own cluster asks for."""
    items = [*crowded(balanced(f"{ZONE},*")), service_import("web", keys=f"{ZONE},*")]
    items.append(imported_slice("web", "east", [endpoint("10.9.0.1", zone="a")]))
    flags = {"multicluster": ["clusterset.local"]}
    said = explanation_of(snapshot_of(items, flags), "web.shop.svc.clusterset.local", ADDRESSES["a1"], flags=flags)
    assert (said.outcome, said.balance) == ("nearest", None)


TEXTS = {
    # case: items, client, flags, lines of the part "balance"
    "everybody": (crowded(balanced(f"{ZONE},*")), "a1", {}, [
        "at most 1.2 even shares of 12 clients: 3.6 for each endpoint", "asked by everybody but its own endpoints",
        "full: 2 of 4 endpoints", "nodes come in turn, and the client's is number 256 of 256"]),
    "by-selector": (crowded(balanced(f"{ZONE},*", annotations={CLIENTS: "shop/app=front; jobs"})), "a4", {}, [
        "at most 1.2 even shares of 12 clients: 3.6 for each endpoint", "asked by shop/app=front; jobs",
        "full: 2 of 4 endpoints", "nodes come in turn, and the client's is number 4 of 256"]),
    "none-full": (crowded(balanced(f"{ZONE},*", "2"), pods=11), "b1", {}, [
        "at most 2 even shares of 66 clients: 33 for each endpoint", "asked by everybody but its own endpoints",
        "full: none", "nodes come in turn, and the client's is number 248 of 256"]),
    "rounded-down": (crowded(balanced(f"{ZONE},*"), pods=43), UNKNOWN, {}, [
        "at most 1.2 even shares of 258 clients, which count as 256: 76.8 for each endpoint",
        "asked by everybody but its own endpoints", "full: 2 of 4 endpoints",
        "the client is on no known node, so it is never passed on"]),
    "nobody": (crowded(balanced(f"{ZONE},*", annotations={CLIENTS: "jobs"})), "a1", {}, [
        "nobody is counted, so nobody is passed on"]),
    "nodes": (crowded(balanced(f"{ZONE},*", annotations={CLIENTS: "jobs"})), "a1", {"client-source": "nodes"}, [
        "at most 1.2 even shares of 6 clients: 1.8 for each endpoint", "asked by everybody but its own endpoints",
        "full: 2 of 4 endpoints", "nodes come in turn, and the client's is number 256 of 256"]),
}  # fmt: skip


@pytest.mark.parametrize(("items", "client", "flags", "lines"), TEXTS.values(), ids=TEXTS)
def test_balance_as_text(items: list[Item], client: str, flags: dict[str, Any], lines: list[str]) -> None:
    """The part ``balance`` says how much is the most, who asks, how many are full, and whose turn it is."""
    text = as_text(explained(items, client, flags))
    part = text.partition("balance     ")[2].partition("\nstep  ")[0].split("\n")
    assert [line.strip() for line in part] == lines


def test_text_of_what_is_passed_on() -> None:
    """The outcome has a colour of its own, and each endpoint a column that says how many clients it expects."""
    said = explained(crowded(balanced(f"{ZONE},*")), "a1")
    assert f"  {MAGENTA}spilled{PLAIN}: passed on" in as_text(said, colour=True)
    table = as_text(said).partition("candidates  ")[2].splitlines()
    assert table[0].split() == ["CHOSEN", "POD", "ADDRESS", "NODE", "ZONE", "CLIENTS", "WHY"]
    assert [line.split()[5] for line in table[1:5]] == ["3.5", "3.5", "2.5", "2.5"]


def test_an_older_server_says_nothing_of_balance() -> None:
    """``explain --server`` reads the answer of a server that knows none, and shows all else."""
    sent = decoded(explained(crowded(balanced(f"{ZONE},*")), "a1"))
    del sent["balance"]
    text = as_text(DECODER.decode(msgspec.json.encode(sent)))
    assert "balance" not in text and "CLIENTS" not in text
