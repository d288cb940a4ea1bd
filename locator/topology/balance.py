# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness: which nodes' clients a Service's nearest endpoints have room for, and what the others get.

The nearest endpoints get all clients near them, however many. With ``topodns.io/max-overload`` a client gets the
endpoints of the first key that has room for its node. ``plan`` decides that for all nodes of a cluster at once, and
``Balanced`` is the constraint that answers by it. The rule is that of a function of the cluster alone, so that all
replicas of topodns agree.

A node is the finest unit: NodeLocal DNSCache answers all pods of a node alike. *Cells* are all nodes with the same
slot and the same values of the constraint's keys. A *pool* is the endpoints that one tier of the constraint leaves to
some of them: those with one value of a key, say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate
from operator import add
from typing import Any, NamedTuple, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from locator.model import CLUSTER, HOSTNAME, NODE_NAME, NODE_SLOT, SUCCESSORS, ZONE, Location
from locator.topology.cells import SLOTS, CellTable, Column, Values, reduced, slot
from locator.topology.selection import (
    ANY_ENDPOINT,
    SPILLED,
    Constraint,
    FirstMatch,
    Hinted,
    LocatedEndpoint,
    Narrowing,
    Selection,
    TieredConstraint,
    Value,
    names_for,
)

SLACK = 1e-9  # for sums of fractions
DIGITS = 6  # binary ones of the number of clients that count: else each pod that comes or goes would move somebody

Endpoints = tuple[int, ...]  # the positions of some of a Service's ready endpoints, in their order
PoolKey = tuple[int, Endpoints]  # the number of the tier, and the endpoints in it
Order = tuple[int, tuple[str, ...]]  # of cells: by their position after the Service's own slot, then by their values
FIRST: Order = (-1, ())  # before all cells


class Pool(NamedTuple):
    """What is left of a pool: from the cell with one of the ``orders`` on the endpoints at the same place of ``left``.

    Nothing is left of a pool that is closed.
    """

    orders: tuple[Order, ...]
    left: tuple[Endpoints, ...]

    def at(self, order: Order, whole: Endpoints) -> Endpoints:
        """Return what is left for a cell, of all that were there at first."""
        place = bisect_right(self.orders, order)
        return self.left[place - 1] if place else whole


class Balance(Struct, frozen=True, gc=False):
    """What becomes of the clients of a Service with a *constraint* and a ``max_overload``.

    ``clients`` is the number of those for whom the constraint matches an endpoint, ``cap`` how many an endpoint may
    expect. ``expected`` is how many each ready endpoint expects, ``full`` the positions of those that had no more room
    for some node that they are nearest to.
    """

    constraint: TieredConstraint
    max_overload: float
    clients: int
    cap: float
    expected: tuple[float, ...]
    full: Endpoints = ()

    @property
    def exceeded(self) -> list[int]:
        """The positions of the endpoints that expect more than the cap all the same."""
        limit = self.cap + SLACK
        if max(self.expected, default=0.0) <= limit:  # as nearly always
            return []
        return [at for at, clients in enumerate(self.expected) if clients > limit]


