# SPDX-License-Identifier: Apache-2.0

"""The names of a Service's endpoints, or of a federated Service's entries.

In front of the Service's name, each has a label of its own. Where names tell clusters apart, that of its cluster
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dnsserver.answers.decision import EndpointNames, Request
from dnsserver.names import FEDERATION, Zone, dashed_label, endpoint_label
from locator.model import MAX_NAME
from locator.state.snapshot import AnyService, CompiledService, FederatedService, ImportedService
from locator.topology.selection import LocatedEndpoint


def service_name(request: Request) -> str:
    """Return the name of the Service that the question is about."""
    query_name, zone = request.query_name, request.query_name.zone
    return f"{query_name.service}.{query_name.namespace}.{'' if zone.about == FEDERATION else 'svc.'}{zone.name}"


def endpoint_names(found: AnyService, *, pod_names: bool) -> EndpointNames:
    """Return the names of a Service's endpoints; *pod_names* is ``--endpoint-pod-names``."""
    by_name = EndpointNames({}, {})
    rows = _entries(found, pod_names) if isinstance(found, FederatedService) else _endpoints(found, pod_names)
    for located, address, labels in rows:
        by_name.endpoints.setdefault(labels, []).append((located, address))
        by_name.labels.setdefault(address, []).append(labels)
    return by_name


def labels_in(request: Request, found: AnyService) -> Callable[[LocatedEndpoint, bytes], str]:
    """Return a function that returns the labels of an endpoint with one of its addresses, empty if it has no name."""
    pod_names = request.authority.endpoint_pod_names
    if isinstance(found, FederatedService):
        return partial(_entry_labels, request.names_of(found), pod_names)
    return partial(_labels, isinstance(found, ImportedService), pod_names)


def names_of_address(
    request: Request, compiled: CompiledService, address: bytes, zone: Zone
) -> Iterator[tuple[str, bool]]:
    """Yield the names of the endpoints with *address* in a DNS zone, and whether each is a host name.

    Those too long for a query are left out.
    """
    base, known = _service_name_in(zone, compiled), request.names_of(compiled)
    for labels in known.labels.get(address, ()):
        if len(labels) + 1 + len(base) <= MAX_NAME:
            is_host = any(located.endpoint.hostname and one == address for located, one in known.endpoints[labels])
            yield f"{labels}.{base}", is_host


def names_of_service(compiled: CompiledService, zone: Zone) -> Iterator[str]:
    """Yield the Service's own name in a DNS zone, unless it is too long for a query."""
    name = _service_name_in(zone, compiled)
    if len(name) <= MAX_NAME:
        yield name


def _service_name_in(zone: Zone, compiled: CompiledService) -> str:
    return f"{compiled.service.name}.{compiled.service.namespace}.svc.{zone.name}"


def _endpoints(found: CompiledService, pod_names: bool) -> Iterator[tuple[LocatedEndpoint, bytes, str]]:
    """Yield the endpoints with each of their addresses, and the labels."""
    is_imported = isinstance(found, ImportedService)
    for located in found.endpoints:
        for address in located.endpoint.addresses:
            yield located, address, _labels(is_imported, pod_names, located, address)


def _labels(is_imported: bool, pod_names: bool, located: LocatedEndpoint, address: bytes) -> str:
    """Return the labels of an endpoint. That of a multi-cluster Service has a cluster if its slice names one."""
    label = endpoint_label(located.endpoint, address, pod_names=pod_names)
    return f"{label}.{cluster}" if is_imported and (cluster := located.endpoint.cluster) else label


def _entries(found: FederatedService, pod_names: bool) -> Iterator[tuple[LocatedEndpoint, bytes, str]]:
    """Yield the entries that have names, with each of their addresses, and the labels.

    Each name is that of one entry. Pods of a Deployment may have one hostname, which can also be what stands for the
    address of another endpoint, with dashes. Such a label names none, so the address does.
    """
    labelled = [
        (located, address, cluster, endpoint_label(located.endpoint, address, pod_names=pod_names))
        for located in found.endpoints
        if (cluster := located.location.cluster)
        for address in located.endpoint.addresses
    ]
    owners: dict[tuple[str, str], LocatedEndpoint] = {}
    shared = set[tuple[str, str]]()
    for located, address, cluster, label in labelled:
        for key in {(cluster, label), (cluster, dashed_label(address))}:
            if owners.setdefault(key, located) is not located:
                shared.add(key)
    for located, address, cluster, label in labelled:
        own = dashed_label(address) if (cluster, label) in shared else label
        yield located, address, f"{own}.{cluster}"


def _entry_labels(names: EndpointNames, pod_names: bool, located: LocatedEndpoint, address: bytes) -> str:
    """Return the labels of an entry; *names* has those of all. It has none if its cluster is not known."""
    cluster = located.location.cluster
    labels = f"{endpoint_label(located.endpoint, address, pod_names=pod_names)}.{cluster}"
    if all(one is not located for one, _ in names.endpoints.get(labels, ())):
        labels = f"{dashed_label(address)}.{cluster}"
    return labels if cluster else ""
