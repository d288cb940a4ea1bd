# SPDX-License-Identifier: Apache-2.0

"""Federations in memory, in which anything happens: in the end all is as the oracle says."""

from __future__ import annotations

import random

import pytest

from tests.kit.api_objects import Item
from tests.kit.federation_histories import FederationHistory
from tests.kit.federation_world import World, key_of

ROUNDS, EDITS = 6, 10
WORLDS = 8  # of each number of clusters


class PlayedWorld:
    """A federation in memory, as a history needs it."""

    def __init__(self, clusters: str, rng: random.Random) -> None:
        self.world, self._rng = World(*clusters), rng
        self.cut, self.heal = self.world.cut, self.world.heal

    def apply(self, item: Item) -> None:
        self.world.federation.put(item)

    def delete(self, item: Item) -> None:
        self.world.federation.remove(key_of(item))

    def states(self, item: Item) -> dict[str, str]:
        return {cluster: one["state"] for cluster, one in self.world.status(*key_of(item)).items()}

    def create(self, cluster: str, item: Item) -> None:
        self.world.servers[cluster].put(item)

    def patch(self, cluster: str, item: Item, change: Item) -> None:
        self.world.servers[cluster].patch(key_of(item), change)

    def delete_copy(self, cluster: str, item: Item) -> None:
        self.world.servers[cluster].remove(key_of(item))

    def items(self, cluster: str, kind: str) -> list[Item]:
        return [item for key, item in self.world.servers[cluster].items.items() if key.kind == kind]

    def go_on(self) -> None:
        if self._rng.random() < 0.2:
            self.world.start()
        if self._rng.random() < 0.7:
            self.world.wait(self._rng.random() * 20.0)


@pytest.mark.parametrize("clusters", ["ab", "abc", "abcd"], ids=["two", "three", "four"])
@pytest.mark.parametrize("seed", range(WORLDS))
def test_any_history_ends_as_the_oracle_says(clusters: str, seed: int) -> None:
    rng = random.Random(seed)
    played = PlayedWorld(clusters, rng)
    history, world = FederationHistory(played, clusters, rng), played.world
    for _ in range(ROUNDS):
        history.play(EDITS)
        world.wait(60.0)
        world.wait(60.0)
        assert history.found() == history.expected()
        assert history.states() == history.expected_states()
        written = world.written()
        world.start()
        world.wait(60.0)
        assert world.written() == written
