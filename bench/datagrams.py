"""Prepared packets out, replies counted: ``sendmmsg`` and ``recvmmsg`` on one connected socket.

Every header is written beforehand, so that Python does nothing for a single packet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence

BATCH = 128  # packets for each system call
REPLY_SIZE = 1500  # octets; no reply should have more than 1232
SOCKET_BUFFER = 4 << 20  # octets: the whole window fits, so nothing is lost on our side
SO_RCVBUFFORCE = 33  # <asm/socket.h>: past net.core.rmem_max, for who may
MSG_DONTWAIT = 0x40

# <sys/socket.h>, 64 bits: struct mmsghdr {name, namelen, iov, iovlen, control, controllen, flags, len}
_MMSGHDR = struct.Struct("@PI4xPNPNi4xI4x")
_IOVEC = struct.Struct("@PN")
_LENGTH_AT = 56  # octets from the begin of a mmsghdr to what was received

_libc = ctypes.CDLL(None, use_errno=True)
_sendmmsg, _recvmmsg = _libc.sendmmsg, _libc.recvmmsg
_sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)


class Datagrams:
    """Packets in a ring, sent over and over to one server, and the replies to them."""

    def __init__(self, packets: Sequence[bytes], *, source: str, port: int) -> None:
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BUFFER)
        except PermissionError:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
        self._sock.bind((source, 0))
        self._sock.connect(("127.0.0.1", port))
        self._fd = self._sock.fileno()
        lengths = [len(packet) for packet in packets]
        self._out = _Headers(b"".join(packets), lengths)
        self._in = _Headers(bytes(BATCH * REPLY_SIZE), [REPLY_SIZE] * BATCH)
        self._packets, self._next = len(packets), 0

    def send(self, number: int) -> int:
        """Send up to *number* packets, the next ones in the ring; return how many left."""
        sent = 0
        while sent < number:
            batch = min(number - sent, BATCH, self._packets - self._next)
            left = _sendmmsg(self._fd, self._out.at(self._next), batch, MSG_DONTWAIT)
            if left < 0:
                _raise_unless_busy()
                break
            sent += left
            self._next = (self._next + left) % self._packets
        return sent

    def receive(self) -> int:
        """Take the replies that are there, at most ``BATCH``; return how many."""
        number: int = _recvmmsg(self._fd, self._in.at(0), BATCH, MSG_DONTWAIT, None)
        if number < 0:
            _raise_unless_busy()
            return 0
        return number

    def first_reply(self) -> bytes:
        """Return the first reply of those that ``receive`` took."""
        return self._in.first()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class _Headers:
    """Packets one behind the other in memory, and a header for each."""

    def __init__(self, data: bytes, lengths: Sequence[int]) -> None:
        self._data = ctypes.create_string_buffer(data, len(data))
        self._vectors = ctypes.create_string_buffer(_IOVEC.size * len(lengths))
        self._headers = ctypes.create_string_buffer(_MMSGHDR.size * len(lengths))
        self._start = ctypes.addressof(self._headers)
        start, vectors = ctypes.addressof(self._data), ctypes.addressof(self._vectors)
        for slot, length in enumerate(lengths):
            at = slot * _IOVEC.size
            _IOVEC.pack_into(self._vectors, at, start, length)
            _MMSGHDR.pack_into(self._headers, slot * _MMSGHDR.size, 0, 0, vectors + at, 1, 0, 0, 0, 0)
            start += length

    def at(self, slot: int) -> int:
        return self._start + slot * _MMSGHDR.size

    def first(self) -> bytes:
        (length,) = struct.unpack_from("@I", self._headers, _LENGTH_AT)
        return ctypes.string_at(self._data, length)


def _raise_unless_busy() -> None:
    code = ctypes.get_errno()
    if code not in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS):
        raise OSError(code, os.strerror(code))
