# SPDX-License-Identifier: Apache-2.0

"""The cluster that most parts of the benchmark use, its records and its clients, all computed from their numbers.

Each Service has one endpoint in each zone. Client pods are spread evenly over the nodes, each in its node's pod CIDR;
nodes are spread evenly over the zones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kit import api_objects
from tests.kit.api_objects import HOSTNAME, ZONE, Item

ZONES = 3
NODES = 5_000
SERVICES = 1_000
CLIENTS = 150_000
NAMESPACE = "bench"
ORIGIN = f"{NAMESPACE}.svc.cluster.local."
TTL = 5

PORTS = (("http", 8080, "TCP"),)


class SendingPod(NamedTuple):
    """A pod that sends queries: its address, and the number of its node's zone."""

    address: str
    zone: int


def pod_cidr(node: int) -> str:
    """Return the first three octets of a node's pod CIDR, a /24."""
    return f"10.{64 + node // 256}.{node % 256}"


# Clients that ask directly: the load generator sends from their addresses, two in each zone.
DIRECT = tuple(SendingPod(f"127.1.0.{node + 1}", node % ZONES) for node in range(2 * ZONES))
# Clients behind a trusted forwarder: one on each node, then a second one on each, and so on.
FORWARDED = tuple(
    SendingPod(f"{pod_cidr(node)}.{turn + 2}", node % ZONES)
    for turn in range(CLIENTS // NODES)
    for node in range(NODES)
)


def service_name(service: int) -> str:
    """Return the absolute name of a Service."""
    return f"service-{service:04}.{ORIGIN}"


def endpoint_address(service: int, zone: int) -> str:
    """Return the address of a Service's endpoint in a zone."""
    return f"10.{10 + zone}.{service // 250}.{service % 250 + 1}"


def dump(path: Path, *, services: int = SERVICES, clients: Sequence[SendingPod] = FORWARDED) -> None:
    """Write the cluster as ``kubectl get -o json`` prints it, as far as topodns reads it."""
    with path.open("w") as file:  # object by object: all of them in memory would take a gigabyte
        separator = '{"apiVersion": "v1", "kind": "List", "items": [\n'
        for item in _objects(services, clients):
            file.write(separator + json.dumps(item))
            separator = ",\n"
        file.write("\n]}\n")


def static_records(services: int = SERVICES) -> Iterator[str]:
    """Yield the records of all Services, each as a line of a zone file."""
    for service in range(services):
        for zone in range(ZONES):
            yield f"{service_name(service)} {TTL} IN A {endpoint_address(service, zone)}"


def _objects(services: int, clients: Sequence[SendingPod]) -> Iterator[Item]:
    yield api_objects.namespace(NAMESPACE)
    for number in range(NODES):
        yield api_objects.node(
            _node(number),
            {HOSTNAME: _node(number), ZONE: f"zone-{number % ZONES}"},
            cidrs=[f"{pod_cidr(number)}.0/24"],
            addresses=[f"172.16.{number // 256}.{number % 256}"],
        )
    for number, client in enumerate(DIRECT):
        yield api_objects.pod(f"direct-{number}", [client.address], _node(number), where=NAMESPACE)
    for number, client in enumerate(clients):
        yield api_objects.pod(f"client-{number:06}", [client.address], _node(number % NODES), where=NAMESPACE)
    for number in range(services):
        yield from _service(number)


def _node(number: int) -> str:
    return f"node-{number:04}"


def _service(number: int) -> Sequence[Item]:
    name = service_name(number).partition(".")[0]
    endpoints = [api_objects.endpoint(endpoint_address(number, zone), nodeName=_node(zone)) for zone in range(ZONES)]
    return (
        api_objects.service(name, where=NAMESPACE, keys=f"{ZONE},*", ports=PORTS),
        api_objects.endpoint_slice(name, 1, endpoints, where=NAMESPACE, ports=PORTS),
    )
