"""The open TCP connections: what each waits for, since when, and which must go.

A connection is in one phase at a time. Each phase keeps its connections in the order in which
they came into it, and gives all of them the same time: so the first one is the first whose time
is over, and one timer does for thousands. They share an epoll of their own: a task, or even
a cancel scope, for each would cost several times what an answer does.
"""

from __future__ import annotations

import math
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll

import trio

from dnsserver.message.proxy_protocol import SIGNATURE, read_header_untrusted
from dnsserver.metrics.counters import Channel, Counts

MESSAGE_SECONDS = 5.0  # for a started message to be whole, and for a piece of the replies to be taken
READ_SIZE = 65536
WRITE_SIZE = 65536  # taken within the time of a message: a slow reader is waited for, one that stopped is not

GONE = EPOLLHUP | EPOLLERR  # told without being asked for; whoever only stops writing is not gone


class Phase:
    """What some connections wait for: events of epoll, and for how many seconds at most."""

    def __init__(self, events: int, seconds: float = math.inf) -> None:
        self.events = events
        self.seconds = seconds
        self.connections: OrderedDict[Connection, None] = OrderedDict()


CLOSED = Phase(0)


class Connection:
    """One open connection.

    ``received`` is what has been read and not been answered yet; it ``arrived`` then, by
    ``time.perf_counter``. It is ``headed`` once no PROXY header can come any more; ``client`` is
    what one said: a packed address, empty where it named none, None without a header. ``unsent``
    are pieces of replies that the client has not taken yet, those to ``answered`` queries.
    ``waiting`` holds a scope for each query that waits for a name elsewhere. A connection that
    has ``ended`` is not read any more.
    """

    __slots__ = (
        *("channel", "sock", "source"),
        *("answered", "arrived", "client", "ended", "headed", "phase", "received", "since", "unsent", "waiting"),
    )

    def __init__(self, sock: socket.socket, source: bytes, channel: Channel) -> None:
        self.sock = sock
        self.source = source
        self.channel = channel
        self.received = b""
        self.headed = False
        self.client: bytes | None = None
        self.unsent: list[bytes] = []
        self.waiting: set[trio.CancelScope] = set()
        self.ended = False
        self.phase = CLOSED
        self.since = 0.0
        self.arrived = 0.0
        self.answered = 0

    @property
    def due(self) -> float:
        """When its time is over, by trio's clock."""
        return self.since + self.phase.seconds

    def receive(self) -> None:
        """Read what there is, up to a limit. Raises OSError."""
        try:
            data = self.sock.recv(READ_SIZE)
        except BlockingIOError:  # a readiness that was none
            return
        self.arrived = time.perf_counter()
        self.received = self.received + data if self.received else data
        self.ended = not data

    def send(self, replies: bytes) -> None:
        """Send framed replies, behind what is still unsent. Raises OSError."""
        sent = 0 if self.unsent else self._sent(replies)
        for start in range(sent, len(replies), WRITE_SIZE):
            self.unsent.append(replies[start : start + WRITE_SIZE])

    def send_unsent(self) -> bool:
        """Send what can be sent of the replies; return whether a piece of them left whole. Raises OSError."""
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
        """Take the PROXY header off what was received, if one begins there and is whole. Raises Unreadable."""
        received = self.received
        if not SIGNATURE.startswith(received[: len(SIGNATURE)]):
            self.headed = True
        elif (header := read_header_untrusted(received)) is not None:
            self.headed, self.client, self.received = True, header.client, received[header.size :]

    def has_whole_message(self) -> bool:
        """Whether a message stands in what was received."""
        return self.headed and len(self.received) >= 2 and len(self.received) >= 2 + int.from_bytes(self.received[:2])


