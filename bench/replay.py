# SPDX-License-Identifier: Apache-2.0

"""The load generator: keeps a window of queries outstanding, counts replies, and reads the server's CPU time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.datagrams import Datagrams
from bench.probing import Prober
from bench.queries import Load, Query, complaint
from bench.servers import Server
from bench.streams import Stream

# Seconds of sleep after a turn with few replies. A blocking read would cost the server a wake-up for each reply.
REST = 50e-6
LITTLE = 64  # replies in a turn over all sockets
SAMPLE_EVERY = 0.01  # seconds between replies that are checked
STALLED = 2.0  # seconds without any reply until all outstanding queries count as lost
MAX_WARMUP = 90.0  # seconds: of 300,000 first answers, on a busy machine


class BadReply(Exception):
    """A wrong reply, or no reply at all: the figures would mean nothing."""


class Run(NamedTuple):
    """The figures of one run: its seconds, replies, lost queries, checked replies, the server's CPU seconds.

    ``latencies`` are the seconds that each reply to the prober took.
    """

    seconds: float
    replies: int
    lost: int
    checked: int
    cpu: float
    latencies: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Replies in a second."""
        return self.replies / self.seconds

    @property
    def cost(self) -> float:
        """The server's CPU microseconds for each reply."""
        return 1e6 * self.cpu / self.replies

    @property
    def busy(self) -> float:
        """The share of the time that the server had its core; below 0.95 or so it was not under full load."""
        return self.cpu / self.seconds


def run(server: Server, load: Load, *, warmup: float, seconds: float, prober: Prober | None = None) -> Run:
    """Put *load* on *server*; measure once *warmup* is over and the server is warm. Raises BadReply.

    The *prober* asks beside the load; its replies are checked, but not counted.
    """
    replayer = _Replayer(server, load, prober)
    try:
        replayer.go(warmup)
        end = time.perf_counter() + MAX_WARMUP
        while replayer.replies < load.warm:
            if time.perf_counter() > end:
                missing = f"{replayer.replies:,} replies of {load.warm:,} within {MAX_WARMUP:.0f} s"
                raise BadReply(f"{server.name}, {load.title}: {missing}")
            replayer.go(SAMPLE_EVERY)
        if prober is not None:
            prober.forget()
        replies, cpu, began = replayer.replies, server.cpu_seconds(), time.perf_counter()
        replayer.go(seconds)
        if replayer.replies == replies:  # others have the core, or the whole window was lost and is sent anew
            replayer.go(STALLED + seconds)
        cpu, took = server.cpu_seconds() - cpu, time.perf_counter() - began
        replies = replayer.replies - replies
        replayer.drain()
    except ConnectionError as error:
        raise BadReply(f"{server.name}, {load.title}: {error.strerror}") from None
    finally:
        replayer.close()
    if not replies or (prober is not None and not prober.latencies):
        raise BadReply(f"{server.name}, {load.title}: no reply within {took:.0f} s")
    checked = replayer.check()
    if prober is None:
        return Run(took, replies, replayer.lost, checked, cpu)
    return Run(took, replies, replayer.lost + prober.outstanding, checked, cpu, tuple(prober.latencies))


class _Replayer:
    def __init__(self, server: Server, load: Load, prober: Prober | None) -> None:
        self._server, self._load, self._prober = server, load, prober
        connect = Stream if load.transport.tcp else Datagrams
        self._sockets = [
            connect([query.before + query.wire for query in queries], source=source, port=server.port)
            for source, queries in zip(load.sources, load.queries, strict=True)
        ]
        self._outstanding = [0] * len(self._sockets)
        self._sample: list[tuple[int, bytes]] = []
        self.replies = self.lost = 0
        self._last_reply = time.perf_counter()

    def go(self, seconds: float) -> None:
        """Keep the window full for some seconds."""
        now = time.perf_counter()
        end, sample_at = now + seconds, now
        share = self._load.window // len(self._sockets)
        while now < end:
            received = 0
            for index, sock in enumerate(self._sockets):
                number = sock.receive()
                if number and now >= sample_at and index == len(self._sample) % len(self._sockets):
                    self._sample.append((index, sock.first_reply()))
                    sample_at = now + SAMPLE_EVERY
                received += number
                outstanding = max(0, self._outstanding[index] - number)  # a reply that counts as lost may still come
                self._outstanding[index] = outstanding + sock.send(share - outstanding)
            if self._prober is not None:
                self._prober.receive()
                self._prober.send()
            self.replies += received
            now = time.perf_counter()
            if received:
                self._last_reply = now
            elif now - self._last_reply > STALLED:
                self._give_up()
                self._last_reply = now
            if received < LITTLE:
                time.sleep(REST)

    def drain(self) -> None:
        """Wait for all outstanding replies, so that the next run begins with an idle server."""
        last_reply = time.perf_counter()
        while self._waiting and time.perf_counter() - last_reply < STALLED:
            for index, sock in enumerate(self._sockets):
                sock.send(0)  # sends the rest of a query that a stream has begun
                if number := sock.receive():
                    self._outstanding[index] = max(0, self._outstanding[index] - number)
                    last_reply = time.perf_counter()
            if self._prober is not None:
                self._prober.receive()
            time.sleep(REST)
        self._give_up()

    def check(self) -> int:
        """Check the sampled replies; return how many there are. Raises BadReply."""
        if not self._server.answers:
            return 0
        sampled = [(self._load, self._query(index, reply), reply) for index, reply in self._sample]
        if self._prober is not None:
            sampled += [(self._prober.load, query, reply) for query, reply in self._prober.replies]
        for load, query, reply in sampled:
            wrong = self._complaint(load, query, reply) if query else "a reply whose id no query has"
            if wrong:
                raise BadReply(f"{self._server.name}, {load.title}: {wrong}")
        return len(sampled)

    def close(self) -> None:
        """Close every socket."""
        for sock in self._sockets:
            sock.close()

    @property
    def _waiting(self) -> bool:
        return any(self._outstanding) or (self._prober is not None and self._prober.outstanding > 0)

    def _query(self, index: int, reply: bytes) -> Query | None:
        queries, number = self._load.queries[index], int.from_bytes(reply[:2])
        return queries[number] if number < len(queries) else None

    def _complaint(self, load: Load, query: Query, reply: bytes) -> str | None:
        return complaint(load, query, reply, nearest=self._server.nearest, additional=self._server.additional)

    def _give_up(self) -> None:
        self.lost += sum(self._outstanding)
        self._outstanding = [0] * len(self._sockets)
