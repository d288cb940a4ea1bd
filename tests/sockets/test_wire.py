# SPDX-License-Identifier: Apache-2.0

"""The wire: each row of the table, on every path that a query can take, and rules over several queries."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import dns.message
import dns.name
import dns.rdata
import pytest

from dnsserver.message.query import read_query
from dnsserver.net.udp import QUERY_SIZE
from dnsserver.programs.from_settings import store_of
from locator.ip import parse_address
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, Item
from tests.kit.dns_queries import CD, QR, RD, TC, ecs, encoded, opt, option, query
from tests.kit.in_memory import NOW, CountedResponder, dump_of, settings_of, take_in
from tests.kit.random_queries import Asked
from tests.kit.replies import after_name, assert_same, assert_sound, parts_of
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE
from tests.kit.wire_rows import (
    AA,
    CLUSTER,
    ECHOED,
    EXTENDED_ERROR,
    FLAGS,
    FORWARDER,
    FREE,
    IN_A,
    IN_B,
    MANY,
    MISSING,
    NOWHERE,
    NXDOMAIN,
    REFUSED,
    ROWS,
    SERVED,
    UNSYNCED,
    WEB,
    Row,
    Section,
    Z,
)

PADDING = 12  # RFC 7830


class Asker:
    """A responder that is asked with octets; dnspython reads its replies."""

    def __init__(self, items: list[Item] = CLUSTER, *, synced: bool = True, **flags: Any) -> None:
        self.responder = CountedResponder({**FLAGS, **flags})
        self.counts = self.responder.counts
        self.store = store_of(settings_of({**FLAGS, **flags}))
        if synced:
            self.publish(items)

    def publish(self, items: list[Item], *, now: int = NOW) -> None:
        take_in(self.store, dump_of(api_objects.listed(items)).objects)
        self.responder.publish(self.store.publish(now))

    def octets(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp", compute: bool = False) -> bytes | None:
        source = parse_address(client)
        channel = self.responder.channel(source, proto)
        reply = (self.responder.computed if compute else self.responder.reply)(wire, source, channel)
        assert reply is None or isinstance(reply, bytes)  # none waits for anybody else
        return reply

    def __call__(self, wire: bytes, client: str = NOWHERE, *, proto: str = "udp") -> dns.message.Message:
        """Return the reply as dnspython reads it; check that a second, cached one is of the same kind."""
        reply, again = (self.octets(wire, client, proto=proto) for _ in range(2))
        assert reply is not None and again is not None
        assert (reply[:6], reply[8:10]) == (again[:6], again[8:10])
        return dns.message.from_wire(reply)


@pytest.fixture(scope="module")
def ask() -> Asker:
    return Asker()


def option_of(reply: dns.message.Message, code: int) -> bytes | None:
    """Return the content of an option in a reply's OPT record, None without it."""
    found = [option.to_wire() for option in reply.options if option.otype == code]
    assert len(found) <= 1
    return found[0] if found else None


def answers(reply: dns.message.Message) -> set[str]:
    return {row.to_text() for rrset in reply.answer for row in rrset}


# The table

each_row = pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])


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
        assert {ttl for _, ttl, _, _ in rows} <= {expected.ttl}
        assert_holds([text for _, _, text, _ in rows], wanted)
    if expected.options is None:
        assert not opts
    else:
        ((_, fixed, _, data),) = opts
        assert parts.rest[-1].startswith(b"\0\0\x29\x04\xd0")  # the root, OPT, 1232
        assert fixed & 0x00FFFFFF == (0x8000 if expected.do else 0)  # version 0, and no flag but DO
        assert sorted(map(without_text, options_in(data))) == sorted(expected.options)
    if expected.size is not None:
        assert len(reply) == expected.size


def assert_holds(found: list[str], wanted: Section) -> None:
    """The records are as many as expected, or begin with the expected types and data."""
    if isinstance(wanted, int):
        assert len(found) == len(set(found)) == wanted
    else:
        found, begin = sorted(map(str.lower, found)), sorted(map(str.lower, wanted))
        assert len(found) == len(begin) and all(map(str.startswith, found, begin)), found


def sections_of(reply: bytes) -> list[list[tuple[int, int, str, bytes]]]:
    """Return type, TTL, text and data of each record, by section."""
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
            sections[-1].append((rtype, ttl, text, reply[at + 10 : position]))
    return sections


