# SPDX-License-Identifier: Apache-2.0

"""Puts a load on a server with ``sender.c``, at a rate or as much as it answers, and takes the server's CPU time."""

from __future__ import annotations

import math
import socket
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.queries import Load, complaint
from bench.servers import CannotStart, Server

SOURCE = Path(__file__).with_name("sender.c")
FULL_LOAD = math.inf  # as a rate: as many queries as the server answers
FULL = 0.95  # share of the time that a server has its core at full load; if it is less, something else ran there
LATE = 1.0  # seconds after which the sender counts a query as lost
_COUNTS = struct.Struct("=QQQ")
_SAMPLE = struct.Struct("=HH")


class BadReply(Exception):
    """A wrong reply, or no reply at all: the figures would mean nothing."""


class Pace(NamedTuple):
    """How many runs of each server and load; how many seconds of warm-up, and of measuring, each run takes."""

    rounds: int
    warmup: float
    seconds: float


class Run(NamedTuple):
    """What one run showed: queries sent and answered, the server's CPU seconds, and the latencies, sorted, in seconds.

    ``took`` is the length in seconds, ``checked`` how many replies were checked. At full load, there are some latencies
    only; if no reply came in time, there is one, ``LATE``.
    """

    took: float
    sent: int
    replies: int
    checked: int
    cpu: float
    latencies: Sequence[float]

    @property
    def cost(self) -> float:
        """The server's CPU microseconds for each reply; infinite if no reply came in time."""
        return 1e6 * self.cpu / self.replies if self.replies else math.inf

    @property
    def rate(self) -> float:
        """Replies in a second."""
        return self.replies / self.took

    @property
    def busy(self) -> float:
        """The share of the time that the server had its core."""
        return self.cpu / self.took

    @property
    def lost(self) -> int:
        """Queries without a reply in time."""
        return max(0, self.sent - self.replies)

    def percentile(self, share: float) -> float:
        """Return the seconds that a share of the replies, from 0 to 1, did not exceed."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


Runs = dict[tuple[str, str], list[Run]]  # by the names of server and load


class Sender:
    """Sends one load, as often as needed."""

    def __init__(self, load: Load, folder: Path) -> None:
        self.load = load
        self._program = _compiled(folder)
        name = "".join(letter for letter in load.title if letter.isalnum())
        self._queries, self._results = folder / f"{name}.queries", folder / f"{name}.results"
        with self._queries.open("wb") as file:
            file.write(struct.pack("=I", len(load.sources)))
            for source, queries in zip(load.sources, load.queries, strict=True):
                file.write(socket.inet_aton(source) + struct.pack("=I", len(queries)))
                file.writelines(len(query.wire).to_bytes(2) + query.wire for query in queries)

    def warm(self, server: Server) -> None:
        """Have the server answer as many queries as there are. Raises BadReply if it does not."""
        self.run(server, rate=FULL_LOAD, warm=sum(map(len, self.load.queries)), warmup=0.0, seconds=0.0, exactly=False)

    def run(
        self,
        server: Server,
        *,
        rate: float,
        warmup: float,
        seconds: float,
        first: int = 0,
        warm: int = 0,
        exactly: bool = True,
    ) -> Run:
        """Send *rate* queries a second, from the *first* query on; measure after *warmup* and *warm* replies.

        Raises BadReply for a wrong reply. Without *exactly*, records may change meanwhile: a reply must only be one,
        without an error.
        """
        transport = "tcp" if self.load.transport.tcp else "udp"
        arguments = (server.port, transport, rate, self.load.window, warm, warmup, seconds, first)
        command = [*map(str, (self._program, *arguments, self._queries, self._results))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            cpu = server.cpu_seconds()
            process.stdout.readline()
            cpu = server.cpu_seconds() - cpu
            said = process.stderr.read().strip()
        if process.returncode:
            raise BadReply(f"{server.name}, {self.load.title}: {said or process.returncode}")
        results = self._results.read_bytes()
        sent, replies, timed = _COUNTS.unpack_from(results)
        if rate == FULL_LOAD and seconds and not replies:
            raise BadReply(f"{server.name}, {self.load.title}: no reply within {seconds:.1f} s")
        latencies = array("I")
        latencies.frombytes(results[_COUNTS.size : _COUNTS.size + 4 * timed])
        checked = self._check(server, results[_COUNTS.size + 4 * timed :], exactly=exactly)
        waits = sorted(latency / 1e7 for latency in latencies) or [LATE]
        return Run(seconds, sent, replies, checked, cpu, waits)

    def _check(self, server: Server, samples: bytes, *, exactly: bool) -> int:
        checked = 0
        for index, reply in _samples(samples):
            queries, number = self.load.queries[index], int.from_bytes(reply[:2])
            wrong = "a reply whose id no query has"
            if number < len(queries) and exactly:
                wrong = complaint(self.load, queries[number], reply, nearest=server.nearest) or ""
            elif number < len(queries):
                wrong = "" if _is_answer(reply) else f"not an answer: {reply.hex()}"
            if wrong:
                raise BadReply(f"{server.name}, {self.load.title}: {wrong}")
            checked += 1
        return checked


def in_turns(plan: Sequence[tuple[Server, Sender]], pace: Pace) -> Runs:
    """Run each load on each server at full load, in turn, so that noise on the machine affects all. Raises BadReply."""
    runs: Runs = {}
    for number in range(pace.rounds):
        for server, sender in plan:
            print(f"round {number + 1} of {pace.rounds}: {server.name}, {sender.load.title}", file=sys.stderr)
            run = sender.run(server, rate=FULL_LOAD, warmup=pace.warmup, seconds=pace.seconds)
            runs.setdefault((server.name, sender.load.title), []).append(run)
    return runs


def percentile(runs: Sequence[Run], share: float) -> float:
    """Return the median, over the runs, of a percentile of the latencies in milliseconds."""
    return median(run.percentile(share) for run in runs) * 1e3


def ratio(runs: Sequence[Run], beside: Sequence[Run]) -> float:
    """Return the median, over the rounds, of the ratio of CPU for a query: a slow round of the machine slows both."""
    return median(run.cost / other.cost for run, other in zip(runs, beside, strict=True))


def summary(runs: Sequence[Run], rounds: int) -> str:
    """Return a sentence on all runs of a table."""
    return (
        f"Medians of {rounds} rounds of {runs[0].took:.1f} s; {sum(run.checked for run in runs):,} replies checked; "
        f"{sum(run.lost for run in runs):,} queries lost."
    )


def _compiled(folder: Path) -> Path:
    """Return the sender's program. Raises CannotStart."""
    program = folder / "sender"
    try:
        if not program.exists():
            command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CannotStart("cc is missing, and the load generator is written in C: apt-get install gcc") from None
    except subprocess.CalledProcessError as error:
        raise CannotStart(f"cc does not compile {SOURCE.name}: {error.stderr}") from None
    return program


def _is_answer(reply: bytes) -> bool:
    """Whether a reply is NOERROR, with records."""
    return bool(reply[2] & 0x80) and not reply[3] & 0x0F and reply[6:8] > b"\0\0"


def _samples(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        index, size = _SAMPLE.unpack_from(data, at)
        at += _SAMPLE.size
        yield index, data[at : at + size]
        at += size
