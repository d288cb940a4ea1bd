# SPDX-License-Identifier: Apache-2.0

"""The servers that are attacked, and the cluster that they serve: 1,500 pods on 5,000 nodes, and one large Service.

Whoever owns a namespace can make a Service as large as this one: its EndpointSlices are written by hand, without pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import cluster
from bench.cluster import DIRECT, FORWARDED, NAMESPACE, PORTS, ZONES
from bench.servers import Server, start_coredns_file, start_topodns
from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, ZONE, Item

PODS = 1_500  # the first row of the table of requests and limits
SERVICES = 300  # with an endpoint in each zone
LARGEST = 4_000  # endpoints: about as many as a reply by TCP can carry
PER_SLICE = 1_000  # endpoints at most, says the API server
LARGE = f"large.{cluster.ORIGIN}"
# Pods of the cluster: each attacks, or is a victim, from an address of its own.
VICTIM, ATTACKER, BYSTANDER = (pod.address for pod in DIRECT[:3])
FORWARDER = "127.0.0.2"  # is trusted, and names clients for the attacker


class AttackedServer(NamedTuple):
    """A server on loopback: its port for DNS over UDP and TCP, that of /metrics, and what the kubelet would ask.

    ``services`` are absolute names with few addresses, ``large`` is the one with the longest answer.
    """

    dns: int
    http: int
    live: tuple[int, str]
    services: Sequence[str]
    large: str


def target(dns: int, http: int, live: tuple[int, str] | None = None) -> AttackedServer:
    """Return the server at these ports, which serves this module's cluster; as topodns does unless told *live*."""
    names = [cluster.service_name(number) for number in range(SERVICES)]
    return AttackedServer(dns, http, live or (http, "/livez"), names, LARGE)


def topodns(folder: Path) -> Server:
    """Start topodns. Raises CannotStart."""
    return start_topodns(flags(folder), folder)


def coredns(program: Path, folder: Path) -> Server:
    """Start CoreDNS with the same records in a zone's file. Raises CannotStart."""
    records = [*cluster.static_records(SERVICES), *_large_records()]
    return start_coredns_file(program, folder, records, name=cluster.service_name(0), watched=True)


def flags(folder: Path) -> Sequence[str]:
    """Write the cluster into *folder*; return the flags by which topodns reads it."""
    small, large = folder / "cluster.json", folder / "large.json"
    if not large.exists():
        cluster.dump(small, services=SERVICES, clients=FORWARDED[: PODS - SERVICES * ZONES])
        large.write_text(api_objects.listed(_large()))
    return ("--snapshot", str(small), "--snapshot", str(large), "--trusted-forwarder", FORWARDER)


def endpoint_name(number: int) -> str:
    """Return the absolute name of an endpoint of the large Service."""
    return f"e{number:04}.{LARGE}"


def endpoint_address(number: int) -> str:
    """Return the address of an endpoint of the large Service."""
    return f"10.200.{number // 250}.{number % 250 + 1}"


def _large() -> Iterator[Item]:
    name = LARGE.partition(".")[0]
    yield api_objects.service(name, where=NAMESPACE, keys=f"{HOSTNAME},{ZONE},*", ports=PORTS)
    for first in range(0, LARGEST, PER_SLICE):
        endpoints = [
            api_objects.endpoint(
                endpoint_address(number), hostname=f"e{number:04}", nodeName=f"node-{number % cluster.NODES:04}"
            )
            for number in range(first, first + PER_SLICE)
        ]
        yield api_objects.endpoint_slice(name, first, endpoints, where=NAMESPACE, ports=PORTS)


def _large_records() -> Iterator[str]:
    for number in range(LARGEST):
        name, address = endpoint_name(number), endpoint_address(number)
        yield f"{LARGE} {cluster.TTL} IN A {address}"
        yield f"{LARGE} {cluster.TTL} IN SRV 0 1 {PORTS[0][1]} {name}"
        yield f"{name} {cluster.TTL} IN A {address}"
