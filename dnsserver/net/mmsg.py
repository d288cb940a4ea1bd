"""Receive and send datagrams in batches, by ``recvmmsg`` and ``sendmmsg``.

Python's own sockets lack these system calls, and one call for each datagram costs more than its
answer. This module alone knows how the arguments are laid out in memory. It reads no datagram.

The control data of a received datagram say to which address it was sent. Handed back with the
reply, they make the reply leave from that address, on wildcard sockets too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from array import array
from collections.abc import Iterable
from itertools import accumulate

BATCH = 64  # datagrams for each system call; more gains nothing measurable
QUERY_SIZE = 1536  # octets: the 1232 of our OPT records, and a PROXY header before them; what is longer is cut off
ADDRESS_SIZE = 28  # sockaddr_in6
CONTROL_SIZE = 64  # one in_pktinfo or in6_pktinfo with its header, and room

IP_PKTINFO = 8  # <linux/in.h>; Python's socket module does not name it before 3.14
MSG_DONTWAIT = 0x40
FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}  # <asm-generic/socket.h>: SO_SNDBUFFORCE, SO_RCVBUFFORCE

Path = tuple[bytes, bytes]  # where a datagram came from, and the control data that say where it arrived

_STARTS = range(0, BATCH * QUERY_SIZE, QUERY_SIZE)
_FOUR, _SIX = struct.Struct("4x4s20x"), struct.Struct("8x16s4x")  # where the address stands in a slot of names


class Datagrams:
    """The buffers of one socket, and the two system calls on them.

    Slot *i* holds the *i*-th datagram of a batch: its octets, the address it came from, and
    on a wildcard socket the control data that says where it arrived. Its reply goes out
    through the same slot.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._six = six = sock.family == socket.AF_INET6
        wildcard = sock.getsockname()[0] in ("0.0.0.0", "::")
        control = CONTROL_SIZE if wildcard else 0
        self._buffer = bytearray(BATCH * QUERY_SIZE)
        self._names = bytearray(BATCH * ADDRESS_SIZE)
        self._controls = bytearray(BATCH * CONTROL_SIZE)
        # The kernel notes in a received header how long name and control data were: the same
        # for every datagram of a socket, so what was large enough once stays so.
        self._queries = self._headers(ADDRESS_SIZE, control)
        self._replies = self._headers(ADDRESS_SIZE if six else 16, min(control, 40 if six else 32))
        start = _address_of(self._buffer)
        self._queries.starts[:] = _numbers(range(start, start + BATCH * QUERY_SIZE, QUERY_SIZE))
        self._queries.sizes[:] = _numbers([QUERY_SIZE] * BATCH)
        # Where an interface index stands in the control data. As received it would bind the reply
        # to that interface, past the routing table: it is made 0.
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

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Receive what is there, at most ``BATCH`` datagrams, each with its source. Raises OSError.

        A source is the packed address, 16 octets long on an IPv6 socket.
        """
        number = self._queries.receive(self._fd)
        if self._interfaces is not None:
            self._interfaces[:number] = self._no_interfaces[:number]
        # One copy of the batch, so that every part of it is a single slice.
        octets = bytes(memoryview(self._buffer)[: number * QUERY_SIZE])
        sources = _SIX.iter_unpack if self._six else _FOUR.iter_unpack
        lengths = self._queries.lengths[:number].tolist()
        return [
            (octets[at : at + length], source)
            for at, length, (source,) in zip(
                _STARTS, lengths, sources(self._names[: number * ADDRESS_SIZE]), strict=False
            )
        ]

    def send(self, replies: list[bytes | None]) -> int:
        """Send a reply through each slot, none where it is None; return how many did not leave.

        A reply that the kernel refuses (a source port 0, no route back) is passed over; so is
        what does not fit into the socket's buffer, as any datagram may be lost.
        """
        octets = b"".join(filter(None, replies))
        sizes = _numbers(len(reply) if reply is not None else 0 for reply in replies)
        begin = ctypes.cast(ctypes.c_char_p(octets), ctypes.c_void_p).value or 0
        self._replies.sizes[: len(replies)] = sizes
        self._replies.starts[: len(replies)] = _numbers(accumulate(sizes[:-1], initial=begin))
        lost, first = 0, 0
        if None in replies:
            for slot, reply in enumerate(replies):
                if reply is None:
                    lost += self._send(first, slot)
                    first = slot + 1
        return lost + self._send(first, len(replies))

    def path(self, slot: int) -> Path:
        """Return which way the datagram in a slot came: a reply of later finds back by it."""
        name, control = slot * ADDRESS_SIZE, slot * CONTROL_SIZE
        return bytes(self._names[name : name + ADDRESS_SIZE]), bytes(self._controls[control : control + CONTROL_SIZE])

    def send_along(self, path: Path, reply: bytes) -> int:
        """Send a reply the way back, between batches, when no slot is in use; return how many did not leave."""
        self._names[:ADDRESS_SIZE], self._controls[:CONTROL_SIZE] = path
        return self.send([reply])

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


def enlarge(sock: socket.socket, option: int, octets: int) -> None:
    """Give a socket a larger ``SO_RCVBUF`` or ``SO_SNDBUF``: as large as asked for, or as the system allows."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, FORCED[option], octets)
    except PermissionError:  # as much as net.core.rmem_max and wmem_max allow
        sock.setsockopt(socket.SOL_SOCKET, option, octets)


