# SPDX-License-Identifier: Apache-2.0

"""How soon topodns and CoreDNS answer with an EndpointSlice's change, on a real API server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import dns.message
import dns.query
from msgspec import Struct

from bench.comparing import needed
from bench.servers import CannotStart, Server, on_load_core, start_coredns, start_topodns
from tests.kit import go_programs
from tests.kit.api_objects import Item, endpoint, endpoint_slice, namespace, service
from tests.kit.kube import ControlPlane, running_control_plane

WHERE, NAME = "programming", "changing"
CHANGES = 300  # of one slice, for each server
SETTLE_SECONDS = 0.02  # between changes, so that a change never waits for the one before
PATIENCE_SECONDS = 30.0


class Programmed(Struct, frozen=True):
    """One server's delays, in seconds: from the API server's reply to a write until the server answers with it."""

    server: str
    seconds: Sequence[float]

    def percentile(self, share: float) -> float:
        """Return the delay that a share of the changes, from 0 to 1, did not exceed."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def measure(folder: Path) -> list[Programmed]:
    """Change a slice for each server in turn, and ask until that server shows the change. Raises CannotStart."""
    with needed():
        coredns = go_programs.coredns()
    with on_load_core(), ExitStack() as stack:
        with needed():
            plane = stack.enter_context(running_control_plane(folder))
        plane.api.create(namespace(WHERE), service(NAME, where=WHERE), _slice("10.99.0.1"))
        name = f"{NAME}.{WHERE}.svc.cluster.local"
        servers = [
            start_coredns(coredns, folder, [f"kubeconfig {plane.kubeconfig}"], name=name),
            start_topodns(["--kubeconfig", str(plane.kubeconfig)], folder),
        ]
        for server in servers:
            stack.callback(server.stop)
        took: Mapping[str, list[float]] = {server.name: [] for server in servers}
        for number in range(CHANGES):
            for turn, server in enumerate(servers):
                address = f"10.99.{number // 100 + 1}.{number % 100 * 2 + turn + 1}"
                took[server.name].append(_change(plane, server, name, address))
        return [Programmed(server.name, took[server.name]) for server in servers]


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