class Balanced(Struct, frozen=True, gc=False):
    """A *constraint* whose pools have room for a part of the nodes only. It chooses as that does, but for these.

    ``start`` is the Service's own slot, from which on nodes come in turn, and ``pools`` are those that some endpoint
    has left.
    """

    constraint: TieredConstraint
    start: int
    pools: Mapping[PoolKey, Pool]

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys of the constraint."""
        return self.constraint.keys

    @property
    def client_keys(self) -> tuple[str, ...]:
        """What decides about the client: the slot of its node, and what the constraint compares."""
        return (NODE_SLOT, *self.constraint.client_keys)

    @property
    def soft(self) -> bool:
        """Whether the constraint is."""
        return self.constraint.soft

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[Mapping[Value, Value], ...]:
        """Return the slots, of which few stand for the others, and what distinguishes the values of the constraint."""
        changes = {position for pool in self.pools.values() for position, _ in pool.orders}
        bounds = sorted(changes | {position + 1 for position in changes})
        standing: dict[int, int] = {}  # the slot that stands for those from one bound to the next
        slots: dict[Value, Value] = {
            number: standing.setdefault(bisect_right(bounds, (number - self.start) % SLOTS), number)
            for number in range(SLOTS)
        }
        return (slots, *self.constraint.distinguishing_values(endpoints))

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """Choose the endpoints of the first key that has room for the client's node, without a node as without a plan.

        *endpoints* are all ready ones of the Service, for which the plan was made.
        """
        tiers = [*self.constraint.tiers(client, endpoints)] if client.slot is not None else []
        if client.slot is None or not tiers:
            return self.constraint.select(client, endpoints)
        order = (client.slot - self.start) % SLOTS, _text(cell_values(self.constraint, client, endpoints))
        positions = {id(located): position for position, located in enumerate(endpoints)}
        usual = self.constraint.usual([(number, len(selection.endpoints)) for number, selection in tiers])
        full: list[str] = []
        for number, selection in tiers:
            whole = tuple([positions[id(located)] for located in selection.endpoints])
            pool = self.pools.get((number, whole))
            left = whole if pool is None else pool.at(order, whole)
            if len(left) >= self.constraint.at_least:
                outcome = SPILLED if number > usual else selection.outcome
                chosen = tuple([endpoints[position] for position in left])
                return replace(selection, endpoints=chosen, outcome=outcome, full=(*full,))
            if pool is not None:
                full.append(selection.key or ANY_ENDPOINT)
        number, selection = tiers[-1]  # in vain: everything that the last key matches, as if it had room
        return replace(selection, outcome=SPILLED if number > usual else selection.outcome, full=(*full,))


# --- The plan ---------------------------------------------------------------------------------------------------------


class CellGroup(Struct, frozen=True, gc=False):
    """The cells with the same values of the constraint's keys, and what their clients get.

    ``pools`` are what they get by one tier after the other, ``usual`` is what they get without a plan. The clients are
    those in the ``columns``, less those in the columns ``elsewhere``, less those in the slots ``own``.
    """

    values: tuple[str, ...]
    pools: tuple[PoolKey, ...]
    usual: Endpoints
    columns: tuple[Column, ...]
    elsewhere: tuple[Column, ...]
    own: bytes

    @property
    def clients(self) -> int:
        """The number of clients in all cells."""
        total = -len(self.own)
        for column in self.columns:
            total += column.total
        for column in self.elsewhere:
            total -= column.total
        return total


class Layout(Struct, frozen=True, gc=False):
    """Where the endpoints of a Service are, from the view of its clients: what a plan is made of, besides numbers.

    It holds while the endpoints are the same, and the *table* has the version ``version``. ``elsewhere`` are the
    clients whose node is not known: what they get, and how many they are.
    """

    constraint: TieredConstraint
    start: int
    endpoints: int
    groups: tuple[CellGroup, ...]
    elsewhere: tuple[tuple[Endpoints, int], ...]
    version: int


def layout_of(
    service: str,
    constraint: TieredConstraint,
    endpoints: Sequence[LocatedEndpoint],
    table: CellTable,
    own: Iterable[Hashable],
    cluster: str,
) -> Layout:
    """Return the layout of a Service (``namespace/name``) of a *cluster* with these ready endpoints.

    *table* has who asks by the ``cell_keys`` of the constraint. *own* has the node of each of them that does not count,
    since it is an endpoint of the Service.
    """
    start = slot(service)
    known = [_values_of(key, endpoints) for key in table.keys]
    columns: dict[Values, tuple[list[Column], list[Column], bytearray]] = {}

    def group(values: Values) -> tuple[list[Column], list[Column], bytearray]:
        return columns.setdefault(values, ([], [], bytearray()))

    for values, column, sign in table.columns(known):
        counted, elsewhere, _ = group(values)
        (counted if sign > 0 else elsewhere).append(column)
    unknown = {values: clients for values, clients in table.elsewhere.items() if clients}
    groups_of: dict[Values, bytearray] = {}
    for node in own:
        at, values = table.cell_of(node)
        if at is None:
            unknown[values] = unknown.get(values, 0) - 1
            continue
        if values not in groups_of:
            groups_of[values] = group(reduced(values, known))[2]
        groups_of[values].append(at)
    tiers = _Tiers(constraint, table.keys, endpoints, cluster)
    groups = []
    for values, (counted, elsewhere, slots) in columns.items():
        pools, usual = tiers.of(values)
        groups.append(CellGroup(_text(values), pools, usual, (*counted,), (*elsewhere,), bytes(slots)))
    return Layout(
        constraint,
        start,
        len(endpoints),
        tuple(sorted(groups, key=lambda group: group.values)),
        tuple((tiers.of(values)[1], unknown[values]) for values in sorted(unknown, key=_text) if unknown[values]),
        table.version,
    )


class _Tiers:
    """What clients get by one tier after the other, by their values of the keys."""

    def __init__(
        self, constraint: TieredConstraint, keys: Sequence[str], endpoints: Sequence[LocatedEndpoint], cluster: str
    ) -> None:
        self._constraint, self._keys, self._endpoints, self._cluster = constraint, keys, endpoints, cluster
        self._positions = {id(located): position for position, located in enumerate(endpoints)}
        self._shared: dict[PoolKey, PoolKey] = {}
        self._by_value = self._pools_by_value(constraint) if isinstance(constraint, FirstMatch) else []

    def of(self, values: Values) -> tuple[tuple[PoolKey, ...], Endpoints]:
        """Return the pools of clients with these values, and what they get without a plan."""
        if self._by_value:
            found = zip(self._by_value, (*values, None), strict=False)
            pools = tuple([pool for by_value, value in found if (pool := by_value.get(value)) is not None])
        else:
            pools = self._pools_of(values)
        if not pools:
            return (), ()
        usual = self._constraint.usual([(number, len(pool)) for number, pool in pools])
        return pools, next(pool for number, pool in pools if number == usual)

    def _pools_by_value(self, constraint: FirstMatch) -> list[dict[str | None, PoolKey]]:
        """Return the pools of each key by its values, that of ``*`` by None: faster than ``tiers`` for each value."""
        found: list[dict[str | None, PoolKey]] = []
        for number, key in enumerate(constraint.keys):
            if key == ANY_ENDPOINT:
                found.append({None: self._known(number, tuple(range(len(self._endpoints))))})
                continue
            label, by_value = SUCCESSORS.get(key, key), dict[str, list[int]]()
            for position, located in enumerate(self._endpoints):
                labels = located.location.labels
                elsewhere = label == HOSTNAME and labels.get(CLUSTER, self._cluster) != self._cluster
                if (value := labels.get(label)) is not None and not elsewhere:
                    by_value.setdefault(value, []).append(position)
            found.append({value: self._known(number, tuple(positions)) for value, positions in by_value.items()})
        return found

    def _pools_of(self, values: Values) -> tuple[PoolKey, ...]:
        labels = {key: value for key, value in zip(self._keys, values, strict=True) if value is not None}
        labels.setdefault(CLUSTER, self._cluster)
        client = Location(labels.pop(NODE_NAME, None), labels)
        return tuple(
            [
                self._known(number, tuple([self._positions[id(located)] for located in selection.endpoints]))
                for number, selection in self._constraint.tiers(client, self._endpoints)
            ]
        )

    def _known(self, number: int, endpoints: Endpoints) -> PoolKey:
        """Return the one object for a pool."""
        pool = number, _shared(endpoints)
        return self._shared.setdefault(pool, pool)


def plan(layout: Layout, max_overload: float) -> tuple[Balance, Balanced | None]:
    """Return what becomes of the clients, and the constraint that sees to it; None if no endpoint is overloaded.

    An endpoint is if it expects more than *max_overload* even shares of the clients. The cap counts only the first
    DIGITS of their number.
    """
    loads, clients = [0.0] * layout.endpoints, 0
    for endpoints, number in layout.elsewhere:
        _put(loads, endpoints, number)
        clients += number if endpoints else 0
    base = list(loads)
    for group in layout.groups:
        number = group.clients
        if number and group.usual:
            clients += number
            _put(loads, group.usual, number)
    few = max(0, clients.bit_length() - DIGITS)
    cap = max(1.0, max_overload * (clients >> few << few) / max(1, layout.endpoints))
    if max(loads, default=0.0) <= cap + SLACK:
        return Balance(layout.constraint, max_overload, clients, cap, _expected(loads)), None
    filling = _Filling(layout, base, cap + SLACK)
    filling.run()
    pools = {key: pool for key, pool in filling.pools.items() if pool.orders}
    full = tuple(sorted(filling.full))
    balance = Balance(layout.constraint, max_overload, clients, cap, _expected(filling.loads), full)
    return balance, Balanced(layout.constraint, layout.start, pools)


def _expected(loads: Iterable[float]) -> tuple[float, ...]:
    """Return loads, of which many are equal, with one object for equal ones."""
    known: dict[float, float] = {}
    return tuple([known.setdefault(load, load) for load in loads])


@lru_cache(maxsize=1 << 12)
def _shared(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the one object for what many Services have alike: all of 15 endpoints, say, or a zone."""
    return value


