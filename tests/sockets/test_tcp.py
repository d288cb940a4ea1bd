# SPDX-License-Identifier: Apache-2.0

"""DNS over TCP (RFC 7766, RFC 9210): how clients write, how they leave, and what a harmful client can do."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import dns.message
import pytest

from tests.kit import dns_queries
from tests.kit.dns_queries import framed, opt, query
from tests.kit.replies import parts_of
from tests.kit.small_cluster import MANY, WEB, WEB_AND_MANY
from tests.kit.this_machine import needs_tool
from tests.kit.topodns_process import Server, serving
from tests.kit.waiting import PATIENCE

Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests share; none of them may harm it."""
    with serving(tmp_path_factory.mktemp("tcp"), WEB_AND_MANY) as server:
        yield server
    assert not any("Traceback" in line for line in server.lines)


class Client:
    """A TCP connection that writes and reads framed messages."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file: BinaryIO = sock.makefile("rb")

    def send(self, *messages: bytes) -> None:
        self.sock.sendall(b"".join(framed(message) for message in messages))

    def read(self) -> bytes:
        """Return the next message; empty at the end of the stream."""
        size = self.file.read(2)
        return self.file.read(int.from_bytes(size)) if size else b""

    def ask(self, number: int) -> None:
        """Ask, and check that the reply is right."""
        self.send(query(WEB, number=number))
        assert_answered(self.read(), number)


def assert_answered(reply: bytes, number: int) -> None:
    message = dns.message.from_wire(reply)
    assert message.id == number and {row.to_text() for row in message.answer[0]} == {"10.0.0.1", "10.0.0.2"}


@contextmanager
def connected(server: Server) -> Iterator[Client]:
    with socket.create_connection((server.host, server.port), PATIENCE) as sock:
        client = Client(sock)
        with client.file:
            yield client


# How clients write


def test_thousands_of_queries_at_once(server: Server) -> None:
    """RFC 7766, 6.2.1.1: a client may send on before it reads, and gets every reply."""
    with connected(server) as client:
        writer = threading.Thread(target=client.send, args=[query(WEB, number=number) for number in range(8000)])
        writer.start()
        replies = {int.from_bytes(reply[:2]): reply for reply in (client.read() for _ in range(8000))}
        writer.join()
    assert replies.keys() == set(range(8000))
    for number in range(0, 8000, 100):
        assert_answered(replies[number], number)


def test_kdig_asks_again_on_the_same_connection(server: Server) -> None:
    """kdig +keepopen accepts each reply."""
    kdig = needs_tool("kdig")
    asked = [kdig, f"@{server.host}", "-p", str(server.port), "+tcp", "+keepopen", "+time=10", "+retry=0"]
    found = subprocess.run(
        [*asked, WEB, "A", "-q", MANY, "-t", "SRV", "-q", WEB, "-t", "AAAA", "-q", "example.com", "-t", "A"],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert found.returncode == 0 and "WARNING" not in found.stderr, found.stderr
    assert re.findall(r"status: (\w+)", found.stdout) == ["NOERROR", "NOERROR", "NOERROR", "REFUSED"]
    assert re.findall(r"ANSWER: (\d+)", found.stdout) == ["2", "250", "0", "0"]
    assert len(set(re.findall(r"TCP\), in|From (.*\(TCP\))", found.stdout))) == 1


def test_a_message_may_come_in_pieces(server: Server) -> None:
    """RFC 7766, 8: octet by octet; and a whole message is answered before the rest of the next one arrives."""
    first, second = (framed(query(WEB, number=number)) for number in (1, 2))
    with connected(server) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for octet in first:
            client.sock.send(bytes((octet,)))
        assert_answered(client.read(), 1)
        for cut in (1, 2, 3, 20, -1):
            client.sock.sendall(first + second[:cut])
            assert_answered(client.read(), 1)
            client.sock.sendall(second[cut:])
            assert_answered(client.read(), 2)


@pytest.mark.parametrize("more", [b"", framed(query(MANY, "SRV"))[:-1]], ids=["whole", "half a message at the end"])
def test_who_has_asked_all_may_stop_writing(server: Server, more: bytes) -> None:
    """RFC 7766, 6.2.4: after a half-close, the replies to whole messages come, then the end."""
    with connected(server) as client:
        client.sock.sendall(b"".join(framed(query(MANY, "SRV", number=each)) for each in range(200)) + more)
        client.sock.shutdown(socket.SHUT_WR)
        assert {int.from_bytes(client.read()[:2]) for _ in range(200)} == set(range(200))
        assert client.read() == b""


@pytest.mark.parametrize(
    ("message", "silent"),
    [
        (b"", True),
        (b"\0\x09" + query(WEB)[2:11], True),
        (b"\0\x09\x80\0" + query(WEB)[4:], True),
        (query(WEB, number=9)[:-1], False),
        (query(WEB, number=9) + b"\0", False),
        (b"\0\x09" + b"\x01" * 60000, False),
        (b"\0\x09\0\0" + b"\xff" * 65531, False),
    ],
    ids=["length 0", "too short", "a response", "cut", "trailing", "garbage of 60,002", "garbage of 65,535"],
)
def test_garbage_is_formerr_or_silence_and_the_connection_lives(server: Server, message: bytes, silent: bool) -> None:
    """As over UDP; the next query on the connection is answered."""
    with connected(server) as client:
        client.send(message)
        if not silent:
            reply = client.read()
            assert reply[:2] == b"\0\x09" and reply[3] & 15 == 1
        client.ask(10)


def test_large_replies_are_whole(server: Server) -> None:
    """RFC 7766, 3: TCP carries whole what UDP truncates."""
    for qtype in ("A", "SRV"):
        wire = query(MANY, qtype, edns=opt(size=4096))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(wire)
            cut = sock.recv(65535)
        assert len(cut) <= 1232 and int.from_bytes(cut[2:4]) & dns_queries.TC
        with connected(server) as client:
            client.send(wire)
            whole = dns.message.from_wire(client.read())
        assert not whole.flags & dns_queries.TC
        assert sum(map(len, whole.answer)) == 250
        additional = sum(map(len, whole.additional))
        assert 0 < additional < 250 if qtype == "SRV" else not additional  # no more than clients can read


# How they stay and leave


def test_a_client_that_does_not_read_harms_nobody(server: Server) -> None:
    """Its replies fill the buffers of its own connection; others are answered over TCP and UDP."""
    with connected(server) as deaf, connected(server) as other:
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sock.setblocking(False)
        flood = framed(query(MANY, "SRV")) * 100
        sent = 0
        try:
            while sent < 4 << 20:
                sent += deaf.sock.send(flood)
        except (BlockingIOError, ConnectionError):
            pass  # the server has stopped reading, or on a machine that stood still for five seconds let go
        for number in range(20):
            other.ask(number)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            sock.send(query(WEB, number=77))
            assert_answered(sock.recv(2048), 77)


@pytest.mark.parametrize("before", [b"", b"\0", framed(query(WEB))[:9], framed(query(MANY, "SRV")) * 500])
def test_a_reset_in_the_middle_harms_nobody(server: Server, before: bytes) -> None:
    """A reset ends its own connection alone, whatever it held."""
    with connected(server) as other:
        for number in range(20):
            with socket.create_connection((server.host, server.port), PATIENCE) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.sendall(before)
            other.ask(number)


def test_three_hundred_connections_with_one_query_each(server: Server) -> None:
    """CoreDNS opens a connection for each query in flight."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(300)]
        for number, client in enumerate(clients):
            client.send(query(WEB, number=number))
        for number, client in reversed(list(enumerate(clients))):
            assert_answered(client.read(), number)


