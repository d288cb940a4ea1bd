# SPDX-License-Identifier: Apache-2.0

"""Counts the endpoints and clients at each location.

A large cluster has 150,000 clients, so this is done in steps, between which a server answers queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dnsserver.tools.pages.steps import STEP, Steps
from locator.model import Location, Node
from locator.state.snapshot import Snapshot, book_of


class ClusterContents(Struct, frozen=True):
    """One cluster: its name, its snapshot and its Nodes."""

    name: str
    snapshot: Snapshot
    nodes: Sequence[Node]


class Located(Struct, frozen=True):
    """How many ready endpoints of all Services, and how many clients, are at each location.

    Clients are the addresses that topodns locates by an object, those of IPv4 or of IPv6, whichever are more: a
    dual-stack pod is one client.
    """

    endpoints: Mapping[Location, int]
    clients: Mapping[Location, int]


def located_in(clusters: Sequence[ClusterContents]) -> Steps[Located]:
    """Return what is at each location of all clusters."""
    endpoints, clients = Counter[Location](), Counter[Location]()
    for cluster in clusters:
        yield from _count_endpoints(endpoints, cluster.snapshot)
        yield from _count_clients(clients, cluster.snapshot)
    return Located(endpoints, clients)


def _count_endpoints(counts: Counter[Location], snapshot: Snapshot) -> Steps[None]:
    """Count the ready endpoints by location: of all Services, in another cluster of those that it exports."""
    services = snapshot.services or {key: found.compiled for key, found in snapshot.exported.items()}
    left = 0
    for service in services.values():
        left -= 1 + len(service.locations)
        if left < 0:
            left = STEP
            yield
        counts.update(service.locations)


def _count_clients(counts: Counter[Location], snapshot: Snapshot) -> Steps[None]:
    """Count the clients by location."""
    four, six = Counter[Location](), Counter[Location]()
    for number, (address, place) in enumerate(book_of(snapshot).places.items()):
        if not number % STEP:
            yield
        if place.location.known:
            (four if len(address) == 4 else six)[place.location] += 1
    yield
    counts.update(four | six)
