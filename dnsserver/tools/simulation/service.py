# SPDX-License-Identifier: Apache-2.0

"""Simulates one Service: every client asks for its name, and each spreads its load evenly over what it gets.

The decisions are those of ``resolve``, one for each group of clients that get the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from dnsserver.answers.decision import ADDRESS_SIZES, Authority, Decision
from dnsserver.answers.resolution import resolve
from dnsserver.message.wire import AAAA, A
from dnsserver.metrics.server import relation
from dnsserver.names import FEDERATION, MULTICLUSTER, Zone, labels_of, query_name_of
from dnsserver.tools.simulation.clients import AskingPods, ClientPlace, CountedAnswers, PodKey, somewhere_in
from dnsserver.tools.simulation.groups import Group, Grouping, Values, reduced
from locator.model import SUCCESSORS, ZONE, Location
from locator.places.locations import has_labels
from locator.state.snapshot import AnyService, FederatedService, Snapshot
from locator.topology.constraints import Declaration, in_effect
from locator.topology.selection import ANY_ENDPOINT, LocatedEndpoint, has_address

OVERLOADED, UNUSED = "overloaded", "idle"  # how much of the load an endpoint gets
SLACK = 1e-9  # for sums of fractions

Flow = tuple[str | None, str | None]  # from the clients of a zone to the endpoints of a zone


class Subject(NamedTuple):
    """A name to simulate: the DNS zone, and the ``namespace/name`` of the Service."""

    zone: Zone
    key: str

    @property
    def name(self) -> str:
        """The domain name, without a final dot."""
        namespace, _, service = self.key.partition("/")
        between = "" if self.zone.about == FEDERATION else ".svc"
        return f"{service}.{namespace}{between}.{self.zone.name}"

    def service(self, snapshot: Snapshot) -> AnyService | None:
        """Return what the name means in a snapshot, None if nothing has it."""
        if self.zone.about == FEDERATION:
            return snapshot.federated.get(self.key)
        if self.zone.about == MULTICLUSTER:
            return snapshot.imported.get(self.key)
        return snapshot.services.get(self.key)


class World(Struct, frozen=True):
    """What is simulated: the clusters as they would be, the clusters as they are, and who asks.

    ``clusters`` are those that exist, each by itself, by their names; ``cluster`` is the own one's name. ``own`` are
    the clients in the own cluster, ``everywhere`` those in all of them: only federated names are the same everywhere.
    ``counted`` says how much they ask, None for one unit a pod.
    """

    snapshot: Snapshot
    actual: Snapshot
    clusters: Mapping[str, Snapshot]
    authority: Authority
    cluster: str
    own: AskingPods
    everywhere: AskingPods
    counted: CountedAnswers | None = None

    def clients_of(self, subject: Subject) -> AskingPods:
        """Return who asks for a name."""
        return self.everywhere if subject.zone.about == FEDERATION else self.own


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

    ``clients``, ``unmet`` (who get no address) and ``unknown`` (who carry no label) are numbers of clients, or those of
    counted answers. ``load`` is the part of them that arrives; ``shares`` are fractions of it, one for each of the
    ``endpoints``, which are ready. ``crossing`` and ``crossing_before`` are fractions that are known to cross zones: as
    simulated, and without any constraint. ``flows`` between zones are fractions of the load, too. ``origins`` has all
    clients by their zone. ``relations`` are the units of load that arrive, by the client's zone, ""
    for an unknown one, and by whether what they get is there (``metrics.server.relation``).
    ``narrowed``: some clients get fewer endpoints than without the constraint. ``unmatched`` says why the Service
    has no constraint although it asks for near endpoints, "" otherwise.
    ``left_out`` are the pods that are endpoints and do not ask. ``comparable``: without any constraint, all clients
    would get all endpoints, so that an uneven load says something; of a federated name, what a client could get may
    depend on its cluster. ``counted_nothing``: by what a server has counted, nobody asks.
    """

    subject: Subject
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
    origins: Mapping[str | None, ZoneClients]
    relations: Mapping[tuple[str, str], float]
    narrowed: bool
    unmatched: str
    left_out: frozenset[PodKey]
    comparable: bool
    counted_nothing: bool
    domains: Callable[[], Iterator[DomainOutcome]]

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys in effect, without ``*``."""
        return tuple(key for key in in_effect(self.declaration).keys if key != ANY_ENDPOINT)

    @property
    def even_share(self) -> float:
        """The share of each endpoint if all got the same, 0 if there is none."""
        return 1 / len(self.endpoints) if self.endpoints else 0.0

    @property
    def max_overload(self) -> float:
        """The greatest share in even shares, 0 if nobody gets anything."""
        return max(self.shares, default=0.0) * len(self.endpoints)

    @property
    def idle(self) -> list[LocatedEndpoint]:
        """The ready endpoints that nobody gets."""
        return [located for located, share in zip(self.endpoints, self.shares, strict=True) if not share]

    @property
    def starved(self) -> int:
        """How many endpoints are UNUSED."""
        return len(self.idle) if self.comparable and self.load else 0

    def rating(self, share: float, max_overload: float) -> str:
        """Return OVERLOADED or UNUSED for the share of one endpoint, "" if it is neither."""
        if not self.comparable or not self.load:
            return ""
        if share * len(self.endpoints) > max_overload + SLACK:
            return OVERLOADED
        return "" if share else UNUSED


def exceeds(simulated: Simulated, max_overload: float) -> bool:
    """Whether an endpoint gets more than *max_overload* even shares."""
    return simulated.rating(max(simulated.shares, default=0.0), max_overload) == OVERLOADED


class Groupings:
    """The clients of a world in groups, for each list of client keys; made once for all Services."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[tuple[bool, tuple[str, ...]], Grouping] = {}

    def of(self, subject: Subject, client_keys: tuple[str, ...]) -> Grouping:
        """Return the clients of a name, grouped by *client_keys*."""
        clients = self._world.clients_of(subject)
        key = clients is self._world.everywhere, client_keys
        if key not in self._known:
            self._known[key] = Grouping(clients.numbers, client_keys)
        return self._known[key]


