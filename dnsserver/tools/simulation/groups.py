# SPDX-License-Identifier: Apache-2.0

"""Groups clients that get the same: by their values of the labels that a constraint compares.

A cluster has thousands of nodes, and a constraint by node tells apart only those that have an endpoint. So the groups
of all clients are made once for each list of labels, and a Service pays for its own endpoints alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dnsserver.tools.simulation.clients import ClientPlace
from locator.model import ZONE
from locator.places.locations import has_labels

FEW = 256  # groups that are gone through for each Service


class _Other:
    """Stands for every value that matches no endpoint."""

    def __repr__(self) -> str:
        return "other"


OTHER = _Other()


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


class Grouping:
    """The clients in groups: by their ``Values.kind``, by their ``client_keys``, and by their zone.

    *client_keys* are those of a constraint. *numbers* has the clients at each place.
    """

    def __init__(self, numbers: Mapping[ClientPlace, int], client_keys: Sequence[str]) -> None:
        self._client_keys = tuple(client_keys)
        self._groups: dict[Values, Group] = {}
        for place, clients in numbers.items():
            values = self.values_at(place)
            known = self._groups.get(values)
            self._groups[values] = Group(values, clients + (known.clients if known else 0), place)
        self._wide = self._widest() if len(self._groups) > FEW else None
        self._of_value: dict[object, list[Group]] = {}
        self._without: dict[Values, list[Group]] = {}  # by the values without the widest
        self._sums: Counter[Values] = Counter()
        if self._wide is not None:
            for group in self._groups.values():
                rest = self._narrowed(group.values)
                self._of_value.setdefault(group.values.client_keys[self._wide], []).append(group)
                self._without.setdefault(rest, []).append(group)
                self._sums[rest] += group.clients

    def values_at(self, place: ClientPlace) -> Values:
        """Return the values by which a client at *place* is grouped."""
        location = place.location
        kind = location.known, has_labels(location), place.octets
        return Values(kind, tuple(map(location.client_value, self._client_keys)), location.labels.get(ZONE))

    def groups(self, distinguishing: Sequence[frozenset[str | None]], fewer: Mapping[ClientPlace, int]) -> list[Group]:
        """Return the groups of clients that get the same, without as many as *fewer* has at each place."""
        found: dict[Values, Group] = {}
        for group in self._told_apart(distinguishing):
            values = reduced(group.values, distinguishing)
            known = found.get(values)
            found[values] = Group(values, group.clients + (known.clients if known else 0), group.place)
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

    def _told_apart(self, distinguishing: Sequence[frozenset[str | None]]) -> Iterable[Group]:
        """Return groups that the *distinguishing* values tell apart, and maybe more."""
        if self._wide is None:
            return self._groups.values()
        single = [group for value in {*distinguishing[self._wide], None} for group in self._of_value.get(value, ())]
        rest = Counter(self._sums)
        for group in single:
            rest[self._narrowed(group.values)] -= group.clients
        taken = {id(group) for group in single}
        for values, clients in rest.items():
            if clients:
                one = next(group for group in self._without[values] if id(group) not in taken)
                single.append(one._replace(clients=clients))
        return single

    def _narrowed(self, values: Values) -> Values:
        assert self._wide is not None
        client_keys = values.client_keys
        return values._replace(client_keys=(*client_keys[: self._wide], OTHER, *client_keys[self._wide + 1 :]))

    def _widest(self) -> int | None:
        """Return the position of the key with the most values, None if there are no keys."""
        numbers = [len(set(column)) for column in zip(*(values.client_keys for values in self._groups), strict=True)]
        return numbers.index(max(numbers)) if numbers else None


def reduced(values: Values, distinguishing: Sequence[frozenset[str | None]]) -> Values:
    """Return *values* with OTHER for each key that is not *distinguishing* (``Constraint.distinguishing_values``)."""
    client_keys = [
        value if value is None or value in known else OTHER
        for value, known in zip(values.client_keys, distinguishing, strict=True)
    ]
    return values._replace(client_keys=tuple(client_keys))
