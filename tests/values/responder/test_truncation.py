# SPDX-License-Identifier: Apache-2.0

"""Truncated replies: a client finds the same records in each, other clients find others, and all are used evenly.

Some clients take a truncated reply for the whole answer: HAProxy, musl before 1.2.4, Netty without TCP. If each reply
had other records, they would drop and add servers for ever.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.rendering import arc_start
from locator.ip import parse_address
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, external, listed, namespace, service, zone_nodes
from tests.kit.dns_queries import CLIENT_OPTION, TC, ecs, opt, option, query
from tests.kit.in_memory import HAS_NATIVE, CountedResponder, snapshot_of, with_and_without_native
from tests.kit.proxy_headers import LOCAL, proxied, proxy_header
from tests.kit.random_queries import Asked, replied
from tests.kit.replies import parts_of
from tests.kit.unshrunk import unshrunk

FORWARDER, OTHER_FORWARDER = "192.0.2.53", "192.0.2.54"
FLAGS = {
    "trusted-forwarder": [f"{FORWARDER}/32", f"{OTHER_FORWARDER}/32"],
    "client-option": CLIENT_OPTION,
    "proxy-protocol": True,
    "subnet": [f"10.9.0.0/16={ZONE}=a", f"fd09::/64={ZONE}=a"],
}
CLIENTS = [f"10.9.{number // 200}.{number % 200 + 1}" for number in range(500)]
REPLIES = 10  # to each client
PORTS = (("grpc", 9000, "TCP"), ("http", 80, "TCP"))


def headless(name: str, count: int, *, keys: str | None = None, ports: int = 1, hosts: bool = True) -> list[Item]:
    """Return a Service with *count* endpoints of both families, in the zones a, b and c by turns."""
    net = sum(name.encode()) % 200
    made: list[Item] = [service(name, keys=keys, ports=PORTS[:ports])]
    for family, text in (("IPv4", "10.{net}.{high}.{low}"), ("IPv6", "fd00:{net}::{high}:{low}")):
        rows = [
            endpoint(
                text.format(net=net, high=number // 250, low=number % 250 + 1),
                nodeName=f"n-{'abc'[number % 3]}1",
                **({"hostname": f"{name}-{number}"} if hosts else {}),
            )
            for number in range(count)
        ]
        made += [
            endpoint_slice(
                name, f"{family.lower()}-{start}", rows[start : start + 100], family=family, ports=PORTS[:ports]
            )
            for start in range(0, count, 100)
        ]
    return made


CLUSTER = [
    namespace("shop"),
    *zone_nodes("n", "abc"),
    *headless("thirty", 30),
    *headless("plain", 40, hosts=False),
    *headless("many", 250),
    *headless("near", 210, keys=f"{ZONE},*"),
    *headless("hard", 210, keys=ZONE),
    *headless("twoports", 30, ports=2),
    *headless("huge", 1300),
    *headless("vast", 4200),
    external("alias", "many.shop.svc.cluster.local"),
]


class Row(NamedTuple):
    """A question whose reply is truncated, and how many records the whole answer has.

    ``size`` is the size that the client takes, None without EDNS.
    """

    name: str
    qtype: str
    records: int
    size: int | None = None
    proto: str = "udp"
    most: int = 1232

    def __str__(self) -> str:
        return f"{self.name} {self.qtype} {self.proto} {self.size or 'no EDNS'} {self.most}"

    @property
    def flags(self) -> dict[str, Any]:
        return {**FLAGS, "max-udp-size": self.most}

    def limit(self) -> int:
        """Return how large a reply may be."""
        return 65535 if self.proto == "tcp" else min(self.size or 512, self.most)

    def asked(self, *options: bytes, **fields: Any) -> bytes:
        with_edns = bool(options) or self.size is not None
        edns = opt(*options, size=self.size or 512) if with_edns else b""
        return query(f"{self.name}.shop.svc.cluster.local", self.qtype, edns=edns, **fields)


ROWS = [
    Row("_grpc._tcp.thirty", "SRV", 30, 512),
    Row("thirty", "SRV", 30),
    Row("thirty", "AAAA", 30),
    Row("plain", "SRV", 80, 1232),
    Row("many", "A", 250, 1232),
    Row("many", "AAAA", 250, 8192, most=4096),
    Row("many", "A", 250, 8192, most=512),
    Row("near", "A", 70, 1000),
    Row("hard", "A", 70, 900),
    Row("twoports", "SRV", 60, 1232),
    Row("alias", "A", 250, 1232),
    Row("huge", "SRV", 1300, 1232, "tcp"),
    Row("vast", "A", 4200, None, "tcp"),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=str)
SNAPSHOT = snapshot_of(listed(CLUSTER), FLAGS)


def responder_for(row: Row, *, native: bool) -> CountedResponder:
    responder = CountedResponder(row.flags, native=native)
    responder.publish(SNAPSHOT)
    return responder


def records(reply: bytes | None, row: Row) -> list[bytes]:
    """Return the records of a reply that must be truncated, and as long as it may be."""
    assert reply is not None and int.from_bytes(reply[2:4]) & TC
    parts = parts_of(reply)
    longest = max(map(len, parts.answers))
    assert row.limit() - longest - 30 < len(reply) <= row.limit()  # the records of SRV are not of one size
    assert all(record.startswith(b"\0\0\x29") for record in parts.rest), "no additional records"
    return list(parts.answers)


def ask(responder: CountedResponder, row: Row, client: str) -> list[bytes]:
    return records(replied(responder, Asked(row.asked(), client, row.proto)), row)


@each_row
@with_and_without_native
def test_one_client_finds_the_same_records(native: bool, row: Row) -> None:
    """In each reply, in an order that begins with any of them, and in those of other replicas."""
    responder, replica = responder_for(row, native=native), responder_for(row, native=False)
    for client in (CLIENTS[0], CLIENTS[77], "fd09::7"):
        replies = [ask(responder, row, client) for _ in range(REPLIES)]
        computed = records(replied(replica, Asked(row.asked(), client, row.proto), compute=True), row)
        assert all(sorted(reply) == sorted(computed) for reply in replies)
        assert len({tuple(reply) for reply in replies}) > 2


@each_row
def test_many_clients_use_all_records_evenly(row: Row) -> None:
    """Most clients have records of their own, and each record is that of about as many clients."""
    responder, clients = responder_for(row, native=False), CLIENTS[: 60 if row.proto == "tcp" else 500]
    sets = [frozenset(ask(responder, row, client)) for client in clients]
    aliases = frozenset.intersection(*sets) if row.name == "alias" else frozenset()
    used = Counter(record for found in sets for record in found - aliases)
    assert len(used) == row.records
    even = used.total() / len(used)
    deviation = max((even * (1 - even / len(sets))) ** 0.5, 1)
    assert max(abs(number - even) for number in used.values()) < 6 * deviation
    assert len(set(sets)) > min(len(sets), len(used)) // 2


def ways(client: str) -> Iterator[tuple[str, str, bytes, Sequence[bytes]]]:
    """Yield the ways in which topodns learns who asks: source, a PROXY header, options."""
    packed = parse_address(client)
    mapped = () if ":" in client else (f"::ffff:{client}",)
    yield "the source", client, b"", ()
    for name in (client, *mapped):
        length = 128 if ":" in name else 32
        for forwarder in (FORWARDER, OTHER_FORWARDER):
            yield f"a subnet {name}", forwarder, b"", (ecs(f"{name}/{length}"),)
            yield f"a header {name}", forwarder, proxied(name), ()
    for forwarder in (FORWARDER, OTHER_FORWARDER):
        yield "the option", forwarder, b"", (option(CLIENT_OPTION, packed),)
        yield "the option, and a subnet", forwarder, b"", (option(CLIENT_OPTION, packed), ecs("10.9.9.9/32"))
        yield "a header, and a subnet", forwarder, proxied(client), (ecs("10.9.9.9/32"),)
    yield "the source, and a subnet of somebody else", client, b"", (ecs("10.9.9.9/32"),)


@with_and_without_native
@pytest.mark.parametrize("client", [CLIENTS[3], "fd09::8"])
def test_the_client_is_whoever_asks_by_whatever_way(native: bool, client: str) -> None:
    """What a client finds does not depend on the forwarder, on a subnet that is ignored, or on the packet's form."""
    row = Row("many", "AAAA", 250, 1232)
    responder = responder_for(row, native=native)
    right = ask(responder, row, client)
    for way, source, header, options in ways(client):
        for _ in range(3):
            reply = replied(responder, Asked(row.asked(*options), source, "udp", header))
            assert reply is not None
            found = parts_of(reply).answers
            assert set(found) <= set(right) and len(right) - len(found) <= 3, way  # options take some room


