# SPDX-License-Identifier: Apache-2.0

"""One object for equal values that many objects of a cluster hold, such as the names of nodes.

A bounded number of values is known; of others there may be several. Shared dictionaries must not be changed.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import force_setattr

from locator.endpoints import Port
from locator.model import EndpointSlice, Namespaced, Node, Object, Pod


@lru_cache(maxsize=1 << 16)  # more than the nodes, namespaces and zones of the largest clusters
def shared_text(text: str) -> str:
    """Return the one object for a text."""
    return text


@lru_cache(maxsize=1024)
def shared_ports(ports: tuple[Port, ...]) -> tuple[Port, ...]:
    """Return the one object for the ports of Services and slices."""
    return ports


def shared_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return the one object for what slices say of endpoints: mostly a zone, and a few others in old clusters."""
    return _labels(tuple(labels.items()))


@lru_cache(maxsize=1 << 14)
def _labels(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {key: shared_text(value) for key, value in items}


def share_parts(thing: Object) -> None:
    """Let an object that nobody else has seen yet share its parts with others."""
    if isinstance(thing, Namespaced):
        force_setattr(thing, "namespace", shared_text(thing.namespace))
    if isinstance(thing, Pod) and thing.node is not None:
        force_setattr(thing, "node", shared_text(thing.node))
    elif isinstance(thing, Node):
        force_setattr(thing, "name", shared_text(thing.name))
        for key, value in thing.labels.items():
            thing.labels[key] = shared_text(value)
    elif isinstance(thing, EndpointSlice):
        force_setattr(thing, "managed_by", shared_text(thing.managed_by))
        rows = thing.endpoints
        force_setattr(rows, "ports", tuple(map(shared_ports, rows.ports)))
        if rows.hostnames == rows.pods:
            force_setattr(rows, "hostnames", rows.pods)
        force_setattr(rows, "nodes", tuple([node if node is None else shared_text(node) for node in rows.nodes]))
        force_setattr(rows, "slice_labels", tuple(map(shared_labels, rows.slice_labels)))
