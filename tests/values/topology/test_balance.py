# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness in random clusters: every client gets what the rule says when it is read from kubectl's JSON."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, SupportsFloat

from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.answers.resolution import resolve
from dnsserver.message.records import type_number
from dnsserver.names import labels_of, query_name_of
from dnsserver.programs.from_settings import authority_of
from locator.ip import address_text, parse_address
from tests.kit.api_objects import ZONE
from tests.kit.in_memory import settings_of, snapshot_of
from tests.kit.random_crowds import KEY, OPTED_IN, crowd
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin

SEEDS = st.integers(0, 10**9)
SOURCES = ("pods,nodes", "pods,nodes", "pods,nodes", "nodes", "pods,podlocators,nodes", "podlocators")
# What the subnet of some pods says that nodes lack: nothing, what no Service asks for, or the zone, too.
SUBNETS: tuple[dict[str, dict[str, str]], ...] = (
    {}, {}, {"10.251.0.0/16": {"building": "x"}}, {"10.251.0.0/16": {"building": "x", ZONE: "a"}}
)  # fmt: skip
PLAIN = "cluster.local"


@settings(unshrunk, max_examples=150)
@given(seed=SEEDS)
def test_every_client_gets_what_the_rule_says(seed: int) -> None:
    """Addresses and outcome of each node and some pods, in a zone with default keys and in one without; the numbers."""
    rng = random.Random(seed)
    made = crowd(seed)
    modes = Modes(default_keys={OPTED_IN: f"{ZONE},*"}, client_source=rng.choice(SOURCES), subnets=rng.choice(SUBNETS))
    flags: dict[str, Any] = {"zone": [PLAIN, OPTED_IN], **modes.flags()}
    twin, snapshot, authority = (
        Twin(made.items, modes),
        snapshot_of(made.items, flags),
        authority_of(settings_of(flags)),
    )
    nodes = [row["address"] for on in made.items if on["kind"] == "Node" for row in on["status"]["addresses"]]
    for client in [*nodes, *rng.sample(made.addresses, min(3, len(made.addresses))), "203.0.113.9"]:
        for zone in (PLAIN, OPTED_IN):
            name = query_name_of(labels_of(f"{KEY[1]}.{KEY[0]}.svc.{zone}"), authority.zones)
            location = snapshot.addresses.locate(parse_address(client)).location
            found = resolve(name, type_number("SRV"), snapshot, location, authority)
            wanted = twin.given(KEY, twin.map.locate(client), zone)
            chosen = () if found.selection is None else found.selection.endpoints
            addresses = {address_text(address) for one in chosen for address in one.endpoint.addresses}
            assert (client, zone, addresses) == (client, zone, wanted.chosen)
            if twin.ready(KEY):
                assert (client, zone, found.outcome) == (client, zone, wanted.outcome)
    balances = [twin.balance(KEY, zone) for zone in (PLAIN, OPTED_IN)]
    expected = {numbers(balance.clients, balance.cap, balance.expected) for balance in balances if balance is not None}
    known = snapshot.balances.get("/".join(KEY), ())
    assert {numbers(found.clients, found.cap, found.expected) for found in known if found.clients} == expected


def numbers(clients: int, cap: SupportsFloat, expected: Iterable[SupportsFloat]) -> tuple[object, ...]:
    """Return what a balance counts, so that it can be compared."""
    return clients, round(float(cap), 6), tuple(sorted(round(float(load), 6) for load in expected))
