# SPDX-License-Identifier: Apache-2.0

"""Balanced Services where several clusters are read: only clients of the own one are counted, and passed on."""

from __future__ import annotations

from dnsserver.answers.resolution import resolve
from dnsserver.message.records import type_number
from dnsserver.names import labels_of, query_name_of
from dnsserver.programs.from_settings import authority_of
from locator.ip import parse_address
from locator.model import ZONE
from tests.kit.api_objects import node
from tests.kit.crowded_zone import ADDRESSES, balanced, crowded
from tests.kit.in_memory import ClustersInMemory, settings_of

FAR = "10.77.0.1"


def test_clients_of_other_clusters_are_not_passed_on() -> None:
    """A node there gets what it gets without balance, though one of the same name and zone here is passed on."""
    elsewhere = [node("a1", {ZONE: "a"}, addresses=[FAR])]
    snapshot = ClustersInMemory(crowded(balanced(f"{ZONE},*")), {"far": elsewhere}).snapshot()
    authority = authority_of(settings_of())
    name = query_name_of(labels_of("web.shop.svc.cluster.local"), authority.zones)
    outcomes = [
        resolve(name, type_number("A"), snapshot, snapshot.addresses.locate(parse_address(text)).location, authority)
        .outcome
        for text in (ADDRESSES["a1"], FAR)
    ]  # fmt: skip
    assert outcomes == ["spilled", "nearest"]
