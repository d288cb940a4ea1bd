# SPDX-License-Identifier: Apache-2.0

"""What attackers send: well-formed or not, always meant to cost more than it should."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from bench.attacks.targets import LARGEST, AttackedServer, endpoint_address, endpoint_name
from bench.cluster import NODES, pod_cidr
from tests.kit.dns_queries import ecs, encoded, framed, opt, option, query

NUMBER = 32_768  # different packets of a flood, sent again and again: more than a server remembers
DATAGRAM = 1_472  # octets that fit an Ethernet frame
LONGEST_DATAGRAM, LONGEST_MESSAGE = 65_507, 65_535
UNKNOWN = 65_001  # an EDNS option that nobody knows
COOKIE = 10
PRIVATE = 0xFF01  # a type of record whose data nobody reads
SENT_AT_ONCE = 65_536  # octets that a connection sends at a time, at least
STREAMS = 100  # of an HTTP/2 connection

Packets = Callable[[AttackedServer], Sequence[bytes]]
Words = Callable[[AttackedServer], bytes]


def usual_names(target: AttackedServer) -> Sequence[bytes]:
    """Return a query for each of some names, the same again and again."""
    return [query(name) for name in target.services]


def with_options(size: int) -> Packets:
    """Return queries of *size* octets, nearly all of them empty EDNS options."""

    def packets(target: AttackedServer) -> Sequence[bytes]:
        room = size - len(query(target.services[0], edns=opt()))
        return [query(target.services[0], edns=opt(*[option(UNKNOWN)] * (room // 4)))]

    return packets


def with_long_names(target: AttackedServer) -> Sequence[bytes]:
    """Return a query with 15 records, each with a name of 127 labels, and an OPT record."""
    record = encoded([b"a"] * 127) + struct.pack("!HHIH", 1, 1, 0, 0)
    return [query(target.services[0], edns=record * 15 + opt(), counts=(1, 0, 0, 16))]


def with_pointers(target: AttackedServer) -> Sequence[bytes]:
    """Return a query with 16 records; to read the names of 14 of them takes 100 compression pointers each."""
    message = query(target.services[0], counts=(1, 0, 0, 16))
    chain, before = b"", 12  # the name of the question
    for number in range(100):
        chain += b"\1a" + _pointer(before)
        before = len(message) + 12 + 4 * number
    message += _pointer(12) + struct.pack("!HHIH", PRIVATE, 1, 0, len(chain)) + chain
    return [message + (_pointer(before) + struct.pack("!HHIH", 1, 1, 0, 0)) * 14 + opt()]


def with_many_questions(target: AttackedServer) -> Sequence[bytes]:
    """Return a query that announces 65,535 questions, and has as many as fit."""
    question = query(target.services[0])[12:]
    return [query(target.services[0], counts=(65_535,) * 4, edns=question * (DATAGRAM // len(question) - 1))]


def with_cookies(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for names that everybody asks for, each with another DNS cookie: no two have the same octets."""
    pick = random.Random(1)
    return [
        query(pick.choice(target.services), number=number, edns=opt(option(COOKIE, pick.randbytes(8))))
        for number in range(NUMBER)
    ]


