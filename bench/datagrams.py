# SPDX-License-Identifier: Apache-2.0

"""Sends prepared queries over one connected UDP socket and counts the replies: ``sendmmsg`` and ``recvmmsg``.

All message headers are prepared before the run, so that Python does no work for a single packet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from array import array
from collections.abc import Sequence
from itertools import accumulate

SO_RCVBUFFORCE = 33  # <asm-generic/socket.h>
MSG_DONTWAIT = 0x40
BATCH = 128  # packets for each system call
REPLY_SIZE = 1500  # octets; no reply should have more than 1232
SOCKET_BUFFER = 4 << 20  # octets: the whole window fits, so the load generator loses no reply


class Datagrams:
    """A socket that sends the same packets to one server over and over, and takes the replies."""

    def __init__(self, packets: Sequence[bytes], *, source: str, port: int) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER)
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
        self.headers = _Headers(len(sizes))
        starts = accumulate(sizes[:-1], initial=ctypes.addressof(self._octets))
        self.headers.starts[:] = memoryview(array("Q", starts))
        self.headers.sizes[:] = memoryview(array("Q", sizes))

    def first(self) -> bytes:
        """Return the first received packet."""
        return self._octets[: self.headers.lengths[0]]


class _Headers:
    """The arguments of the system calls for *count* datagrams: a ``mmsghdr`` with one ``iovec`` each.

    ``starts`` are the memory addresses of the datagrams' octets. ``sizes`` are the numbers of octets
    to send, or of room to receive. ``lengths`` are the numbers of octets received. All three are views
    of the memory that the kernel uses: a ctypes field costs several times as much as an index.
    """

    def __init__(self, count: int) -> None:
        self._headers, self._vectors = (_Mmsghdr * count)(), (_Iovec * count)()
        first, step = ctypes.addressof(self._headers), ctypes.sizeof(_Mmsghdr)
        self._at = range(first, first + count * step, step)
        vector = ctypes.addressof(self._vectors)
        for header in self._headers:
            header.hdr.iov, header.hdr.iovlen = vector, 1
            vector += ctypes.sizeof(_Iovec)
        integers = memoryview(self._headers).cast("B").cast("I")
        self.lengths = integers[_Mmsghdr.len.offset // 4 :: step // 4]
        vectors = memoryview(self._vectors).cast("B").cast("Q")
        self.starts, self.sizes = vectors[0::2], vectors[1::2]

    def place(self, slot: int, *, name: tuple[int, int], control: tuple[int, int]) -> None:
        """Set memory address and size, in octets, of a datagram's socket address and of its control data."""
        header = self._headers[slot].hdr
        header.name, header.namelen = name
        header.control, header.controllen = control

    def receive(self, sock: int) -> int:
        """Receive the waiting datagrams, at most one for each header; return their number. Raises OSError."""
        number: int = _recvmmsg(sock, self._at[0], len(self._at), MSG_DONTWAIT, None)
        return number if number >= 0 else _zero_if_temporary()

    def send(self, sock: int, first: int, last: int) -> int:
        """Send datagrams *first* to *last* - 1 until the kernel refuses one; return how many were sent.

        Returns 0 if the kernel lacks room for the first. Raises OSError if it refuses the first.
        """
        number: int = _sendmmsg(sock, self._at[first], last - first, MSG_DONTWAIT)
        return number if number >= 0 else _zero_if_temporary()


def _zero_if_temporary() -> int:
    """Return 0 if the call that has just failed may succeed later. Raises OSError otherwise."""
    code = ctypes.get_errno()
    if code in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
        return 0
    raise OSError(code, os.strerror(code))


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


class _Msghdr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Mmsghdr(ctypes.Structure):
    _fields_ = (("hdr", _Msghdr), ("len", ctypes.c_uint))


# PyDLL keeps the interpreter lock. These calls never wait; if each released the lock, a busy thread
# (one that takes in a snapshot) could delay every batch.
_libc = ctypes.PyDLL(None, use_errno=True)
_recvmmsg, _sendmmsg = _libc.recvmmsg, _libc.sendmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