def options_in(data: bytes) -> Iterator[bytes]:
    """Yield each option of an OPT record's data, with code and length."""
    while data:
        end = 4 + int.from_bytes(data[2:4])
        assert end <= len(data)
        yield data[:end]
        data = data[end:]


def without_text(each: bytes) -> bytes:
    """Return an option; of an extended error, without its text."""
    return option(EXTENDED_ERROR, each[4:6]) if int.from_bytes(each[:2]) == EXTENDED_ERROR else each


def transports(row: Row) -> tuple[str, ...]:
    return (row.only,) if row.only else ("udp", "tcp")


def test_rows_have_names_of_their_own() -> None:
    """Each row has its own id."""
    assert len({row.id for row in ROWS}) == len(ROWS)


@each_row
def test_rows_on_a_responder_that_starts(row: Row) -> None:
    """With an empty cache."""
    proto = transports(row)[0]
    assert_fulfilled(row, Asker().octets(row.wire, row.client, proto=proto), proto)


@each_row
def test_rows_on_a_responder_that_remembers(ask: Asker, row: Row) -> None:
    """After all other rows, in any order, the reply is the same as without a cache."""
    for proto in transports(row):
        for _ in range(3):
            reply = ask.octets(row.wire, row.client, proto=proto)
            assert_fulfilled(row, reply, proto)
            computed = ask.octets(row.wire, row.client, proto=proto, compute=True)
            assert_fulfilled(row, computed, proto)
            assert_same(reply, computed, ask.octets(row.wire, row.client, proto="tcp", compute=True))


@each_row
def test_rows_by_udp(server: Wire, row: Row) -> None:
    """A real datagram from the client's address to a real server."""
    if "udp" in transports(row):
        assert_fulfilled(row, server.by_udp(row), "udp")


@each_row
def test_rows_by_tcp(server: Wire, row: Row) -> None:
    """Over a TCP connection for each row (RFC 7766)."""
    if "tcp" in transports(row):
        assert_fulfilled(row, server.by_tcp(row), "tcp")


def test_every_row_on_one_connection(server: Wire) -> None:
    """RFC 7766, 6.2.1.1: with many queries in flight, a broken one neither ends the connection nor delays others."""
    for client in dict.fromkeys(row.client for row in ROWS):
        rows = [row for row in ROWS if row.client == client and row.only != "udp"]
        for row, reply in zip(rows, server.in_one_connection(rows), strict=True):
            assert_fulfilled(row, reply, "tcp")


@pytest.mark.parametrize("row", UNSYNCED, ids=[row.id for row in UNSYNCED])
def test_rows_before_the_first_snapshot(row: Row) -> None:
    """SERVFAIL "Not Ready"; queries that are refused anyway are refused first."""
    unsynced = Asker(synced=False)
    for proto in ("udp", "tcp"):
        for _ in range(2):
            assert_fulfilled(row, unsynced.octets(row.wire, row.client, proto=proto), proto)


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
                some = [*rows[start : start + 32], Row("", "", SENTINEL, None)]
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


# Sizes


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 700, 1231, 1232, 1233, 4096, 65535])
def test_srv_replies_use_up_what_the_client_takes(ask: Asker, size: int) -> None:
    """RFC 2181, 9: not one more whole record would fit."""
    limit = min(max(size, 512), 1232)
    octets = ask.octets(query(MANY, "SRV", edns=opt(size=size)))
    assert octets is not None
    longest = max(map(len, parts_of(octets).answers))
    assert octets[2] & 0x02 and limit - longest < len(octets) <= limit


def test_additional_records_go_first_and_silently() -> None:
    """Addresses that do not fit are left out one by one, without TC; then whole SRV records, with TC."""
    name = f"ten.{SERVED}"

    def sized(size: int) -> tuple[int, int, int, bool]:
        reply = Asker().octets(query(name, "SRV", edns=opt(size=size)))
        assert reply is not None
        answer, additional = struct.unpack("!H2xH", reply[6:12])
        return len(reply), answer, additional - 1, bool(reply[2] & 0x02)

    whole = sized(1232)
    assert 512 + 10 * 16 < whole[0] < 1232 and whole[1:] == (10, 10, False)
    assert sized(whole[0]) == sized(whole[0] + 1) == whole
    shorter = sized(whole[0] - 1)  # their owners point to the SRV targets
    assert shorter[0] < whole[0] and shorter[1:] == whole[1:]
    for left in range(10, -1, -1):
        some = (shorter[0] - 16 * (10 - left), 10, left, False)
        assert sized(some[0]) == sized(some[0] + 1) == some
        if left:
            assert sized(some[0] - 1)[2:] == (left - 1, False)
    cut = sized(some[0] - 1)
    assert cut[0] < some[0] - 40 and cut[1:] == (9, 0, True)


