# SPDX-License-Identifier: Apache-2.0

"""An upstream of our own making, which answers by a behaviour, in virtual time."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import dns.message
import dns.rrset
import pytest
import trio
import trio.testing

from dnsserver.metrics.counters import Counts
from dnsserver.net.upstream import Upstream
from dnsserver.settings.values import ListenAddress

LOCALHOST = bytes((127, 0, 0, 1))
Message = dns.message.Message
Behaviour = Callable[["Elsewhere", Message, str], Awaitable[list[bytes]]]
HERE = "example.org. 60 IN A 192.0.2.1"


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


def reply_to(
    asked: Message, rows: Sequence[str] = (), *, rcode: int = 0, soa: int | None = 10, flags: int = 0
) -> Message:
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


async def silent(_: Elsewhere, __: Message, ___: str) -> list[bytes]:
    """Never answer."""
    return []


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time, with a deadline."""

    async def bounded() -> None:
        with trio.fail_after(10_000):
            await main()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", trio.current_time)  # by which dnspython counts its time-outs
        trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0.02))


Test = Callable[[Upstream, Elsewhere, Counts], Awaitable[None]]


def asking(*behaviours: Behaviour) -> Callable[[Test], None]:
    """Run a test with an upstream that has a server for each behaviour; it gets the first of them, too."""

    def decorate(test: Test) -> None:
        async def main() -> None:
            servers, counts = [Elsewhere(behaviour) for behaviour in behaviours], Counts()
            async with trio.open_nursery() as nursery:
                addresses = [await nursery.start(server.serve) for server in servers]
                await test(Upstream(addresses, counts), servers[0], counts)
                nursery.cancel_scope.cancel()

        run(main)

    return decorate


async def slow_ones_never(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
    """Answer at once with an address, but never for a name that begins with "slow"."""
    name = asked.question[0].name.to_text()
    return [] if name.startswith("slow") else await says(f"{name} 60 IN A 192.0.2.1")(server, asked, proto)
