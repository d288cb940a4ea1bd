# SPDX-License-Identifier: Apache-2.0

"""The speed of topodns, CoreDNS and unbound at full load, where all of them give the same records.

An API server holds Services without constraints; CoreDNS and topodns watch it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.cluster import NAMESPACE, ORIGIN, TTL
from bench.loads import EDNS, IN_TURN, PIPELINED, alike
from bench.queries import Transport
from bench.sending import FULL, Pace, Run, Runs, Sender, in_turns, summary
from bench.servers import Server, needed, on_load_core, start_coredns, start_topodns, start_unbound
from bench.tables import table, verdict
from tests.kit import api_objects, go_programs
from tests.kit.api_objects import Item
from tests.kit.kube import running_control_plane

ROUNDS = 3  # at most: there are many loads, and the ratios lie far from their targets
SERVICES = 100  # of each size
COMPARED = ("CoreDNS", "CoreDNS with cache", "unbound", "topodns")


class Asked(NamedTuple):
    """What is asked for: Services with so many endpoints. ``faster`` is topodns' queries/s, at least, to CoreDNS's."""

    endpoints: int
    transport: Transport
    faster: float


ASKED = (
    Asked(3, EDNS, 2.5),
    Asked(3, PIPELINED, 1.3),
    Asked(3, IN_TURN, 1.3),
    Asked(60, EDNS, 6.0),
    Asked(60, PIPELINED, 1.3),
)


def measure(folder: Path, pace: Pace) -> Runs:
    """Start a cluster and the servers, run every load on each in turn, stop them. Raises CannotStart and BadReply."""
    print("CoreDNS and a control plane: building them takes some minutes, the first time only", file=sys.stderr)
    with needed():
        coredns = go_programs.coredns()
        go_programs.control_plane()
    with on_load_core(), ExitStack() as stack:
        servers = _start(coredns, folder, stack)
        senders = [Sender(alike(size, transport, _names(size)), folder) for size, transport, _ in ASKED]
        plan = [(server, sender) for sender in senders for server in servers]
        return in_turns(plan, pace._replace(rounds=min(pace.rounds, ROUNDS)))


def report(runs: Runs) -> str:
    """Return the table of topodns and other servers: medians over the rounds."""
    by_load = [
        [runs[server, f"{size} endpoints, {transport.title}"] for server in COMPARED] for size, transport, _ in ASKED
    ]
    rows = [_compared(asked, its_runs) for asked, its_runs in zip(ASKED, by_load, strict=True)]
    every = [run for its_runs in runs.values() for run in its_runs]
    return (
        f"{table(('endpoints', 'over', *COMPARED, 'target'), rows)}\n"
        f"Each cell: queries/s, CPU µs/query, ratio to CoreDNS's queries/s. {summary(every, len(by_load[0][0]))}\n"
    )


def _compared(asked: Asked, by_server: Sequence[Sequence[Run]]) -> Sequence[str]:
    cells = []
    for runs in by_server:
        ratio = median(run.rate / coredns.rate for run, coredns in zip(runs, by_server[0], strict=True))
        rate, cost = median(run.rate for run in runs), median(run.cost for run in runs)
        cells.append(f"{rate:,.0f}, {cost:.1f} µs, ×{ratio:.1f}")
    full = all(median(run.busy for run in runs) >= FULL for runs in (by_server[0], by_server[-1]))
    target = verdict(ratio, asked.faster, "≥ {:.1f}", "" if full else ", not at full load")
    return (str(asked.endpoints), asked.transport.title, *cells, target)


def _start(coredns: Path, folder: Path, stack: ExitStack) -> Sequence[Server]:
    """Start the servers. CoreDNS and topodns watch the control plane, so it runs on, idle, on the sender's core."""
    with needed():
        plane = stack.enter_context(running_control_plane(folder))
    plane.api.create(api_objects.namespace(NAMESPACE), *_objects())
    sizes = {asked.endpoints for asked in ASKED}
    records = [f"{name} {TTL} IN A {address}" for size in sizes for name, data in _names(size) for address in data]
    options, name = [f"kubeconfig {plane.kubeconfig}"], f"{_service(60, SERVICES - 1)}.{ORIGIN}"
    return [
        stack.enter_context(start_coredns(coredns, folder, options, name=name)),
        stack.enter_context(start_coredns(coredns, folder, options, name=name, title=COMPARED[1], caching=True)),
        stack.enter_context(start_unbound(folder, records, name=name)),
        stack.enter_context(start_topodns(["--kubeconfig", str(plane.kubeconfig)], folder)),
    ]


def _service(size: int, number: int) -> str:
    return f"web-{size:02}-{number:02}"


def _addresses(size: int, number: int) -> Sequence[str]:
    return [f"10.{size}.{number}.{endpoint + 1}" for endpoint in range(size)]


def _names(size: int) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the absolute name of each Service with so many endpoints, and its addresses."""
    for number in range(SERVICES):
        yield f"{_service(size, number)}.{ORIGIN}", frozenset(_addresses(size, number))


def _objects() -> Iterator[Item]:
    """Yield Services without a selector and their EndpointSlices: no controller writes slices for them."""
    for size in {asked.endpoints for asked in ASKED}:
        for number in range(SERVICES):
            name, endpoints = _service(size, number), map(api_objects.endpoint, _addresses(size, number))
            yield api_objects.service(name, where=NAMESPACE)
            yield api_objects.endpoint_slice(name, 1, list(endpoints), where=NAMESPACE)
