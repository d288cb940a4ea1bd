# SPDX-License-Identifier: Apache-2.0

"""Simulates one Service: every client asks for its name, and each spreads its load evenly over what it gets.

The decisions are those of ``resolve``, one for each group of clients that get the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from dnsserver.answers.decision import ADDRESS_SIZES, Decision
from dnsserver.answers.resolution import resolve
from dnsserver.message.wire import AAAA, A
from dnsserver.metrics.relations import relation
from dnsserver.names import labels_of, query_name_of
from dnsserver.tools.simulation import IDLE
from dnsserver.tools.simulation.groups import Group, Grouping, Groupings, Values, reduced
from dnsserver.tools.simulation.world import ClientPlace, PodKey, Subject, World
from locator.ip import address_text
from locator.model import ZONE, Location
from locator.places.locations import has_labels
from locator.state.snapshot import AnyService, CompiledService, FederatedService
from locator.topology.annotations import max_overload
from locator.topology.balance import Balance
from locator.topology.balance_checks import unheard
from locator.topology.constraints import Declaration, in_effect
from locator.topology.selection import ANY_ENDPOINT, SPILLED, LocatedEndpoint, Narrowing, has_address

OVERLOADED = "overloaded"  # what an endpoint is that gets too much of the load, as IDLE is one that gets nothing
SLACK = 1e-9  # for sums of fractions

Flow = tuple[str | None, str | None]  # from the clients of a zone to the endpoints of a zone


class GroupAnswer(Struct, frozen=True, eq=False):
    """What one group of clients gets; equal if it is the same object."""

    outcome: str
    endpoints: tuple[LocatedEndpoint, ...]


class DomainOutcome(NamedTuple):
    """What the clients in one topology domain get: ``domain`` has their values of the constraint's keys."""

    domain: Mapping[str, str]
    clients: int
    choice: GroupAnswer


class ZoneClients(NamedTuple):
    """How many clients there are somewhere, and how many of them get nothing."""

    clients: float
    unmet: float


class Simulated(Struct, frozen=True, eq=False):
    """What became of one name.

    ``service`` is what the name means. ``balance`` is what its plan makes of its clients, None if it is not balanced.
    ``clients``, ``unmet`` (who get no address) and ``unknown`` (who carry no label) are numbers of clients, or those of
    counted answers. ``load`` is the part of them that arrives; ``shares`` are fractions of it, one for each of the
    ``endpoints``, which are ready. ``crossing`` and ``crossing_before`` are fractions that are known to cross zones: as
    simulated, and without any constraint. ``flows`` between zones are fractions of the load, too, and ``spilled`` those
    of clients for whom there was no room nearer. ``origins`` has all clients by their zone. ``relations`` are the units
    of load that arrive, by the client's zone, "" for an unknown one, and by whether what they get is there
    (``metrics.server.relation``).
    ``narrowed``: some clients get fewer endpoints than without the constraint. ``unmatched`` says why the Service
    has no constraint although it asks for near endpoints, "" otherwise.
    ``left_out`` are the pods that are endpoints and do not ask. ``comparable``: without any constraint, all clients
    would get all endpoints, so that an uneven load says something; of a federated name, what a client could get may
    depend on its cluster. ``counted_nothing``: by what a server has counted, nobody asks.
    """

    subject: Subject
    service: AnyService
    balance: Balance | None
    declaration: Declaration | None
    endpoints: tuple[LocatedEndpoint, ...]
    clients: int
    unmet: int
    unknown: int
    load: float
    load_before: float
    shares: tuple[float, ...]
    crossing: float
    crossing_before: float
    flows: Mapping[Flow, float]
    spilled: Mapping[Flow, float]
    origins: Mapping[str | None, ZoneClients]
    relations: Mapping[tuple[str, str], float]
    narrowed: bool
    unmatched: str
    left_out: frozenset[PodKey]
    comparable: bool
    counted_nothing: bool
    domains: Callable[[], Iterator[DomainOutcome]]

    @property
    def even_share(self) -> float:
        """The share of each endpoint if all got the same, 0 if there is none."""
        return 1 / len(self.endpoints) if self.endpoints else 0.0

    @property
    def max_overload(self) -> float:
        """The greatest share in even shares, 0 if nobody gets anything."""
        return max(self.shares, default=0.0) * len(self.endpoints)

    @property
    def busiest(self) -> tuple[float, LocatedEndpoint]:
        """The greatest share, and the first endpoint that has it. There must be an endpoint."""
        return max(zip(self.shares, self.endpoints, strict=True), key=lambda pair: pair[0])

    @property
    def spilled_clients(self) -> int:
        """For how many clients there was no room nearer."""
        return round(sum(self.spilled.values()) * self.load)

    @property
    def idle(self) -> list[LocatedEndpoint]:
        """The ready endpoints that nobody gets."""
        return [located for located, share in zip(self.endpoints, self.shares, strict=True) if not share]

    @property
    def starved(self) -> int:
        """How many endpoints are IDLE: none if an uneven load says nothing."""
        return len(self.idle) if self.comparable and self.load else 0

    @property
    def may_be_balanced(self) -> bool:
        """Whether ``topodns.io/max-overload``, which does not count yet, could send some clients to other endpoints."""
        if type(self.service) is not CompiledService or max_overload(self.service.service) is not None:
            return False
        if unheard(self.service.service, self.declaration, self.endpoints):
            return False
        constraint = in_effect(self.declaration)
        kept = len(constraint.required) if isinstance(constraint, Narrowing) else 1
        return len(constraint.keys) > kept

    def rating(self, share: float, max_overload: float) -> str:
        """Return OVERLOADED or IDLE for the share of one endpoint, "" if it is neither."""
        if not self.comparable or not self.load:
            return ""
        if share * len(self.endpoints) > max_overload + SLACK:
            return OVERLOADED
        return "" if share else IDLE

    def overloaded(self, max_overload: float) -> int:
        """Return how many endpoints are OVERLOADED."""
        return [self.rating(share, max_overload) for share in self.shares].count(OVERLOADED)


