"""Measure topodns, unbound and CoreDNS at offered loads and at full load, in large clusters and while they change.

Sends to loopback only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import answering, choosing, comparing, flooding, loading, programming, publishing, report
from bench.large import churning, first_answers, flat, reading
from bench.offered import offering
from bench.plots import DOCS
from bench.replay import BadReply
from bench.rounds import Pace
from bench.servers import LOAD_CORE, SERVER_CORE, CannotStart

PARTS: dict[str, Callable[[Path, Pace], str]] = {
    "offering": lambda folder, pace: offering.report(offering.measure(folder, _two_thirds(pace)), DOCS),
    "answering": lambda folder, pace: report.answering(answering.measure(folder, pace)),
    "flat": lambda folder, pace: flat.report(flat.measure(folder, _two_thirds(pace)), DOCS),
    "reading": lambda folder, pace: reading.report(*reading.measure(folder, pace.rounds)),
    "churning": lambda folder, pace: churning.report(churning.measure(folder, pace)),
    "first": lambda folder, pace: first_answers.report(*first_answers.measure(folder, _short(pace))),
    "flooding": lambda folder, pace: report.flooding(flooding.measure(folder, pace)),
    "comparing": lambda folder, pace: report.comparing(comparing.measure(folder, _short(pace))),
    "choosing": lambda folder, pace: report.choosing(choosing.measure()),
    "loading": lambda folder, pace: report.loading(loading.measure(folder)),
    "publishing": lambda folder, pace: report.publishing(publishing.measure()),
    "programming": lambda folder, pace: report.programming(programming.measure(folder)),
}


def main() -> int:
    """Measure and print; return 0 whatever the figures are, 1 if a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="length of each run in seconds; 'offering' and 'flat' take two thirds of it, 'comparing' and 'first' a "
        "fifth (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each server runs each load (default: %(default)s)"
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
    pace, status = Pace(options.rounds, options.warmup, options.seconds), 0
    for part in [options.only] if options.only else PARTS:
        try:
            with tempfile.TemporaryDirectory(prefix="topodns-bench-") as folder:
                print(PARTS[part](Path(folder), pace), flush=True)
        except (CannotStart, BadReply) as error:
            status = _fail(f"{part}: {error}")
    return status


def _two_thirds(pace: Pace) -> Pace:
    """Return a somewhat shorter pace, for a part with many runs in a round."""
    return pace._replace(seconds=pace.seconds * 2 / 3)


def _short(pace: Pace) -> Pace:
    """Return a shorter pace, for parts with many runs in a round, or with runs that vary little."""
    return Pace(pace.rounds, pace.warmup / 5, pace.seconds / 5)


def _fail(message: str) -> int:
    print(f"bench: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