@with_and_without_native
@pytest.mark.parametrize("block", ["10.9.3.0/24", "10.9.0.0/22", "10.9.3.128/25", "fd09::/64", "fd09::8000/113"])
def test_all_of_a_block_are_one_client(native: bool, block: str) -> None:
    """A forwarder that names only a block of addresses gets the same records each time, another block others."""
    row = Row("many", "A", 250, 1232)
    responder = responder_for(row, native=native)

    def found(subnet: str) -> set[frozenset[bytes]]:
        asked = Asked(row.asked(ecs(subnet)), FORWARDER, "udp")
        return {frozenset(records(replied(responder, asked), row)) for _ in range(REPLIES)}

    others = [found(f"10.8.{number}.0/24") for number in range(8)]
    assert len(found(block)) == 1 and all(len(other) == 1 for other in others)
    assert len(set().union(*others)) > 4


@pytest.mark.parametrize("sent", [(b"", ()), (b"", (ecs("0.0.0.0/0"),)), (proxy_header(command=LOCAL), ())])
def test_clients_that_nobody_names_are_one(sent: tuple[bytes, Sequence[bytes]]) -> None:
    """Whichever replica of the forwarder asks for them: nobody knows who they are, and their servers must not flap."""
    row, (header, options) = Row("many", "A", 250, 1232), sent
    responder = responder_for(row, native=True) if HAS_NATIVE else responder_for(row, native=False)
    asked = [Asked(row.asked(*options), source, "udp", header) for source in (FORWARDER, OTHER_FORWARDER)]
    assert len({frozenset(records(replied(responder, sent), row)) for _ in range(REPLIES) for sent in asked}) == 1


