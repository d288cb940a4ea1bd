# SPDX-License-Identifier: Apache-2.0

"""Other people's DNS: external-dns writes what the DNSEndpoints of a cluster say into etcd, and CoreDNS answers it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.message
import dns.query
import dns.rcode

from tests.kit import go_programs
from tests.kit.coredns import running_coredns
from tests.kit.kube import ControlPlane
from tests.kit.programs import Daemon
from tests.kit.this_machine import free_port
from tests.kit.waiting import PATIENCE

# As docs/clusters.md shows, but for the provider, and for what makes it quick.
FLAGS = ("--source=crd", "--managed-record-types=A", "--managed-record-types=AAAA", "--policy=sync")
QUICK = ("--provider=coredns", "--registry=noop", "--interval=500ms", "--min-event-sync-interval=0s")


class OtherDNS(NamedTuple):
    """The server, and what external-dns prints."""

    port: int
    writer: Daemon

    def answer(self, name: str, qtype: str = "A") -> tuple[set[str], int]:
        """Return the data of the records of a name, and their TTL; nothing and 0 if the name does not exist."""
        query = dns.message.make_query(name, qtype)
        reply = dns.query.udp(query, "127.0.0.1", port=self.port, timeout=PATIENCE)
        if reply.rcode() not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN) or not reply.answer:
            return set(), 0
        (found,) = reply.answer
        return {str(record) for record in found}, found.ttl


@contextmanager
def other_dns(folder: Path, plane: ControlPlane, zone: str, namespace: str) -> Iterator[OtherDNS]:
    """Run all three until the block ends, for the names in *zone* and the DNSEndpoints of *namespace*."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    etcd = (
        str(go_programs.control_plane() / "etcd"), f"--data-dir={folder / 'other-etcd'}", "--unsafe-no-fsync",
        f"--listen-client-urls={client}", f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}", "--log-level=warn",
    )  # fmt: skip
    block = f"etcd {zone} {{\npath /skydns\nendpoint {client}\n}}"
    writes = (
        str(go_programs.external_dns()), *FLAGS, *QUICK, f"--kubeconfig={plane.kubeconfig}",
        f"--namespace={namespace}", f"--domain-filter={zone}", f"--metrics-address=127.0.0.1:{free_port()}",
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(Daemon.start(etcd, folder, name="other-etcd").end)
        server = stack.enter_context(running_coredns(folder, block, name="other-coredns"))
        writer = Daemon.start(writes, folder, name="external-dns", env={"ETCD_URLS": client})
        stack.callback(writer.end)
        yield OtherDNS(server.port, writer)
