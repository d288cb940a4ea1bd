# SPDX-License-Identifier: Apache-2.0

"""The open TCP connections: what each one waits for, since when, and which one to close first.

A connection is in one phase at a time. A phase gives all its connections the same time limit and
keeps them in the order in which they entered. So the first one always expires first, and one timer
is enough for thousands of connections. All share one epoll: a task, or even a cancel scope, for
each connection would cost several times as much as an answer.
"""

from __future__ import annotations

import math
import socket
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll

import trio

from dnsserver.message.proxy_protocol import SIGNATURE, read_header_untrusted
from dnsserver.metrics.counters import Channel, Counts
from dnsserver.net.bounds import HeldOctets, SourceShares, first_to_close

MESSAGE_SECONDS = 5.0  # for a started message to be complete, and for the client to take a piece of the replies
READ_SIZE = 65536
WRITE_SIZE = 65536  # octets of a piece: a slow reader takes one within MESSAGE_SECONDS, a stopped one does not

HUNG_UP = EPOLLHUP | EPOLLERR  # epoll always reports these; a client that has only stopped writing is not gone


class Phase:
    """A state of connections: the epoll events that they wait for, and their time limit in seconds."""

    def __init__(self, events: int, seconds: float = math.inf) -> None:
        self.events = events
        self.seconds = seconds
        self.connections: OrderedDict[Connection, None] = OrderedDict()


CLOSED = Phase(0)


class Connection:
    """One open connection.

    ``received`` are octets that have been read but not answered; ``arrived`` is when they were
    read, by ``time.perf_counter``. ``header_done`` is whether a PROXY header has been read, or cannot
    come any more. ``client`` is the packed address in that header: empty if it has none, None without
    a header. ``unsent`` are pieces of replies that the client has not taken yet. ``answered`` is the
    number of queries whose replies were sent or are in ``unsent``, since durations were last counted.
    ``waiting`` has a cancel scope for each query that waits for an upstream. ``held`` is how many
    octets it was noted to hold. After ``ended``, the connection is not read any more. ``since`` is
    when it entered its phase, or last made progress in it, by trio's clock.
    """

    __slots__ = (
        *("channel", "sock", "source"),
        *("answered", "arrived", "client", "ended", "header_done", "held", "phase", "received", "since", "unsent"),
        "waiting",
    )

    def __init__(self, sock: socket.socket, source: bytes, channel: Channel) -> None:
        self.sock = sock
        self.source = source
        self.channel = channel
        self.received = b""
        self.header_done = False
        self.client: bytes | None = None
        self.unsent: list[bytes] = []
        self.waiting: set[trio.CancelScope] = set()
        self.held = 0
        self.ended = False
        self.phase = CLOSED
        self.since = 0.0
        self.arrived = 0.0
        self.answered = 0

    @property
    def due(self) -> float:
        """The time at which the connection expires, by trio's clock."""
        return self.since + self.phase.seconds

    def receive(self) -> None:
        """Read at most ``READ_SIZE`` octets, if there are any. Raises OSError."""
        try:
            data = self.sock.recv(READ_SIZE)
        except BlockingIOError:  # epoll reported it readable, but it is not
            return
        self.arrived = time.perf_counter()
        self.received = self.received + data if self.received else data
        self.ended = not data

    def send(self, replies: bytes) -> None:
        """Send framed replies, after those still unsent. Raises OSError."""
        sent = 0 if self.unsent else self._sent(replies)
        for start in range(sent, len(replies), WRITE_SIZE):
            self.unsent.append(replies[start : start + WRITE_SIZE])

    def send_unsent(self) -> bool:
        """Send as much of the unsent replies as possible; return whether a whole piece was sent. Raises OSError."""
        number = len(self.unsent)
        while self.unsent:
            piece = self.unsent[0]
            sent = self._sent(piece)
            if sent < len(piece):
                self.unsent[0] = piece[sent:]
                break
            del self.unsent[0]
        return len(self.unsent) < number

    def _sent(self, data: bytes) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def take_header(self) -> None:
        """Remove a complete PROXY header from the start of the received octets. Raises Unreadable."""
        received = self.received
        if not SIGNATURE.startswith(received[: len(SIGNATURE)]):
            self.header_done = True
        elif (header := read_header_untrusted(received)) is not None:
            self.header_done, self.client, self.received = True, header.client, received[header.size :]

    def has_whole_message(self) -> bool:
        """Whether the received octets contain a complete message."""
        return (
            self.header_done and len(self.received) >= 2 and len(self.received) >= 2 + int.from_bytes(self.received[:2])
        )


