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
import time

import trio
from trio.lowlevel import checkpoint, wait_readable

from dnsserver.metrics import Counts
from dnsserver.records import MAX_UDP_REPLY
from dnsserver.responder import Responder

log = logging.getLogger(__name__)

BATCH = 64  # datagrams for each system call; more gains nothing measurable
BATCHES_AT_ONCE = 16  # before other tasks get a turn: some milliseconds
QUERY_SIZE = 1024  # the longest question with a dozen options fits; a longer query is cut off: FORMERR
REPLY_SIZE = MAX_UDP_REPLY
SOCKET_BUFFER = 4 << 20  # octets: a burst of some thousand queries waits instead of being lost
ADDRESS_SIZE = 28  # sockaddr_in6
CONTROL_SIZE = 64  # one in_pktinfo or in6_pktinfo with its header, and room
MAPPED = b"\0\0\0\0\0\0\0\0\0\0\xff\xff"

IP_PKTINFO = 8  # <linux/in.h>; Python's socket module does not name it before 3.14
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # <asm-generic/socket.h>
MSG_DONTWAIT = 0x40


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


def prepare(sock: socket.socket) -> None:
    """Set a datagram socket up, before it is bound, for what ``serve`` does with it."""
    sock.setblocking(False)
    for option, forced in ((socket.SO_RCVBUF, SO_RCVBUFFORCE), (socket.SO_SNDBUF, SO_SNDBUFFORCE)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER)
        except PermissionError:  # as much as net.core.rmem_max and wmem_max allow
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)


class Datagrams:
    """The buffers of one socket, and the two system calls on them.

    Slot *i* holds the *i*-th datagram of a batch: its octets, the address it came from, and
    the control data that says where it arrived. Its reply goes out through the same slot.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._fd = sock.fileno()
        self._queries = bytearray(BATCH * QUERY_SIZE)
        self.queries = memoryview(self._queries)
        self.replies = bytearray(BATCH * REPLY_SIZE)
        self._names = bytearray(BATCH * ADDRESS_SIZE)
        self.names = memoryview(self._names)
        self._controls = bytearray(BATCH * CONTROL_SIZE)
        self._received, self._sent = (_Mmsghdr * BATCH)(), (_Mmsghdr * BATCH)()
        self._vectors = (_Iovec * BATCH)(), (_Iovec * BATCH)()
        six = sock.family == socket.AF_INET6
        # Where an interface index stands in the control data: as received it would bind the
        # reply to that interface, past the routing table.
        self._interface = 32 if six else 16
        for slot in range(BATCH):
            for headers, vectors, data, size, name_size, control_size in (
                # The kernel notes in a received header how long name and control data were: the same
                # for every datagram of a socket, so what was large enough once stays so.
                (self._received, self._vectors[0], self._queries, QUERY_SIZE, ADDRESS_SIZE, CONTROL_SIZE),
                (
                    self._sent,
                    self._vectors[1],
                    self.replies,
                    REPLY_SIZE,
                    ADDRESS_SIZE if six else 16,
                    40 if six else 32,
                ),
            ):
                vectors[slot].base, vectors[slot].len = _address_of(data) + slot * size, size
                header = headers[slot].hdr
                header.iov, header.iovlen = ctypes.addressof(vectors) + slot * ctypes.sizeof(_Iovec), 1
                header.name, header.namelen = _address_of(self._names) + slot * ADDRESS_SIZE, name_size
                header.control, header.controllen = _address_of(self._controls) + slot * CONTROL_SIZE, control_size
        # The same memory as plain numbers: a ctypes field costs several times an index.
        words = memoryview(self._received).cast("B").cast("I")
        self.lengths = words[_Mmsghdr.len.offset // 4 :: ctypes.sizeof(_Mmsghdr) // 4]
        self.reply_lengths = memoryview(self._vectors[1]).cast("B").cast("Q")[1::2]
        self._at = [ctypes.addressof(self._sent) + slot * ctypes.sizeof(_Mmsghdr) for slot in range(BATCH)]

    def receive(self) -> int:
        """Receive what is there, at most ``BATCH`` datagrams; return how many. Raises OSError."""
        number: int = _recvmmsg(self._fd, ctypes.addressof(self._received), BATCH, MSG_DONTWAIT, None)
        if number < 0:
            code = ctypes.get_errno()
            if code in (errno.EAGAIN, errno.EINTR):
                return 0
            raise OSError(code, os.strerror(code))
        controls, at = self._controls, self._interface
        for slot in range(number):
            start = slot * CONTROL_SIZE + at
            controls[start : start + 4] = b"\0\0\0\0"
        return number

    def send(self, first: int, last: int) -> int:
        """Send the replies in slots *first* to *last*, the last not included; return how many did not leave.

        A reply that the kernel refuses (a source port 0, no route back) is passed over; so is
        what does not fit into the socket's buffer, as any datagram may be lost.
        """
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
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer the queries that arrive at a bound socket, until cancelled."""
    datagrams = Datagrams(sock)
    task_status.started()
    try:
        while True:
            await wait_readable(sock)
            if _drain(datagrams, sock, responder, counts):
                await checkpoint()
    finally:
        _drain(datagrams, sock, responder, counts)  # what had arrived before the end


def _drain(datagrams: Datagrams, sock: socket.socket, responder: Responder, counts: Counts) -> bool:
    """Answer what waits at the socket; return whether there may be more."""
    return all(_answer_batch(datagrams, sock, responder, counts) for _ in range(BATCHES_AT_ONCE))


def _answer_batch(datagrams: Datagrams, sock: socket.socket, responder: Responder, counts: Counts) -> bool:
    """Receive a batch, answer it, send the replies; return whether there may be more."""
    try:
        number = datagrams.receive()
    except OSError as error:  # e.g. an ICMP error about an earlier reply
        counts.failures["receive"] += 1
        log.debug("receive: %s", error)
        return True
    began = time.perf_counter()
    six = sock.family == socket.AF_INET6
    four_channel, six_channel = counts.channels["udp", 1], counts.channels["udp", 2]
    # One copy of the batch, so that every part of it is a single slice.
    queries = bytes(datagrams.queries[: number * QUERY_SIZE])
    names, lengths = bytes(datagrams.names[: number * ADDRESS_SIZE]), datagrams.lengths
    replies, reply_lengths = datagrams.replies, datagrams.reply_lengths
    answer = responder.answer
    first = lost = 0
    for slot in range(number):
        at, name = slot * QUERY_SIZE, slot * ADDRESS_SIZE
        channel = four_channel
        if not six:
            source = names[name + 4 : name + 8]
        else:
            source = names[name + 8 : name + 24]
            if source.startswith(MAPPED):
                source = source[12:]
            else:
                channel = six_channel
        try:
            reply = answer(queries[at : at + lengths[slot]], source, channel)
        except Exception:  # the wall around one packet
            counts.failures["packet"] += 1
            log.exception("a query from %s could not be answered", source.hex())
            reply = None
        if reply is None:
            lost += datagrams.send(first, slot)
            first = slot + 1
            continue
        size = len(reply)
        at = slot * REPLY_SIZE
        replies[at : at + size] = reply
        reply_lengths[slot] = size
    lost += datagrams.send(first, number)
    if lost:
        counts.failures["send"] += lost
    counts.took(time.perf_counter() - began, number)
    return number == BATCH
