# SPDX-License-Identifier: Apache-2.0

"""What the annotations of an object in a federation API ask for: in which clusters it is, with how many replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from locator.distribution.split import MAX_REPLICAS
from locator.findings import ClusterCode
from locator.labels import is_dns_label
from locator.model import Finding, Service
from locator.printable import quoted
from locator.topology.annotations import (
    ADOPT,
    CLUSTERS,
    MIGRATE_AFTER,
    ORPHAN,
    OVERPROVISION,
    REPLICAS,
    WEIGHTS,
    field_of,
    trimmed,
    whole_number,
)

LOCAL = "local"
LEAST_MIGRATE_SECONDS = 30
_YES_OR_NO = {"true": True, "false": False}


class Problem(NamedTuple):
    """What is wrong in a field of an object, and what was expected there."""

    field: str
    message: str
    expected: str


class Instructions(Struct, frozen=True):
    """What the annotations of an object ask for.

    ``clusters`` are the names of those that get it, None for all. ``weights`` are None if all weigh the same.
    ``overprovision`` is how many clusters may fail. With ``local``, replicas are a cluster's own business.
    ``migrate_after`` is in seconds, None for never.
    """

    clusters: frozenset[str] | None = None
    weights: Mapping[str, int] | None = None
    overprovision: int = 0
    local: bool = False
    migrate_after: int | None = None
    adopt: bool = False
    orphan: bool = False

    @property
    def named(self) -> set[str]:
        """All clusters that it names."""
        return {*(self.clusters or ()), *(self.weights or ())}


def read_instructions(annotations: Mapping[str, str]) -> tuple[Instructions, list[Problem]]:
    """Return what *annotations* ask for, and each that cannot be read, which then counts as absent."""
    problems: list[Problem] = []
    found: dict[str, object] = {}
    for annotation, (member, read, expected) in _READERS.items():
        if annotation in annotations:
            text = trimmed(annotations[annotation])
            try:
                found[member] = read(text)
            except ValueError as error:
                problems.append(Problem(field_of(annotation), str(error) or f"{quoted(text)} found", expected))
    return Instructions(**found), problems  # type: ignore[arg-type]


def instruction_findings(service: Service) -> Iterator[Finding]:
    """Yield a finding for each annotation of a Service that a federation API could not read."""
    for problem in read_instructions(service.annotations)[1]:
        yield ClusterCode.InvalidFederation.about(service, *problem)


def unknown_clusters(instructions: Instructions, known: Collection[str]) -> Iterator[Problem]:
    """Yield a problem for each annotation that names a cluster which is not *known*."""
    for annotation, named in ((CLUSTERS, instructions.clusters), (WEIGHTS, instructions.weights)):
        if unknown := sorted(set(named or ()).difference(known)):
            message = f"there is no cluster {', '.join(unknown)}"
            yield Problem(field_of(annotation), message, f"some of {', '.join(sorted(known))}")


def _number(text: str, least: int, most: int) -> int:
    number = whole_number(text)
    if number is None or not least <= number <= most:
        raise ValueError
    return number


def _clusters(text: str) -> frozenset[str]:
    names = [trimmed(name) for name in text.split(",")]
    for name in names:
        if not is_dns_label(name):
            raise ValueError(f"{quoted(name)} is no name of a cluster")
    return frozenset(names)


def _weights(text: str) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in text.split(","):
        name, _, weight = (trimmed(word) for word in part.partition("="))
        if not is_dns_label(name):
            raise ValueError(f"{quoted(name)} is no name of a cluster")
        if name in weights:
            raise ValueError(f"cluster {name} stands there twice")
        try:
            weights[name] = _number(weight, 0, MAX_REPLICAS)
        except ValueError:
            raise ValueError(f"{quoted(weight)} is no weight of cluster {name}") from None
    if not any(weights.values()):
        raise ValueError("no cluster has a weight")
    return weights


def _local(text: str) -> bool:
    if text != LOCAL:
        raise ValueError
    return True


def _yes_or_no(text: str) -> bool:
    if text not in _YES_OR_NO:
        raise ValueError
    return _YES_OR_NO[text]


_READERS = {
    CLUSTERS: ("clusters", _clusters, "names of clusters, separated by commas"),
    WEIGHTS: (
        "weights", _weights, f"CLUSTER=WEIGHT, separated by commas, with whole numbers from 0 to {MAX_REPLICAS}"
    ),
    OVERPROVISION: (
        "overprovision", lambda text: _number(text, 0, MAX_REPLICAS), "how many clusters may be lost: a whole number"
    ),
    REPLICAS: ("local", _local, LOCAL),
    MIGRATE_AFTER: (
        "migrate_after",
        lambda text: _number(text, LEAST_MIGRATE_SECONDS, MAX_REPLICAS),
        f"a whole number of seconds, at least {LEAST_MIGRATE_SECONDS}",
    ),
    ADOPT: ("adopt", _yes_or_no, "true or false"),
    ORPHAN: ("orphan", _yes_or_no, "true or false"),
}  # fmt: skip
