# SPDX-License-Identifier: Apache-2.0

"""What kube-proxy makes of hints, written by hand after ``CategorizeEndpoints`` of Kubernetes 1.36 (pkg/proxy)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.kit.api_objects import ZONE

Item = dict[str, Any]


def endpoints_on(node: Item, slices: Iterable[Item], *, family: str = "IPv4") -> set[str]:
    """Return the addresses to which kube-proxy on *node* sends what comes for a Service's cluster IP of a *family*.

    *slices* are all EndpointSlices of the Service, which all have the same ports.
    """
    ready = [
        endpoint
        for one in slices
        if one["addressType"] == family
        for endpoint in one["endpoints"]
        if endpoint.get("conditions", {}).get("ready") is not False
    ]
    name, zone = node["metadata"]["name"], node["metadata"].get("labels", {}).get(ZONE, "")
    by_node = _hinted_for(name, [_names(endpoint, "forNodes") for endpoint in ready])
    by_zone = _hinted_for(zone, [_names(endpoint, "forZones") for endpoint in ready])
    used = by_node or by_zone or [True] * len(ready)
    return {endpoint["addresses"][0] for endpoint, taken in zip(ready, used, strict=True) if taken}


def _names(endpoint: Mapping[str, Any], field: str) -> list[str]:
    return [entry["name"] for entry in (endpoint.get("hints") or {}).get(field) or ()]


def _hinted_for(name: str, hints: Sequence[Sequence[str]]) -> list[bool]:
    """Return which endpoints are for *name*; empty if that does not count: some has no hint, or none is for it."""
    taken = [name in names for names in hints]
    return taken if all(hints) and any(taken) else []
