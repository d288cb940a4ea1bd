"""``python -m bench``: topodns beside unbound, then the loading of a dump. Uses loopback only."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench import answering, loading, report
from bench.replay import BadReply
from bench.servers import LOAD_CORE, SERVER_CORE, CannotStart


def main() -> int:
    """Measure and print; return 0 whatever the figures are, 1 if they could not be taken."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each server and load (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds before each run (default: %(default)s)")
    parser.add_argument("--only", choices=("answering", "loading"), help="leave the other part out")
    options = parser.parse_args()
    if not {SERVER_CORE, LOAD_CORE} <= os.sched_getaffinity(0):
        return _fail(f"cores {SERVER_CORE} and {LOAD_CORE} are needed, one for the server and one for the load")
    try:
        with tempfile.TemporaryDirectory(prefix="topodns-bench-") as folder:
            print(report.machine(), flush=True)
            if options.only != "loading":
                runs = answering.measure(
                    Path(folder), rounds=options.rounds, warmup=options.warmup, seconds=options.seconds
                )
                print(report.answering(runs), flush=True)
            if options.only != "answering":
                print(report.loading(loading.measure(Path(folder))))
    except (CannotStart, BadReply) as error:
        return _fail(str(error))
    return 0


def _fail(message: str) -> int:
    print(f"bench: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