def test_a_server_with_flags_of_its_own_from_the_first_connection_to_its_end(serve: Serve) -> None:
    """--max-connections: the oldest idle one is closed. --tcp-idle-timeout: in real time, and not before.

    After SIGTERM, a message that has begun is answered, a slow reader gets every reply, and an idle connection ends.
    """
    server = serve(WEB_AND_MANY, "--max-connections", "3", "--tcp-idle-timeout", "4")  # a busy machine asks in less
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(connected(server)) for _ in range(3))
        for number, client in enumerate((first, second, third, first)):
            client.ask(number)
        fourth = stack.enter_context(connected(server))
        fourth.ask(10)
        assert second.read() == b""
        for number, client in enumerate((first, third, fourth), 20):
            client.ask(number)
        began = time.monotonic()
        fourth.ask(30)
        assert first.read() == third.read() == fourth.read() == b""
        assert time.monotonic() - began >= 4
    with connected(server) as idle, connected(server) as busy, connected(server) as slow:
        idle.ask(1)
        wire = framed(query(WEB, number=3))
        busy.sock.sendall(framed(query(WEB, number=4)) + wire[:9])
        assert_answered(busy.read(), 4)  # so the server has read the beginning, too
        slow.sock.sendall(b"".join(framed(query(MANY, "SRV", number=number)) for number in range(400)))
        replies = [slow.read()]
        server.process.terminate()
        server.wait_for("ending")
        assert idle.read() == b""
        busy.sock.sendall(wire[9:])
        assert_answered(busy.read(), 3)
        assert busy.read() == b""
        replies += [slow.read() for _ in range(399)]
        assert [int.from_bytes(reply[:2]) for reply in replies] == list(range(400))
        assert {len(parts_of(reply).answers) for reply in replies} == {250}  # whole to their last octet
        assert server.wait() == 0
