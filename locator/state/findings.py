"""What is wrong in a cluster beside what a Service asks for, and all of it in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

from locator.finding_codes import ClusterCode
from locator.model import HOSTNAME, ZONE, EndpointSlice, Finding, Location, Node

SERVICE_LABEL = "metadata.labels[kubernetes.io/service-name]"


class Rank(IntEnum):
    """What findings are about, in the order in which they are told."""

    SERVICE = 0
    POLICIES = 1
    NODE = 2
    SLICE = 3
    POD_CIDR = 4
    FORWARDERS = 5


class Findings:
    """What was found wrong, by what it was found at: a rank, and a key that can be compared within it."""

    def __init__(self) -> None:
        self._found: dict[tuple[Rank, Any], tuple[Finding, ...]] = {}
        self._all: tuple[Finding, ...] | None = ()

    def take(self, rank: Rank, key: object, found: Iterable[Finding]) -> None:
        """Note all that is wrong there now."""
        at, after = (rank, key), tuple(found)
        if after == self._found.get(at, ()):
            return
        self._all = None
        if after:
            self._found[at] = after
        else:
            del self._found[at]

    def all(self) -> tuple[Finding, ...]:
        """Return everything, in order; the very same value while nothing changed."""
        if self._all is None:
            self._all = tuple(each for at in sorted(self._found) for each in self._found[at])
        return self._all


def no_forwarder(services: str) -> Finding:
    """Return that no trusted forwarder is known; *services* says in words whose endpoints would be."""
    message = f"no forwarder is trusted to name its clients: no endpoint of {services} is known"
    expected = (
        "--forwarder-service NAMESPACE/NAME or --trusted-forwarder CIDR; --forwarder-service off if none forwards"
    )
    return ClusterCode.NoTrustedForwarder.finding("", "", "", field="", message=message, expected=expected)


def node_findings(node: Node) -> Iterator[Finding]:
    """Yield what is wrong with a node."""
    if ZONE not in node.labels:
        field = f"metadata.labels[{ZONE}]"
        yield ClusterCode.NodeWithoutZone.finding(
            "Node", "", node.name, field=field, message="node without zone", expected="a label"
        )


def orphan_findings(endpoint_slice: EndpointSlice, *, service_known: bool) -> Iterator[Finding]:
    """Yield that a slice belongs to no Service, if it is so."""
    code, message = ClusterCode.SliceWithoutService, "slice without a Service"
    if endpoint_slice.service_key is None:
        yield _about(endpoint_slice, code, SERVICE_LABEL, message, "a Service's name")
    elif not service_known:
        message = f"{message}: there is no Service {endpoint_slice.service_key}"
        yield _about(endpoint_slice, code, SERVICE_LABEL, message, "a Service in the same namespace")


def location_findings(endpoint_slice: EndpointSlice, lost: Sequence[int], *, nodes_known: bool) -> Iterator[Finding]:
    """Yield that endpoints of a slice have no location: those at the places *lost*.

    *nodes_known* says whether Nodes are looked at, rather than PodLocators alone.
    """
    if not lost:
        return
    endpoint = endpoint_slice.endpoints[lost[0]]  # one of a slice stands for all
    why = ""
    if nodes_known and endpoint.node is not None:
        why = f": there is no Node {endpoint.node}"
    elif not nodes_known and endpoint.pod is not None:
        why = f": no PodLocator tells of {endpoint_slice.namespace}/{endpoint.pod}"
    more = f" (and {len(lost) - 1} more in this slice)" if len(lost) > 1 else ""
    field, expected = (".nodeName", "the name of a Node") if nodes_known else (".targetRef", "a pod with a PodLocator")
    yield _about(
        endpoint_slice,
        ClusterCode.EndpointWithoutLocation,
        f"endpoints[{lost[0]}]{field}",
        f"endpoint without location{why}{more}",
        f"{expected}, or a zone",
    )


def is_somewhere(location: Location) -> bool:
    """Whether more is known of a location than the name of a node that nobody knows."""
    return len(location.labels) > 1 or bool(location.labels.keys() - {HOSTNAME})


def _about(endpoint_slice: EndpointSlice, code: ClusterCode, field: str, message: str, expected: str) -> Finding:
    namespace, name = endpoint_slice.namespace, endpoint_slice.name
    return code.finding("EndpointSlice", namespace, name, field=field, message=message, expected=expected)
