# SPDX-License-Identifier: Apache-2.0

"""What becomes of a Service when every client asks, computed a second time: client by client, by the rules of ``Twin``.

Tests compare it with ``topodns simulate``. It reads the objects as kubectl prints them.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from tests.kit.api_objects import SERVICE_NAME, TOPOLOGY_KEYS, ZONE, Item
from tests.oracle.twin import Modes, Row, Twin
from tests.oracle.twin_map import NEW_NAMES, Where, ip_address, key_of, of_kind

Key = tuple[str, str]  # a Service's namespace and name


class FixedTwin(Twin):
    """A Twin of a cluster that does not change: it remembers what it has worked out."""

    def __init__(self, items: Sequence[Item], modes: Modes) -> None:
        super().__init__(items, modes)
        self.ready = cache(self.ready)  # type: ignore[method-assign]
        self.asked = cache(self.asked)  # type: ignore[method-assign]
        self.locate = cache(self.map.locate)


class Expected(NamedTuple):
    """The figures of one Service; shares by the addresses of the endpoint, domains with the addresses that they get."""

    shares: Mapping[frozenset[str], float]
    crossing_before: float
    crossing: float
    unmet: int
    unknown: int
    domains: Mapping[tuple[Any, ...], int]


def tried(items: Sequence[Item], key: Key, keys: str) -> list[Item]:
    """Return the cluster as if a Service had these topology keys, "" for none."""
    later = copy.deepcopy(list(items))
    for service in of_kind(later, "Service"):
        if key_of(service) == key:
            annotations = service["metadata"].setdefault("annotations", {})
            annotations.pop(TOPOLOGY_KEYS, None)
            if keys:
                annotations[TOPOLOGY_KEYS] = keys
    return later


def failed(items: Sequence[Item], twin: Twin, label: str, value: str) -> list[Item]:
    """Return the cluster as if nothing in a topology domain were ready."""
    later = copy.deepcopy(list(items))
    there = {
        (key, address)
        for key in twin.services
        for row in twin.ready(key)
        if row.labels.get(label) == value
        for address in row.addresses  # where one of them is, the whole endpoint is
    }
    for endpoint_slice in of_kind(later, "EndpointSlice"):
        key = endpoint_slice["metadata"]["namespace"], endpoint_slice["metadata"]["labels"].get(SERVICE_NAME)
        for endpoint in endpoint_slice["endpoints"]:
            if any((key, address) in there for address in endpoint["addresses"]):
                endpoint["conditions"] = {"ready": False}
    return later


def clients_of(items: Sequence[Item], key: Key) -> list[str]:
    """Return the first address of each running pod that is no endpoint of the Service, ready or not."""
    return [own[0] for own in pods_that_ask(items, key).values()]


def pods_that_ask(items: Sequence[Item], key: Key) -> dict[Key, list[str]]:
    """Return all addresses of the same pods, by their namespaces and names."""
    endpoints = [
        endpoint
        for endpoint_slice in of_kind(items, "EndpointSlice")
        if (endpoint_slice["metadata"]["namespace"], endpoint_slice["metadata"]["labels"].get(SERVICE_NAME)) == key
        for endpoint in endpoint_slice["endpoints"]
    ]
    names = {pod for endpoint in endpoints if (pod := pod_of(endpoint))}
    addresses = {text for endpoint in endpoints if not pod_of(endpoint) for text in endpoint["addresses"]}
    clients = {}
    for pod in of_kind(items, "Pod"):
        own = [row["ip"] for row in pod["status"].get("podIPs", ())]
        is_endpoint = (pod["metadata"]["namespace"] == key[0] and pod["metadata"]["name"] in names) or any(
            text in addresses for text in own
        )
        if pod["status"]["phase"] == "Running" and own and not is_endpoint:
            clients[key_of(pod)] = own
    return clients


def pod_of(endpoint: Item) -> str | None:
    """Return the name of the Pod that an endpoint is, None if it is something else, a Node for example."""
    target = endpoint.get("targetRef", {})
    return target["name"] if target.get("kind") == "Pod" else None


def expected(twin: FixedTwin, key: Key, clients: Sequence[Sequence[str]], keys: Sequence[str]) -> Expected:
    """Ask for the Service's name from each client, by its addresses; *keys* are those of which a domain has values."""
    rows = twin.ready(key)
    loads = {row.addresses: 0.0 for row in rows}
    domains: Counter[tuple[Any, ...]] = Counter()
    arriving = crossing = crossing_before = 0.0
    unmet = unknown = 0
    for client in clients:
        where, versions = twin.locate(client[0]), {ip_address(text).version for text in client}
        given = twin.given(key, where)
        addresses = given.chosen if len(versions) > 1 else given.addresses
        chosen = [row for row in rows if any(row.of(version) & addresses for version in versions)]
        unknown += not where.labels
        unmet += not chosen
        arriving += bool(chosen)
        for row in chosen:
            loads[row.addresses] += 1 / len(chosen)
        crossing += part_elsewhere(where, chosen)
        crossing_before += part_elsewhere(where, [row for row in rows if any(map(row.of, versions))])
        domain = {name: where.labels[now] for name in keys if (now := NEW_NAMES.get(name, name)) in where.labels}
        domains[tuple(sorted(domain.items())), frozenset(row.addresses for row in chosen)] += 1
    return Expected(
        {addresses: load / (arriving or 1) for addresses, load in loads.items()},
        crossing_before / len(clients) if rows and clients else 0.0,
        crossing / (arriving or 1),
        unmet,
        unknown,
        domains,
    )


def part_elsewhere(where: Where, rows: Sequence[Row]) -> float:
    """Return the part of some endpoints that is known to be in another zone."""
    here = where.labels.get(ZONE)
    others = [row for row in rows if None not in (here, row.labels.get(ZONE)) and row.labels[ZONE] != here]
    return len(others) / len(rows) if rows else 0.0
