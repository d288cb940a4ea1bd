# SPDX-License-Identifier: Apache-2.0

"""Random histories of a federation API and its clusters, and what the oracle says that they end in."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from tests.kit.api_objects import Item, deployment, item, topodns_annotations
from tests.oracle.federation_creation import THEIRS, Creation, Found

SPACE = "random"
FIRST = item("ConfigMap", "first", SPACE, data={})  # it stays: an empty federation API deletes nothing
KINDS = {"ConfigMap": "data", "Deployment": "spec"}
BROKEN = [{"clusters": "nowhere"}, {"cluster-weights": "a"}, {"overprovision": "-1"}, {"replicas": "some"}]
CHOICES = ("create", "create", "change", "change", "break", "delete", "orphan", "hand", "theirs")
LABEL = "topodns.io/federation"


class Played(Protocol):
    """A federation in which a history is played."""

    def apply(self, item: Item, /) -> object:
        """Write an object to the federation API."""

    def delete(self, item: Item, /) -> object:
        """Ask for the end of an object there."""

    def states(self, item: Item, /) -> Mapping[str, str]:
        """Return the state of an object in each cluster, as its status says."""

    def cut(self, cluster: str, /) -> object:
        """Let a cluster be out of reach from now on."""

    def heal(self, cluster: str, /) -> object:
        """Let a cluster be in reach again."""

    def create(self, cluster: str, item: Item, /) -> object:
        """Create somebody else's object in a cluster."""

    def patch(self, cluster: str, item: Item, change: Item, /) -> object:
        """Change a copy in a cluster by hand."""

    def delete_copy(self, cluster: str, item: Item, /) -> object:
        """Delete a copy in a cluster."""

    def items(self, cluster: str, kind: str, /) -> Iterable[Item]:
        """Return all objects of a kind in the namespace SPACE of a cluster."""

    def go_on(self) -> object:
        """Let time pass between two edits, and controllers end."""


