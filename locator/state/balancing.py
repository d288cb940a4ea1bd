# SPDX-License-Identifier: Apache-2.0

"""Keeps the plans of balanced Services up to date: counts who asks, and plans anew what that may change.

While no Service asks to be balanced, nothing is counted. A Service whose endpoints change gets its plan at once. If
only the numbers of clients change, plans follow a second later, and in large clusters a few at a time: they would
otherwise take the time that answers need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from msgspec import Struct

from locator.endpoints import Endpoint
from locator.index import Index, Relation
from locator.labels import ClientSelector
from locator.model import EndpointSlice, Location, Node, Object, Pod, PodLocator, Service, labels_of
from locator.places.locations import Locations
from locator.state.crowds import Crowds
from locator.state.derived import mapping_after
from locator.state.joining import joined_endpoints
from locator.state.objects import Objects
from locator.state.snapshot import CompiledService
from locator.topology.annotations import asking, max_overload
from locator.topology.balance import Balance, Balanced, cell_keys
from locator.topology.balance_checks import unheard
from locator.topology.cells import CellTable
from locator.topology.constraints import Declaration, in_effect, zone_default
from locator.topology.plan import Layout, layout_of, plan
from locator.topology.selection import Hinted, LocatedEndpoint, TieredConstraint

COUNTS_SECONDS = 1.0  # between two times at which plans follow the numbers of clients
PART_SECONDS = 0.1  # between two parts of the Services that follow
PART_WORK = 0.005  # seconds for which a part is worked on: a twentieth of a core at most

# Clients for whom no Service asks any more are forgotten after some time, or if there are more such than these: a
# Service that asks again and again would have all pods counted each time.
FORGET_SECONDS = 60.0
MAX_LEFT = 8

Clients = tuple[ClientSelector, ...] | None  # who asks; None for everybody who is no endpoint of the Service
Plans = tuple[Balanced, ...]
Balances = tuple[Balance, ...]

_SOMEWHERE = Endpoint(())  # in the place of endpoints of which only the location matters


class Asked(NamedTuple):
    """What a balanced Service asks for: its constraints, one unless it leaves them to DNS zones."""

    max_overload: float
    clients: Clients
    constraints: tuple[TieredConstraint, ...]


class _Service(Struct, gc=False):
    """A balanced Service, as it was when its layouts were made."""

    key: str
    compiled: CompiledService
    asked: Asked
    layouts: tuple[Layout, ...]
    plans: Plans = ()


class _Counted:
    """How many of some clients are on each node, and by cell, for each list of keys that a Service asked for."""

    def __init__(self, *, complete: bool) -> None:
        self.complete = complete  # with the nodes on which none of them is: there may be thousands of such lists
        self.numbers: dict[Hashable, int] = {}
        self.tables: dict[tuple[str, ...], CellTable] = {}
        self.changed: set[Hashable] = set()  # nodes, since the tables were brought up to date
        self.is_ahead = False  # of the plans

    def add(self, node: Hashable, clients: int) -> None:
        self.numbers[node] = self.numbers.get(node, 0) + clients
        if not self.numbers[node]:
            del self.numbers[node]
        self.changed.add(node)


class Balancing:
    """The plans of the balanced Services of one cluster.

    *counted* is the kind of object that is a client: Pod, PodLocator, or Node. *by_address* finds Pods or PodLocators.
    *default_keys* are the topology keys of DNS zones.
    """

    def __init__(
        self,
        objects: Objects,
        locations: Locations,
        counted: type[Object],
        by_address: Index[str, Any],
        default_keys: Mapping[str, Sequence[str]],
    ) -> None:
        self._objects, self._locations, self._counted_kind = objects, locations, counted
        self._by_address = by_address
        self._default_keys = tuple(dict.fromkeys(map(tuple, default_keys.values())))
        self._labels: frozenset[str] = frozenset()  # the keys of those that the known Pods have
        self._unknown: dict[str, Clients] = {}  # Services that look at other labels, and for whom
        self.balances: Mapping[str, Balances] = {}
        """What becomes of the clients of each Service, one for each of its constraints, as of the last ``update``."""
        self._counted: dict[Clients, _Counted] = {}
        self._crowds: Crowds[_Counted] | None = None  # unless everybody is counted alone
        self._left = False  # whether some Service asks no longer, or for others
        self._services: dict[str, _Service] = {}
        self._changes: dict[str, Balances | None] = {}
        self._named: Relation[str, str] = Relation()  # of each Service, pods that its endpoints name by mistake
        self._marked: set[str] = set()  # Services whose own pods may be others
        self._waiting: list[str] = []  # Services whose plans are to follow the numbers
        self._began = self._continued = 0.0  # when they last began to, and went on
        self._forgot = 0.0  # when clients were last forgotten
        self._kept = 0  # how many were not, then

    @property
    def wanted_labels(self) -> frozenset[str]:
        """The keys of the labels of Pods by which Services tell their clients apart."""
        if self._counted_kind is not Pod:
            return frozenset()
        return frozenset(key for clients in self._counted for one in clients or () for key in one.selector.keys)

    @property
    def counts(self) -> bool:
        """Whether anybody is counted."""
        return bool(self._counted)

    @property
    def due(self) -> float | None:
        """When plans are to follow the numbers of clients (seconds since 1970), None if they do."""
        if self._waiting:
            return self._continued + PART_SECONDS
        is_ahead = any(counted.changed or counted.is_ahead for counted in self._counted.values())
        return self._began + COUNTS_SECONDS if is_ahead else None

    # Taking changes in

    def update_pod(self, key: str, before: Pod | None, after: Pod | None) -> bool:
        """Record a change of a pod (None: it does not exist); return whether a plan may change."""
        if not self._counted or self._counted_kind is not Pod:
            return False
        had, has = (None if pod is None or not pod.asks else pod for pod in (before, after))
        changed = self._move(had, has, (had and had.node, has and has.node))
        if (had is None) != (has is None) or (had and had.addresses) != (has and has.addresses):
            self._marked.update(self._named.keys_of(key))
            changed = changed or bool(self._marked)
        return changed

    def know_labels(self, keys: frozenset[str]) -> set[str]:
        """Note that Pods have their labels with these *keys* from now on; return the Services that waited for them."""
        if keys == self._labels:
            return set()
        self._labels = keys
        waited, self._unknown = self._unknown, {}
        self._left |= bool(waited)
        return {*waited}

    def mark_slices(self, slices: Iterable[EndpointSlice]) -> None:
        """Note that pods at the addresses of the endpoints of some slices have come or gone."""
        keys = (one.service_key for one in slices)
        self._marked.update(key for key in keys if key is not None and key in self._services)

    def update_locator(self, key: str, before: PodLocator | None, after: PodLocator | None) -> bool:
        """Record a change of a PodLocator (None: it does not exist); return whether a plan may change."""
        if not self._counted or self._counted_kind is not PodLocator:
            return False
        had, has = (None if one is None or not one.addresses else one for one in (before, after))
        return self._move(had, has, (had and self._node_of(had), has and self._node_of(has)))

    def _move(
        self, had: Pod | PodLocator | None, has: Pod | PodLocator | None, nodes: tuple[Hashable, Hashable]
    ) -> bool:
        counted = [self._counted[None]] if None in self._counted else []
        if had is not None and has is not None and nodes[0] == nodes[1]:  # nobody but selectors tells them apart
            if labels_of(had) == labels_of(has):
                return False
            counted = []
        changed = False
        for client, node, number in ((had, nodes[0], -1), (has, nodes[1], 1)):
            if client is not None:
                crowds = () if self._crowds is None else self._crowds.add(client, node, number)
                for asker in (*counted, *crowds):
                    asker.add(node, number)
                    changed = True
        return changed

    def update_node(self, name: str) -> None:
        """Note that a Node came, went, or has other labels."""
        for counted in self._counted.values():
            if self._counted_kind is Node:
                counted.numbers.pop(name, None)
                if self._locations.of_node(name) is not None:
                    counted.numbers[name] = 1
            if counted.complete or name in counted.numbers:
                counted.changed.add(name)

    # Plans

    def update_service(self, compiled: CompiledService, before: CompiledService | None) -> Plans:
        """Return the plans of a Service that may have changed, as it is now; () if it is not balanced.

        *before* is the Service until now, the same object if nothing but its plans may differ.
        """
        key, known = compiled.service.key, self._services.get(compiled.service.key)
        self._marked.discard(key)
        self._left |= self._unknown.pop(key, None) is not None
        if (asked := self._asked(compiled)) is None:
            self.forget_service(key)
            return ()
        if not self._is_known(asked.clients):  # the same ask as before until the labels of Pods are known
            self._unknown[key] = asked.clients
            if known is None and compiled is before:  # as an earlier run of this program left it
                return before.plans
            if known is None:
                self._changes[key] = None
                return ()
            asked = asked._replace(clients=known.asked.clients)
        if known is None or known.compiled is not compiled or known.asked != asked:
            self._left |= known is not None and known.asked.clients != asked.clients
            known = _Service(key, compiled, asked, (), known.plans if known is not None else ())
            self._services[key] = known
        return self._planned(known, anew=True)

    def forget_service(self, key: str) -> None:
        """Forget a Service that is gone, or not balanced any more."""
        self._left |= self._unknown.pop(key, None) is not None
        if self._services.pop(key, None) is not None:
            self._named.set(key, ())
            self._left = True
        if key in self.balances or key in self._changes:
            self._changes[key] = None

    def update(
        self, now: float, changing: Collection[str], clock: Callable[[], float] | None = None
    ) -> Mapping[str, Plans]:
        """Plan what is due at *now* (seconds since 1970); return the plans that differ, by Service.

        ``update_service`` is called for those that are *changing* anyway. *clock* tells seconds, by which the work is
        limited; without it, everything is done that is due.
        """
        moved = [self._bring_up_to_date(counted) for counted in self._counted.values()]
        marked, self._marked = self._marked - set(changing), set()
        changed = {key: known.plans for key in marked if (known := self._services.get(key)) is not None}
        for key in changed:
            self._planned(self._services[key], anew=True)
        ahead = {clients for clients, counted in self._counted.items() if counted.is_ahead}
        if ahead and (any(moved) or not (self._waiting or self._began <= now < self._began + COUNTS_SECONDS)):
            self._waiting = [key for key, known in self._services.items() if known.asked.clients in ahead]
            self._began, self._continued = now, 0.0
            for clients in ahead:
                self._counted[clients].is_ahead = False
        if self._waiting and not self._continued <= now < self._continued + PART_SECONDS:
            clock = clock or (lambda: 0.0)
            self._continued, end = now, clock() + PART_WORK
            while self._waiting and clock() < end:
                key = self._waiting.pop()
                if (known := self._services.get(key)) is not None and key not in changing:
                    changed.setdefault(key, known.plans)
                    self._planned(known, anew=False)
        return {
            key: known.plans
            for key, before in changed.items()
            if (known := self._services.get(key)) is not None and known.plans != before
        }

    def publish(self, now: float) -> set[str]:
        """Bring ``balances`` up to date; return the Services about which something else is to be told.

        *now* is that of ``update``. Forgets, now or some time later, those clients for whom no Service asks any more.
        """
        recently = 0 <= now - self._forgot < FORGET_SECONDS
        if self._left and not (recently and len(self._counted) <= self._kept + MAX_LEFT):
            self._forgot = now
            used = {*(known.asked.clients for known in self._services.values()), *self._unknown.values()}
            self._counted = {clients: counted for clients, counted in self._counted.items() if clients in used}
            self._kept = len(self._counted)
            if used <= {None}:
                self._crowds = None
            for crowd in self._crowds or ():
                crowd.askers = self._askers_of(crowd.namespace, crowd.labels)
            self._left = False
        changes = {key: after for key, after in self._changes.items() if self.balances.get(key) != after}
        self._changes = {}
        told = {key for key, after in changes.items() if _told(after) != _told(self.balances.get(key))}
        self.balances = mapping_after(self.balances, changes)
        return told

    def plans_of(self, compiled: CompiledService, slices: Sequence[EndpointSlice]) -> tuple[Plans, Balances]:
        """Return the plans of a Service that need not exist, and what becomes of its clients.

        Pods that are endpoints of some *slices* do not ask for it, unless it says who does.
        """
        asked = self._asked(compiled)
        if asked is None or not self._is_known(asked.clients):
            return (), ()
        self._left = True  # if they are counted for this alone, they need not be for long
        layouts = self._layouts(compiled, asked, self._own(compiled.service.key, slices, asked.clients))
        return _plans(layouts, asked)

    def _planned(self, known: _Service, *, anew: bool) -> Plans:
        """Return the plans of a Service; its layouts are made *anew* if its own pods may be others."""
        tables = [self._table(known.asked.clients, constraint) for constraint in known.asked.constraints]
        if anew or [layout.version for layout in known.layouts] != [table.version for table in tables]:
            own = self._own(known.key, self._objects.slices_of(known.key), known.asked.clients)
            known.layouts = self._layouts(known.compiled, known.asked, own)
        plans, self._changes[known.key] = _plans(known.layouts, known.asked)
        if plans != known.plans:
            known.plans = plans
        return known.plans

    def _asked(self, compiled: CompiledService) -> Asked | None:
        """Return what a Service asks for, None if it is not balanced."""
        service = compiled.service
        wanted = max_overload(service)
        if wanted is None or not compiled.locations or not compiled.slices:  # that is, it has no endpoint records
            return None
        declaration = compiled.declaration
        declared = self._defaults_of(service) if declaration is None else [declaration]
        endpoints = _endpoints_of(compiled)
        # Those that are heard have tiers.
        heard = tuple(
            [cast("TieredConstraint", in_effect(one)) for one in declared if not unheard(service, one, endpoints)]
        )
        if not heard:
            return None
        return _shared(Asked(wanted, None if self._counted_kind is Node else asking(service), heard))

    def _defaults_of(self, service: Service) -> list[Declaration]:
        return [zone_default(service, keys) for keys in self._default_keys]

    def _layouts(self, compiled: CompiledService, asked: Asked, own: Sequence[Hashable]) -> tuple[Layout, ...]:
        endpoints, cluster = _endpoints_of(compiled), self._locations.cluster
        return tuple(
            layout_of(compiled.service.key, constraint, endpoints, self._table(asked.clients, constraint), own, cluster)
            for constraint in asked.constraints
        )

    # Who asks

    def _is_known(self, clients: Clients) -> bool:
        """Whether the Pods that are known have the labels by which some clients are told apart."""
        keys = {key for one in clients or () for key in one.selector.keys}
        if self._counted_kind is not Pod or keys <= self._labels:
            return True
        self._counts(clients)  # so that the labels are wanted
        return False

    def _counts(self, clients: Clients) -> _Counted:
        """Return how many of some clients are on each node. They are counted when a Service first asks for them."""
        counted = self._counted.get(clients)
        if counted is not None:
            return counted
        counted = self._counted[clients] = _Counted(complete=clients is None)
        if clients is None:
            for _, node in self._asking():
                counted.add(node, 1)
        elif self._crowds is None:
            self._crowds = Crowds(self._askers_of)
            for client, node in self._asking():
                for asker in self._crowds.add(client, node, 1):
                    asker.add(node, 1)
        else:
            for crowd in self._crowds:
                if self._is_one_of(clients, crowd.namespace, crowd.labels):
                    crowd.askers.append(counted)
                    for node, number in crowd.on_node.items():
                        counted.add(node, number)
        counted.changed.clear()
        return counted

    def _asking(self) -> Iterator[tuple[Any, Hashable]]:
        """Yield all objects that are clients, each with its node."""
        for client in self._objects.of(self._counted_kind).values():
            if isinstance(client, Node):
                yield client, client.name
            elif isinstance(client, PodLocator):
                if client.addresses:
                    yield client, self._node_of(client)
            elif isinstance(client, Pod) and client.asks:
                yield client, client.node

    def _askers_of(self, namespace: str, labels: Mapping[str, str]) -> list[_Counted]:
        return [
            counted
            for clients, counted in self._counted.items()
            if clients is not None and self._is_one_of(clients, namespace, labels)
        ]

    def _is_one_of(self, clients: tuple[ClientSelector, ...], namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod is one of some clients; PodLocators have no labels of it, so the namespace alone decides."""
        has_labels = self._counted_kind is Pod
        return any(one.namespace == namespace and (not has_labels or one.selector.matches(labels)) for one in clients)

    def _table(self, clients: Clients, constraint: TieredConstraint) -> CellTable:
        counted, keys = self._counts(clients), cell_keys(constraint)
        table = counted.tables.get(keys)
        if table is None:
            self._bring_up_to_date(counted)
            names = dict.fromkeys((*(self._locations.node_names() if counted.complete else ()), *counted.numbers))
            nodes = ((key, self._place_of(key), counted.numbers.get(key, 0)) for key in names)
            table = counted.tables[keys] = CellTable(keys, nodes, complete=counted.complete)
        return table

    def _bring_up_to_date(self, counted: _Counted) -> bool:
        """Take up what has changed since the last time; return whether a node that stays has other values."""
        moved = False
        counted.is_ahead |= bool(counted.changed)
        for key in counted.changed:
            number = counted.numbers.get(key, 0)
            is_there = bool(number) or (counted.complete and not self._is_unknown(key))
            for table in counted.tables.values():
                moved |= table.put(key, self._place_of(key) if is_there else None, number)
        counted.changed.clear()
        return moved

    def _node_of(self, locator: PodLocator) -> Hashable:
        """Return what stands for the node of a pod: the name of a Node; its place if only PodLocators tell."""
        return locator.node if self._locations.reads_nodes else self._locations.node_of_locator(locator)

    def _is_unknown(self, node: Hashable) -> bool:
        return not isinstance(node, str) or self._locations.of_node(node) is None

    def _place_of(self, node: Hashable) -> Location:
        """Return where the clients on a node are, as that itself tells it; a PodLocator has told it already."""
        if isinstance(node, Location):
            return node
        return self._locations.of_node_name(node if isinstance(node, str) else None)

    def _own(self, service: str, slices: Sequence[EndpointSlice], clients: Clients) -> list[Hashable]:
        """Return the node of each client of a Service that is an endpoint of it, and so does not ask."""
        if clients is not None or self._counted_kind is Node:
            return []
        own, named = dict[str, None](), dict[str, None]()
        pods: Mapping[str, Any] = self._objects.of(self._counted_kind)
        index = self._by_address
        for known in slices:
            keys = known.endpoints.pod_keys(known.namespace)
            if index.only_each("address", known.endpoints.all_addresses()) == keys:  # as nearly always
                own.update(dict.fromkeys(keys))  # type: ignore[arg-type]  # none is None
                continue
            for key, addresses in zip(keys, known.endpoints.addresses_of_each(), strict=True):
                if key is None:
                    there = (found for address in addresses for found in index.keys("address", address))
                    own.update(dict.fromkeys(there))
                    continue
                own[key] = None
                if key not in pods or not set(addresses) <= set(pods[key].addresses):
                    named[key] = None  # its address does not tell who depends on it
        if service in self._services:
            self._named.set(service, tuple(named))
        found = [pods[key] for key in own if key in pods]
        if self._counted_kind is Pod:
            return [pod.node for pod in found if pod.asks]
        return [self._node_of(locator) for locator in found if locator.addresses]


@lru_cache(maxsize=1024)
def _shared(asked: Asked) -> Asked:
    """Return the one object for what many Services ask for."""
    return asked


def _told(balances: Balances | None) -> list[object]:
    """Return what findings tell of balances: whether somebody asks, and which endpoints expect too many."""
    return [(not balance.clients, balance.exceeded) for balance in balances or ()]


def _plans(layouts: Sequence[Layout], asked: Asked) -> tuple[Plans, Balances]:
    both = [plan(layout, asked.max_overload) for layout in layouts]
    return tuple([plan for _, plan in both if plan is not None]), tuple([balance for balance, _ in both])


def _endpoints_of(compiled: CompiledService) -> list[LocatedEndpoint]:
    """Return the ready endpoints, made for the moment; only hints need more of them than their locations."""
    declaration = compiled.declaration
    if declaration is not None and isinstance(declaration.constraint, Hinted):
        return list(map(LocatedEndpoint, joined_endpoints(compiled.slices), compiled.locations))
    return [LocatedEndpoint(_SOMEWHERE, location) for location in compiled.locations]
