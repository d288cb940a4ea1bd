"""Every server under every load, in turns: the machine's noise then hits all of them alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.queries import Load
from bench.replay import Run, run
from bench.servers import Server

Runs = dict[tuple[str, str], list[Run]]  # by the names of server and load


class Pace(NamedTuple):
    """How many runs of each server and load, and how many seconds each takes after as many of warming up."""

    rounds: int
    warmup: float
    seconds: float


def in_turns(plan: Sequence[tuple[Server, Load]], pace: Pace) -> Runs:
    """Run the whole *plan* several times over. Raises BadReply."""
    runs: Runs = {}
    for number in range(pace.rounds):
        for server, load in plan:
            print(f"round {number + 1} of {pace.rounds}: {server.name}, {load.title}", file=sys.stderr)
            found = run(server, load, warmup=pace.warmup, seconds=pace.seconds)
            runs.setdefault((server.name, load.title), []).append(found)
    return runs
