# SPDX-License-Identifier: Apache-2.0

"""One cluster as it changes: takes deltas in, returns immutable snapshots.

A delta only marks what it affects: addresses, Services, pod CIDRs and findings. ``publish`` computes
the marked parts and shares all others with the previous snapshot, so the cost of a change depends
on what it affects. The order of deltas makes no difference to a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from locator.api.deltas import Delta, Drop, Put
from locator.endpoints import addresses_on, all_addresses, any_hints, endpoints_of_pod
from locator.ip import Network
from locator.model import (
    KINDS,
    OWN_CLUSTER,
    EndpointSlice,
    Finding,
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
)
from locator.places.address_book import AddressBook
from locator.places.address_map import PrefixTable
from locator.places.book_builder import BookBuilder
from locator.places.forwarders import DnsServices
from locator.places.locations import Locations
from locator.state.among_clusters import AmongClusters
from locator.state.checks import Checks
from locator.state.compiling import EndpointLocator, compiled, unready_endpoints
from locator.state.joining import joined_endpoints
from locator.state.objects import Objects
from locator.state.pod_addresses import PodAddresses
from locator.state.snapshot import (
    CompiledService,
    Snapshot,
    answers_differ,
    book_of,
    locations_in,
    mapping_after,
    service_addresses_after,
)
from locator.topology.constraint_findings import counts, own_labels
from locator.topology.constraints import Declaration, declarations_of
from locator.topology.hints import hinted
from locator.topology.scope import Scope
from locator.topology.selection import LocatedEndpoint


class Store:
    """The objects of one *cluster*, by its name, and the latest snapshot of them.

    *subnets* gives the labels of networks outside of the cluster. *forwarders* are the networks of trusted forwarders;
    so are the endpoints of *forwarder_services* (``namespace/name``; None: topodns discovers them).
    *pods*, *nodes* and *pod_locators* say which kinds locate addresses; *pod_names* reads Pods in any
    case, to verify pod names. *scope* says which Services are served. Without *endpoint_records*,
    snapshots have no endpoints. *honor_kubernetes* says whether hints and ``trafficDistribution`` are constraints.
    *default_keys* are the default topology keys of DNS zones, which the store only checks. *exports* says whether
    snapshots have what the cluster exports to others, *imports* whether they have what it imports, *nodes_by_name*
    whether they have the locations of nodes, as they also do with *imports*.

    Snapshots never change, so one thread may read a snapshot while another makes the next. Only one
    thread at a time may use the store itself.
    """

    def __init__(
        self,
        *,
        cluster: str = OWN_CLUSTER,
        subnets: Mapping[Network, Mapping[str, str]] | None = None,
        forwarders: Sequence[Network] = (),
        forwarder_services: Iterable[str] | None = (),
        pods: bool = True,
        nodes: bool = True,
        pod_locators: bool = False,
        pod_names: bool = False,
        scope: Scope | None = None,
        endpoint_records: bool = True,
        honor_kubernetes: bool = True,
        default_keys: Mapping[str, Sequence[str]] | None = None,
        exports: bool = False,
        imports: bool = False,
        nodes_by_name: bool = False,
    ) -> None:
        self._dns_services = DnsServices(forwarder_services)
        wanted = {Pod: pods or pod_names, Node: nodes, PodLocator: pod_locators}
        wanted |= {ServiceExport: exports, ServiceImport: imports, ServiceHealth: exports}
        self.kinds: tuple[type[Object], ...] = tuple(kind for kind in KINDS if wanted.get(kind, True))
        """The kinds of objects that the store uses; it skips all others."""
        self._locate_by_pods, self._pod_names = pods, pod_names
        self._scope = scope or Scope()
        self._endpoint_records, self._honor_kubernetes = endpoint_records, honor_kubernetes
        self._objects = Objects(pods_locate=pods, locators=pod_locators, slices_by_import=imports)
        self._pod_addresses = PodAddresses()
        located_by = self._objects.of(Pod) if pods else {}
        self._locations = Locations(cluster, located_by, subnets)
        known_slices, known_services = self._objects.of(EndpointSlice), self._objects.of(Service)
        self._addresses = BookBuilder(self._locations, known_slices, known_services, subnets or ())
        self._among_clusters = AmongClusters(
            *(self._objects, self._locations, self.exposes),
            exports=exports, imports=imports, nodes_by_name=nodes_by_name,
        )  # fmt: skip
        self._endpoint_locator = EndpointLocator(self._locations)
        self._checks = Checks(
            self._objects, self._locations, self._endpoint_locator.locate, self.kinds, default_keys or {}
        )
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
        self._services_changed: set[str] = set()
        self._snapshot: Snapshot | None = None
        self.settings = repr((
            *(cluster, subnets, sorted(map(str, forwarders)), forwarder_services, self.kinds, pods, pod_names),
            msgspec.json.encode(self._scope, order="deterministic"),  # the order of its sets differs between processes
            *(endpoint_records, honor_kubernetes, default_keys, exports, imports, nodes_by_name),
        ))  # fmt: skip
        """Two stores with equal settings make the same snapshot of the same objects."""
        self._needs_forwarder = bool(self._dns_services.keys) and not forwarders
        book = AddressBook(subnets=subnets, forwarders=forwarders, holders=self._addresses)
        self._empty = Snapshot({}, frozenset(), book, 0)

    @property
    def exposes_all(self) -> bool:
        """Whether every namespace is served."""
        return self._scope.exposes_all

    def namespaces(self) -> set[str]:
        """Return all namespaces that exist, served or not."""
        return self._objects.namespaces()

    def exposes(self, namespace: str) -> bool:
        """Whether the Services of a namespace are served, as far as the namespace decides."""
        return self._scope.exposes(namespace, self._objects.of(Namespace).get(namespace))

    @property
    def due(self) -> float | None:
        """When to publish even without a change (seconds since 1970): trust in a forwarder ends. None for never."""
        return self._addresses.due

    # Taking deltas in

    def apply(self, delta: Delta) -> bool:
        """Apply a delta; return whether an answer or a finding may differ now.

        If not, publishing can wait: only the number of objects may have changed.
        """
        if isinstance(delta, Put):
            return self._put(type(delta.object), delta.object.key, delta.object)
        if isinstance(delta, Drop):
            return self._drop(delta.kind, delta.key)
        lacks = self._lacks | {delta.kind.__name__} if delta.lacks else self._lacks - {delta.kind.__name__}
        pods_partial = delta.partial if delta.kind is Pod and Pod in self.kinds else self._pods_partial
        differs = (lacks, pods_partial) != (self._lacks, self._pods_partial)
        self._lacks, self._pods_partial = lacks, pods_partial
        self._changed |= differs
        return self.replace(delta.kind, delta.objects) or differs

    def replace(self, kind: type[Object], objects: Iterable[Object]) -> bool:
        """Make *objects* the only objects of *kind*; return the same as ``apply``."""
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
        """Record all pods of a cluster, of which none is known; return the same as ``apply``."""
        self._objects.add_pods(pods)
        visible = self._locate_by_pods and self._addresses.add_pods(pods)
        if self._locate_by_pods:
            self._mark_subnet_labels(address for pod in pods.values() for address in pod.addresses)
        for key in [key for key in self._objects.pods_depended_on() if key in pods]:
            visible = self._mark_endpoints_of(key) or visible
        if self._pod_names:
            for key, pod in pods.items():
                visible |= self._pod_addresses.update(key, None, pod)
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
            labels = in_cluster(after.labels, self._locations.cluster)
            return replace(after, labels=self._locations.shared(after.node, labels).labels)
        return after

    def _update_namespace(self, key: str, before: Namespace | None, after: Namespace | None) -> bool:
        labels_of = self._scope.relevant_labels
        if before is not None and after is not None and labels_of(before) == labels_of(after):
            return False
        self._mark_namespace(key)
        self._among_clusters.mark_namespace(key)
        return True

    def _update_node(self, key: str, before: Node | None, after: Node | None) -> bool:
        self._checks.mark_node(before, after)
        if self._addresses.update_node(key, before, after):
            self._among_clusters.mark_nodes((key,))
            for slice_key in self._objects.slices_on(key):
                self._mark_relocated(slice_key, addresses_on(self._objects.of(EndpointSlice)[slice_key].endpoints, key))
            if before is None or after is None:
                self._objects.mark_slices(self._objects.slices_on(key))
            for pod in self._objects.pods_depended_on_at(key):
                self._mark_endpoints_of(pod)
        return True

    def _update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        visible = False
        if self._locate_by_pods:
            visible = self._addresses.update_pod(key, before, after)
            visible = self._mark_endpoints_of(key) or visible
            self._mark_addresses_of_pod(before, after)
        return (self._pod_names and self._pod_addresses.update(key, before, after)) or visible

    def _update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        carried = self._locations.keys.carried
        visible = self._addresses.update_locator(key, before, after)
        visible = self._mark_endpoints_of(key) or visible
        self._mark_addresses_of_pod(before, after)
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
                self._addresses.mark_addresses(all_addresses(known.endpoints))
        if before is None or after is None:
            self._checks.mark_slices(endpoint_slice.key for endpoint_slice in self._objects.slices_of(key))
            return True
        if trust_changed or policies or replace(before, labels={}) != replace(after, labels={}):
            return True
        if counts(before) != counts(after) or own_labels(before) != own_labels(after):
            return True
        return self._scope.relevant_labels(before) != self._scope.relevant_labels(after)

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
        self._among_clusters.mark_healths((key,))
        return True

    def _update_import(self, key: str, before: ServiceImport | None, after: ServiceImport | None) -> bool:
        self._mark_import(key)
        self._checks.mark_policies(cast(ServiceImport, after or before).namespace)
        return True

    def _mark_import(self, key: str) -> None:
        self._among_clusters.mark_imports((key,))
        self._checks.mark_imports((key,))

    def _mark_namespace(self, namespace: str) -> None:
        self._services_changed.update(self._objects.services_in(namespace))
        self._checks.mark_policies(namespace)

    def _mark_endpoints_of(self, pod: str) -> bool:
        """Note what depends on a pod, or on its PodLocator, by its key; return whether something does."""
        slices = [key for key in self._objects.slices_depending_on(pod) if key in self._objects.of(EndpointSlice)]
        for key in slices:
            known = self._objects.of(EndpointSlice)[key]
            endpoints = endpoints_of_pod(known.endpoints, known.namespace, pod)
            self._mark_relocated(key, all_addresses(tuple(endpoints)))
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
                self._mark_relocated(key, all_addresses(known.endpoints))

    def _mark_relocated(self, key: str, addresses: Iterable[bytes]) -> None:
        """Note that the endpoints of a slice may have other locations, those that have *addresses*."""
        service = self._objects.of(EndpointSlice)[key].service_key
        self._checks.mark_slices((key,))
        if service is not None:
            self._services_changed.add(service)
        self._addresses.mark_addresses(addresses)

    # Making snapshots

    def start_from(self, kept: Snapshot) -> Snapshot:
        """Take over a snapshot that another store with the same settings made; return it.

        The next snapshot, of the objects known by then, shares with it what did not change.
        """
        addresses = self._addresses.start_from(book_of(kept), partial(locations_in, kept))
        self._snapshot = replace(kept, addresses=addresses)
        self._pod_addresses.start_from(kept.pod_namespaces)
        self._services_changed.update(kept.services)
        self._among_clusters.mark_imports(kept.imports)
        self._among_clusters.mark_nodes(kept.nodes)
        self._among_clusters.mark_healths(kept.healths)
        return self._snapshot

    def publish(self, now: float) -> Snapshot:
        """Return the snapshot of all objects; the previous one if nothing differs.

        *now* is the time in seconds since 1970. Unchanged Services are the same objects as in the previous
        snapshot. The serial changes only if an answer may differ, not for findings, numbers of objects or endpoints
        that are not ready.
        """
        due = self.due
        if self._snapshot is not None and not self._changed and (due is None or now < due):
            return self._snapshot
        for part in (self._objects, self._addresses, self._pod_addresses):
            part.pack()
        before = self._snapshot or self._empty
        self._objects.follow_pods(self._addresses.pods_at)
        addresses = self._endpoint_locator.book = self._address_book(book_of(before), now)
        self._mark_unplaced(book_of(before), addresses)
        changes = self._compiled_changes(before.services)
        services = mapping_after(before.services, changes)
        unready = self._unready_after(before.unready, services)
        exported = self._among_clusters.exported_after(before.exported, services, self._services_changed)
        self._checks.mark_services(self._services_changed)
        self._services_changed = set()
        after = Snapshot(
            services=services,
            namespaces=self._namespaces() if self._namespaces_changed else before.namespaces,
            addresses=addresses,
            serial=int(now),
            findings=self._checks.all_findings(services, self._lacks, pods_partial=self._pods_partial),
            object_counts={kind.__name__: len(self._objects.of(kind)) for kind in KINDS},
            service_addresses=service_addresses_after(before, changes),
            pod_namespaces=self._pod_addresses.namespaces_after(before.pod_namespaces),
            unready=unready,
            exported=exported,
            imports=self._among_clusters.imports_after(before.imports),
            healths=self._among_clusters.healths_after(before.healths),
            nodes=self._among_clusters.nodes_after(before.nodes),
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
            or before.exported is not after.exported
            or before.imports is not after.imports
            or before.nodes is not after.nodes
            or before.healths is not after.healths
            or before.object_counts != after.object_counts
            or before.lacks != after.lacks
        ):
            self._snapshot = replace(after, serial=before.serial)
        snapshot = self._snapshot
        self._locations.forget_unused(lambda: set(map(id, locations_in(snapshot))))
        self._locations.forget_kept()
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

    def _compiled_changes(self, before: Mapping[str, CompiledService]) -> dict[str, CompiledService | None]:
        """Return the Services that differ from *before*, None for one that is deleted or no longer served."""
        changes: dict[str, CompiledService | None] = {}
        for key in self._services_changed:
            known = before.get(key)
            after = self._compiled(key, known)
            if after is not known:
                changes[key] = after
        return changes

    def _unready_after(
        self, before: Mapping[str, tuple[LocatedEndpoint, ...]], services: Mapping[str, CompiledService]
    ) -> Mapping[str, tuple[LocatedEndpoint, ...]]:
        """Return the endpoints that are not ready, by Service; *before* itself if nothing differs."""
        if not self._endpoint_records:
            return before
        changes = {}
        for key in self._services_changed:
            known = before.get(key, ())
            slices = self._objects.slices_of(key)
            after = unready_endpoints(services.get(key), slices, self._endpoint_locator, known)
            if after is not known:
                changes[key] = after or None
        return mapping_after(before, changes)

    def _compiled(self, key: str, before: CompiledService | None) -> CompiledService | None:
        service = self._objects.of(Service).get(key)
        if service is None or not self.exposes(service.namespace) or not self._scope.serves(service):
            return None
        slices = self._objects.slices_of(key)
        has_hints = any(any_hints(known.endpoints) for known in slices)
        declarations = declarations_of(
            service,
            self._objects.policies_in(service.namespace),
            hinted(joined_endpoints(slices) if has_hints else ()),
            honor_kubernetes=self._honor_kubernetes,
        )
        return compiled(
            service,
            _shared(declarations),
            slices,
            self._endpoint_locator,
            before,
            endpoint_records=self._endpoint_records,
            exported=self._among_clusters.is_exported(service),
        )

    def _namespaces(self) -> frozenset[str]:
        return frozenset(filter(self.exposes, self._objects.namespaces()))


def _finished(known: Pod | PodLocator) -> bool:
    return isinstance(known, Pod) and known.finished


@lru_cache(maxsize=1024)
def _shared(declarations: tuple[Declaration, ...]) -> tuple[Declaration, ...]:
    """Return the one object for what many Services declare."""
    return declarations
