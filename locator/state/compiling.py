# SPDX-License-Identifier: Apache-2.0

"""Compiles a Service, its slices and their locations into what its answers depend on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from locator.model import Endpoint, EndpointSlice, Location, Service
from locator.places.book import AddressBook
from locator.places.locations import Locations, has_labels
from locator.state.joining import are_joined, joined_endpoints
from locator.state.snapshot import CompiledService
from locator.topology.constraints import Declaration
from locator.topology.selection import LocatedEndpoint


class EndpointLocator:
    """Locates endpoints as objects and their slices tell, else where ``book`` has their addresses.

    It looks up no others than the ``unplaced_addresses`` of ``Objects``.
    """

    def __init__(self, locations: Locations) -> None:
        self._locations = locations
        self.book = AddressBook()

    def locate(self, namespace: str, endpoint: Endpoint) -> Location:
        """Return the location of an endpoint of a slice in *namespace*."""
        location = self._locations.of_endpoint(namespace, endpoint)
        if has_labels(location) or endpoint.cluster not in (None, self._locations.cluster):
            return location
        places = map(self.book.locate, endpoint.addresses)
        found = next((place.location for place in places if place.location.known), None)
        return location if found is None else self._locations.in_own_cluster(found)

    def locate_joined(self, namespace: str, slices: Sequence[EndpointSlice]) -> tuple[Location, ...]:
        """Return the location of each of the ``joined_endpoints``."""
        if len(slices) == 1 and are_joined(slices[0].endpoints):  # so most Services are: no record is needed
            on_nodes = self._locations.of_endpoints_on_nodes(namespace, slices[0].endpoints)
            if on_nodes is not None:
                return tuple(on_nodes)
        return tuple([self.locate(namespace, endpoint) for endpoint in joined_endpoints(slices)])


def compiled(
    service: Service,
    declarations: tuple[Declaration, ...],
    slices: Sequence[EndpointSlice],
    locator: EndpointLocator,
    before: CompiledService | None,
    *,
    endpoint_records: bool,
    exported: bool = False,
) -> CompiledService:
    """Return a Service with its declarations and the ready endpoints of its slices, each with its location.

    Returns *before* itself if nothing differs. Without *endpoint_records* the result has no endpoints. If the Service
    is *exported*, it has their locations even so: a load balancer is where the endpoints behind it are.
    """
    # An ExternalName Service has no endpoints, even if it has slices.
    located = locator.locate_joined(service.namespace, slices) if service.alias is None else ()
    empty = not located
    known = tuple(slices) if located and endpoint_records else ()
    if not endpoint_records and not exported:
        located = ()
    unlabelled = replace(service, labels={}) if service.labels else service
    if before is not None:
        same = before.empty == empty and list(map(id, before.locations)) == list(map(id, located))
        same = same and before.declarations == declarations and before.service == unlabelled
        if same and (before.slices == known or joined_endpoints(before.slices) == joined_endpoints(known)):
            return before
    return CompiledService(unlabelled, declarations, known, located, empty)


def unready_endpoints(
    service: CompiledService,
    slices: Sequence[EndpointSlice],
    locator: EndpointLocator,
    before: tuple[LocatedEndpoint, ...] | None,
) -> tuple[LocatedEndpoint, ...] | None:
    """Return the endpoints of a Service that are not ready, each with its location; None if there are none.

    Returns *before* itself if nothing differs. While a pod moves from one slice to another, both may have it. If it is
    ready in one of them, it is ready.
    """
    if service.service.alias is not None or not any(known.endpoints.unready for known in slices):
        return None
    ready = service.addresses
    after = tuple(
        LocatedEndpoint(endpoint, locator.locate(service.service.namespace, endpoint))
        for endpoint in joined_endpoints(slices, ready=False)
        if not ready.issuperset(endpoint.addresses)
    )
    return before if before is not None and _same(before, after) else after or None


def _same(left: tuple[LocatedEndpoint, ...], right: tuple[LocatedEndpoint, ...]) -> bool:
    return len(left) == len(right) and all(
        a.location is b.location and a.endpoint == b.endpoint for a, b in zip(left, right, strict=True)
    )
