# SPDX-License-Identifier: Apache-2.0

"""The steps from one cluster to the next, and how a store is told of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.api.deltas import DeltaBuilder
from locator.state.store import Store
from tests.kit.api_objects import Item


def identity(item: Item) -> tuple[str, str, str, str]:
    group = item["apiVersion"].rpartition("/")[0]
    return group, item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def edits(before: Sequence[Item], after: Sequence[Item], rng: random.Random) -> Iterator[list[Item]]:
    """Yield the states between two, and the last: each differs from the one before it in one object."""
    state, last = {identity(item): item for item in before}, {identity(item): item for item in after}
    keys = sorted({**state, **last})
    for key in rng.sample(keys, len(keys)):
        old, new = state.get(key), last.get(key)
        if new is None:
            del state[key]
        elif old is None:
            state[key] = new
        elif {**new["metadata"], "resourceVersion": ""} == {**old["metadata"], "resourceVersion": ""} and {
            **new, "metadata": old["metadata"]} == old:  # fmt: skip
            continue
        else:
            state[key] = new
        yield list(state.values())


def apply(store: Store, before: Sequence[Item], after: Sequence[Item]) -> None:
    """Tell a store of the objects that differ, as a watch does."""
    old, new = ({identity(item): item for item in items} for items in (before, after))
    for kind, resource in RESOURCES.items():
        builder = DeltaBuilder(kind, resource)
        for key in {**old, **new}:
            if key[:2] == (resource.group, resource.name) and old.get(key) != new.get(key):
                decoded = decode_untrusted(resource, json.dumps(new.get(key, old.get(key))).encode())
                builder.change_object(decoded, gone=key not in new)
        for delta in builder.pop_batch().deltas:
            store.apply(delta)
