# SPDX-License-Identifier: Apache-2.0

"""The native code on a socket: who waits for Python and in which turn; and what a server does without it."""

from __future__ import annotations

import fcntl
import logging
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import dnsserver.net
from dnsserver import __version__
from dnsserver.message.proxy_protocol import PLAIN_HEADERS
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.programs.server import native_code
from dnsserver.responder.native_feed import NativePlace
from locator.ip import parse_address
from tests.kit.dns_queries import ecs, opt, option, query
from tests.kit.in_memory import HAS_NATIVE, settings_of
from tests.kit.programs import environment
from tests.kit.proxy_headers import proxied
from tests.kit.this_machine import lacking
from tests.kit.waiting import PATIENCE

WEB, FREE = "web.shop.svc.cluster.local", "free.shop.svc.cluster.local"
# An answer that depends on the client, and the place of all clients.
ONE_RECORD = RenderedAnswer(flags=0x8400, answers=[bytes(16)], dependent=True)
ANYWHERE = NativePlace(location=1, origin=0, forwarder=False, located=True)


@pytest.fixture
def receiver() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket whose datagrams nobody answers, and one that sends to it."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        server.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        yield server, client


def waiting(server: socket.socket, sent: Iterable[object], *, dropped: int) -> list[bytes]:
    """Return datagrams as Python gets them that have come to a socket, of which so many were *dropped*.

    *sent* sends each of them when it is asked for the next.
    """
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    table = native.AnswerTable(PLAIN_HEADERS, (1.0,), 1)
    table.places(0, [(parse_address(NEAR), ANYWHERE._replace(forwarder=True))])
    datagrams = native.Datagrams(server.fileno(), table, six=False, wildcard=False)
    for number, _ in enumerate(sent):
        while number % 64 == 0 and fcntl.ioctl(server, termios.FIONREAD, bytes(4)) != bytes(4):
            time.sleep(0.0001)  # the socket's own buffer must not overflow; a thread that spins keeps the other away
    end = time.monotonic() + PATIENCE
    while (lost := datagrams.take_failures()[2]) < dropped and time.monotonic() < end:
        dropped -= lost
    datagrams.end()
    assert lost == dropped
    taken = []
    while batch := datagrams.receive():
        taken += [wire for wire, _ in batch]
    return taken


def test_what_waits_for_python_is_bounded(receiver: tuple[socket.socket, socket.socket]) -> None:
    """Beyond 16,384 datagrams, the oldest but for the first 64 are dropped and counted."""
    server, client = receiver
    limit = 16_384
    taken = waiting(server, (client.send(number.to_bytes(2)) for number in range(limit + 10)), dropped=10)
    assert sorted(int.from_bytes(wire) for wire in taken) == [*range(64), *range(64 + 10, limit + 10)]


FLOOD, ONE = query("flood.example"), query("one.example")
NEAR = "127.0.0.4"  # a trusted forwarder


def named(wire: bytes, subnet: str, *before: bytes) -> bytes:
    return wire[:10] + b"\0\1" + wire[12:] + opt(*before, ecs(subnet))


