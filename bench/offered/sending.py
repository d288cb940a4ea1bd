# SPDX-License-Identifier: Apache-2.0

"""Offers a load at a rate with ``sender.c``, and reads what the server's CPU time was."""

from __future__ import annotations

import math
import socket
import struct
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.queries import HEADER, Load, complaint
from bench.replay import BadReply
from bench.servers import CannotStart, Server

_SOURCES = Path(__file__).parent
_COUNTS = struct.Struct("=QQQ")
LATE = 1.0  # seconds after which the sender counts a query as lost
QR, RCODE = 0x8000, 0x000F
_SAMPLE = struct.Struct("=HH")


class Offered(NamedTuple):
    """What one run showed: queries sent and answered, the server's CPU seconds, and the latencies, sorted, in seconds.

    ``took`` is the length in seconds, ``checked`` how many replies were checked. If no reply came in time, there is one
    latency: that time.
    """

    took: float
    sent: int
    replies: int
    checked: int
    cpu: float
    latencies: Sequence[float]

    @property
    def cost(self) -> float:
        """The server's CPU microseconds for each reply; infinite if no reply came within a second."""
        return 1e6 * self.cpu / self.replies if self.replies else math.inf

    @property
    def lost(self) -> int:
        """Queries without a reply within a second."""
        return max(0, self.sent - self.replies)


def percentile(latencies: Sequence[float], share: float) -> float:
    """Return what a share of the sorted latencies, from 0 to 1, did not exceed."""
    return latencies[min(len(latencies) - 1, int(share * len(latencies)))]


def compiled(name: str, folder: Path) -> Path:
    """Return the program of a C source in this folder. Raises CannotStart."""
    program = folder / name
    try:
        if not program.exists():
            command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(_SOURCES / f"{name}.c"), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotStart("cc is missing, and the load generator is written in C: apt-get install gcc") from None
    except subprocess.CalledProcessError as error:
        raise CannotStart(f"cc does not compile {name}.c: {error.stderr}") from None
    return program


class Sender:
    """Offers one load, as often as needed."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load = load
        self._program = compiled("sender", folder)
        name = "".join(letter for letter in load.title if letter.isalnum())
        self._queries, self._results = folder / f"{name}.queries", folder / f"{name}.results"
        with self._queries.open("wb") as file:
            file.write(struct.pack("=I", len(load.sources)))
            for source, queries in zip(load.sources, load.queries, strict=True):
                file.write(socket.inet_aton(source) + struct.pack("=I", len(queries)))
                for query in queries:
                    file.write(struct.pack("=H", len(query.wire)) + query.wire)

    def warm(self, server: Server, rate: float) -> None:
        """Send every query once. Raises BadReply if there is no reply."""
        seconds = 1.02 * sum(map(len, self.load.queries)) / rate
        if not self.offer(server, rate=rate, warmup=0.0, seconds=seconds, exactly=False).replies:
            raise BadReply(f"{server.name}, {self.load.title}: no reply within {seconds:.0f} s")

    def offer(
        self, server: Server, *, rate: float, warmup: float, seconds: float, first: int = 0, exactly: bool = True
    ) -> Offered:
        """Offer *rate* queries a second, from the *first* query on. Raises BadReply for a wrong reply.

        Without *exactly*, records may change meanwhile: a reply must only be one, without an error.
        """
        arguments = (server.port, rate, warmup, seconds, first, self._queries, self._results)
        with subprocess.Popen([self._program, *map(str, arguments)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            cpu = server.cpu_seconds()
            process.stdout.readline()
            cpu = server.cpu_seconds() - cpu
        if process.returncode:
            raise BadReply(f"{server.name}, {self.load.title}: the sender ended with {process.returncode}")
        results = self._results.read_bytes()
        sent, replies, _ = _COUNTS.unpack_from(results)
        latencies = array("I")
        latencies.frombytes(results[_COUNTS.size : _COUNTS.size + 4 * replies])
        checked = self._check(server, results[_COUNTS.size + 4 * replies :], exactly=exactly) if server.answers else 0
        waits = sorted(latency / 1e7 for latency in latencies) or [LATE]
        return Offered(seconds, sent, replies, checked, cpu, waits)

    def _check(self, server: Server, samples: bytes, *, exactly: bool) -> int:
        number = 0
        for number, (index, reply) in enumerate(_samples(samples), 1):  # noqa: B007
            queries, at = self.load.queries[index], int.from_bytes(reply[:2])
            wrong = "a reply whose id no query has"
            if at < len(queries) and exactly:
                asked = queries[at]
                wrong = complaint(self.load, asked, reply, nearest=server.nearest, additional=server.additional) or ""
            elif at < len(queries):
                wrong = "" if _is_answer(reply) else f"not an answer: {reply.hex()}"
            if wrong:
                raise BadReply(f"{server.name}, {self.load.title}: {wrong}")
        return number


def _is_answer(reply: bytes) -> bool:
    """Whether a reply is NOERROR, with records."""
    _, flags, _, answers, _, _ = HEADER.unpack_from(reply)
    return bool(flags & QR) and not flags & RCODE and answers > 0


def _samples(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        index, size = _SAMPLE.unpack_from(data, at)
        at += _SAMPLE.size
        yield index, data[at : at + size]
        at += size
