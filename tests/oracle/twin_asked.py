# SPDX-License-Identifier: Apache-2.0

"""What Services ask for, and which endpoints that leaves, a second time: for ``tests/oracle/twin.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.oracle.twin_map import NEW_NAMES, ZONE, Item, Where, ip_address

FIELDS = ("forNodes", "forZones")
VERSIONS = (4, 6)


class Row(NamedTuple):
    """A ready endpoint: its addresses of both families, its node and labels, and its entries in the slices."""

    addresses: frozenset[str]
    node: str | None
    labels: Mapping[str, str]
    entries: Sequence[Item]

    def hints(self, field: str) -> set[str]:
        """Return the names in ``forNodes`` or ``forZones`` of any entry of the endpoint."""
        said = [{hint["name"] for hint in (entry.get("hints") or {}).get(field) or ()} for entry in self.entries]
        return set().union(*said) - {""}

    def of(self, version: int) -> set[str]:
        """Return the addresses of one family."""
        return {text for text in self.addresses if ip_address(text).version == version}


class Asked(NamedTuple):
    """What a Service asks for: the source, and one of these; all are empty if the source leaves every endpoint."""

    source: str | None = None
    keys: Sequence[str] = ()  # the first one with enough endpoints decides
    required: Sequence[str] = ()  # all of them must hold
    preferred: Sequence[str] = ()  # then each narrows
    by_hints: Mapping[str, Sequence[int]] = {}  # by field: the families of which all endpoints have hints

    @property
    def hard(self) -> bool:
        """Whether there may be endpoints, and none for this client."""
        return bool(self.required) or bool(self.keys and "*" not in self.keys)

    @property
    def constrains(self) -> bool:
        return bool(self.keys or self.required or self.preferred or self.by_hints)


def by_annotation(service: Item) -> Asked | None:
    text = (service["metadata"].get("annotations") or {}).get("topodns.io/topology-keys", "")
    return of_keys("annotation", [key.strip() for key in text.split(",")], service) if text.strip() else None


def by_field(service: Item) -> Asked | None:
    keys = service["spec"].get("topologyKeys")
    return of_keys("field", keys, service) if keys else None


def of_keys(source: str, keys: Sequence[str], service: Item) -> Asked:
    return Asked(source, keys if valid(keys, service) else ())


def valid(keys: Sequence[str], service: Item) -> bool:
    return (
        len(set(keys)) == len(keys) <= 16
        and "*" not in keys[:-1]
        and all(key == "*" or is_label_key(key) for key in keys)
        and service["spec"].get("externalTrafficPolicy") != "Local"
    )


def is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return (
        re.fullmatch("[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", name) is not None
        and (not slash or re.fullmatch(rf"{label}(\.{label})*", prefix) is not None)
        and len(prefix) <= 253
    )


def selects(selector: Item | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects: all parts must hold; an empty or malformed one selects nothing."""
    parts = [(key, "In", [value]) for key, value in ((selector or {}).get("matchLabels") or {}).items()]
    for row in (selector or {}).get("matchExpressions") or ():
        parts.append((row["key"], row["operator"], row.get("values") or []))
    if any((operator in ("In", "NotIn")) != bool(values) for _, operator, values in parts):
        return False
    holds = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    return bool(parts) and all(operator in holds and holds[operator](key, values) for key, operator, values in parts)


# Which endpoints that leaves


def tiers_of(asked: Asked, rows: list[Row], where: Where, least: int) -> list[list[Row]]:
    """Return what each key, or each hint, matches; of policies, what is left as the last that narrowed is given up."""
    if asked.by_hints:
        return [*(hinted(rows, field, name, asked.by_hints[field]) for field, name in said_by(asked, where)), rows]
    if asked.keys:
        return [near(rows, label, where) for label in asked.keys]
    for label in asked.required:
        rows = near(rows, label, where)
    steps = [rows]
    for label in asked.preferred:
        tier = near(steps[-1], label, where)
        steps += [tier] if len(tier) >= least else []
    return steps[::-1]


def values_of(asked: Asked, rows: list[Row], where: Where) -> list[tuple[str | None, set[str]]]:
    """Return the value of each key at a place, each with those that ready endpoints have."""
    if asked.by_hints:
        return [(name, set().union(*(row.hints(field) for row in rows))) for field, name in said_by(asked, where)]
    labels = [NEW_NAMES.get(label, label) for label in (*asked.keys, *asked.required, *asked.preferred)]
    known = [{row.labels[label] for row in rows if label in row.labels} for label in labels]
    return [(where.labels.get(label), values) for label, values in zip(labels, known, strict=True) if label != "*"]


def said_by(asked: Asked, where: Where) -> list[tuple[str, str | None]]:
    """Return the fields of hints that count, each with the client's name there."""
    names = zip(FIELDS, (where.node, where.labels.get(ZONE)), strict=True)
    return [(field, name) for field, name in names if asked.by_hints[field]]


def hinted(rows: list[Row], field: str, name: str | None, versions: Sequence[int]) -> list[Row]:
    """Return what kube-proxy on the client's node would use."""
    return [row for row in rows if name in row.hints(field) and any(map(row.of, versions))]


def are_own(rows: Sequence[Row], asked: Asked) -> bool:
    """Whether hints for zones name each endpoint's own zone only, and those for nodes, if they count, its own node."""
    return all(row.hints("forZones") == {row.labels.get(ZONE)} for row in rows) and (
        not asked.by_hints["forNodes"] or all(row.hints("forNodes") == {row.node} for row in rows)
    )


def near(rows: list[Row], key: str, where: Where) -> list[Row]:
    """Return the rows that have the client's value of a key; ``*`` takes all."""
    key = NEW_NAMES.get(key, key)
    return [row for row in rows if key == "*" or (key in where.labels and row.labels.get(key) == where.labels[key])]


def is_complete(rows: Sequence[Row], field: str, version: int) -> bool:
    """Whether every row with an address of one family has hints."""
    of_family = [row for row in rows if row.of(version)]
    return bool(of_family) and all(row.hints(field) for row in of_family)
