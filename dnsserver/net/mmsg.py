# SPDX-License-Identifier: Apache-2.0

"""Receives and sends datagrams in batches, with ``recvmmsg`` and ``sendmmsg``.

Python's sockets lack these system calls, and one call for each datagram costs more than its
answer. Only this module knows the memory layout of their arguments. It never looks into a datagram.

The control data of a received datagram hold the address that it was sent to. Passed back with the
reply, they make the reply leave from that address, even on a wildcard socket.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

BATCH = 64  # datagrams for each system call; more gains nothing measurable
QUERY_SIZE = 1536  # octets: a query of 1232, the size in our OPT records, and a PROXY header; more is cut off
ADDRESS_SIZE = 28  # sockaddr_in6
CONTROL_SIZE = 64  # one in_pktinfo or in6_pktinfo with its header, rounded up

IP_PKTINFO = 8  # <linux/in.h>; Python's socket module lacks it before 3.14
MSG_DONTWAIT = 0x40
FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # <asm-generic/socket.h>: SO_SNDBUFFORCE, SO_RCVBUFFORCE

Path = tuple[bytes, bytes]  # the sockaddr that a datagram came from, and its control data

_STARTS = range(0, BATCH * QUERY_SIZE, QUERY_SIZE)
_FOUR, _SIX = struct.Struct("4x4s20x"), struct.Struct("8x16s4x")  # the address within a sockaddr


class Datagrams:
    """The buffers of one socket, and the two system calls on them.

    Slot *i* holds the *i*-th datagram of a batch: its octets, the address that it came from, and
    on a wildcard socket its control data. Its reply leaves through the same slot.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._six = six = sock.family == socket.AF_INET6
        wildcard = is_wildcard(sock)
        self.received_at = 0.0
        control = CONTROL_SIZE if wildcard else 0
        self._buffer = bytearray(BATCH * QUERY_SIZE)
        self._names = bytearray(BATCH * ADDRESS_SIZE)
        self._controls = bytearray(BATCH * CONTROL_SIZE)
        # The kernel overwrites the lengths of name and control data with those it received. They are
        # the same for every datagram of a socket, so they need no reset.
        self._queries = self._headers(ADDRESS_SIZE, control)
        self._replies = self._headers(ADDRESS_SIZE if six else 16, min(control, 40 if six else 32))
        start = _address_of(self._buffer)
        self._queries.starts[:] = _numbers(range(start, start + BATCH * QUERY_SIZE, QUERY_SIZE))
        self._queries.sizes[:] = _numbers([QUERY_SIZE] * BATCH)
        # The interface indices in the control data. Unless they are set to 0, the reply would leave
        # through the interface of the query, whatever the routing table says.
        controls = memoryview(self._controls).cast("I")
        self._interfaces = controls[(8 if six else 4) :: CONTROL_SIZE // 4] if wildcard else None
        self._no_interfaces = memoryview(bytes(4 * BATCH)).cast("I")

    def _headers(self, name_size: int, control_size: int) -> Headers:
        headers = Headers(BATCH)
        names, controls = _address_of(self._names), _address_of(self._controls)
        for slot in range(BATCH):
            name, control = names + slot * ADDRESS_SIZE, controls + slot * CONTROL_SIZE
            headers.place(slot, name=(name, name_size), control=(control, control_size))
        return headers

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._fd

    def end(self) -> None:
        """Do nothing: what has arrived can still be received."""

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return the waiting datagrams, at most ``BATCH``, each with its source. Raises OSError.

        A source is the packed address, 16 octets long on an IPv6 socket.
        """
        number = self._queries.receive(self._fd)
        self.received_at = time.perf_counter()
        if self._interfaces is not None:
            self._interfaces[:number] = self._no_interfaces[:number]
        # One copy of the whole batch: then each datagram is a single slice.
        octets = bytes(memoryview(self._buffer)[: number * QUERY_SIZE])
        sources = _SIX.iter_unpack if self._six else _FOUR.iter_unpack
        lengths = self._queries.lengths[:number].tolist()
        return [
            (octets[at : at + length], source)
            for at, length, (source,) in zip(
                _STARTS, lengths, sources(self._names[: number * ADDRESS_SIZE]), strict=False
            )
        ]

    def send(self, first: int, replies: Sequence[bytes | None]) -> int:
        """Send replies through the slots from *first* on, nothing where it is None; return how many were lost.

        A reply is lost if the kernel refuses it (destination port 0, no route), or if the socket's
        buffer is full.
        """
        octets = b"".join(filter(None, replies))
        sizes = _numbers(len(reply) if reply is not None else 0 for reply in replies)
        begin = ctypes.cast(ctypes.c_char_p(octets), ctypes.c_void_p).value or 0
        lost, last = 0, first + len(replies)
        self._replies.sizes[first:last] = sizes
        self._replies.starts[first:last] = _numbers(accumulate(sizes[:-1], initial=begin))
        if None in replies:
            for slot, reply in enumerate(replies, first):
                if reply is None:
                    lost += self._send(first, slot)
                    first = slot + 1
        return lost + self._send(first, last)

    def path(self, slot: int) -> Path:
        """Return the path of the datagram in a slot, for a reply that is sent later."""
        name, control = slot * ADDRESS_SIZE, slot * CONTROL_SIZE
        return bytes(self._names[name : name + ADDRESS_SIZE]), bytes(self._controls[control : control + CONTROL_SIZE])

    def send_along(self, path: Path, reply: bytes) -> int:
        """Send a later reply along *path*; return how many were lost. Only if slot 0 is answered: it uses that."""
        self._names[:ADDRESS_SIZE], self._controls[:CONTROL_SIZE] = path
        return self.send(0, [reply])

    def _send(self, first: int, last: int) -> int:
        lost = 0
        while first < last:
            try:
                number = self._replies.send(self._fd, first, last)
            except OSError:
                number = 0
            lost += not number
            first += number or 1
        return lost


def is_wildcard(sock: socket.socket) -> bool:
    """Whether a bound socket receives what is sent to any address of the machine."""
    return sock.getsockname()[0] in ("0.0.0.0", "::")


def enlarge(sock: socket.socket, option: int, octets: int) -> None:
    """Set ``SO_RCVBUF`` or ``SO_SNDBUF`` to *octets*, or to the system's limit for an unprivileged process."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, FORCED[option], octets)
    except PermissionError:  # net.core.rmem_max and wmem_max are the limit
        sock.setsockopt(socket.SOL_SOCKET, option, octets)


def tell_destinations(sock: socket.socket) -> None:
    """Make the control data of every datagram hold the address that it was sent to."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


class Headers:
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


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _numbers(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("Q", numbers))