@with_and_without_native
def test_case_and_id_make_no_other_question(native: bool) -> None:
    """0x20: what differs between two queries of one client makes no difference in what it finds."""
    row = Row("many", "A", 250)
    responder, rng = responder_for(row, native=native), random.Random(7)
    found = set()
    for number in range(REPLIES):
        name = "".join(rng.choice((letter, letter.upper())) for letter in "many.shop.svc.cluster.local")
        reply = replied(responder, Asked(query(name, number=number), CLIENTS[5], "udp"))
        found.add(frozenset(records(reply, row)))
    assert len(found) == 1


@settings(unshrunk, max_examples=25)
@given(
    count=st.integers(90, 260),
    gone=st.integers(0, 259),
    client=st.sampled_from(CLIENTS),
    qtype=st.sampled_from(("A", "AAAA", "SRV")),
    size=st.integers(512, 1232),
    seed=st.integers(0, 99),
)
def test_a_change_elsewhere_moves_little(count: int, gone: int, client: str, qtype: str, size: int, seed: int) -> None:
    """The order of slices and endpoints does not count, and an endpoint that goes takes few others with it."""
    row = Row("web", qtype, count, size)

    def found(items: Sequence[Mapping[str, Any]]) -> set[bytes]:
        responder = CountedResponder(FLAGS, native=False)
        responder.publish(snapshot_of(listed([namespace("shop"), *items]), FLAGS))  # type: ignore[list-item]
        return {identity(record) for record in ask(responder, row, client)}

    items = headless("web", count)
    before = found(items)
    shuffled = [dict(item) for item in items]
    random.Random(seed).shuffle(shuffled)
    for part in shuffled:
        if part["kind"] == "EndpointSlice":
            part["endpoints"] = random.Random(seed).sample(part["endpoints"], len(part["endpoints"]))
    assert found(shuffled) == before
    host = f"web-{gone % count}"
    fewer = [dict(item) for item in items]
    for part in fewer:
        if part["kind"] == "EndpointSlice":
            part["endpoints"] = [row for row in part["endpoints"] if row["hostname"] != host]
    assert len(before - found(fewer)) <= 2 + (qtype == "SRV")


def identity(record: bytes) -> bytes:
    """Return the octets of a record without an SRV's weight, which depends on the number of all records."""
    return record if record[3] != 33 else record[:14] + record[16:]


def test_the_arcs_are_those_of_all_versions() -> None:
    """A client must find the same after an upgrade, and in replicas of two versions."""
    question = query("many.shop.svc.cluster.local")[12:]
    clients = ("10.9.0.1", "10.9.0.2", "fd09::7")
    assert [arc_start(parse_address(client), question, 250) for client in clients] == [206, 93, 33]
    assert arc_start(b"", question, 250) == 202
    assert arc_start(parse_address("10.9.0.1"), question, 0) == 0
