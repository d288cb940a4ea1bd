# SPDX-License-Identifier: Apache-2.0

"""A real Kubernetes control plane: what it writes, and kubectl prints, topodns reads."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.kit.api_objects import ZONE, namespace, node, pod, service
from tests.kit.kube import ControlPlane
from tests.kit.topodns_process import run
from tests.kit.waiting import until

WHERE = "control-plane"
ZONES = {"cp-node-a": "a", "cp-node-b": "b"}
APP = {"app": "cache"}


SERVICE = service("cache", where=WHERE, keys=f"{ZONE},*", selector=APP)
PODS = [
    pod("cache-0", ["10.251.0.10"], "cp-node-a", where=WHERE, labels=APP),
    pod("cache-1", ["10.251.1.10"], "cp-node-b", where=WHERE, labels=APP),
    pod("cache-2", ["10.251.0.11"], "cp-node-a", where=WHERE, labels=APP, ready=False),
]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with two nodes, three pods and a Service, after its controllers have written slices."""
    control_plane.settle()  # what is wrong in other tests' objects is wrong in the dump, as long as they are there
    nodes = [node(name, {ZONE: zone}) for name, zone in ZONES.items()]
    items = [namespace(WHERE), *nodes, *PODS, SERVICE]
    control_plane.api.create(*items)
    yield control_plane
    control_plane.api.delete(SERVICE, *PODS, *nodes, items[0])


def ready_addresses(plane: ControlPlane) -> set[str]:
    """Return the ready addresses of the Service's slices."""
    slices = plane.api.items("EndpointSlice", WHERE, labels="kubernetes.io/service-name=cache")
    return {
        address
        for one in slices
        for endpoint in one["endpoints"] or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    }


def explained(plane: ControlPlane, client: str) -> set[str]:
    """Return the addresses that ``explain`` gives *client*, from kubectl's dump."""
    ran = run(
        "explain",
        f"cache.{WHERE}.svc.cluster.local",
        "--client",
        client,
        "--snapshot",
        "-",
        "-o",
        "json",
        stdin=plane.dump(),
    )
    assert ran.returncode == 0, ran.stderr
    return {answer["data"] for answer in json.loads(ran.stdout)["answers"]}


def test_pods_that_become_ready_are_answered_to_those_near_them(cluster: ControlPlane) -> None:
    """A pod that becomes ready is in the answers, by way of the real controller and kubectl's dump."""
    until(lambda: ready_addresses(cluster) == {"10.251.0.10", "10.251.1.10"}, "two endpoints ready")
    assert explained(cluster, "10.251.0.11") == {"10.251.0.10"}, "the pod that is not ready is a client all the same"
    assert explained(cluster, "10.251.1.10") == {"10.251.1.10"}

    cluster.api.patch_status(PODS[2], {"conditions": [{"type": "Ready", "status": "True"}]})
    until(lambda: len(ready_addresses(cluster)) == 3, "three endpoints ready")
    assert explained(cluster, "10.251.0.11") == {"10.251.0.10", "10.251.0.11"}


def test_what_kubectl_prints_of_a_real_cluster_holds_no_error(cluster: ControlPlane) -> None:
    """A dump as the README shows it, of a real cluster, has no findings."""
    checked = run("check", "--snapshot", "-", stdin=cluster.dump())
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 errors" in checked.stdout
    assert WHERE not in checked.stdout, "a Service with a sound annotation, on nodes with zones, is not worth a word"
