# SPDX-License-Identifier: Apache-2.0

"""From an address to objects: which have it, and whether any has an address in a block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from locator.ip import parse_address, parse_network
from locator.places.address_map import KeysByAddress, keys_at, with_moves
from tests.kit.in_memory import addresses_in


def ip(text: str) -> bytes:
    return parse_address(text)


def test_of() -> None:
    """The keys of the objects, sorted, without those that are gone."""
    empty = KeysByAddress()
    joined = [("shop/web", [], [ip("10.0.0.1")]), ("shop/api", [], [ip("10.0.0.1"), ip("fd00::1")])]
    both = with_moves(empty, joined)
    assert keys_at(both, ip("10.0.0.1")) == ("shop/api", "shop/web")
    assert keys_at(both, ip("10.0.0.2")) == keys_at(empty, ip("10.0.0.1")) == ()
    one = with_moves(both, [("shop/api", [ip("10.0.0.1"), ip("fd00::1")], [])])
    assert (keys_at(one, ip("10.0.0.1")), keys_at(one, ip("fd00::1"))) == (("shop/web",), ())
    assert keys_at(both, ip("fd00::1")) == ("shop/api",)  # what was handed out does not change
    assert with_moves(one, []) is one


addresses = st.sampled_from(
    [bytes((10, a, 0, b)) for a in (0, 1, 255) for b in (0, 1, 128)] + [ip("fd00::1"), ip("fd00:8::")]
)


@given(
    held=st.sets(addresses),
    before=st.sets(addresses),
    block=st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.1.0.128/25", "10.255.0.0/16", "11.0.0.0/8", "0.0.0.0/0",
                           "255.0.0.0/8", "fd00::/16", "fd00::/32", "fd00:8::/29", "fe00::/8", "::/0"]),
)  # fmt: skip
def test_any_within(held: set[bytes], before: set[bytes], block: str) -> None:
    """Whether any address lies in the block, after any changes."""
    network = parse_network(block)
    bits = 8 * len(network.address) - network.length
    expected = any(
        len(address) == len(network.address)
        and int.from_bytes(address) >> bits == int.from_bytes(network.address) >> bits
        for address in held
    )
    first = with_moves(KeysByAddress(), [("shop/web", [], before)])
    second = with_moves(first, [("shop/web", before, held)])
    assert second.any_within(network) == expected
    assert addresses_in(second) == held


@given(
    steps=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.lists(addresses), st.lists(addresses))), max_size=4
    )
)
def test_any_changes(steps: list[dict[str, tuple[list[bytes], list[bytes]]]]) -> None:
    """However many objects leave and join an address at once, each address has the objects that stayed or came."""
    keys, expected = KeysByAddress(), dict[bytes, set[str]]()
    for step in steps:
        keys = with_moves(keys, ((key, left, joined) for key, (left, joined) in step.items()))
        for key, (left, joined) in step.items():
            for address in left:
                expected.setdefault(address, set()).discard(key)
            for address in joined:
                expected.setdefault(address, set()).add(key)
        for address, having in expected.items():
            assert keys_at(keys, address) == tuple(sorted(having))
