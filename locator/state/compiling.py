"""From a Service, its slices and where things are to what its answers are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from locator.model import Endpoint, EndpointSlice, Location, Service
from locator.state.snapshot import CompiledService
from locator.topology.constraints import Declaration
from locator.topology.selection import LocatedEndpoint


def compiled(
    service: Service,
    declaration: Declaration | None,
    slices: Iterable[EndpointSlice],
    locate: Callable[[str, Endpoint], Location],
    before: CompiledService | None,
    *,
    endpoint_records: bool,
) -> CompiledService:
    """Return a Service with what it declares and the ready endpoints of its slices, each at its location.

    It is the very one from *before* if that says the same. Without *endpoint_records* it only
    knows whether there are endpoints.
    """
    joined = joined_endpoints(slices) if service.alias is None else ()  # an alias has none, whatever slices say
    empty = not joined
    endpoints = tuple(LocatedEndpoint(each, locate(service.namespace, each)) for each in joined if endpoint_records)
    bare = replace(service, labels={}) if service.labels else service
    if before is not None:
        same = before.empty == empty and _same(before.endpoints, endpoints)
        if same and before.declaration == declaration and before.service == bare:
            return before
    return CompiledService(bare, declaration, endpoints, empty)


def _same(left: tuple[LocatedEndpoint, ...], right: tuple[LocatedEndpoint, ...]) -> bool:
    return len(left) == len(right) and all(
        a.location is b.location and (a.endpoint is b.endpoint or a.endpoint == b.endpoint)
        for a, b in zip(left, right, strict=True)
    )


def joined_endpoints(slices: Iterable[EndpointSlice]) -> tuple[Endpoint, ...]:
    """Return the ready endpoints of a Service's slices, a pod's as one, and those of no pod once for each address.

    IPv4 and IPv6 stand in slices of their own, and so may ports; a pod in several is one
    endpoint, so that one choice holds for A, AAAA and SRV. Pods on one node's network may
    share an address and stay two.
    """
    joined: dict[object, Endpoint] = {}
    holders: dict[bytes, object] = {}  # address -> its key in joined
    for each in slices:
        for endpoint in each.endpoints:
            if not endpoint.ready:
                continue
            fresh = [address for address in endpoint.addresses if address not in holders]
            key: object = (endpoint.pod, endpoint.node)
            if endpoint.pod is None:  # who knows no pod is told by its address
                key = next((holders[each] for each in endpoint.addresses if each in holders), tuple(fresh))
            other = joined.get(key)
            if other is None:
                joined[key] = endpoint
            else:
                joined[key] = replace(
                    other,
                    addresses=tuple(dict.fromkeys((*other.addresses, *endpoint.addresses))),
                    ports=tuple(dict.fromkeys((*other.ports, *endpoint.ports))),
                )
            for address in fresh:
                holders[address] = key
    return tuple(joined.values())
