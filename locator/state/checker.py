# SPDX-License-Identifier: Apache-2.0

"""Checks the objects of one cluster for findings, again where something changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any

from msgspec.structs import replace

from locator.distribution.instructions import instruction_findings
from locator.findings import ClusterCode
from locator.index import Relation
from locator.ip import Network, address_text
from locator.model import (
    INFO,
    REGION,
    ZONE,
    Endpoint,
    EndpointSlice,
    Finding,
    Location,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    ServiceExport,
    ServiceImport,
    ServicePolicy,
    labels_of,
)
from locator.places.locations import Locations
from locator.state.joining import less, living_addresses
from locator.state.object_checks import (
    asking_by_pods,
    endpoint_without_location,
    export_without_service,
    import_findings,
    import_without_cluster,
    is_located,
    kind_missing,
    name_without_address,
    no_trusted_forwarder,
    node_without_zone,
    slice_left_behind,
    slice_without_import,
    slice_without_service,
    twin_without_constraint,
    zone_in_two_regions,
)
from locator.state.objects import Objects
from locator.state.snapshot import CompiledService
from locator.state.split_zones import SplitZones
from locator.topology import balance_checks
from locator.topology.annotations import CLIENTS, FEDERATED, MAX_OVERLOAD
from locator.topology.balance import Balance
from locator.topology.constraints import has_unmatched, silence_of, zone_default
from locator.topology.hints import hints_cannot_say, incomplete_hints, said_by_hints
from locator.topology.selection import Hinted
from locator.topology.service_checks import (
    CarriedKeys,
    advice,
    chooses,
    default_key_findings,
    policy_chooses,
    policy_findings,
    policy_key_findings,
    service_findings,
    service_key_findings,
)

Services = Mapping[str, CompiledService]  # the served ones, by key

# By kind, what else is found only because a dump lacks it. ``Checker`` leaves these out; the missing kind is said once.
FOLLOWING = {
    EndpointSlice.__name__: (ClusterCode.NoTrustedForwarder, ClusterCode.ServiceImportWithoutSlices),
    Node.__name__: (ClusterCode.KeyOnNoNode, ClusterCode.KeyOnNoEndpoint, ClusterCode.EndpointWithoutLocation),
    Service.__name__: (
        *(ClusterCode.SliceWithoutService, ClusterCode.PolicySelectsNothing, ClusterCode.ExportWithoutService),
        ClusterCode.NoTrustedForwarder,
    ),
}


class FindingOrder(IntEnum):
    """The subjects of findings, in the order in which topodns reports them."""

    SERVICE = 0
    IMPORT = 1
    POLICIES = 2
    NODE = 3
    ZONE = 4
    SLICE = 5
    POD_CIDR = 6
    FORWARDERS = 7
    SETTINGS = 8
    MISSING = 9


class Findings:
    """The findings of one cluster, by their subject, and by a key that sorts the findings of one subject."""

    def __init__(self) -> None:
        self._by_subject: tuple[dict[Any, tuple[Finding, ...]], ...] = tuple({} for _ in FindingOrder)
        self._all: tuple[Finding, ...] | None = ()
        self._left_out: frozenset[str] = frozenset()

    def set(self, subject: FindingOrder, key: object, findings: Iterable[Finding]) -> None:
        """Replace the findings with one *key*; none remove it."""
        by_key, after = self._by_subject[subject], tuple(findings)
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
            found = (finding for by_key in self._by_subject for key in sorted(by_key) for finding in by_key[key])
            self._all, self._left_out = tuple(row for row in found if row.code not in leave_out), leave_out
        return self._all


class Checker:
    """The findings of one cluster: a store that uses *kinds*. *default_keys* are the topology keys of DNS zones.

    *locate* returns the location of an endpoint of a slice in a namespace. *counted* is the kind of object that counts
    as a client where Services are balanced.

    Findings about policies and slices include those of namespaces that are not served.
    """

    def __init__(
        self,
        objects: Objects,
        locations: Locations,
        locate: Callable[[str, Endpoint], Location],
        kinds: Collection[type[Object]],
        default_keys: Mapping[str, Sequence[str]],
        counted: type[Object],
    ) -> None:
        self._objects, self._locations, self._default_keys = objects, locations, default_keys
        self._locate, self._counted = locate, counted
        self._reads_nodes, self._reads_locators = Node in kinds, PodLocator in kinds
        self._reads_imports = ServiceImport in kinds
        self._findings = Findings()
        self._following: frozenset[str] = frozenset()  # codes of what follows from kinds that are missing in a dump
        self._services: set[str] = set()  # to check again, by key
        self._slices: set[str] = set()  # likewise
        self._imports: set[str] = set()  # likewise
        self._mirrored: set[str] = set()  # slices that the mirroring controller keeps
        self._zones: set[str] = set()  # whose nodes are to check again; "" stands for none
        self._namespaces: set[str] = set()  # with policies to check again
        self._constrained: set[str] = set()  # headless Services whose endpoints a constraint chooses
        self._pods_partial = True
        self._balances: Mapping[str, Sequence[Balance]] = {}
        self._running: balance_checks.Running | None = None
        self._carried = CarriedKeys()
        self._keys_in_effect: Relation[str, str] = Relation()  # of each Service
        self._split_zones = SplitZones(objects)

    def mark_services(self, keys: Iterable[str]) -> None:
        """Note that the findings of some Services may change."""
        self._services.update(keys)

    def mark_slices(self, keys: Iterable[str]) -> None:
        """Note that the findings of some slices may change."""
        self._slices.update(keys)

    def mark_imports(self, keys: Iterable[str]) -> None:
        """Note that the findings of some ServiceImports, of their slices and their namesakes may change."""
        if self._reads_imports:
            self._imports.update(keys)

    def mark_policies(self, namespace: str) -> None:
        """Note that the findings of the policies of a namespace may change."""
        self._namespaces.add(namespace)

    def mark_node(self, before: Node | None, after: Node | None) -> None:
        """Note that the findings of the zone that a Node was in may change, and those of its zone now."""
        self._zones.update(node.labels.get(ZONE, "") for node in (before, after) if node is not None)

    def set_pod_cidr(self, network: Network, found: tuple[Finding, ...]) -> None:
        """Replace the findings of a pod CIDR."""
        self._findings.set(FindingOrder.POD_CIDR, (-network.length, network.address), found)  # the longest prefix first

    def set_forwarders(self, missing: str | None) -> None:
        """Report that no forwarder is known; *missing* describes the DNS Services, None if there is no problem."""
        self._findings.set(FindingOrder.FORWARDERS, "", [no_trusted_forwarder(missing)] if missing is not None else ())

    def all_findings(
        self,
        services: Services,
        balances: Mapping[str, Sequence[Balance]],
        lacks: frozenset[str],
        *,
        pods_partial: bool,
    ) -> tuple[Finding, ...]:
        """Return all findings in order, after the due checks; the same object until one changes.

        *lacks* names the kinds about which a dump says nothing: no finding follows from that but that they are missing.
        If *pods_partial*, those of a namespace without any may be missing.
        """
        self._pods_partial = pods_partial
        self._balances, self._running = balances, None
        self._follow_keys()
        if self._zones:
            self._check_zones()
            self._services |= self._split_zones.renew()
        for key in self._imports:
            self._findings.set(FindingOrder.IMPORT, key, self._import_findings(key))
            self._services.add(key)
            self.mark_slices(endpoint_slice.key for endpoint_slice in self._objects.slices_imported_with(key))
        for key in self._services:
            self._check_service(key, services.get(key))
            self._slices.update(known.key for known in self._objects.slices_of(key) if known.endpoints.terminating)
        self._slices |= self._mirrored  # few, if any; and nearly all of Services without a selector
        for key in self._slices:
            endpoint_slice = self._objects.of(EndpointSlice).get(key)
            is_mirrored = endpoint_slice is not None and endpoint_slice.mirrored
            (self._mirrored.add if is_mirrored else self._mirrored.discard)(key)
            found = self._slice_findings(endpoint_slice) if endpoint_slice is not None else ()
            self._findings.set(FindingOrder.SLICE, key, found)
        for namespace in self._namespaces:
            self._findings.set(FindingOrder.POLICIES, namespace, self._policy_findings(namespace, services))
        self._services, self._slices, self._imports, self._namespaces, self._zones = set(), set(), set(), set(), set()
        missing = self._missing(lacks)
        self._findings.set(FindingOrder.MISSING, "", map(kind_missing, missing))
        self._following = frozenset(code.name for kind in missing for code in FOLLOWING[kind])
        return self._findings.all(self._following)

    def _check_zones(self) -> None:
        """Replace the findings of the zones whose nodes have changed, and those of the nodes without a zone."""
        nodes, has_zones = self._objects.of(Node), bool(self._objects.zones() - {""})
        zoneless = sorted(self._objects.nodes_in("")) if has_zones else ()
        self._findings.set(FindingOrder.NODE, "", map(node_without_zone, zoneless))
        for zone in self._zones - {""}:
            regions: dict[str, list[str]] = {}
            for name in self._objects.nodes_in(zone):
                if (region := nodes[name].labels.get(REGION)) is not None:
                    regions.setdefault(region, []).append(name)
            self._findings.set(FindingOrder.ZONE, zone, zone_in_two_regions(zone, regions))

    def _missing(self, lacks: frozenset[str]) -> list[str]:
        """Return the kinds of those that a dump *lacks* which change what it means, by their names."""
        services, slices = self._objects.of(Service), self._objects.of(EndpointSlice)
        wanted = {
            EndpointSlice: any(service.alias is None for service in services.values()),
            Node: self._reads_nodes and bool(services or slices or self._objects.of(Pod)),
            Service: any(known.imported_service is None for known in slices.values()),
        }
        return [kind.__name__ for kind, is_wanted in wanted.items() if kind.__name__ in lacks and is_wanted]

    def advice(self, services: Services) -> Iterator[Finding]:
        """Yield what is worth knowing about *services* although nothing is wrong; computed on each call."""
        in_order = sorted(services.items())
        # A default is a constraint of all names in its zone.
        by_pods = {} if self._default_keys else asking_by_pods(compiled for _, compiled in in_order)
        for key, compiled in in_order:
            service = self._as_exported(self._objects.of(Service)[key])
            advised = advice(service, compiled.declarations, compiled.endpoints, self._carried)
            balances = self._balances.get(key, ())
            balanced = (one for one in self._balance_findings(service, compiled, balances) if one.severity == INFO)
            for finding in chain(
                advised, balanced, twin_without_constraint(compiled, by_pods), name_without_address(service)
            ):
                if finding.code not in self._following:
                    yield finding
        for _, service_import in sorted(self._objects.of(ServiceImport).items()):
            yield from name_without_address(service_import)

    def _left_behind(self, endpoint_slice: EndpointSlice) -> tuple[Finding, ...]:
        """Return a finding if the mirroring controller has left a slice of its own behind, as far as Pods are known."""
        key, pods = endpoint_slice.service_key or "", self._objects.of(Pod)
        service = self._objects.of(Service).get(key)
        if service is None or not service.selects_pods:
            return ()
        managed = [one for one in self._objects.slices_of(key) if one.managed]
        found = tuple(slice_left_behind(endpoint_slice, pods, managed))
        if found and self._pods_partial and all(pod.namespace != endpoint_slice.namespace for pod in pods.values()):
            return ()  # a dump may have the Pods of some namespaces alone
        return found

    def _follow_keys(self) -> None:
        """Mark what names a topology key about which the nodes say something else than before."""
        if self._locations.keys.carried is self._carried.keys:
            return
        before, self._carried = self._carried, CarriedKeys(self._locations.keys.carried)
        for key in self._keys_in_effect.values():
            if before.nearest(key) != self._carried.nearest(key):
                self._services.update(self._keys_in_effect.keys_of(key))
        for policy in self._objects.of(ServicePolicy).values():
            if before.nearest(policy.topology_key) != self._carried.nearest(policy.topology_key):
                self._namespaces.add(policy.namespace)
        self._findings.set(FindingOrder.SETTINGS, "", default_key_findings(self._default_keys, self._carried))

    def _check_service(self, key: str, compiled: CompiledService | None) -> None:
        found: list[Finding] = []
        asked: tuple[str, ...] = ()
        hinted: tuple[str, ...] = ()
        constrained = False
        if compiled is not None:
            service = self._as_exported(self._objects.of(Service)[key])  # with its labels
            declaration = compiled.declaration
            found += service_findings(service, compiled.declarations)
            found += instruction_findings(service)
            balances = self._balances.get(key, ())
            found += (one for one in self._balance_findings(service, compiled, balances) if one.severity != INFO)
            if has_unmatched(compiled.declarations):
                found += incomplete_hints(service, compiled.declarations, compiled.endpoints)
            if declaration is not None and chooses(service, declaration):
                found += service_key_findings(service, declaration, compiled.locations, self._carried)
                asked, constrained = declaration.constraint.keys, service.headless
                if said_by_hints(service, declaration):
                    hinted = asked
                    found += hints_cannot_say(service, declaration, self._split_zones.of_key)
        export = self._objects.of(ServiceExport).get(key)
        if export is not None and key not in self._objects.of(Service):
            found.append(export_without_service(export))
        self._findings.set(FindingOrder.SERVICE, key, found)
        self._keys_in_effect.set(key, asked)
        self._split_zones.ask(key, hinted)
        if constrained != (key in self._constrained):
            (self._constrained.add if constrained else self._constrained.discard)(key)
            self.mark_slices(endpoint_slice.key for endpoint_slice in self._objects.slices_of(key))

    def balance_findings(self, compiled: CompiledService, balances: Sequence[Balance]) -> Iterator[Finding]:
        """Yield what is wrong in the balance of a Service that exists, as it might be; *balances* as in a snapshot."""
        known = self._objects.of(Service)[compiled.service.key]  # with its labels
        service = self._as_exported(replace(known, annotations=compiled.service.annotations))
        yield from self._balance_findings(service, compiled, balances)

    def _balance_findings(
        self, service: Service, compiled: CompiledService, balances: Sequence[Balance]
    ) -> Iterator[Finding]:
        if service.annotations.keys().isdisjoint((MAX_OVERLOAD, CLIENTS)):
            return
        declaration = compiled.declaration
        if declaration is None and self._default_keys:
            declaration = zone_default(service, tuple(next(iter(self._default_keys.values()))))
        hinted = declaration is not None and isinstance(declaration.constraint, Hinted)
        endpoints = compiled.endpoints if hinted else ()  # nothing else depends on them
        yield from balance_checks.without_effect(service, declaration, endpoints, self._counted)
        by_numbers = (
            balance_checks.by_numbers(
                service, balance, self._counted, _named(compiled, balance.exceeded), self._running_pods
            )
            for balance in balances
        )
        yield from dict.fromkeys(chain.from_iterable(by_numbers))  # the same may be wrong in several DNS zones

    def _running_pods(self) -> balance_checks.Running:
        """Return the pods that run; those that are alike once, found out once for a publication."""
        if self._running is None:
            running = {}
            for pod in self._objects.of(self._counted).values():
                if isinstance(pod, PodLocator) or (isinstance(pod, Pod) and pod.asks):
                    labels = labels_of(pod)
                    running[pod.namespace, *sorted(labels.items())] = pod.namespace, labels
            self._running = [*running.values()]
        return self._running

    def _as_exported(self, service: Service) -> Service:
        """Return a Service that counts as exported if its constraint matters beyond its own name.

        A ServiceExport does what the annotation does, and a headless ServiceImport may take the constraint over.
        """
        imported = self._objects.of(ServiceImport).get(service.key)
        if service.key not in self._objects.of(ServiceExport) and (imported is None or not imported.headless):
            return service
        return replace(service, annotations={**service.annotations, FEDERATED: "true"})

    def _policy_findings(self, namespace: str, services: Services) -> Iterator[Finding]:
        services_there = sorted(self._objects.services_in(namespace))
        known = [self._as_exported(self._objects.of(Service)[key]) for key in services_there]
        for policy in self._objects.policies_in(namespace):
            if silence_of(policy) is not None:
                continue
            selected = [service for service in known if policy.selector.matches(service.labels)]
            yield from policy_findings(policy, selected)
            yield from self._policy_key_findings(policy, selected, services)

    def _policy_key_findings(
        self, policy: ServicePolicy, selected: Iterable[Service], services: Services
    ) -> Iterator[Finding]:
        """Yield a finding if no node carries the key of a policy that decides, validly, about a served Service."""
        decided = [
            compiled
            for service in selected
            if (compiled := services.get(service.key)) is not None and policy_chooses(service, compiled.declaration)
        ]
        if decided:
            locations = (location for compiled in decided for location in compiled.locations)
            yield from policy_key_findings(policy, locations, self._carried)

    def _import_findings(self, key: str) -> Iterator[Finding]:
        service_import = self._objects.of(ServiceImport).get(key)
        if service_import is not None:
            has_slices = bool(self._objects.slices_imported_with(key))
            yield from import_findings(service_import, has_slices=has_slices)

    def _slice_findings(self, endpoint_slice: EndpointSlice) -> Iterator[Finding]:
        service, imported = endpoint_slice.service_key or "", endpoint_slice.import_key
        if endpoint_slice.mirrored:
            yield from self._left_behind(endpoint_slice)
        if imported is None:
            yield from slice_without_service(endpoint_slice, service_known=service in self._objects.of(Service))
        elif (service_import := self._objects.of(ServiceImport).get(imported)) is not None:
            yield from import_without_cluster(endpoint_slice, service_import)
        elif self._reads_imports and service not in self._objects.of(Service):
            yield slice_without_import(endpoint_slice)
        if service not in self._constrained or not (self._reads_nodes or self._reads_locators):
            return
        nodes = self._objects.of(Node)
        if nodes.keys() >= set(endpoint_slice.endpoints.nodes):
            return
        living = living_addresses([known.endpoints for known in self._objects.slices_of(service)])
        unlocated = [
            position
            for position, endpoint in enumerate(endpoint_slice.endpoints)
            if endpoint.node not in nodes
            and (left := less(endpoint, living)) is not None
            and not self._is_located(endpoint_slice.namespace, left)
        ]
        yield from endpoint_without_location(endpoint_slice, unlocated, nodes_known=self._reads_nodes)

    def _is_located(self, namespace: str, endpoint: Endpoint) -> bool:
        """Whether an endpoint has labels of its own, or is on a node that an object tells of, with whatever labels."""
        location = self._locate(namespace, endpoint)
        on_node = location.node in self._objects.of(Node) or self._locations.node_of_endpoint(namespace, endpoint)
        return bool(on_node) or is_located(location)


def _named(compiled: CompiledService, positions: Iterable[int]) -> list[str]:
    """Return the names of some of a Service's ready endpoints: their pods, or their addresses."""
    endpoints = [compiled.endpoints[position].endpoint for position in positions]
    return [endpoint.pod or address_text(endpoint.addresses[0]) for endpoint in endpoints]
