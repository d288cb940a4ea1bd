# SPDX-License-Identifier: Apache-2.0

"""The CPU time that topodns and unbound take for a query, where topodns gives each client the endpoint in its zone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.cluster import dump, service_name, static_records
from bench.loads import FORWARDER, direct, forwarded, forwarded_by_block, proxied
from bench.offered.sending import compiled
from bench.queries import Load
from bench.rounds import Pace, Runs, in_turns
from bench.servers import (
    HAS_NATIVE,
    WITHOUT_NATIVE,
    Server,
    on_load_core,
    start_topodns,
    start_unbound,
    start_yardstick,
)


def measure(folder: Path, pace: Pace) -> Runs:
    """Start the servers, run every load on each in turn, stop them. Raises CannotStart and BadReply."""
    with on_load_core(), ExitStack() as stack:
        return in_turns(_start(folder, stack), pace)


def _start(folder: Path, stack: ExitStack) -> Sequence[tuple[Server, Load]]:
    """Start every server; return each server with each of its loads. *stack* stops the servers."""
    asked, relayed = direct(), forwarded()

    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    snapshot = folder / "cluster.json"
    dump(snapshot)
    cluster = ["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER]
    unbound = started(start_unbound(folder, static_records(), name=service_name(0)))
    topodns = started(start_topodns(cluster, folder))
    in_python = [*cluster, "--native", "off"]
    without_cache = started(start_topodns(in_python, folder, name="topodns without cache", answer_cache=False))
    behind_proxy = started(start_topodns([*cluster, "--proxy-protocol"], folder))
    copying = started(start_yardstick("C loop that copies", [str(compiled("copier", folder))], folder, answers=False))
    loads = {
        unbound: (asked, relayed),
        topodns: (asked, relayed, forwarded_by_block()),
        behind_proxy: (proxied(),),
        without_cache: (asked, relayed),
        copying: (asked,),
    }
    if HAS_NATIVE:
        python_only = started(start_topodns(in_python, folder, name=WITHOUT_NATIVE))
        loads[python_only] = (asked, relayed)
    return [(server, load) for server, its_loads in loads.items() for load in its_loads]
