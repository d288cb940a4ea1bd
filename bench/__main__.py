# SPDX-License-Identifier: Apache-2.0

"""Measure topodns, unbound and CoreDNS at offered loads and at full load, in large clusters and while they change.

Sends to loopback only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench import (
    answering,
    choosing,
    comparing,
    flooding,
    loading,
    programming,
    publishing,
    report,
    several,
    simulating,
)
from bench.attacks import measuring
from bench.large import churning, first_answers, flat, looking, reading
from bench.offered import offering
from bench.plots import DOCS
from bench.replay import BadReply
from bench.rounds import Pace
from bench.servers import LOAD_CORE, SERVER_CORE, CannotStart


class Part(NamedTuple):
    """What measures a part and returns its tables; and the minutes that this takes with the default options."""

    measure: Callable[[Path, Pace], str]
    minutes: int


PARTS: Mapping[str, Part] = {
    "offering": Part(lambda folder, pace: offering.report(offering.measure(folder, _two_thirds(pace)), DOCS), 9),
    "answering": Part(lambda folder, pace: report.answering(answering.measure(folder, _two_thirds(pace))), 4),
    "flat": Part(lambda folder, pace: flat.report(flat.measure(folder, _two_thirds(pace)), DOCS), 6),
    "reading": Part(lambda folder, pace: reading.report(*reading.measure(folder, pace.rounds)), 7),
    "churning": Part(lambda folder, pace: churning.report(churning.measure(folder, pace)), 5),
    "looking": Part(lambda folder, pace: looking.report(looking.measure(folder, pace)), 3),
    "first": Part(lambda folder, pace: first_answers.report(*first_answers.measure(folder, _short(pace))), 1),
    "flooding": Part(lambda folder, pace: report.flooding(flooding.measure(folder, pace)), 1),
    "comparing": Part(lambda folder, pace: report.comparing(comparing.measure(folder, _short(pace))), 3),
    "choosing": Part(lambda folder, pace: report.choosing(choosing.measure()), 1),
    "loading": Part(lambda folder, pace: report.loading(loading.measure(folder)), 1),
    "publishing": Part(lambda folder, pace: report.publishing(publishing.measure()), 1),
    "simulating": Part(lambda folder, pace: simulating.report(simulating.measure(folder)), 1),
    "attacks": Part(lambda folder, pace: measuring.report(measuring.measure(folder, _twice(pace)), _twice(pace)), 16),
    "several": Part(lambda folder, pace: several.report(several.measure()), 1),
    "programming": Part(lambda folder, pace: report.programming(programming.measure(folder)), 1),
}


def main() -> int:
    """Measure and print; return 0 whatever the figures are, 1 if a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="length of each run in seconds; 'offering', 'answering' and 'flat' take two thirds of it, 'comparing' and "
        "'first' a fifth (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="how often each server runs each load; 'reading' and 'comparing' have three rounds at most "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=1.0,
        help="seconds of load before each run that are not measured; 'comparing' and 'first' take a fifth of it "
        "(default: %(default)s)",
    )
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    options = parser.parse_args()
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        return _fail(f"needs CPU cores {SERVER_CORE} (for the server) and {LOAD_CORE} (for the load generator)")
    print(report.machine(), flush=True)
    chosen = {options.only: PARTS[options.only]} if options.only else PARTS
    return measure_all(chosen, Pace(options.rounds, options.warmup, options.seconds))


def measure_all(parts: Mapping[str, Part], pace: Pace) -> int:
    """Measure and print each part; return 0, or 1 if one could not be measured. An error ends its own part only."""
    status = 0
    for name, part in parts.items():
        print(f"bench: {name}: about {part.minutes} min with the default options", file=sys.stderr)
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="topodns-bench-") as folder:
                print(part.measure(Path(folder), pace), flush=True)
        except (CannotStart, BadReply) as error:
            status = _fail(f"{name}: {error}")
        except Exception:  # whatever it is, the figures of other parts do not depend on it
            traceback.print_exc()
            status = _fail(f"{name}: could not be measured, because of the error above")
        print(f"bench: {name}: took {(time.monotonic() - began) / 60:.1f} min", file=sys.stderr)
    return status


def _two_thirds(pace: Pace) -> Pace:
    """Return a somewhat shorter pace, for parts with many runs in a round."""
    return pace._replace(seconds=pace.seconds * 2 / 3)


def _twice(pace: Pace) -> float:
    """Return the seconds of a longer run, for a part without rounds."""
    return 2 * pace.seconds


def _short(pace: Pace) -> Pace:
    """Return a shorter pace, for parts with many runs in a round, or with runs that vary little."""
    return Pace(pace.rounds, pace.warmup / 5, pace.seconds / 5)


def _fail(message: str) -> int:
    print(f"bench: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