def _added(rows: Sequence[list[int]]) -> list[int]:
    return reduce(lambda one, other: [*map(add, one, other)], rows)


def _put(loads: list[float], endpoints: Endpoints, clients: float) -> None:
    each = clients / max(1, len(endpoints))
    for position in endpoints:
        loads[position] += each


class _Waiting:
    """The cells of one group that wait for room: those from position ``since`` on."""

    __slots__ = ("_start", "_sums", "group", "since")

    def __init__(self, group: CellGroup, start: int) -> None:
        self.group, self.since, self._start = group, 0, start
        self._sums: list[int] = []

    @property
    def clients(self) -> int:
        """The number of clients in these cells."""
        if not self.since:
            return self.group.clients
        return 0 if self.since == SLOTS else self.sums[SLOTS] - self.sums[self.since]

    @property
    def sums(self) -> list[int]:
        """How many clients are in the cells before each position, of all cells."""
        if not self._sums:
            group, start = self.group, self._start
            turns = [column.turns[start : start + SLOTS] for column in group.columns] or [[0] * SLOTS]
            clients = _added(turns)
            for number in group.own:
                clients[(number - start) % SLOTS] -= 1
            for column in group.elsewhere:
                for number, elsewhere in column.weights.items():
                    clients[(number - start) % SLOTS] -= elsewhere
            self._sums = [0, *accumulate(clients)]
        return self._sums

    def at(self, position: int) -> int:
        """Return how many clients are in the cell at a position."""
        return self.sums[position + 1] - self.sums[position]

    def waiting_sums(self) -> list[int]:
        """Return how many clients wait before each position."""
        since, sums = self.since, self.sums
        base = sums[since]
        return [*[0] * since, *[clients - base for clients in sums[since:]]] if since else sums


