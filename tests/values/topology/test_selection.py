# SPDX-License-Identifier: Apache-2.0

"""Which endpoints a client gets: one row for each rule, in the words of topologyKeys, policies and zonal names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from locator.model import HOSTNAME, NODE_NAME, REGION, UNKNOWN_LOCATION, ZONE, Endpoint, Hints, Location
from locator.topology.selection import (
    ALL,
    ANY_ENDPOINT,
    NEAREST,
    UNCONSTRAINED,
    UNMET,
    Constraint,
    FirstMatch,
    Hinted,
    LocatedEndpoint,
    NamedDomain,
    Narrowing,
    Unconstrained,
    select,
)

RACK = "example.com/rack"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"

PLACES: Mapping[str, Mapping[str, str]] = {
    "a1": {HOSTNAME: "a1", RACK: "r1", ZONE: "a", REGION: "west"},
    "a2": {HOSTNAME: "a2", RACK: "r2", ZONE: "a", REGION: "west"},
    "b1": {HOSTNAME: "b1", RACK: "r1", ZONE: "b", REGION: "west"},
    "c1": {HOSTNAME: "c1", ZONE: "C", REGION: "east"},
    "bare": {},
}
NODES = {name: Location(name, dict(labels)) for name, labels in PLACES.items()}
HINTED = {
    "a1": Hints(("a1",), ("a",)), "a2": Hints(("a2",), ("a", "b")), "b1": Hints(("b1", "a2"), ("b",)),
    "bare": Hints((), ("C",)),
}  # fmt: skip
ENDPOINTS = {
    name: LocatedEndpoint(Endpoint((bytes((10, 0, 0, number)),), hints=HINTED.get(name)), location)
    for number, (name, location) in enumerate(NODES.items())
}
BY_ZONE, BY_BOTH = Hinted(for_zones=(4,)), Hinted(for_nodes=(4,), for_zones=(4,))

ROWS: list[tuple[str, Constraint, str, str, str, str | None]] = [
    # id, constraint, client, endpoints, chosen, outcome and key
    ("no-constraint", Unconstrained(), "a1", "a1 b1 bare", "a1 b1 bare", UNCONSTRAINED),
    ("same-node", FirstMatch((HOSTNAME, ZONE, ANY_ENDPOINT)), "a1", "a1 a2 b1", "a1", f"{NEAREST} {HOSTNAME}"),
    ("same-zone-where-not-same-node",
     FirstMatch((HOSTNAME, ZONE, ANY_ENDPOINT)), "a1", "a2 b1", "a2", f"{NEAREST} {ZONE}"),
    ("any-where-nothing-is-near",
     FirstMatch((HOSTNAME, ZONE, ANY_ENDPOINT)), "a1", "b1 c1", "b1 c1", f"{ALL} {ANY_ENDPOINT}"),
    ("hard-and-met", FirstMatch((ZONE,)), "a1", "a1 a2 b1", "a1 a2", f"{NEAREST} {ZONE}"),
    ("hard-and-unmet", FirstMatch((HOSTNAME, ZONE)), "a1", "b1 c1", "", UNMET),
    ("order-of-keys", FirstMatch((REGION, HOSTNAME)), "a1", "a1 a2 b1 c1", "a1 a2 b1", f"{NEAREST} {REGION}"),
    ("hinted-for-the-node", BY_BOTH, "a2", "a1 a2 b1", "a2 b1", f"{NEAREST} {HOSTNAME}"),
    ("hinted-for-the-zone", BY_BOTH, "a2", "a1", "a1", f"{NEAREST} {ZONE}"),
    ("hinted-for-zones-alone", BY_ZONE, "b1", "a1 a2 b1", "a2 b1", f"{NEAREST} {ZONE}"),
    ("hinted-for-no-place-of-the-client", BY_BOTH, "c1", "a1 b1", "a1 b1", f"{ALL} {ANY_ENDPOINT}"),
    ("hinted-in-part", Hinted(), "a1", "a1 c1", "a1 c1", f"{ALL} {ANY_ENDPOINT}"),
    ("hints-and-a-client-without-a-zone", BY_BOTH, "bare", "bare a1", "bare a1", f"{ALL} {ANY_ENDPOINT}"),
    ("a-label-under-its-old-name", FirstMatch((OLD_ZONE,)), "a1", "a2 b1", "a2", f"{NEAREST} {OLD_ZONE}"),
    ("endpoint-without-the-label", FirstMatch((RACK,)), "a1", "c1 bare", "", UNMET),
    ("client-without-the-label", FirstMatch((RACK, ZONE)), "c1", "a1 c1", "c1", f"{NEAREST} {ZONE}"),
    ("no-label-is-not-a-value", FirstMatch((RACK,)), "bare", "bare c1", "", UNMET),
    ("values-are-case-sensitive", FirstMatch((ZONE,)), "c1", "c1", "c1", f"{NEAREST} {ZONE}"),
    ("no-endpoints-hard", FirstMatch((ZONE,)), "a1", "", "", UNMET),
    ("no-endpoints-soft", FirstMatch((ZONE, ANY_ENDPOINT)), "a1", "", "", f"{ALL} {ANY_ENDPOINT}"),
    ("enough-of-them", FirstMatch((HOSTNAME, ZONE), at_least=2), "a1", "a1 a2 b1", "a1 a2", f"{NEAREST} {ZONE}"),
    ("never-enough-first-that-had-any", FirstMatch((RACK, ZONE), at_least=3), "a1", "a2 b1", "b1", f"{NEAREST} {RACK}"),
    ("any-takes-too-few-too",
     FirstMatch((ZONE, ANY_ENDPOINT), at_least=5), "a1", "a1 b1", "a1 b1", f"{ALL} {ANY_ENDPOINT}"),
    ("unknown-client-hard", FirstMatch((ZONE,)), "unknown", "a1 b1", "", UNMET),
    ("required", Narrowing((ZONE,), (ZONE,)), "a1", "a1 a2 b1", "a1 a2", f"{NEAREST} {ZONE}"),
    ("all-required-hold", Narrowing((ZONE, RACK), (ZONE, RACK)), "a1", "a1 a2 b1", "a1", f"{NEAREST} {RACK}"),
    ("one-required-fails", Narrowing((ZONE, RACK), (ZONE, RACK)), "a1", "a2 b1", "", UNMET),
    ("preferred-narrows", Narrowing((ZONE, RACK)), "a1", "a1 a2 b1", "a1", f"{NEAREST} {RACK}"),
    ("preferred-that-leaves-nothing", Narrowing((ZONE, HOSTNAME)), "a1", "a2 b1", "a2", f"{NEAREST} {ZONE}"),
    ("preferred-leaves-too-few", Narrowing((ZONE, RACK), at_least=2), "a1", "a1 a2 b1", "a1 a2", f"{NEAREST} {ZONE}"),
    ("nothing-preferred-is-near", Narrowing((ZONE,)), "a1", "b1 c1", "b1 c1", f"{ALL} {ANY_ENDPOINT}"),
    ("required-then-preferred", Narrowing((REGION, ZONE), (REGION,)), "a1", "b1 c1", "b1", f"{NEAREST} {REGION}"),
    ("pinned", NamedDomain(ZONE, "b"), "a1", "a1 b1", "b1", f"{NEAREST} {ZONE}"),
    ("pinned-for-anybody", NamedDomain(ZONE, "b"), "unknown", "a1 b1", "b1", f"{NEAREST} {ZONE}"),
    ("pinned-name-in-lower-case", NamedDomain(ZONE, "c"), "a1", "a1 c1", "c1", f"{NEAREST} {ZONE}"),
    ("pinned-and-nobody-there", NamedDomain(ZONE, "z"), "a1", "a1 b1", "", UNMET),
    ("preferred-name", NamedDomain(ZONE, "b", or_all=True), "a1", "a1 b1", "b1", f"{NEAREST} {ZONE}"),
    ("preferred-name-and-nobody-there",
     NamedDomain(ZONE, "z", or_all=True), "a1", "a1 b1", "a1 b1", f"{ALL} {ANY_ENDPOINT}"),
]  # fmt: skip
IDS = [row[0] for row in ROWS]


def client_at(name: str) -> Location:
    return UNKNOWN_LOCATION if name == "unknown" else NODES[name]


@pytest.mark.parametrize(("constraint", "client", "ready", "chosen", "reason"), [row[1:] for row in ROWS], ids=IDS)
def test_a_client_gets(constraint: Constraint, client: str, ready: str, chosen: str, reason: str) -> None:
    """The selection has the endpoints in their order, the outcome and the key that decided."""
    endpoints = [ENDPOINTS[name] for name in ready.split()]
    selection = select(constraint, client_at(client), endpoints)
    assert selection.endpoints == tuple(ENDPOINTS[name] for name in chosen.split())
    assert " ".join(filter(None, (selection.outcome, selection.key))) == reason
    assert [step.key for step in selection.steps] == [*constraint.keys[: len(selection.steps)]]


@pytest.mark.parametrize(
    ("constraint", "client", "ready"),
    [row[1:4] for row in ROWS if isinstance(row[1], FirstMatch | Narrowing)],
    ids=[row[0] for row in ROWS if isinstance(row[1], FirstMatch | Narrowing)],
)
def test_narrowed_keys_rule_out_all_others(constraint: Constraint, client: str, ready: str) -> None:
    """Who matches every key that narrowed was chosen, and nobody else; without such a key it was all, or none."""
    here, endpoints = client_at(client), [ENDPOINTS[name] for name in ready.split()]
    selection = select(constraint, here, endpoints)
    left = [row for row in endpoints
            if all(here.value(key) == row.location.value(key) is not None for key in selection.narrowed)]  # fmt: skip
    assert list(selection.endpoints) == ([] if selection.outcome == UNMET and not selection.narrowed else left)
    assert set(selection.narrowed) <= {step.key for step in selection.steps}


@pytest.mark.parametrize(("constraint", "client", "ready"), [row[1:4] for row in ROWS], ids=IDS)
def test_useless_values_are_as_good_as_none(constraint: Constraint, client: str, ready: str) -> None:
    """A client's labels that no client key names, and values that can match no endpoint, make no difference.

    The answer cache relies on it.
    """
    endpoints, here = [ENDPOINTS[name] for name in ready.split()], client_at(client)
    distinguishing = dict(zip(constraint.client_keys, constraint.distinguishing_values(endpoints), strict=True))
    node = here.node if here.node in distinguishing.get(NODE_NAME, ()) else "elsewhere"
    labels = {key: value for key, value in here.labels.items() if value in distinguishing.get(key, ())}
    kept = select(constraint, Location(node, labels, here.known), endpoints)
    whole = select(constraint, here, endpoints)
    assert (kept.endpoints, kept.outcome, kept.key) == (whole.endpoints, whole.outcome, whole.key)


@pytest.mark.parametrize(("constraint", "client", "ready"), [row[1:4] for row in ROWS], ids=IDS)
def test_a_soft_constraint_denies_nobody(constraint: Constraint, client: str, ready: str) -> None:
    """With a soft constraint each client gets a ready endpoint; with a hard one, a client without labels gets none."""
    endpoints = [ENDPOINTS[name] for name in ready.split()]
    if constraint.soft:
        assert bool(select(constraint, client_at(client), endpoints).endpoints) == bool(endpoints)
    elif constraint.client_keys:
        assert select(constraint, UNKNOWN_LOCATION, endpoints).outcome == UNMET


@pytest.mark.parametrize(
    ("client", "constraint", "outcome"),
    [
        pytest.param(UNKNOWN_LOCATION, FirstMatch((ZONE,)), ALL, id="hard"),
        pytest.param(UNKNOWN_LOCATION, Narrowing((ZONE,), (ZONE,)), ALL, id="required"),
        pytest.param(UNKNOWN_LOCATION, NamedDomain(ZONE, "a"), NEAREST, id="pinned"),
        pytest.param(Location("n", {}), FirstMatch((ZONE,)), UNMET, id="known but without the label"),
        pytest.param(NODES["b1"], FirstMatch((ZONE,)), UNMET, id="known"),
    ],
)
def test_unknown_clients_may_get_all(client: Location, constraint: Constraint, outcome: str) -> None:
    """``--unknown-client all`` gives an unknown client all endpoints, and changes nothing for others."""
    selection = select(constraint, client, [ENDPOINTS["a1"]], unknown_gets_all=True)
    assert selection.outcome == outcome
    assert bool(selection.endpoints) == (outcome != UNMET)
