# SPDX-License-Identifier: Apache-2.0

"""Plans which nodes' clients get which of a Service's endpoints, so that none expects too many.

A plan is a function of the cluster alone, so that all replicas of topodns agree: of who asks, by cell, and of a
``Layout``, which says where the endpoints are. Tier by tier, cells come in turn, and put their clients on what is left
of their pool.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from itertools import accumulate
from operator import add

from msgspec import Struct

from locator.model import CLUSTER, HOSTNAME, NODE_NAME, SUCCESSORS, Location
from locator.topology.balance import (
    SLACK,
    Balance,
    Balanced,
    Endpoints,
    Order,
    Pool,
    PoolKey,
    shared,
    text_of,
    values_of,
    without,
)
from locator.topology.cells import SLOTS, CellTable, Column, Values, reduced, slot
from locator.topology.selection import ANY_ENDPOINT, FirstMatch, LocatedEndpoint, TieredConstraint

DIGITS = 6  # binary ones of the number of clients that count: else each pod that comes or goes would move somebody


class CellGroup(Struct, frozen=True, gc=False):
    """The cells with the same values of the constraint's keys, and what their clients get.

    ``pools`` are what they get by one tier after the other, ``usual`` is what they get without a plan. The clients are
    those in the ``columns``, except for those in the columns ``others``, and in the slots ``own``.
    """

    values: tuple[str, ...]
    pools: tuple[PoolKey, ...]
    usual: Endpoints
    columns: tuple[Column, ...]
    others: tuple[Column, ...]
    own: bytes

    @property
    def clients(self) -> int:
        """The number of clients in all cells."""
        total = -len(self.own)
        for column in self.columns:
            total += column.total
        for column in self.others:
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
    known = [values_of(key, endpoints) for key in table.keys]
    columns: dict[Values, tuple[list[Column], list[Column], bytearray]] = {}

    def group(values: Values) -> tuple[list[Column], list[Column], bytearray]:
        return columns.setdefault(values, ([], [], bytearray()))

    for values, column, sign in table.columns(known):
        counted, others, _ = group(values)
        (counted if sign > 0 else others).append(column)
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
    for values, (counted, others, slots) in columns.items():
        pools, usual = tiers.of(values)
        groups.append(CellGroup(text_of(values), pools, usual, (*counted,), (*others,), bytes(slots)))
    return Layout(
        constraint,
        start,
        len(endpoints),
        tuple(sorted(groups, key=lambda group: group.values)),
        tuple((tiers.of(values)[1], unknown[values]) for values in sorted(unknown, key=text_of) if unknown[values]),
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
        pool = number, shared(endpoints)
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
    full = tuple(sorted(filling.full))
    balance = Balance(layout.constraint, max_overload, clients, cap, _expected(filling.loads), full)
    return balance, Balanced(layout.constraint, layout.start, filling.pools, filling.hot)


def _expected(loads: Iterable[float]) -> tuple[float, ...]:
    """Return loads, of which many are equal, with one object for equal ones."""
    known: dict[float, float] = {}
    return tuple([known.setdefault(load, load) for load in loads])


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
            for column in group.others:
                for number, others in column.weights.items():
                    clients[(number - start) % SLOTS] -= others
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
    """Puts the clients of cells on endpoints, tier by tier, up to a *limit*.

    ``loads`` are what is on them already; the ``hot`` ones have more than the limit of that.
    """

    def __init__(self, layout: Layout, loads: list[float], limit: float) -> None:
        self.loads, self._limit, self._at_least = loads, limit, layout.constraint.at_least
        self.hot = tuple([position for position, load in enumerate(loads) if load > limit])
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
            if len({at for pool in by_pool for at in pool}) == sum(map(len, by_pool)):
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
        for position, values, filling, waiting in sorted(cells, key=lambda cell: cell[:2]):
            if filling.members:
                clients = waiting.at(position)
                filling.make_room((position, values), clients)
                _put(self.loads, filling.members, clients)
        for filling in fillings:
            filling.end()

    def enter(self, whole: Endpoints) -> Endpoints:
        """Return those of a pool's endpoints that have room for anybody."""
        left = without(self.hot, whole)
        self.full.update(set(whole) - set(left))
        return left if len(left) >= self._at_least else ()

    def leave(self, members: Endpoints, clients: float) -> Endpoints:
        """Return those of some endpoints that have room for so many clients; the greatest loads leave first."""
        loads, left = self.loads, members
        while left and (top := max([loads[position] for position in left])) + clients / len(left) > self._limit:
            self.full.update(position for position in left if loads[position] >= top - SLACK)
            left = tuple([position for position in left if loads[position] < top - SLACK])
        return left if len(left) >= self._at_least else ()

    def room_in(self, members: Endpoints) -> float:
        """Return how many clients some endpoints have room for, all of them together."""
        return max(0.0, self._limit - max([self.loads[position] for position in members], default=0.0)) * len(members)


class _PoolFilling:
    """Puts clients on one pool: *waiting*, in the order of their values. ``members`` are left of it.

    ``orders`` and ``left`` are those of ``Pool``.
    """

    def __init__(self, of_all: _Filling, whole: Endpoints, waiting: list[_Waiting]) -> None:
        self.whole, self.members, self.waiting = whole, of_all.enter(whole), waiting
        self.orders: list[Order] = []
        self.left: list[Endpoints] = []
        self._of_all = of_all
        self._closed: Order = (SLOTS if self.members else 0, ())

    def fill(self) -> None:
        """Put the clients of all cells on the pool, as long as there is room, a stretch of cells at a time."""
        of_all, clients, placed = self._of_all, sum([one.clients for one in self.waiting]), 0
        sums: list[int] = []
        while self.members:
            room = of_all.room_in(self.members)
            if clients - placed <= room:
                _put(of_all.loads, self.members, clients - placed)
                break
            sums = sums or _added([waiting.waiting_sums() for waiting in self.waiting])
            position, values, before, here = self._first_beyond(placed + room, sums)
            _put(of_all.loads, self.members, before - placed)
            self.make_room((position, values), here)
            _put(of_all.loads, self.members, here)
            placed = before + here
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
