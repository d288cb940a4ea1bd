# SPDX-License-Identifier: Apache-2.0

"""Where ``max-overload`` is heard, and the findings that need what a plan knows."""

from __future__ import annotations

import pytest

from locator.labels import parse_client_selector
from locator.model import INFO, REGION, WARNING, ZONE, Endpoint, Hints, Location, Service
from locator.topology.annotations import CLIENTS, MAX_OVERLOAD, TOPOLOGY_KEYS
from locator.topology.balance_checks import OTHER_HINTS, impossible, nobody_counted, unheard
from locator.topology.constraints import HINTS, Declaration, deciding, declarations_of, in_effect
from locator.topology.selection import Hinted, LocatedEndpoint
from tests.kit.crowded_zone import balanced, crowded
from tests.kit.in_memory import checked

A1, A2, B1 = (Location(name, {ZONE: name[0]}) for name in ("a1", "a2", "b1"))
NOWHERE = Location("c1", {})
BY_ZONE, BY_BOTH, BY_NODE = Hinted(for_zones=(4,)), Hinted((4,), (4,)), Hinted(for_nodes=(4,))


def asked(keys: str = "") -> Service:
    return Service("shop", "web", headless=True, annotations={TOPOLOGY_KEYS: keys, MAX_OVERLOAD: "1.5"})


def for_zone(*zones: str, nodes: tuple[str, ...] = ()) -> Hints:
    return Hints(nodes, zones)


@pytest.mark.parametrize(
    ("hinted", "endpoints", "heard"),
    [
        pytest.param(BY_ZONE, [(for_zone("a"), A1), (for_zone("b"), B1)], True, id="own-zones"),
        pytest.param(BY_ZONE, [], True, id="nobody"),
        pytest.param(BY_ZONE, [(for_zone("a"), A1), (for_zone("a"), B1)], False, id="another-zone"),
        pytest.param(BY_ZONE, [(for_zone("a", "b"), A1), (for_zone("b"), B1)], False, id="two-zones"),
        pytest.param(BY_ZONE, [(for_zone("c"), NOWHERE)], False, id="endpoint-without-zone"),
        pytest.param(BY_ZONE, [(for_zone("a"), A1), (None, B1)], False, id="no-hint"),
        pytest.param(BY_ZONE, [(for_zone("a", nodes=("a2",)), A1)], True, id="nodes-that-do-not-count"),
        pytest.param(BY_BOTH, [(for_zone("a", nodes=("a1",)), A1), (for_zone("a", nodes=("a2",)), A2)], True,
                     id="own-nodes"),
        pytest.param(BY_BOTH, [(for_zone("a", nodes=("a2",)), A1)], False, id="another-node"),
        pytest.param(BY_BOTH, [(for_zone("a", nodes=("a1", "a2")), A1)], False, id="two-nodes"),
        pytest.param(BY_NODE, [(for_zone(nodes=("a1",)), A1)], False, id="nodes-alone"),
    ],
)  # fmt: skip
def test_hints(hinted: Hinted, endpoints: list[tuple[Hints | None, Location]], heard: bool) -> None:
    """Only hints that say where each endpoint is, as Kubernetes writes them for ``trafficDistribution``, are heard."""
    located = [LocatedEndpoint(Endpoint((b"\n\0\0\1",), hints=hints), location) for hints, location in endpoints]
    assert unheard(asked(), Declaration(HINTS, hinted), located) == ("" if heard else OTHER_HINTS)


RUNNING = [("shop", {"app": "web"}), ("shop", {"app": "db"}), ("jobs", {})]


@pytest.mark.parametrize(
    ("wanted", "words", "expected"),
    [
        ("shp/app=web", "shp/app=web: no running pod in namespace shp", "shop"),
        ("team-a", "no running pod in namespace team-a", "a namespace with running pods"),
        ("shop/app=wbe", "shop/app=wbe: no running pod in shop matches", "shop/app=web"),
        ("shop/app=web,tier", "no running pod in shop matches", "shop/app=web"),
        ("jobs/app=web,tier=x", "no running pod in jobs matches", "pods with the label app or tier"),
    ],
)
def test_nobody_is_counted(wanted: str, words: str, expected: str) -> None:
    """The finding names the nearest that would match."""
    finding = nobody_counted(asked(), parse_client_selector(wanted), RUNNING)
    assert (finding.code, finding.severity, finding.expected) == ("BalanceWithoutClients", WARNING, expected)
    assert finding.field == f"metadata.annotations[{CLIENTS}]"
    assert finding.message.startswith("nobody is counted, so nothing is balanced: ") and words in finding.message


def test_nobody_asks() -> None:
    """Without selectors, it is about the pods of the whole cluster."""
    finding = nobody_counted(asked(), None, [])
    assert finding.field == f"metadata.annotations[{MAX_OVERLOAD}]"
    assert "no running pod but the Service's own endpoints" in finding.message


@pytest.mark.parametrize(
    ("keys", "severity", "why"),
    [(f"{ZONE},*", INFO, "no other has room for them"), (ZONE, WARNING, "the constraint is hard")],
    ids=["soft", "hard"],
)
def test_impossible(keys: str, severity: str, why: str) -> None:
    """It names the endpoints in order, and is worse where clients get no others."""
    service = asked(keys)
    constraint = in_effect(deciding(declarations_of(service)))
    finding = impossible(service, constraint, ["web-2", "web-0"])
    assert (finding.code, finding.severity) == ("BalanceImpossible", severity)
    assert f"more clients than {MAX_OVERLOAD} allows at web-0, web-2: {why}" in finding.message
    many = impossible(service, constraint, [f"web-{number}" for number in range(9)])
    assert "web-4 and 4 more: " in many.message


def test_each_zone_with_default_keys() -> None:
    """A constraint that only one of several DNS zones has is told of, too; what is wrong in all is told once."""
    flags = {
        "zone": ["cluster.local", "topo.local", "near.local", "here.local"],
        "default-topology-keys": [f"topo.local={ZONE},*", f"near.local={ZONE}", f"here.local={ZONE},{REGION}"],
    }
    found = checked(crowded(balanced(None)), flags)
    assert [finding.severity for finding in found if finding.code == "BalanceImpossible"] == [WARNING]
    found = checked(crowded(balanced(None, annotations={CLIENTS: "nobody"})), flags)
    assert len([finding for finding in found if finding.code == "BalanceWithoutClients"]) == 1
