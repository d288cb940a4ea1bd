# SPDX-License-Identifier: Apache-2.0

"""How soon topodns and CoreDNS answer with an EndpointSlice's change, on a real API server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import dns.message
import dns.query

from bench.servers import CannotStart, Server, needed, on_load_core, start_coredns, start_topodns
from bench.tables import table
from tests.kit import go_programs
from tests.kit.api_objects import Item, endpoint, endpoint_slice, namespace, service
from tests.kit.kube import ControlPlane, running_control_plane

WHERE, NAME = "programming", "changing"
CHANGES = 300  # of one slice, for each server
SETTLE_SECONDS = 0.02  # between changes, so that a change never waits for the one before
PATIENCE_SECONDS = 30.0


def measure(folder: Path) -> Mapping[str, Sequence[float]]:
    """Change a slice for each server in turn, and ask until that server shows the change. Raises CannotStart.

    Returns each server's delays in seconds.
    """
    with needed():
        coredns = go_programs.coredns()
    with on_load_core(), ExitStack() as stack:
        with needed():
            plane = stack.enter_context(running_control_plane(folder))
        plane.api.create(namespace(WHERE), service(NAME, where=WHERE), _slice("10.99.0.1"))
        name = f"{NAME}.{WHERE}.svc.cluster.local"
        servers = [
            stack.enter_context(start_coredns(coredns, folder, [f"kubeconfig {plane.kubeconfig}"], name=name)),
            stack.enter_context(start_topodns(["--kubeconfig", str(plane.kubeconfig)], folder)),
        ]
        took: Mapping[str, list[float]] = {server.name: [] for server in servers}
        for number in range(CHANGES):
            for turn, server in enumerate(servers):
                address = f"10.99.{number // 100 + 1}.{number % 100 * 2 + turn + 1}"
                took[server.name].append(_change(plane, server, name, address))
        return took


def report(servers: Mapping[str, Sequence[float]]) -> str:
    """Return the table of how soon each server answers with a change."""
    rows = [
        (
            name,
            f"{len(took)}",
            *(f"{sorted(took)[int(share * len(took))] * 1e3:.1f} ms" for share in (0.5, 0.99)),
            f"{max(took) * 1e3:.1f} ms",
        )
        for name, took in servers.items()
    ]
    return (
        f"{table(('server', 'changes', 'p50', 'p99', 'longest'), rows)}\n"
        "From the API server's reply to a write until the server answers with it.\n"
    )


def _slice(address: str) -> Item:
    return endpoint_slice(NAME, 1, [endpoint(address)], where=WHERE)


def _change(plane: ControlPlane, server: Server, name: str, address: str) -> float:
    """Make *address* the only endpoint; return the seconds until the server answers with it."""
    query = dns.message.make_query(name, "A")
    time.sleep(SETTLE_SECONDS)
    plane.api.patch(_slice(address), {"endpoints": [endpoint(address)]})
    begun = time.perf_counter()
    while time.perf_counter() - begun < PATIENCE_SECONDS:
        reply = dns.query.udp(query, "127.0.0.1", port=server.port, timeout=PATIENCE_SECONDS)
        if [row.to_text() for rrset in reply.answer for row in rrset] == [address]:
            return time.perf_counter() - begun
    raise CannotStart(f"{server.name} did not answer with the new address {address} within {PATIENCE_SECONDS:.0f} s")
