"""Prepared queries out, replies counted, on one TCP connection: many at a time, in whatever order replies come.

The twin of ``datagrams``: large writes and reads, and two octets looked at for each reply.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from itertools import accumulate

READ_SIZE = 1 << 18  # octets: some replies of the largest size, which is 64 KiB


class Stream:
    """Queries in a ring, sent over and over to one server, and the replies to them."""

    def __init__(self, packets: Sequence[bytes], *, source: str, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        framed = [len(packet).to_bytes(2) + packet for packet in packets]
        # Twice over, so that any stretch of the ring is one slice.
        self._ring = memoryview(b"".join(framed) * 2)
        self._ends = tuple(accumulate(map(len, framed * 2), initial=0))
        self._packets, self._next = len(packets), 0
        self._sent = 0  # octets of the ring, up to its begin again
        self._buffer = bytearray(READ_SIZE)
        self._view = memoryview(self._buffer)
        self._read = self._end = 0  # up to where the buffer has been walked, and filled

    def send(self, number: int) -> int:
        """Send up to *number* queries, the next ones in the ring; return how many were begun.

        None is begun while an earlier one has not left whole.
        """
        number = min(number, self._packets) if self._sent == self._ends[self._next] else 0
        self._next += number
        left = self._ends[self._next] - self._sent
        if left:
            try:
                self._sent += self._sock.send(self._ring[self._sent : self._sent + left])
            except BlockingIOError:
                return number
        if self._sent >= self._ends[self._packets]:
            self._sent -= self._ends[self._packets]
            self._next -= self._packets
        return number

    def receive(self) -> int:
        """Take the replies that are there, as many as the buffer holds; return how many."""
        buffer, kept = self._buffer, self._end - self._read
        buffer[:kept] = buffer[self._read : self._end]
        self._read, self._end = 0, kept
        try:
            came = self._sock.recv_into(self._view[kept:])
        except BlockingIOError:
            return 0
        if not came:
            raise ConnectionResetError(errno.ECONNRESET, "the connection was closed")
        self._end = end = kept + came
        number = at = 0
        while at + 2 <= end:
            after = at + 2 + (buffer[at] << 8 | buffer[at + 1])
            if after > end:
                break
            at, number = after, number + 1
        self._read = at
        return number

    def first_reply(self) -> bytes:
        """Return the first reply of those that ``receive`` took."""
        return bytes(self._buffer[2 : 2 + int.from_bytes(self._buffer[:2])])

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