def exceeds(simulated: Simulated, max_overload: float) -> bool:
    """Whether an endpoint gets more than *max_overload* even shares."""
    return simulated.rating(max(simulated.shares, default=0.0), max_overload) == OVERLOADED


def domain_at(location: Location, declaration: Declaration | None) -> dict[str, str]:
    """Return the topology domain of a location: its values of the keys in effect."""
    keys = (key for key in in_effect(declaration).keys if key != ANY_ENDPOINT)
    return {key: value for key in keys if (value := location.value(key)) is not None}


def first_address(located: LocatedEndpoint) -> str:
    """Return the first address of an endpoint as text, "" if it has none."""
    return address_text(located.endpoint.addresses[0]) if located.endpoint.addresses else ""


def described(located: LocatedEndpoint) -> str:
    """Return an endpoint as a message names it: its pod, or else its address."""
    return located.endpoint.pod or first_address(located) or "an endpoint"


def simulate(subject: Subject, world: World, groupings: Groupings) -> Simulated:
    """Return what becomes of a name that exists."""
    service = subject.service(world.snapshot)
    assert service is not None
    answers = _Answers(subject, service, world)
    clients, actual = world.clients_of(subject), subject.service(world.actual)
    left_out = clients.left_out(actual if actual is not None else service, world.actual, world.clusters)
    fewer = clients.at(left_out)
    grouping = groupings.of(subject, answers.client_keys)
    loads = _Loads(subject, world, grouping, grouping.groups(answers.distinguishing, fewer))

    def domains() -> Iterator[DomainOutcome]:
        loads_there: defaultdict[tuple[tuple[str, str], ...], dict[GroupAnswer, float]] = defaultdict(dict)
        for group in (*grouping.all_groups(fewer), *loads.extra):
            there = domain_at(group.place.location, answers.declaration)
            choices, choice = loads_there[*there.items(),], answers.choice(group)
            choices[choice] = choices.get(choice, 0.0) + loads.of(group)
        for domain, choices in loads_there.items():
            for choice, load in choices.items():
                if whole := round(load):
                    yield DomainOutcome(dict(domain), whole, choice)

    rows = [_Row(group, loads.of(group), answers.choice(group), answers.unconstrained(group)) for group in loads.groups]
    return _added_up(subject, answers, rows, left_out, domains, counted_nothing=loads.counted_nothing)


