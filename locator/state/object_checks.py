# SPDX-License-Identifier: Apache-2.0

"""The checks of Nodes, EndpointSlices, exports, imports and forwarders.

A function that finds one thing only is named as its code.

``locator.topology.service_checks`` has those of what Services and ServicePolicies ask for; here is only what concerns
their endpoints in the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from locator.api.dump_text import COMMAND
from locator.findings import ClusterCode
from locator.ip import address_text
from locator.model import (
    CLUSTER,
    ENDPOINTS,
    HOSTNAME,
    IMPORTED,
    MANAGED_BY,
    REGION,
    SOURCE_CLUSTER,
    ZONE,
    EndpointSlice,
    Finding,
    Location,
    Node,
    Pod,
    Service,
    ServiceExport,
    ServiceImport,
    and_more,
    listed,
)
from locator.state.snapshot import LACKING, CompiledService
from locator.topology.annotations import TOPOLOGY_KEYS
from locator.topology.balance_checks import import_without_effect
from locator.topology.constraints import Declaration, declarations_of, has_unmatched, in_effect
from locator.topology.hints import incomplete_hints
from locator.topology.selection import ANY_ENDPOINT
from locator.topology.service_checks import CarriedKeys, advice, service_findings

SERVICE_LABEL = "metadata.labels[kubernetes.io/service-name]"

Pods = frozenset[object]  # those of a Service

_EFFECT_OF_LACKING = {
    EndpointSlice.__name__: "topodns knows no endpoint of any Service",
    Node.__name__: "topodns knows the labels of no node",
    Service.__name__: "topodns knows no Service that its EndpointSlices belong to",
}


def kind_missing(kind: str) -> Finding:
    """Return the finding that a dump has no object of a kind, which changes what all others mean."""
    message = f"{LACKING[kind]}, so {_EFFECT_OF_LACKING[kind]}"
    expected = f"all kinds that {COMMAND} prints"
    return ClusterCode.KindMissing.finding(kind, message=message, expected=expected)


def no_trusted_forwarder(services: str) -> Finding:
    """Return the finding that no trusted forwarder is known; *services* describes the DNS Services for people."""
    message = (
        f"no trusted forwarder: there is no endpoint of {services}; so topodns ignores the client subnet in a query, "
        "whoever sends it, and locates the client by the sender's address"
    )
    expected = (
        "--forwarder-service NAMESPACE/NAME or --trusted-forwarder CIDR; --forwarder-service off if nothing forwards"
    )
    return ClusterCode.NoTrustedForwarder.finding(message=message, expected=expected)


def node_without_zone(node: str) -> Finding:
    """Return the finding that a node has no zone."""
    field, expected = f"metadata.labels[{ZONE}]", "a label, as other nodes have one"
    return ClusterCode.NodeWithoutZone.finding(
        "Node", name=node, field=field, message="node without zone", expected=expected
    )


def zone_in_two_regions(zone: str, regions: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Yield a finding if a zone is in several *regions*, by which it has the names of the nodes there."""
    if len(regions) < 2:
        return
    texts = [f"{region} ({listed(sorted(nodes), 1)})" for region, nodes in sorted(regions.items())]
    fewest = min(sorted(regions.items()), key=lambda pair: len(pair[1]))[1]  # probably the wrong ones
    message = f"one zone in two regions: nodes of zone {zone} are in {', '.join(texts)}"
    field, expected = f"metadata.labels[{ZONE}]", "zones with names that are unique in the cluster"
    code = ClusterCode.ZoneInTwoRegions
    yield code.finding("Node", "", min(fewest), field=field, message=message, expected=expected)


def twin_without_constraint(compiled: CompiledService, asking: Mapping[tuple[str, Pods], Service]) -> Iterator[Finding]:
    """Yield a finding if a headless Service asks for nothing, and one with the same pods does.

    *asking* are those that do, as ``asking_by_pods`` returns them. Peers, which have to find each other, get them all.
    """
    if not _may_have_twin(compiled):
        return
    own, pods = compiled.service, pods_of(compiled)
    twin = asking.get((own.namespace, pods)) if pods else None
    if twin is not None:
        message = f"asks for no near endpoints, but Service {twin.key}, which selects the same pods, does"
        expected = f"the annotation {TOPOLOGY_KEYS}, if clients use this name"
        yield ClusterCode.TwinWithoutConstraint.about(own, "spec.selector", message, expected)


def asking_in(services: Mapping[str, CompiledService], namespace: str) -> dict[tuple[str, Pods], Service]:
    """Return what ``asking_by_pods`` does of the *services* in a namespace."""
    return asking_by_pods(other for _, other in sorted(services.items()) if other.service.namespace == namespace)


