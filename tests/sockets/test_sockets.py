# SPDX-License-Identifier: Apache-2.0

"""Real sockets: one port for UDP and TCP, replies from the address that was asked, bursts, and harmful clients."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import dns.rcode
import pytest
import trio

from dnsserver.net import tcp, udp
from dnsserver.net.bounds import TURN_SECONDS
from dnsserver.responder.responder import Responder
from tests.kit.dns_queries import opt, query
from tests.kit.in_memory import CountedResponder, with_and_without_native
from tests.kit.network_namespaces import PREFIX, one_network
from tests.kit.small_cluster import MANY, WEB, WEB_AND_MANY
from tests.kit.this_machine import free_port, has_ipv6, lacking, needs_tool
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

Serve = Callable[..., Server]


def listen(*addresses: str) -> dict[str, object]:
    return {"listen": list(addresses)}


LISTENERS = {"server": ("0.0.0.0:0", "127.0.0.5:0"), "dual": ("[::]:0", "[::1]:0")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at IPv4 addresses, shared by tests."""
    with serving(tmp_path_factory.mktemp("server"), WEB_AND_MANY, flags=listen(*LISTENERS["server"])) as server:
        server.host = "127.0.0.1"
        yield server
    assert not any("Traceback" in line for line in server.lines)


@pytest.fixture(scope="module")
def dual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server at IPv6 addresses, the first of which also accepts IPv4."""
    if not has_ipv6():
        lacking("there is no IPv6 here")
    with serving(tmp_path_factory.mktemp("dual"), WEB_AND_MANY, flags=listen(*LISTENERS["dual"])) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


def port_of(server: Server, at: str) -> int:
    """Return the port that a listener with port 0 got."""
    return int(server.wait_for(rf"^listening udp {re.escape(at.removesuffix('0'))}(\d+)$")[1])


def exchange(to: str, port: int, *, proto: str, source: str | None = None) -> bytes:
    """Ask for WEB from a connected socket, which accepts replies from the asked address alone; return the reply."""
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    kind = socket.SOCK_DGRAM if proto == "udp" else socket.SOCK_STREAM
    with socket.socket(family, kind) as sock:
        sock.settimeout(PATIENCE)
        if source:
            sock.bind((source, 0))
        sock.connect(socket.getaddrinfo(to, port, family, kind)[0][4])
        wire = query(WEB, edns=opt())
        if proto == "udp":
            sock.send(wire)
            return sock.recv(65535)
        sock.sendall(len(wire).to_bytes(2) + wire)
        with sock.makefile("rb") as file:
            return file.read(int.from_bytes(file.read(2)))


def addresses(reply: bytes) -> set[str]:
    return {row.to_text() for rrset in dns.message.from_wire(reply).answer for row in rrset}


ASKED_AT = [
    ("server", "0.0.0.0:0", "127.0.0.1"),
    ("server", "0.0.0.0:0", "127.0.0.5"),
    ("server", "0.0.0.0:0", "127.255.3.4"),
    ("server", "127.0.0.5:0", "127.0.0.5"),
    ("dual", "[::]:0", "::1"),
    ("dual", "[::]:0", "127.0.0.1"),
    ("dual", "[::]:0", "127.0.0.5"),
    ("dual", "[::1]:0", "::1"),
]


@pytest.mark.parametrize(("which", "at", "to"), ASKED_AT, ids=[f"{at} asked at {to}" for _, at, to in ASKED_AT])
def test_replies_leave_from_the_address_that_was_asked(
    request: pytest.FixtureRequest, which: str, at: str, to: str
) -> None:
    """Over UDP and TCP, on wildcard listeners, too, and for IPv4 on a dual-stack listener."""
    port = port_of(request.getfixturevalue(which), at)
    for proto in ("udp", "tcp", "udp"):
        assert addresses(exchange(to, port, proto=proto)) == {"10.0.0.1", "10.0.0.2"}


def test_both_wildcards_share_a_port(tmp_path: Path) -> None:
    """0.0.0.0 and [::] with the same port are two listeners, one for each family."""
    if not has_ipv6():
        lacking("there is no IPv6 here")
    port = free_port(address="::")  # and with it 0.0.0.0
    with serving(tmp_path, WEB_AND_MANY, flags=listen(f"0.0.0.0:{port}", f"[::]:{port}")) as server:
        for to in ("127.0.0.1", "127.0.0.5", "::1"):
            for proto in ("udp", "tcp"):
                assert addresses(exchange(to, port, proto=proto)) == {"10.0.0.1", "10.0.0.2"}
        assert sum(line.startswith("listening ") for line in server.lines) == 4


@pytest.mark.parametrize("transport", ["+notcp", "+tcp"])
def test_dig_reads_every_reply_without_complaint(server: Server, transport: str) -> None:
    """dig reports no unexpected source, no malformed message, no wrong ID or question."""
    dig = needs_tool("dig")
    asked = ["@127.0.0.5", "-p", str(server.port), "+tries=1", "+time=10", "+norec", transport]
    for more, expected in (
        ([WEB, "A"], r"status: NOERROR"),
        ([WEB, "A", "+noedns"], r"\s10\.0\.0\.1\n"),
        ([WEB, "SRV"], r"SRV\s+0 50 80 10-0-0-2\.web"),
        ([WEB, "A", "+subnet=192.0.2.7/32"], r"CLIENT-SUBNET: 192\.0\.2\.7/32/0"),
        ([WEB, "A", "+subnet=0"], r"CLIENT-SUBNET: 0\S*/0/0"),
        ([MANY, "A"], r"ANSWER: 250"),
        (["nope.shop.svc.cluster.local", "A"], r"status: NXDOMAIN"),
        (["example.com", "A"], r"status: REFUSED"),
        ([WEB, "A", "+edns=1", "+noednsneg"], r"status: BADVERS"),
        ([WEB, "ANY", transport], r"HINFO\s+\"RFC8482\""),
    ):
        found = subprocess.run([dig, *asked, *more], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert re.search(expected, found.stdout), (more, found.stdout)
        assert found.returncode == 0
        assert not re.search(r"unexpected source|[Mm]alformed|mismatch|extra|WARNING: M", found.stdout + found.stderr)


def test_a_burst_loses_nothing(server: Server) -> None:
    """Two thousand queries at once wait in the socket's buffer, and each client gets the replies to its own."""
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(40)]
        for number, sock in enumerate(socks):  # many, so that no buffer of the client's own is the limit
            sock.settimeout(PATIENCE)
            sock.bind((f"127.0.1.{number + 1}", 0))
            sock.connect((server.host, server.port))
        for number in range(2000):
            socks[number % 40].send(query(WEB if number % 3 else MANY, number=number, edns=opt()))
        for number, sock in enumerate(socks):
            assert {int.from_bytes(sock.recv(2048)[:2]) for _ in range(50)} == set(range(number, 2000, 40))


