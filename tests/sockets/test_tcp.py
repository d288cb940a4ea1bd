# SPDX-License-Identifier: Apache-2.0

"""DNS over TCP (RFC 7766, RFC 9210) by a real server: how clients write, and how they leave."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO

import dns.message
import pytest

from tests.kit.dns_queries import framed, query
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


def test_who_has_asked_all_may_stop_writing(server: Server) -> None:
    """RFC 7766, 6.2.4: after a half-close, the replies to whole messages come, then the end."""
    with connected(server) as client:
        queries = b"".join(framed(query(MANY, "SRV", number=number)) for number in range(200))
        client.sock.sendall(queries + framed(query(WEB))[:-1])
        client.sock.shutdown(socket.SHUT_WR)
        assert {int.from_bytes(client.read()[:2]) for _ in range(200)} == set(range(200))
        assert client.read() == b""


def test_a_reset_in_the_middle_harms_nobody(server: Server) -> None:
    """A reset ends its own connection alone, whatever it held."""
    with connected(server) as other:
        for before in (b"", b"\0", framed(query(WEB))[:9], framed(query(MANY, "SRV")) * 500):
            for number in range(20):
                with socket.create_connection((server.host, server.port), PATIENCE) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.sendall(before)
                other.ask(number)


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
