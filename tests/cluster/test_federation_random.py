# SPDX-License-Identifier: Apache-2.0

"""A federation of three real clusters, in which anything happens: in the end all is as the oracle says.

``tests/values/distribution/test_random_worlds.py`` has many more histories, in memory. Here clusters are killed or
hang, and controllers are killed.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api_objects import Item
from tests.kit.federation import WITHIN, Federation, running_federation
from tests.kit.federation_histories import SPACE, FederationHistory
from tests.kit.waiting import until

NAMES = "abc"
ROUNDS, EDITS = 3, 8


class PlayedFederation:
    """A real federation, as a history needs it."""

    def __init__(self, federation: Federation, rng: random.Random) -> None:
        self._federation, self._rng = federation, rng
        self._planes = {name: member.plane for name, member in federation.clusters.items()}
        self.apply, self.delete, self.states = federation.apply, federation.delete, federation.states
        for plane in self._planes.values():
            plane.kubectl("create", "namespace", SPACE)

    def cut(self, cluster: str) -> None:
        plane = self._planes[cluster]
        self._rng.choice([plane.kill, plane.stop])()

    def heal(self, cluster: str) -> None:
        plane = self._planes[cluster]
        if plane.is_killed:
            plane.start()
        else:
            plane.wake()

    def create(self, cluster: str, item: Item) -> None:
        self._planes[cluster].api.create(item)

    def patch(self, cluster: str, item: Item, change: Item) -> None:
        self._planes[cluster].api.patch(item, change)

    def delete_copy(self, cluster: str, item: Item) -> None:
        self._planes[cluster].api.delete(item)

    def items(self, cluster: str, kind: str) -> list[Item]:
        found = self._planes[cluster].api.items(kind, SPACE)
        return [item for item in found if item["metadata"]["name"] != "kube-root-ca.crt"]

    def go_on(self) -> None:
        if self._rng.random() < 0.5 / EDITS:
            self._federation.controller().send(signal.SIGKILL)
            self._federation.further()


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{cluster}: {name} is {found[cluster].get(name)}, not {expected[cluster].get(name)}"
        for cluster in expected
        for name in sorted({*found.get(cluster, ()), *expected[cluster]})
        if found.get(cluster, {}).get(name) != expected[cluster].get(name)
    )


@pytest.mark.slow
def test_a_random_history(tmp_path: Path) -> None:
    """Whatever happened: soon all clusters have what the oracle says, and each object's status says so."""
    rng = random.Random(2)
    with running_federation(tmp_path, [*NAMES]) as federation:
        history = FederationHistory(PlayedFederation(federation, rng), NAMES, rng)
        federation.controller()
        for _ in range(ROUNDS):
            history.play(EDITS)
            for found, expected in (
                (history.found, history.expected()), (history.states, history.expected_states())
            ):  # fmt: skip
                until(
                    lambda found=found, expected=expected: found() == expected,
                    lambda found=found, expected=expected: difference(found(), expected),
                    within=WITHIN,
                )
