"""The objects of one cluster by kind and key, and the ways to them: by namespace, Service, node and pod."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from locator.index import Index
from locator.model import KINDS, EndpointSlice, Object, Service, ServicePolicy

K = TypeVar("K", bound=Object)

NAMESPACE, SERVICE, NODE, POD = "namespace", "service", "node", "pod"  # the ways


class Objects:
    """What is known of one cluster. *by_pod* says whether slices are looked for by their endpoints' pods.

    Services, pods and all other objects go by their keys here.
    """

    def __init__(self, *, by_pod: bool) -> None:
        self._known: dict[type[Any], dict[str, Any]] = {kind: {} for kind in KINDS}
        self._services: Index[str, Service] = Index(namespace=_namespace)
        self._policies: Index[str, ServicePolicy] = Index(namespace=_namespace)
        ways = {SERVICE: _service, NODE: _nodes, **({POD: _pods} if by_pod else {})}
        self._slices: Index[str, EndpointSlice] = Index(**ways)
        self._indices: dict[type[Object], Index[str, Any]] = {
            Service: self._services,
            ServicePolicy: self._policies,
            EndpointSlice: self._slices,
        }

    def change(self, kind: type[Object], key: str, before: Any, after: Any) -> None:
        """Note that the object at *key* was *before* and is *after*, None where there was or is none."""
        if after is None:
            del self._known[kind][key]
        else:
            self._known[kind][key] = after
        if kind in self._indices:
            self._indices[kind].move(key, before, after)

    def of(self, kind: type[K]) -> Mapping[str, K]:
        """Return all objects of a kind by their keys."""
        return self._known[kind]

    def services_in(self, namespace: str) -> Collection[str]:
        """Return the Services of a namespace."""
        return self._services.keys(NAMESPACE, namespace)

    def namespaces_of_services(self) -> Collection[str]:
        """Return the namespaces in which there is a Service."""
        return self._services.values(NAMESPACE)

    def policies_in(self, namespace: str) -> list[ServicePolicy]:
        """Return the policies of a namespace in the order of their keys."""
        policies = self.of(ServicePolicy)
        return [policies[key] for key in sorted(self._policies.keys(NAMESPACE, namespace))]

    def slices_of(self, service: str) -> list[EndpointSlice]:
        """Return the slices of a Service in the order of their keys."""
        slices = self.of(EndpointSlice)
        return [slices[key] for key in sorted(self._slices.keys(SERVICE, service))]

    def slices_on(self, node: str) -> Collection[str]:
        """Return the slices with an endpoint on a node."""
        return self._slices.keys(NODE, node)

    def slices_with(self, pod: str) -> Collection[str]:
        """Return the slices with an endpoint that is this pod."""
        return self._slices.keys(POD, pod)


def with_same_endpoints(fresh: EndpointSlice, before: EndpointSlice | None) -> EndpointSlice:
    """Return a slice with the very endpoints that it had *before*, as far as they are equal."""
    if before is None:
        return fresh
    known = {endpoint.addresses: endpoint for endpoint in before.endpoints}
    endpoints = []
    for endpoint in fresh.endpoints:
        found = known.get(endpoint.addresses)
        endpoints.append(endpoint if found is None or found != endpoint else found)
    return replace(fresh, endpoints=tuple(endpoints))


def _namespace(owned: Service | ServicePolicy) -> Iterable[str]:
    return (owned.namespace,)


def _service(endpoint_slice: EndpointSlice) -> Iterable[str]:
    key = endpoint_slice.service_key
    return () if key is None else (key,)


def _nodes(endpoint_slice: EndpointSlice) -> Iterable[str]:
    return [endpoint.node for endpoint in endpoint_slice.endpoints if endpoint.node is not None]


def _pods(endpoint_slice: EndpointSlice) -> Iterable[str]:
    pods = (endpoint.pod for endpoint in endpoint_slice.endpoints)
    return [f"{endpoint_slice.namespace}/{pod}" for pod in pods if pod is not None]