def simulate(subject: Subject, world: World, groupings: Groupings) -> Simulated:
    """Return what becomes of a name that exists."""
    service = subject.service(world.snapshot)
    assert service is not None
    deciding = _Deciding(subject, service, world)
    clients, actual = world.clients_of(subject), subject.service(world.actual)
    left_out = clients.left_out(actual if actual is not None else service, world.actual, world.clusters)
    fewer = clients.at(left_out)
    grouping = groupings.of(subject, deciding.client_keys)
    groups = grouping.groups(deciding.distinguishing, fewer)
    loads = _Loads(subject, world, grouping, groups)
    spread = _Spread(deciding)
    for group in loads.groups:
        spread.add(group, loads.of(group))

    def domains() -> Iterator[DomainOutcome]:
        loads_there: defaultdict[tuple[tuple[str, str], ...], dict[GroupAnswer, float]] = defaultdict(dict)
        for group in (*grouping.all_groups(fewer), *loads.extra):
            there = deciding.domain(group.place.location)
            choices, choice = loads_there[*there.items(),], deciding.choice(group)
            choices[choice] = choices.get(choice, 0.0) + loads.of(group)
        for domain, choices in loads_there.items():
            for choice, load in choices.items():
                if whole := round(load):
                    yield DomainOutcome(dict(domain), whole, choice)

    return spread.result(subject, frozenset(left_out), domains, counted_nothing=loads.counted_nothing)


class _Deciding:
    """Decides for groups of clients, once for all that get the same."""

    def __init__(self, subject: Subject, service: AnyService, world: World) -> None:
        self._world = world
        self._query_name = query_name_of(labels_of(subject.name), world.authority.zones)
        self._decided: dict[Values, GroupAnswer] = {}
        self._choices: dict[object, GroupAnswer] = {}
        self._entries: dict[tuple[str, int | None], tuple[LocatedEndpoint, ...]] = {}
        self.declaration: Declaration | None = None
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
            constraint = in_effect(self.declaration)
            self.client_keys, self.distinguishing = (
                constraint.client_keys,
                constraint.distinguishing_values(self.endpoints),
            )
        self._keys = tuple(key for key in in_effect(self.declaration).keys if key != ANY_ENDPOINT)

    def chosen(self, place: ClientPlace) -> tuple[str, tuple[LocatedEndpoint, ...]]:
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
        endpoints = () if selection is None else selection.endpoints
        if octets is not None:
            endpoints = tuple(located for located in endpoints if has_address(octets, located))
        return decision.outcome, endpoints

    def _decision(self, qtype: int, location: Location) -> Decision:
        return resolve(self._query_name, qtype, self._world.snapshot, location, self._world.authority)

    def choice(self, group: Group) -> GroupAnswer:
        """Return what the clients of a group get."""
        values = reduced(group.values, self.distinguishing)
        if values not in self._decided:
            outcome, chosen = self.chosen(group.place)
            same = outcome, tuple(map(id, chosen))
            self._decided[values] = self._choices.setdefault(same, GroupAnswer(outcome, chosen))
        return self._decided[values]

    def unconstrained(self, group: Group) -> tuple[LocatedEndpoint, ...]:
        """Return what the clients of a group would get without any constraint."""
        octets, viewer, federated = group.place.octets, "", self._federated
        if federated is not None:
            octets, viewer = None, federated.viewer(group.place.location)
        key = viewer, octets
        if key not in self._entries:
            entries = self.endpoints if federated is None else federated.entries(viewer)
            if octets is not None:
                entries = tuple(located for located in entries if has_address(octets, located))
            self._entries[key] = entries
        return self._entries[key]

    def domain(self, location: Location) -> dict[str, str]:
        """Return the values of the constraint's keys that a location has."""
        values = {key: location.labels.get(SUCCESSORS.get(key, key)) for key in self._keys}
        return {key: value for key, value in values.items() if value is not None}