class Connections:
    """The open connections of a server: at most *limit*, each idle for at most *idle* seconds.

    One source has at most a quarter of them, unless *may_take_all* of its packed address. *held* bounds the octets that
    they hold together with others. While *in_flight* queries of a connection wait for an upstream, it is not read.
    """

    def __init__(
        self,
        counts: Counts,
        held: HeldOctets,
        may_take_all: Callable[[bytes], bool],
        *,
        limit: int,
        idle: float,
        in_flight: int,
    ) -> None:
        self.in_flight = in_flight
        self._held = held
        self._shares: SourceShares[Connection] = SourceShares(limit, may_take_all)
        self.ended = trio.Event()  # set when the server ends and no connection is left
        self._draining = False
        self._counts = counts
        self._limit = limit
        self._open: dict[int, Connection] = {}
        self._epoll = epoll()
        self._idle = Phase(EPOLLIN, idle)
        self._message = Phase(EPOLLIN, MESSAGE_SECONDS)  # a message has begun and is not complete
        self._writing = Phase(EPOLLOUT, MESSAGE_SECONDS)  # then the received octets are answered
        self._waiting = Phase(EPOLLIN)  # queries wait for an upstream; the connection is read, and may send more
        self._full = Phase(0)  # queries wait for an upstream; not read: as many wait as may, or the client has ended
        self._phases = (self._idle, self._message, self._writing, self._waiting, self._full)
        self._sleep = trio.CancelScope()

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open.values())

    def fileno(self) -> int:
        """Return a descriptor that is readable when a connection is ready."""
        return self._epoll.fileno()

    def ready(self) -> list[tuple[Connection, int]]:
        """Return the ready connections with their events, in the order in which they should get their turns.

        Sources take turns, and of each source the connection that was read longest ago comes first.
        """
        ready = [(self._open[number], events) for number, events in self._epoll.poll(0, max(1, len(self._open)))]
        if len(ready) == 1:
            return ready
        turns: defaultdict[bytes, Iterator[int]] = defaultdict(count)
        ready.sort(key=lambda one: one[0].arrived)
        return sorted(ready, key=lambda one: next(turns[one[0].source]))

    def open(self, connection: Connection) -> None:
        """Add a new connection. At the limit, close the one that has been idle longest first.

        If none is idle, close the one without progress for longest. If the source has its share, close one of its own:
        the oldest idle one, else the oldest. Raises OSError.
        """
        if self._shares.has_share(connection.source):
            own = self._shares.of(connection.source)
            self.close(first_to_close(own, self._idle.connections.__contains__))
        while len(self._open) >= self._limit:
            first_idle = next(iter(self._idle.connections), None)
            self.close(first_idle or min(self._oldest(), key=lambda connection: connection.since))
        self._epoll.register(connection.sock, self._idle.events)
        self._open[connection.sock.fileno()] = connection
        self._shares.add(connection.source, connection)
        self._counts.connections = len(self._open)
        self._enter(self._idle, connection)

    def settle(self, connection: Connection, *, progressed: bool) -> None:
        """Put a connection into the phase that it belongs to now, or close it if it has nothing to wait for.

        Its time limit starts again if the phase is new, or if the connection *progressed*.
        """
        before = connection.phase
        if before is CLOSED:
            return
        if connection.received or connection.unsent or connection.held:
            connection.held = len(connection.received) + sum(map(len, connection.unsent))
            self._held.note(connection, connection.held, partial(self.close, connection))
            if connection.phase is CLOSED:  # it held most
                return
        phase = self._next(connection)
        if phase is None:
            self.close(connection)
        elif phase is not before:
            if phase.events != before.events:
                self._epoll.modify(connection.sock, phase.events)
            del before.connections[connection]
            self._enter(phase, connection)
        elif progressed:
            connection.since = trio.current_time()
            phase.connections.move_to_end(connection)

    def close(self, connection: Connection) -> None:
        """Close a connection, and cancel its waiting queries."""
        if connection.phase is CLOSED:
            return
        del connection.phase.connections[connection]
        connection.phase = CLOSED
        if connection.held:
            self._held.forget(connection)
        self._shares.remove(connection.source, connection)
        for scope in connection.waiting:
            scope.cancel()
        self._epoll.unregister(connection.sock)
        del self._open[connection.sock.fileno()]
        connection.sock.close()
        self._counts.connections = len(self._open)
        if self._draining and not self._open:
            self.ended.set()

    def drain(self) -> None:
        """Close idle connections now, and others once they are idle; set ``ended`` when none is left."""
        self._draining = True
        if not self._open:
            self.ended.set()
        for connection in list(self._idle.connections):
            self.close(connection)

    def close_all(self) -> None:
        """Close all connections for good: no new one can be opened."""
        for connection in list(self):
            self.close(connection)
        self._epoll.close()

    async def expire(self) -> None:
        """Close each connection that expires, until cancelled."""
        while True:
            first = min(self._oldest(), key=lambda connection: connection.due, default=None)
            if first is not None and first.due <= trio.current_time():
                self._expire(first)
                await trio.lowlevel.checkpoint()
            else:
                with trio.CancelScope(deadline=first.due if first else math.inf) as self._sleep:
                    await trio.sleep_forever()

    def _expire(self, connection: Connection) -> None:
        """Close an expired connection. If only a message is incomplete, waiting queries are answered first."""
        if connection.phase is self._message:
            connection.ended, connection.received = True, b""
            self.settle(connection, progressed=False)
        else:
            self.close(connection)

    def _oldest(self) -> Iterator[Connection]:
        """Yield the connection that has been longest in each phase."""
        return (next(iter(phase.connections)) for phase in self._phases if phase.connections)

    def _next(self, connection: Connection) -> Phase | None:
        """Return the phase that a connection belongs to; None if it has nothing to wait for, or is idle at the end."""
        if connection.unsent:
            return self._writing
        if connection.received or connection.waiting or connection.ended:
            room = len(connection.waiting) < self.in_flight
            if room and connection.has_whole_message():
                return self._writing
            if connection.ended:
                return self._full if connection.waiting else None
            if not room:
                return self._full
            return self._message if connection.received else self._waiting
        return None if self._draining else self._idle

    def _enter(self, phase: Phase, connection: Connection) -> None:
        connection.phase = phase
        connection.since = trio.current_time()
        phase.connections[connection] = None
        if connection.due < self._sleep.deadline:
            self._sleep.deadline = connection.due
