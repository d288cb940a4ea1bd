# SPDX-License-Identifier: Apache-2.0

"""The objects of one cluster by kind and key, indexed by namespace, Service, node and pod."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Set
from typing import Any, TypeVar

from locator.index import Index, Relation
from locator.model import (
    KINDS,
    ZONE,
    EndpointSlice,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePolicy,
)

K = TypeVar("K", bound=Object)

# The names of indexes.
BY_NAMESPACE, BY_SERVICE, BY_NODE, BY_IMPORT, UNPLACED = "namespace", "service", "node", "import", "unplaced"

NAMESPACED: tuple[type[Any], ...] = (
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
    EndpointSlice,
    ServiceExport,
    ServiceImport,
)


class Objects:
    """The objects of one cluster.

    *pods_locate* and *locators* say whether Pods and PodLocators locate anything. *slices_by_import* adds the index
    that ``slices_imported_with`` needs.

    Methods take and return the keys of Services, slices and ServiceImports.
    """

    def __init__(self, *, pods_locate: bool, locators: bool, slices_by_import: bool = False) -> None:
        self._objects: dict[type[Any], dict[str, Any]] = {kind: {} for kind in KINDS}
        # Many maps hold these keys. An object makes an equal one whenever it is asked, and each would take memory.
        self._keys: dict[type[Any], dict[str, str]] = {Service: {}, EndpointSlice: {}}
        self.pods: Index[str, Pod] = Index(address=pod_addresses, node=_pod_nodes)
        """The running Pods that have an address, by their addresses and nodes."""
        self._skipped: dict[type[Any], frozenset[str]] = {}  # the namespaces of skipped objects, by kind
        self._services: Index[str, Service] = Index(namespace=_namespace)
        self._policies: Index[str, ServicePolicy] = Index(namespace=_namespace)
        self._imports: Index[str, ServiceImport] = Index(namespace=_namespace)
        self._nodes: Index[str, Node] = Index(zone=_zone)
        functions: dict[str, Callable[[EndpointSlice], Iterable[Hashable]]] = {
            **{BY_SERVICE: _service, BY_NODE: _nodes, UNPLACED: _unplaced},
            **({BY_IMPORT: _import} if slices_by_import else {}),
        }
        self._slices: Index[str, EndpointSlice] = Index(**functions)
        self._pods_locate, self._follows_pods = pods_locate, pods_locate or locators
        self._depended_on: Relation[str, str] = Relation()  # pods by the slices that depend on them
        self._marked: set[str] = set()  # slices that may depend on other pods by now
        self._indices: dict[type[Object], Index[str, Any]] = {
            Node: self._nodes,
            Pod: self.pods,
            Service: self._services,
            ServicePolicy: self._policies,
            ServiceImport: self._imports,
            EndpointSlice: self._slices,
        }

    def change(self, kind: type[Object], key: str, before: Any, after: Any) -> None:
        """Record a change of the object at *key* (None: it does not exist)."""
        keys = self._keys.get(kind)
        if after is None:
            del self._objects[kind][key]
            if keys is not None:
                del keys[key]
        else:
            self._objects[kind][key] = after
            if keys is not None:
                key = keys.setdefault(key, key)
        if kind in self._indices:
            self._indices[kind].move(key, before, after)
        if kind is EndpointSlice:
            self._marked.add(key)

    def add_pods(self, pods: Mapping[str, Pod]) -> None:
        """Record many pods that are new, by key."""
        self._objects[Pod].update(pods)
        running = [(key, pod) for key, pod in pods.items() if pod.addresses and not pod.finished]
        self.pods.join("address", ((address, key) for key, pod in running for address in pod.addresses))
        self.pods.join("node", ((pod.node, key) for key, pod in running if pod.node is not None))

    def skip(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Record only the namespaces of all *objects* of an unused kind; return whether they changed."""
        before = self._skipped.get(kind, frozenset())
        namespaced: Iterable[Any] = objects if kind in NAMESPACED else ()
        after = frozenset(item.namespace for item in namespaced)
        self._skipped[kind] = after
        return before != after

    def of(self, kind: type[K]) -> Mapping[str, K]:
        """Return all objects of a kind by their keys."""
        return self._objects[kind]

    def known_key(self, kind: type[Service | EndpointSlice], key: str) -> str:
        """Return the one string for the key of an object, and *key* itself of one that does not exist."""
        return self._keys[kind].get(key, key)

    def services_in(self, namespace: str) -> Collection[str]:
        """Return the Services of a namespace."""
        return self._services.keys(BY_NAMESPACE, namespace)

    def namespaces(self) -> set[str]:
        """Return all namespaces that exist.

        These are the Namespaces and the namespaces of Services. If no Namespace is known, the
        namespaces of all other objects exist, too, skipped ones included.
        """
        existing = set(self.of(Namespace)) or {
            *(namespaced.namespace for kind in NAMESPACED for namespaced in self.of(kind).values()),
            *(namespace for namespaces in self._skipped.values() for namespace in namespaces),
        }
        existing.update(self._services.values(BY_NAMESPACE))
        return existing

    def zones(self) -> Set[str]:
        """Return the zones of all nodes, "" if one has none."""
        return self._nodes.values("zone")

    def nodes_in(self, zone: str) -> Collection[str]:
        """Return the nodes in a zone, and for "" those that have none."""
        return self._nodes.keys("zone", zone)

    def policies_in(self, namespace: str) -> list[ServicePolicy]:
        """Return the policies of a namespace, sorted by key."""
        policies = self.of(ServicePolicy)
        return [policies[key] for key in sorted(self._policies.keys(BY_NAMESPACE, namespace))]

    def imports_in(self, namespace: str) -> Collection[str]:
        """Return the ServiceImports of a namespace."""
        return self._imports.keys(BY_NAMESPACE, namespace)

    def slices_of(self, service: str) -> list[EndpointSlice]:
        """Return the slices of a Service, sorted by key."""
        return self._in_order(self._slices.keys(BY_SERVICE, service))

    def slices_imported_with(self, service_import: str) -> list[EndpointSlice]:
        """Return the slices of a ServiceImport, sorted by key."""
        return self._in_order(self._slices.keys(BY_IMPORT, service_import))

    def _in_order(self, keys: Collection[str]) -> list[EndpointSlice]:
        slices = self.of(EndpointSlice)
        return [slices[key] for key in (sorted(keys) if len(keys) > 1 else keys)]

    def slices_on(self, node: str) -> Collection[str]:
        """Return the slices with an endpoint on a node."""
        return self._slices.keys(BY_NODE, node)

    def unplaced_addresses(self) -> Collection[bytes]:
        """Return the addresses whose places may say where endpoints of Services are: those of endpoints without a node.

        Endpoints that ``joined_endpoints`` makes one have the addresses of all of them.
        """
        return self._slices.values(UNPLACED)

    def slices_unplaced_at(self, address: bytes) -> Collection[str]:
        """Return the slices with an endpoint at one of the ``unplaced_addresses``."""
        return self._slices.keys(UNPLACED, address)

    def slices_depending_on(self, pod: str) -> Collection[str]:
        """Return the slices with an endpoint for which it matters what is known of a pod, as of ``follow_pods``.

        It does not matter while the Node that the endpoint names is known, and the pod has the endpoint's address.
        """
        return self._depended_on.keys_of(pod)

    def pods_depended_on(self) -> Collection[str]:
        """Return the pods for which ``slices_depending_on`` returns any slice."""
        return self._depended_on.values()

    def pods_depended_on_at(self, node: str) -> list[str]:
        """Return those of the ``pods_depended_on`` that are on a node, as their Pods or their PodLocators say."""
        kinds = self.of(Pod), self.of(PodLocator)
        return [key for key in self.pods_depended_on() for known in kinds if key in known and known[key].node == node]

    def mark_slices(self, slices: Iterable[str]) -> None:
        """Note that some slices may depend on other pods than before: a Node or a pod came, went or changed."""
        self._marked.update(slices)

    def follow_pods(self) -> None:
        """Find out which pods the changed slices depend on."""
        marked, self._marked = self._marked, set()
        for key in marked if self._follows_pods else ():
            known = self.of(EndpointSlice).get(key)
            self._depended_on.set(key, () if known is None else self._pods_of(known))

    def _pods_of(self, known: EndpointSlice) -> tuple[str, ...]:
        """Return the pods that a slice depends on."""
        endpoints = known.endpoints
        if not endpoints.pods:
            return ()
        nodes, pods = self.of(Node), self.of(Pod)
        has_to_be_of_pod = self._pods_locate and known.managed  # else the endpoint locates no client
        if nodes.keys() >= set(endpoints.nodes) and (  # as nearly always
            not has_to_be_of_pod
            or self.pods.only_each("address", endpoints.all_addresses()) == endpoints.pod_keys(known.namespace)
        ):
            return ()
        depended_on: dict[str, None] = {}
        for endpoint in endpoints:
            key = endpoint.pod_key(known.namespace)
            if key is None:
                continue
            pod = pods.get(key) if has_to_be_of_pod else None
            is_of_pod = not has_to_be_of_pod or (pod is not None and set(endpoint.addresses) <= set(pod.addresses))
            if endpoint.node not in nodes or not is_of_pod:
                depended_on[key] = None
        return tuple(depended_on)