class Costly:
    """A server by UDP, whose every query takes a whole turn, and *number* queries that have come to its socket."""

    def __init__(self, number: int, *, native: bool) -> None:
        self.number = number
        self.answered: list[bytes] = []
        self.responder = CountedResponder(native=native)
        self.responder.answer = self._answer  # type: ignore[method-assign]

    def _answer(self, wire: bytes, *more: Any, **named: Any) -> Any:
        self.answered.append(wire)
        end = time.perf_counter() + TURN_SECONDS
        while time.perf_counter() < end:
            pass
        return Responder.answer(self.responder, wire, *more, **named)

    def served(self, meanwhile: Callable[[], Awaitable[None]]) -> set[int]:
        """Serve until *meanwhile* has ended; return the numbers of the replies."""

        async def main() -> None:
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    serve = partial(udp.serve, native=self.responder.native)
                    await nursery.start(serve, sock, self.responder, self.responder.counts)
                    await meanwhile()
                    nursery.cancel_scope.cancel()

        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        ):
            client.settimeout(PATIENCE)
            udp.prepare(sock, wildcard=False)
            sock.bind(("127.0.0.1", 0))
            for number in range(self.number):
                client.sendto(query(WEB, number=number), sock.getsockname())
            trio.run(main)
            return {int.from_bytes(client.recv(512)[:2]) for _ in self.answered}