def test_whole_records_stay_with_tc() -> None:
    """RFC 2181, 9: as many whole records as fit, and TC; TCP carries all."""
    ask = Asker()
    octets = ask.octets(query(MANY, edns=opt()), "192.0.2.1")
    assert octets is not None and 1232 - 16 < len(octets) <= 1232
    reply = dns.message.from_wire(octets)
    assert reply.flags & dns.flags.TC and not reply.authority and not reply.additional
    whole = ask(query(MANY, edns=opt()), proto="tcp")
    assert not whole.flags & dns.flags.TC and len(answers(whole)) == 250 and answers(reply) < answers(whole)


ROTATED = [
    # id, query, how many records come first in turn
    ("whole", query(FREE, edns=opt()), 2),
    ("behind an alias", query(f"inside.{SERVED}", edns=opt()), 2),
    ("with additional records", query(f"ten.{SERVED}", "SRV", edns=opt(size=1232)), 10),
    ("with room for half of the additional records", query(f"ten.{SERVED}", "SRV", edns=opt(size=700)), 10),
    ("cut", query(f"ten.{SERVED}", "SRV", edns=opt(size=512)), 8),
    ("cut behind an alias", query(f"crowd.{SERVED}", edns=opt(size=512)), 27),
]


@pytest.mark.parametrize(("wire", "count"), [row[1:] for row in ROTATED], ids=[row[0] for row in ROTATED])
def test_every_response_begins_with_another_record(wire: bytes, count: int) -> None:
    """Each record that a reply holds comes first about equally often, in truncated replies, too."""
    ask, firsts, even = Asker(), Counter[str](), 50
    for _ in range(even * count):
        octets = ask.octets(wire)
        assert octets is not None
        firsts[dns.message.from_wire(octets).answer[-1][0].to_text()] += 1
    assert len(firsts) == count and max(abs(number - even) for number in firsts.values()) < 6 * even**0.5


def test_an_alias_stands_before_what_is_cut(ask: Asker) -> None:
    """RFC 2181, 9: a truncated reply keeps the CNAME first."""
    octets = ask.octets(query(f"crowd.{SERVED}", edns=opt(size=512)))
    assert octets is not None and 512 - 32 < len(octets) <= 512
    reply = dns.message.from_wire(octets)
    alias, rows = reply.answer
    assert alias.rdtype == dns.rdatatype.CNAME and rows.name.to_text() == f"{MANY}."
    assert reply.flags & dns.flags.TC


def test_a_large_answer_is_whole_over_tcp(ask: Asker) -> None:
    """RFC 7766, 3: TCP carries all answers, and the addresses that stay where a pointer reaches."""
    reply = ask(query(MANY, "SRV"), proto="tcp")
    assert not reply.flags & dns.flags.TC
    assert len(answers(reply)) == 250 and 0 < len(reply.additional) < 100
    assert {row.weight for rrset in reply.answer for row in rrset} == {1}


def test_a_datagram_too_long_for_its_slot_is_cut(server: Wire) -> None:
    """RFC 6891, 6.2.5: a datagram beyond the receive size is not read as if it were whole."""
    for size, rcode in ((1232, 0), (QUERY_SIZE, 0), (QUERY_SIZE + 1, 1), (60000, 1)):
        padding = option(12, bytes(size - len(query(WEB)) - 11 - 4))
        row = Row("", "", query(WEB, edns=opt(padding)), None, IN_A)
        reply = server.by_udp(row)
        assert reply is not None and reply[3] & 15 == rcode
        octets = server.by_tcp(row)
        assert octets is not None and octets[3] & 15 == 0


# Client subnet


