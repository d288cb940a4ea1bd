"""Which EndpointSlices a change elsewhere concerns: by Service, by node, by pod."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from locator.model import EndpointSlice


class SliceIndex:
    """The slices of one cluster by key, and the ways to them. *by_pod* says whether that way is needed."""

    def __init__(self, *, by_pod: bool) -> None:
        self._by_pod = by_pod
        self._of: dict[str, dict[str, EndpointSlice]] = {}  # by the key of their Service, then by their own
        self._on: dict[str, set[str]] = {}  # keys, by the nodes of their endpoints
        self._with: dict[str, set[str]] = {}  # keys, by the keys of their endpoints' pods

    def take(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> None:
        """Note that a slice is *after* now, None if it is gone."""
        if before is not None and before.service_key is not None:
            row = self._of[before.service_key]
            del row[key]
            if not row:
                del self._of[before.service_key]
        if after is not None and after.service_key is not None:
            self._of.setdefault(after.service_key, {})[key] = after
        _move(self._on, key, _nodes(before), _nodes(after))
        if self._by_pod:
            _move(self._with, key, _pods(before), _pods(after))

    def of(self, service: str) -> Iterator[EndpointSlice]:
        """Yield the slices of a Service in the order of their keys."""
        row = self._of.get(service, {})
        return (row[key] for key in sorted(row))

    def on(self, node: str) -> Collection[str]:
        """Return the keys of the slices with an endpoint on *node*."""
        return self._on.get(node, ())

    def with_pod(self, pod: str) -> Collection[str]:
        """Return the keys of the slices with an endpoint that is *pod* (its key)."""
        return self._with.get(pod, ())


def kept(each: EndpointSlice, before: EndpointSlice | None) -> EndpointSlice:
    """Return a slice with the very endpoints that it had *before*, as far as they are equal."""
    if before is None:
        return each
    known = {endpoint.addresses: endpoint for endpoint in before.endpoints}
    endpoints = []
    for endpoint in each.endpoints:
        found = known.get(endpoint.addresses)
        endpoints.append(endpoint if found is None or found != endpoint else found)
    return replace(each, endpoints=tuple(endpoints))


def _nodes(each: EndpointSlice | None) -> set[str]:
    return set() if each is None else {endpoint.node for endpoint in each.endpoints if endpoint.node is not None}


def _pods(each: EndpointSlice | None) -> set[str]:
    if each is None:
        return set()
    return {f"{each.namespace}/{endpoint.pod}" for endpoint in each.endpoints if endpoint.pod is not None}


def _move(ways: dict[str, set[str]], key: str, before: set[str], after: set[str]) -> None:
    for name in before - after:
        row = ways[name]
        row.discard(key)
        if not row:
            del ways[name]
    for name in after - before:
        ways.setdefault(name, set()).add(key)