def pod_addresses(pod: Pod) -> tuple[bytes, ...]:
    """Return the addresses of a pod while it runs."""
    return () if pod.finished else pod.addresses


def _pod_nodes(pod: Pod) -> tuple[str, ...]:
    return () if pod.node is None or pod.finished or not pod.addresses else (pod.node,)


def _namespace(namespaced: Service | ServicePolicy | ServiceImport) -> Iterable[str]:
    return (namespaced.namespace,)


def _zone(node: Node) -> Iterable[str]:
    return (node.labels.get(ZONE, ""),)


def _service(endpoint_slice: EndpointSlice) -> Iterable[str]:
    key = endpoint_slice.service_key
    return () if key is None else (key,)


def _import(endpoint_slice: EndpointSlice) -> Iterable[str]:
    key = endpoint_slice.import_key
    return () if key is None else (key,)


def _nodes(endpoint_slice: EndpointSlice) -> Iterable[str]:
    endpoints = endpoint_slice.endpoints
    return [*(node for node in endpoints.nodes if node is not None), *endpoints.target_node_names()]


def _unplaced(endpoint_slice: EndpointSlice) -> Iterable[bytes]:
    endpoints = endpoint_slice.endpoints
    if endpoint_slice.service is None or (None not in endpoints.nodes and not endpoints.counts):  # as nearly always
        return ()
    # An endpoint on a node may be joined with one on none that has one of its addresses. So it brings the others.
    either = (endpoint for endpoint in endpoints if endpoint.node is None or len(endpoint.addresses) > 1)
    return [address for endpoint in either for address in endpoint.addresses]
