# SPDX-License-Identifier: Apache-2.0

"""Who asks for balanced Services, where each of them says so itself."""

from __future__ import annotations

from collections.abc import Mapping

from locator.model import ClientPod, Pod
from locator.state.crowds import Crowds

WEB, DB, BARE = (
    ClientPod("shop", "w", labels={"app": "web"}),
    ClientPod("shop", "d", labels={"app": "db"}),
    Pod("x", "y"),
)


def test_pods_that_are_alike_are_looked_at_once() -> None:
    """However many there are; those of which none is left are forgotten."""
    looked_at = list[tuple[str, dict[str, str]]]()

    def askers_of(namespace: str, labels: Mapping[str, str]) -> list[str]:
        looked_at.append((namespace, dict(labels)))
        return [f"asks for {key}" for key in labels]

    crowds = Crowds(askers_of)
    for number in range(100):
        assert crowds.add(WEB, f"n{number % 3}", 1) == crowds.add(DB, "n0", 1) == ["asks for app"]
        assert crowds.add(BARE, None, 1) == []
    assert looked_at == [("shop", {"app": "web"}), ("shop", {"app": "db"}), ("x", {})]
    assert [crowd.on_node for crowd in crowds] == [{"n0": 34, "n1": 33, "n2": 33}, {"n0": 100}, {None: 100}]
    for _ in range(100):
        crowds.add(BARE, None, -1)
    assert [crowd.namespace for crowd in crowds] == ["shop", "shop"]
