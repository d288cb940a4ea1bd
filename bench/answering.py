"""Every server under every load, in turns: the machine's noise then hits all of them alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.loads import Load, direct, forwarded
from bench.replay import Run, run
from bench.servers import LOAD_CORE, Server, start_topodns, start_unbound

Runs = dict[tuple[str, str], list[Run]]  # by server and the load's letter


def measure(folder: Path, *, rounds: int, warmup: float, seconds: float) -> Runs:
    """Start the servers, run every load *rounds* times, stop them. Raises CannotStart and BadReply."""
    os.sched_setaffinity(0, {LOAD_CORE})
    runs: Runs = {}
    with ExitStack() as stack:
        plan = _start(folder, stack)
        for number in range(rounds):
            for server, load in plan:
                print(f"round {number + 1} of {rounds}: {server.name}, {load.title}", file=sys.stderr)
                found = run(server, load, warmup=warmup, seconds=seconds)
                runs.setdefault((server.name, load.letter), []).append(found)
    return runs


def _start(folder: Path, stack: ExitStack) -> Sequence[tuple[Server, Load]]:
    """Start every server, to be stopped by *stack*; return each with the loads that it gets."""
    asked, relayed = direct(), forwarded()

    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    unbound = started(start_unbound(folder))
    plan = [(unbound, asked), (unbound, relayed)]
    for remembering in (True, False):
        for load in (asked, relayed):
            server = start_topodns(folder, forwarded=load is relayed, remembering=remembering)
            plan.append((started(server), load))
    return plan
