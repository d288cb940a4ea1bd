# SPDX-License-Identifier: Apache-2.0

"""What victims notice: the kubelet asks for /livez; a pod asks for names, by UDP and TCP, from an address of its own.

A pod asks as stub resolvers do: it waits two seconds for a reply, and then asks once more. Queries are sent when they
are due, however long the ones before them wait.
"""

from __future__ import annotations

import random
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import trio
from msgspec import Struct, field

from bench.attacks.targets import VICTIM, AttackedServer
from tests.kit.dns_queries import framed, query

EVERY = 0.05  # seconds between two queries of a kind
LIVE_EVERY = 0.2
TRIES, TRY_SECONDS = 2, 2.0  # as resolv.conf often has them; the default is 5 s
LIVE_SECONDS = 5.0  # the liveness probe's timeoutSeconds in the manifests
REMEMBERED, NEW, FIRST = "remembered names", "new names", "first answers"
REMEMBERED_TCP, NEW_TCP, FIRST_TCP = (f"{kind} over TCP" for kind in (REMEMBERED, NEW, FIRST))
LIVE = "/livez"
TYPES = ("A", "AAAA", "SRV")  # of the first answers

Ask = Callable[[AttackedServer, bytes], Awaitable[bytes]]


class Waits(Struct):
    """How long the queries of one kind took, in seconds, repeated ones with the time before the repetition.

    ``lost`` are the tries without a reply, ``unanswered`` the queries whose tries were all lost, or (of /livez) the
    most in a row.
    """

    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    unanswered: int = 0

    def add(self, *others: Waits) -> Waits:
        """Add the queries of other times or kinds; return all."""
        for other in others:
            self.seconds += other.seconds
            self.lost += other.lost
            self.unanswered += other.unanswered
        return self

    def percentile(self, share: float) -> float:
        """Return the wait in seconds that a *share* of the queries, from 0 to 1, did not exceed; 0 without any."""
        waits = sorted(self.seconds)
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0


Watched = Mapping[str, Waits]  # by kind


def watch(target: AttackedServer, seconds: float) -> Watched:
    """Ask for so many seconds, and wait for the last replies."""
    return trio.run(_watch, target, seconds)


async def _watch(target: AttackedServer, seconds: float) -> Watched:
    seen: dict[str, Waits] = defaultdict(Waits)
    end = trio.current_time() + seconds
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_liveness, target, seen[LIVE], end)
        for kind, ask, wire in (
            (REMEMBERED, _by_udp, _remembered),
            (NEW, _by_udp, _new),
            (FIRST, _by_udp, _first),
            (REMEMBERED_TCP, _by_tcp, _remembered),
            (NEW_TCP, _by_tcp, _new),
            (FIRST_TCP, _by_tcp, _first),
        ):
            nursery.start_soon(_watch_names, partial(ask, target), partial(wire, target), seen[kind], end)
    return seen


async def _watch_names(
    ask: Callable[[bytes], Awaitable[bytes]], wire: Callable[[], bytes], waits: Waits, end: float
) -> None:
    due = trio.current_time() + random.random() * EVERY
    async with trio.open_nursery() as nursery:
        while due < end:
            await trio.sleep_until(due)
            nursery.start_soon(_resolve, ask, wire(), waits)
            due += EVERY


async def _resolve(ask: Callable[[bytes], Awaitable[bytes]], wire: bytes, waits: Waits) -> None:
    began = trio.current_time()
    for _ in range(TRIES):
        reply = b""
        with trio.move_on_after(TRY_SECONDS) as scope:
            with suppress(OSError, trio.BrokenResourceError):
                reply = await ask(wire)
        if reply[:2] == wire[:2] and reply[3] & 0xF in (0, 3):  # NOERROR, NXDOMAIN
            waits.seconds.append(trio.current_time() - began)
            return
        waits.lost += 1
        if not scope.cancelled_caught:
            await trio.sleep_until(scope.deadline)
    waits.unanswered += 1
    waits.seconds.append(trio.current_time() - began)


async def _watch_liveness(target: AttackedServer, waits: Waits, end: float) -> None:
    """One request after another, each on a connection of its own, as the kubelet asks."""
    port, path = target.live
    failed = 0
    while trio.current_time() < end:
        began = trio.current_time()
        answered = False
        with trio.move_on_after(LIVE_SECONDS):
            with suppress(OSError, trio.BrokenResourceError):
                request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
                answered = (await _said(port, request)).startswith(b"HTTP/1.1 200 ")
        waits.seconds.append(trio.current_time() - began)
        waits.lost += not answered
        failed = 0 if answered else failed + 1
        waits.unanswered = max(waits.unanswered, failed)
        await trio.sleep(LIVE_EVERY)


async def _said(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=VICTIM)
    async with stream:
        await stream.send_all(request)
        return bytes(await stream.receive_some())


async def _by_udp(target: AttackedServer, wire: bytes) -> bytes:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        await sock.bind((VICTIM, 0))
        await sock.connect(("127.0.0.1", target.dns))
        await sock.send(wire)
        return await sock.recv(65_535)


async def _by_tcp(target: AttackedServer, wire: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", target.dns, local_address=VICTIM)
    async with stream:
        await stream.send_all(framed(wire))
        received = b""
        while len(received) < 6:  # the length, and the header as far as the rcode
            if not (more := await stream.receive_some()):
                break
            received += more
        return received[2:]


def _remembered(target: AttackedServer) -> bytes:
    return query(target.services[0], number=random.getrandbits(16))


def _new(target: AttackedServer) -> bytes:
    parent = target.services[0].partition(".")[2]
    return query(f"victim-{random.getrandbits(64):016x}.{parent}", number=random.getrandbits(16))


def _first(target: AttackedServer) -> bytes:
    """A name and type that are seldom asked for: hardly any answer is remembered."""
    return query(random.choice(target.services), random.choice(TYPES), number=random.getrandbits(16))
