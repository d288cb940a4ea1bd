"""The objects of one cluster by kind and key, indexed by namespace, Service, node and pod."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from locator.endpoints import nodes_of
from locator.index import Index, Packing
from locator.model import (
    KINDS,
    EndpointSlice,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceHealth,
    ServiceImport,
    ServicePolicy,
)

K = TypeVar("K", bound=Object)

NAMESPACE, SERVICE, NODE, POD, IMPORT = "namespace", "service", "node", "pod", "import"  # index names

NAMESPACED: tuple[
    type[Pod | PodLocator | Service | ServicePolicy | EndpointSlice | ServiceExport | ServiceImport], ...
] = (
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

    *slices_by_pod* adds the index that ``slices_with`` needs, *slices_by_import* that of ``slices_imported_with``.

    Methods take and return the keys of Services and slices.
    """

    def __init__(self, *, slices_by_pod: bool, slices_by_import: bool = False) -> None:
        self._objects: dict[type[Any], dict[str, Any]] = {kind: {} for kind in KINDS}
        # Many maps hold these keys. An object makes an equal one whenever it is asked, and each would take memory.
        self._keys: dict[type[Any], dict[str, str]] = {Service: {}, EndpointSlice: {}}
        self._pods_packing = Packing(self._objects[Pod])
        self._skipped: dict[type[Any], frozenset[str]] = {}  # the namespaces of skipped objects, by kind
        self._services: Index[str, Service] = Index(namespace=_namespace)
        self._policies: Index[str, ServicePolicy] = Index(namespace=_namespace)
        functions = {SERVICE: _service, NODE: _nodes, **({POD: _pods} if slices_by_pod else {})}
        functions |= {IMPORT: _import} if slices_by_import else {}
        self._slices: Index[str, EndpointSlice] = Index(**functions)
        self._indices: dict[type[Object], Index[str, Any]] = {
            Service: self._services,
            ServicePolicy: self._policies,
            EndpointSlice: self._slices,
        }

    def change(self, kind: type[Object], key: str, before: Any, after: Any) -> None:
        """Record a change of the object at *key* (None: it does not exist)."""
        keys = self._keys.get(kind)
        if after is None:
            del self._objects[kind][key]
            if kind is Pod:
                self._pods_packing.note_gone()
            if keys is not None:
                del keys[key]
        else:
            self._objects[kind][key] = after
            if keys is not None:
                key = keys.setdefault(key, key)
        if kind in self._indices:
            self._indices[kind].move(key, before, after)

    def add_pods(self, pods: Mapping[str, Pod]) -> None:
        """Record many pods that are new, by key."""
        self._objects[Pod].update(pods)

    def pack(self) -> None:
        """Give memory back, see ``Packing.pack``."""
        self._pods_packing.pack()
        for index in self._indices.values():
            index.pack()

    def skip(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Record only the namespaces of all *objects* of an unused kind; return whether they changed."""
        before = self._skipped.get(kind, frozenset())
        after = frozenset(
            namespaced.namespace
            for namespaced in objects
            if not isinstance(namespaced, (Namespace, Node, ServiceHealth))
        )
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
        return self._services.keys(NAMESPACE, namespace)

    def namespaces(self) -> set[str]:
        """Return all namespaces that exist.

        These are the Namespaces and the namespaces of Services. If no Namespace is known, the
        namespaces of all other objects exist, too, skipped ones included.
        """
        existing = set(self.of(Namespace)) or {
            *(namespaced.namespace for kind in NAMESPACED for namespaced in self.of(kind).values()),
            *(namespace for namespaces in self._skipped.values() for namespace in namespaces),
        }
        existing.update(self._services.values(NAMESPACE))
        return existing

    def policies_in(self, namespace: str) -> list[ServicePolicy]:
        """Return the policies of a namespace, sorted by key."""
        policies = self.of(ServicePolicy)
        return [policies[key] for key in sorted(self._policies.keys(NAMESPACE, namespace))]

    def slices_of(self, service: str) -> list[EndpointSlice]:
        """Return the slices of a Service, sorted by key."""
        return self._in_order(self._slices.keys(SERVICE, service))

    def slices_imported_with(self, service_import: str) -> list[EndpointSlice]:
        """Return the slices of a ServiceImport, sorted by key."""
        return self._in_order(self._slices.keys(IMPORT, service_import))

    def _in_order(self, keys: Collection[str]) -> list[EndpointSlice]:
        slices = self.of(EndpointSlice)
        return [slices[key] for key in (sorted(keys) if len(keys) > 1 else keys)]

    def slices_on(self, node: str) -> Collection[str]:
        """Return the slices with an endpoint on a node."""
        return self._slices.keys(NODE, node)

    def slices_with(self, pod: str) -> Collection[str]:
        """Return the slices with an endpoint that runs in this pod."""
        return self._slices.keys(POD, pod)


def _namespace(namespaced: Service | ServicePolicy) -> Iterable[str]:
    return (namespaced.namespace,)


def _service(endpoint_slice: EndpointSlice) -> Iterable[str]:
    key = endpoint_slice.service_key
    return () if key is None else (key,)


def _import(endpoint_slice: EndpointSlice) -> Iterable[str]:
    key = endpoint_slice.import_key
    return () if key is None else (key,)


def _nodes(endpoint_slice: EndpointSlice) -> Iterable[str]:
    return [node for node in nodes_of(endpoint_slice.endpoints) if node is not None]


def _pods(endpoint_slice: EndpointSlice) -> Iterable[str]:
    pods = (endpoint.pod for endpoint in endpoint_slice.endpoints)
    return [f"{endpoint_slice.namespace}/{pod}" for pod in pods if pod is not None]
