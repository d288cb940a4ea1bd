"""One cluster as it changes: takes objects in, gives immutable snapshots out.

The store keeps the very object it had where a new one is equal to it, so that ``publish``
can tell by identity what is unchanged, and shares it with the snapshot before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, cast

from msgspec.structs import replace

from locator.addresses import AddressBook
from locator.constraints import constraint_of, findings
from locator.holders import Holders
from locator.model import (
    HOSTNAME,
    KINDS,
    WARNING,
    ZONE,
    Endpoint,
    EndpointSlice,
    Finding,
    Location,
    Namespace,
    Network,
    Node,
    Object,
    Pod,
    Service,
    canonical_labels,
)
from locator.selection import LocatedEndpoint
from locator.selectors import Scope
from locator.snapshot import CompiledService, Snapshot, terms_of

K = TypeVar("K", Namespace, Node, Pod, Service, EndpointSlice)

NOWHERE = Location(None, {})  # an endpoint of which neither node nor zone is known


class Store:
    """The objects of one cluster, and the snapshot last made of them.

    *subnets* tells where other networks are, *forwarders* and *forwarder_services*
    (``namespace/name``) whose queries are asked for others. *pods* and *nodes* say whether
    objects of that kind tell where addresses are; with *pod_names* pods are known even if they
    do not. *scope* says which Services are served, and without *endpoint_records* nothing of
    their endpoints is.
    """

    def __init__(
        self,
        *,
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        forwarders: Iterable[Network] = (),
        forwarder_services: Iterable[str] = (),
        pods: bool = True,
        nodes: bool = True,
        pod_names: bool = False,
        scope: Scope | None = None,
        endpoint_records: bool = True,
    ) -> None:
        self._subnets = dict(subnets or {})
        self._forwarders = tuple(forwarders)
        self._forwarder_services = frozenset(forwarder_services)
        self._passed_over = {kind for kind, wanted in ((Pod, pods or pod_names), (Node, nodes)) if not wanted}
        self._locate_by_pods, self._pod_names = pods, pod_names
        self._scope = scope or Scope()
        self._endpoint_records = endpoint_records
        self._objects: dict[type[Object], dict[str, Object]] = {kind: {} for kind in KINDS}
        self._pod_namespaces: frozenset[str] = frozenset()
        self._visible = True
        self._nodes: dict[str, tuple[Node, Location]] = {}
        self._words: dict[object, Location] = {}  # what slices say of nodes nobody knows
        self._snapshot: Snapshot | None = None

    def replace(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Make *objects* all that is known of *kind*; return whether any answer could differ now."""
        if kind in self._passed_over:
            if kind is not Pod:
                return False
            # A namespace exists if any object is in it, whoever looks at that object.
            before_them = self._pod_namespaces
            self._pod_namespaces = frozenset(each.namespace for each in objects if isinstance(each, Pod))
            self._visible |= self._pod_namespaces != before_them
            return self._pod_namespaces != before_them
        before = self._objects[kind]
        after: dict[str, Object] = {}
        for each in map(self._trimmed, objects):
            known = before.get(each.key)
            after[each.key] = known if known == each else each
        same = len(before) == len(after) and all(before.get(key) is each for key, each in after.items())
        if not same:
            self._objects[kind] = after
            self._visible = True
        return not same

    def _trimmed(self, each: Object) -> Object:
        """Return an object without the labels that make no difference, which change for many other reasons."""
        if isinstance(each, (Namespace, Service)):
            labels = self._scope.relevant_labels(each)
            return each if labels == each.labels else replace(each, labels=labels)
        return each

    def publish(self, now: int) -> Snapshot:
        """Return the snapshot of what is known; the very same one while nothing visible changed.

        *now* is the time in seconds since 1970. Services that did not change are shared with
        the snapshot before, and so is what was remembered of them.
        """
        if self._snapshot is not None and not self._visible:
            return self._snapshot
        self._locate_nodes()
        slices = self._slices_by_service()
        before = self._snapshot.services if self._snapshot is not None else {}
        services = {
            service.key: self._compile(service, slices.get(service.key, ()), before.get(service.key))
            for service in self._of(Service).values()
            if self._exposed(service.namespace) and self._scope.serves(service)
        }
        book = AddressBook(
            nodes=self._nodes,
            pods=self._of(Pod).values() if self._locate_by_pods else (),
            endpoints=self._all_endpoints(),
            subnets=self._subnets,
            forwarders=self._forwarders,
            forwarder_addresses=[
                address
                for key in self._forwarder_services
                for each in slices.get(key, ())
                for endpoint in each.endpoints
                for address in endpoint.addresses
            ],
        )
        self._words = {word: location for word, location in self._words.items() if word in self._spoken}
        self._visible = False
        self._snapshot = Snapshot(
            services=services,
            namespaces=self._namespaces(),
            addresses=book,
            serial=now,
            findings=(*self._findings(services), *book.findings),
            objects={kind.__name__: len(objects) for kind, objects in self._objects.items()},
            holders=self._holders(before, services),
            pods=self._pod_addresses(),
        )
        return self._snapshot

    def _of(self, kind: type[K]) -> dict[str, K]:
        return cast("dict[str, K]", self._objects[kind])

    def _namespaces(self) -> frozenset[str]:
        """The Namespaces, and what Services are in; where there are no Namespaces, what any object is in."""
        existing = {each.namespace for each in self._of(Service).values()}
        if names := self._of(Namespace):
            existing.update(names)
        else:
            placed: tuple[Pod | EndpointSlice, ...] = (*self._of(Pod).values(), *self._of(EndpointSlice).values())
            existing.update(self._pod_namespaces, (each.namespace for each in placed))
        return frozenset(filter(self._exposed, existing))

    def _exposed(self, namespace: str) -> bool:
        return self._scope.exposes(namespace, self._of(Namespace).get(namespace))

    def _holders(self, before: Mapping[str, CompiledService], after: Mapping[str, CompiledService]) -> Holders:
        """Who has which address, from who had it: only what changed is gone through."""
        holders = self._snapshot.holders if self._snapshot is not None else Holders()
        return holders.changed(
            left=((key, each.addresses) for key, each in before.items() if after.get(key) is not each),
            joined=((key, each.addresses) for key, each in after.items() if before.get(key) is not each),
        )

    def _pod_addresses(self) -> frozenset[tuple[str, bytes]]:
        if not self._pod_names:
            return frozenset()
        running = (pod for pod in self._of(Pod).values() if not pod.finished)
        return frozenset((pod.namespace, address) for pod in running for address in pod.addresses)

    def _locate_nodes(self) -> None:
        before = self._nodes
        self._nodes = {
            name: known if (known := before.get(name)) and known[0] is node else (node, Location(name, node.labels))
            for name, node in self._of(Node).items()
        }
        self._spoken: set[object] = set()

    def _location(self, endpoint: Endpoint) -> Location:
        """Its node's labels; only if that node is not known, the slice's own word."""
        known = self._nodes.get(endpoint.node) if endpoint.node is not None else None
        if known is not None:
            return known[1]
        if endpoint.node is None and not endpoint.word:
            return NOWHERE
        word = (endpoint.node, tuple(sorted(endpoint.word.items())))
        self._spoken.add(word)
        if word not in self._words:
            self._words[word] = Location(endpoint.node, canonical_labels(endpoint.word, node=endpoint.node))
        return self._words[word]

    def _slices_by_service(self) -> dict[str, tuple[EndpointSlice, ...]]:
        rows: dict[str, list[EndpointSlice]] = {}
        for key in sorted(self._of(EndpointSlice)):
            each = self._of(EndpointSlice)[key]
            if each.service_key is not None:
                rows.setdefault(each.service_key, []).append(each)
        return {key: tuple(row) for key, row in rows.items()}

    def _all_endpoints(self) -> Iterator[tuple[Endpoint, str, Location]]:
        for each in self._of(EndpointSlice).values():
            holder = f"endpoint of {each.service_key}" if each.service_key else f"endpoint in slice {each.key}"
            for endpoint in each.endpoints:
                yield endpoint, holder, self._location(endpoint)

    def _compile(
        self, service: Service, slices: tuple[EndpointSlice, ...], before: CompiledService | None
    ) -> CompiledService:
        if service.alias is not None:
            slices = ()  # it has no endpoints, whatever slices say
        if before is not None and before.service is service and _same(before.slices, slices):
            joined, empty = tuple(each.endpoint for each in before.endpoints), before.empty
            locations = tuple(map(self._location, joined))
            if _same(before.locations, locations):
                return before
        else:
            joined = joined_endpoints(slices)
            empty = not joined
            joined = joined if self._endpoint_records else ()
            locations = tuple(map(self._location, joined))
        constraint = constraint_of(service)
        return CompiledService(
            service=service,
            constraint=constraint,
            endpoints=tuple(map(LocatedEndpoint, joined, locations)),
            slices=slices,
            locations=locations,
            terms=terms_of(constraint),
            empty=empty,
        )

    def _findings(self, services: Mapping[str, CompiledService]) -> Iterator[Finding]:
        for compiled in services.values():
            yield from findings(compiled.service, compiled.constraint)
        for node, location in self._nodes.values():
            if location.value(ZONE) is None:
                field = f"metadata.labels[{ZONE}]"
                yield Finding(WARNING, "Node", "", node.name, field, "node without zone", "a label")
        for each in self._of(EndpointSlice).values():
            yield from self._slice_findings(each)

    def _slice_findings(self, each: EndpointSlice) -> Iterator[Finding]:
        def finding(field: str, message: str, expected: str) -> Finding:
            return Finding(WARNING, "EndpointSlice", each.namespace, each.name, field, message, expected)

        if each.service_key is None:
            yield finding("metadata.labels[kubernetes.io/service-name]", "slice without a Service", "a Service's name")
        elif each.service_key not in self._of(Service):
            message = f"slice without a Service: there is no Service {each.service_key}"
            yield finding("metadata.labels[kubernetes.io/service-name]", message, "a Service in the same namespace")
        if Node in self._passed_over:
            return
        lost = [(n, endpoint) for n, endpoint in enumerate(each.endpoints) if not self._places(endpoint)]
        for position, endpoint in lost[:1]:  # one of a slice stands for all
            why = f": there is no Node {endpoint.node}" if endpoint.node is not None else ""
            more = f" (and {len(lost) - 1} more in this slice)" if len(lost) > 1 else ""
            message = f"endpoint without location{why}{more}"
            yield finding(f"endpoints[{position}].nodeName", message, "the name of a Node, or a zone")

    def _places(self, endpoint: Endpoint) -> bool:
        """Whether more is known of where an endpoint is than the name of a node that nobody knows."""
        return endpoint.node in self._nodes or bool(set(self._location(endpoint).labels) - {HOSTNAME})


