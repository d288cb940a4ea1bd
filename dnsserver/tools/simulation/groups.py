# SPDX-License-Identifier: Apache-2.0

"""Groups of clients: all pods for which an answer must be the same, so that one decision serves them all.

What an answer depends on is where a client is, by the labels that the constraint compares. So a group is the clients
with the same values of these labels. If the constraint compares the names of nodes, there are as many groups as nodes;
but to a Service, only the nodes with one of its endpoints differ, and clients on all others are one group. The groups
of all clients are made once for each list of labels, and a Service then looks only at those of its own nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dnsserver.tools.simulation.world import ClientPlace, Subject, World
from locator.model import ZONE
from locator.places.locations import has_labels
from locator.topology.selection import Value

FEW = 256  # groups: so many are looked at for each Service without more ado
OTHER = object()  # in the place of every value that matches no endpoint


class Values(NamedTuple):
    """By what clients are grouped.

    ``kind`` is whether they are known, whether they carry labels, and the size of the addresses that they can reach.
    """

    kind: tuple[bool, bool, int | None]
    client_keys: tuple[object, ...]
    zone: str | None


class Group(NamedTuple):
    """How many clients have the same values, and the place of one of them."""

    values: Values
    clients: int
    place: ClientPlace


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


class Grouping:
    """The clients in groups: by their ``Values.kind``, by their *client_keys*, and by their zone.

    *client_keys* are those of a constraint. *numbers* has the clients at each place.
    """

    def __init__(self, numbers: Mapping[ClientPlace, int], client_keys: Sequence[str]) -> None:
        self._client_keys = tuple(client_keys)
        self._groups: dict[Values, Group] = {}
        for place, clients in numbers.items():
            _add(self._groups, Group(self.values_at(place), clients, place))
        # The position of the key with the most values: groups that differ only in that are put together.
        self._widest: int | None = None
        self._by_value: dict[object, list[Group]] = {}  # by the value of that key
        self._alike: dict[Values, list[Group]] = {}  # by all other values
        if client_keys and len(self._groups) > FEW:
            columns = zip(*(values.client_keys for values in self._groups), strict=True)
            numbers_of_values = [len(set(column)) for column in columns]
            self._widest = numbers_of_values.index(max(numbers_of_values))
            for group in self._groups.values():
                self._by_value.setdefault(group.values.client_keys[self._widest], []).append(group)
                self._alike.setdefault(self._without_widest(group.values), []).append(group)
        self._sums = {values: sum(group.clients for group in alike) for values, alike in self._alike.items()}

    def values_at(self, place: ClientPlace) -> Values:
        """Return the values by which a client at *place* is grouped."""
        location = place.location
        kind = location.known, has_labels(location), place.octets
        return Values(kind, tuple(map(location.client_value, self._client_keys)), location.labels.get(ZONE))

    def groups(self, distinguishing: Sequence[Mapping[Value, Value]], fewer: Mapping[ClientPlace, int]) -> list[Group]:
        """Return the groups of clients that get the same, without as many as *fewer* has at each place."""
        found: dict[Values, Group] = {}
        for group in self._told_apart(distinguishing):
            _add(found, Group(reduced(group.values, distinguishing), group.clients, group.place))
        for place, clients in fewer.items():
            values = reduced(self.values_at(place), distinguishing)
            found[values] = found[values]._replace(clients=found[values].clients - clients)
        return [group for group in found.values() if group.clients]

    def all_groups(self, fewer: Mapping[ClientPlace, int]) -> Iterator[Group]:
        """Yield all groups, whether they get the same or not, without as many clients as *fewer* has."""
        less = Counter[Values]()
        for place, clients in fewer.items():
            less[self.values_at(place)] += clients
        for values, group in self._groups.items():
            if group.clients > less[values]:
                yield group._replace(clients=group.clients - less[values])

    def _told_apart(self, distinguishing: Sequence[Mapping[Value, Value]]) -> Iterable[Group]:
        """Return groups that the *distinguishing* values tell apart, and maybe more."""
        if self._widest is None:
            return self._groups.values()
        single = [group for value in {*distinguishing[self._widest], None} for group in self._by_value.get(value, ())]
        rest = dict(self._sums)
        for group in single:
            rest[self._without_widest(group.values)] -= group.clients
        taken = {id(group) for group in single}
        for values, clients in rest.items():
            if clients:
                one = next(group for group in self._alike[values] if id(group) not in taken)
                single.append(one._replace(clients=clients))
        return single

    def _without_widest(self, values: Values) -> Values:
        assert self._widest is not None
        client_keys = values.client_keys
        return values._replace(client_keys=(*client_keys[: self._widest], OTHER, *client_keys[self._widest + 1 :]))


def _add(groups: dict[Values, Group], group: Group) -> None:
    """Add the clients of a group to those with the same values."""
    known = groups.get(group.values)
    groups[group.values] = group if known is None else Group(group.values, known.clients + group.clients, group.place)


def reduced(values: Values, distinguishing: Sequence[Mapping[Value, Value]]) -> Values:
    """Return *values*, each as the one that stands for it, with OTHER for each that is not *distinguishing*.

    See ``Constraint.distinguishing_values``.
    """
    client_keys = [
        known.get(value, None if value is None else OTHER)
        for value, known in zip(values.client_keys, distinguishing, strict=True)
    ]
    return Values(values.kind, tuple(client_keys), values.zone)
