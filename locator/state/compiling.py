"""Compiles a Service, its slices and their locations into what its answers depend on."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from locator.endpoints import nodes_of
from locator.model import EndpointSlice, Location, Service
from locator.places.locations import Locations
from locator.state.joining import are_joined, joined_endpoints
from locator.state.snapshot import CompiledService
from locator.topology.constraints import Declaration
from locator.topology.selection import LocatedEndpoint


def compiled(
    service: Service,
    declarations: tuple[Declaration, ...],
    slices: Sequence[EndpointSlice],
    locations: Locations,
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
    located = _locations_of(service.namespace, slices, locations) if service.alias is None else ()
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


def _locations_of(namespace: str, slices: Sequence[EndpointSlice], locations: Locations) -> tuple[Location, ...]:
    """Return the location of each of the ``joined_endpoints``."""
    if len(slices) == 1 and are_joined(slices[0].endpoints):  # so most Services are: no record is needed
        of_nodes = locations.of_nodes(nodes_of(slices[0].endpoints))
        known = [location for location in of_nodes if location is not None]
        if len(known) == len(of_nodes):
            return tuple(known)
    return tuple([locations.of_endpoint(namespace, endpoint) for endpoint in joined_endpoints(slices)])


def unready_endpoints(
    service: CompiledService | None,
    slices: Sequence[EndpointSlice],
    locations: Locations,
    before: tuple[LocatedEndpoint, ...],
) -> tuple[LocatedEndpoint, ...]:
    """Return the endpoints of a Service that are not ready, each with its location; *before* itself if nothing differs.

    While a pod moves from one slice to another, both may have it. If it is ready in one of them, it is ready.
    """
    joined = joined_endpoints(slices, ready=False) if service is not None and service.service.alias is None else ()
    if not joined or service is None:
        return before if not before else ()
    ready = service.addresses
    after = tuple(
        LocatedEndpoint(endpoint, locations.of_endpoint(service.service.namespace, endpoint))
        for endpoint in joined
        if not ready.issuperset(endpoint.addresses)
    )
    return before if _same(before, after) else after


def _same(left: tuple[LocatedEndpoint, ...], right: tuple[LocatedEndpoint, ...]) -> bool:
    return len(left) == len(right) and all(
        a.location is b.location and a.endpoint == b.endpoint for a, b in zip(left, right, strict=True)
    )