@with_and_without_native
def test_costly_queries_leave_other_tasks_their_turns(native: bool) -> None:
    """UDP takes some milliseconds at a time, whatever its queries cost, and answers all that it has received."""
    server, seen = Costly(10, native=native), [0]

    async def until_all_are_answered() -> None:
        while seen[-1] < 10:
            await trio.lowlevel.checkpoint()
            seen.append(len(server.answered))

    assert server.served(until_all_are_answered) == set(range(10))
    assert max(after - before for before, after in pairwise(seen)) <= 2  # trio may give two turns to one


@with_and_without_native
def test_what_waits_at_the_end_is_answered_or_counted(native: bool) -> None:
    """However many datagrams wait for Python when the server ends: it answers some, and counts the others as lost."""
    server = Costly(300, native=native)
    server.served(trio.lowlevel.checkpoint)
    server.responder.counts.catch_up()
    assert 0 < len(server.answered) < 300
    assert len(server.answered) + server.responder.counts.failures["queue"] == 300


def test_much_is_sent_without_waiting() -> None:
    """As metrics and pages are through ``kubectl port-forward``, which reads them at the loopback interface."""
    octets = bytes(8 << 20)
    with socket.socket() as listener, socket.socket() as client:
        tcp.prepare(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.settimeout(PATIENCE)
        client.connect(listener.getsockname())
        listener.settimeout(PATIENCE)
        sock, _ = listener.accept()
        with sock, ThreadPoolExecutor(1) as thread:
            began, sent = time.monotonic(), thread.submit(sock.sendall, octets)
            left = len(octets)
            while left:
                left -= len(client.recv(65536))
            sent.result()
    assert time.monotonic() - began < 1  # two hundred waits of 20 ms are 4 s


@pytest.mark.parametrize("which", ["server", "dual"])
def test_a_query_from_port_0_harms_nobody(request: pytest.FixtureRequest, which: str) -> None:
    """A reply to port 0 cannot be sent; the others of its batch are."""
    server: Server = request.getfixturevalue(which)
    try:
        forger = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        lacking("forging a source port needs root")
    with forger, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", server.port))
        for number in range(100):
            wire = query(WEB, number=number)
            forger.sendto(struct.pack("!4H", 0, server.port, 8 + len(wire), 0) + wire, ("127.0.0.1", 0))
            sock.send(wire)
        assert {int.from_bytes(sock.recv(2048)[:2]) for _ in range(100)} == set(range(100))


# Another machine

ASK_FROM_THERE = """
import socket, sys
wire, port = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
for to in sys.argv[3:]:
    family = socket.AF_INET6 if ":" in to else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.settimeout(20)
        sock.connect((to, port))
        sock.send(wire)
        print(to, sock.recv(2048).hex())
"""


@pytest.mark.parametrize("at", ["0.0.0.0:0", "[::]:0"])
def test_each_address_of_an_interface_answers_for_itself(serve: Serve, at: str) -> None:
    """On an interface with two addresses, replies leave from the asked one, not the routing table's choice."""
    with one_network() as network, network.machine(f"{PREFIX}.9", "fd77::9") as other:
        asked = [network.address, f"{PREFIX}.2", *(["fd77::1", "fd77::2"] if at.startswith("[") else [])]
        for address in asked[1:]:
            network.take(address)
        server = serve(WEB_AND_MANY, flags=listen(at))
        program = [sys.executable, "-c", ASK_FROM_THERE, query(WEB).hex(), str(server.port), *asked]
        found = subprocess.run([*other.there, *program], capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 0, found.stderr
        replies = {to: bytes.fromhex(reply) for to, reply in map(str.split, found.stdout.splitlines())}
        assert {to: addresses(reply) for to, reply in replies.items()} == {to: {"10.0.0.1", "10.0.0.2"} for to in asked}
        assert server.end() == 0
