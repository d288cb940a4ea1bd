# SPDX-License-Identifier: Apache-2.0

"""From an address to objects: which have it, and whether any has an address in a block."""

from __future__ import annotations

import ipaddress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from locator.ip import parse_address, parse_network
from locator.places.address_map import KeysByAddress, keys_at, with_moves
from tests.kit.in_memory import addresses_in


def ip(text: str) -> bytes:
    return parse_address(text)


addresses = st.sampled_from(
    [bytes((10, a, 0, b)) for a in (0, 1, 255) for b in (0, 1, 128)] + [ip("fd00::1"), ip("fd00:8::")]
)
BLOCKS = ["10.0.0.0/8", "10.1.0.0/16", "10.1.0.128/25", "10.255.0.0/16", "11.0.0.0/8", "0.0.0.0/0", "255.0.0.0/8",
          "fd00::/16", "fd00::/32", "fd00:8::/29", "fe00::/8", "::/0"]  # fmt: skip


@given(
    steps=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.lists(addresses), st.lists(addresses))), max_size=4
    ),
    block=st.sampled_from(BLOCKS),
)
def test_any_changes(steps: list[dict[str, tuple[list[bytes], list[bytes]]]], block: str) -> None:
    """However many objects leave and join an address at once, each address has the objects that stayed or came.

    What was handed out before does not change.
    """
    keys, having, known = KeysByAddress(), dict[bytes, set[str]](), list[tuple[KeysByAddress, dict[bytes, Any]]]()
    for step in steps:
        keys = with_moves(keys, ((key, left, joined) for key, (left, joined) in step.items()))
        for key, (left, joined) in step.items():
            for address in left:
                having.setdefault(address, set()).discard(key)
            for address in joined:
                having.setdefault(address, set()).add(key)
        known.append((keys, {address: tuple(sorted(held)) for address, held in having.items()}))
    for after, expected in known:
        assert {address: keys_at(after, address) for address in expected} == expected
        held = {address for address in expected if expected[address]}
        assert addresses_in(after) == held
        around = ipaddress.ip_network(block)
        assert after.any_within(parse_network(block)) == any(ipaddress.ip_address(one) in around for one in held)
    assert with_moves(keys, []) is keys