def asking_by_pods(services: Iterable[CompiledService]) -> dict[tuple[str, Pods], Service]:
    """Return those of some Services that ask for near endpoints, by namespace and pods: the first of the same ones."""
    asking: dict[tuple[str, Pods], Service] = {}
    for compiled in services:
        if _asks(compiled):
            asking.setdefault((compiled.service.namespace, pods_of(compiled)), compiled.service)
    return asking


def _may_have_twin(compiled: CompiledService) -> bool:
    service = compiled.service
    is_plain = service.headless and not service.publishes_unready
    return is_plain and compiled.declaration is None and not _asks(compiled)


def _asks(compiled: CompiledService) -> bool:
    """Whether a Service asks for near endpoints, by whatever source, whether it gets them or not."""
    declaration = compiled.declaration
    keys = () if declaration is None or not declaration.valid else declaration.constraint.keys
    return any(key != ANY_ENDPOINT for key in keys) or has_unmatched(compiled.declarations)


def pods_of(compiled: CompiledService) -> Pods:
    """Return the pods of a Service, ready or not, and the addresses of its endpoints that are no pods."""
    return frozenset(
        endpoint.pod_key(part.namespace) or endpoint.addresses
        for part in compiled.slices
        for endpoint in part.endpoints
    )


def nearness_findings(
    compiled: CompiledService, counts: Declaration | None, asking: Callable[[], Mapping[tuple[str, Pods], Service]]
) -> Iterator[Finding]:
    """Yield what is worth knowing about what a Service asks for, for somebody who looks at it.

    *counts* is the constraint of the name that is looked at: the Service's own, or the default of the DNS zone.
    *asking* returns those that ask for near endpoints, at least of its namespace, as ``asking_by_pods`` does.
    """
    service, declarations, endpoints = compiled.service, compiled.declarations, compiled.endpoints
    yield from incomplete_hints(service, declarations, endpoints)
    yield from advice(service, declarations, endpoints, CarriedKeys())
    if counts is None and _may_have_twin(compiled):
        yield from twin_without_constraint(compiled, asking())


def zone_findings(compiled: CompiledService, client: Location) -> Iterator[Finding]:
    """Yield a finding for each zone that is in two regions, among those of a Service that asks for the zone."""
    if ZONE not in in_effect(compiled.declaration).client_keys:
        return
    regions: dict[tuple[str, str], dict[str, set[str]]] = {}
    for location in (client, *compiled.locations):
        zone, region = location.value(ZONE), location.value(REGION)
        if zone is not None and region is not None and location.node is not None:
            known = regions.setdefault((location.cluster, zone), {})  # two clusters may use one name
            known.setdefault(region, set()).add(location.node)
    for (_, zone), of_zone in sorted(regions.items()):
        yield from zone_in_two_regions(zone, of_zone)


def export_without_service(export: ServiceExport) -> Finding:
    """Return the finding that a ServiceExport names no Service."""
    message, expected = f"there is no Service {export.key}", "the name of a Service in the same namespace"
    return ClusterCode.ExportWithoutService.about(export, "metadata.name", message, expected)


def slice_without_service(endpoint_slice: EndpointSlice, *, service_known: bool) -> Iterator[Finding]:
    """Yield a finding if a slice belongs to no Service."""
    code, message = ClusterCode.SliceWithoutService, "slice without a Service"
    if endpoint_slice.service_key is None:
        yield code.about(endpoint_slice, SERVICE_LABEL, message, "a Service's name")
    elif not service_known:
        message = f"{message}: there is no Service {endpoint_slice.service_key}"
        yield code.about(endpoint_slice, SERVICE_LABEL, message, "a Service in the same namespace")


def slice_without_import(endpoint_slice: EndpointSlice) -> Finding:
    """Return the finding that a slice was imported with a ServiceImport that is not there."""
    message = f"slice without a ServiceImport: there is no ServiceImport {endpoint_slice.import_key}"
    code, expected = ClusterCode.SliceWithoutService, "a ServiceImport in the same namespace"
    return code.about(endpoint_slice, f"metadata.labels[{IMPORTED}]", message, expected)


def import_findings(service_import: ServiceImport, *, has_slices: bool) -> Iterator[Finding]:
    """Yield the findings about a ServiceImport: about its constraint, and that it is headless without slices."""
    service = service_import.as_service()
    for finding in service_findings(service, declarations_of(service)):
        without_effect = finding.code == ClusterCode.ConstraintWithoutEffect.name
        yield replace(finding, kind="ServiceImport", expected="type: Headless" if without_effect else finding.expected)
    yield from import_without_effect(service_import)
    if service_import.headless and not has_slices:
        message, expected = "headless, but no slice was imported with it", f"slices with the label {IMPORTED}"
        yield ClusterCode.ServiceImportWithoutSlices.about(service_import, "spec.type", message, expected)