class _Answers:
    """What groups of clients get of one name. Each answer is decided once for all that get the same."""

    def __init__(self, subject: Subject, service: AnyService, world: World) -> None:
        self.service = service
        self._world = world
        self._query_name = query_name_of(labels_of(subject.name), world.authority.zones)
        self._decided: dict[Values, GroupAnswer] = {}
        self._choices: dict[object, GroupAnswer] = {}
        self._entries: dict[tuple[str, int | None], tuple[LocatedEndpoint, ...]] = {}
        self.declaration: Declaration | None = None
        self.balance: Balance | None = None
        self.unmatched = ""
        self._federated = service if isinstance(service, FederatedService) else None
        self.endpoints = tuple(service.endpoints)
        if isinstance(service, FederatedService):
            self.client_keys, self.distinguishing = service.client_keys, service.distinguishing_values()
            self.declaration = service.declaration(world.cluster)
        else:
            self.declaration = world.authority.declaration(subject.zone, service)
            if self.declaration is None:
                self.unmatched = next((one.ignored or "" for one in service.declarations if one.unmatched), "")
            if type(service) is CompiledService:
                constraint, balances = in_effect(self.declaration), world.snapshot.balances.get(subject.key, ())
                self.balance = next((one for one in balances if one.constraint == constraint), None)
            constraint = service.constraint(self.declaration)
            self.client_keys = constraint.client_keys
            self.distinguishing = constraint.distinguishing_values(self.endpoints)

    def choice(self, group: Group) -> GroupAnswer:
        """Return what the clients of a group get."""
        values = reduced(group.values, self.distinguishing)
        if values not in self._decided:
            outcome, chosen = self._chosen(group.place)
            same = outcome, tuple(map(id, chosen))
            self._decided[values] = self._choices.setdefault(same, GroupAnswer(outcome, chosen))
        return self._decided[values]

    def _chosen(self, place: ClientPlace) -> tuple[str, tuple[LocatedEndpoint, ...]]:
        """Return how the endpoints for a client were chosen, and those of them that it can reach.

        A client that reaches both families uses the one for which nobody had to choose again. Of a federated name,
        clients elsewhere get load balancers, which have an entry for each address: they count as reached.
        """
        octets = None if self._federated is not None else place.octets
        decision = self._decision(AAAA if octets == ADDRESS_SIZES[AAAA] else A, place.location)
        selection = decision.selection
        if octets is None and selection is not None and selection.octets is not None:
            decision = self._decision(AAAA, place.location)
            selection = decision.selection
        return decision.outcome, _reached(() if selection is None else selection.endpoints, octets)

    def _decision(self, qtype: int, location: Location) -> Decision:
        return resolve(self._query_name, qtype, self._world.snapshot, location, self._world.authority)

    def unconstrained(self, group: Group) -> tuple[LocatedEndpoint, ...]:
        """Return what the clients of a group would get without any constraint."""
        octets, viewer, federated = group.place.octets, "", self._federated
        if federated is not None:
            octets, viewer = None, federated.viewer(group.place.location)
        key = viewer, octets
        if key not in self._entries:
            entries = self.endpoints if federated is None else federated.entries(viewer, with_ports=False)
            self._entries[key] = _reached(entries, octets)
        return self._entries[key]


def _reached(endpoints: tuple[LocatedEndpoint, ...], octets: int | None) -> tuple[LocatedEndpoint, ...]:
    """Return the endpoints with an address of some size, all for None."""
    if octets is None:
        return endpoints
    return tuple(located for located in endpoints if has_address(octets, located))


class _Loads:
    """How much each group of clients asks: one unit a client, or its part of the answers counted for its zone.

    ``extra`` are the clients that were counted in zones where no pod asks: one a zone.
    """

    def __init__(self, subject: Subject, world: World, grouping: Grouping, groups: list[Group]) -> None:
        self.extra: list[Group] = []
        self.counted_nothing = False
        self._units: Mapping[str, float] | None = None
        if world.counted is not None:
            counted = world.counted.of(subject.key)
            self.counted_nothing = not any(counted.values())
            clients = Counter[str]()
            for group in groups:
                clients[group.values.zone or ""] += group.clients
            for zone in sorted(counted.keys() - clients.keys()):
                place = world.somewhere_in(zone)
                self.extra.append(Group(grouping.values_at(place), 1, place))
                clients[zone] = 1
            self._units = {zone: counted.get(zone, 0) / number for zone, number in clients.items()}
        self.groups = [*groups, *self.extra]

    def of(self, group: Group) -> float:
        """Return the units of load of a group."""
        if self._units is None:
            return group.clients
        return group.clients * self._units[group.values.zone or ""]


