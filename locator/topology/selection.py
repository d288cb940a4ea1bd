# SPDX-License-Identifier: Apache-2.0

"""Chooses the endpoints that a client gets, and says why.

Each type of constraint chooses in its own way: ``FirstMatch`` by KEP-536's list of keys, ``Narrowing`` by
ServicePolicies, ``Hinted`` by the hints of EndpointSlices, ``NamedDomain`` by a zonal name, ``Unconstrained`` takes
all. A new way to choose is a new type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from locator.model import CLUSTER, HOSTNAME, NODE_NAME, SUCCESSORS, ZONE, Endpoint, Hints, Location, in_two_clusters

ANY_ENDPOINT = "*"

Value = object  # of what decides about a client: the text of a label, a slot, or None

NEAREST = "nearest"
ALL = "all"
UNCONSTRAINED = "unconstrained"
UNMET = "unmet"
SPILLED = "spilled"
OUTCOMES = (NEAREST, ALL, SPILLED, UNCONSTRAINED, UNMET)
UNWANTED_OUTCOMES = (UNMET, SPILLED)  # the client gets nothing, or what is farther than the constraint prefers
# What is counted where nothing was selected, since no endpoint of the Service is ready. An explanation has the outcome
# ``unconstrained`` for it.
UNREADY = "unready"
EMPTY = (UNMET, UNREADY)  # the client gets no endpoint

_NO_HINTS = Hints()


class LocatedEndpoint(Struct, frozen=True, eq=False, gc=False):
    """An endpoint and where it is."""

    endpoint: Endpoint
    location: Location


class Step(Struct, frozen=True, gc=False):
    """One key that was tried: the client's value of it, and how many of the endpoints left had the same value."""

    key: str
    value: str | None
    matched: int


class Selection(Struct, frozen=True, eq=False, gc=False):
    """The endpoints that one client gets, and why.

    ``key`` is the topology key that decided, or None. ``steps`` are the keys in the order in which they were tried.
    ``narrowed`` are the keys among them that ruled out every endpoint that did not match. ``octets``: only endpoints
    with addresses of this size were considered, because those chosen at first have none; else None.
    ``full`` are the keys whose endpoints had no room for the client's node (``locator.topology.balance``).
    """

    endpoints: tuple[LocatedEndpoint, ...]
    outcome: str
    steps: tuple[Step, ...] = ()
    key: str | None = None
    narrowed: tuple[str, ...] = ()
    octets: int | None = None
    full: tuple[str, ...] = ()


Tiers = Iterator[tuple[int, Selection]]  # what a client gets by one key after the other, each with a number that grows


class Constraint(Protocol):
    """What decides which endpoints a client gets."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys in order, as the source wrote them, ``*`` included."""

    @property
    def client_keys(self) -> tuple[str, ...]:
        """What decides about the client: label keys by their current names, or NODE_NAME; () if nothing does."""

    @property
    def soft(self) -> bool:
        """Whether every client gets at least one endpoint if there is any."""

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return, for each of ``client_keys``, the client's values that can match some of *endpoints*.

        Each is mapped to the value that stands for it: values for which one stands lead to the same endpoints.
        All other values lead to the same endpoints. To have no value may lead to others: a client whose cluster is not
        known matches nodes in all clusters.
        """

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose among *endpoints* for a client at a location. To choose none is a valid result, not an error."""


