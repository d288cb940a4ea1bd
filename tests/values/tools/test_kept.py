# SPDX-License-Identifier: Apache-2.0

"""Decisions that are kept: bounded, and of each Service some."""

from __future__ import annotations

from collections import Counter

import pytest

from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.live import kept as kept_decisions
from dnsserver.tools.live.kept import MAX_LINES, KeptDecisions
from dnsserver.tools.tap.lines import as_text, line_of
from locator.ip import parse_address, parse_network
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, listed, node, service
from tests.kit.crowded_zone import ADDRESSES, balanced, crowded
from tests.kit.dns_queries import query
from tests.kit.in_memory import CountedResponder, settings_of, snapshot_of
from tests.kit.tapped import tap_of

NAMES = ("busy", "calm", "new")
CLUSTER = [
    node("a", {ZONE: "a"}, addresses=["10.0.0.1"]),
    node("b", {ZONE: "b"}, addresses=["10.0.0.2"]),
    *(item for name in NAMES for item in (
        service(name, keys=ZONE), endpoint_slice(name, 0, [endpoint("10.1.0.1", nodeName="a")]))),
]  # fmt: skip
AUTHORITY = authority_of(settings_of())


def asked(responder: CountedResponder, name: str, times: int = 1, client: str = "10.0.0.2") -> None:
    for _ in range(times):
        octets = query(f"{name}.shop.svc.cluster.local")
        assert responder.answer(octets, parse_address(client), responder.counts.channels["tcp", 1]) is not None


def looked(kept: KeptDecisions) -> None:
    for event in kept.due():
        client = event.answered.client
        kept.keep(line_of(event, AUTHORITY), client.network if client is not None else None)


def keeping() -> tuple[CountedResponder, KeptDecisions]:
    responder, kept = CountedResponder(native=False), KeptDecisions()
    responder.publish(snapshot_of(listed(CLUSTER)))
    tap_of(responder).listen_for_outcomes(kept.pending)
    return responder, kept


def test_unmet_decisions_are_kept() -> None:
    """And no others; by Service, client and outcome."""
    responder, kept = keeping()
    asked(responder, "busy", client="10.0.0.1")
    asked(responder, "busy")
    asked(responder, "calm")
    looked(kept)
    lines = kept.decisions()
    assert [(line.service.name, line.outcome) for line in lines if line.service] == [
        ("busy", "unmet"),
        ("calm", "unmet"),
    ]
    assert kept.decisions("shop/calm") == lines[1:] and kept.decisions(limit=1) == lines[1:]
    assert not kept.decisions(outcome="spilled") and not kept.decisions(client=parse_network("10.0.0.1/32"))
    assert kept.decisions(client=parse_network("10.0.0.0/24")) == lines
    assert kept.knows("shop/calm") and not kept.knows("shop/new")


def test_a_flood_costs_little_and_pushes_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a look, few lines are made; of too many, those of the Service go that has most."""
    monkeypatch.setattr(kept_decisions, "MAX_KEPT", 20)
    responder, kept = keeping()
    asked(responder, "calm", 2)
    looked(kept)
    for _ in range(20):
        asked(responder, "busy", 500)
        before = kept.numbers.total()
        looked(kept)
        assert kept.numbers.total() - before <= MAX_LINES
    assert kept.numbers == {("shop/calm", "unmet"): 2, ("shop/busy", "unmet"): 18}
    asked(responder, "new", 3)
    looked(kept)
    assert kept.numbers == {("shop/calm", "unmet"): 2, ("shop/new", "unmet"): 3, ("shop/busy", "unmet"): 15}
    times = [line.time for line in kept.decisions()]
    assert times == sorted(times)


def test_octets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long lines, fewer are kept, and none that is too long."""
    responder, kept = keeping()
    asked(responder, "calm")
    looked(kept)
    (line,) = kept.decisions()
    monkeypatch.setattr(kept_decisions, "MAX_OCTETS", 5000)
    for _ in range(50):
        kept.keep(line, None)
    assert 1 <= kept.numbers.total() < 8
    monkeypatch.setattr(kept_decisions, "MAX_LINE", 100)
    before = kept.numbers
    kept.keep(line, None)
    assert kept.numbers == before


def test_services_without_ready_endpoints_are_kept() -> None:
    """Who wants to know who got nothing finds them, and so does who asks for the outcome that the line has."""
    responder, kept = keeping()
    objects = [*CLUSTER, service("down"), endpoint_slice("down", 0, [endpoint("10.1.0.2", ready=False)])]
    responder.publish(snapshot_of(listed(objects)))
    for name in ("down", "busy", "down", "nobody", "pod-0.down"):
        asked(responder, name)
    looked(kept)
    lines = kept.decisions("shop/down")
    assert [(line.outcome, line.rcode) for line in lines] == [("unconstrained", "NXDOMAIN")] * 2
    assert kept.decisions("shop/down", "unmet") == kept.decisions("shop/down", "unconstrained") == lines
    assert not kept.decisions("shop/down", "spilled") and len(kept.decisions(outcome="unmet")) == 3
    assert kept.numbers == {("shop/down", "unready"): 2, ("shop/busy", "unmet"): 1}
    assert "unconstrained  NXDOMAIN" in as_text(lines[0])


def test_spilled_decisions_are_kept() -> None:
    """What is passed on for want of room is kept like what is unmet."""
    responder, kept = CountedResponder(native=False), KeptDecisions()
    responder.publish(snapshot_of(crowded(balanced(f"{ZONE},*"))))
    tap_of(responder).listen_for_outcomes(kept.pending)
    for client in ADDRESSES.values():
        asked(responder, "web", client=client)
    looked(kept)
    assert Counter(line.outcome for line in kept.decisions()) == {"spilled": len(kept.decisions())}
    assert kept.decisions("shop/web", "spilled")
