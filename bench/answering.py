"""How much CPU topodns needs for a query beside unbound, where each client gets the endpoints in its zone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.cluster import dump, service_name, static_records
from bench.loads import direct, forwarded
from bench.queries import Load
from bench.rounds import Pace, Runs, in_turns
from bench.servers import Server, on_load_core, start_topodns, start_unbound


def measure(folder: Path, pace: Pace) -> Runs:
    """Start the servers, run every load on each in turn, stop them. Raises CannotStart and BadReply."""
    with on_load_core(), ExitStack() as stack:
        return in_turns(_start(folder, stack), pace)


def _start(folder: Path, stack: ExitStack) -> Sequence[tuple[Server, Load]]:
    """Start every server, to be stopped by *stack*; return each with the loads that it gets."""
    asked, relayed = direct(), forwarded()

    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    snapshot = folder / "cluster.json"
    snapshot.write_text(dump())
    unbound = started(start_unbound(folder, static_records(), name=service_name(0)))
    plan = [(unbound, asked), (unbound, relayed)]
    for remembering in (True, False):
        for load in (asked, relayed):
            server = start_topodns(
                ["--snapshot", str(snapshot)], folder, forwarded=load is relayed, remembering=remembering
            )
            plan.append((started(server), load))
    return plan
