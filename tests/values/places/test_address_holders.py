# SPDX-License-Identifier: Apache-2.0

"""Who holds an address, as ``explain`` says it, while another thread applies a list."""

from __future__ import annotations

from locator.index import Index
from locator.model import Node, Pod
from locator.places.book_builder import BookBuilder
from locator.places.locations import Locations

ADDRESS = bytes((10, 0, 0, 1))


def pods_by_value() -> Index[str, Pod]:
    return Index(address=lambda pod: pod.addresses, node=lambda pod: ())


def test_a_pod_that_is_just_leaving() -> None:
    """The store drops the pod first, and then leaves the indices."""
    pod = Pod("shop", "web-0", (ADDRESS,))
    pods = {pod.key: pod}
    by_value = pods_by_value()
    by_value.move(pod.key, None, pod)
    builder = BookBuilder(Locations(pods=pods), {}, {}, by_value)
    builder.update_pod(pod.key, None, pod)
    assert builder.holder(ADDRESS) == "pod shop/web-0"
    del pods[pod.key]
    assert builder.holder(ADDRESS) == ""


def test_a_node_that_is_just_leaving() -> None:
    """Its location goes before its addresses."""
    node, locations = Node("a1", {"kubernetes.io/hostname": "a1"}, (ADDRESS,)), Locations()
    builder = BookBuilder(locations, {}, {}, pods_by_value())
    builder.update_node(node.name, None, node)
    assert builder.holder(ADDRESS) == "node a1"
    locations.update_node(node.name, None)
    assert builder.holder(ADDRESS) == ""