class TieredConstraint(Constraint, Protocol):
    """A constraint that says what a client gets if what is nearest is not to be had, and what then."""

    @property
    def at_least(self) -> int:
        """The number of endpoints that are enough."""

    def tiers(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Tiers:
        """Yield what a client gets of *endpoints* by one key after the other, the nearest first; nothing empty."""

    def usual(self, tiers: Sequence[tuple[int, int]]) -> int:
        """Return the number of the tier that ``select`` chooses; *tiers* has the number and the size of each."""


def select(
    constraint: Constraint,
    client: Location,
    endpoints: Sequence[LocatedEndpoint],
    *,
    plan: Constraint | None = None,
    unknown_gets_all: bool = False,
    octets: int | None = None,
) -> Selection:
    """Choose the endpoints that a client gets; by the *plan* of what becomes of the constraint, if there is one.

    An unknown client has no labels, so a hard constraint gives it nothing (KEP-536), unless *unknown_gets_all*
    (``--unknown-client all``). *octets* is the size of the addresses that the client wants, None if any will do: if a
    soft constraint chooses no endpoint that has one, it chooses again among those that have: for these alone, there is
    no plan.
    """
    selection = (plan or constraint).select(client, endpoints)
    if unknown_gets_all and selection.outcome == UNMET and not client.known:
        return Selection(tuple(endpoints), ALL, selection.steps)
    if octets is not None and constraint.soft and not any(has_address(octets, one) for one in selection.endpoints):
        having = [located for located in endpoints if has_address(octets, located)]
        return replace(constraint.select(client, having), octets=octets) if having else selection
    return selection


def has_address(octets: int, located: LocatedEndpoint) -> bool:
    """Whether an endpoint has an address of this size."""
    return any(len(address) == octets for address in located.endpoint.addresses)


def tiers_after(
    constraint: Constraint, client: Location, endpoints: Sequence[LocatedEndpoint], selection: Selection
) -> Iterator[tuple[LocatedEndpoint, ...]]:
    """Yield what a client would get next if the *selection* were not there, the nearest tier first, no endpoint twice.

    A hard constraint has no such tiers. *selection* is what ``select`` returned for the other arguments.
    """
    given = set(map(id, selection.endpoints))
    if not isinstance(constraint, FirstMatch | Narrowing) or not constraint.soft:
        return
    tiers = [*constraint.tiers(client, endpoints)]
    usual = constraint.usual([(number, len(tier.endpoints)) for number, tier in tiers]) if tiers else 0
    for number, tier in tiers:
        if number <= usual:
            continue
        if fresh := tuple(located for located in tier.endpoints if id(located) not in given):
            given.update(map(id, fresh))
            yield fresh


class Unconstrained(Struct, frozen=True, gc=False):
    """Every client gets every endpoint."""

    keys: tuple[str, ...] = ()
    client_keys: tuple[str, ...] = ()
    soft: bool = True

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return (): nothing decides about the client."""
        return ()

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose all endpoints."""
        return Selection(tuple(endpoints), UNCONSTRAINED)


class FirstMatch(Struct, frozen=True, gc=False):
    """The first key that matches enough endpoints decides (KEP-536, ``topologyKeys``).

    A key matches the endpoints that have the client's value of it; a client or endpoint without that label never
    matches. ``*`` matches all. Enough is *at_least*; if no key matches enough, the first that matched any decides.
    """

    keys: tuple[str, ...]
    at_least: int = 1

    @property
    def client_keys(self) -> tuple[str, ...]:
        """The keys by their current names, and the cluster beside the hostname, which is unique in one only."""
        return _client_keys(self.keys)

    @property
    def soft(self) -> bool:
        """Whether the last key is ``*``."""
        return self.keys[-1:] == (ANY_ENDPOINT,)

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return, for each key, the values that *endpoints* have."""
        return _values_of(self.client_keys, endpoints)

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose the endpoints that the first key matches which matches enough."""
        steps: list[Step] = []
        too_few: tuple[str, tuple[LocatedEndpoint, ...]] | None = None
        for key in self.keys:
            if key == ANY_ENDPOINT:
                steps.append(Step(ANY_ENDPOINT, None, len(endpoints)))
                return Selection(tuple(endpoints), ALL, tuple(steps), ANY_ENDPOINT)
            tier = _tier(key, client, endpoints, steps)
            if len(tier) >= self.at_least:
                return Selection(tier, NEAREST, tuple(steps), key, (key,))
            if tier and too_few is None:
                too_few = key, tier
        if too_few is None:
            return Selection((), UNMET, tuple(steps))
        key, tier = too_few
        return Selection(tier, NEAREST, tuple(steps), key, (key,))

    def tiers(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Tiers:
        """Yield what each key matches."""
        steps: list[Step] = []
        for number, key in enumerate(self.keys):
            if key == ANY_ENDPOINT:
                steps.append(Step(ANY_ENDPOINT, None, len(endpoints)))
                yield number, Selection(tuple(endpoints), ALL, tuple(steps), ANY_ENDPOINT)
            elif tier := _tier(key, client, endpoints, steps):
                yield number, Selection(tier, NEAREST, tuple(steps), key, (key,))

    def usual(self, tiers: Sequence[tuple[int, int]]) -> int:
        """Return the first key that matches enough, else the first that matches any; ``*`` is enough in any case."""
        last = len(self.keys) - 1 if self.soft else len(self.keys)
        return next((number for number, size in tiers if size >= self.at_least or number == last), tiers[0][0])


class Narrowing(Struct, frozen=True, gc=False):
    """Each key narrows the endpoints that the keys before it left (``ServicePolicy``).

    A *required* key always narrows, even to nothing. Any other key narrows only if *at_least* endpoints are left.
    """

    keys: tuple[str, ...]
    required: tuple[str, ...] = ()
    at_least: int = 1

    @property
    def client_keys(self) -> tuple[str, ...]:
        """The keys by their current names, and the cluster beside the hostname, which is unique in one only."""
        return _client_keys(self.keys)

    @property
    def soft(self) -> bool:
        """Whether no key is required."""
        return not self.required

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return, for each key, the values that *endpoints* have."""
        return _values_of(self.client_keys, endpoints)

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose the endpoints that all keys left. The last key that narrowed is the one that decided."""
        steps: list[Step] = []
        narrowed: list[str] = []
        left = tuple(endpoints)
        for key in self.keys:
            tier = _tier(key, client, left, steps)
            if key in self.required or len(tier) >= self.at_least:
                left = tier
                narrowed.append(key)
                if not left:
                    return Selection((), UNMET, tuple(steps), None, tuple(narrowed))
        if not narrowed:
            return Selection(left, ALL, tuple(steps), ANY_ENDPOINT)
        return Selection(left, NEAREST, tuple(steps), narrowed[-1], tuple(narrowed))

    def tiers(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Tiers:
        """Yield what all keys left, then what is left with fewer: the last one that narrowed is given up first.

        Required keys, which come first, are never given up.
        """
        selection = self.select(client, endpoints)
        if not selection.endpoints:
            return
        yield 0, selection
        narrowed, steps = selection.narrowed, selection.steps
        kept = sum(key in self.required for key in narrowed)
        for number, count in enumerate(range(len(narrowed) - 1, kept - 1, -1), 1):
            left = tuple(endpoints)
            for key in narrowed[:count]:
                left = _tier(key, client, left, [])
            if count:
                yield number, Selection(left, NEAREST, steps, narrowed[count - 1], narrowed[:count])
            else:
                yield number, Selection(left, ALL, steps, ANY_ENDPOINT)

    def usual(self, tiers: Sequence[tuple[int, int]]) -> int:
        """Return 0: what all keys left."""
        return 0


class Hinted(Struct, frozen=True, gc=False):
    """The endpoints whose hints are for the client's node, else those for its zone, else all (kube-proxy's rule).

    Hints for nodes count only in the address families of which every ready endpoint has some: *for_nodes* are the
    octets in their addresses. Hints for zones count likewise (*for_zones*): ``topologyModeFromHints`` of kube-proxy
    1.36. Hints that only some endpoints have say nothing.
    """

    for_nodes: tuple[int, ...] = ()
    for_zones: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the hints say anything."""
        return bool(self.for_nodes or self.for_zones)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels that the hints stand for, and ``*``: a client for whom no endpoint is gets all."""
        return (*([HOSTNAME] if self.for_nodes else []), *([ZONE] if self.for_zones else []), ANY_ENDPOINT)

    @property
    def client_keys(self) -> tuple[str, ...]:
        """The client's node by its name, which need not be its hostname label, its cluster, and its zone."""
        return (*((NODE_NAME, CLUSTER) if self.for_nodes else ()), *((ZONE,) if self.for_zones else ()))

    @property
    def soft(self) -> bool:
        """Always: hints never leave a client without an endpoint."""
        return True

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return the nodes and the clusters, and the zones, that the endpoints are for."""
        nodes, zones = (
            themselves(name for located in endpoints for name in names_for(key, located)) for key in (HOSTNAME, ZONE)
        )
        clusters = themselves(located.location.labels.get(CLUSTER) for located in endpoints)
        return (*((nodes, clusters) if self.for_nodes else ()), *((zones,) if self.for_zones else ()))

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose the endpoints for the client's node, else those for its zone, else all."""
        return next(selection for _, selection in self.tiers(client, endpoints))

    def tiers(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Tiers:
        """Yield the endpoints for the client's node, those for its zone, and all."""
        steps: list[Step] = []
        for number, key in enumerate(self.keys[:-1]):
            value, sizes = (client.node, self.for_nodes) if key == HOSTNAME else (client.value(ZONE), self.for_zones)
            chosen = tuple(
                located
                for located in endpoints
                if value is not None
                and value in names_for(key, located)
                and any(len(address) in sizes for address in located.endpoint.addresses)
                and (key != HOSTNAME or not in_two_clusters(client, located.location))
            )
            steps.append(Step(key, value, len(chosen)))
            if chosen:
                yield number, Selection(chosen, NEAREST, tuple(steps), key, (key,))
        steps.append(Step(ANY_ENDPOINT, None, len(endpoints)))
        yield len(self.keys) - 1, Selection(tuple(endpoints), ALL, tuple(steps), ANY_ENDPOINT)

    def usual(self, tiers: Sequence[tuple[int, int]]) -> int:
        """Return the first."""
        return tiers[0][0]

    @property
    def at_least(self) -> int:
        """One: ``topodns.io/min-endpoints`` is not about hints."""
        return 1


class NamedDomain(Struct, frozen=True, gc=False):
    """Chooses the endpoints in the topology domain that the queried name states, wherever the client is.

    *value* is in lower case, as names are. If the domain has no endpoint: all endpoints with *or_all*, else none.
    """

    key: str
    value: str
    or_all: bool = False
    client_keys: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of the domain, and ``*`` if all endpoints will do."""
        return (self.key, ANY_ENDPOINT) if self.or_all else (self.key,)

    @property
    def soft(self) -> bool:
        """Whether all endpoints will do."""
        return self.or_all

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return (): nothing decides about the client."""
        return ()

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose the endpoints in the domain."""
        inside = tuple(
            located for located in endpoints if (located.location.value(self.key) or "").lower() == self.value
        )
        step = Step(self.key, self.value, len(inside))
        if inside:
            return Selection(inside, NEAREST, (step,), self.key, (self.key,))
        if self.or_all:
            return Selection(tuple(endpoints), ALL, (step, Step(ANY_ENDPOINT, None, len(endpoints))), ANY_ENDPOINT)
        return Selection((), UNMET, (step,), None, (self.key,))


def names_for(key: str, located: LocatedEndpoint) -> tuple[str, ...]:
    """Return the nodes (*key* is ``kubernetes.io/hostname``) or the zones that the endpoint is for by its hints."""
    hints = located.endpoint.hints or _NO_HINTS
    return hints.nodes if key == HOSTNAME else hints.zones


def _client_keys(keys: Sequence[str]) -> tuple[str, ...]:
    client_keys = dict.fromkeys(SUCCESSORS.get(key, key) for key in keys if key != ANY_ENDPOINT)
    return (*client_keys, CLUSTER) if HOSTNAME in client_keys and CLUSTER not in client_keys else (*client_keys,)


def _values_of(client_keys: Sequence[str], endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
    """Return, for each of some label keys, the values that *endpoints* have."""
    labels = [located.location.labels for located in endpoints]
    return tuple(themselves(of_node.get(key) for of_node in labels) for key in client_keys)


def themselves(values: Iterable[Value]) -> dict[Value, Value]:
    """Return *values*, each of which stands for itself."""
    return {value: value for value in values}


def _tier(
    key: str, client: Location, endpoints: Sequence[LocatedEndpoint], steps: list[Step]
) -> tuple[LocatedEndpoint, ...]:
    """Return the endpoints that have the client's value of *key*, and append the step to *steps*."""
    label = SUCCESSORS.get(key, key)  # once, not for each of hundreds of endpoints
    value = client.labels.get(label)
    same = [] if value is None else [located for located in endpoints if located.location.labels.get(label) == value]
    if label == HOSTNAME:  # two nodes of one name may be in two clusters
        same = [located for located in same if not in_two_clusters(client, located.location)]
    tier = tuple(same)
    steps.append(Step(key, value, len(tier)))
    return tier
