# SPDX-License-Identifier: Apache-2.0

"""Sends prepared queries over one TCP connection, many at a time, and counts the replies, which come in any order.

As ``datagrams`` does for UDP: large writes and reads; of each reply it reads only the two octets of its length.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from itertools import accumulate

READ_SIZE = 1 << 18  # octets: room for four replies of the largest size, 64 KiB


class Stream:
    """A connection that sends the same queries to one server over and over, and takes the replies."""

    def __init__(self, packets: Sequence[bytes], *, source: str, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        framed = [len(packet).to_bytes(2) + packet for packet in packets]
        # All queries twice, so that what is to be sent next is always one slice.
        self._ring = memoryview(b"".join(framed) * 2)
        self._ends = tuple(accumulate(map(len, framed * 2), initial=0))
        self._packets, self._next = len(packets), 0
        self._sent = 0  # octets of the ring that were sent; back to 0 at the ring's end
        self._buffer = bytearray(READ_SIZE)
        self._view = memoryview(self._buffer)
        self._read = self._end = 0  # the buffer holds octets up to ``_end``; replies are counted up to ``_read``

    def send(self, number: int) -> int:
        """Send up to *number* queries, from where the last call ended; return how many were begun.

        Begins no query while an earlier one is sent in part only.
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
        """Receive the replies that have arrived, as many as the buffer holds; return how many."""
        buffer, partial = self._buffer, self._end - self._read
        buffer[:partial] = buffer[self._read : self._end]
        self._read, self._end = 0, partial
        try:
            received = self._sock.recv_into(self._view[partial:])
        except BlockingIOError:
            return 0
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        self._end = end = partial + received
        number = at = 0
        while at + 2 <= end:
            after = at + 2 + (buffer[at] << 8 | buffer[at + 1])
            if after > end:
                break
            at, number = after, number + 1
        self._read = at
        return number

    def first_reply(self) -> bytes:
        """Return the first of the replies that the last ``receive`` took."""
        return bytes(self._buffer[2 : 2 + int.from_bytes(self._buffer[:2])])

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