def new_names(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for names that do not exist, all different."""
    pick, parent = random.Random(2), target.services[0].partition(".")[2]
    return [query(f"{pick.getrandbits(64):016x}.{parent}", number=number) for number in range(NUMBER)]


def zonal_names(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for the large Service by zones that do not exist, all different: most get all endpoints."""
    pick = random.Random(3)

    def name() -> str:
        return f"{pick.getrandbits(64):016x}.{pick.choice(('prefer', 'prefer', 'pin'))}._zone.{target.large}"

    return [query(name(), pick.choice(("A", "SRV")), number=number, edns=opt()) for number in range(NUMBER)]


def endpoint_names(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for endpoints of the large Service, in random case and of several types."""
    pick = random.Random(4)
    return [
        query(_cased(endpoint_name(number % LARGEST), pick), pick.choice(("A", "AAAA", "SRV", "ANY")), number=number)
        for number in range(NUMBER)
    ]


def large_answers(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for the large Service itself, in random case and of several types."""
    pick = random.Random(5)
    return [
        query(_cased(target.large, pick), pick.choice(("A", "AAAA", "SRV", "ANY", "TXT")), number=number, edns=opt())
        for number in range(NUMBER)
    ]


def reverse_names(target: AttackedServer) -> Sequence[bytes]:
    """Return queries for the names of addresses, of endpoints and of nobody."""
    pick = random.Random(6)
    addresses = [endpoint_address(pick.randrange(10 * LARGEST)).split(".") for _ in range(NUMBER)]
    return [query(".".join(octets[::-1]) + ".in-addr.arpa", "PTR") for octets in addresses]


def random_subnets(target: AttackedServer) -> Sequence[bytes]:
    """Return a forwarder's queries for the large Service, each for another client: in random order, on all nodes."""
    pick = random.Random(7)
    return [
        query(target.large, number=number, edns=opt(ecs(f"{pod_cidr(pick.randrange(NODES))}.{pick.randrange(256)}")))
        for number in range(NUMBER)
    ]


def stream_of(packets: Packets) -> Words:
    """Return the packets as a connection sends them, one after another, until there are enough octets."""

    def words(target: AttackedServer) -> bytes:
        said = bytearray()
        for packet in packets(target):
            said += framed(packet)
        return bytes(said) * (-(-SENT_AT_ONCE // len(said)))

    return words


def tiny(target: AttackedServer) -> bytes:
    """Return as many queries as fit 64 KiB: each has the root's name and nothing else."""
    message = framed(query(""))
    return message * (SENT_AT_ONCE // len(message))


def nothing(target: AttackedServer) -> bytes:
    """Return nothing."""
    return b""


def usual(target: AttackedServer) -> bytes:
    """Return a query that everybody sends."""
    return framed(query(target.services[0]))


def unread(target: AttackedServer) -> bytes:
    """Return queries for the longest answer."""
    return framed(query(target.large, edns=opt())) * 100


def begun(target: AttackedServer) -> bytes:
    """Return the longest message without its last octet."""
    return struct.pack("!H", LONGEST_MESSAGE) + bytes(LONGEST_MESSAGE - 1)


def get(path: str, *, times: int = 1) -> Words:
    """Return an HTTP request, *times* over."""
    return lambda target: f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * times


def explained(target: AttackedServer) -> bytes:
    """Return a request to explain an answer of the large Service."""
    return get(f"/api/v1/explain?name={target.large}&client=10.64.0.2")(target)


def endless_header(target: AttackedServer) -> bytes:
    """Return a request whose header does not end."""
    return b"GET /metrics HTTP/1.1\r\nX: " + b"x" * SENT_AT_ONCE


def http2(*, window: int, reset: bool) -> Words:
    """Return an HTTP/2 connection (RFC 9113) with many requests for /metrics; the client takes *window* octets of each.

    If *reset*, the client gives up each request as soon as it has made it (CVE-2023-44487).
    """
    # HPACK (RFC 7541): method GET and scheme http by their index, path and authority with literal values.
    header = b"\x82\x86\x04\x08/metrics\x01\x09localhost"

    def words(target: AttackedServer) -> bytes:
        said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, struct.pack("!HI", 4, window))
        for stream in range(1, 2 * STREAMS * (50 if reset else 1), 2):
            said += _frame(1, 0x5, stream, header)  # HEADERS, which end the headers and the stream
            if reset:
                said += _frame(3, 0, stream, struct.pack("!I", 8))  # RST_STREAM: CANCEL
        return said

    return words


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + struct.pack("!BBI", kind, flags, stream) + payload


def _pointer(offset: int) -> bytes:
    return struct.pack("!H", 0xC000 | offset)


def _cased(name: str, pick: random.Random) -> str:
    return "".join(pick.choice((letter.upper(), letter)) for letter in name)