class _Loads:
    """How much each group of clients asks: one unit a client, or its part of the answers counted for its zone."""

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
                place = somewhere_in(zone, world.cluster)
                self.extra.append(Group(grouping.values_at(place), 1, place))
                clients[zone] = 1
            self._units = {zone: counted.get(zone, 0) / number for zone, number in clients.items()}
        self.groups = [*groups, *self.extra]

    def of(self, group: Group) -> float:
        """Return the units of load of a group."""
        if self._units is None:
            return group.clients
        return group.clients * self._units[group.values.zone or ""]


class _Spread:
    """Adds up what groups of clients get."""

    def __init__(self, deciding: _Deciding) -> None:
        self._deciding = deciding
        self._loads = {id(located): 0.0 for located in deciding.endpoints}
        self._zones: dict[int, Counter[str | None]] = {}
        self._relations: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._origins: dict[str | None, ZoneClients] = {}
        self._flows: defaultdict[Flow, float] = defaultdict(float)
        self._clients: float = 0
        self._unmet: float = 0
        self._unknown: float = 0
        self._arriving: float = 0
        self._before: float = 0
        self._comparable, self._narrowed = True, False
        self._crossing = self._crossing_before = 0.0

    def add(self, group: Group, load: float) -> None:
        """Add a group with its units of load."""
        endpoints = self._deciding.choice(group).endpoints
        zone = group.values.zone
        self._clients += load
        if not has_labels(group.place.location):
            self._unknown += load
        if everything := self._deciding.unconstrained(group):
            self._before += load
            self._comparable &= len(everything) == len(self._deciding.endpoints)
            self._narrowed |= len(endpoints) < len(everything)
            self._crossing_before += load * _elsewhere(zone, self._zones_of(everything)) / len(everything)
        known = self._origins.get(zone, ZoneClients(0, 0))
        self._origins[zone] = ZoneClients(known.clients + load, known.unmet + (0 if endpoints else load))
        if not endpoints:
            self._unmet += load
            return
        self._arriving += load
        part = load / len(endpoints)
        for located in endpoints:
            self._loads[id(located)] += part
        zones = self._zones_of(endpoints)
        self._crossing += part * _elsewhere(zone, zones)
        self._relations[zone or "", relation(zone or "", frozenset(other or "" for other in zones))] += load
        for other, number in zones.items():
            self._flows[zone, other] += part * number

    def _zones_of(self, endpoints: Sequence[LocatedEndpoint]) -> Counter[str | None]:
        """Return how many of some endpoints are in each zone. The caller keeps *endpoints*."""
        key = id(endpoints)
        if key not in self._zones:
            self._zones[key] = Counter(map(_zone, endpoints))
        return self._zones[key]

    def result(
        self,
        subject: Subject,
        left_out: frozenset[PodKey],
        domains: Callable[[], Iterator[DomainOutcome]],
        *,
        counted_nothing: bool,
    ) -> Simulated:
        """Return all that was added up."""
        deciding, load = self._deciding, self._arriving or 1.0
        return Simulated(
            subject=subject,
            declaration=deciding.declaration,
            endpoints=deciding.endpoints,
            clients=round(self._clients),
            unmet=round(self._unmet),
            unknown=round(self._unknown),
            load=self._arriving,
            load_before=self._before,
            shares=tuple([self._loads[id(located)] / load for located in deciding.endpoints]),
            crossing=self._crossing / load,
            crossing_before=self._crossing_before / (self._before or 1.0),
            flows={flow: part / load for flow, part in self._flows.items()},
            origins=self._origins,
            relations=self._relations,
            narrowed=self._narrowed,
            unmatched=deciding.unmatched,
            left_out=left_out,
            comparable=self._comparable,
            counted_nothing=counted_nothing,
            domains=domains,
        )


def _zone(located: LocatedEndpoint) -> str | None:
    return located.location.labels.get(ZONE)


def _elsewhere(zone: str | None, zones: Mapping[str | None, int]) -> int:
    """Return how many of the endpoints in *zones* are known to be in another zone than a client in *zone*."""
    if zone is None:
        return 0
    return sum(number for other, number in zones.items() if other is not None and other != zone)
