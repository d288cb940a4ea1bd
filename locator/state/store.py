"""One cluster as it changes: takes changes in, gives immutable snapshots out.

What a change costs is what it touches: it is noted whose addresses, Services, blocks and
findings are to be looked at again, and ``publish`` looks at these. A snapshot shares all else
with the one before. The order in which changes came makes no difference to what a snapshot says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put
from locator.ip import Network
from locator.model import (
    KINDS,
    Endpoint,
    EndpointSlice,
    Finding,
    Namespace,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
)
from locator.places.address_book import AddressBook
from locator.places.address_index import AddressIndex
from locator.places.forwarders import DnsServices
from locator.state.compiling import compiled
from locator.state.findings import (
    Findings,
    Rank,
    is_somewhere,
    location_findings,
    no_forwarder,
    node_findings,
    orphan_findings,
)
from locator.state.objects import Objects, with_same_endpoints
from locator.state.pod_addresses import PodAddresses
from locator.state.snapshot import (
    CompiledService,
    Snapshot,
    answers_differ,
    holders_after,
    locations_in,
    services_after,
)
from locator.topology.constraints import IGNORED, declaration_of, findings, policy_findings
from locator.topology.scope import Scope

NAMESPACED: tuple[type[Pod | PodLocator | Service | ServicePolicy | EndpointSlice], ...] = (
    Pod,
    PodLocator,
    Service,
    ServicePolicy,
    EndpointSlice,
)


class Store:
    """The objects of one cluster, and the snapshot last made of them.

    *subnets* tells where other networks are, *forwarders* and *forwarder_services* (``namespace/name``; None:
    the cluster's own DNS is discovered) whose queries are asked for others. *pods*, *nodes* and *pod_locators* say
    whether objects of that kind tell where addresses are; with *pod_names* pods are known even if
    they do not. *scope* says which Services are served, and without *endpoint_records* nothing of
    their endpoints is.

    Snapshots never change, so that one may be read while the next is made in another thread; the
    store itself is for one thread at a time.
    """

    def __init__(
        self,
        *,
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        forwarders: Sequence[Network] = (),
        forwarder_services: Iterable[str] | None = (),
        pods: bool = True,
        nodes: bool = True,
        pod_locators: bool = False,
        pod_names: bool = False,
        scope: Scope | None = None,
        endpoint_records: bool = True,
    ) -> None:
        self._dns_services = DnsServices(forwarder_services)
        wanted = {Pod: pods or pod_names, Node: nodes, PodLocator: pod_locators}
        self.kinds: tuple[type[Object], ...] = tuple(kind for kind in KINDS if wanted.get(kind, True))
        """The kinds of objects that make a difference."""
        self._locate_by_pods, self._pod_names = pods, pod_names
        self._scope = scope or Scope()
        self._endpoint_records = endpoint_records
        self._objects = Objects(by_pod=pod_locators)
        self._names = PodAddresses()
        self._passed_over: dict[type[Object], frozenset[str]] = {}  # the namespaces they are in, by kind
        self._addresses = AddressIndex()
        self._locations = self._addresses.locations
        self._findings = Findings()
        self._take: dict[type[Object], Callable[[str, Any, Any], bool]] = {
            Namespace: self._take_namespace,
            Node: self._take_node,
            Pod: self._take_pod,
            PodLocator: self._take_locator,
            Service: self._take_service,
            ServicePolicy: self._take_policy,
            EndpointSlice: self._take_slice,
        }
        # What is to be looked at again when the next snapshot is made.
        self._changed = self._namespaces_changed = True
        self._forwarders_changed = False
        self._services_changed: set[str] = set()
        self._slices_changed: set[str] = set()  # what is found wrong with them
        self._policies_changed: set[str] = set()  # what is found wrong with them, by namespace
        self._snapshot: Snapshot | None = None
        self._needs_forwarder = bool(self._dns_services.keys) and not forwarders
        self._nothing = Snapshot({}, frozenset(), AddressBook(subnets=subnets, forwarders=forwarders), 0)

    @property
    def due(self) -> float | None:
        """When to publish although nothing changes (seconds since 1970), None for never: trust that ends."""
        return self._addresses.due

    # What is learned

    def apply(self, change: Delta) -> bool:
        """Take a change in; return whether any answer could differ now, or anything that is found wrong.

        If not, there is no need to publish: at most the number of objects is another one.
        """
        if isinstance(change, Put):
            return self._put(type(change.object), change.object.key, change.object)
        if isinstance(change, Drop):
            return self._drop(change.kind, change.key)
        return self.replace(change.kind, change.objects)

    def replace(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Make *objects* all that is known of *kind*; return what ``apply`` does."""
        if kind not in self.kinds:
            return self._pass_over(kind, objects)
        visible, gone = False, set(self._objects.of(kind))
        for each in objects:
            key = each.key
            visible |= self._put(kind, key, each)
            gone.discard(key)
        for key in gone:
            visible |= self._drop(kind, key)
        return visible

    def known(self) -> list[Object]:
        """Return every object, by kind."""
        return [each for kind in self.kinds for each in self._objects.of(kind).values()]

    def _put(self, kind: type[Object], key: str, each: Any) -> bool:
        if kind not in self.kinds:
            return False
        before = self._objects.of(kind).get(key)
        after = each if kind is Pod else self._trimmed(each, before)
        if before is not None and before == after:
            return False
        return self._took(kind, key, before, after)

    def _drop(self, kind: type[Object], key: str) -> bool:
        before = self._objects.of(kind).get(key)
        return before is not None and self._took(kind, key, before, None)

    def _took(self, kind: type[Object], key: str, before: Any, after: Any) -> bool:
        self._objects.change(kind, key, before, after)
        visible = self._take[kind](key, before, after)
        if before is None or after is None or kind is Namespace:
            unnamed = not self._objects.of(Namespace)  # then a namespace exists by any object in it
            if unnamed or kind is Service or kind is Namespace:
                self._namespaces_changed = visible = True
        self._changed = True
        return visible

    def _pass_over(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """A namespace exists if any object is in it, whoever looks at that object."""
        before = self._passed_over.get(kind, frozenset())
        after = frozenset(each.namespace for each in objects if not isinstance(each, (Namespace, Node)))
        self._passed_over[kind] = after
        if before != after:
            self._changed = self._namespaces_changed = True
        return before != after and not self._objects.of(Namespace)

    def _trimmed(self, each: Any, before: Any) -> Any:
        """Return an object without what makes no difference, sharing what is the same as before or elsewhere."""
        if isinstance(each, Namespace):
            labels = self._scope.relevant_labels(each)
            return each if labels == each.labels else replace(each, labels=labels)
        if isinstance(each, EndpointSlice):
            return with_same_endpoints(each, before)
        if isinstance(each, PodLocator) and each.labels:  # all of a node's pods tell the same
            return replace(each, labels=self._locations.shared(each.node, each.labels).labels)
        return each

    def _take_namespace(self, key: str, before: Namespace | None, after: Namespace | None) -> bool:
        self._look_at_namespace(key)
        return True

    def _take_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        self._findings.take(Rank.NODE, key, node_findings(after) if after is not None else ())
        if self._addresses.update_node(key, before, after):
            for slice_key in self._objects.slices_on(key):
                self._look_at_endpoints(slice_key, lambda endpoint: endpoint.node == key)
        return True

    def _take_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        visible = self._locate_by_pods and self._addresses.update_pod(key, before, after)
        return (self._pod_names and self._names.take(key, before, after)) or visible

    def _take_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        visible = self._addresses.update_locator(key, before, after)
        told = self._objects.slices_with(key)
        for slice_key in told:
            self._look_at_endpoints(slice_key, lambda endpoint: endpoint.pod == key.partition("/")[2])
        return visible or bool(told)

    def _take_service(self, key: str, before: Service | None, after: Service | None) -> bool:
        self._services_changed.add(key)
        each = cast(Service, after or before)
        turned = self._dns_services.update_service(key, after)
        self._forwarders_changed |= turned
        policies = self._objects.policies_in(each.namespace)
        if policies:
            self._policies_changed.add(each.namespace)
        if before is None or after is None:
            self._slices_changed.update(found.key for found in self._objects.slices_of(key))
            return True
        if turned or policies or replace(before, labels={}) != replace(after, labels={}):
            return True
        return self._scope.relevant_labels(before) != self._scope.relevant_labels(after)

    def _take_policy(self, key: str, before: ServicePolicy | None, after: ServicePolicy | None) -> bool:
        self._look_at_namespace(cast(ServicePolicy, after or before).namespace)
        return any(policy is not None and policy.mode != IGNORED for policy in (before, after))

    def _take_slice(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> bool:
        self._addresses.update_slice(key, before, after)
        self._slices_changed.add(key)
        for each in (before, after):
            if each is not None and each.service_key is not None:
                self._services_changed.add(each.service_key)
                self._forwarders_changed |= each.service_key in self._dns_services.keys
        return True

    def _look_at_namespace(self, namespace: str) -> None:
        self._services_changed.update(self._objects.services_in(namespace))
        self._policies_changed.add(namespace)

    def _look_at_endpoints(self, key: str, which: Callable[[Endpoint], bool]) -> None:
        """Some endpoints of a slice may be elsewhere now."""
        each = self._objects.of(EndpointSlice)[key]
        self._slices_changed.add(key)
        if each.service_key is not None:
            self._services_changed.add(each.service_key)
        for endpoint in each.endpoints:
            if which(endpoint):
                self._addresses.recheck(endpoint.addresses)

    # What follows

    def publish(self, now: float) -> Snapshot:
        """Return the snapshot of what is known; the very same one while it says the same.

        *now* is the time in seconds since 1970. Services that did not change are shared with
        the snapshot before, and so is what was remembered of them. Where no answer differs, but
        what is found wrong or how much is known, the serial stays.
        """
        due = self.due
        if self._snapshot is not None and not self._changed and (due is None or now < due):
            return self._snapshot
        before = self._snapshot or self._nothing
        addresses = self._address_book(before.addresses, now)
        changes = self._recompiled(before.services)
        after = Snapshot(
            services=services_after(before.services, changes),
            namespaces=self._namespaces() if self._namespaces_changed else before.namespaces,
            addresses=addresses,
            serial=int(now),
            findings=self._all_findings(),
            objects={kind.__name__: len(self._objects.of(kind)) for kind in KINDS},
            holders=holders_after(before, changes),
            pods=self._names.namespaces_after(before.pods),
        )
        self._changed = self._namespaces_changed = False
        if self._snapshot is None or answers_differ(before, after):
            self._snapshot = after
        elif before.findings is not after.findings or before.objects != after.objects:
            self._snapshot = replace(after, serial=before.serial)
        snapshot = self._snapshot
        self._locations.forget_unused(lambda: locations_in(snapshot))
        return snapshot

    def _address_book(self, before: AddressBook, now: float) -> AddressBook:
        slices = None
        if self._forwarders_changed:
            slices = [each for key in self._dns_services.keys for each in self._objects.slices_of(key)]
        self._forwarders_changed = False
        after = self._addresses.book_after(before, now, slices, self._note_block)
        missing = self._needs_forwarder and not self._addresses.forwarders
        self._findings.take(Rank.FORWARDERS, "", [no_forwarder(self._dns_services.text)] if missing else ())
        return after

    def _note_block(self, network: Network, found: tuple[Finding, ...]) -> None:
        self._findings.take(Rank.POD_CIDR, (-network.length, network.address), found)  # the longest first

    def _recompiled(self, before: Mapping[str, CompiledService]) -> dict[str, CompiledService | None]:
        """Return the Services that are others than *before*, None for one that is served no more."""
        changes: dict[str, CompiledService | None] = {}
        for key in self._services_changed:
            known = before.get(key)
            after = self._compiled(key, known)
            if after is not known:
                changes[key] = after
        self._services_changed = set()
        return changes

    def _compiled(self, key: str, before: CompiledService | None) -> CompiledService | None:
        service = self._objects.of(Service).get(key)
        if service is None or not self._exposed(service.namespace) or not self._scope.serves(service):
            self._findings.take(Rank.SERVICE, key, ())
            return None
        declaration = declaration_of(service, self._objects.policies_in(service.namespace))
        self._findings.take(Rank.SERVICE, key, findings(service, declaration))
        return compiled(
            service,
            declaration,
            self._objects.slices_of(key),
            self._locations.of_endpoint,
            before,
            endpoint_records=self._endpoint_records,
        )

    def _exposed(self, namespace: str) -> bool:
        return self._scope.exposes(namespace, self._objects.of(Namespace).get(namespace))

    def _namespaces(self) -> frozenset[str]:
        """The Namespaces, and what Services are in; where there are no Namespaces, what any object is in."""
        existing = set(self._objects.of(Namespace)) or {
            *(each.namespace for kind in NAMESPACED for each in self._objects.of(kind).values()),
            *(namespace for namespaces in self._passed_over.values() for namespace in namespaces),
        }
        existing.update(self._objects.namespaces_of_services())
        return frozenset(filter(self._exposed, existing))

    def _all_findings(self) -> tuple[Finding, ...]:
        for key in self._slices_changed:
            each = self._objects.of(EndpointSlice).get(key)
            self._findings.take(Rank.SLICE, key, self._slice_findings(each) if each is not None else ())
        for namespace in self._policies_changed:
            services = [self._objects.of(Service)[key] for key in sorted(self._objects.services_in(namespace))]
            found = policy_findings(self._objects.policies_in(namespace), services)
            self._findings.take(Rank.POLICIES, namespace, found if self._exposed(namespace) else ())
        self._slices_changed, self._policies_changed = set(), set()
        return self._findings.all()

    def _slice_findings(self, each: EndpointSlice) -> Iterator[Finding]:
        yield from orphan_findings(each, service_known=each.service_key in self._objects.of(Service))
        nodes_known = Node in self.kinds
        if not nodes_known and PodLocator not in self.kinds:
            return
        nodes, locate = self._objects.of(Node), self._locations.of_endpoint
        lost = [
            number
            for number, endpoint in enumerate(each.endpoints)
            if endpoint.node not in nodes and not is_somewhere(locate(each.namespace, endpoint))
        ]
        yield from location_findings(each, lost, nodes_known=nodes_known)
