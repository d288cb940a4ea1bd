"""A client that asks at a slow and steady pace beside a load, to see how long anybody waits meanwhile."""

from __future__ import annotations

import socket
import time

from bench.queries import Load, Query

EVERY = 0.005  # seconds; what is late does not hold up what comes after it


class Prober:
    """What the first socket of a load asks, in turn; ``latencies`` are seconds, ``replies`` what came."""

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
        """Send the next query when its time has come."""
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
        """Take the replies that are there."""
        while self._sent:
            try:
                reply = self._sock.recv(65535)
            except BlockingIOError:
                return
            now, number = time.perf_counter(), int.from_bytes(reply[:2])
            sent = self._sent.pop(number, None)
            if sent is not None:  # else it was forgotten
                self.latencies.append(now - sent)
                self.replies.append((self._queries[number], reply))

    def forget(self) -> None:
        """Begin to measure: what was asked until now does not count."""
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
