# SPDX-License-Identifier: Apache-2.0

"""Any octets get a sound reply, or silence: broken queries, random octets, and any content of an option."""

from __future__ import annotations

import struct
from functools import cache

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit import api_objects, dns_queries, random_cluster
from tests.kit.dns_queries import CLIENT_OPTION, opt, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.random_cluster import UNKNOWN_CLIENT, World
from tests.kit.random_queries import Asked, asked, replied, without_header
from tests.kit.replies import after_name, assert_same, assert_sound, parsed
from tests.kit.unshrunk import unshrunk

FLAGS = {"client-option": CLIENT_OPTION, "nsid": "off"}
WORLDS = st.integers(1, 6)


def size_allowed(wire: bytes) -> int:
    """Return how many octets a valid query allows a UDP reply."""
    end = after_name(wire, 12) + 4
    return min(max(512, int.from_bytes(wire[end + 3 : end + 5])), 1232) if len(wire) > end else 512


def assert_sound_reply(responder: CountedResponder, asked: Asked) -> None:
    """The reply is sound for the DNS message after a PROXY header; remembered and computed replies are the same."""
    reply, left = replied(responder, asked), without_header(responder, asked)
    if left is None:
        assert reply is None
    else:
        limit = size_allowed(left[0]) if reply is not None and not reply[3] & 15 else None
        assert_sound(asked._replace(wire=left[0]), reply, limit=limit)
    computed = replied(responder, asked, compute=True)
    assert_same(reply, computed, replied(responder, asked._replace(proto="tcp"), compute=True))


@cache
def responder_about(world: int) -> CountedResponder:
    """Return a responder about a cluster, which all examples share: what one leaves harms no other."""
    return responder_of(api_objects.listed(random_cluster.world(world).items), {**FLAGS, "proxy-protocol": True})


@st.composite
def broken(draw: st.DrawFn, world: World) -> Asked:
    """A query with changes: flipped bits, cut or added octets, wrong counts, wrong pointers."""
    each = draw(asked(world))
    wire = bytearray(each.wire)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(wire) - 1)))
        change = draw(st.integers(0, 8))
        if change == 0:
            wire[at : at + 1] = bytes((draw(st.integers(0, 255)),))
        elif change == 1:
            del wire[at:]
        elif change == 2:
            wire += draw(st.binary(min_size=1, max_size=40))
        elif change == 3 and len(wire) > 12:  # a count
            wire[4 + draw(st.integers(0, 7))] = draw(st.sampled_from((0, 1, 2, 255)))
        elif change == 4:  # a pointer
            wire[at : at + 2] = struct.pack("!H", 0xC000 | draw(st.integers(0, 80)))
        elif change == 5:  # a label of 64, or of a reserved kind
            wire[at : at + 1] = bytes((draw(st.sampled_from((63, 64, 127, 128, 191, 192, 255))),))
        elif change == 6 and len(wire) > 12:  # one more record, with its count
            record = draw(st.sampled_from((opt(), opt(name=b"\1a\0"), b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4abcd", b"\0" * 11)))
            wire += record
            wire[draw(st.sampled_from((7, 9, 11)))] += 1
        elif change == 7:
            wire[at:at] = draw(st.binary(min_size=1, max_size=4))
        elif change == 8 and len(wire) > 12:
            wire[2:4] = draw(st.binary(min_size=2, max_size=2))
    header = bytearray(each.header)
    if header:
        at = draw(st.integers(0, len(header) - 1))
        change = draw(st.integers(0, 3))
        if change == 0:
            header[at] = draw(st.integers(0, 255))
        elif change == 1:
            del header[at:]
        elif change == 2:  # another command, family or length
            header[draw(st.sampled_from((12, 13, 15)))] = draw(st.integers(0, 255))
    return each._replace(wire=bytes(wire), header=bytes(header))


def queries_about(number: int) -> st.SearchStrategy[list[Asked]]:
    world = random_cluster.world(number)
    return st.lists(asked(world) | broken(world), min_size=1, max_size=4)


@settings(unshrunk, max_examples=200)
@given(drawn=WORLDS.flatmap(lambda number: st.tuples(st.just(number), queries_about(number))))
def test_broken_queries_get_a_sound_reply_or_silence(drawn: tuple[int, list[Asked]]) -> None:
    """RFC 1035, 4.1.1: FORMERR if the header is whole, otherwise silence; never an exception."""
    world, queries = drawn
    for each in queries:
        assert_sound_reply(responder_about(world), each)


@settings(max_examples=200)
@given(head=st.binary(max_size=12), tail=st.binary(max_size=80), proto=st.sampled_from(("udp", "tcp")))
@example(head=b"", tail=b"", proto="udp")
@example(head=b"\0" * 12, tail=b"", proto="udp")
@example(head=b"\0\0\0\0\0\1\0\0\0\0\0\0", tail=b"\1a" * 127 + b"\0\0\1\0\1", proto="udp")
@example(head=b"\0\0\0\0\0\1\0\0\0\0\0\0", tail=b"\1a" * 128 + b"\0\0\1\0\1", proto="udp")
def test_any_octets_get_a_sound_reply_or_silence(head: bytes, tail: bytes, proto: str) -> None:
    """The same for random octets."""
    each = Asked(head + tail, UNKNOWN_CLIENT, proto)
    assert_sound_reply(responder_about(1), each)


@settings(max_examples=100)
@given(
    data=st.binary(max_size=40),
    code=st.sampled_from((3, 8, 8, 8, 10, CLIENT_OPTION)),
    source=st.sampled_from((UNKNOWN_CLIENT, random_cluster.FORWARDER)),
)
def test_any_content_of_an_option_gets_a_sound_reply(data: bytes, code: int, source: str) -> None:
    """RFC 7871, 7.1.1: a well-formed client subnet is echoed; for another the reply is FORMERR with an OPT."""
    wire = query("s0.shop.svc.cluster.local", edns=opt(dns_queries.option(code, data)))
    reply = replied(responder_about(1), Asked(wire, source, "udp"))
    assert_sound(Asked(wire, source, "udp"), reply, limit=1232)
    read = parsed(reply)
    assert read.edns == 0
    assert (read.rcode() == dns.rcode.FORMERR) == (code == 8 and not well_formed(data))


def well_formed(data: bytes) -> bool:
    """Whether a client subnet is well-formed in a query (RFC 7871, section 6)."""
    if len(data) < 4 or data[3] != 0:
        return False
    size = {0: 0, 1: 4, 2: 16}.get(int.from_bytes(data[:2]))
    source, address = data[2], data[4:]
    if size is None or source > 8 * size or len(address) != -(-source // 8):
        return False
    return int.from_bytes(address) % (1 << (-source % 8)) == 0
