# SPDX-License-Identifier: Apache-2.0

"""Runs of every server under every load, in turn, so that noise on the machine affects all of them alike."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.queries import Load
from bench.replay import Run, run
from bench.servers import Server

Runs = dict[tuple[str, str], list[Run]]  # by the names of server and load


class Pace(NamedTuple):
    """How many runs of each server and load; how many seconds of warm-up, and of measuring, each run takes."""

    rounds: int
    warmup: float
    seconds: float


def in_turns(plan: Sequence[tuple[Server, Load]], pace: Pace) -> Runs:
    """Run the whole *plan* several times over. Raises BadReply."""
    runs: Runs = {}
    for number in range(pace.rounds):
        for server, load in plan:
            print(f"round {number + 1} of {pace.rounds}: {server.name}, {load.title}", file=sys.stderr)
            figures = run(server, load, warmup=pace.warmup, seconds=pace.seconds)
            runs.setdefault((server.name, load.title), []).append(figures)
    return runs
