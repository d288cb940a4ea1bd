# SPDX-License-Identifier: Apache-2.0

"""Each attack on topodns and on CoreDNS, and what the victims notice."""

from __future__ import annotations

import math
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from bench.attacks import targets
from bench.attacks.attacking import RATE, attacked
from bench.attacks.floods import Flood
from bench.attacks.table import ATTACKS, LOADS
from bench.attacks.watching import FIRST, FIRST_TCP, LIVE, NEW, NEW_TCP, REMEMBERED, Waits, Watched, watch
from bench.servers import Server, needed, on_load_core
from bench.tables import table
from tests.kit import go_programs

FASTEST = ", as fast as possible"
WARMUP_SECONDS = 1.0
METRICS_SECONDS = 20.0  # until /metrics must have been read after an attack
LOOP_DELAY = "topodns_loop_delay_seconds"

Buckets = Mapping[float, float]  # of a histogram: how many were at most so many seconds


class Suffered(NamedTuple):
    """What victims of a server noticed during an attack, and the server's greatest memory in MB.

    ``loop`` are the delays of its event loop meanwhile; empty if the server has none.
    """

    watched: Watched
    peak: float
    loop: Buckets


class Row(NamedTuple):
    """An attack, and what victims of each server noticed; of CoreDNS None if it cannot be attacked so."""

    attack: str
    topodns: Suffered
    coredns: Suffered | None


def measure(folder: Path, seconds: float) -> list[Row]:
    """Attack new servers in each way, for so many seconds. Raises CannotStart."""
    with needed():
        program = go_programs.coredns()

    def suffering(start: Callable[[], Server], attack: str, rate: float | None) -> Suffered:
        with start() as server:
            print(f"attacks: {server.name}, {attack}", file=sys.stderr)
            return suffered(server, targets.target(server.port, server.http, server.live), attack, rate, seconds)

    rows = []
    with on_load_core():
        for attack, load in LOADS.items():
            for rate in (RATE, None) if attack in ATTACKS and isinstance(load.how, Flood) else (RATE,):
                ours = suffering(partial(targets.topodns, folder), attack, rate)
                theirs = None if load.only_here else suffering(partial(targets.coredns, program, folder), attack, rate)
                rows.append(Row(attack if rate else f"{attack}{FASTEST}", ours, theirs))
    return rows


def suffered(
    server: Server, target: targets.AttackedServer, attack: str, rate: float | None, seconds: float
) -> Suffered:
    """Attack a server, and watch."""
    watch(target, WARMUP_SECONDS)
    server.forget_peak()
    before = loop_delays(target)
    with attacked(target, attack, rate=rate):
        watched = watch(target, seconds)
    try:
        loop = {bound: count - before[bound] for bound, count in loop_delays(target).items()}
    except OSError:
        loop = {math.inf: 1}  # for so long nothing else was done
    return Suffered(watched, server.peak(), loop)


def loop_delays(target: targets.AttackedServer) -> Buckets:
    """Return how late the event loop was since the start."""
    return {float(labels["le"]): value for name, labels, value in samples(target) if name == f"{LOOP_DELAY}_bucket"}


def samples(target: targets.AttackedServer) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield all samples of /metrics, as soon as it can be read. Raises OSError if that takes very long."""
    end = time.monotonic() + METRICS_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{target.http}/metrics", timeout=METRICS_SECONDS) as response:
                text = response.read().decode()
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def report(rows: Sequence[Row], seconds: float) -> str:
    """Return a table of what the attacks are, and one of what became of the victims."""
    figures = ("new names", "over TCP", "remembered", LIVE, "memory")
    head = ("attack", *(cell for figure in figures for cell in (figure, "CoreDNS")), "loop")
    return (
        f"{table(('attack', 'what is sent'), ((name, load.text) for name, load in LOADS.items()))}\n"
        f"{table(head, map(_line, rows))}\nEach attack for {seconds:.0f} s; datagrams {RATE:,} times a second, or as "
        "fast as the machine sends them. Names: median / 99th percentile in milliseconds, and how many tries got no "
        "reply within 2 s, if any. /livez: the longest, in milliseconds. loop: no delay of the event loop was longer.\n"
    )


def _line(row: Row) -> Iterator[str]:
    yield row.attack
    ours = _cells(row.topodns)
    theirs = _cells(row.coredns) if row.coredns else [""] * len(ours)
    for pair in zip(ours, theirs, strict=True):
        yield from pair
    yield longest(row.topodns.loop)


def _cells(server: Suffered) -> Sequence[str]:
    """Return what victims of one server noticed, and its memory."""
    watched = server.watched
    kinds = ((NEW, FIRST), (NEW_TCP, FIRST_TCP), (REMEMBERED,))
    names = (_waited(Waits().add(*(watched[kind] for kind in together))) for together in kinds)
    return (*names, _liveness(watched[LIVE]), f"{server.peak:,.0f} MB")


def _liveness(live: Waits) -> str:
    return f"{1e3 * max(live.seconds):,.0f}" + (f", {live.lost} failed" if live.lost else "")


def _waited(waits: Waits) -> str:
    """Return median and 99th percentile, and what was lost."""
    text = f"{1e3 * waits.percentile(0.5):,.1f} / {1e3 * waits.percentile(0.99):,.1f}"
    tries = waits.lost + len(waits.seconds) - waits.unanswered
    return text + (f", {waits.lost / tries:.0%} lost" if waits.lost else "")


def longest(loop: Buckets) -> str:
    """Return the least bound of a histogram that holds all; "" without any."""
    every = max(loop.values(), default=0.0)
    bound = min((bound for bound, count in loop.items() if count == every), default=None)
    if bound is None:
        return ""
    return "> 1 s" if bound == math.inf else f"≤ {1e3 * bound:g} ms"
