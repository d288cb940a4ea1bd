# SPDX-License-Identifier: Apache-2.0

"""Attacks topodns for an hour, in a cluster that changes: ``make soak``, or ``python -m bench.attacks.soaking``.

Pods ask all the time, and every attack of the table takes its turn, round after round. Between two rounds nobody
attacks. At the end, what the victims noticed and what the server took is printed; the exit status is 1 if its memory
has grown by more than a fifth since the first round, or if a victim got no answer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import linear_regression
from typing import NamedTuple

from bench.attacks.attacking import attacked
from bench.attacks.measuring import longest, loop_delays, samples
from bench.attacks.table import ATTACKS, USUAL
from bench.attacks.targets import FORWARDER, AttackedServer
from bench.attacks.watching import LIVE, Waits, watch
from bench.servers import CannotStart, Server, on_load_core, start_topodns
from bench.standin.numbering import service_name
from bench.standin.process import running_standin
from bench.tables import table

SERVICES = 100  # of 15 pods
CHANGES = 5.0  # pods, and as many EndpointSlices, in a second
ATTACK_SECONDS = 5.0  # at most
ROUNDS = 2  # at least: growth counts from the end of the first one
QUIET_SECONDS = 5.0  # after each round; the server closes connections that have begun a message
GROWTH = 1.2  # times the memory after the first round, at most
FAILURES = "topodns_failures_total"


class Measured(NamedTuple):
    """The server between two rounds: seconds since the start, MB of memory, open descriptors and threads."""

    seconds: float
    resident: float
    descriptors: int
    threads: int


class Soaked(NamedTuple):
    """The server at the start and after each round; what victims noticed, by attack and kind; what it counted."""

    rounds: Sequence[Measured]
    watched: Mapping[str, Mapping[str, Waits]]
    loop: Mapping[float, float]
    failures: Mapping[str, float]

    @property
    def growth(self) -> float:
        """The memory at the end, in terms of that after the first round."""
        return self.rounds[-1].resident / self.rounds[1].resident

    @property
    def unanswered(self) -> int:
        """How many queries of victims got no answer, although they were sent twice."""
        return sum(waits.unanswered for kinds in self.watched.values() for kind, waits in kinds.items() if kind != LIVE)

    @property
    def status(self) -> int:
        """The exit status."""
        return int(self.growth > GROWTH or self.unanswered > 0)


def main() -> int:
    """Soak and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.attacks.soaking", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="length of the whole (default: %(default)s)")
    parser.add_argument("--only", choices=ATTACKS, nargs="+", default=[*ATTACKS], help="attack in these ways alone")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="topodns-soak-") as folder:
            soaked = soak(Path(folder), options.only, options.seconds)
    except CannotStart as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print(report(soaked))
    return soaked.status


def soak(folder: Path, attacks: Sequence[str], seconds: float) -> Soaked:
    """Attack in these ways in turn for about so many seconds. Raises CannotStart."""
    with on_load_core(), running_standin(folder, "json", services=SERVICES) as standin, ExitStack() as stack:
        flags = ("--kubeconfig", str(standin.kubeconfig), "--trusted-forwarder", FORWARDER)
        server = stack.enter_context(start_topodns(flags, folder))
        standin.stand_back()
        standin.set_rate(CHANGES)
        names = [service_name(number) for number in range(SERVICES)]
        target = AttackedServer(server.port, server.http, server.live, names, names[0])
        stack.enter_context(attacked(target, USUAL))
        return _rounds(server, target, attacks, seconds)


def _rounds(server: Server, target: AttackedServer, attacks: Sequence[str], seconds: float) -> Soaked:
    began = time.monotonic()
    each = min(ATTACK_SECONDS, seconds / ROUNDS / (len(attacks) + 1))
    watched: dict[str, dict[str, Waits]] = defaultdict(lambda: defaultdict(Waits))

    def notice(attack: str, length: float) -> None:
        for kind, waits in watch(target, length).items():
            watched[attack][kind].add(waits)

    def measured() -> Measured:
        return Measured(time.monotonic() - began, server.resident(), server.open_descriptors(), server.threads())

    notice(USUAL, min(QUIET_SECONDS, each))
    rounds = [measured()]
    while len(rounds) <= ROUNDS or time.monotonic() - began + rounds[1].seconds < seconds:
        for attack in attacks:
            print(f"soak: round {len(rounds)}, {attack}", file=sys.stderr)
            with attacked(target, attack):
                notice(attack, each)
        notice(USUAL, QUIET_SECONDS)
        rounds.append(measured())
    failures = {labels["where"]: value for name, labels, value in samples(target) if name == FAILURES}
    return Soaked(rounds, watched, loop_delays(target), failures)


def report(soaked: Soaked) -> str:
    """Return the tables, and a sentence on each thing that must not grow."""
    rounds = [
        (str(number), f"{at.seconds:,.0f} s", f"{at.resident:,.1f} MB", str(at.descriptors), str(at.threads))
        for number, at in enumerate(soaked.rounds)
    ]
    after = soaked.rounds[1:]
    slope = linear_regression([at.seconds for at in after], [at.resident for at in after]).slope * 3600
    failed = ", ".join(f"{where} {count:,.0f}" for where, count in soaked.failures.items() if count) or "none"
    every = max(soaked.loop.values(), default=0.0)
    late = every - soaked.loop.get(0.05, every)
    noticed = ("attack", "names, median", "99 %", "longest", "lost", "unanswered", "/livez, longest")
    return (
        f"{table(('after round', 'time', 'memory', 'descriptors', 'threads'), rounds)}\n"
        f"{table(noticed, _lines(soaked))}\n"
        f"Since the first round, the memory has grown to {soaked.growth:.2f} times as much "
        f"(at most {GROWTH}; by the hour: {slope:+.1f} MB). {soaked.unanswered} queries of victims got no answer. "
        f"The event loop was never late by more than {longest(soaked.loop).removeprefix('≤ ')}, and "
        f"{late / max(every, 1):.2%} of the time by more than 50 ms. Failures that were counted: {failed}.\n"
    )


def _lines(soaked: Soaked) -> Iterator[Sequence[str]]:
    for attack, kinds in soaked.watched.items():
        names = Waits().add(*(waits for kind, waits in kinds.items() if kind != LIVE))
        waits = [*(names.percentile(share) for share in (0.5, 0.99, 1.0)), kinds[LIVE].percentile(1.0)]
        *of_names, live = (f"{1e3 * wait:,.1f} ms" for wait in waits)
        yield (attack, *of_names, str(names.lost), str(names.unanswered), live)


if __name__ == "__main__":
    raise SystemExit(main())
