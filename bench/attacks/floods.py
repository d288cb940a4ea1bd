# SPDX-License-Identifier: Apache-2.0

"""The two ways in which a pod attacks: datagrams, and many connections."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import cycle, islice
from typing import NamedTuple

from bench.attacks.messages import Packets, Words
from bench.attacks.targets import ATTACKER, AttackedServer

AT_ONCE = 128  # datagrams
OPENED_AT_ONCE = 64  # connections
BUFFER = 65_536
CLOSED = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: a connection that is closed leaves nothing behind


class Flood(NamedTuple):
    """Datagrams, the same ones again and again."""

    packets: Packets
    source: str = ATTACKER

    def run(self, target: AttackedServer, rate: float | None) -> Iterator[None]:
        """Attack for as long as somebody iterates: *rate* times a second, or as often as the machine can send."""
        packets = cycle(self.packets(target))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind((self.source, 0))
            sock.connect(("127.0.0.1", target.dns))
            began, sent = time.monotonic(), 0
            while True:
                yield
                due = AT_ONCE if rate is None else int((time.monotonic() - began) * rate) - sent
                for packet in islice(packets, due):
                    with suppress(BlockingIOError, ConnectionRefusedError):
                        sock.send(packet)
                sent += due
                with suppress(BlockingIOError, ConnectionRefusedError):
                    for _ in range(due):  # else the kernel spends time on dropping replies
                        sock.recv(BUFFER)
                if rate is not None:
                    time.sleep(0.002)


class Crowd(NamedTuple):
    """Connections that all say the same. One that the server closes is opened anew.

    They say it once or *again* and again, at once or an octet each *pause* seconds; they *read* what comes or let it
    wait; they stay or, if they *leave*, hang up once all is said. ``http`` is whether they go to the HTTP port.
    """

    connections: int
    words: Words
    again: bool = False
    reads: bool = True
    leaves: bool = False
    pause: float = 0.0
    http: bool = False

    def run(self, target: AttackedServer, rate: float | None) -> Iterator[None]:
        """Attack for as long as somebody iterates; the server alone decides at which *rate*."""
        words = self.words(target)
        port = target.http if self.http else target.dns
        open_: dict[int, _Speaker] = {}
        wanted = (select.EPOLLIN if self.reads else 0) | (0 if self.pause else select.EPOLLOUT) | select.EPOLLRDHUP
        with select.epoll() as epoll, ExitStack() as stack:
            stack.callback(lambda: [speaker.sock.close() for speaker in open_.values()])
            due = time.monotonic()
            while True:
                yield
                for _ in range(min(OPENED_AT_ONCE, self.connections - len(open_))):
                    speaker = _Speaker(port, words, self)
                    open_[speaker.sock.fileno()] = speaker
                    epoll.register(speaker.sock, wanted)
                for number, events in epoll.poll(0.01):
                    speaker = open_[number]
                    if not speaker.turn(events):
                        del open_[number]
                        speaker.sock.close()
                    elif speaker.silent and events & select.EPOLLOUT:
                        epoll.modify(number, wanted & ~select.EPOLLOUT)
                if self.pause and time.monotonic() >= due:
                    due = time.monotonic() + self.pause
                    for speaker in open_.values():
                        speaker.say(1)


class _Speaker:
    """One connection."""

    def __init__(self, port: int, words: bytes, crowd: Crowd) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.bind((ATTACKER, 0))
        self.sock.connect_ex(("127.0.0.1", port))
        self._words, self._crowd, self._said = words, crowd, 0
        self.silent = False
        """Whether it has nothing more to say."""

    def turn(self, events: int) -> bool:
        """Say and read what is possible; return whether the connection goes on."""
        if events & CLOSED:
            return False
        try:
            if events & select.EPOLLIN and not self.sock.recv(BUFFER):
                return False
        except BlockingIOError:
            pass
        except OSError:
            return False
        return not events & select.EPOLLOUT or self.say(BUFFER)

    def say(self, octets: int) -> bool:
        """Say some of the words; return whether the connection goes on."""
        try:
            self._said += self.sock.send(self._words[self._said : self._said + octets])
        except BlockingIOError:
            return True
        except OSError:
            return False
        if self._said == len(self._words):
            self._said = 0 if self._crowd.again else self._said
            self.silent = not self._crowd.again
        return not (self.silent and self._crowd.leaves)


class Attack(NamedTuple):
    """Something that one pod can do; ``text`` says what, as a sentence without its end.

    ``only_here`` is whether CoreDNS has nothing here that it could be aimed at.
    """

    text: str
    how: Flood | Crowd
    only_here: bool = False
