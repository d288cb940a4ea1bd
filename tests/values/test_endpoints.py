# SPDX-License-Identifier: Apache-2.0

"""Endpoints in rows say what the same endpoints as records say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.endpoints import (
    Endpoint,
    EndpointRows,
    Endpoints,
    Hints,
    Port,
    addresses_on,
    all_addresses,
    all_ready,
    any_hints,
    differing_addresses,
    in_rows,
    nodes_of,
    nodes_with,
    ready_addresses,
    with_address,
)

PORTS = (Port("http", 80),)
# The octets of one address may lie across two others: 10.0.0.10 and 0.0.10.0 in a row hold 0.10.0.0.
ADDRESSES = [bytes(address) for address in ((10, 0, 0, 10), (0, 0, 10, 0), (0, 10, 0, 0), (10, 0, 0, 0))]
names = st.sampled_from((None, "a", "b"))
rows = st.lists(
    st.builds(
        Endpoint,
        st.sampled_from(ADDRESSES).map(lambda address: (address,)),
        st.just(PORTS),
        hostname=names,
        node=names,
        slice_labels=st.sampled_from(({}, {"zone": "a"}, {"zone": "b", "rack": "1"})),
        ready=st.booleans(),
        pod=names,
        hints=st.sampled_from((None, None, Hints(zones=("a",)))),
    ),
    min_size=1,
    max_size=6,
).map(tuple)

QUESTIONS: list[Callable[[Endpoints], Any]] = [
    len,
    list,
    lambda endpoints: [endpoints[position] for position in range(len(endpoints))],
    lambda endpoints: list(nodes_of(endpoints)),
    all_ready,
    any_hints,
    lambda endpoints: list(ready_addresses(endpoints)),
    lambda endpoints: list(all_addresses(endpoints)),
    lambda endpoints: [addresses_on(endpoints, node) for node in "abc"],
    lambda endpoints: [with_address(endpoints, address) for address in (*ADDRESSES, bytes(16), b"")],
    lambda endpoints: [nodes_with(endpoints, address) for address in (*ADDRESSES, bytes(16), b"")],
]


@given(endpoints=rows)
def test_rows_say_what_records_say(endpoints: tuple[Endpoint, ...]) -> None:
    """Whatever is asked of them; and a state file brings them back."""
    packed = in_rows(endpoints)
    assert isinstance(packed, EndpointRows)
    for ask in QUESTIONS:
        assert ask(packed) == ask(endpoints)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=Endpoints) == packed


@given(one=rows, other=rows)
def test_rows_are_equal_if_the_endpoints_are(one: tuple[Endpoint, ...], other: tuple[Endpoint, ...]) -> None:
    """The store takes a slice that is sent again, unchanged, for no change."""
    assert (in_rows(one) == in_rows(other)) is (one == other)
    assert (in_rows(one) == other) is (other == in_rows(one)) is (one == other)


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param((), id="none"),
        pytest.param((Endpoint((ADDRESSES[0], ADDRESSES[1])),), id="two addresses"),
        pytest.param((Endpoint((ADDRESSES[0],)), Endpoint((bytes(16),))), id="two families"),
        pytest.param((Endpoint((ADDRESSES[0],)), Endpoint((ADDRESSES[1],), PORTS)), id="other ports"),
        pytest.param((Endpoint((ADDRESSES[0],), pod="a\nb"),), id="a name that is none"),
        pytest.param((Endpoint((ADDRESSES[0],), pod=""), Endpoint((ADDRESSES[1],), pod="a")), id="an empty name"),
        pytest.param((Endpoint((ADDRESSES[0],), hostname="\n"), Endpoint((ADDRESSES[1],))), id="a line end"),
    ],
)
def test_what_does_not_fit_stays_records(endpoints: tuple[Endpoint, ...]) -> None:
    """It is rare: Kubernetes writes one address for each endpoint, and valid names."""
    assert in_rows(endpoints) is endpoints or in_rows(endpoints) == endpoints
    assert not isinstance(in_rows(endpoints), EndpointRows)


@given(one=rows, other=rows)
def test_differing_addresses(one: tuple[Endpoint, ...], other: tuple[Endpoint, ...]) -> None:
    """An address is named if it has other endpoints than before, in rows as in records."""
    for before, after in ((one, other), (in_rows(one), in_rows(other)), (in_rows(one), other)):
        named = set(differing_addresses(before, after))
        for address in ADDRESSES:
            had, has = with_address(before, address), with_address(after, address)
            if any(endpoint not in has for endpoint in had) or any(endpoint not in had for endpoint in has):
                assert address in named
    distinct = in_rows(tuple({row.addresses: row for row in one}.values()))
    assert not [*differing_addresses(distinct, distinct)]
