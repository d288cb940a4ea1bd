# SPDX-License-Identifier: Apache-2.0

"""One pod or one endpoint that comes or goes moves few clients of a Service that is balanced."""

from __future__ import annotations

from statistics import mean

import pytest

from tests.oracle.steadiness import NODES, changes

MOVED = [
    # id, event, max-overload, endpoints, most of a hundred clients that lose an endpoint which stays, in the mean
    ("pod-tight", "pod comes", "1.2", 6, 2),
    ("pod", "pod comes", "1.5", 6, 2),
    ("pod-wide", "pod comes", "2", 6, 1),
    ("few-endpoints-and-one-more", "endpoint comes", "1.5", 6, 20),
    ("few-endpoints-and-one-less", "endpoint goes", "1.5", 6, 20),
    ("many-endpoints-and-one-more", "endpoint comes", "1.5", 60, 10),
    ("many-endpoints-and-one-less", "endpoint goes", "1.5", 60, 10),
]


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize(("event", "overload", "endpoints", "most"), [row[1:] for row in MOVED],
                         ids=[row[0] for row in MOVED])  # fmt: skip
def test_few_clients_lose_an_endpoint_that_stays(
    event: str, overload: str, endpoints: int, most: float, nodes: int
) -> None:
    """In uneven clusters: a pod moves few, an endpoint about as many as its part of them all; most stay."""
    found = changes(event, overload, endpoints, nodes, clusters=24)
    assert mean(one.lost for one in found) <= most
