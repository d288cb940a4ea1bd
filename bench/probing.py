# SPDX-License-Identifier: Apache-2.0

"""A client that asks 200 times a second beside a load, to measure how long a reply takes under that load."""

from __future__ import annotations

import socket
import time

from bench.queries import Load, Query

EVERY = 0.005  # seconds; the prober sends its next query in time even if a reply is late


class Prober:
    """Asks the queries of a load's first socket one by one; ``latencies`` are in seconds."""

    def __init__(self, load: Load, *, port: int) -> None:
        self.load = load
        self.latencies: list[float] = []
        self.replies: list[tuple[Query, bytes]] = []
        self._queries = load.queries[0]
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setblocking(False)
        self._sock.bind((load.sources[0], 0))
        self._sock.connect(("127.0.0.1", port))
        self._sent: dict[int, float] = {}
        self._next, self._due = 0, 0.0

    def send(self) -> None:
        """Send the next query if it is due."""
        now = time.perf_counter()
        if now < self._due:
            return
        self._due = max(self._due + EVERY, now)
        try:
            self._sock.send(self._queries[self._next].wire)
        except BlockingIOError:
            return
        self._sent[self._next] = now
        self._next = (self._next + 1) % len(self._queries)

    def receive(self) -> None:
        """Receive the replies that have arrived."""
        while self._sent:
            try:
                reply = self._sock.recv(65535)
            except BlockingIOError:
                return
            now, number = time.perf_counter(), int.from_bytes(reply[:2])
            sent = self._sent.pop(number, None)
            if sent is not None:  # else it was sent before ``forget``
                self.latencies.append(now - sent)
                self.replies.append((self._queries[number], reply))

    def forget(self) -> None:
        """Begin to measure: ignore all queries until now."""
        self._sent.clear()
        self.latencies.clear()
        self.replies.clear()

    @property
    def outstanding(self) -> int:
        """How many queries have no reply yet."""
        return len(self._sent)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()
