"""DNS over UDP: wait until the socket is readable, then receive and answer until it is drained.

Datagrams travel in batches, by ``recvmmsg`` and ``sendmmsg``, which Python's own sockets do
not offer: one call for each datagram costs more than its answer. The control data of a received datagram says to which
address it was sent; handed back with the reply, it makes the reply leave from there, on
wildcard sockets too.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import socket
import struct
import time
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics.counters import Counts
from dnsserver.responder.replies import PendingReply
from dnsserver.responder.responder import Responder

if TYPE_CHECKING:  # it brings dnspython, which servers without an upstream need not
    from dnsserver.net.upstream import Upstream

log = logging.getLogger(__name__)

BATCH = 64  # datagrams for each system call; more gains nothing measurable
BATCHES_AT_ONCE = 16  # before other tasks get a turn: some milliseconds
QUERY_SIZE = 1536  # octets: the 1232 of our OPT records, and a PROXY header before them; what is longer is cut off
SOCKET_BUFFER = 4 << 20  # octets: a burst of some thousand queries waits instead of being lost
ADDRESS_SIZE = 28  # sockaddr_in6
CONTROL_SIZE = 64  # one in_pktinfo or in6_pktinfo with its header, and room
MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"

IP_PKTINFO = 8  # <linux/in.h>; Python's socket module does not name it before 3.14
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # <asm-generic/socket.h>
MSG_DONTWAIT = 0x40


Path = tuple[bytes, bytes]  # where a datagram came from, and the control data that say where it arrived

_STARTS = range(0, BATCH * QUERY_SIZE, QUERY_SIZE)
_FOUR, _SIX = struct.Struct("4x4s20x"), struct.Struct("8x16s4x")  # where the address stands in a slot of names


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


def prepare(sock: socket.socket, *, wildcard: bool) -> None:
    """Set a datagram socket up, before it is bound, for what ``serve`` does with it.

    A *wildcard* socket is told to which of its addresses each datagram was sent.
    """
    sock.setblocking(False)
    for option, forced in ((socket.SO_RCVBUF, SO_RCVBUFFORCE), (socket.SO_SNDBUF, SO_SNDBUFFORCE)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER)
        except PermissionError:  # as much as net.core.rmem_max and wmem_max allow
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    if wildcard and sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    elif wildcard:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


class Datagrams:
    """The buffers of one socket, and the two system calls on them.

    Slot *i* holds the *i*-th datagram of a batch: its octets, the address it came from, and
    on a wildcard socket the control data that says where it arrived. Its reply goes out
    through the same slot.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.six = sock.family == socket.AF_INET6
        self._fd = sock.fileno()
        wildcard = sock.getsockname()[0] in ("0.0.0.0", "::")
        control = CONTROL_SIZE if wildcard else 0
        self._buffer = bytearray(BATCH * QUERY_SIZE)
        self._names = bytearray(BATCH * ADDRESS_SIZE)
        self._controls = bytearray(BATCH * CONTROL_SIZE)
        self._received, self._sent = (_Mmsghdr * BATCH)(), (_Mmsghdr * BATCH)()
        self._incoming, self._outgoing = (_Iovec * BATCH)(), (_Iovec * BATCH)()
        for slot in range(BATCH):
            self._incoming[slot].base = _address_of(self._buffer) + slot * QUERY_SIZE
            self._incoming[slot].len = QUERY_SIZE
            for headers, vectors, name_size, control_size in (
                # The kernel notes in a received header how long name and control data were: the same
                # for every datagram of a socket, so what was large enough once stays so.
                (self._received, self._incoming, ADDRESS_SIZE, control),
                (self._sent, self._outgoing, ADDRESS_SIZE if self.six else 16, min(control, 40 if self.six else 32)),
            ):
                header = headers[slot].hdr
                header.iov, header.iovlen = ctypes.addressof(vectors) + slot * ctypes.sizeof(_Iovec), 1
                header.name, header.namelen = _address_of(self._names) + slot * ADDRESS_SIZE, name_size
                header.control, header.controllen = _address_of(self._controls) + slot * CONTROL_SIZE, control_size
        # The same memory as plain numbers: a ctypes field costs several times an index.
        words = memoryview(self._received).cast("B").cast("I")
        self._lengths = words[_Mmsghdr.len.offset // 4 :: ctypes.sizeof(_Mmsghdr) // 4]
        vectors_out = memoryview(self._outgoing).cast("B").cast("Q")
        self._reply_bases, self._reply_lengths = vectors_out[0::2], vectors_out[1::2]
        self._at = [ctypes.addressof(self._sent) + slot * ctypes.sizeof(_Mmsghdr) for slot in range(BATCH)]
        # Where an interface index stands in the control data. As received it would bind the reply
        # to that interface, past the routing table: it is made 0.
        controls = memoryview(self._controls).cast("I")
        self._interfaces = controls[(8 if self.six else 4) :: CONTROL_SIZE // 4] if wildcard else None
        self._no_interfaces = memoryview(bytes(4 * BATCH)).cast("I")

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Receive what is there, at most ``BATCH`` datagrams, each with its source. Raises OSError.

        A source is the packed address, 16 octets long on an IPv6 socket.
        """
        number: int = _recvmmsg(self._fd, ctypes.addressof(self._received), BATCH, MSG_DONTWAIT, None)
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return []
            raise OSError(code, os.strerror(code))
        if self._interfaces is not None:
            self._interfaces[:number] = self._no_interfaces[:number]
        # One copy of the batch, so that every part of it is a single slice.
        octets = bytes(memoryview(self._buffer)[: number * QUERY_SIZE])
        sources = _SIX.iter_unpack if self.six else _FOUR.iter_unpack
        return [
            (octets[at : at + length], source)
            for at, length, (source,) in zip(
                _STARTS, self._lengths[:number].tolist(), sources(self._names[: number * ADDRESS_SIZE]), strict=False
            )
        ]

    def send(self, replies: list[bytes | None]) -> int:
        """Send a reply through each slot, none where it is None; return how many did not leave.

        A reply that the kernel refuses (a source port 0, no route back) is passed over; so is
        what does not fit into the socket's buffer, as any datagram may be lost.
        """
        octets = b"".join(filter(None, replies))
        sizes = array("Q", (len(reply) if reply is not None else 0 for reply in replies))
        begin = ctypes.cast(ctypes.c_char_p(octets), ctypes.c_void_p).value or 0
        self._reply_lengths[: len(replies)] = memoryview(sizes)
        self._reply_bases[: len(replies)] = memoryview(array("Q", accumulate(sizes[:-1], initial=begin)))
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
            number: int = _sendmmsg(self._fd, self._at[first], last - first, MSG_DONTWAIT)
            if number <= 0:
                lost += 1
                number = 1
            first += number
        return lost


async def serve(
    sock: socket.socket,
    responder: Responder,
    counts: Counts,
    upstream: Upstream | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the queries that arrive at a bound socket, until cancelled."""
    async with trio.open_nursery() as nursery:
        listener = _Listener(Datagrams(sock), responder, counts, upstream, nursery)
        task_status.started()
        try:
            while True:
                await wait_readable(sock)
                if listener.drain():
                    await checkpoint()
        finally:
            listener.drain()  # what had arrived before the end


class _Listener:
    """One socket, and those who answer what arrives there. What must wait waits in the nursery."""

    def __init__(
        self,
        datagrams: Datagrams,
        responder: Responder,
        counts: Counts,
        upstream: Upstream | None,
        nursery: trio.Nursery,
    ) -> None:
        self._datagrams = datagrams
        self._responder = responder
        self._counts = counts
        self._upstream = upstream
        self._nursery = nursery

    def drain(self) -> bool:
        """Answer what waits at the socket; return whether there may be more."""
        return all(self._answer_batch() for _ in range(BATCHES_AT_ONCE))

    def _answer_batch(self) -> bool:
        """Receive a batch, answer it, send the replies; return whether there may be more."""
        counts = self._counts
        try:
            queries = self._datagrams.receive()
        except OSError as error:  # e.g. an ICMP error about an earlier reply
            counts.failures["receive"] += 1
            log.debug("receive: %s", error)
            return True
        if not queries:
            return False
        began = time.perf_counter()
        four, six = counts.channels["udp", 1], counts.channels["udp", 2]
        answer = self._responder.answer
        replies: list[bytes | None] = []
        waiting = 0
        for query, source in queries:
            channel = four
            if len(source) == 16:
                if source.startswith(MAPPED):
                    source = source[12:]
                else:
                    channel = six
            try:
                reply = answer(query, source, channel)
                if reply is not None and not isinstance(reply, bytes):
                    reply = self._finish_or_wait(reply, len(replies), began)
                    waiting += reply is None
                replies.append(reply)
            except Exception:  # the wall around one packet
                counts.failures["packet"] += 1
                log.exception("a query from %s could not be answered", source.hex())
                replies.append(None)
        if lost := self._datagrams.send(replies):
            counts.failures["send"] += lost
        counts.took(time.perf_counter() - began, len(queries) - waiting)
        return len(queries) == BATCH

    def _finish_or_wait(self, waiting: PendingReply, slot: int, began: float) -> bytes | None:
        """Return the reply if nothing need be waited for; else None, and it leaves later."""
        if self._upstream is None:
            return self._responder.finish(waiting, None)
        known = self._upstream.recall(waiting.target, waiting.qtype)
        if known is not None:
            return self._responder.finish(waiting, known.records)
        self._nursery.start_soon(self._wait, self._upstream, waiting, self._datagrams.path(slot), began)
        return None

    async def _wait(self, upstream: Upstream, waiting: PendingReply, path: Path, began: float) -> None:
        """Ask the upstream, then reply; when the server ends meanwhile, without what it would have said."""
        found = None
        try:
            found = await upstream.find(waiting.target, waiting.qtype)
        finally:
            try:
                lost = self._datagrams.send_along(path, self._responder.finish(waiting, found))
            except Exception:  # the wall around one packet
                self._counts.failures["packet"] += 1
                log.exception("what %s has could not be answered", waiting.target)
            else:
                self._counts.failures["send"] += lost
                self._counts.took(time.perf_counter() - began, 1)
