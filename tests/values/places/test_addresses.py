# SPDX-License-Identifier: Apache-2.0

"""Addresses: how topodns reads addresses and subnets, and what it knows of the ones in a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import Network, address_text, network_text, parse_address, parse_network
from locator.model import UNKNOWN_LOCATION, Location
from locator.places.address_map import AddressMap
from locator.places.book import UNKNOWN_PLACE, AddressBook, AgreementCache, Place
from tests.kit import api_objects
from tests.kit.in_memory import snapshot_of

T = TypeVar("T")

# Addresses of few rows and few groups, so that changes meet.
ADDRESSES = st.builds(
    lambda six, group, row, host: bytes(
        (*((0xFD, *bytes(6)) if six else ()), group, *(bytes(5) if six else ()), 7, row, host)
    ),
    st.booleans(), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "plain"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("::FFFF:0a00:0001", "10.0.0.1"),
     ("::10.0.0.1", "::a00:1"), ("2001:DB8::0", "2001:db8::"), ("::1", "::1")],
)  # fmt: skip
def test_address(text: str, plain: str) -> None:
    """IPv4-mapped IPv6 is IPv4; the IPv4-compatible form is not."""
    assert address_text(parse_address(text)) == plain


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "010.0.0.1", "10.0.0.1/32", "web-0", " 10.0.0.1"])
def test_no_address(text: str) -> None:
    """A text that is not an address raises a ValueError that quotes it."""
    with pytest.raises(ValueError, match="is no IP address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.1", "10.0.0.1/32"), ("0.0.0.0/0", "0.0.0.0/0"), ("::/0", "::/0"),
     ("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("::ffff:0:0/96", "0.0.0.0/0"), ("2001:db8::/32", "2001:db8::/32")],
)  # fmt: skip
def test_block(text: str, plain: str) -> None:
    """A subnet of IPv4-mapped addresses is an IPv4 subnet."""
    assert network_text(parse_network(text)) == plain


@pytest.mark.parametrize(
    ("text", "words"), [("10.0.0.1/8", "host bits"), ("10.0.0.0/33", "no CIDR"), ("x/8", "no CIDR")]
)
def test_no_block(text: str, words: str) -> None:
    """A subnet with host bits is an error: topodns does not guess what was meant."""
    with pytest.raises(ValueError, match=words):
        parse_network(text)


def test_a_whole_family_is_nowhere() -> None:
    """RFC 7871, 7.1.2: /0 does not locate a client, even if the cluster has a single node."""
    book = snapshot_of([api_objects.node("a1", cidrs=["10.0.0.0/8"])]).addresses
    assert book.holder(parse_network("10.0.0.0/9"))
    for text in ("0.0.0.0/0", "::/0", "::ffff:0:0/96"):
        assert book.locate_network(parse_network(text)) is UNKNOWN_PLACE


# Blocks, read naively


def place_at(location: Location) -> Place:
    return Place(location, "pod", location.node or "")


class Naive:
    """The content of an address book in plain dictionaries, searched from end to end."""

    def __init__(self, subnets: Mapping[Network, Mapping[str, str]]) -> None:
        self.subnets, self.places, self.cidrs = subnets, dict[bytes, Place](), dict[Network, Place]()

    def change(self, places: Mapping[bytes, Place | None], cidrs: Mapping[Network, Place | None]) -> None:
        for key, place in (*places.items(), *cidrs.items()):
            kept: dict[Any, Place] = self.cidrs if isinstance(key, Network) else self.places
            if place is None:
                kept.pop(key, None)
            else:
                kept[key] = place

    def agreed(self, block: Network) -> tuple[dict[str, str], str | None]:
        """Return the labels that all known parts of a block share, and the node if all are on one."""
        speaking = [place.location for place in narrowing(self.cidrs, block)]
        speaking += [
            place.location
            for address, place in self.places.items()
            if contains(block, whole(address)) and place.location.known and not around(self.cidrs, whole(address))
        ]
        nodes = {part.node for part in speaking}
        first, *rest = [part.labels for part in speaking] or [*narrowing(self.subnets, block)] or [{}]
        labels = {key: value for key, value in first.items() if all(row.get(key) == value for row in rest)}
        return labels, nodes.pop() if len(nodes) == 1 else None


def whole(address: bytes) -> Network:
    return Network(address, 8 * len(address))


def contains(outer: Network, inner: Network) -> bool:
    if len(outer.address) != len(inner.address) or outer.length > inner.length:
        return False
    shift = 8 * len(outer.address) - outer.length
    return int.from_bytes(outer.address) >> shift == int.from_bytes(inner.address) >> shift


def around(blocks: Mapping[Network, object], inner: Network) -> list[Network]:
    """Return the subnets that contain or equal a block, the longest first."""
    return sorted((block for block in blocks if contains(block, inner)), key=lambda block: -block.length)


def narrowing(blocks: Mapping[Network, T], block: Network) -> list[T]:
    """Return the value of the longest subnet around a block, and those of the subnets within it."""
    within = [each for each in blocks if contains(block, each) and each != block]
    return [blocks[each] for each in (*around(blocks, block)[:1], *within)]


# Few addresses, so that they meet: 16 bits count, of which one tells apart what has little in common.
def address_of(family: int, number: int) -> bytes:
    far, near = bytes((number >> 8 & 1,)), (number >> 9 << 8 | number & 255).to_bytes(2)
    return bytes((10,)) + far + near if family == 4 else bytes((0xFD,)) + bytes(6) + far + bytes(6) + near


def block_of(family: int, number: int, length: int) -> Network:
    address, shift = address_of(family, number), 8 * family - length
    return Network((int.from_bytes(address) >> shift << shift).to_bytes(family), length)


families = st.sampled_from((4, 4, 16))
numbers = st.builds(
    lambda high, low: high << 8 | low,
    st.sampled_from((0, 1, 2, 3, 128)),
    st.sampled_from((0, 1, 2, 127, 128, 200, 255)),
)
addresses = st.builds(address_of, families, numbers)
blocks = st.builds(
    lambda family, number, bits: block_of(
        family, number, 8 * family - (bits if family == 4 or bits < 16 else 4 * bits)
    ),
    families,
    numbers,
    st.sampled_from((1, 2, 6, 7, 8, 8, 9, 10, 15, 16, 20, 31)),
)
LOCATIONS = (
    *[Location(f"n{number}", {"host": str(number), "zone": "ab"[number % 2], "region": "r"}) for number in range(4)],
    Location("bare", {}),
    Location(None, {"zone": "a"}),
)
placed = st.sampled_from((*map(place_at, LOCATIONS), Place(UNKNOWN_LOCATION, "unknown", forwarder=True), None))
changes = st.tuples(
    st.dictionaries(addresses, placed, max_size=8),
    st.dictionaries(blocks, st.sampled_from((*map(place_at, LOCATIONS[:5]), None, None)), max_size=2),
)
steady = settings(max_examples=120)


@steady
@given(
    subnets=st.dictionaries(blocks, st.sampled_from(({"zone": "a"}, {"zone": "b", "region": "r"})), max_size=4),
    steps=st.lists(changes, min_size=1, max_size=6),
    asked=st.lists(blocks, min_size=1, max_size=8),
)
def test_a_block_is_where_all_that_is_known_of_it_agrees(
    subnets: dict[Network, dict[str, str]],
    steps: Sequence[tuple[dict[bytes, Place | None], dict[Network, Place | None]]],
    asked: list[Network],
) -> None:
    """After any changes, each address book, older ones too, locates a block by its own content."""
    naive, book, known = Naive(subnets), AddressBook(subnets=subnets), AgreementCache()
    books = [(book, dict(zip(asked, map(naive.agreed, asked), strict=True)))]
    for places, cidrs in steps:
        naive.change(places, cidrs)
        book = book.with_changes(places, cidrs)
        books.append((book, dict(zip(asked, map(naive.agreed, asked), strict=True))))
        for _ in range(2):
            assert_agreed(*books[-1], known)
    for each in (*reversed(books), *books):
        assert_agreed(*each, known)


Expected = dict[Network, tuple[dict[str, str], str | None]]


def assert_agreed(book: AddressBook, expected: Expected, known: AgreementCache) -> None:
    for block, (labels, node) in expected.items():
        for remembered in (None, known, known):
            place = book.locate_network(block, remembered)
            assert (network_text(block), place.location.labels, place.location.node) == (
                network_text(block),
                labels,
                node,
            )
            if not place.location.known:
                assert place is UNKNOWN_PLACE


@given(
    before=st.dictionaries(ADDRESSES, st.integers(0, 2), max_size=30),
    changes=st.dictionaries(ADDRESSES, st.none() | st.integers(0, 2), max_size=30),
    other=st.dictionaries(ADDRESSES, st.integers(0, 2), max_size=30),
)
def test_changes_since_lead_from_one_map_to_another(
    before: dict[bytes, int], changes: dict[bytes, int | None], other: dict[bytes, int]
) -> None:
    """The changes, applied to one map, give the other, whether or not one was made from the other."""
    first, foreign = AddressMap[int]().with_changes(before), AddressMap[int]().with_changes(other)
    for earlier, later in (
        (first, first.with_changes(changes)),
        (first.with_changes(changes), first),
        (first, foreign),
    ):
        flat = dict(earlier.items())
        for address, value in later.changes_since(earlier):
            assert flat.get(address) is not value
            if value is None:
                del flat[address]
            else:
                flat[address] = value
        assert flat == dict(later.items())
