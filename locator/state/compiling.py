"""Compiles a Service, its slices and their locations into what its answers depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from locator.model import Endpoint, EndpointSlice, Hints, Location, Service
from locator.state.snapshot import CompiledService
from locator.topology.constraints import Declaration
from locator.topology.selection import LocatedEndpoint


def compiled(
    service: Service,
    declarations: tuple[Declaration, ...],
    slices: Iterable[EndpointSlice],
    locate: Callable[[str, Endpoint], Location],
    before: CompiledService | None,
    *,
    endpoint_records: bool,
) -> CompiledService:
    """Return a Service with its declarations and the ready endpoints of its slices, each with its location.

    Returns *before* itself if nothing differs. Without *endpoint_records* the result has no endpoints, and
    ``empty`` alone tells whether any is ready.
    """
    joined = (
        joined_endpoints(slices) if service.alias is None else ()
    )  # an ExternalName Service has no endpoints, even if it has slices
    empty = not joined
    endpoints = tuple(
        LocatedEndpoint(endpoint, locate(service.namespace, endpoint)) for endpoint in joined if endpoint_records
    )
    unlabelled = replace(service, labels={}) if service.labels else service
    if before is not None:
        same = before.empty == empty and _same(before.endpoints, endpoints)
        if same and before.declarations == declarations and before.service == unlabelled:
            return before
    return CompiledService(unlabelled, declarations, endpoints, empty)


def unready_endpoints(
    service: CompiledService | None,
    slices: Iterable[EndpointSlice],
    locate: Callable[[str, Endpoint], Location],
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
        LocatedEndpoint(endpoint, locate(service.service.namespace, endpoint))
        for endpoint in joined
        if not ready.issuperset(endpoint.addresses)
    )
    return before if _same(before, after) else after


def _same(left: tuple[LocatedEndpoint, ...], right: tuple[LocatedEndpoint, ...]) -> bool:
    return len(left) == len(right) and all(
        a.location is b.location and (a.endpoint is b.endpoint or a.endpoint == b.endpoint)
        for a, b in zip(left, right, strict=True)
    )


def joined_endpoints(slices: Iterable[EndpointSlice], *, ready: bool = True) -> tuple[Endpoint, ...]:
    """Return the endpoints of a Service's slices that are *ready*, or those that are not.

    There is one for each pod, and one for each address without a pod.

    A pod may be in several slices (IPv4, IPv6, ports). It becomes one endpoint, so that one selection
    holds for A, AAAA and SRV. Two pods on their node's network may share an address and remain two.
    """
    joined: dict[object, Endpoint] = {}
    keys: dict[bytes, object] = {}  # address -> its key in joined
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            if endpoint.ready is not ready:
                continue
            fresh = [address for address in endpoint.addresses if address not in keys]
            key: object = (endpoint.pod, endpoint.node)
            if endpoint.pod is None:  # its addresses identify it
                key = next((keys[address] for address in endpoint.addresses if address in keys), tuple(fresh))
            other = joined.get(key)
            if other is None:
                joined[key] = endpoint
            else:
                joined[key] = replace(
                    other,
                    addresses=tuple(dict.fromkeys((*other.addresses, *endpoint.addresses))),
                    ports=tuple(dict.fromkeys((*other.ports, *endpoint.ports))),
                    hints=_joined_hints(other.hints, endpoint.hints),
                )
            for address in fresh:
                keys[address] = key
    return tuple(joined.values())


def _joined_hints(one: Hints | None, other: Hints | None) -> Hints | None:
    """Return the nodes and zones that either names: kube-proxy takes an endpoint by each of its slices."""
    if one is None or other is None or one == other:
        return one or other
    return Hints(
        tuple(dict.fromkeys((*one.nodes, *other.nodes))),
        tuple(dict.fromkeys((*one.zones, *other.zones))),
    )