class _Filling:
    """Puts the clients of cells on endpoints, tier by tier, up to a *limit*. ``loads`` are what is on them already."""

    def __init__(self, layout: Layout, loads: list[float], limit: float) -> None:
        self.loads, self._limit, self._at_least = loads, limit, layout.constraint.at_least
        self.full: set[int] = set()
        self.pools: dict[PoolKey, Pool] = {}  # those that somebody has left
        # In the order of their values, as the groups are.
        self._waiting = [_Waiting(group, layout.start) for group in layout.groups if group.pools]

    def run(self) -> None:
        """Put all clients somewhere."""
        for number in sorted({number for waiting in self._waiting for number, _ in waiting.group.pools}):
            by_pool: dict[Endpoints, list[_Waiting]] = {}
            for waiting in self._waiting:
                if waiting.since < SLOTS:
                    for tier, pool in waiting.group.pools:
                        if tier == number and len(pool) >= self._at_least:
                            by_pool.setdefault(pool, []).append(waiting)
            fillings = [_PoolFilling(self, pool, waiting) for pool, waiting in by_pool.items()]
            if len(fillings) == 1 or len({at for pool in by_pool for at in pool}) == sum(map(len, by_pool)):
                for filling in fillings:
                    filling.fill()
            else:  # policies may leave an endpoint to clients here and there
                self._fill_in_turn(fillings)
            for filling in fillings:
                if filling.orders:
                    self.pools[number, filling.whole] = Pool(tuple(filling.orders), tuple(filling.left))
        for waiting in self._waiting:
            if clients := waiting.clients:
                _put(self.loads, waiting.group.pools[-1][1], clients)

    def _fill_in_turn(self, fillings: Sequence[_PoolFilling]) -> None:
        """Put the clients of one cell after the other on pools that share endpoints."""
        cells = [
            (position, waiting.group.values, filling, waiting)
            for filling in fillings
            for waiting in filling.waiting
            for position in range(waiting.since, SLOTS)
            if waiting.at(position)
        ]
        for filling in fillings:
            filling.make_room(FIRST, 0)
        for position, values, filling, waiting in sorted(cells, key=lambda cell: cell[:2]):
            if filling.members:
                clients = waiting.at(position)
                filling.make_room((position, values), clients)
                _put(self.loads, filling.members, clients)
        for filling in fillings:
            filling.end()

    def leave(self, members: Endpoints, clients: float) -> Endpoints:
        """Return those of some endpoints that have room for so many clients; the greatest loads leave first."""
        loads, left = self.loads, members
        while left and (top := max([loads[position] for position in left])) + clients / len(left) > self._limit:
            self.full.update(position for position in left if loads[position] >= top - SLACK)
            left = tuple([position for position in left if loads[position] < top - SLACK])
        return left if len(left) >= self._at_least else ()

    def room_in(self, members: Endpoints) -> float:
        """Return how many clients some endpoints have room for, all of them together; less than 0 if for none."""
        return (self._limit - max([self.loads[position] for position in members], default=0.0)) * len(members)


