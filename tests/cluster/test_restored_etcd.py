# SPDX-License-Identifier: Apache-2.0

"""An etcd that is restored from a snapshot, below a topodns that is never restarted: it follows the older state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.api_objects import endpoint, endpoint_slice, namespace, service
from tests.kit.kube import ControlPlane, Item
from tests.kit.live_server import CAUGHT_UP, answered, serving_live
from tests.kit.proxy import Proxy
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

WHERE = "restored"
CLIENT = "10.244.1.1"


def with_slice(name: str, address: str) -> list[Item]:
    """Return a headless Service without a selector, so that no controller writes its slice."""
    return [service(name, where=WHERE), endpoint_slice(name, "a", [endpoint(address)], where=WHERE)]


def move(plane: ControlPlane, name: str, address: str) -> None:
    plane.api.patch(endpoint_slice(name, "a", [], where=WHERE), {"endpoints": [endpoint(address)]})


def answers(server: Server) -> dict[str, set[str]]:
    return {name: answered(server, f"{name}.{WHERE}", CLIENT) for name in ("still", "web", "gone", "new", "late")}


# What clients get before etcd is restored, and afterwards.
BEFORE = {"still": {"10.9.0.1"}, "web": {"10.9.0.3"}, "gone": {"NXDOMAIN"}, "new": {"10.9.0.5"}, "late": {"NXDOMAIN"}}
AFTER = {"still": {"10.9.0.1"}, "web": {"10.9.0.2"}, "gone": {"10.9.0.4"}, "new": {"NXDOMAIN"}, "late": {"10.9.0.6"}}


@pytest.fixture
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    plane = frail_control_plane
    plane.api.create(
        namespace(WHERE),
        *with_slice("still", "10.9.0.1"),
        *with_slice("web", "10.9.0.2"),
        *with_slice("gone", "10.9.0.4"),
    )
    yield plane
    plane.api.delete(namespace(WHERE))
    plane.settle(WHERE)


def change_on(plane: ControlPlane) -> None:
    """Change what no snapshot has."""
    move(plane, "web", "10.9.0.3")
    plane.api.delete(*with_slice("gone", ""))
    plane.api.create(*with_slice("new", "10.9.0.5"))


def version_of(plane: ControlPlane) -> int:
    listed = plane.api.request("GET", f"{plane.api.path('ConfigMap', WHERE)}?limit=1")
    return int(listed["metadata"]["resourceVersion"])


def until_answers(server: Server, expected: dict[str, set[str]]) -> None:
    until(lambda: answers(server) == expected, lambda: f"{expected}, but {answers(server)}", within=CAUGHT_UP)


@pytest.mark.parametrize("politely", [False, True], ids=["killed", "politely"])
def test_a_restored_etcd_is_followed(plane: ControlPlane, tmp_path: Path, politely: bool) -> None:
    """Whatever was changed since the snapshot is undone, and what comes later counts."""
    plane.save_etcd(tmp_path / "snapshot.db")
    with serving_live(tmp_path, plane.kubeconfig) as server:
        change_on(plane)
        until_answers(server, BEFORE)
        plane.restore_etcd(tmp_path / "snapshot.db", politely=politely)
        plane.api.create(*with_slice("late", "10.9.0.6"))
        until_answers(server, AFTER)


def test_a_restored_etcd_that_has_overtaken_what_is_known_is_followed(plane: ControlPlane, tmp_path: Path) -> None:
    """Its versions are newer than those that topodns knows, but those of its objects are older."""
    plane.save_etcd(tmp_path / "snapshot.db")
    with Proxy(plane.port) as proxy:
        kubeconfig = plane.kubeconfig_with(tmp_path / "by-way-of-the-proxy", port=proxy.port)
        with serving_live(tmp_path, kubeconfig) as server:
            change_on(plane)
            until_answers(server, BEFORE)
            proxy.hold()  # topodns notices nothing
            known = version_of(plane)
            plane.restore_etcd(tmp_path / "snapshot.db")
            plane.api.create(*with_slice("late", "10.9.0.6"))
            made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "writes", "namespace": WHERE}}
            plane.api.create(made)
            count = 0
            while version_of(plane) <= known + 10:
                count += 1
                plane.api.patch(made, {"data": {"count": str(count)}})
            assert answers(server) == BEFORE
            proxy.go_on()
            until_answers(server, AFTER)
