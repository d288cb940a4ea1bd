"""The findings of one cluster in order, and the checks of Nodes, EndpointSlices and forwarders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

from msgspec.structs import replace

from locator.api.dump_text import COMMAND
from locator.finding_codes import ClusterCode
from locator.model import (
    CLUSTER,
    ENDPOINTS,
    HOSTNAME,
    IMPORTED,
    ZONE,
    EndpointSlice,
    Finding,
    Location,
    Node,
    Pod,
    Service,
    ServiceExport,
    ServiceImport,
)
from locator.topology.constraint_findings import service_findings
from locator.topology.constraints import declarations_of

SERVICE_LABEL = "metadata.labels[kubernetes.io/service-name]"


class Rank(IntEnum):
    """The subjects of findings, in the order in which topodns reports them."""

    SERVICE = 0
    IMPORT = 1
    POLICIES = 2
    NODE = 3
    SLICE = 4
    POD_CIDR = 5
    FORWARDERS = 6
    SETTINGS = 7
    MISSING = 8


class Findings:
    """The findings of one cluster, by rank and by a key that sorts within it."""

    def __init__(self) -> None:
        self._by_rank: tuple[dict[Any, tuple[Finding, ...]], ...] = tuple({} for _ in Rank)
        self._all: tuple[Finding, ...] | None = ()
        self._left_out: frozenset[str] = frozenset()

    def set(self, rank: Rank, key: object, findings: Iterable[Finding]) -> None:
        """Replace the findings of one subject; no findings remove it."""
        by_key, after = self._by_rank[rank], tuple(findings)
        if after == by_key.get(key, ()):
            return
        self._all = None
        if after:
            by_key[key] = after
        else:
            del by_key[key]

    def all(self, leave_out: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
        """Return all findings in order but those with the codes *leave_out*; the same object until one changes."""
        if self._all is None or leave_out != self._left_out:
            found = (finding for by_key in self._by_rank for key in sorted(by_key) for finding in by_key[key])
            self._all, self._left_out = tuple(row for row in found if row.code not in leave_out), leave_out
        return self._all


# What a dump does not say, by the name of the kind that it lacks.
LACKING = {
    EndpointSlice.__name__: "the dump has neither EndpointSlices nor Endpoints",
    Node.__name__: "the dump has no Nodes",
    Service.__name__: "the dump has no Services",
    Pod.__name__: "the dump has no Pods",
}
_UNKNOWN = {
    EndpointSlice.__name__: "topodns knows no endpoint of any Service",
    Node.__name__: "topodns knows the labels of no node",
    Service.__name__: "topodns knows no Service that its EndpointSlices belong to",
}
# What else is found only because the kind is missing.
FOLLOWING = {
    EndpointSlice.__name__: (ClusterCode.NoTrustedForwarder, ClusterCode.ServiceImportWithoutSlices),
    Node.__name__: (ClusterCode.KeyOnNoNode, ClusterCode.KeyOnNoEndpoint, ClusterCode.EndpointWithoutLocation),
    Service.__name__: (
        *(ClusterCode.SliceWithoutService, ClusterCode.PolicySelectsNothing, ClusterCode.ExportWithoutService),
        ClusterCode.NoTrustedForwarder,
    ),
}


def kind_missing(kind: str) -> Finding:
    """Return the finding that a dump has no object of a kind, which changes what all others mean."""
    message = f"{LACKING[kind]}, so {_UNKNOWN[kind]}"
    expected = f"all kinds that {COMMAND} prints"
    return ClusterCode.KindMissing.finding(kind, "", "", field="", message=message, expected=expected)


def no_forwarder(services: str) -> Finding:
    """Return the finding that no trusted forwarder is known; *services* describes the DNS Services for people."""
    message = (
        f"no trusted forwarder: there is no endpoint of {services}; so topodns ignores the client subnet in a query, "
        "whoever sends it, and locates the client by the sender's address"
    )
    expected = (
        "--forwarder-service NAMESPACE/NAME or --trusted-forwarder CIDR; --forwarder-service off if nothing forwards"
    )
    return ClusterCode.NoTrustedForwarder.finding("", "", "", field="", message=message, expected=expected)


def without_zone(node: str) -> Finding:
    """Return the finding that a node has no zone."""
    field = f"metadata.labels[{ZONE}]"
    return ClusterCode.NodeWithoutZone.finding(
        "Node", "", node, field=field, message="node without zone", expected="a label, as other nodes have one"
    )


def export_without_service(export: ServiceExport) -> Finding:
    """Return the finding that a ServiceExport names no Service."""
    return ClusterCode.ExportWithoutService.finding(
        "ServiceExport",
        export.namespace,
        export.name,
        field="metadata.name",
        message=f"there is no Service {export.key}",
        expected="the name of a Service in the same namespace",
    )


def orphan_findings(endpoint_slice: EndpointSlice, *, service_known: bool) -> Iterator[Finding]:
    """Yield a finding if a slice belongs to no Service."""
    code, message = ClusterCode.SliceWithoutService, "slice without a Service"
    if endpoint_slice.service_key is None:
        yield _about(endpoint_slice, code, SERVICE_LABEL, message, "a Service's name")
    elif not service_known:
        message = f"{message}: there is no Service {endpoint_slice.service_key}"
        yield _about(endpoint_slice, code, SERVICE_LABEL, message, "a Service in the same namespace")


def orphan_of_import(endpoint_slice: EndpointSlice) -> Finding:
    """Return the finding that a slice was imported with a ServiceImport that is not there."""
    message = f"slice without a ServiceImport: there is no ServiceImport {endpoint_slice.import_key}"
    code, expected = ClusterCode.SliceWithoutService, "a ServiceImport in the same namespace"
    return _about(endpoint_slice, code, f"metadata.labels[{IMPORTED}]", message, expected)


def import_findings(service_import: ServiceImport, *, has_slices: bool) -> Iterator[Finding]:
    """Yield the findings about a ServiceImport: about its constraint, and that it is headless without slices."""
    kind, service = "ServiceImport", service_import.as_service()
    for finding in service_findings(service, declarations_of(service)):
        in_vain = finding.code == ClusterCode.ConstraintWithoutEffect.name
        yield replace(finding, kind=kind, expected="type: Headless" if in_vain else finding.expected)
    if service_import.headless and not has_slices:
        code, namespace, name = ClusterCode.ServiceImportWithoutSlices, service.namespace, service.name
        message, expected = "headless, but no slice was imported with it", f"slices with the label {IMPORTED}"
        yield code.finding(kind, namespace, name, field="spec.type", message=message, expected=expected)


def location_findings(
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
        why = f": no PodLocator locates {endpoint_slice.namespace}/{endpoint.pod}"
    whole = "object" if endpoint_slice.kind == ENDPOINTS else "slice"
    more = f" (and {len(unlocated) - 1} more in this {whole})" if len(unlocated) > 1 else ""
    field, expected = (".nodeName", "the name of a Node") if nodes_known else (".targetRef", "a pod with a PodLocator")
    yield _about(
        endpoint_slice,
        ClusterCode.EndpointWithoutLocation,
        "subsets" if endpoint_slice.kind == ENDPOINTS else f"endpoints[{unlocated[0]}]{field}",
        f"endpoint without location{why}{more}",
        f"{expected}, or a zone",
    )


def is_located(location: Location) -> bool:
    """Whether a location has more than the cluster, and the hostname that a node's name stands for."""
    return bool(location.labels.keys() - {HOSTNAME, CLUSTER})


def _about(endpoint_slice: EndpointSlice, code: ClusterCode, field: str, message: str, expected: str) -> Finding:
    namespace, name = endpoint_slice.namespace, endpoint_slice.name
    return code.finding(endpoint_slice.kind, namespace, name, field=field, message=message, expected=expected)