@pytest.mark.parametrize("text", [row[1] for row in ECHOED], ids=[row[0] for row in ECHOED])
@pytest.mark.parametrize(("name", "dependent"), [(WEB, True), (FREE, False), (MISSING, False)])
def test_a_client_of_ipv6_gets_its_subnet_back(ask: Asker, text: str, name: str, dependent: bool) -> None:
    """RFC 7871, 7.2.1: its subnet is echoed, and its own place counts."""
    sent = ecs(text)[4:]
    reply = ask(query(name, edns=opt(ecs(text))), "fd00:1::1")
    assert option_of(reply, 8) == sent[:3] + (sent[2:3] if dependent else b"\0") + sent[4:]
    assert answers(reply) == ({"10.244.1.1"} if dependent else {"10.244.1.9", "10.244.2.9"} if name == FREE else set())


def test_every_option_fits_beside_the_longest_question() -> None:
    """RFC 6891, 7; RFC 8914: an error's text is left out first, and the rest fits 512 octets."""
    label, zone = "a" * 63, f"{'c' * 51}.{'b' * 63}.local"
    name = f"{label}.{'n' * 63}.svc.{zone}"
    items = [api_objects.namespace("n" * 63), api_objects.service(label, keys=ZONE, where="n" * 63)]
    rows = [api_objects.endpoint("10.0.0.1", zone="x")]
    items.append(api_objects.endpoint_slice(label, 0, rows, where="n" * 63))
    ask = Asker(items, zone=[zone], nsid="s" * 128)
    assert len(encoded(name)) == 255
    for qtype in ("A", "SRV", "ANY", "TXT", "AXFR"):
        wire = query(name, qtype, edns=opt(option(3), ecs("2001:db8::7"), size=512))
        reply = ask.octets(wire)
        assert_sound(Asked(wire, NOWHERE, "udp"), reply, limit=512)
        assert reply is not None and b"s" * 128 in reply and ecs("2001:db8::7")[8:] in reply


def test_each_client_gets_its_own_address_back_even_where_the_reply_is_cut() -> None:
    """RFC 7871, 7.2.1: an unmet answer without its text echoes the subnet of its own query."""
    rack, longest, where, port, zone = "example.com/" + "k" * 63, "v" * 63, "n" * 63, "q" * 15, "c" * 63 + ".local"
    ports = [(port, 80, "TCP")]
    items = [
        api_objects.namespace(where),
        api_objects.node("node-a", {ZONE: "z" * 63, rack: "z" * 63}, addresses=[IN_A, IN_B]),
        api_objects.service(longest, keys=f"{ZONE},{rack}", where=where, ports=ports),
        api_objects.endpoint_slice(longest, 0, [api_objects.endpoint("10.0.0.1", zone="x")], where=where, ports=ports),
        api_objects.service("kube-dns", cluster_ips=["10.96.0.10"], where="kube-system"),
        api_objects.endpoint_slice("kube-dns", 0, [api_objects.endpoint(FORWARDER)], where="kube-system"),
    ]
    ask = Asker(items, zone=[zone])
    for text in (IN_A, IN_B, IN_A):
        wire = query(f"_{port}._tcp.{longest}.{where}.svc.{zone}", "SRV", edns=opt(ecs(text), size=512))
        whole, cut = ask.octets(wire, FORWARDER, proto="tcp"), ask.octets(wire, FORWARDER)
        assert whole is not None and cut is not None
        assert len(cut) <= 512 < len(whole)
        assert ecs(text, scope=32) in whole
        assert ecs(text, scope=32) in cut


# Names and types


@pytest.mark.parametrize("name", [WEB.upper(), "wEb.ShOp.SvC.cLuStEr.LoCaL", "web.shop.svc.cluster.LOCAL"])
def test_the_question_comes_back_in_its_case(ask: Asker, name: str) -> None:
    """0x20: it is echoed octet for octet, and compressed records have its case."""
    octets = ask.octets(query(name), IN_A)
    assert octets is not None
    assert octets[12 : 12 + len(encoded(name))] == encoded(name)
    assert answers(dns.message.from_wire(octets)) == {"10.244.1.1"}
    assert dns.message.from_wire(octets).answer[0].name.to_text() == f"{name}."


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("low", [65, 70, 90])
def test_types_that_fold_together_keep_their_question(low: int, first: int) -> None:
    """Types 65 to 90 and 97 to 122 differ like letters' case: each keeps its own question."""
    ask = Asker()
    for qtype in (low, low + 32) if first else (low + 32, low):
        for name in (WEB, FREE, "cluster.local"):
            reply = ask(query(name, qtype), IN_A)
            assert reply.question[0].rdtype == qtype
            assert reply.rcode() == 0 and not reply.answer and reply.authority


