# SPDX-License-Identifier: Apache-2.0

"""Names outside the zones: what an upstream may answer, how long that is cached, and which queries wait for it."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import trio
import trio.testing
from msgspec.structs import replace
from prometheus_client import generate_latest

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message.records import Host, Opaque, Record
from dnsserver.metrics.counters import Counts
from dnsserver.metrics.server import ServerMetrics
from dnsserver.names import labels_of
from dnsserver.net import tcp, udp, upstream
from dnsserver.net.bounds import HeldOctets
from dnsserver.net.upstream import NoServers, Upstream, servers_in
from dnsserver.programs import from_settings
from dnsserver.responder.responder import Responder
from dnsserver.settings.values import ListenAddress
from dnsserver.tools.explain.explain import explain
from dnsserver.tools.explain.explanation import Explanation
from locator.ip import parse_network
from tests.kit import commands_in_process, outside, topodns_process
from tests.kit.api_objects import external, listed
from tests.kit.clusters import OUT, OUT_2, WEB, WITH_ALIASES
from tests.kit.dns_queries import query
from tests.kit.in_memory import responder_of, settings_of, snapshot_of
from tests.kit.tcp_server import Peer
from tests.kit.this_machine import free_port, has_ipv6, lacking, needs_tool
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

SERVFAIL = dns.rcode.SERVFAIL
LOCALHOST = bytes((127, 0, 0, 1))
A, CNAME, SOA, MX, TXT, AAAA, ANY = 1, 5, 6, 15, 16, 28, 255
TARGET = "example.org"
SHOP, OTHER = "shop", "other"  # namespaces
Rows = Sequence[str]
Message = dns.message.Message
Behaviour = Callable[["Elsewhere", Message, str], Awaitable[list[bytes]]]


# An upstream of our own making


class Elsewhere:
    """A name server that answers by a behaviour, over UDP and TCP on one port, and records queries."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.asked: list[tuple[str, str]] = []
        self._behaviour = behaviour
        self._datagrams, self._streams = map(trio.socket.from_stdlib_socket, sharing_a_port())

    async def serve(self, task_status: trio.TaskStatus[ListenAddress]) -> None:
        with self._datagrams, self._streams:
            self._streams.listen(64)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, self._by_tcp, [trio.SocketListener(self._streams)])
                task_status.started(ListenAddress(LOCALHOST, self._datagrams.getsockname()[1]))
                while True:
                    wire, client = await self._datagrams.recvfrom(4096)
                    nursery.start_soon(self.by_udp, dns.message.from_wire(wire), client)

    async def by_udp(self, asked: Message, client: Any) -> None:
        for reply in await self._replies(asked, "udp"):
            await self._datagrams.sendto(reply, client)

    async def _by_tcp(self, stream: trio.SocketStream) -> None:
        wire = await stream.receive_some(4096)
        for reply in await self._replies(dns.message.from_wire(wire[2:]), "tcp"):
            await stream.send_all(len(reply).to_bytes(2) + reply)

    async def _replies(self, asked: Message, proto: str) -> list[bytes]:
        question = asked.question[0]
        self.asked.append((question.name.to_text().rstrip("."), proto))
        return await self._behaviour(self, asked, proto)


def sharing_a_port(prepare: Callable[[socket.socket], None] | None = None) -> tuple[socket.socket, socket.socket]:
    """Return a datagram and a stream socket on one port, after some tries if needed. *prepare* prepares the former."""
    while True:
        datagrams, streams = (socket.socket(socket.AF_INET, kind) for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM))
        streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if prepare is not None:
            prepare(datagrams)
        datagrams.bind(("127.0.0.1", 0))
        try:
            streams.bind(datagrams.getsockname())
        except OSError:
            datagrams.close()
            streams.close()
        else:
            return datagrams, streams


def reply_to(asked: Message, rows: Rows = (), *, rcode: int = 0, soa: int | None = 10, flags: int = 0) -> Message:
    """Return a reply with records in zone file form; without any, with an SOA of this minimum."""
    reply = dns.message.make_response(asked, recursion_available=True)
    reply.set_rcode(rcode)
    reply.flags |= flags
    reply.answer = [dns.rrset.from_text(*row.split(None, 4)) for row in rows]
    if soa is not None:
        minimum = f"ns.example. admin.example. 1 2 3 4 {soa}"
        reply.authority = [dns.rrset.from_text(".", 3600, "IN", "SOA", minimum)]
    return reply


def says(*rows: str, **more: Any) -> Behaviour:
    """Answer every query with these records."""

    async def behave(_: Elsewhere, asked: Message, __: str) -> list[bytes]:
        return [reply_to(asked, rows, **more).to_wire(max_size=65535)]

    return behave