def tell_destinations(sock: socket.socket) -> None:
    """Have the control data of every datagram say to which address it was sent."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


class Headers:
    """What the kernel reads and writes for *count* datagrams: a ``mmsghdr`` each, with one ``iovec``.

    ``starts`` is where the octets of each datagram stand in memory. ``sizes`` is how many of them
    to send, or how many there is room for. ``lengths`` is how many the kernel received. All three
    are views of the memory that the kernel sees: a ctypes field costs several times an index.
    """

    def __init__(self, count: int) -> None:
        self._headers, self._vectors = (_Mmsghdr * count)(), (_Iovec * count)()
        first, step = ctypes.addressof(self._headers), ctypes.sizeof(_Mmsghdr)
        self._at = range(first, first + count * step, step)
        vector = ctypes.addressof(self._vectors)
        for header in self._headers:
            header.hdr.iov, header.hdr.iovlen = vector, 1
            vector += ctypes.sizeof(_Iovec)
        words = memoryview(self._headers).cast("B").cast("I")
        self.lengths = words[_Mmsghdr.len.offset // 4 :: step // 4]
        vectors = memoryview(self._vectors).cast("B").cast("Q")
        self.starts, self.sizes = vectors[0::2], vectors[1::2]

    def place(self, slot: int, *, name: tuple[int, int], control: tuple[int, int]) -> None:
        """Set where a datagram's address and control data stand in memory, and how many octets each has."""
        header = self._headers[slot].hdr
        header.name, header.namelen = name
        header.control, header.controllen = control

    def receive(self, sock: int) -> int:
        """Receive the datagrams that wait, at most one for each header; return how many. Raises OSError."""
        number: int = _recvmmsg(sock, self._at[0], len(self._at), MSG_DONTWAIT, None)
        return number if number >= 0 else _none()

    def send(self, sock: int, first: int, last: int) -> int:
        """Send the datagrams from *first* up to *last*, until the kernel refuses one; return how many left.

        Raises OSError if the kernel refuses the first, but returns 0 if it only lacks room.
        """
        number: int = _sendmmsg(sock, self._at[first], last - first, MSG_DONTWAIT)
        return number if number >= 0 else _none()


def _none() -> int:
    """Return 0 if the call that just failed can succeed later. Raises OSError otherwise."""
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


# PyDLL keeps the interpreter lock: these calls never wait, and giving the lock away at each
# would let a busy thread (one that reads a new snapshot) hold every batch up.
_libc = ctypes.PyDLL(None, use_errno=True)
_recvmmsg, _sendmmsg = _libc.recvmmsg, _libc.sendmmsg
_recvmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


def _address_of(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _numbers(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("Q", numbers))
