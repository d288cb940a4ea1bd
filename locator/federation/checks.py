# SPDX-License-Identifier: Apache-2.0

"""The checks between several clusters. Those of one cluster, its own store makes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from locator.federation.federating import Joining, differing_ports, is_host_name
from locator.findings import ClusterCode
from locator.ip import Network, address_text, network_text
from locator.model import Finding, Port, Service, ServiceImport, and_more
from locator.places.book import POD, AddressBook
from locator.places.prefix_table import PrefixTable
from locator.state.snapshot import ExportedService, ImportedObjects
from locator.topology.annotations import FEDERATED, HEALTH, field_of, health_check
from locator.topology.constraints import SOURCE

Exported = Mapping[str, ExportedService]  # the Service of one name in each cluster that exports it

INGRESS = "status.loadBalancer.ingress"


def export_findings(exported: Exported, clusters: Collection[str], joining: Joining, own: str) -> Iterator[Finding]:
    """Yield what is wrong with a Service that some of the *clusters* export; *own* is the own one's name."""
    yield from _disagreeing(exported, own)
    yield from _conflicting(exported, own)
    if len(clusters) == 2:
        yield from _without_majority(exported, own)
    for cluster, service in sorted(exported.items()):
        if service.compiled.service.alias is not None:
            code, message = ClusterCode.ExternalNameExported, "an ExternalName Service has no address to contribute"
            yield _about(cluster, service, own, code, "spec.type", message, "a Service with endpoints")
            continue
        ingress = service.compiled.service.ingress
        joined = [(cluster, other) in joining.flat for other in clusters if other != cluster]
        if any(joined):
            yield from _differing_ports(cluster, service, own)
        if not ingress and not all(joined):
            outside = f"cluster {cluster} and its flat networks" if any(joined) else f"cluster {cluster}"
            headless = service.compiled.service.headless  # the API server refuses it the type LoadBalancer
            lacking = "a headless Service has no load balancer" if headless else "no address of a load balancer"
            expected = "type: LoadBalancer, and an address in its status"
            yield _about(
                cluster, service, own, ClusterCode.LoadBalancerWithoutAddress,
                "spec.clusterIP" if headless else INGRESS,
                f"{lacking}: clients outside of {outside} get nothing of it",
                f"a cluster IP, {expected}; or --flat-network" if headless else expected,
            )  # fmt: skip
        name = None if joining.resolves else next(filter(is_host_name, ingress), None)
        if name is not None:
            message = f"nobody resolves {name}: the load balancer is in no answer"
            yield _about(
                cluster, service, own, ClusterCode.HostNameWithoutUpstream, INGRESS, message, "--upstream ADDR"
            )


def _differing_ports(cluster: str, exported: ExportedService, own: str) -> Iterator[Finding]:
    """Yield a finding if pods do not listen at the numbers of the Service's ports; it names the first such port."""
    differing = differing_ports(exported.compiled)
    for port, numbers in list(differing.items())[:1]:
        listen = f"listen at {', '.join(map(str, sorted(numbers)))}" if numbers else "do not listen there"
        message = (
            f"{_port_name(port)} is {port.number}, but pods {listen}{and_more(len(differing))}: clients in flat "
            "networks get pods by SRV only, and by A and AAAA what clients elsewhere get"
        )
        expected = "targetPort to be the same as port in all of spec.ports"
        yield _about(cluster, exported, own, ClusterCode.PortsDiffer, "spec.ports", message, expected)


def _without_majority(exported: Exported, own: str) -> Iterator[Finding]:
    """Yield a finding if the load balancers of a Service in two clusters are probed: only both are a majority."""
    for cluster, found in sorted(exported.items()):
        service = found.compiled.service
        check = health_check(service.annotations.get(HEALTH, ""))
        if check is not None and check.port_of(service) is not None:
            message = "of two clusters, one is no majority: if one is lost, its load balancers stay in the answers"
            code, expected = ClusterCode.HealthWithoutMajority, "a third cluster with a prober, a witness"
            yield _about(cluster, found, own, code, field_of(HEALTH), message, expected)
            return


def _disagreeing(exported: Exported, own: str) -> Iterator[Finding]:
    """Yield a finding for each Service whose constraint differs from that which counts for clients elsewhere."""
    by_age = sorted(exported.items(), key=lambda item: (item[1].compiled.service.created, item[0]))
    declared = [(cluster, service) for cluster, service in by_age if service.constraint and service.constraint.valid]
    for cluster, service in declared[1:]:
        (first, counting), constraint = declared[0], service.constraint
        assert constraint is not None and counting.constraint is not None
        if constraint.constraint == counting.constraint.constraint:
            continue
        here, elsewhere = (", ".join(found.constraint.keys) for found in (constraint, counting.constraint))
        field, code = SOURCE[constraint.source].field, ClusterCode.FederatedConstraintsDiffer
        message = (
            f"clusters disagree: {here} counts for clients in {cluster}, but for clients where no Service asks for "
            f"anything {elsewhere}, as in {first}"
        )
        yield _about(cluster, service, own, code, field, message, "the same constraint in all clusters")


