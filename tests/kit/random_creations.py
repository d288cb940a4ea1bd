# SPDX-License-Identifier: Apache-2.0

"""Objects of a federation API with what may stand in them, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.kit.api_objects import Item, deployment, item

KINDS = {"ConfigMap": "data", "Deployment": "spec"}
BROKEN = [{"clusters": "nowhere"}, {"cluster-weights": "a"}, {"overprovision": "-1"}, {"replicas": "some"}]


def drawn(rng: random.Random, clusters: Sequence[str], name: str, where: str, kind: str | None = None) -> Item:
    """Return an object of that name in the namespace *where*, for some of *clusters*."""
    said = dict[str, str]()
    into = list(clusters)
    if rng.random() < 0.3:
        into = sorted(rng.sample(into, rng.randint(1, len(into))))
        said["clusters"] = ",".join(into)
    if rng.random() < 0.3:
        said["adopt"] = "true"
    if (kind or rng.choice([*KINDS])) == "ConfigMap":
        made = item("ConfigMap", name, where, data={"a": str(rng.randrange(9)), rng.choice("bc"): "x"})
    else:
        made = deployment(name, where=where, labels={"app": name}, replicas=rng.randint(0, 9))
        weights = dict.fromkeys(into, 1)
        if rng.random() < 0.3:
            weights = {cluster: rng.randint(0, 3) for cluster in into} | {rng.choice(into): 2}
            said["cluster-weights"] = ",".join(f"{cluster}={weight}" for cluster, weight in weights.items())
        if rng.random() < 0.3:
            said["overprovision"] = str(rng.randrange(sum(weight > 0 for weight in weights.values())))
        if rng.random() < 0.3:
            said["replicas"] = "local"
    made["metadata"]["annotations"] = {f"topodns.io/{key}": text for key, text in said.items()}
    return made