class FederationHistory:
    """What happens in *played*, and what the oracle says of it."""

    def __init__(self, played: Played, clusters: Iterable[str], rng: random.Random) -> None:
        self._played, self._names, self._rng = played, [*clusters], rng
        self._twin = Creation(self._names)
        self._objects: dict[str, Item] = {}  # as last written, by name
        self._valid: dict[str, Item] = {}  # as last written without mistake
        self._orphaned: set[str] = set()
        self._numbers = count()
        self._touched: set[str] = set()  # in this round
        self._write(FIRST)

    def play(self, edits: int) -> None:
        """Play a round, at whose end all clusters are back.

        At most one thing happens to each object, so that what counts is certain.
        """
        self._touched = {"first"}
        away = self._rng.sample(self._names, self._rng.randint(0, len(self._names) - 1))
        for name in away:
            self._played.cut(name)
        for _ in range(edits):
            self._edit([name for name in self._names if name not in away])
            self._played.go_on()
        for name in away:
            self._played.heal(name)
        self._twin.settle(self._valid, self._orphaned)

    def expected(self) -> Mapping[str, Mapping[str, Found]]:
        """Return what each cluster should have in the end."""
        return self._twin.there

    def found(self) -> Mapping[str, Mapping[str, Found]]:
        """Return what each cluster has."""
        return {
            name: {
                found["metadata"]["name"]: Found(
                    LABEL in found["metadata"].get("labels", {}),
                    found.get("data", {}) if kind == "ConfigMap" else found["spec"]["replicas"],
                )
                for kind in KINDS
                for found in self._played.items(name, kind)
            }
            for name in self._names
        }

    def expected_states(self) -> Mapping[str, Mapping[str, str]]:
        """Return what the status of each valid object should say in the end."""
        return {name: self._twin.states(name, made) for name, made in self._judged().items()}

    def states(self) -> Mapping[str, Mapping[str, str]]:
        """Return what the status of each valid object says."""
        return {name: self._played.states(made) for name, made in self._judged().items()}

    def _judged(self) -> Mapping[str, Item]:
        return {name: made for name, made in self._valid.items() if made is self._objects[name]}

    def _edit(self, reachable: Sequence[str]) -> None:
        rested = [name for name in self._objects if name not in self._touched]
        choice = self._rng.choice(CHOICES)
        if choice == "theirs":
            self._theirs(self._rng.choice(reachable))
        elif choice == "create" or not rested:
            self._write(self._drawn(f"o{next(self._numbers)}"))
        elif choice == "hand":
            self._by_hand(self._rng.choice(rested), self._rng.choice(reachable))
        elif choice in ("change", "break"):
            name = self._rng.choice(rested)
            self._write(self._drawn(name, self._objects[name]["kind"]), breaks=choice == "break")
        else:
            self._delete(self._rng.choice(rested), orphan=choice == "orphan")

    def _write(self, made: Item, *, breaks: bool = False) -> None:
        name = made["metadata"]["name"]
        self._touched.add(name)
        self._objects[name] = made
        if breaks:
            _annotate(made, self._rng.choice(BROKEN))
        else:
            self._valid[name] = made
        self._played.apply(made)

    def _delete(self, name: str, *, orphan: bool) -> None:
        self._touched.add(name)
        gone = self._objects.pop(name)
        del self._valid[name]
        if orphan:
            _annotate(gone, {"orphan": "true"})
            self._orphaned.add(name)
            self._played.apply(gone)
        self._played.delete(gone)

    def _by_hand(self, name: str, cluster: str) -> None:
        """Change or delete a copy in a cluster."""
        found, made = self._twin.there[cluster].get(name), self._objects[name]
        if found is None or not found.ours or made is not self._valid[name]:
            return
        self._touched.add(name)
        if self._rng.random() < 0.4:
            self._played.delete_copy(cluster, made)
            del self._twin.there[cluster][name]
        elif made["kind"] == "ConfigMap":
            self._played.patch(cluster, made, {"data": {"a": "by hand"}})
        else:
            number = self._rng.randint(0, 9)
            self._played.patch(cluster, made, {"spec": {"replicas": number}})
            self._twin.there[cluster][name] = Found(True, number)

    def _theirs(self, cluster: str) -> None:
        """Create somebody else's object, of a name that is free or will be ours."""
        name = f"o{next(self._numbers)}"
        self._played.create(cluster, item("ConfigMap", name, SPACE, data={THEIRS: "x"}))
        self._twin.there[cluster][name] = Found(False, {THEIRS: "x"})
        if self._rng.random() < 0.7:
            self._write(self._drawn(name, "ConfigMap"))

    def _drawn(self, name: str, kind: str | None = None) -> Item:
        """Return an object of that name, for some of the clusters."""
        rng, said, into = self._rng, dict[str, str](), self._names
        if rng.random() < 0.3:
            into = sorted(rng.sample(into, rng.randint(1, len(into))))
            said["clusters"] = ",".join(into)
        if rng.random() < 0.3:
            said["adopt"] = "true"
        if (kind or rng.choice([*KINDS])) == "ConfigMap":
            made = item("ConfigMap", name, SPACE, data={"a": str(rng.randrange(9)), rng.choice("bc"): "x"})
        else:
            made = deployment(name, where=SPACE, labels={"app": name}, replicas=rng.randint(0, 9))
            weights = dict.fromkeys(into, 1)
            if rng.random() < 0.3:
                weights = {cluster: rng.randint(0, 3) for cluster in into} | {rng.choice(into): 2}
                said["cluster-weights"] = ",".join(f"{cluster}={weight}" for cluster, weight in weights.items())
            if rng.random() < 0.3:
                said["overprovision"] = str(rng.randrange(sum(weight > 0 for weight in weights.values())))
            if rng.random() < 0.3:
                said["replicas"] = "local"
        _annotate(made, said)
        return made


def _annotate(made: Item, said: Mapping[str, str]) -> None:
    annotations: dict[str, Any] = made["metadata"].setdefault("annotations", {})
    annotations.update(topodns_annotations(said))
