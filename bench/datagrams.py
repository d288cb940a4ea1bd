# SPDX-License-Identifier: Apache-2.0

"""Sends prepared queries over one connected UDP socket and counts the replies: ``sendmmsg`` and ``recvmmsg``.

All message headers are prepared before the run, so that Python does no work for a single packet.
"""

from __future__ import annotations

import ctypes
import socket
from array import array
from collections.abc import Sequence
from itertools import accumulate

from dnsserver.net.mmsg import Headers, enlarge

BATCH = 128  # packets for each system call
REPLY_SIZE = 1500  # octets; no reply should have more than 1232
SOCKET_BUFFER = 4 << 20  # octets: the whole window fits, so the load generator loses no reply


class Datagrams:
    """A socket that sends the same packets to one server over and over, and takes the replies."""

    def __init__(self, packets: Sequence[bytes], *, source: str, port: int) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        enlarge(self._sock, socket.SO_RCVBUF, SOCKET_BUFFER)
        self._sock.bind((source, 0))
        self._sock.connect(("127.0.0.1", port))
        self._fd = self._sock.fileno()
        self._sent = _Memory(b"".join(packets), [len(packet) for packet in packets])
        self._replies = _Memory(bytes(BATCH * REPLY_SIZE), [REPLY_SIZE] * BATCH)
        self._packets, self._next = len(packets), 0

    def send(self, number: int) -> int:
        """Send up to *number* packets, from where the last call ended; return how many were sent."""
        sent = 0
        while sent < number:
            batch = min(number - sent, BATCH, self._packets - self._next)
            left = self._sent.headers.send(self._fd, self._next, self._next + batch)
            if not left:
                break
            sent += left
            self._next = (self._next + left) % self._packets
        return sent

    def receive(self) -> int:
        """Receive the replies that have arrived, at most ``BATCH``; return how many."""
        return self._replies.headers.receive(self._fd)

    def first_reply(self) -> bytes:
        """Return the first of the replies that the last ``receive`` took."""
        return self._replies.first()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class _Memory:
    """Packets one after the other in memory, and a message header for each."""

    def __init__(self, octets: bytes, sizes: Sequence[int]) -> None:
        self._octets = ctypes.create_string_buffer(octets, len(octets))
        self.headers = Headers(len(sizes))
        starts = accumulate(sizes[:-1], initial=ctypes.addressof(self._octets))
        self.headers.starts[:] = memoryview(array("Q", starts))
        self.headers.sizes[:] = memoryview(array("Q", sizes))

    def first(self) -> bytes:
        """Return the first received packet."""
        return self._octets[: self.headers.lengths[0]]
