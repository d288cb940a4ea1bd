# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness: which nodes' clients a Service's nearest endpoints have room for, and what the others get.

The nearest endpoints get all clients near them, however many. With ``topodns.io/max-overload`` a client gets the
endpoints of the first key that has room for its node. ``locator.topology.plan`` decides that for all nodes of a cluster
at once, ``Balance`` says what becomes of the clients, and ``Balanced`` is the constraint that answers by the plan.

A node is the finest unit: NodeLocal DNSCache answers all pods of a node alike. *Cells* are all nodes with the same
slot and the same values of the constraint's keys. A *pool* is the endpoints that one tier of the constraint leaves to
some of them: those with one value of a key, say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from locator.model import HOSTNAME, NODE_NAME, NODE_SLOT, SUCCESSORS, ZONE, Location
from locator.topology.cells import SLOTS, Values
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

Endpoints = tuple[int, ...]  # the positions of some of a Service's ready endpoints, in their order
PoolKey = tuple[int, Endpoints]  # the number of the tier, and the endpoints in it
Order = tuple[int, tuple[str, ...]]  # of cells: by their position after the Service's own slot, then by their values


class Pool(NamedTuple):
    """What is left of a pool: from the cell with one of the ``orders`` on the endpoints at the same place of ``left``.

    Nothing is left of a pool that is closed.
    """

    orders: tuple[Order, ...]
    left: tuple[Endpoints, ...]

    def at(self, order: Order, first: Endpoints) -> Endpoints:
        """Return what is left for a cell, of those that were there at *first*."""
        place = bisect_right(self.orders, order)
        return self.left[place - 1] if place else first


class Balance(Struct, frozen=True, gc=False):
    """What becomes of the clients of a Service with a *constraint* and a ``max_overload``.

    ``clients`` is the number of those for whom the constraint matches an endpoint, ``cap`` how many an endpoint may
    expect. ``expected`` is how many each ready endpoint expects, ``full`` the positions of those that left a pool.
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

    ``start`` is the Service's own slot, from which on nodes come in turn. The ``hot`` endpoints expect too many clients
    of unknown nodes alone, so they are in no pool. ``pools`` are those that some other endpoint has left.
    """

    constraint: TieredConstraint
    start: int
    pools: Mapping[PoolKey, Pool]
    hot: Endpoints = ()

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
        order = (client.slot - self.start) % SLOTS, text_of(cell_values(self.constraint, client, endpoints))
        positions = {id(located): position for position, located in enumerate(endpoints)}
        usual = self.constraint.usual([(number, len(selection.endpoints)) for number, selection in tiers])
        full: list[str] = []
        for number, selection in tiers:
            whole = tuple([positions[id(located)] for located in selection.endpoints])
            pool = self.pools.get((number, whole))
            cool = without(self.hot, whole)
            left = cool if pool is None else pool.at(order, cool)
            if len(left) >= self.constraint.at_least:
                outcome = SPILLED if number > usual else selection.outcome
                chosen = tuple([endpoints[position] for position in left])
                return replace(selection, endpoints=chosen, outcome=outcome, full=(*full,))
            if len(left) < len(whole):
                full.append(selection.key or ANY_ENDPOINT)
        number, selection = tiers[-1]  # in vain: everything that the last key matches, as if it had room
        return replace(selection, outcome=SPILLED if number > usual else selection.outcome, full=(*full,))


def without(hot: Endpoints, whole: Endpoints) -> Endpoints:
    """Return those of some endpoints that are not *hot*."""
    return tuple([position for position in whole if position not in hot]) if hot else whole


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
    values = [(client.client_value(key), values_of(key, endpoints)) for key in cell_keys(constraint)]
    return tuple([value if value in known else None for value, known in values])


def values_of(key: str, endpoints: Iterable[LocatedEndpoint]) -> set[str | None]:
    """Return the values of one of the ``cell_keys`` that endpoints have."""
    return {located.location.client_value(key) for located in endpoints} - {None}


def text_of(values: Values) -> tuple[str, ...]:
    """Return values in a form that sorts, none before all else: no label that counts is empty."""
    return shared(tuple([value or "" for value in values]))


@lru_cache(maxsize=1 << 12)
def shared(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the one object for what many Services have alike: all of 15 endpoints, say, or a zone."""
    return value
