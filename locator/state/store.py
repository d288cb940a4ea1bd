# SPDX-License-Identifier: Apache-2.0

"""One cluster as it changes: takes deltas in, returns immutable snapshots.

A delta only marks what it affects: addresses, Services, pod CIDRs and findings. ``publish`` computes
the marked parts and shares all others with the previous snapshot, so the cost of a change depends
on what it affects. The order of deltas makes no difference to a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put
from locator.api.sharing import shared_labels
from locator.ip import Network
from locator.model import (
    KINDS,
    OWN_CLUSTER,
    EndpointSlice,
    Finding,
    Location,
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
    in_cluster,
    kind_of,
)
from locator.places.address_map import AddressMap
from locator.places.book import AddressBook
from locator.places.book_builder import BookBuilder
from locator.places.forwarders import DnsServices
from locator.places.locations import Locations
from locator.places.prefix_table import PrefixTable
from locator.state.balancing import Balances, Balancing, Plans
from locator.state.checker import Checker
from locator.state.compiling import EndpointLocator, compiled, unready_endpoints
from locator.state.derived import Derived
from locator.state.joining import joined_endpoints
from locator.state.objects import Objects, pod_addresses
from locator.state.snapshot import (
    CompiledService,
    ExportedService,
    ImportedObjects,
    Snapshot,
    answers_differ,
    book_of,
    locations_in,
    service_addresses_after,
)
from locator.topology.annotations import is_federated
from locator.topology.constraints import Declaration, declarations_of, federated_constraint
from locator.topology.hints import hinted
from locator.topology.scope import Scope
from locator.topology.selection import LocatedEndpoint
from locator.topology.service_checks import may_choose
from locator.topology.unknown_names import own_names


class StoreOptions(Struct, frozen=True, kw_only=True):
    """What a store is of, and what its snapshots are to have."""

    cluster: str = OWN_CLUSTER
    """The name of the cluster."""
    subnets: Mapping[Network, Mapping[str, str]] | None = None
    """The labels of networks outside of the cluster."""
    forwarders: Sequence[Network] = ()
    """The networks of trusted forwarders."""
    forwarder_services: Sequence[str] | None = ()
    """The Services whose endpoints are trusted forwarders, too (``namespace/name``); None: topodns discovers them."""
    pods: bool = True
    """Whether Pods locate addresses."""
    nodes: bool = True
    """Whether Nodes do."""
    pod_locators: bool = False
    """Whether PodLocators do."""
    pod_names: bool = False
    """Whether pod names are verified, so that Pods are read in any case."""
    scope: Scope = Scope()
    """Which Services are served."""
    endpoint_records: bool = True
    """Whether snapshots have endpoints."""
    honor_kubernetes: bool = True
    """Whether hints and ``trafficDistribution`` are constraints."""
    default_keys: Mapping[str, Sequence[str]] = {}
    """The default topology keys of DNS zones, which the store only checks."""
    exports: bool = False
    """Whether snapshots have what the cluster exports to others."""
    imports: bool = False
    """Whether they have what it imports, and the locations of nodes."""
    nodes_by_name: bool = False
    """Whether they have the locations of nodes in any case."""
    balances: bool = True
    """Whether the plans of balanced Services are made."""

    @property
    def counted(self) -> type[Object]:
        """The kind of object that counts as a client where Services are balanced."""
        if self.pod_locators and not (self.pods and self.nodes):
            return PodLocator
        return Pod if self.pods else Node

    @property
    def kinds(self) -> tuple[type[Object], ...]:
        """The kinds of objects that the store uses."""
        wanted = {Pod: self.pods or self.pod_names, Node: self.nodes, PodLocator: self.pod_locators}
        wanted |= {ServiceExport: self.exports, ServiceImport: self.imports, ServiceHealth: self.exports}
        return tuple(kind for kind in KINDS if wanted.get(kind, True))


class Store:
    """The objects of one cluster, and the latest snapshot of them.

    Snapshots never change, so one thread may read a snapshot while another makes the next. Only one
    thread at a time may use the store itself.
    """

    def __init__(self, options: StoreOptions | None = None) -> None:
        self._options = options = options or StoreOptions()
        self.kinds = options.kinds
        """The kinds of objects that the store uses; it skips all others."""
        self._objects = Objects(
            pods_locate=options.pods, locators=options.pod_locators, slices_by_import=options.imports
        )
        locating = self._objects if options.pods else Objects(pods_locate=False, locators=False)
        self._locations = Locations(
            *(options.cluster, locating.of(Pod), options.subnets),
            reads_nodes=options.nodes,
            have_slots=options.balances,
        )
        known_slices, known_services = self._objects.of(EndpointSlice), self._objects.of(Service)
        self._addresses = BookBuilder(
            self._locations, known_slices, known_services, locating.pods, options.subnets or ()
        )
        self._pod_addresses_changed: set[bytes] = set()
        self._dns_services = DnsServices(options.forwarder_services)
        self._endpoint_locator = EndpointLocator(self._locations)
        self._checks = Checker(
            *(self._objects, self._locations, self._endpoint_locator.locate, self.kinds, options.default_keys),
            counted=options.counted,
        )
        by_address = self._addresses.locators if options.counted is PodLocator else self._objects.pods
        self._balancing = Balancing(self._objects, self._locations, options.counted, by_address, options.default_keys)
        self._services = Derived(self._compiled)
        self._unready = Derived(self._unready_of)
        self._exported = Derived(self._exported_of)
        self._imports = Derived(self._imported_of)
        self._healths = Derived(self._health_of)
        self._nodes = Derived[Location](lambda name, _: self._locations.of_node(name))
        # Each marks what a change of an object affects, and returns whether an answer or a finding may differ now.
        self._update: dict[type[Object], Callable[[str, Any, Any], bool]] = {
            Namespace: self._update_namespace,
            Node: self._update_node,
            Pod: self._update_pod,
            PodLocator: self._update_locator,
            Service: self._update_service,
            ServicePolicy: self._update_policy,
            EndpointSlice: self._update_slice,
            ServiceExport: self._update_export,
            ServiceImport: self._update_import,
            ServiceHealth: self._update_health,
        }
        # What the next snapshot must compute again.
        self._changed = self._namespaces_changed = True
        self._forwarders_changed = False
        self._lacks: frozenset[str] = frozenset()
        self._pods_partial = True  # whether there may be more Pods in the cluster
        self._services_changed: set[str] = set()  # or their endpoints
        self._plans_alone: Mapping[str, Plans] = {}  # of Services in which nothing else has changed
        self._snapshot: Snapshot | None = None
        self._needs_forwarder = bool(self._dns_services.keys) and not options.forwarders
        book = AddressBook(subnets=options.subnets, forwarders=options.forwarders, holders=self._addresses)
        self._empty = Snapshot({}, frozenset(), book, 0)

    @property
    def settings(self) -> str:
        """The options as text. Two stores with equal ones make the same snapshot of the same objects."""
        scope = msgspec.json.encode(self._options.scope, order="deterministic")  # its sets have an order of the process
        return repr((replace(self._options, scope=Scope()), scope))

    @property
    def exposes_all(self) -> bool:
        """Whether every namespace is served."""
        return self._options.scope.exposes_all

    def namespaces(self) -> set[str]:
        """Return all namespaces that exist, served or not."""
        return self._objects.namespaces()

    def exposes(self, namespace: str) -> bool:
        """Whether the Services of a namespace are served, as far as the namespace decides."""
        return self._options.scope.exposes(namespace, self._objects.of(Namespace).get(namespace))

    @property
    def due(self) -> float | None:
        """When to publish even without a change (seconds since 1970): trust in a forwarder ends, or plans are to follow
        the numbers of clients. None for never."""
        return min((due for due in (self._addresses.due, self._balancing.due) if due is not None), default=None)

    @property
    def wanted_labels(self) -> frozenset[str]:
        """The keys of the labels of Pods that balanced Services look at."""
        return self._balancing.wanted_labels

    def plans_of(self, compiled: CompiledService) -> tuple[Plans, Balances]:
        """Return the plans of a Service as it might be, and what becomes of its clients (``Snapshot.balances``).

        Its own pods are those of the Service as it is.
        """
        return self._balancing.plans_of(compiled, self._objects.slices_of(compiled.service.key))

    def balance_findings(self, compiled: CompiledService, balances: Balances) -> Iterator[Finding]:
        """Yield what is wrong in the balance of a Service as it might be; *balances* are those of ``plans_of``."""
        return self._checks.balance_findings(compiled, balances)

    # Taking deltas in

    def apply(self, delta: Delta) -> bool:
        """Apply a delta; return whether an answer or a finding may differ now.

        If not, publishing can wait: only the number of objects may have changed.
        """
        if isinstance(delta, Put):
            return self._put(kind_of(delta.object), delta.object.key, delta.object)
        if isinstance(delta, Drop):
            return self._drop(delta.kind, delta.key)
        lacks = self._lacks | {delta.kind.__name__} if delta.lacks else self._lacks - {delta.kind.__name__}
        waited = self._balancing.know_labels(delta.labels) if delta.kind is Pod else set[str]()
        self._services_changed |= waited
        pods_partial = delta.partial if delta.kind is Pod and Pod in self.kinds else self._pods_partial
        differs = (lacks, pods_partial) != (self._lacks, self._pods_partial) or bool(waited)
        self._lacks, self._pods_partial = lacks, pods_partial
        self._changed |= differs
        return self.replace(delta.kind, delta.objects) or differs

    def replace(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Make *objects* the only objects of *kind*; return whether an answer or a finding may differ now."""
        if kind not in self.kinds:
            return self._skip(kind, objects)
        if kind is Pod and PodLocator not in self.kinds and not self._objects.of(Pod):
            return self._add_pods({pod.key: pod for pod in cast("Iterable[Pod]", objects)})
        visible, listed = False, set[str]()  # a set of all keys at once would stop all threads for 10 ms
        for after in objects:
            key = after.key
            visible |= self._put(kind, key, after)
            listed.add(key)
        for key in [key for key in self._objects.of(kind) if key not in listed]:
            visible |= self._drop(kind, key)
        return visible

    def _add_pods(self, pods: Mapping[str, Pod]) -> bool:
        """Record all pods of a cluster, of which none is known; return whether an answer or a finding may differ."""
        self._objects.add_pods(pods)
        for key, pod in pods.items() if self._balancing.counts else ():
            self._balancing.update_pod(key, None, pod)
        visible = self._options.pods and self._addresses.add_pods(pods)
        if self._options.pods:
            self._mark_subnet_labels(address for pod in pods.values() for address in pod.addresses)
        for key in [key for key in self._objects.pods_depended_on() if key in pods]:
            visible = self._mark_endpoints_of(key) or visible
        if self._options.pod_names:
            for pod in pods.values():
                visible |= self._mark_pod_names(None, pod)
        if pods:
            self._changed = True
            if not self._objects.of(Namespace):  # then any object makes its namespace exist
                self._namespaces_changed = visible = True
        return visible

    def all_objects(self) -> list[Object]:
        """Return all objects, by kind."""
        return [item for kind in self.kinds for item in self._objects.of(kind).values()]

    def objects(self, kind: type[Object]) -> Mapping[str, Any]:
        """Return all objects of a kind by their keys."""
        return self._objects.of(kind)

    def _put(self, kind: type[Object], key: str, after: Any) -> bool:
        if kind not in self.kinds:
            return False
        before = self._objects.of(kind).get(key)
        after = after if kind is Pod else self._sharing(after)
        if before is not None and before == after:
            return False
        return self._record(kind, key, before, after)

    def _drop(self, kind: type[Object], key: str) -> bool:
        before = self._objects.of(kind).get(key)
        return before is not None and self._record(kind, key, before, None)

    def _record(self, kind: type[Object], key: str, before: Any, after: Any) -> bool:
        self._objects.change(kind, key, before, after)
        visible = self._update[kind](key, before, after)
        if before is None or after is None or (kind is Namespace and visible):
            no_namespaces = not self._objects.of(Namespace)  # then any object makes its namespace exist
            if no_namespaces or kind is Service or kind is Namespace:
                self._namespaces_changed = visible = True
        self._changed = True
        return visible

    def _skip(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Record only the namespaces of objects of an unused kind: they may exist by these objects alone."""
        changed = self._objects.skip(kind, objects)
        if changed:
            self._changed = self._namespaces_changed = True
        return changed and not self._objects.of(Namespace)

    def _sharing(self, after: Any) -> Any:
        """Return an object with the cluster among its labels, which shares equal parts with other objects.

        Nothing is left out that would make a difference with other settings: a restart may have others.
        """
        if isinstance(after, Node):
            return replace(after, labels=in_cluster(after.labels, self._locations.cluster))
        if isinstance(after, PodLocator) and after.labels:  # the PodLocators of one node have equal labels
            return replace(after, labels=shared_labels(in_cluster(after.labels, self._locations.cluster)))
        return after

    def _update_namespace(self, key: str, before: Namespace | None, after: Namespace | None) -> bool:
        labels_of = self._options.scope.relevant_labels
        if before is not None and after is not None and labels_of(before) == labels_of(after):
            return False
        self._mark_namespace(key)
        self._imports.mark(self._objects.imports_in(key))
        return True

    def _update_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        """Mark all that a Node's change moves: its zone, its addresses, and the endpoints and pods on it."""
        self._checks.mark_node(before, after)
        if self._addresses.update_node(key, before, after):
            self._balancing.update_node(key)
            if self._options.imports or self._options.nodes_by_name:
                self._nodes.mark((key,))
            for slice_key in self._objects.slices_on(key):
                self._mark_relocated(slice_key, self._objects.of(EndpointSlice)[slice_key].endpoints.addresses_on(key))
            if before is None or after is None:
                self._objects.mark_slices(self._objects.slices_on(key))
            for pod in self._objects.pods_depended_on_at(key):
                self._mark_endpoints_of(pod)
        return True

    def _update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        if before is not None and after is not None and _is_where_it_was(before, after):
            return self._count(key, before, after)
        visible = False
        if self._options.pods:
            visible = self._addresses.update_pod(key, before, after)
            visible = self._mark_endpoints_of(key) or visible
            self._mark_addresses_of_pod(before, after)
        visible = (self._options.pod_names and self._mark_pod_names(before, after)) or visible
        return self._count(key, before, after) or visible

    def _count(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Count a pod as a client where Services are balanced; return whether one may be balanced otherwise now."""
        if not self._balancing.counts:
            return False
        addresses = [address for pod in (before, after) if pod is not None for address in pod.addresses]
        slices = self._objects.of(EndpointSlice)
        keys = {*self._addresses.slices_at(addresses)}
        self._balancing.mark_slices([slices[key] for key in keys if key in slices])
        return self._balancing.update_pod(key, before, after)

    def _update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        carried = self._locations.keys.carried
        visible = self._addresses.update_locator(key, before, after)
        visible = self._mark_endpoints_of(key) or visible
        self._mark_addresses_of_pod(before, after)
        visible = self._balancing.update_locator(key, before, after) or visible
        return visible or self._locations.keys.carried is not carried

    def _update_service(self, key: str, before: Service | None, after: Service | None) -> bool:
        self._services_changed.add(key)
        namespace = cast(Service, after or before).namespace
        trust_changed = self._dns_services.update_service(key, after)
        self._forwarders_changed |= trust_changed
        policies = self._objects.policies_in(namespace)
        if policies:
            self._checks.mark_policies(namespace)
        if (before is not None and before.selects_pods) != (after is not None and after.selects_pods):
            for known in self._objects.slices_of(key):  # they locate clients from now on, or no longer
                self._addresses.mark_addresses(known.endpoints.all_addresses())
        if before is None or after is None:
            self._checks.mark_slices(endpoint_slice.key for endpoint_slice in self._objects.slices_of(key))
            return True
        if trust_changed or policies or replace(before, labels={}) != replace(after, labels={}):
            return True
        if may_choose(before) != may_choose(after) or own_names(before.labels) != own_names(after.labels):
            return True
        return self._options.scope.relevant_labels(before) != self._options.scope.relevant_labels(after)

    def _update_policy(self, key: str, before: ServicePolicy | None, after: ServicePolicy | None) -> bool:
        self._mark_namespace(cast(ServicePolicy, after or before).namespace)
        return True

    def _update_slice(self, key: str, before: EndpointSlice | None, after: EndpointSlice | None) -> bool:
        self._addresses.update_slice(self._objects.known_key(EndpointSlice, key), before)
        self._checks.mark_slices((key,))
        for endpoint_slice in (before, after):
            if endpoint_slice is not None and (service := endpoint_slice.service_key) is not None:
                self._services_changed.add(self._objects.known_key(Service, service))
                self._forwarders_changed |= service in self._dns_services.keys
            if endpoint_slice is not None and endpoint_slice.import_key is not None:
                self._mark_import(endpoint_slice.import_key)
        return True

    def _update_export(self, key: str, before: ServiceExport | None, after: ServiceExport | None) -> bool:
        self._services_changed.add(key)
        self._checks.mark_policies(cast(ServiceExport, after or before).namespace)
        return True

    def _update_health(self, key: str, before: ServiceHealth | None, after: ServiceHealth | None) -> bool:
        self._healths.mark((key,))
        return True

    def _update_import(self, key: str, before: ServiceImport | None, after: ServiceImport | None) -> bool:
        self._mark_import(key)
        self._checks.mark_policies(cast(ServiceImport, after or before).namespace)
        return True

    def _mark_pod_names(self, before: Pod | None, after: Pod | None) -> bool:
        """Note which addresses a pod left or joined; return whether there are any."""
        had, has = (set(pod_addresses(pod)) if pod is not None else set[bytes]() for pod in (before, after))
        self._pod_addresses_changed |= had ^ has
        return had != has

    def _mark_import(self, key: str) -> None:
        if self._options.imports:
            self._imports.mark((key,))
        self._checks.mark_imports((key,))

    def _mark_namespace(self, namespace: str) -> None:
        self._services_changed.update(self._objects.services_in(namespace))
        self._checks.mark_policies(namespace)

    def _mark_endpoints_of(self, pod: str) -> bool:
        """Note what depends on a pod, or on its PodLocator, by its key; return whether something does."""
        slices = [key for key in self._objects.slices_depending_on(pod) if key in self._objects.of(EndpointSlice)]
        for key in slices:
            known = self._objects.of(EndpointSlice)[key]
            endpoints = known.endpoints.of_pod(known.namespace, pod)
            self._mark_relocated(key, chain.from_iterable(endpoint.addresses for endpoint in endpoints))
        self._objects.mark_slices(slices)
        return bool(slices)

    def _mark_addresses_of_pod(self, before: Pod | PodLocator | None, after: Pod | PodLocator | None) -> None:
        """Note what depends on the addresses of a pod, as its Pod or its PodLocator says them."""
        had, has = (((), None) if known is None else (known.addresses, _finished(known)) for known in (before, after))
        if had != has:
            self._objects.mark_slices(self._addresses.slices_at(had[0]))
            self._mark_subnet_labels((*had[0], *has[0]))

    def _mark_subnet_labels(self, addresses: Iterable[bytes]) -> None:
        """Note that each of a pod's addresses may say what the labels of its endpoints' node lack."""
        for key in {*self._addresses.slices_at(addresses)} if self._locations.subnets else ():
            if (known := self._objects.of(EndpointSlice).get(key)) is not None:
                self._mark_relocated(key, known.endpoints.all_addresses())

    def _mark_relocated(self, key: str, addresses: Iterable[bytes]) -> None:
        """Note that the endpoints of a slice may have other locations, those that have *addresses*."""
        service = self._objects.of(EndpointSlice)[key].service_key
        self._checks.mark_slices((key,))
        if service is not None:
            self._services_changed.add(service)
        self._addresses.mark_addresses(addresses)

    # Making snapshots

    def start_from(self, saved: Snapshot) -> Snapshot:
        """Take over a snapshot that another store with the same settings made; return it.

        The next snapshot, of the objects known by then, shares with it what did not change.
        """
        addresses = self._addresses.start_from(book_of(saved), partial(locations_in, saved))
        self._snapshot = replace(saved, addresses=addresses)
        self._pod_addresses_changed.update(address for address, _ in saved.pod_namespaces.items())
        self._services_changed.update(saved.services)
        self._services.values, self._unready.values = saved.services, saved.unready
        self._balancing.balances = saved.balances
        self._exported.values, self._imports.values = saved.exported, saved.imports
        self._nodes.values, self._healths.values = saved.nodes, saved.healths
        for derived in (self._imports, self._nodes, self._healths):
            derived.mark(derived.values)
        return self._snapshot

    def publish(self, now: float, clock: Callable[[], float] | None = None) -> Snapshot:
        """Return the snapshot of all objects; the previous one if nothing differs.

        *now* is the time in seconds since 1970. *clock* is as in ``Balancing.update``. Unchanged Services are the same
        objects as in the previous snapshot. The serial changes only if an answer may differ, not for findings, numbers
        of objects or endpoints that are not ready.
        """
        due = self.due
        if self._snapshot is not None and not self._changed and (due is None or now < due):
            return self._snapshot
        before = self._snapshot or self._empty
        self._objects.follow_pods()
        addresses = self._endpoint_locator.book = self._address_book(book_of(before), now)
        self._mark_unplaced(book_of(before), addresses)
        for of_service in (self._services, self._unready, self._exported):
            of_service.mark(self._services_changed)
        self._checks.mark_services(self._services_changed)
        self._plans_alone = self._balancing.update(now, self._services_changed, clock)
        self._services.mark(self._plans_alone)
        self._services_changed = set()
        changes = self._services.update()
        for derived in (self._unready, self._exported, self._imports, self._nodes, self._healths):
            derived.update()
        self._checks.mark_services(self._balancing.publish(now))
        after = Snapshot(
            services=self._services.values,
            namespaces=self._namespaces() if self._namespaces_changed else before.namespaces,
            addresses=addresses,
            serial=int(now),
            findings=self._checks.all_findings(
                self._services.values, self._balancing.balances, self._lacks, pods_partial=self._pods_partial
            ),
            object_counts={kind.__name__: len(self._objects.of(kind)) for kind in KINDS},
            service_addresses=service_addresses_after(before, changes),
            pod_namespaces=self._pod_namespaces(before.pod_namespaces),
            unready=self._unready.values,
            balances=self._balancing.balances,
            exported=self._exported.values,
            imports=self._imports.values,
            healths=self._healths.values,
            nodes=self._nodes.values,
            federated=before.federated,
            imported=before.imported,
            lacks=self._lacks,
        )
        self._changed = self._namespaces_changed = False
        if self._snapshot is None or answers_differ(before, after):
            self._snapshot = after
        elif (
            before.findings is not after.findings
            or before.unready is not after.unready
            or before.balances is not after.balances
            or before.exported is not after.exported
            or before.imports is not after.imports
            or before.nodes is not after.nodes
            or before.healths is not after.healths
            or before.object_counts != after.object_counts
            or before.lacks != after.lacks
        ):
            self._snapshot = replace(after, serial=before.serial)
        snapshot = self._snapshot
        self._locations.forget_saved()
        return snapshot

    def advice(self) -> Iterator[Finding]:
        """Yield what is worth knowing about the last snapshot although nothing is wrong in it (severity info)."""
        return self._checks.advice(self._snapshot.services if self._snapshot is not None else {})

    def _address_book(self, before: AddressBook, now: float) -> AddressBook:
        dns_slices = None
        if self._forwarders_changed:
            dns_slices = [
                endpoint_slice for key in self._dns_services.keys for endpoint_slice in self._objects.slices_of(key)
            ]
        self._forwarders_changed = False
        after = self._addresses.book_after(before, now, dns_slices, self._checks.set_pod_cidr)
        missing = self._needs_forwarder and not self._addresses.forwarders
        self._checks.set_forwarders(self._dns_services.text if missing else None)
        return after

    def _mark_unplaced(self, before: AddressBook, after: AddressBook) -> None:
        """Note which slices have endpoints that are where their addresses are, if these have other places now."""
        unplaced = self._objects.unplaced_addresses()
        if self._snapshot is None or after is before or not unplaced:  # the first time, all slices are new
            return
        moved = {address for address, _ in after.places.changes_since(before.places) if address in unplaced}
        networks = PrefixTable(dict.fromkeys(after.cidrs.changes_since(before.cidrs), True))
        if networks:
            moved.update(address for address in unplaced if networks.find(address))
        for key in {key for address in moved for key in self._objects.slices_unplaced_at(address)}:
            self._mark_relocated(key, ())

    def _compiled(self, key: str, known: CompiledService | None) -> CompiledService | None:
        if known is not None and key in self._plans_alone:
            return replace(known, plans=self._plans_alone[key])
        service = self._objects.of(Service).get(key)
        if service is None or not self.exposes(service.namespace) or not self._options.scope.serves(service):
            self._balancing.forget_service(key)
            return None
        slices = self._objects.slices_of(key)
        has_hints = any(part.endpoints.hints for part in slices)
        declarations = declarations_of(
            service,
            self._objects.policies_in(service.namespace),
            hinted(joined_endpoints(slices) if has_hints else ()),
            honor_kubernetes=self._options.honor_kubernetes,
        )
        found = compiled(
            service,
            _shared(declarations),
            slices,
            self._endpoint_locator,
            known,
            endpoint_records=self._options.endpoint_records,
            exported=self._is_exported(service),
        )
        if not self._options.balances:
            return found
        plans = self._balancing.update_service(found, known)
        return found if found.plans == plans else replace(found, plans=plans)

    def _unready_of(self, key: str, known: tuple[LocatedEndpoint, ...] | None) -> tuple[LocatedEndpoint, ...] | None:
        """Return the endpoints of a Service that are not ready."""
        service = self._services.values.get(key)
        if service is None or not self._options.endpoint_records:
            return None
        return unready_endpoints(service, self._objects.slices_of(key), self._endpoint_locator, known)

    def _is_exported(self, service: Service) -> bool:
        """Whether the cluster exports a Service; False if nobody wants to know."""
        return self._options.exports and (is_federated(service) or service.key in self._objects.of(ServiceExport))

    def _exported_of(self, key: str, known: ExportedService | None) -> ExportedService | None:
        service = self._services.values.get(key)
        if service is None or not self._is_exported(service.service):
            return None
        policies = self._objects.policies_in(service.service.namespace)
        constraint = federated_constraint(self._objects.of(Service)[key], policies)  # with its labels
        if known is not None and known.compiled is service and known.constraint == constraint:
            return known
        return ExportedService(service, constraint)

    def _imported_of(self, key: str, known: ImportedObjects | None) -> ImportedObjects | None:
        service_import = self._objects.of(ServiceImport).get(key)
        if service_import is None or not self.exposes(service_import.namespace):
            return None
        slices = tuple(self._objects.slices_imported_with(key))
        if known is not None and (known.service_import, known.slices) == (service_import, slices):
            return known
        return ImportedObjects(service_import, slices)

    def _health_of(self, key: str, known: ServiceHealth | None) -> ServiceHealth | None:
        health = self._objects.of(ServiceHealth).get(key)
        return known if health == known else health

    def _pod_namespaces(self, before: AddressMap[tuple[str, ...]]) -> AddressMap[tuple[str, ...]]:
        """Return the namespaces of the running pods that have an address, sorted each."""
        changed, self._pod_addresses_changed = self._pod_addresses_changed, set()
        keys_of = partial(self._objects.pods.keys, "address")
        after = {
            address: tuple(sorted({key.partition("/")[0] for key in keys_of(address)})) or None for address in changed
        }
        return before.with_changes({address: names for address, names in after.items() if names != before.get(address)})

    def _namespaces(self) -> frozenset[str]:
        return frozenset(filter(self.exposes, self._objects.namespaces()))


def _is_where_it_was(before: Pod, after: Pod) -> bool:
    """Whether a pod has another phase or other labels and nothing else, which matters only where pods are counted."""
    return before.finished == after.finished and _place(before) == _place(after)


def _place(pod: Pod) -> tuple[object, ...]:
    return pod.addresses, pod.node, pod.host_network, pod.created


def _finished(known: Pod | PodLocator) -> bool:
    return isinstance(known, Pod) and known.finished


@lru_cache(maxsize=1024)
def _shared(declarations: tuple[Declaration, ...]) -> tuple[Declaration, ...]:
    """Return the one object for what many Services declare."""
    return declarations
