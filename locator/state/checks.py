"""Checks the objects of one cluster for findings, again where something changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from locator.ip import Network
from locator.model import EndpointSlice, Finding, Node, Object, PodLocator, Service
from locator.places.locations import Locations
from locator.state.findings import (
    Findings,
    Rank,
    is_located,
    location_findings,
    no_forwarder,
    node_findings,
    orphan_findings,
)
from locator.state.objects import Objects
from locator.topology.constraint_findings import policy_findings, service_findings
from locator.topology.constraints import Declaration


class Checks:
    """The findings of one cluster: a store that uses *kinds* and serves the namespaces that are *exposed*."""

    def __init__(
        self, objects: Objects, locations: Locations, kinds: Collection[type[Object]], exposed: Callable[[str], bool]
    ) -> None:
        self._objects, self._locations, self._exposed = objects, locations, exposed
        self._reads_nodes, self._reads_locators = Node in kinds, PodLocator in kinds
        self._findings = Findings()
        self._slices: set[str] = set()  # to check again, by key
        self._namespaces: set[str] = set()  # with policies to check again

    def mark_slices(self, keys: Iterable[str]) -> None:
        """Note that the findings of some slices may change."""
        self._slices.update(keys)

    def mark_policies(self, namespace: str) -> None:
        """Note that the findings of the policies of a namespace may change."""
        self._namespaces.add(namespace)

    def check_node(self, name: str, node: Node | None) -> None:
        """Check a Node (None: it does not exist) at once, and replace its findings."""
        self._findings.set(Rank.NODE, name, node_findings(node) if node is not None else ())

    def check_service(self, key: str, service: Service | None, declarations: Sequence[Declaration]) -> None:
        """Check a Service (None: it is not served) and its declarations at once, and replace its findings."""
        self._findings.set(Rank.SERVICE, key, service_findings(service, declarations) if service is not None else ())

    def set_pod_cidr(self, network: Network, found: tuple[Finding, ...]) -> None:
        """Replace the findings of a pod CIDR."""
        self._findings.set(Rank.POD_CIDR, (-network.length, network.address), found)  # the longest prefix first

    def set_forwarders(self, missing: str | None) -> None:
        """Report that no forwarder is known; *missing* describes the DNS Services, None if there is no problem."""
        self._findings.set(Rank.FORWARDERS, "", [no_forwarder(missing)] if missing is not None else ())

    def all_findings(self) -> tuple[Finding, ...]:
        """Return all findings in order, after the due checks; the same object until one changes."""
        for key in self._slices:
            endpoint_slice = self._objects.of(EndpointSlice).get(key)
            found = self._slice_findings(endpoint_slice) if endpoint_slice is not None else ()
            self._findings.set(Rank.SLICE, key, found)
        for namespace in self._namespaces:
            services = [self._objects.of(Service)[key] for key in sorted(self._objects.services_in(namespace))]
            found = policy_findings(self._objects.policies_in(namespace), services)
            self._findings.set(Rank.POLICIES, namespace, found if self._exposed(namespace) else ())
        self._slices, self._namespaces = set(), set()
        return self._findings.all()

    def _slice_findings(self, endpoint_slice: EndpointSlice) -> Iterator[Finding]:
        yield from orphan_findings(
            endpoint_slice, service_known=endpoint_slice.service_key in self._objects.of(Service)
        )
        if not self._reads_nodes and not self._reads_locators:
            return
        nodes, locate = self._objects.of(Node), self._locations.of_endpoint
        unlocated = [
            position
            for position, endpoint in enumerate(endpoint_slice.endpoints)
            if endpoint.node not in nodes and not is_located(locate(endpoint_slice.namespace, endpoint))
        ]
        yield from location_findings(endpoint_slice, unlocated, nodes_known=self._reads_nodes)
