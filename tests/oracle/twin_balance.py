# SPDX-License-Identifier: Apache-2.0

"""Balanced nearness, a second time: who asks for a Service, and who is passed on to farther endpoints.

Tests compare it with what topodns does. It reads objects as kubectl prints them, counts in fractions, and shares no
code with the packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from fractions import Fraction
from hashlib import blake2b
from typing import NamedTuple

from tests.oracle.twin_map import Item, TwinMap, Where, addresses_of, key_of

MAX_OVERLOAD, CLIENTS = "topodns.io/max-overload", "topodns.io/clients"
SLACK = Fraction(1, 10**9)  # loads that differ by no more are equal

Key = tuple[str, str]  # a Service's namespace and name
Rows = frozenset[int]  # ready endpoints, by their numbers


class Cell(NamedTuple):
    """Nodes that get the same. Cells are sorted as they are dealt with: no value comes before all values."""

    turn: int
    values: tuple[tuple[bool, str], ...]


class Group(NamedTuple):
    """A cell, or a client without one: how many clients, what they get without balance, and what else they may get."""

    clients: int
    nearest: Rows
    tiers: Sequence[Rows]  # of each key, or as policies are given up; empty where none is near

    @property
    def decided(self) -> int:
        """The number of the tier that decides without balance."""
        return self.tiers.index(self.nearest)


class Balance(NamedTuple):
    """What becomes of the clients of a Service with ``max-overload``."""

    clients: int
    cap: Fraction
    answers: Mapping[Cell, Rows]
    spilled: Set[Cell]  # those that were passed on to a key after the one that decides without balance
    expected: Sequence[Fraction]  # how many clients each endpoint expects
    full: Set[int]  # endpoints that left a pool


# What a Service says


def max_overload(service: Item) -> Fraction | None:
    """Return how many even shares an endpoint may expect, None if the Service does not say, or nothing valid."""
    text = (service["metadata"].get("annotations") or {}).get(MAX_OVERLOAD, "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and Fraction("1.1") <= Fraction(text) <= 10:
        return Fraction(text)
    return None


class Asking(NamedTuple):
    """Pods of a namespace that ask, those whose labels are as these terms of a selector say."""

    namespace: str
    terms: Sequence[str]

    def matches(self, client: Item) -> bool:
        """Whether a Pod asks; a PodLocator does if its namespace does."""
        labels = client["metadata"].get("labels") or {}
        return client["metadata"]["namespace"] == self.namespace and (
            client["kind"] != "Pod" or all(holds(term, labels) for term in self.terms)
        )


def asking(service: Item) -> list[Asking] | None:
    """Return who asks, None if that is everybody."""
    text = (service["metadata"].get("annotations") or {}).get(CLIENTS, "")
    found = []
    for part in text.split(";"):
        namespace, slash, selector = part.strip().partition("/")
        terms = re.split(r",(?![^(]*\))", selector) if slash else []
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace) or not all(map(term_of, terms)):
            return None
        found.append(Asking(namespace, terms))
    return found


NAME = r"(?:[a-z0-9.-]+/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
TERMS = (
    rf"\s*(?P<key>{NAME})\s*(?P<operator>==?|!=)\s*(?P<value>{VALUE})\s*",
    rf"\s*(?P<key>{NAME})\s+(?P<operator>in|notin)\s*\((?P<value>\s*{VALUE}\s*(?:,\s*{VALUE}\s*)*)\)\s*",
    rf"\s*(?P<operator>!?)\s*(?P<key>{NAME})(?P<value>)\s*",
)


def term_of(text: str) -> re.Match[str] | None:
    """Return one term of a selector as it is written for kubectl, None if it is none."""
    return next(filter(None, (re.fullmatch(pattern, text) for pattern in TERMS)), None)


def holds(text: str, labels: Mapping[str, str]) -> bool:
    term = term_of(text)
    assert term is not None
    key, operator, values = term["key"], term["operator"], [value.strip() for value in term["value"].split(",")]
    if operator in ("", "!"):
        return (key in labels) == (operator == "")
    if operator in ("=", "==", "in"):
        return key in labels and labels[key] in values
    return labels.get(key) not in values


# Who asks


def clients_of(places: TwinMap, key: Key, service: Item, sources: Sequence[str]) -> list[Where]:
    """Return where each client of a Service is: Pods ask, or where Nodes and Pods are not both read, PodLocators."""
    if "podlocators" in sources and not {"pods", "nodes"} <= {*sources}:
        found = places.locators
    elif "pods" in sources:
        found = [pod for pod in places.pods if pod["status"]["phase"] == "Running"]
    else:
        return [Where("node", name, places.node_labels(name)) for name in places.nodes]
    selected, own = asking(service), places_of(places, key)
    return [
        place_of(places, client)
        for client in found
        if addresses_of(client)
        and (
            any(part.matches(client) for part in selected)
            if selected is not None
            else key_of(client) not in own and own.isdisjoint(addresses_of(client))
        )
    ]


def places_of(places: TwinMap, key: Key) -> set[object]:
    """Return the keys of the Pods that are endpoints of a Service, ready or not, and the addresses of the others."""
    own = set[object]()
    for owned in places.slices:
        meta = owned["metadata"]
        if (meta["namespace"], meta["labels"].get("kubernetes.io/service-name")) == key:
            for row in owned["endpoints"]:
                target = row.get("targetRef", {})
                pod = (target.get("namespace", key[0]), target.get("name"))
                own.update([pod] if target.get("kind") == "Pod" else row["addresses"])
    return own


def place_of(places: TwinMap, client: Item) -> Where:
    """Return the node of a Pod or a PodLocator with its own labels, or what is known of one that is not known."""
    pod = client["kind"] == "Pod"
    name = client["spec"].get("nodeName") if pod else client["nodeName"]
    if name in places.nodes:
        return Where("node", name, places.node_labels(name))
    labels = places.pod_labels(client) if pod and name else places.locator_labels(key_of(client))
    return Where("pod" if pod else "podlocator", name, labels)


def nodes_of(places: TwinMap, sources: Sequence[str]) -> list[Where]:
    """Return all nodes with their own labels; where no Node is read, what each PodLocator says of its node."""
    if "nodes" in sources:
        return [Where("node", name, places.node_labels(name)) for name in places.nodes]
    told = [(locator["nodeName"], places.locator_labels(key_of(locator))) for locator in places.locators]
    return [Where("node", name, labels) for name, labels in told]


# Who is passed on


def slot(text: str) -> int:
    """Return a number from 0 to 255 that depends on a text alone."""
    return blake2b(text.encode(), digest_size=1).digest()[0]


def cell_of(key: Key, node: str, values: Iterable[tuple[str | None, Set[str]]]) -> Cell:
    """Return the cell of a node; *values* are its own of each key, each with those that ready endpoints have."""
    turn = (slot(node) - slot("/".join(key))) % 256
    return Cell(turn, tuple((own in known, own or "") if own in known else (False, "") for own, known in values))


def balanced(
    cells: Mapping[Cell, Group], others: Sequence[Group], *, endpoints: int, least: int, overload: Fraction
) -> Balance | None:
    """Return what each cell gets once *others* have what they get without balance, None if nobody is counted.

    *endpoints* is how many are ready; a pool with fewer than *least* left is closed.
    """
    clients = sum(group.clients for group in (*cells.values(), *others) if any(group.tiers))
    if clients == 0:
        return None
    cap = max(Fraction(1), overload * rounded(clients) / endpoints)
    plain = {cell: group.nearest for cell, group in cells.items()}
    expected = loads(endpoints, [*cells.values(), *others], [*plain.values(), *(group.nearest for group in others)])
    if max(expected) <= cap + SLACK:
        return Balance(clients, cap, plain, set(), expected, set())
    expected = loads(endpoints, others, [group.nearest for group in others])
    answers, spilled, full = dict[Cell, Rows](), set[Cell](), set[int]()
    for number in range(max((len(group.tiers) for group in cells.values()), default=0)):
        pools = dict[Rows, set[int]]()  # what is left of each
        for cell, group in sorted(cells.items()):
            if cell in answers or number >= len(group.tiers) or not group.tiers[number]:
                continue
            pool = pools.setdefault(group.tiers[number], set(group.tiers[number]))
            while (
                pool
                and (greatest := max(expected[row] for row in pool)) + Fraction(group.clients, len(pool)) > cap + SLACK
            ):
                gone = {row for row in pool if expected[row] >= greatest - SLACK}
                pool -= gone
                full |= gone
            if len(pool) >= least:
                answers[cell] = frozenset(pool)
                spilled |= {cell} if number > group.decided else set()
                add(expected, group, answers[cell])
    for cell, group in cells.items():
        if cell not in answers:  # it waited in vain
            matching = [number for number, tier in enumerate(group.tiers) if tier]
            answers[cell] = group.tiers[matching[-1]] if matching else frozenset()
            spilled |= {cell} if matching and matching[-1] > group.decided else set()
            add(expected, group, answers[cell])
    return Balance(clients, cap, answers, spilled, expected, full)


def rounded(number: int) -> int:
    """Return a number with its six highest binary digits, and zeros after them."""
    dropped = max(0, number.bit_length() - 6)
    return number >> dropped << dropped


def loads(endpoints: int, groups: Iterable[Group], answers: Iterable[Rows]) -> list[Fraction]:
    expected = [Fraction(0)] * endpoints
    for group, rows in zip(groups, answers, strict=True):
        add(expected, group, rows)
    return expected


def add(expected: list[Fraction], group: Group, rows: Rows) -> None:
    """Spread a group's clients over some endpoints, evenly."""
    for row in rows:
        expected[row] += Fraction(group.clients, len(rows))