def _conflicting(exported: Exported, own: str) -> Iterator[Finding]:
    """Yield what differs between the oldest Service and the others: headless or not, and ports of one name.

    KEP-1645 calls that a conflict, in which the oldest wins. An ExternalName Service has a finding of its own.
    """
    by_age = sorted(exported.items(), key=lambda item: (item[1].compiled.service.created, item[0]))
    members = [(cluster, service) for cluster, service in by_age if service.compiled.service.alias is None]
    for cluster, service in members[1:]:
        first, oldest = members[0][0], members[0][1].compiled.service
        for field, here, there in _differences(service.compiled.service, oldest):
            message = f"clusters disagree: {here} in {cluster}, {there} in {first}"
            yield _about(cluster, service, own, ClusterCode.ExportsDisagree, field, message, "the same in all clusters")


def _differences(service: Service, other: Service) -> Iterator[tuple[str, str, str]]:
    """Yield each field in which two Services differ, and what it is in either."""
    if service.headless != other.headless:
        here, there = ("headless" if one.headless else "not headless" for one in (service, other))
        yield "spec.clusterIP", here, there
    by_name = {port.name: port for port in other.ports}
    for port in service.ports:
        namesake = by_name.get(port.name, port)
        if port != namesake:
            yield "spec.ports", f"{_port_name(port)} is {_port_text(port)}", _port_text(namesake)


def _port_name(port: Port) -> str:
    return f"port {port.name}" if port.name else "the port"


def _port_text(port: Port) -> str:
    return f"{port.number}/{port.protocol.upper()}"


def export_advice(exported: Exported, clusters: Collection[str], own: str) -> Iterator[Finding]:
    """Yield that a Service is exported by one of several *clusters* only (severity info)."""
    if len(exported) == 1 < len(clusters):
        ((cluster, service),) = exported.items()
        field, message = (
            field_of(FEDERATED),
            f"exported in {cluster} only, of {len(clusters)} clusters",
        )
        code, expected = ClusterCode.ExportedInOneCluster, "a ServiceExport or this annotation in other clusters, too"
        yield _about(cluster, service, own, code, field, message, expected)


def overlaps(books: Mapping[str, AddressBook], flat: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield a finding for each two clusters of a flat network that have a block of addresses in common."""
    for one, other in sorted(flat):
        if one > other or not {one, other} <= books.keys():
            continue
        network = _in_both(books[one], books[other]) or _in_both(books[other], books[one])
        if network is not None:
            yield ClusterCode.FlatNetworkOverlaps.finding(
                field="--flat-network",
                message=f"both {one} and {other} have addresses in {network_text(network)}",
                expected="clusters whose pods have different addresses",
            )


def imported_overlaps(imports: Iterable[ImportedObjects]) -> Iterator[Finding]:
    """Yield a finding for each two clusters of which imported endpoints have one address: the first that is found.

    A client reaches only one of the two, whichever of them it was answered.
    """
    holders: dict[bytes, dict[str, ServiceImport]] = {}  # by address and cluster: the first ServiceImport
    reported: set[frozenset[str]] = set()
    for objects in imports:
        for endpoint in chain.from_iterable(part.endpoints for part in objects.slices):
            cluster = endpoint.cluster
            if not cluster or not endpoint.ready:
                continue
            for address in endpoint.addresses:
                known = holders.setdefault(address, {})
                for other in known.keys() - {cluster}:
                    if (pair := frozenset((cluster, other))) not in reported:
                        reported.add(pair)
                        yield _one_address(address, {other: known[other], cluster: objects.service_import})
                known.setdefault(cluster, objects.service_import)


def _one_address(address: bytes, holders: Mapping[str, ServiceImport]) -> Finding:
    """Return the finding that endpoints of two clusters have one address; *holders* has the ServiceImport of each."""
    first = min(holders.values(), key=lambda one: one.key)
    keys = dict.fromkeys(one.key for _, one in sorted(holders.items()))
    message = f"{address_text(address)} is an address of endpoints in {' and '.join(sorted(holders))}"
    message = f"{message} ({', '.join(keys)})" if len(keys) > 1 else message
    return ClusterCode.FlatNetworkOverlaps.about(first, "", message, "clusters whose pods have different addresses")


def _in_both(one: AddressBook, other: AddressBook) -> Network | None:
    """Return the first pod CIDR of *one* in which *other* has addresses, else the first pod that both have, or None."""
    for network in sorted(one.cidrs.changes_since(PrefixTable())):
        if other.has_part_of(network):
            return network
    pods = (address for address, place in one.places.items() if place.located_by == POD)
    both = (address for address in pods if (place := other.places.get(address)) and place.located_by == POD)
    first = min(both, default=None)
    return None if first is None else Network(first, 8 * len(first))


def _about(
    cluster: str, service: ExportedService, own: str, code: ClusterCode, field: str, message: str, expected: str
) -> Finding:
    found = code.about(service.compiled.service, field, message, expected)
    return found.in_cluster("" if cluster == own else cluster)