def after(seconds: float, behaviour: Behaviour) -> Behaviour:
    """Do the same after a delay."""

    async def behave(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
        await trio.sleep(seconds)
        return await behaviour(server, asked, proto)

    return behave


def sends(make: Callable[[Message], bytes | list[bytes]], *, tcp: Behaviour | None = None) -> Behaviour:
    """Answer with octets; over TCP with *tcp* if given."""

    async def behave(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
        if tcp is not None and proto == "tcp":
            return await tcp(server, asked, proto)
        made = make(asked)
        return [made] if isinstance(made, bytes) else made

    return behave


async def silent(_: Elsewhere, __: Message, ___: str) -> list[bytes]:
    return []


def changed(asked: Message, **fields: Any) -> bytes:
    """Return a good reply with some fields changed."""
    reply = reply_to(asked, [HERE])
    for name, value in fields.items():
        setattr(reply, name, value)
    return reply.to_wire()


def truncated(asked: Message) -> bytes:
    return reply_to(asked, flags=dns.flags.TC).to_wire()


def other_question(asked: Message) -> bytes:
    reply = dns.message.make_query("example.net", "A", id=asked.id)
    return reply_to(reply, ["example.net. 60 IN A 192.0.2.66"]).to_wire()


HERE = "example.org. 60 IN A 192.0.2.1"
ALIAS, ALIAS_2 = "example.org. 50 IN CNAME a.example.net.", "a.example.net. 40 IN CNAME b.example.net."


def address(text: str, name: str = TARGET, ttl: int = 60) -> Record:
    return Record(name, A, ttl, Opaque(socket.inet_aton(text)))


def alias(name: str, target: str, ttl: int) -> Record:
    return Record(name, CNAME, ttl, Host(target))


CHAIN = (alias(TARGET, "a.example.net", 50), alias("a.example.net", "b.example.net", 40))


# In virtual time


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time, with a deadline."""

    async def bounded() -> None:
        with trio.fail_after(10_000):
            await main()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", trio.current_time)  # by which dnspython counts its time-outs
        trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0.02))


@asynccontextmanager
async def asking(*behaviours: Behaviour) -> AsyncIterator[tuple[Upstream, list[Elsewhere], Counts]]:
    """Run an upstream for each behaviour."""
    servers, counts = [Elsewhere(behaviour) for behaviour in behaviours], Counts()
    async with trio.open_nursery() as nursery:
        addresses = [await nursery.start(server.serve) for server in servers]
        yield Upstream(addresses, counts), servers, counts
        nursery.cancel_scope.cancel()


def records_of(said: UpstreamAnswer) -> tuple[Record, ...] | None:
    """Return the records of an answer, None if the look-up failed."""
    if said.rcode == dns.rcode.SERVFAIL:
        assert said.extended_error is not None and not said.aliases and not said.records
        return None
    plain = [replace(record, data=Opaque(record.data.octets)) for record in said.records if record.data.octets]  # type: ignore[union-attr]
    return (*said.aliases, *plain)


async def find(elsewhere: Upstream, target: str, qtype: int, namespace: str = SHOP) -> tuple[Record, ...] | None:
    return records_of(await elsewhere.find(target, qtype, namespace))


def found_from(*behaviours: Behaviour, qtype: int = A) -> tuple[tuple[Record, ...] | None, float, Counts]:
    """Look up example.org; return what was found, after how many seconds, and the counts."""
    result: list[Any] = []

    async def main() -> None:
        async with asking(*behaviours) as (elsewhere, _, counts):
            began = trio.current_time()
            found = await find(elsewhere, TARGET, qtype)
            result.extend((found, trio.current_time() - began, counts))

    run(main)
    return result[0], result[1], result[2]


ANSWERS: dict[str, tuple[Behaviour, int, tuple[Record, ...]]] = {
    "address": (says(HERE), A, (address("192.0.2.1"),)),
    "several addresses": (
        says(HERE, "example.org. 60 IN A 192.0.2.2"), A, (address("192.0.2.1"), address("192.0.2.2")),
    ),
    "CNAMEs on the way": (
        says(ALIAS, ALIAS_2, "b.example.net. 30 IN A 192.0.2.3"), A,
        (*CHAIN, address("192.0.2.3", "b.example.net", 30)),
    ),
    "CNAMEs in another order": (
        says("b.example.net. 30 IN A 192.0.2.3", ALIAS_2, ALIAS), A,
        (*CHAIN, address("192.0.2.3", "b.example.net", 30)),
    ),
    "CNAMEs that lead to nothing": (says(ALIAS, ALIAS_2), A, CHAIN),
    "CNAMEs that lead to NXDOMAIN": (says(ALIAS, ALIAS_2, rcode=dns.rcode.NXDOMAIN), A, CHAIN),
    "names in capitals": (
        says("EXAMPLE.org. 60 IN CNAME B.Example.NET.", "b.EXAMPLE.net. 60 IN A 192.0.2.3"), A,
        (alias(TARGET, "b.example.net", 60), address("192.0.2.3", "b.example.net")),
    ),
    "NXDOMAIN": (says(rcode=dns.rcode.NXDOMAIN), A, ()),
    "NODATA": (says(), A, ()),
    "NODATA without SOA": (says(soa=None), A, ()),
    "what others have, too": (says("example.net. 60 IN A 192.0.2.9", HERE), A, (address("192.0.2.1"),)),
    "names in the data are not compressed": (
        says("example.org. 60 IN MX 10 mail.example.org."), MX,
        (Record(TARGET, MX, 60, Opaque(b"\0\x0a\4mail\7example\3org\0")),),
    ),
    "a type that nobody knows": (
        says("example.org. 60 IN TYPE65280 \\# 3 010203"), 65280, (Record(TARGET, 65280, 60, Opaque(b"\1\2\3")),),
    ),
    "cut off, then by TCP": (sends(truncated, tcp=says(HERE)), A, (address("192.0.2.1"),)),
    "a wrong id before the right one": (
        sends(lambda asked: [changed(asked, id=asked.id ^ 1), changed(asked)]), A, (address("192.0.2.1"),),
    ),
    "garbage before the reply": (
        sends(lambda asked: [b"", b"\0", asked.to_wire()[:2] + b"\xff" * 40, changed(asked)]), A,
        (address("192.0.2.1"),),
    ),
    "half a second late": (after(0.5, says(HERE)), A, (address("192.0.2.1"),)),
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_the_aliases_in_order_and_the_records(case: str) -> None:
    """RFC 1034, 3.6.2: each CNAME comes before its target; a name without records is an answer."""
    behaviour, qtype, expected = ANSWERS[case]
    found, seconds, counts = found_from(behaviour, qtype=qtype)
    assert found == expected
    assert seconds < 1 and counts.upstream == {"answered": 1}


def spread(number: int, size: int) -> Behaviour:
    """Answer over TCP with this many TXT records of this size."""
    rows = [f'example.org. 60 IN TXT "{each:0{size}d}"' for each in range(number)]
    return sends(truncated, tcp=says(*rows))


FAILURES: dict[str, Behaviour] = {
    "silence": silent,
    "too late": after(2.5, says(HERE)),
    "SERVFAIL": says(rcode=dns.rcode.SERVFAIL),
    "REFUSED": says(rcode=dns.rcode.REFUSED),
    "an rcode of its own": says(rcode=11),
    "YXDOMAIN": says(rcode=dns.rcode.YXDOMAIN),
    "another id": sends(lambda asked: changed(asked, id=asked.id ^ 1)),
    "another question": sends(other_question),
    "a query": sends(lambda asked: changed(asked, flags=0)),
    "another name": says("example.net. 60 IN A 192.0.2.66"),
    "NXDOMAIN and yet an address": says(HERE, rcode=dns.rcode.NXDOMAIN),
    "a CNAME to itself": says("example.org. 60 IN CNAME example.org."),
    "CNAMEs in a circle": says(ALIAS, ALIAS_2, "b.example.net. 60 IN CNAME example.org."),
    "too many CNAMEs": says(
        "example.org. 9 IN CNAME n0.",
        *(f"n{number}. 9 IN CNAME n{number + 1}." for number in range(20)),
        "n20. 9 IN A 192.0.2.1",
    ),
    "a CNAME to the root": says("example.org. 60 IN CNAME ."),
    "a CNAME with a dot in a label": says("example.org. 60 IN CNAME a\\.b.example.net."),
    "a CNAME with odd octets": says("example.org. 60 IN CNAME \\200\\255.example.net."),
    "garbage": sends(lambda asked: asked.to_wire()[:2] + b"\x81\x80" + b"\xff" * 100),
    "garbage by TCP": sends(truncated, tcp=sends(lambda asked: asked.to_wire()[:2] + b"\xff" * 100)),
    "half a message by TCP": sends(truncated, tcp=sends(lambda asked: changed(asked)[:-2])),
    "nothing": sends(lambda _: b""),
    "cut off by TCP, too": sends(truncated),
    "silence by TCP": sends(truncated, tcp=silent),
    "data that is too short": sends(lambda asked: changed(asked)[:-1]),
    "257 records": spread(257, 3),
    "more than 16 KiB": spread(90, 200),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
def test_what_cannot_be_used_counts_as_not_found(case: str) -> None:
    """If the upstream is dead, slow, wrong or too large, nothing is found within 2 s, and nothing raised."""
    qtype = TXT if case in ("257 records", "more than 16 KiB") else A
    found, seconds, counts = found_from(FAILURES[case], qtype=qtype)
    assert found is None
    assert seconds < 2 and counts.upstream == {"failed": 1}
    assert not counts.failures


# Behaviour -> the extended error of the failure (RFC 8914, 4.23 and 4.24).
ERRORS = {
    **dict.fromkeys(("silence", "too late", "SERVFAIL", "REFUSED", "an rcode of its own", "another id"), 22),
    **dict.fromkeys(("CNAMEs in a circle", "another name", "cut off by TCP, too", "a CNAME to the root"), 23),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_failure_says_what_failed(case: str) -> None:
    """22 if no server answers or all refuse, 23 if what they send cannot be used; the text names the name."""
    answers: list[UpstreamAnswer] = []

    async def main() -> None:
        async with asking(FAILURES[case]) as (elsewhere, _, _):
            answers.extend([await elsewhere.find(TARGET, A, SHOP) for _ in range(2)])

    run(main)
    for answer in answers:
        assert answer.rcode == SERVFAIL and answer.extended_error is not None
        code, text = answer.extended_error
        assert code == ERRORS[case] and TARGET in text


NEGATIVE: dict[str, tuple[Behaviour, int, int | None]] = {
    # behaviour -> rcode, TTL of the SOA
    "NXDOMAIN": (says(rcode=dns.rcode.NXDOMAIN, soa=20), 3, 20),
    "NODATA": (says(soa=20), 0, 20),
    "a minimum above the TTL": (says(soa=86400), 0, 3600),
    "over an alias": (says(ALIAS, rcode=dns.rcode.NXDOMAIN, soa=20), 3, 20),
    "without an SOA": (says(rcode=dns.rcode.NXDOMAIN, soa=None), 3, None),
    "with records there is none": (says(HERE, soa=20), 0, None),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_a_negative_answer_has_its_soa(case: str) -> None:
    """With the lesser of its TTL and its minimum (RFC 2308, 3), which counts down."""
    behaviour, rcode, ttl = NEGATIVE[case]

    async def main() -> None:
        async with asking(behaviour) as (elsewhere, _, _):
            for seconds in (0, 5):
                await trio.sleep(seconds)
                found = await elsewhere.find(TARGET, A, SHOP)
                assert found.rcode == rcode
                assert [(record.name, record.rtype, record.ttl) for record in found.soa] == (
                    [] if ttl is None else [("", SOA, ttl - seconds)]
                )
                if found.soa:
                    assert str(found.soa[0].data).startswith("ns.example. admin.example. 1 2 3 4 ")

    run(main)


@pytest.mark.parametrize("case", ["256 records", "16 KiB"])
def test_a_large_answer_is_passed_on_whole(case: str) -> None:
    """Up to 256 records and 16 KiB of data."""
    number, size = (256, 3) if case == "256 records" else (80, 200)
    found, _, _ = found_from(spread(number, size), qtype=TXT)
    assert found is not None and len(found) == number


@pytest.mark.parametrize("target", ["example.org", "a" * 64 + ".org", "é.org", "", "a..b", ".".join(["a" * 63] * 4)])
@pytest.mark.parametrize("qtype", [0, 41, 249, ANY])
def test_what_cannot_be_asked_counts_as_not_found(target: str, qtype: int) -> None:
    """For a name that is too long, or a type for queries only, nothing is sent and nothing raised."""

    async def main() -> None:
        async with asking(says(HERE)) as (elsewhere, _, counts):
            assert await find(elsewhere, target, qtype) in (None, ())
            assert not counts.failures

    run(main)


def test_an_answer_from_another_address_is_none() -> None:
    """RFC 5452, 9.1: only a reply from the asked address counts."""

    async def main() -> None:
        async with asking(silent) as (elsewhere, (server,), _):
            with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:

                async def forge(asked: Message, client: Any) -> None:
                    await forger.sendto(changed(asked), client)

                server.by_udp = forge  # type: ignore[method-assign]
                assert await find(elsewhere, TARGET, A) is None
        assert server.asked == []

    run(main)


@pytest.mark.parametrize("first", ["silence", "SERVFAIL", "REFUSED", "CNAMEs in a circle", "garbage by TCP"])
def test_the_next_server_is_asked_when_one_fails(first: str) -> None:
    """All servers are asked before the time is over."""
    found, seconds, _ = found_from(FAILURES[first], says(HERE))
    assert found == (address("192.0.2.1"),) and seconds < 1.5


def test_a_lost_datagram_is_sent_again() -> None:
    """A single server is asked twice."""
    lost: list[Message] = []

    async def loses_the_first(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
        lost.append(asked)
        return [] if len(lost) == 1 else await says(HERE)(server, asked, proto)

    found, seconds, _ = found_from(loses_the_first)
    assert found == (address("192.0.2.1"),) and seconds < 1.5


@pytest.mark.parametrize("number", [1, 2])
def test_closed_ports_are_failures(number: int) -> None:
    """A server that does not run is counted as a failure."""

    async def main() -> None:
        dead = ListenAddress(LOCALHOST, free_port())
        began = trio.current_time()
        assert await find(Upstream([dead] * number, Counts()), TARGET, A) is None
        assert trio.current_time() - began < 2

    run(main)


def test_a_fault_of_our_own_is_stopped(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a look-up is counted and logged, and the reply has the CNAME alone."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(dns.asyncresolver.Resolver, "resolve", broken)
    with caplog.at_level(logging.ERROR):
        found, _, counts = found_from(says(HERE))
    assert found is None and counts.failures == {"upstream": 1}
    assert "example.org" in caplog.text and "a fault" in caplog.text


# What is remembered


@pytest.mark.parametrize(
    ("behaviour", "seconds"),
    [
        (says(HERE), 60),
        (says(ALIAS, ALIAS_2, "b.example.net. 30 IN A 192.0.2.3"), 30),
        (says("example.org. 5 IN CNAME b.example.net.", "b.example.net. 30 IN A 192.0.2.3"), 5),
        (says("example.org. 86400 IN A 192.0.2.1"), 300),
        (says(rcode=dns.rcode.NXDOMAIN, soa=7), 7),
        (says(soa=7), 7),
        (says(rcode=dns.rcode.NXDOMAIN, soa=3600), 30),
        (says(ALIAS, rcode=dns.rcode.NXDOMAIN, soa=20), 20),
        (says(rcode=dns.rcode.SERVFAIL), 5),
        (silent, 5),
    ],
    ids=["its TTL", "the least TTL of all", "the least is the alias's", "300 s at most", "NXDOMAIN", "NODATA",
         "negative 30 s at most", "alias to nothing", "failure", "silence"],
)  # fmt: skip
def test_an_answer_is_remembered_as_long_as_it_lives(behaviour: Behaviour, seconds: int) -> None:
    """RFC 2308 for negative answers; RFC 9520 for failures, so that a dead upstream is not asked each time."""

    async def main() -> None:
        async with asking(behaviour) as (elsewhere, (server,), counts):
            first = await find(elsewhere, TARGET, A)
            asked = len(server.asked)
            await trio.sleep(seconds - 0.1)
            before = trio.current_time()
            again = await find(elsewhere, TARGET, A)
            assert trio.current_time() == before and len(server.asked) == asked
            assert counts.upstream["remembered"] == 1
            assert (first is None) == (again is None)
            await trio.sleep(0.2)
            await find(elsewhere, TARGET, A)
            assert len(server.asked) > asked and counts.upstream["remembered"] == 1

    run(main)


def test_ttls_count_down() -> None:
    """RFC 1035, 3.2.1: a cached record has the rest of its TTL, never below 0."""

    async def main() -> None:
        async with asking(says(ALIAS, "a.example.net. 30 IN A 192.0.2.3")) as (elsewhere, (server,), _):
            for seconds, expected in ((0, [50, 30]), (0.9, [50, 30]), (1, [49, 29]), (27, [22, 2]), (1, [21, 1])):
                await trio.sleep(seconds)
                found = await find(elsewhere, TARGET, A)
                assert found is not None and [record.ttl for record in found] == expected
            assert len(server.asked) == 1

    run(main)


def test_types_and_names_are_remembered_apart() -> None:
    """An answer for one type says nothing about another."""

    async def main() -> None:
        async with asking(says(HERE)) as (elsewhere, (server,), _):
            for target, qtype in ((TARGET, A), (TARGET, AAAA), ("example.net", A)) * 2:
                await find(elsewhere, target, qtype)
            assert [name for name, _ in server.asked] == [TARGET, TARGET, "example.net"]

    run(main)


def test_ttl_0_is_not_remembered() -> None:
    """RFC 1035, 3.2.1: TTL 0 is for the current transaction only."""

    async def main() -> None:
        async with asking(says("example.org. 0 IN A 192.0.2.1")) as (elsewhere, (server,), _):
            for number in (1, 2):
                assert await find(elsewhere, TARGET, A) == (address("192.0.2.1", ttl=0),)
                assert len(server.asked) == number

    run(main)


def test_memory_is_bounded() -> None:
    """A client that asks for many types displaces old answers and takes no more memory."""

    async def main() -> None:
        async with asking(says()) as (elsewhere, _, _):
            asked = range(256, 256 + upstream.MAX_REMEMBERED + 50)
            for qtype in asked:
                await find(elsewhere, TARGET, qtype)
            assert [qtype for qtype in asked if elsewhere.answer_at_once(TARGET, qtype, SHOP)] == [
                *asked[-upstream.MAX_REMEMBERED :]
            ]

    run(main)


# Who waits together


def test_equal_look_ups_are_one() -> None:
    """A hundred clients at once cause one upstream query, even for an answer with TTL 0."""

    async def main() -> None:
        async with asking(after(0.5, says("example.org. 0 IN A 192.0.2.1"))) as (elsewhere, (server,), counts):
            found = []

            async def look() -> None:
                found.append(await find(elsewhere, TARGET, A))

            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(look)
            assert found == [(address("192.0.2.1", ttl=0),)] * 100
            assert len(server.asked) == 1 and counts.upstream == {"answered": 100}

    run(main)


def test_who_joins_late_waits_no_longer_than_the_look_up() -> None:
    """If the look-up fails, it fails for all at once."""

    async def main() -> None:
        async with asking(silent) as (elsewhere, _, _), trio.open_nursery() as nursery:
            nursery.start_soon(elsewhere.find, TARGET, A, SHOP)
            await trio.sleep(1.5)
            began = trio.current_time()
            assert await find(elsewhere, TARGET, A) is None
            assert trio.current_time() - began == pytest.approx(0.3, abs=0.02)

    run(main)


def test_when_the_asker_leaves_those_who_joined_still_get_their_answer() -> None:
    """If the first client disconnects, the others still get the answer."""

    async def main() -> None:
        async with asking(after(0.5, says(HERE))) as (elsewhere, (server,), _), trio.open_nursery() as nursery:
            leaver = trio.CancelScope()
            found = []

            async def leave() -> None:
                with leaver:
                    await find(elsewhere, TARGET, A)

            async def stay() -> None:
                found.append(await find(elsewhere, TARGET, A))

            nursery.start_soon(leave)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(stay)
            await trio.sleep(0.3)
            leaver.cancel()
            await trio.sleep(0.6)
            assert found == [(address("192.0.2.1"),)] * 3
            assert len(server.asked) == 2

    run(main)


def test_nobody_waits_longer_for_having_been_left() -> None:
    """If another query takes over the look-up, each keeps its own deadline."""

    async def main() -> None:
        async with asking(silent) as (elsewhere, _, _), trio.open_nursery() as nursery:
            seconds: list[float] = []

            async def look() -> None:
                began = trio.current_time()
                assert await find(elsewhere, TARGET, A) is None
                seconds.append(trio.current_time() - began)

            with trio.move_on_after(1.6):
                nursery.start_soon(later, 0.1, look)
                for _ in range(20):
                    nursery.start_soon(later, 1.5, look)
                await find(elsewhere, TARGET, A)
        assert len(seconds) == 21 and max(seconds) < 2

    run(main)


async def later(seconds: float, begin: Callable[[], Awaitable[None]]) -> None:
    await trio.sleep(seconds)
    await begin()


# Shares


async def slow_ones_never(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
    """Answer at once with an address, but never for a name that begins with "slow"."""
    name = asked.question[0].name.to_text()
    return [] if name.startswith("slow") else await says(f"{name} 60 IN A 192.0.2.1")(server, asked, proto)


Asked = tuple[str, int, str]  # name, type, namespace
SEVERAL_TYPES = (A, AAAA, SOA, MX, TXT, 33, 35, 64, 65)
ATTACKS: dict[str, list[Asked]] = {
    "many names": [(f"slow{n}.example.org", A, "evil") for n in range(400)],
    "many types": [(f"slow{n}.example.org", qtype, "evil") for n in range(50) for qtype in SEVERAL_TYPES],
    "one name": [("slow.example.org", A, "evil")] * 2000,
    "many names that are remembered": [(f"n{n}.example.org", A, "evil") for n in range(400)],
    "several namespaces": [(f"slow{n}.example.org", A, f"evil{n % 20}") for n in range(800)],
    "a hundred namespaces": [(f"slow{n}.example.org", A, f"evil{n % 100}") for n in range(800)],
    "names of others": [("slow.good.example.org", A, "evil"), *[(f"slow{n}", A, "evil") for n in range(300)]],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_other_namespaces_are_answered_whatever_one_asks_for(attack: Sequence[Asked]) -> None:
    """However many names of a namespace are never answered, those of another one are looked up at once."""

    async def main() -> None:
        async with asking(slow_ones_never) as (elsewhere, _, counts), trio.open_nursery() as nursery:

            async def attacked() -> None:
                while True:
                    for asked in attack:
                        nursery.start_soon(elsewhere.find, *asked)
                    await trio.sleep(0.3)

            nursery.start_soon(attacked)
            await trio.sleep(1)
            for number in range(30):
                assert await find(elsewhere, f"x{number}.example.net", A, "good") is not None, number
                await trio.sleep(0.05)
            assert "good" not in counts.refused_lookups.numbers
            nursery.cancel_scope.cancel()

    run(main)


def test_the_share_of_a_namespace() -> None:
    """16 look-ups at a time; others wait for half of the time, then they are refused, which is not remembered.

    Nor is it that a look-up had no answer in what was left after the wait for its turn.
    """
    taken: dict[str, tuple[float, int]] = {}

    async def main() -> None:
        async with asking(slow_ones_never) as (elsewhere, (server,), counts):

            async def look(name: str) -> None:
                began, said = trio.current_time(), await elsewhere.find(name, A, SHOP)
                assert said.failed and said.extended_error is not None
                taken[name] = trio.current_time() - began, said.extended_error[0]
                if said.extended_error[0] == 23:
                    assert said.extended_error[1] == (
                        "too many look-ups of namespace shop: at most 16 at a time, and 256 queries that wait"
                    )

            async with trio.open_nursery() as nursery:
                for number in range(upstream.LOOKUPS_EACH):
                    nursery.start_soon(look, f"slow{number}")
                await trio.testing.wait_all_tasks_blocked(0.001)
                nursery.start_soon(look, "slow16")
                await trio.sleep(1)
                nursery.start_soon(look, "slow17")  # its turn comes when the first ones end
            assert taken.pop("slow16") == (pytest.approx(0.9, abs=0.05), 23)
            assert len(taken) == 17
            assert all(found == (pytest.approx(1.8, abs=0.05), 22) for found in taken.values())
            assert counts.upstream == {"failed": 17, "refused": 1}
            assert counts.refused_lookups.due(0) == [SHOP]
            asked = [name for name, _ in server.asked]
            for name, again in (("slow0", False), ("slow16", True), ("slow17", True)):
                await elsewhere.find(name, A, SHOP)
                assert ([other for other, _ in server.asked[len(asked) :]].count(name) > 0) == again, name

    run(main)


def test_what_another_namespace_asks_for_needs_no_turn_of_its_own() -> None:
    """Whoever joins a look-up takes no place; and one that waits begins with the first namespace that has room."""

    async def main() -> None:
        async with asking(slow_ones_never) as (elsewhere, (server,), counts), trio.open_nursery() as nursery:
            for namespace in ("evil", "good"):
                for number in range(upstream.LOOKUPS_EACH):
                    nursery.start_soon(elsewhere.find, f"slow{number}", A, namespace)
                    await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(elsewhere.find, "waits", A, namespace)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert counts.upstream["answered"] == (2 if namespace == "good" else 0)
            assert [name for name, _ in server.asked].count("waits") == 1
            nursery.cancel_scope.cancel()

    run(main)


def test_no_namespace_displaces_the_answers_of_another() -> None:
    """When the memory is full, whoever fills most of it loses the oldest answer."""

    async def main() -> None:
        async with asking(says(HERE)) as (elsewhere, _, _):
            kept = [(f"n{number}.example.org", A) for number in range(100)]
            for name, qtype in kept:
                await find(elsewhere, name, qtype, OTHER)
            for number in range(upstream.MAX_REMEMBERED + 50):
                await find(elsewhere, f"m{number}.example.org", A)
            assert all(elsewhere.answer_at_once(name, qtype, OTHER) for name, qtype in kept)

    run(main)


# Where it is


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ("# kubelet's\nsearch shop.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", ["10.96.0.10:53"]),
        ("nameserver 192.0.2.1\nnameserver 2001:db8::1\n", ["192.0.2.1:53", "[2001:db8::1]:53"]),
        ("nameserver fe80::1%eth0\nnameserver 192.0.2.1\n", ["192.0.2.1:53"]),
        ("", "no nameservers"),
        ("search example.org\n", "no nameservers"),
        ("nameserver fe80::1%eth0\n", "only link-local"),
        ("nameserver localhost\n", "localhost"),
        (b"nameserver \xff\n", "decode"),
        (None, "cannot open"),
    ],
)  # fmt: skip
def test_a_pods_resolv_conf_names_its_servers(
    tmp_path: Path, text: str | bytes | None, expected: list[str] | str
) -> None:
    """resolv.conf(5), as kubelet and dockerd write it; an error names file and reason."""
    path = tmp_path / "resolv.conf"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, list):
        assert [str(server) for server in servers_in(str(path))] == expected
        return
    with pytest.raises(NoServers) as raised:
        servers_in(str(path))
    assert str(path) in str(raised.value) and expected in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "pod", "text", "expected"),
    [
        ({}, False, "nameserver 10.96.0.10\n", []),
        ({}, True, "nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ({}, True, "", []),
        ({"upstream": False}, True, "nameserver 10.96.0.10\n", []),
        ({"upstream": ["192.0.2.1", "[2001:db8::1]:5353"]}, True, "", ["192.0.2.1:53", "[2001:db8::1]:5353"]),
    ],
    ids=["no pod", "pod", "pod without servers", "off", "given"],
)
def test_who_is_asked(
    flags: dict[str, Any], pod: bool, text: str, expected: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """--upstream; otherwise, in a pod, the servers of its resolv.conf, or none with a warning; else none."""
    (tmp_path / "resolv.conf").write_text(text)
    monkeypatch.setattr(from_settings, "RESOLV_CONF", str(tmp_path / "resolv.conf"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    settings = settings_of(flags)
    assert [str(server) for server in from_settings.upstream_of(settings)] == expected
    assert from_settings.authority_of(settings).has_upstream == bool(expected)
    assert ("--upstream" in caplog.text) == (pod and not flags and not expected)


# Who waits, and who does not


class Listening(NamedTuple):
    """A UDP server in this process, and its parts."""

    port: int
    counts: Counts
    responder: Responder
    scope: trio.CancelScope


@asynccontextmanager
async def listening(elsewhere: Upstream, counts: Counts, at: str = "127.0.0.1") -> AsyncIterator[Listening]:
    responder = responder_of(WITH_ALIASES, {"upstream": "127.0.0.1"}, counts=counts)
    with socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        udp.prepare(sock, wildcard=at in ("0.0.0.0", "::"))
        sock.bind((at, 0))
        async with trio.open_nursery() as nursery:
            await nursery.start(udp.serve, sock, responder, counts, elsewhere)
            yield Listening(sock.getsockname()[1], counts, responder, nursery.cancel_scope)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def client_of(server: Listening, to: str = "127.0.0.1") -> AsyncIterator[trio.socket.SocketType]:
    """Return a connected socket, which accepts replies from the asked address alone."""
    with trio.socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        await sock.connect((to, server.port))
        yield sock


def rows(reply: bytes) -> list[str]:
    return [row for rrset in dns.message.from_wire(reply).answer for row in rrset.to_text().splitlines()]


CNAME_ROW, ADDRESS_ROW = f"{OUT}. 5 IN CNAME example.org.", "example.org. 60 IN A 192.0.2.1"


def test_others_are_answered_while_one_waits() -> None:
    """Over UDP, a query that waits does not delay others, before or after it in a batch."""

    async def main() -> None:
        async with (
            asking(after(0.5, says(HERE))) as (elsewhere, _, counts),
            listening(elsewhere, counts) as server,
            client_of(server) as client,
        ):
            began = trio.current_time()
            for number, name in enumerate((WEB, OUT, WEB, OUT, WEB)):
                await client.send(query(name, number=number))
            first = {(await client.recv(2048))[1] for _ in range(3)}
            assert first == {0, 2, 4} and trio.current_time() == began
            late = [await client.recv(2048) for _ in range(2)]
            assert {reply[1] for reply in late} == {1, 3} and trio.current_time() - began == pytest.approx(
                0.5, abs=0.05
            )
            assert [rows(reply) for reply in late] == [[CNAME_ROW, ADDRESS_ROW]] * 2
            await trio.testing.wait_all_tasks_blocked()
            assert sum(counts.durations.numbers) == 5
            await client.send(query(OUT, number=5))
            assert rows(await client.recv(2048)) == [CNAME_ROW, ADDRESS_ROW]
            assert counts.upstream == {"answered": 2, "remembered": 1} and sum(counts.durations.numbers) == 6

    run(main)


CHAIN_OUT_AGAIN = {  # from OUT
    "example.org.": "example.org. 60 IN CNAME a.example.org.",
    "a.example.org.": f"a.example.org. 60 IN CNAME {OUT_2}.",
    "example.net.": "example.net. 60 IN A 192.0.2.1",
}


async def slow_chain(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
    row = CHAIN_OUT_AGAIN[asked.question[0].name.to_text()]
    return await after(0.8, says(row, soa=None))(server, asked, proto)


def test_all_look_ups_of_a_query_take_less_than_two_seconds() -> None:
    """A chain that leads out again: the last look-up has the rest of the time, and no failure is remembered of it."""

    async def main() -> None:
        async with (
            asking(slow_chain) as (elsewhere, _, counts),
            listening(elsewhere, counts) as server,
            client_of(server) as client,
        ):
            taken = []
            for number in range(2):
                began = trio.current_time()
                await client.send(query(OUT, number=number))
                reply = dns.message.from_wire(await client.recv(2048))
                taken.append((reply.rcode(), trio.current_time() - began))
            assert taken == [(SERVFAIL, pytest.approx(1.8, abs=0.05)), (0, pytest.approx(0.8, abs=0.05))]
            assert [rrset[0].to_text() for rrset in reply.answer] == [
                "example.org.", "a.example.org.", f"{OUT_2}.", "example.net.", "192.0.2.1",
            ]  # fmt: skip
            assert counts.upstream == {"answered": 3, "failed": 1, "remembered": 2}

    run(main)


def test_those_of_an_explanation_take_as_long() -> None:
    """It says what the server would answer, however long it waits for its turn."""
    snapshot, authority = snapshot_of(WITH_ALIASES), from_settings.authority_of(settings_of({"upstream": "127.0.0.1"}))
    turn = 2.0  # seconds

    async def main() -> None:
        async with asking(slow_chain) as (elsewhere, _, counts):

            async def compute(outside: Callable[[str], UpstreamAnswer | None]) -> Explanation:
                await trio.sleep(turn)
                return explain(labels_of(OUT), A, parse_network("127.1.0.1/32"), snapshot, authority, outside=outside)

            taken = []
            for _ in range(2):
                began = trio.current_time()
                explained = await elsewhere.find_all(compute, A)
                taken.append((explained.rcode, trio.current_time() - began - 4 * turn))
            assert taken == [("SERVFAIL", pytest.approx(1.8, abs=0.05)), ("NOERROR", pytest.approx(0.8, abs=0.05))]
            assert explained.answers[-1].data == "192.0.2.1"
            assert counts.upstream == {"answered": 3, "failed": 1, "remembered": 2}

    run(main)


def test_those_of_the_command_take_as_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topodns: commands_in_process.Run
) -> None:
    """All but the first have what is left of the time; the first fails by itself, as for a query."""
    deadlines = []

    async def found(_: Upstream, target: str, qtype: int, __: str, *, deadline: float = inf) -> UpstreamAnswer:
        deadlines.append(deadline - trio.current_time())
        row = CHAIN_OUT_AGAIN[f"{target}."].split()
        return outside.said([outside.alias(target, row[-1].rstrip(".")) if row[3] == "CNAME" else address(row[-1])])

    monkeypatch.setattr(Upstream, "find", found)
    (tmp_path / "cluster.json").write_text(WITH_ALIASES)
    ran = topodns("explain", OUT, "--client", "127.1.0.1", "-o", "json", "--upstream", "192.0.2.1",
                  "--snapshot", str(tmp_path / "cluster.json"))  # fmt: skip
    assert ran.json["rcode"] == "NOERROR"
    first, *others = deadlines
    assert first == inf and len(others) == 2 and all(seconds <= upstream.LOOKUP_SECONDS for seconds in others)


ASKED_AT = [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.0.0.5"), ("::", "::1"),
            ("::", "127.0.0.1"), ("::", "127.0.0.5"), ("::1", "::1")]  # fmt: skip


@pytest.mark.parametrize(("at", "to"), ASKED_AT, ids=[f"{at} asked at {to}" for at, to in ASKED_AT])
def test_a_late_reply_leaves_from_the_address_that_was_asked(at: str, to: str) -> None:
    """On wildcard listeners, too, and with other queries in between."""
    if ":" in at and not has_ipv6():
        lacking("there is no IPv6 here")

    async def main() -> None:
        async with (
            asking(after(0.5, says(HERE))) as (elsewhere, _, counts),
            listening(elsewhere, counts, at) as server,
            client_of(server, to) as client,
            client_of(server, "::1" if at.startswith("::") else "127.0.0.1") as other,
        ):
            await client.send(query(OUT, number=1))
            await trio.testing.wait_all_tasks_blocked(0.02)
            for number in (2, 3):
                await other.send(query(WEB, number=number))
                assert (await other.recv(2048))[1] == number
            reply = await client.recv(2048)
            assert reply[1] == 1 and rows(reply) == [CNAME_ROW, ADDRESS_ROW]

    run(main)


def test_each_late_reply_goes_to_whoever_asked() -> None:
    """Two hundred clients wait, in batches with others that do not."""

    async def main() -> None:
        async with (
            asking(after(0.5, says(HERE))) as (elsewhere, (upstream_server,), counts),
            listening(elsewhere, counts, "0.0.0.0") as server,
            AsyncExitStack() as stack,
        ):
            clients = [await stack.enter_async_context(client_of(server, f"127.0.0.{n + 1}")) for n in range(200)]
            for number, client in enumerate(clients):
                await client.send(query(OUT if number % 3 else WEB, number=number))
            for number, client in enumerate(clients):
                assert int.from_bytes((await client.recv(2048))[:2]) == number
            assert len(upstream_server.asked) == 1

    run(main)


@pytest.mark.parametrize("meanwhile", ["another query", "another alias"])
def test_when_the_server_ends_those_that_wait_are_told(meanwhile: str) -> None:
    """Queries that wait, or have just arrived, get SERVFAIL at once, and ask another server.

    So do those whose alias has changed: what is looked up in the end is not what the query waited for.
    """

    async def main() -> None:
        async with (
            asking(silent) as (elsewhere, _, counts),
            listening(elsewhere, counts) as server,
            client_of(server) as client,
        ):
            waiting = [1]
            await client.send(query(OUT, number=1))
            await trio.testing.wait_all_tasks_blocked(0.02)
            if meanwhile == "another query":
                waiting.append(2)
                await client.send(query(OUT_2, number=2))
            else:
                server.responder.publish(snapshot_of(WITH_ALIASES.replace("example.org", "example.edu")))
            server.scope.cancel()
            with trio.fail_after(10_000, shield=True):
                replies = [dns.message.from_wire(await client.recv(2048)) for _ in waiting]
        assert sorted((reply.id, reply.rcode(), reply.answer) for reply in replies) == [
            (number, SERVFAIL, []) for number in waiting
        ]

    run(main)


def test_a_fault_in_a_late_reply_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a late reply is counted and logged, and costs that reply alone."""

    async def main() -> None:
        async with (
            asking(after(0.5, says(HERE))) as (elsewhere, _, counts),
            listening(elsewhere, counts) as server,
            client_of(server) as client,
        ):

            def broken(*_: object) -> bytes:
                raise RuntimeError("a fault")

            kept, server.responder.finish = server.responder.finish, broken  # type: ignore[method-assign]
            await client.send(query(OUT, number=1))
            await trio.sleep(2)
            await client.send(query(OUT, number=2))  # remembered by now
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert counts.failures == {"packet": 2}
            server.responder.finish = kept  # type: ignore[method-assign]
            await client.send(query(OUT, number=3))
            assert (await client.recv(2048))[1] == 3

    run(main)
    assert "a fault" in caplog.text


ALIASES = listed([
    external(f"{name}{number}", f"{name}{number}.example.org", where=namespace)
    for namespace, name in (("evil", "slow"), ("good", "x")) for number in range(150)
])  # fmt: skip


async def asked_by(proto: str, port: int, queries: Sequence[bytes]) -> list[Message]:
    """Send queries all at once, over TCP on as many connections or "pipelined" on one; return the replies."""
    if proto == "udp":
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            await sock.connect(("127.0.0.1", port))
            for asked in queries:
                await sock.send(asked)
            return [dns.message.from_wire(await sock.recv(2048)) for _ in queries]
    parts = [queries] if proto == "pipelined" else [[asked] for asked in queries]
    async with AsyncExitStack() as stack:
        replies = []
        peers = [Peer(await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))) for _ in parts]
        for peer, part in zip(peers, parts, strict=True):
            await peer.send(*part)
        for peer, part in zip(peers, parts, strict=True):
            replies += [dns.message.from_wire(await peer.read()) for _ in part]
        return replies


