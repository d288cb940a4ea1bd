# SPDX-License-Identifier: Apache-2.0

"""Endpoints of a slice, kept by field, say what the same endpoints as records say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.endpoints import Endpoint, Hints, Port, SliceEndpoints, compact

PORTS = (Port("http", 80),)
# The octets of one address may lie across two others: 10.0.0.10 and 0.0.10.0 in a row hold 0.10.0.0.
IPV4 = [bytes(address) for address in ((10, 0, 0, 10), (0, 0, 10, 0), (0, 10, 0, 0), (10, 0, 0, 0))]
ADDRESSES = [*IPV4, bytes(16), bytes(15) + b"\1", bytes(8) + b"\xff\xff" + bytes(6)]
names = st.sampled_from((None, "a", "b"))


def rows_of(addresses: st.SearchStrategy[tuple[bytes, ...]]) -> st.SearchStrategy[tuple[Endpoint, ...]]:
    endpoint = st.builds(
        Endpoint,
        addresses,
        st.sampled_from((PORTS, PORTS, ())),
        hostname=names,
        node=names,
        slice_labels=st.sampled_from(({}, {"zone": "a"}, {"zone": "b", "rack": "1"})),
        ready=st.booleans(),
        pod=names,
        hints=st.sampled_from((None, None, Hints(zones=("a",)))),
        cluster=st.sampled_from((None, None, "", "east")),
        terminating=st.booleans(),
        target_node=names,
        pod_namespace=st.sampled_from((None, None, "lab")),
    )
    return st.lists(endpoint, max_size=6).map(tuple)


one_address = st.sampled_from(IPV4).map(lambda address: (address,))
some_addresses = st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=3, unique=True).map(tuple)
rows = rows_of(one_address) | rows_of(some_addresses)

Records = tuple[Endpoint, ...]

# What is asked of endpoints that are kept by field, and what the records say.
Question = tuple[Callable[[SliceEndpoints], Any], Callable[[Records], Any]]
EACH = (*ADDRESSES, b"")
QUESTIONS: dict[str, Question] = {
    "len": (len, len),
    "each": (tuple, lambda records: records),
    "by position": (lambda packed: tuple(packed[at] for at in range(len(packed))), lambda records: records),
    "nodes": (lambda packed: list(packed.nodes), lambda records: [one.node for one in records]),
    "not ready": (lambda packed: any(packed.unready), lambda records: not all(one.ready for one in records)),
    "hints": (lambda packed: bool(packed.hints), lambda records: any(one.hints for one in records)),
    "dying": (lambda packed: bool(packed.terminating), lambda records: any(one.terminating for one in records)),
    "clusters": (lambda packed: set(packed.clusters) or {None},
                 lambda records: {one.cluster for one in records} or {None}),
    "targets": (lambda packed: packed.target_node_names(),
                lambda records: [one.target_node for one in records if one.target_node]),
    "pods": (lambda packed: packed.pod_keys("shop"), lambda records: [one.pod_key("shop") for one in records]),
    "of a pod": (lambda packed: packed.of_pod("shop", "shop/a"),
                 lambda records: [one for one in records if one.pod_key("shop") == "shop/a"]),
    "addresses of each": (lambda packed: packed.addresses_of_each(),
                          lambda records: [one.addresses for one in records]),
    "all addresses": (lambda packed: packed.all_addresses(),
                      lambda records: [address for one in records for address in one.addresses]),
    "ready addresses": (lambda packed: packed.ready_addresses(),
                        lambda records: [address for one in records if one.ready for address in one.addresses]),
    "addresses on a node": (
        lambda packed: [packed.addresses_on(node) for node in "abc"],
        lambda records: [[address for one in records if node in (one.node, one.target_node)
                          for address in one.addresses] for node in "abc"]),
    "with an address": (
        lambda packed: [packed.with_address(address) for address in EACH],
        lambda records: [[one for one in records if address in one.addresses] for address in EACH]),
    "nodes with an address": (
        lambda packed: [packed.nodes_with(address) for address in EACH],
        lambda records: [[one.node for one in records if address in one.addresses] for address in EACH]),
}  # fmt: skip


@given(endpoints=rows)
def test_columns_say_what_records_say(endpoints: Records) -> None:
    """Whatever is asked of them; and a state file brings them back."""
    packed = compact(endpoints)
    for what, (ask, expected) in QUESTIONS.items():
        assert ask(packed) == expected(endpoints), what
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=SliceEndpoints) == packed


@given(one=rows, other=rows)
def test_columns_are_equal_if_the_endpoints_are(one: Records, other: Records) -> None:
    """The store takes a slice that is sent again, unchanged, for no change."""
    assert (compact(one) == compact(other)) is (one == other)
    assert compact(one) == compact(list(one))


@pytest.mark.parametrize(
    ("name", "read"),
    [
        pytest.param("a\nb", "a b", id="a name that is none"),
        pytest.param("\n", " ", id="a line end"),
        pytest.param("", None, id="an empty name"),
    ],
)
def test_a_name_that_is_none_disturbs_no_other(name: str, read: str | None) -> None:
    """Kubernetes writes valid names alone; whoever writes others harms his own endpoint."""
    first, second = compact([Endpoint((IPV4[0],), pod=name), Endpoint((IPV4[1],), pod="a")])
    assert (first.pod, second.pod) == (read, "a")


@given(one=rows, other=rows)
def test_differing_addresses(one: Records, other: Records) -> None:
    """An address is named if it has other endpoints than before."""
    before, after = compact(one), compact(other)
    named = set(before.differing_addresses(after))
    for address in ADDRESSES:
        had, has = before.with_address(address), after.with_address(address)
        if any(endpoint not in has for endpoint in had) or any(endpoint not in had for endpoint in has):
            assert address in named
    distinct = compact({row.addresses: row for row in one}.values())
    assert not [*distinct.differing_addresses(distinct)]
