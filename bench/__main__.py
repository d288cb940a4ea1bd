"""``python -m bench``: topodns beside unbound and CoreDNS, a flood, loading a dump, what a change costs.

Uses loopback only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import answering, comparing, flooding, loading, programming, publishing, report
from bench.replay import BadReply
from bench.rounds import Pace
from bench.servers import LOAD_CORE, SERVER_CORE, CannotStart

PARTS: dict[str, Callable[[Path, Pace], str]] = {
    "answering": lambda folder, pace: report.answering(answering.measure(folder, pace)),
    "flooding": lambda folder, pace: report.flooding(flooding.measure(folder, pace)),
    "comparing": lambda folder, pace: report.comparing(comparing.measure(folder, _short(pace))),
    "loading": lambda folder, pace: report.loading(loading.measure(folder)),
    "publishing": lambda folder, pace: report.publishing(publishing.measure()),
    "programming": lambda folder, pace: report.programming(programming.measure(folder)),
}


def main() -> int:
    """Measure and print; return 0 whatever the figures are, 1 if some could not be taken."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each run, a fifth of it in 'comparing' (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="runs of each server and load (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before each run, too (default: %(default)s)")
    parser.add_argument("--only", choices=PARTS, help="leave the other parts out")
    options = parser.parse_args()
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        return _fail(f"cores {SERVER_CORE} and {LOAD_CORE} are needed, one for the server and one for the load")
    print(report.machine(), flush=True)
    pace, status = Pace(options.rounds, options.warmup, options.seconds), 0
    for part in [options.only] if options.only else PARTS:
        try:
            with tempfile.TemporaryDirectory(prefix="topodns-bench-") as folder:
                print(PARTS[part](Path(folder), pace), flush=True)
        except (CannotStart, BadReply) as error:
            status = _fail(f"{part}: {error}")
    return status


def _short(pace: Pace) -> Pace:
    """Return a pace for 13 times as many runs in a round."""
    return Pace(pace.rounds, pace.warmup / 5, pace.seconds / 5)


def _fail(message: str) -> int:
    print(f"bench: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