def import_without_cluster(endpoint_slice: EndpointSlice, service_import: ServiceImport) -> Iterator[Finding]:
    """Yield a finding if a slice is of a cluster that the status of its ServiceImport does not list, but others."""
    known = service_import.clusters
    if not known or {*endpoint_slice.endpoints.clusters} <= {*known, "", None}:
        return
    cluster = next(filter(None, endpoint_slice.endpoints.clusters))
    message = f"{cluster} is no cluster of ServiceImport {service_import.key}, but a slice was imported from it"
    expected = f"a cluster that the status of the ServiceImport lists: {', '.join(known)}"
    field = f"metadata.labels[{SOURCE_CLUSTER}]"
    yield ClusterCode.ImportWithoutCluster.about(endpoint_slice, field, message, expected)


def slice_left_behind(
    endpoint_slice: EndpointSlice, pods: Mapping[str, Pod], managed: Sequence[EndpointSlice]
) -> Iterator[Finding]:
    """Yield a finding if pods of a mirrored slice, beside which the Service's selector has slices of its own, are gone.

    *pods* are all known Pods by key. If a pod has another address, the one that had this is gone. *managed* are the
    slices of the selector: a pod that one of them has is there, even if its Pod is not known yet.
    """
    gone = []
    there = {(one.pod, address) for part in managed for one in part.endpoints for address in one.addresses}
    for endpoint in endpoint_slice.endpoints if managed else ():
        key = endpoint.pod_key(endpoint_slice.namespace)
        if key is None or any((endpoint.pod, address) in there for address in endpoint.addresses):
            continue
        pod = pods.get(key)
        if pod is None or pod.finished or (pod.addresses and not {*endpoint.addresses} & {*pod.addresses}):
            gone.append(f"{key} with {address_text(endpoint.addresses[0])}")
    if gone:
        message = f"left behind by the mirroring controller: there is no Pod {gone[0]}{and_more(len(gone))}"
        code, field = ClusterCode.SliceLeftBehind, f"metadata.labels[{MANAGED_BY}]"
        yield code.about(endpoint_slice, field, message, "only slices of the Service's selector")


def name_without_address(service: Service | ServiceImport) -> Iterator[Finding]:
    """Yield a finding if the name of a Service or ServiceImport exists, but has no records: there is no address."""
    if service.headless or service.cluster_ips or (isinstance(service, Service) and service.alias is not None):
        return
    is_import = isinstance(service, ServiceImport)
    field, headless = ("spec.ips", "type: Headless") if is_import else ("spec.clusterIP", "clusterIP: None")
    message = f"the name has no records: no address is written in the {type(service).__name__}"
    yield ClusterCode.NameWithoutAddress.about(service, field, message, f"an address, or {headless}")


def endpoint_without_location(
    endpoint_slice: EndpointSlice, unlocated: Sequence[int], *, nodes_known: bool
) -> Iterator[Finding]:
    """Yield a finding if endpoints of a slice have no location: *unlocated* are their positions in the slice.

    *nodes_known* says whether topodns reads Nodes, not only PodLocators.
    """
    if not unlocated:
        return
    endpoint = endpoint_slice.endpoints[unlocated[0]]  # the finding names the first one and counts the others
    why = ""
    if nodes_known and endpoint.node is not None:
        why = f": there is no Node {endpoint.node}"
    elif not nodes_known and endpoint.pod is not None:
        why = f": no PodLocator locates {endpoint.pod_key(endpoint_slice.namespace)}"
    where = " in this object" if endpoint_slice.kind == ENDPOINTS else " in this slice"
    field, expected = (
        (".nodeName", "the name of a Node, a targetRef") if nodes_known else (".targetRef", "a pod with a PodLocator")
    )
    yield ClusterCode.EndpointWithoutLocation.about(
        endpoint_slice,
        "subsets" if endpoint_slice.kind == ENDPOINTS else f"endpoints[{unlocated[0]}]{field}",
        f"endpoint without location{why}{and_more(len(unlocated), where)}",
        f"{expected}, a zone, or --subnet",
    )


def is_located(location: Location) -> bool:
    """Whether a location has more than the cluster, and the hostname that a node's name stands for."""
    return bool(location.labels.keys() - {HOSTNAME, CLUSTER})
