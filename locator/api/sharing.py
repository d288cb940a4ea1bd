# SPDX-License-Identifier: Apache-2.0

"""One object for equal values that many objects of a cluster hold, such as the names of nodes.

A bounded number of values is known; of others there may be several. Shared dictionaries must not be changed.
"""

from __future__ import annotations

from functools import lru_cache

from locator.endpoints import Port


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