# Datagrams of a flood, and a single one after them; where both come from; how many of the flood go before it: the first
# 64 that wait keep their order, whoever sends them, and take turns with the others.
LANES = {
    "another source": (FLOOD, "127.0.0.2", ONE, "127.0.0.3", 2),
    "the same source": (FLOOD, "127.0.0.2", ONE, "127.0.0.2", 73),
    "another client of one forwarder": (named(FLOOD, "10.0.0.1"), NEAR, named(ONE, "10.0.0.2"), NEAR, 2),
    "the same client of a forwarder": (named(FLOOD, "10.0.0.1"), NEAR, named(ONE, "10.0.0.1"), NEAR, 73),
    "a client that forges others": (named(FLOOD, "10.0.0.1"), "127.0.0.2", named(ONE, "10.0.0.2"), "127.0.0.2", 73),
    "an option of the client's own in front": (
        named(FLOOD, "10.0.0.1", option(100, b"1")), NEAR, named(ONE, "10.0.0.1", option(100, b"2")), NEAR, 73,
    ),
    "a PROXY header of a forwarder": (
        proxied("10.0.0.1") + FLOOD, NEAR, proxied("10.0.0.2") + ONE, NEAR, 2
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flood", "its_source", "one", "source", "before"), LANES.values(), ids=LANES)
def test_clients_take_turns(
    receiver: tuple[socket.socket, socket.socket], flood: bytes, its_source: str, one: bytes, source: str, before: int
) -> None:
    """Whoever sends many queries that Python must answer waits for them by himself, also behind a forwarder."""
    server, _ = receiver

    def sent() -> Iterator[None]:
        for number, wire, own in ((100, flood, its_source), (1, one, source)):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.bind((own, 0))
                for _ in range(number):
                    client.sendto(wire, server.getsockname())
                    yield

    assert waiting(server, sent(), dropped=0).index(one) == before


def test_what_is_known_waits_for_nothing(receiver: tuple[socket.socket, socket.socket]) -> None:
    """Its reply comes even if Python takes none of the many queries before it, one at a time or all at once."""
    if not HAS_NATIVE:
        lacking("the native code is not built")
    from dnsserver.net import native

    server, client = receiver
    table = native.AnswerTable((), (1.0,), 1)
    table.answer(query(WEB)[12:], ONE_RECORD, 1, None)
    datagrams = native.Datagrams(server.fileno(), table, six=False, wildcard=False)
    client.settimeout(PATIENCE)
    try:
        for number in (10, 1, 100, 1):
            for _ in range(number):
                client.send(query(FREE))
            client.send(query(WEB))
            assert client.recv(2048)[:2] == query(WEB)[:2]
    finally:
        datagrams.end()


def test_without_native_code_a_server_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Python then answers every query; so, too, if it is of another version, does not load, or is switched off.

    It is off with ``--log-queries``: every query would pass through it for nothing.
    """
    caplog.set_level(logging.INFO)
    assert native_code(settings_of({"native": "off"}), seed=1) is None and not caplog.messages
    assert native_code(settings_of({"log-queries": "5"}), seed=1) is None
    monkeypatch.setitem(sys.modules, "dnsserver.net.native", type("Old", (), {"VERSION": "0.0.9"}))
    monkeypatch.setattr("dnsserver.net.native", sys.modules["dnsserver.net.native"], raising=False)
    assert native_code(settings_of(), seed=1) is None
    monkeypatch.delattr("dnsserver.net.native")
    monkeypatch.setitem(sys.modules, "dnsserver.net.native", None)
    assert native_code(settings_of(), seed=1) is None
    monkeypatch.delitem(sys.modules, "dnsserver.net.native")
    (tmp_path / "native.py").write_text("raise ImportError('GLIBC_9.9 not found')")
    monkeypatch.setattr(dnsserver.net, "__path__", [str(tmp_path)])
    assert native_code(settings_of(), seed=1) is None
    logging_all, old, missing, broken = caplog.messages
    assert logging_all.startswith("native code is not used with --log-queries")
    assert old == f"native code 0.0.9 is not used, expected version {__version__}: install topodns again"
    assert missing.startswith("native code is not installed")
    assert broken == "native code is not used: GLIBC_9.9 not found"


def test_without_native_code_a_wrong_configuration_is_the_only_message() -> None:
    """A cluster that cannot be configured ends the server with one line."""
    start = (
        "import sys; sys.modules['dnsserver.net.native'] = None; from dnsserver.cli.main import main; sys.exit(main())"
    )
    command = (sys.executable, "-c", start, "serve", "--kubeconfig", "/nowhere/config")
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ran.returncode == 2 and "/nowhere/config" in ran.stderr and len(ran.stderr.splitlines()) == 1, ran.stderr