class _PoolFilling:
    """Puts clients on one pool: *waiting*, in the order of their values. ``members`` are left of it.

    ``orders`` and ``left`` are those of ``Pool``.
    """

    def __init__(self, of_all: _Filling, whole: Endpoints, waiting: list[_Waiting]) -> None:
        self.whole = self.members = whole
        self.waiting = waiting
        self.orders: list[Order] = []
        self.left: list[Endpoints] = []
        self._of_all = of_all
        self._closed: Order = (SLOTS, ())

    def fill(self) -> None:
        """Put the clients of all cells on the pool, as long as there is room, a stretch of cells at a time."""
        of_all, clients, placed = self._of_all, sum([one.clients for one in self.waiting]), 0
        sums: list[int] = []
        if (room := of_all.room_in(self.members)) < 0:
            self.make_room(FIRST, 0)
            room = of_all.room_in(self.members)
        while self.members:
            if clients - placed <= room:
                _put(of_all.loads, self.members, clients - placed)
                break
            sums = sums or _added([waiting.waiting_sums() for waiting in self.waiting])
            position, values, before, here = self._first_beyond(placed + room, sums)
            _put(of_all.loads, self.members, before - placed)
            self.make_room((position, values), here)
            _put(of_all.loads, self.members, here)
            placed, room = before + here, max(0.0, of_all.room_in(self.members))
        self.end()

    def make_room(self, order: Order, clients: int) -> None:
        """Let those endpoints leave that have no room for a cell."""
        left = self._of_all.leave(self.members, clients)
        if len(left) < len(self.members):
            self.members = left
            self.orders.append(order)
            self.left.append(left)
            if not left:
                self._closed = order

    def end(self) -> None:
        """Let the cells wait on that came when the pool was closed."""
        position, values = self._closed
        for waiting in self.waiting:
            since = position if waiting.group.values >= values else position + 1
            waiting.since = max(waiting.since, min(SLOTS, since))

    def _first_beyond(self, room: float, sums: Sequence[int]) -> tuple[int, tuple[str, ...], int, int]:
        """Return the first cell with which there are more clients than *room*.

        These are its position and values, how many clients are before it, and how many are in it. *sums* has how many
        wait before each position.
        """
        position = bisect_right(sums, room) - 1
        before = sums[position]
        for waiting in self.waiting:
            here = waiting.at(position) if waiting.since <= position else 0
            if before + here > room:
                return position, waiting.group.values, before, here
            before += here
        raise AssertionError("no cell at the position that was found")


# --- Cells ------------------------------------------------------------------------------------------------------------


def is_ordered(constraint: Constraint, endpoints: Iterable[LocatedEndpoint]) -> TypeGuard[TieredConstraint]:
    """Whether a constraint says nothing but which keys come first, so that others can follow where one has no room.

    Hints do if each endpoint's is for its own zone alone, and, where hints for nodes count, for its own node.
    """
    if not isinstance(constraint, Hinted):
        return isinstance(constraint, FirstMatch | Narrowing)
    return bool(constraint.for_zones) and all(
        names_for(ZONE, located) == (located.location.value(ZONE),)
        and (not constraint.for_nodes or names_for(HOSTNAME, located) == (located.location.node,))
        for located in endpoints
    )


def cell_keys(constraint: TieredConstraint) -> tuple[str, ...]:
    """Return what tells cells apart besides the slot: the constraint's keys, as ``Location.client_value`` has them."""
    if isinstance(constraint, Hinted):
        return (*((NODE_NAME,) if constraint.for_nodes else ()), ZONE)
    return tuple([SUCCESSORS.get(key, key) for key in constraint.keys if key != ANY_ENDPOINT])


def cell_values(constraint: TieredConstraint, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Values:
    """Return a client's values of the ``cell_keys``, None for each that no endpoint has."""
    values = [(client.client_value(key), _values_of(key, endpoints)) for key in cell_keys(constraint)]
    return tuple([value if value in known else None for value, known in values])


def _values_of(key: str, endpoints: Iterable[LocatedEndpoint]) -> set[str | None]:
    return {located.location.client_value(key) for located in endpoints} - {None}


def _text(values: Values) -> tuple[str, ...]:
    """Return values in a form that sorts, none before all else: no label that counts is empty."""
    return _shared(tuple([value or "" for value in values]))
