# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness promises a bound for each endpoint, little crossing, and nothing where there is room for all.

The promises are those of the rule, so they are checked where the rule is written a second time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, node, pod, service, topodns_annotations
from tests.kit.random_crowds import KEY, OPTED_IN, SOFT, crowd
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_asked import tiers_of
from tests.oracle.twin_balance import MAX_OVERLOAD, SLACK, Balance, Cell, clients_of
from tests.oracle.twin_map import UNKNOWN, Where

SEEDS = st.integers(0, 10**9)
MODES = Modes(default_keys={OPTED_IN: f"{ZONE},*"})
often = settings(unshrunk, max_examples=150)


class Zone(NamedTuple):
    """A zone of a cluster that is made by hand: the clients of each of its nodes, and its endpoints."""

    clients: Sequence[int]
    endpoints: int


def made(zones: Mapping[str, Zone], **said: str) -> list[Item]:
    """Return a cluster with a Service that asks for the client's zone, then for any."""
    items, rows = [], []
    for zone, (clients, endpoints) in zones.items():
        names = [f"{zone}{number}" for number in range(len(clients))]
        items += [node(name, {ZONE: zone}) for name in names]
        for name, count in zip(names, clients, strict=True):
            items += [pod(f"{name}-{number}", [f"10.{len(items)}.0.{number}"], name) for number in range(count)]
        rows += [endpoint(f"10.250.{ord(zone)}.{number}", nodeName=names[0]) for number in range(endpoints)]
    own = service("web", keys=f"{ZONE},*", annotations=topodns_annotations(said))
    return [*items, own, endpoint_slice("web", 0, rows)]