@pytest.mark.parametrize("qtype", [99, 65, 257, 65280])
def test_types_that_nobody_has_records_of_are_the_same_for_all(qtype: int) -> None:
    """If no client gets records, the reply does not depend on the client, and may be cached."""
    ask = Asker()
    for client in (NOWHERE, IN_A, IN_B, NOWHERE):
        reply = ask(query(WEB, qtype, edns=opt()), client)
        assert option_of(reply, 15) is None
        assert reply.authority[0].ttl == 5


ODD_LABELS = [
    ("a NUL in a label", [b"w\0b", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a NUL, then a Service's name", [b"\0", b"web", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a label that looks like an end", [b"web\0\0\1\0\1", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a dot in a label", [b"web.shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a zone in one label", [b"web", b"shop", b"svc", b"cluster.local"], REFUSED),
    ("octets beyond ASCII", [b"w\xe9b", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("an underscore alone", [b"_", b"_", b"web", b"shop", b"svc", b"cluster", b"local"], NXDOMAIN),
    ("a slash in a label", [b"shop/web", b"svc", b"cluster", b"local"], NXDOMAIN),
]


@pytest.mark.parametrize(("labels", "rcode"), [row[1:] for row in ODD_LABELS], ids=[row[0] for row in ODD_LABELS])
@pytest.mark.parametrize("qtype", ["A", "SRV", "ANY"])
@pytest.mark.parametrize("edns", [b"", opt(), opt(ecs("192.0.2.7"))], ids=["plain", "edns", "ecs"])
def test_odd_labels_are_names_like_any_other(labels: list[bytes], rcode: int, qtype: str, edns: bytes) -> None:
    """RFC 2181, 11: a label may hold any octets, and similar names stay apart."""
    ask = Asker()
    for name in (labels, WEB.encode().split(b"."), labels):
        reply = ask(query(name, qtype, edns=edns), IN_A)
        assert reply.rcode() == (rcode if name is labels else 0)
        assert reply.question[0].name.labels[:-1] == tuple(name)


# Compression


def test_owners_are_pointers_and_srv_targets_are_not(ask: Asker) -> None:
    """RFC 1035, 4.1.4 and RFC 2782: names are compressed wherever that is allowed."""
    octets = ask.octets(query(WEB, "SRV"), IN_A)
    assert octets is not None
    at = 12 + len(encoded(WEB)) + 4
    assert octets[at : at + 2] == b"\xc0\x0c"
    length = int.from_bytes(octets[at + 10 : at + 12])
    data = octets[at + 12 : at + 12 + length]
    assert data == struct.pack("!HHH", 0, 100, 80) + encoded(f"web-0.{WEB}")
    assert octets[at + 12 + length :].startswith(b"\x05web-0\xc0\x0c")


def test_an_owner_points_to_its_target_where_room_is_scarce(ask: Asker) -> None:
    """RFC 2782 forbids compressing a target, not pointing to it."""
    octets = ask.octets(query(f"ten.{SERVED}", "SRV", edns=opt(size=700)))
    assert octets is not None
    first = 12 + len(encoded(f"ten.{SERVED}")) + 4
    target = first + 12 + 6  # behind owner, type, class, TTL and length; priority, weight and port
    name = dns.message.from_wire(octets, one_rr_per_rrset=True).answer[0][0].target
    assert octets[target:].startswith(name.to_wire())
    assert parts_of(octets).rest[0].startswith(struct.pack("!HH", 0xC000 | target, 1))


def test_the_soa_is_compressed_against_the_question(ask: Asker) -> None:
    """RFC 1035, 4.1.4: its owner and both its names end in the question's zone."""
    name = "nope.shop.svc.cluster.local"
    octets = ask.octets(query(name), IN_A)
    assert octets is not None
    zone = struct.pack("!H", 0xC000 | 12 + len(encoded("nope.shop.svc")) - 1)
    assert octets[12 + len(encoded(name)) + 4 :].startswith(zone)
    assert b"\2ns\3dns" + zone in octets and b"\x0ahostmaster" + zone in octets


# What is patched into what is remembered


@pytest.mark.parametrize("name", [WEB, "nope.shop.svc.cluster.local", "cluster.local"])
@pytest.mark.parametrize("client", [IN_A, NOWHERE])
def test_the_serial_is_that_of_the_last_visible_change(name: str, client: str) -> None:
    """In cached answers of unchanged Services, too."""
    ask = Asker()
    for now, items in ((NOW, CLUSTER), (NOW + 60, [*CLUSTER, api_objects.service("new")]), (NOW + 90, CLUSTER)):
        ask.publish(items, now=now)
        for edns in (b"", opt(), opt(size=512)):
            reply = ask(query(name, "AAAA", edns=edns), client)
            assert reply.authority[0][0].serial == now
    ask.publish(CLUSTER, now=NOW + 999)  # nothing changed
    assert ask(query(name, "AAAA"), client).authority[0][0].serial == NOW + 90


def test_unmet_says_which_key_and_value(ask: Asker) -> None:
    """NODATA, TTL and minimum 0, extended error 0 with key and value; no error without EDNS."""
    reply = ask(query(WEB, edns=opt(ecs("10.244.9.9"))), FORWARDER)
    soa = reply.authority[0]
    assert (reply.rcode(), soa.ttl, soa[0].minimum) == (0, 0, 0)
    error = option_of(reply, 15)
    assert error is not None and error[:2] == b"\0\0" and ZONE.encode() in error
    assert ask(query(WEB), NOWHERE).edns == -1


# What an object may hold that no name can


BAD_HOSTNAMES = [
    ("64 octets", "x" * 64),
    ("an empty label", "a..b"),
    ("beyond ASCII", "caf\u00e9"),
    ("a dot", "a.b"),
    ("a space", "a b"),
]


@pytest.mark.parametrize("hostname", [row[1] for row in BAD_HOSTNAMES], ids=[row[0] for row in BAD_HOSTNAMES])
@pytest.mark.parametrize("qtype", ["A", "SRV", "ANY"])
def test_a_hostname_that_is_no_label_harms_no_answer(hostname: str, qtype: str) -> None:
    """RFC 1035, 3.1: no exception, and the other endpoints are answered."""
    rows = [api_objects.endpoint("10.0.0.1", hostname=hostname), api_objects.endpoint("10.0.0.2", hostname="good")]
    ask = Asker([api_objects.namespace("shop"), api_objects.service("web"), api_objects.endpoint_slice("web", 0, rows)])
    reply = ask(query(WEB, qtype))
    assert reply.rcode() == 0 and reply.answer
    if qtype == "A":
        assert "10.0.0.2" in answers(reply)


def test_a_service_whose_names_are_too_long_harms_no_answer() -> None:
    """RFC 1035, 3.1: 255 octets; an SRV target that is longer is left out, the rest answered."""
    zone = ".".join(["z" * 63] * 3)
    items = [
        api_objects.namespace("shop"),
        api_objects.service("web"),
        api_objects.endpoint_slice("web", 0, [api_objects.endpoint("10.0.0.1", hostname="h" * 63)]),
    ]
    ask = Asker(items, zone=[zone])
    for qtype in ("A", "SRV", "ANY"):
        assert ask(query(f"web.shop.svc.{zone}", qtype)).rcode() == 0
    reverse = [api_objects.service("w" * 63, cluster_ips=("10.0.0.1",)), *items]
    ask = Asker(reverse, zone=[zone, "in-addr.arpa"])
    assert ask(query("1.0.0.10.in-addr.arpa", "PTR")).rcode() == 3


@pytest.mark.parametrize("questions", [0, 2])
@pytest.mark.parametrize("opcode", [0, 4], ids=["query", "notify"])
def test_an_opt_is_answered_by_an_opt_whatever_the_count_of_questions(questions: int, opcode: int) -> None:
    """A query with a readable OPT gets one, in errors, too."""
    asked_for = query(WEB)[12:] * questions
    wire = b"\x12\x34" + bytes((opcode << 3, 0)) + bytes((0, questions, 0, 0, 0, 0, 0, 1)) + asked_for + opt()
    reply = Asker().octets(wire, IN_A)
    assert reply is not None
    assert (reply[:2], reply[3] & 15, reply[4:12]) == (b"\x12\x34", 4 if opcode else 1, b"\0\0\0\0\0\0\0\1")
    assert reply[12:15] == b"\0\0\x29"


def test_nothing_stays_of_large_options() -> None:
    """Padding may have 64 KiB over TCP: a client that sends thousands of different ones takes no memory."""
    tracemalloc.start()
    try:
        for number in range(100):
            read = read_query(query(WEB, edns=opt(option(PADDING, number.to_bytes(2) * 30_000))))
            assert read is not None and not read.rcode
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
