# SPDX-License-Identifier: Apache-2.0

"""The wire: each row of the table, on every path that a query can take."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import dns.message
import dns.name
import dns.rdata
import pytest

from dnsserver.net.udp import QUERY_SIZE
from tests.kit import api_objects
from tests.kit.dns_queries import CD, QR, RD, TC, opt, option, query
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import after_name, assert_same, assert_sound, options_of, parts_of
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_cluster import (
    AA,
    CLUSTER,
    EXTENDED_ERROR,
    FLAGS,
    FREE,
    NXDOMAIN,
    PADDING,
    WEB,
    Row,
    Section,
    Z,
)
from tests.kit.wire_rows import ROWS, UNSYNCED


@pytest.fixture(scope="module")
def responder() -> CountedResponder:
    return responder_of(api_objects.listed(CLUSTER), FLAGS)


def assert_fulfilled(row: Row, reply: bytes | None, proto: str) -> None:
    """A reply is what the row says, in every octet except for the order of records and options."""
    expected = row.expected(proto)
    assert_sound(Asked(row.wire, row.client, proto), reply)
    if expected is None or reply is None:
        assert reply is expected is None
        return
    parts, sent, flags = parts_of(reply), int.from_bytes(row.wire[2:4]), int.from_bytes(reply[2:4])
    sections = sections_of(reply)
    opts = [each for each in sections[2] if each[0] == 41]
    rcode = flags & 15 | (opts[0][1] >> 24 << 4 if opts else 0)
    assert rcode == expected.rcode
    authoritative = AA if rcode in (0, NXDOMAIN) else 0
    assert flags & 0xFFF0 == QR | sent & (0x7800 | RD | CD) | authoritative | (TC if expected.tc else 0)
    assert (reply[4:6], bool(parts.question)) == (bytes((0, expected.question)), expected.question)
    for section, wanted in zip(sections, (expected.answer, expected.authority, expected.additional), strict=True):
        rows = [each for each in section if each[0] != 41]
        assert {ttl for _, ttl, _ in rows} <= {expected.ttl}
        assert_holds([text for _, _, text in rows], wanted)
    if expected.options is None:
        assert not opts
    else:
        ((_, fixed, _),) = opts
        assert parts.rest[-1].startswith(b"\0\0\x29\x04\xd0")  # the root, OPT, 1232
        assert fixed & 0x00FFFFFF == (0x8000 if expected.do else 0)  # version 0, and no flag but DO
        assert sorted(map(without_text, options_of(reply))) == sorted(expected.options)
    if expected.size is not None:
        assert len(reply) == expected.size


def assert_holds(found: list[str], wanted: Section) -> None:
    """The records are as many as expected, or begin with the expected types and data."""
    if isinstance(wanted, int):
        assert len(found) == len(set(found)) == wanted
    else:
        found, begin = sorted(map(str.lower, found)), sorted(map(str.lower, wanted))
        assert len(found) == len(begin) and all(map(str.startswith, found, begin)), found


def sections_of(reply: bytes) -> list[list[tuple[int, int, str]]]:
    """Return type, TTL and text of each record, by section."""
    questions, *numbers = struct.unpack("!4H", reply[4:12])
    position, sections = after_name(reply, 12) + 4 if questions else 12, []
    for number in numbers:
        sections.append([])
        for _ in range(number):
            at = after_name(reply, position)
            rtype, rclass, ttl, length = struct.unpack("!HHIH", reply[at : at + 10])
            position = at + 10 + length
            text = ""
            if rtype != 41:
                assert rclass == 1
                data = dns.rdata.from_wire(rclass, rtype, reply, at + 10, length)
                text = f"{dns.rdatatype.to_text(rtype)} {data.to_text()}"
            sections[-1].append((rtype, ttl, text))
    return sections


def without_text(each: bytes) -> bytes:
    """Return an option; of an extended error, without its text."""
    return option(EXTENDED_ERROR, each[4:6]) if int.from_bytes(each[:2]) == EXTENDED_ERROR else each


def transports(row: Row) -> tuple[str, ...]:
    return (row.only,) if row.only else ("udp", "tcp")


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_rows(responder: CountedResponder, row: Row) -> None:
    """Computed, and remembered after all rows before, in any order."""
    for proto in transports(row):
        asked = Asked(row.wire, row.client, proto)
        computed, whole = (replied(responder, asked._replace(proto=each), compute=True) for each in (proto, "tcp"))
        assert_fulfilled(row, computed, proto)
        for _ in range(2):
            reply = replied(responder, asked)
            assert_fulfilled(row, reply, proto)
            assert_same(reply, computed, whole)


@pytest.mark.parametrize("client", dict.fromkeys(row.client for row in ROWS))
def test_rows_by_sockets(server: Wire, client: str) -> None:
    """By datagrams; on a TCP connection for each row; and on one for all, with many queries in flight.

    RFC 7766, 6.2.1.1: a broken query neither ends the connection nor delays others.
    """
    rows = [row for row in ROWS if row.client == client]
    for row in rows:
        if "udp" in transports(row):
            assert_fulfilled(row, server.by_udp(row), "udp")
    streamed = [row for row in rows if "tcp" in transports(row)]
    for row, reply in zip(streamed, server.in_one_connection(streamed), strict=True):
        assert_fulfilled(row, reply, "tcp")
    for row in streamed[::7]:
        assert_fulfilled(row, server.by_tcp(row), "tcp")


@pytest.mark.parametrize("row", UNSYNCED, ids=[row.id for row in UNSYNCED])
def test_rows_before_the_first_snapshot(row: Row) -> None:
    """SERVFAIL "Not Ready"; queries that are refused anyway are refused first."""
    unsynced = CountedResponder(FLAGS)
    for proto in ("udp", "tcp") * 2:
        assert_fulfilled(row, replied(unsynced, Asked(row.wire, row.client, proto)), proto)


# What is answered next where the row is answered by silence. A flag leaves it to Python, which answers in turn.
SENTINEL = query(FREE, number=0xBEEF, flags=RD | Z)


class Wire:
    """A running server that is asked with octets from any loopback address."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        self._at = (server.host, server.port)
        self._stack = stack
        self._sockets: dict[str, socket.socket] = {}

    def by_udp(self, row: Row) -> bytes | None:
        """Return the reply, or None if the next query is answered first."""
        if row.client not in self._sockets:
            sock = self._stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            sock.settimeout(PATIENCE)
            sock.bind((row.client, 0))
            sock.connect(self._at)
            self._sockets[row.client] = sock
        sock = self._sockets[row.client]
        sock.send(row.wire)
        sock.send(SENTINEL)
        reply = sock.recv(65535)
        if reply[:2] == SENTINEL[:2]:
            return None
        assert sock.recv(65535)[:2] == SENTINEL[:2]
        return reply

    def by_tcp(self, row: Row) -> bytes | None:
        with socket.create_connection(self._at, PATIENCE, source_address=(row.client, 0)) as sock:
            sock.sendall(b"".join(len(each).to_bytes(2) + each for each in (row.wire, SENTINEL)))
            with sock.makefile("rb") as file:
                reply = file.read(int.from_bytes(file.read(2)))
                return None if reply[:2] == SENTINEL[:2] else reply

    def in_one_connection(self, rows: list[Row]) -> Iterator[bytes | None]:
        """Yield the replies to one client's rows, in order; queries in flight have different IDs."""
        with (
            socket.create_connection(self._at, PATIENCE, source_address=(rows[0].client, 0)) as sock,
            sock.makefile("rb") as file,
        ):
            for start in range(0, len(rows), 32):
                some = [*rows[start : start + 32], Row("", SENTINEL, None)]
                wires = [number.to_bytes(2)[: len(row.wire)] + row.wire[2:] for number, row in enumerate(some)]
                sock.sendall(b"".join(len(wire).to_bytes(2) + wire for wire in wires))
                expected = sum(row.reply is not None for row in some) + 1
                replies = [file.read(int.from_bytes(file.read(2))) for _ in range(expected)]
                by_number = {int.from_bytes(reply[:2]): reply for reply in replies}
                assert len(by_number) == expected
                for number, row in enumerate(some[:-1]):
                    reply = by_number.get(number)
                    yield None if reply is None else row.wire[:2] + reply[2:]


@pytest.fixture(scope="module", params=["off", "auto"], ids=["python", "native"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A server that all rows share; none may harm it."""
    folder, flags = tmp_path_factory.mktemp("wire"), {**FLAGS, "native": request.param}
    with ExitStack() as stack, serving(folder, api_objects.listed(CLUSTER), flags=flags) as running:
        yield Wire(running, stack)
    assert not any("Traceback" in line for line in running.lines)


def test_a_datagram_too_long_for_its_slot_is_cut(server: Wire) -> None:
    """RFC 6891, 6.2.5: a datagram beyond the receive size is not read as if it were whole."""
    for size, rcode in ((1232, 0), (QUERY_SIZE, 0), (QUERY_SIZE + 1, 1), (60000, 1)):
        padding = option(PADDING, bytes(size - len(query(WEB)) - 11 - 4))
        row = Row("", query(WEB, edns=opt(padding)), None)
        reply = server.by_udp(row)
        assert reply is not None and reply[3] & 15 == rcode
        octets = server.by_tcp(row)
        assert octets is not None and octets[3] & 15 == 0
