# SPDX-License-Identifier: Apache-2.0

"""Services without constraints, with 3 or 60 dual-stack endpoints: every server gives the same records for them.

As objects for an API server, and as records for unbound, which knows nothing of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from bench.cluster import DIRECT, NAMESPACE, ORIGIN, TTL, ZONES
from tests.kit import api_objects
from tests.kit.api_objects import Item

SIZES = (3, 60)  # endpoints of a Service, each with an IPv4 and an IPv6 address
SERVICES = 100  # of each size
PORT = 8080
PORTS = (("http", PORT, "TCP"),)
RECORD_HEADER = 12  # octets: a pointer to the name, type, class, TTL, length of the data


def service_name(size: int, service: int) -> str:
    """Return the absolute name of a Service; all these names have the same length."""
    return f"{_name(size, service)}.{ORIGIN}"


def asked_name(size: int, service: int, qtype: str) -> str:
    """Return the absolute name that owns a Service's records of a type."""
    return f"{'_http._tcp.' if qtype == 'SRV' else ''}{service_name(size, service)}"


def data(size: int, service: int, qtype: str) -> frozenset[str]:
    """Return the data of a Service's records: addresses, or port and target. An SRV record's weight is left out."""
    data_of = {"A": _ipv4, "AAAA": _ipv6, "SRV": lambda *which: f"{PORT} {_host(*which)}"}[qtype]
    return frozenset(data_of(size, service, endpoint) for endpoint in range(size))


def additional(size: int, service: int) -> frozenset[str]:
    """Return the addresses of all targets of a Service's SRV records."""
    return data(size, service, "A") | data(size, service, "AAAA")


def size_of_records(size: int, qtype: str) -> int:
    """Return the octets of a Service's records of a type, with compressed owner names, without additional ones."""
    data_octets = {"A": 4, "AAAA": 16, "SRV": 6 + len(_host(size, 0, 0)) + 1}
    return size * (RECORD_HEADER + data_octets[qtype])


def static_records() -> Iterator[str]:
    """Yield all records, each as a line of a zone file."""
    for size in SIZES:
        for service in range(SERVICES):
            for endpoint in range(size):
                host = _host(size, service, endpoint)
                for owner in (service_name(size, service), host):
                    yield f"{owner} {TTL} IN A {_ipv4(size, service, endpoint)}"
                    yield f"{owner} {TTL} IN AAAA {_ipv6(size, service, endpoint)}"
                yield f"{asked_name(size, service, 'SRV')} {TTL} IN SRV 0 {max(1, 100 // size)} {PORT} {host}"


def objects() -> Sequence[Item]:
    """Return the cluster, clients included, in an order in which it can be created."""
    services = [_service(size, number) for size in SIZES for number in range(SERVICES)]
    return [
        api_objects.namespace(NAMESPACE),
        *(api_objects.node(f"node-{zone}") for zone in range(ZONES)),
        *(
            api_objects.pod(f"client-{number}", [client.address], f"node-{number % ZONES}", where=NAMESPACE)
            for number, client in enumerate(DIRECT)
        ),
        *chain.from_iterable(services),
    ]


def _name(size: int, service: int) -> str:
    return f"web-{size:02}-{service:02}"


def _host(size: int, service: int, endpoint: int) -> str:
    return f"pod-{endpoint:02}.{service_name(size, service)}"


def _ipv4(size: int, service: int, endpoint: int) -> str:
    return f"10.{size}.{service}.{endpoint + 1}"


def _ipv6(size: int, service: int, endpoint: int) -> str:
    return f"fd00::{size:x}:{service + 1:x}:{endpoint + 1:x}"


def _service(size: int, number: int) -> Sequence[Item]:
    """Return a Service without a selector and its EndpointSlices: no controller writes slices for it."""
    name = _name(size, number)
    return (
        api_objects.service(name, where=NAMESPACE, ports=PORTS, ipFamilyPolicy="RequireDualStack"),
        *(
            api_objects.endpoint_slice(
                name, family.lower(), _endpoints(size, number, family), where=NAMESPACE, family=family, ports=PORTS
            )
            for family in ("IPv4", "IPv6")
        ),
    )


def _endpoints(size: int, service: int, family: str) -> Sequence[Item]:
    address = _ipv4 if family == "IPv4" else _ipv6
    return [
        api_objects.endpoint(
            address(size, service, number), hostname=f"pod-{number:02}", nodeName=f"node-{number % ZONES}"
        )
        for number in range(size)
    ]