@pytest.mark.parametrize(("proto", "qtypes"), [("udp", (A, AAAA)), ("udp", (A, 33, 64, 65)), ("tcp", (A,)),
                                               ("pipelined", (A, AAAA))])  # fmt: skip
def test_what_is_refused_or_fails_is_servfail_and_others_are_answered(proto: str, qtypes: Sequence[int]) -> None:
    """Never the CNAME alone, which looks whole; who asks about another namespace meanwhile gets the address."""
    attack = [query(f"slow{n}.evil.svc.cluster.local", qtype) for qtype in qtypes for n in range(150 // len(qtypes))]
    attacked: list[Message] = []

    async def attacker(port: int) -> None:
        attacked.extend(await asked_by(proto, port, attack))

    async def main() -> None:
        async with asking(slow_ones_never) as (elsewhere, _, counts):
            responder = responder_of(ALIASES, {"upstream": "127.0.0.1"}, counts=counts)
            async with serving_in_memory(responder, counts, elsewhere) as port, trio.open_nursery() as nursery:
                nursery.start_soon(attacker, port)
                await trio.testing.wait_all_tasks_blocked(0.02)
                began = trio.current_time()
                replies = await asked_by(proto, port, [query(f"x{n}.good.svc.cluster.local") for n in range(12)])
                assert not attacked and trio.current_time() - began < 1
                assert [len(reply.answer) for reply in replies] == [2] * 12
        assert {(reply.rcode(), len(reply.answer), len(reply.authority)) for reply in attacked} == {(SERVFAIL, 0, 0)}
        assert len(attacked) == len(attack) and counts.upstream["refused"] > 100

    run(main)


@asynccontextmanager
async def serving_in_memory(responder: Responder, counts: Counts, elsewhere: Upstream) -> AsyncIterator[int]:
    """Serve over UDP and TCP; yield the port."""
    datagrams, streams = sharing_a_port(prepare=partial(udp.prepare, wildcard=False))
    streams.setblocking(False)
    held = HeldOctets(counts.failures)
    server = tcp.TcpServer(responder, counts, elsewhere, held=held, limit=1000, idle=1e6, in_flight=1000)
    with datagrams:
        async with trio.open_nursery() as nursery:
            await nursery.start(udp.serve, datagrams, responder, counts, elsewhere)
            await nursery.start(server.serve)
            await nursery.start(server.listen, streams)
            yield datagrams.getsockname()[1]
            nursery.cancel_scope.cancel()


# Real processes


@contextmanager
def in_a_thread(behaviour: Behaviour) -> Iterator[tuple[str, Elsewhere]]:
    """Run an upstream in real time; yield its address."""
    server = Elsewhere(behaviour)
    begun, where, scopes = threading.Event(), [], []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            where.append(await nursery.start(server.serve))
            scopes.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            begun.set()

    thread = threading.Thread(target=trio.run, args=[main])
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield str(where[0]), server
    finally:
        token, scope = scopes[0]
        token.run_sync_soon(scope.cancel)
        thread.join(PATIENCE)


@pytest.fixture
def serve_beside(tmp_path: Path) -> Iterator[Callable[..., tuple[Server, Elsewhere]]]:
    """Return a function that starts a server whose upstream has some behaviour."""
    with ExitStack() as stack:

        def start(behaviour: Behaviour) -> tuple[Server, Elsewhere]:
            where, elsewhere = stack.enter_context(in_a_thread(behaviour))
            flags = {"upstream": where, "http": "127.0.0.1:0"}
            return stack.enter_context(serving(tmp_path, WITH_ALIASES, flags=flags)), elsewhere

        yield start


Beside = Callable[[Behaviour], tuple[Server, Elsewhere]]


@pytest.fixture
def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make servers wait longer than 2 s for an upstream: on a busy machine it may take that long."""
    code = f"{topodns_process.FRESH_METRICS}; from dnsserver.cli.main import main; from dnsserver.net import upstream; "
    code += f"upstream.LOOKUP_SECONDS = {PATIENCE / 2}; raise SystemExit(main())"
    monkeypatch.setattr(topodns_process, "SERVER_COMMAND", (sys.executable, "-c", code))


@pytest.mark.usefixtures("patiently")
@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_a_target_elsewhere_is_resolved(serve_beside: Beside, tcp: bool) -> None:
    """--upstream: the reply has the CNAME and the target's records, as clients of a stub zone do not look it up."""
    server, _ = serve_beside(says(ALIAS, ALIAS_2, "b.example.net. 30 IN A 192.0.2.3"))
    asked = dns.message.make_query(OUT, "A", flags=0)
    for _ in range(2):
        reply = server.ask(asked, tcp=tcp)
        found = [row.split() for row in rows(reply.to_wire())]
        assert [(row[0], row[-1]) for row in found] == [
            (f"{OUT}.", "example.org."),
            ("example.org.", "a.example.net."),
            ("a.example.net.", "b.example.net."),
            ("b.example.net.", "192.0.2.3"),
        ]
        assert reply.rcode() == 0 and reply.flags & dns.flags.AA
    # By the server's own count: an upstream that is slow is sent the same once more.
    looked_up = {key[1]: number for key, number in server.metrics().items() if "upstream_requests_total" in key[0]}
    assert looked_up == {"answered": 1, "remembered": 1, "failed": 0, "refused": 0}


def test_a_connection_gets_what_it_waits_for_when_the_server_ends(serve_beside: Beside) -> None:
    """After SIGTERM, a query in flight is answered before the server ends."""
    asked = threading.Event()

    async def noted(*_: object) -> list[bytes]:
        asked.set()
        return []

    server, _ = serve_beside(noted)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(server.ask, dns.message.make_query(OUT, "A"), tcp=True)
        assert asked.wait(PATIENCE)
        server.process.terminate()
        assert reply.result().rcode() == SERVFAIL and not reply.result().answer
    assert server.wait() == 0


@pytest.mark.parametrize("case", ["silence", "SERVFAIL", "another id", "CNAMEs in a circle", "another name"])
def test_a_look_up_that_fails_is_servfail(serve_beside: Beside, case: str) -> None:
    """Nothing that looks like the whole answer; others do not wait."""
    server, _ = serve_beside(FAILURES[case])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect((server.host, server.port))
        server.send(signal.SIGSTOP)  # until both are there: whatever holds us up, they are taken together
        sock.send(query(OUT, number=1))
        sock.send(query(WEB, number=2))
        server.send(signal.SIGCONT)
        first, second = (dns.message.from_wire(sock.recv(2048)) for _ in range(2))
    assert first.id == 2 and len(first.answer[0]) == 2
    assert (second.id, second.rcode(), second.answer, second.flags & dns.flags.AA) == (1, SERVFAIL, [], 0)


def test_metrics_tell_what_came_of_it() -> None:
    """topodns_upstream_requests_total counts by result."""
    _, _, counts = found_from(says(HERE))
    text = generate_latest(ServerMetrics(counts).registry()).decode()
    assert 'topodns_upstream_requests_total{result="answered"} 1.0' in text


@pytest.mark.usefixtures("patiently")
def test_unbound_as_upstream(tmp_path: Path) -> None:
    """A real resolver, with CNAMEs and missing names."""
    unbound = needs_tool("unbound")
    port = free_port()
    config = tmp_path / "unbound.conf"
    config.write_text(UNBOUND.format(port=port, folder=tmp_path))
    running = subprocess.Popen([unbound, "-d", "-c", str(config)], stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        assert any("start of service" in line for line in running.stderr)
        with serving(tmp_path, WITH_ALIASES, flags={"upstream": f"127.0.0.1:{port}"}) as server:
            for tcp in (False, True):
                for name, qtype, expected in (
                    (OUT, "A", ["example.org.", "192.0.2.1"]),
                    (OUT, "AAAA", ["example.org."]),
                    (OUT, "MX", ["example.org.", "mail.example.org."]),
                ):
                    reply = server.ask(dns.message.make_query(name, qtype), tcp=tcp)
                    assert [row.split()[-1] for row in rows(reply.to_wire())] == expected and reply.rcode() == 0
    finally:
        running.terminate()
        running.communicate(timeout=PATIENCE)


UNBOUND = """\
server:
  interface: 127.0.0.1
  port: {port}
  username: ""
  chroot: ""
  directory: {folder}
  pidfile: ""
  use-syslog: no
  verbosity: 1
  do-daemonize: no
  local-zone: example.org. static
  local-data: "example.org. 60 IN A 192.0.2.1"
  local-data: "example.org. 60 IN MX 10 mail.example.org."
  local-zone: example.net. static
"""