def joined_endpoints(slices: Iterable[EndpointSlice]) -> tuple[Endpoint, ...]:
    """Return the ready endpoints of a Service's slices, a pod's as one, and those of no pod once for each address.

    IPv4 and IPv6 stand in slices of their own, and so may ports; a pod in several is one
    endpoint, so that one choice holds for A, AAAA and SRV. Pods on one node's network may
    share an address and stay two.
    """
    joined: dict[object, Endpoint] = {}
    holders: dict[bytes, object] = {}  # address -> its key in joined
    for each in slices:
        for endpoint in each.endpoints:
            if not endpoint.ready:
                continue
            fresh = tuple(address for address in endpoint.addresses if address not in holders)
            key: object = (endpoint.pod, endpoint.node)
            if endpoint.pod is None:  # who knows no pod is told by its address
                key = next((holders[each] for each in endpoint.addresses if each in holders), fresh)
            other = joined.get(key)
            if other is None:
                joined[key] = endpoint
            else:
                joined[key] = replace(
                    other,
                    addresses=tuple(dict.fromkeys((*other.addresses, *endpoint.addresses))),
                    ports=tuple(dict.fromkeys((*other.ports, *endpoint.ports))),
                )
            holders.update(dict.fromkeys(fresh, key))
    return tuple(joined.values())


def _same(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return len(left) == len(right) and all(map(lambda a, b: a is b, left, right))
