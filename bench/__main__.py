# SPDX-License-Identifier: Apache-2.0

"""Measure topodns, unbound and CoreDNS at offered loads and at full load, in large clusters and while they change.

Sends to loopback only.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

from bench import comparing, dumps, federating, offering, programming, publishing
from bench.attacks import measuring
from bench.balancing import measuring as balancing
from bench.large import churning, first_answers, reading
from bench.sending import BadReply, Pace
from bench.servers import LOAD_CORE, SERVER_CORE, CannotStart


class BenchPart(NamedTuple):
    """What measures a part and returns its tables; and the minutes that this takes with the default options.

    It is given a folder to work in, the pace, and the folder for plots, if any are wanted.
    """

    measure: Callable[[Path, Pace, Path | None], str]
    minutes: int


PARTS: Mapping[str, BenchPart] = {
    "offering": BenchPart(
        lambda folder, pace, plots: offering.report(offering.measure(folder, _two_thirds(pace)), plots), 9
    ),
    "comparing": BenchPart(lambda folder, pace, _: comparing.report(comparing.measure(folder, _short(pace))), 2),
    "reading": BenchPart(lambda folder, pace, _: reading.report(*reading.measure(folder, pace.rounds)), 7),
    "churning": BenchPart(lambda folder, pace, _: churning.report(churning.measure(folder, pace)), 5),
    "first": BenchPart(lambda folder, pace, _: first_answers.report(*first_answers.measure(folder, _short(pace))), 1),
    "publishing": BenchPart(lambda folder, pace, _: publishing.report(publishing.measure()), 1),
    "programming": BenchPart(lambda folder, pace, _: programming.report(programming.measure(folder)), 1),
    "federating": BenchPart(lambda folder, pace, _: federating.report(federating.measure(folder)), 2),
    "balancing": BenchPart(
        lambda folder, pace, _: balancing.report(balancing.measure(folder, pace._replace(seconds=_twice(pace)))), 8
    ),
    "dumps": BenchPart(lambda folder, pace, _: dumps.report(dumps.measure(folder)), 2),
    "attacks": BenchPart(
        lambda folder, pace, _: measuring.report(measuring.measure(folder, _twice(pace)), _twice(pace)), 16
    ),
}


def main() -> int:
    """Measure and print; return 0 whatever the figures are, 1 if a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="length of each run in seconds; 'offering' takes two thirds of it, 'comparing' and 'first' a fifth, "
        "'attacks' twice as much (default: %(default)s)",
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
        help="seconds before each run of 'comparing' and 'first' that are not measured, times a fifth "
        "(default: %(default)s)",
    )
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw the plot of 'offering' into this folder, too"
    )
    options = parser.parse_args()
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        return _fail(f"needs CPU cores {SERVER_CORE} (for the server) and {LOAD_CORE} (for the load generator)")
    print(machine(), flush=True)
    chosen = {options.only: PARTS[options.only]} if options.only else PARTS
    return measure_all(chosen, Pace(options.rounds, options.warmup, options.seconds), options.plots)


def machine() -> str:
    """Return the date, the processor, the kernel and Python's version."""
    cpus = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = f"{len(cpus)} cores {cpus[0]}" if cpus else platform.machine()
    return f"{date.today()}, {model}, Linux {platform.release()}, Python {platform.python_version()}\n"


def measure_all(parts: Mapping[str, BenchPart], pace: Pace, plots: Path | None = None) -> int:
    """Measure and print each part; return 0, or 1 if one could not be measured. An error ends its own part only."""
    status = 0
    for name, part in parts.items():
        print(f"bench: {name}: about {part.minutes} min with the default options", file=sys.stderr)
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="topodns-bench-") as folder:
                print(part.measure(Path(folder), pace, plots), flush=True)
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