class Connections:
    """The open connections of a server: *limit* in all, each idle for *idle* seconds at most.

    One with *in_flight* queries that wait for names elsewhere is not read any further.
    """

    def __init__(self, counts: Counts, *, limit: int, idle: float, in_flight: int) -> None:
        self.in_flight = in_flight
        self.ended = trio.Event()  # when the server ends, and no connection is left
        self._draining = False
        self._counts = counts
        self._limit = limit
        self._open: dict[int, Connection] = {}
        self._epoll = epoll()
        self._idle = Phase(EPOLLIN, idle)
        self._message = Phase(EPOLLIN, MESSAGE_SECONDS)  # it has begun, and is not whole
        self._writing = Phase(EPOLLOUT, MESSAGE_SECONDS)  # then what was received is gone on with
        self._waiting = Phase(EPOLLIN)
        self._full = Phase(0)
        self._phases = (self._idle, self._message, self._writing, self._waiting, self._full)
        self._sleep = trio.CancelScope()

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open.values())

    def fileno(self) -> int:
        """Return what is readable when a connection is ready."""
        return self._epoll.fileno()

    def ready(self, most: int) -> list[tuple[Connection, int]]:
        """Return connections that something can be done for, and what; each in its turn when there are more."""
        return [(self._open[number], events) for number, events in self._epoll.poll(0, most)]

    def open(self, connection: Connection) -> None:
        """Take in a new connection; at the limit, the one that has been idle longest is closed.

        Where none is idle, the one that has been getting on with nothing for longest. Raises OSError.
        """
        while len(self._open) >= self._limit:
            self.close(next(iter(self._idle.connections), None) or min(self._firsts(), key=lambda each: each.since))
        self._epoll.register(connection.sock, self._idle.events)
        self._open[connection.sock.fileno()] = connection
        self._counts.connections = len(self._open)
        self._enter(self._idle, connection)

    def settle(self, connection: Connection, *, got_on: bool) -> None:
        """Work out what a connection waits for now; its time begins anew if that is something new, or it *got on*.

        If there is nothing more to wait for, or the connection is idle when the server ends, it is closed.
        """
        before = connection.phase
        if before is CLOSED:
            return
        phase = self._next(connection)
        if phase is None:
            self.close(connection)
        elif phase is not before:
            if phase.events != before.events:
                self._epoll.modify(connection.sock, phase.events)
            del before.connections[connection]
            self._enter(phase, connection)
        elif got_on:
            connection.since = trio.current_time()
            phase.connections.move_to_end(connection)

    def close(self, connection: Connection) -> None:
        """Close a connection, and end whatever waits for its sake."""
        if connection.phase is CLOSED:
            return
        del connection.phase.connections[connection]
        connection.phase = CLOSED
        for scope in connection.waiting:
            scope.cancel()
        self._epoll.unregister(connection.sock)
        del self._open[connection.sock.fileno()]
        connection.sock.close()
        self._counts.connections = len(self._open)
        if self._draining and not self._open:
            self.ended.set()

    def drain(self) -> None:
        """Close idle connections now, and others as soon as they are; ``ended`` is set when none is left."""
        self._draining = True
        if not self._open:
            self.ended.set()
        for connection in list(self._idle.connections):
            self.close(connection)

    def close_all(self) -> None:
        """Close everything; nothing can be opened any more."""
        for connection in list(self):
            self.close(connection)
        self._epoll.close()

    async def expire(self) -> None:
        """Go through those whose time is over, one by one, until cancelled."""
        while True:
            first = min(self._firsts(), key=lambda each: each.due, default=None)
            if first is not None and first.due <= trio.current_time():
                self._give_up(first)
                await trio.lowlevel.checkpoint()
            else:
                with trio.CancelScope(deadline=first.due if first else math.inf) as self._sleep:
                    await trio.sleep_forever()

    def _give_up(self, connection: Connection) -> None:
        """Close a connection whose time is over, but where only a message stalls, what waits is answered first."""
        if connection.phase is self._message:
            connection.ended, connection.received = True, b""
            self.settle(connection, got_on=False)
        else:
            self.close(connection)

    def _firsts(self) -> Iterator[Connection]:
        """Yield of each phase the connection that has been in it for longest."""
        return (next(iter(phase.connections)) for phase in self._phases if phase.connections)

    def _next(self, connection: Connection) -> Phase | None:
        """Return what a connection waits for, and None where there is nothing."""
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