UNEVEN = {"a": Zone([10] * 6, 2), "b": Zone([10] * 2, 2), "c": Zone([10] * 2, 2)}
WORKED = [
    # id, cluster, max-overload, cap, the greatest share of an even one, clients that are passed on
    ("60-20-20-over-2-2-2", UNEVEN, "1.5", 25, 1.5, 10),
    ("room-for-all", UNEVEN, "2", Fraction(100, 3), 1.8, 0),
    ("tighter", UNEVEN, "1.2", 20, 1.2, 20),
    ("one-node-has-nearly-all", {"a": Zone([90], 1), "b": Zone([10], 2)}, "1.5", 50, None, 90),
    ("zone-without-endpoints", {"a": Zone([8, 8], 0), "b": Zone([4, 4], 2)}, "1.5", 18, 1.0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("zones", "overload", "cap", "share", "passed_on"), [row[1:] for row in WORKED],
                         ids=[row[0] for row in WORKED])  # fmt: skip
def test_worked_by_hand(
    zones: Mapping[str, Zone], overload: str, cap: Fraction, share: float | None, passed_on: int
) -> None:
    """Some clusters small enough to be worked out on paper."""
    twin = Twin(made(zones, max_overload=overload), Modes())
    balance = balance_of(twin)
    assert balance.cap == cap
    if share is not None:
        assert float(max(balance.expected) * len(balance.expected) / balance.clients) == pytest.approx(share)
    assert sum(twin.given(KEY, place).outcome == "spilled" for place in asking(twin)) == passed_on


def asking(twin: Twin) -> list[Where]:
    """Return where each client is that counts."""
    return clients_of(twin.map, KEY, twin.services[KEY], twin.modes.client_source.split(","))


def balance_of(twin: Twin) -> Balance:
    balance = twin.balance(KEY)
    assert balance is not None
    return balance


def weights(twin: Twin) -> Counter[Cell | None]:
    """Return how many clients each cell has."""
    rows, asked = twin.ready(KEY), twin.asked(KEY)
    return Counter(twin.cell(asked, KEY, rows, place) for place in asking(twin))


def loads(twin: Twin) -> dict[frozenset[str], Fraction]:
    """Return how many clients each endpoint has, by its addresses: client by client, from what each is given."""
    found = {row.addresses: Fraction(0) for row in twin.ready(KEY)}
    for place in asking(twin):
        given = twin.given(KEY, place)
        chosen = [addresses for addresses in found if addresses <= given.chosen]
        for addresses in chosen:
            found[addresses] += Fraction(1, len(chosen))
    return found


def without_balance(items: Sequence[Item]) -> list[Item]:
    """Return the cluster as if the Service said nothing of balance."""
    return [
        {**found, "metadata": {**found["metadata"], "annotations": {
            key: text for key, text in found["metadata"]["annotations"].items() if key != MAX_OVERLOAD}}}
        if found["kind"] == "Service" else found
        for found in items
    ]  # fmt: skip


def places(twin: Twin) -> list[Where]:
    """Return all nodes as clients, and one who is nowhere."""
    return [*(Where("node", name, twin.map.node_labels(name)) for name in twin.map.nodes), UNKNOWN]


@often
@given(seed=SEEDS)
def test_endpoints_expect_what_clients_get(seed: int) -> None:
    """What an endpoint expects is the sum of what its clients are given, each of which is spread evenly."""
    twin = Twin(crowd(seed).items, MODES)
    balance = twin.balance(KEY)
    if balance is not None:
        expected = {row.addresses: load for row, load in zip(twin.ready(KEY), balance.expected, strict=True)}
        assert loads(twin) == expected


@often
@given(seed=SEEDS)
def test_nobody_moves_where_there_is_room(seed: int) -> None:
    """If no endpoint has more than the cap without balance, every client gets what it gets without."""
    items = crowd(seed).items
    twin, plain = Twin(items, MODES), Twin(without_balance(items), MODES)
    balance = twin.balance(KEY)
    if balance is None or all(load <= balance.cap for load in loads(plain).values()):
        for place in places(twin):
            given = twin.given(KEY, place)
            assert given._replace(turn=None) == plain.given(KEY, place)


@often
@given(seed=SEEDS)
def test_no_endpoint_of_a_soft_constraint_expects_more_than_the_bound(seed: int) -> None:
    """The bound is the cap, or an even share and what one node can add to each of the endpoints that fill up."""
    twin = Twin(crowd(seed, keys=SOFT).items, MODES)
    balance = twin.balance(KEY)
    if balance is None:
        return
    count, most = len(balance.expected), max(weights(twin).values())
    harmonic = sum(Fraction(1, number) for number in range(1, count + 1))
    even = Fraction(balance.clients, count)
    assert max(balance.expected) <= max(balance.cap, (1 + harmonic * most / balance.clients) * even) + SLACK


@often
@given(seed=SEEDS)
def test_little_more_crosses_than_has_no_room(seed: int) -> None:
    """At most what is above the cap of a zone's endpoints crosses, and one node of each zone that spills."""
    twin = Twin(crowd(seed, keys=[f"{ZONE},*"]).items, MODES)
    balance = twin.balance(KEY)
    if balance is None:
        return
    rows, cells, crossing, most = twin.ready(KEY), weights(twin), Fraction(0), Fraction(0)
    by_zone: dict[str, list[Where]] = {}
    for place in asking(twin):
        if ZONE in place.labels:
            by_zone.setdefault(place.labels[ZONE], []).append(place)
    for zone, clients in by_zone.items():
        given = [twin.given(KEY, place) for place in clients]
        for one in given:
            chosen = [row for row in rows if row.addresses <= one.chosen]
            crossing += Fraction(sum(row.labels.get(ZONE, zone) != zone for row in chosen), len(chosen))
        most += max(0, len(clients) - balance.cap * sum(row.labels.get(ZONE) == zone for row in rows))
        spilled = [place for place, one in zip(clients, given, strict=True) if one.outcome == "spilled"]
        most += max((cells[twin.cell(twin.asked(KEY), KEY, rows, place)] for place in spilled), default=0)
    assert crossing <= most + SLACK


@often
@given(seed=SEEDS)
def test_whoever_gets_something_still_does(seed: int) -> None:
    """Balance leaves nobody without an endpoint, and gives nobody one that no key of the constraint matches."""
    items = crowd(seed).items
    twin, plain = Twin(items, MODES), Twin(without_balance(items), MODES)
    rows, asked = twin.ready(KEY), twin.asked(KEY)
    for place in places(twin):
        given, before = twin.given(KEY, place), plain.given(KEY, place)
        assert bool(given.chosen) == bool(before.chosen)
        near = tiers_of(asked, rows, place, twin.least(KEY))
        assert given.chosen <= set().union(*(row.addresses for tier in near for row in tier))


@often
@given(seed=SEEDS)
def test_the_order_of_objects_does_not_matter(seed: int) -> None:
    """Two servers that read the same cluster in two orders give the same answers."""
    items = crowd(seed).items
    later = random.Random(seed).sample(items, len(items))
    one, other = Twin(items, MODES), Twin(later, MODES)
    for place in places(one):
        assert one.given(KEY, place) == other.given(KEY, place)


SAID = [
    # id, what the Service says, whether it is heard
    ("largest", {"max_overload": "10"}, True),
    ("smallest", {"max_overload": "1.1"}, True),
    ("whole-number", {"max_overload": "2"}, True),
    ("too-small", {"max_overload": "1.09"}, False),
    ("too-large", {"max_overload": "10.1"}, False),
    ("negative", {"max_overload": "-2"}, False),
    ("exponent", {"max_overload": "1e1"}, False),
    ("comma", {"max_overload": "1,5"}, False),
    ("two-points", {"max_overload": "1.5.0"}, False),
    ("other-digits", {"max_overload": "\u0662"}, False),
    ("clients-alone", {"clients": "shop"}, False),
    ("nobody-of-that-name", {"max_overload": "1.5", "clients": "nobody"}, False),
    ("no-such-label", {"max_overload": "1.5", "clients": "shop/app=none"}, False),
    ("everybody-since-no-namespace", {"max_overload": "1.5", "clients": "Shop!"}, True),
    ("everybody-since-no-selector", {"max_overload": "1.5", "clients": "shop/app in web"}, True),
    ("namespace", {"max_overload": "1.5", "clients": "nobody; shop"}, True),
]  # fmt: skip


@pytest.mark.parametrize(("said", "heard"), [row[1:] for row in SAID], ids=[row[0] for row in SAID])
def test_what_is_heard(said: Mapping[str, str], heard: bool) -> None:
    """An invalid number counts as absent, and invalid clients as everybody; without clients there is no balance."""
    twin = Twin(made(UNEVEN, **said), Modes())
    assert (twin.balance(KEY) is not None) == heard