class _Row(NamedTuple):
    """A group of clients, its units of load, what it gets, and what it would get without any constraint."""

    group: Group
    load: float
    choice: GroupAnswer
    everything: tuple[LocatedEndpoint, ...]

    @property
    def chosen(self) -> tuple[LocatedEndpoint, ...]:
        """What the clients get."""
        return self.choice.endpoints

    @property
    def zone(self) -> str | None:
        """The zone of the clients."""
        return self.group.values.zone


def _added_up(
    subject: Subject,
    answers: _Answers,
    rows: Sequence[_Row],
    left_out: frozenset[PodKey],
    domains: Callable[[], Iterator[DomainOutcome]],
    *,
    counted_nothing: bool,
) -> Simulated:
    served, able = [row for row in rows if row.chosen], [row for row in rows if row.everything]
    load, load_before = sum(row.load for row in served), sum(row.load for row in able)
    zones = _zones(rows)
    loads = {id(located): 0.0 for located in answers.endpoints}
    flows, spilled = defaultdict[Flow, float](float), defaultdict[Flow, float](float)
    relations = defaultdict[tuple[str, str], float](float)
    for row in served:
        here, there, part = row.zone or "", zones[id(row.chosen)], row.load / len(row.chosen)
        for located in row.chosen:
            loads[id(located)] += part
        of_outcome = spilled if row.choice.outcome == SPILLED else flows
        for zone, number in there.items():
            of_outcome[row.zone, zone] += part * number
        relations[here, relation(here, frozenset(zone or "" for zone in there))] += row.load
    origins: dict[str | None, ZoneClients] = {}
    for row in rows:
        known = origins.get(row.zone, ZoneClients(0, 0))
        origins[row.zone] = ZoneClients(known.clients + row.load, known.unmet + (0 if row.chosen else row.load))
    crossing = sum(row.load / len(row.chosen) * _elsewhere(row.zone, zones[id(row.chosen)]) for row in served)
    crossing_before = sum(
        row.load * _elsewhere(row.zone, zones[id(row.everything)]) / len(row.everything) for row in able
    )  # fmt: skip
    return Simulated(
        subject=subject,
        service=answers.service,
        balance=answers.balance,
        declaration=answers.declaration,
        endpoints=answers.endpoints,
        clients=round(sum(row.load for row in rows)),
        unmet=round(sum(row.load for row in rows if not row.chosen)),
        unknown=round(sum(row.load for row in rows if not has_labels(row.group.place.location))),
        load=load,
        load_before=load_before,
        shares=tuple([loads[id(located)] / (load or 1.0) for located in answers.endpoints]),
        crossing=crossing / (load or 1.0),
        crossing_before=crossing_before / (load_before or 1.0),
        flows={flow: part / (load or 1.0) for flow, part in flows.items()},
        spilled={flow: part / (load or 1.0) for flow, part in spilled.items()},
        origins=origins,
        relations=relations,
        narrowed=any(len(row.chosen) < len(row.everything) for row in able),
        unmatched=answers.unmatched,
        left_out=left_out,
        comparable=all(len(row.everything) == len(answers.endpoints) for row in able),
        counted_nothing=counted_nothing,
        domains=domains,
    )


def _zones(rows: Sequence[_Row]) -> dict[int, Counter[str | None]]:
    """Return how many of the endpoints in *rows* are in each zone, by the identity of their tuples."""
    zones: dict[int, Counter[str | None]] = {}
    for row in rows:
        for endpoints in (row.chosen, row.everything):
            if id(endpoints) not in zones:
                zones[id(endpoints)] = Counter(located.location.labels.get(ZONE) for located in endpoints)
    return zones


def _elsewhere(zone: str | None, zones: Mapping[str | None, int]) -> int:
    """Return how many of the endpoints in *zones* are known to be in another zone than a client in *zone*."""
    return 0 if zone is None else sum(number for other, number in zones.items() if other not in (None, zone))
