"""Which EndpointSlices a change elsewhere concerns: by Service, by node, by pod."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from locator.index import Index
from locator.model import EndpointSlice

SliceIndex = Index[str, EndpointSlice]

# The ways to a slice.
SERVICE, NODE, POD = "service", "node", "pod"


def slice_index(*, by_pod: bool) -> SliceIndex:
    """Return an index of slices by the keys of their Services and the nodes and, if asked for, pods of their endpoints.

    Services and pods are known by their keys.
    """
    ways = {SERVICE: _services, NODE: _nodes}
    return Index(**ways, **({POD: _pods} if by_pod else {}))


def with_same_endpoints(fresh: EndpointSlice, before: EndpointSlice | None) -> EndpointSlice:
    """Return a slice with the very endpoints that it had *before*, as far as they are equal."""
    if before is None:
        return fresh
    known = {endpoint.addresses: endpoint for endpoint in before.endpoints}
    endpoints = []
    for endpoint in fresh.endpoints:
        found = known.get(endpoint.addresses)
        endpoints.append(endpoint if found is None or found != endpoint else found)
    return replace(fresh, endpoints=tuple(endpoints))


def _services(endpoint_slice: EndpointSlice) -> Iterable[str]:
    return () if endpoint_slice.service is None else (f"{endpoint_slice.namespace}/{endpoint_slice.service}",)


def _nodes(endpoint_slice: EndpointSlice) -> Iterable[str]:
    return [endpoint.node for endpoint in endpoint_slice.endpoints if endpoint.node is not None]


def _pods(endpoint_slice: EndpointSlice) -> Iterable[str]:
    return [
        f"{endpoint_slice.namespace}/{endpoint.pod}"
        for endpoint in endpoint_slice.endpoints
        if endpoint.pod is not None
    ]
