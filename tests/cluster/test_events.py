# SPDX-License-Identifier: Apache-2.0

"""The Event on a Service with an invalid constraint appears once, whichever replica posts it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from msgspec.structs import replace

from locator.cluster.api_client import ApiClient
from locator.cluster.event_poster import post
from locator.findings import ClusterCode
from locator.model import Finding
from tests.kit.api_objects import TOPOLOGY_KEYS, namespace, service
from tests.kit.kube import ControlPlane, Item

SPACE = "events"
WRONG = ClusterCode.InvalidTopologyKeys.finding(
    "Service",
    SPACE,
    "web",
    field=f"metadata.annotations[{TOPOLOGY_KEYS}]",
    message="invalid constraint: 'x' is listed twice",
    expected="distinct label keys",
)


def posted(cluster: ApiClient, *findings: Finding, instance: str = "pod-1") -> None:
    async def main() -> None:
        send, receive = trio.open_memory_channel[Finding](len(findings))
        for finding in findings:
            send.send_nowait(finding)
        send.close()
        await post(cluster, receive, instance)

    trio.run(main)


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ApiClient]:
    """Return a cluster with a Service in it."""
    items = [namespace(SPACE), service("web", where=SPACE, selector={"app": "web"})]
    control_plane.api.create(*items)
    yield ApiClient(kubeconfig=str(control_plane.kubeconfig))
    control_plane.api.delete(*reversed(items))


def events(plane: ControlPlane) -> list[Item]:
    return [item for item in plane.api.items("Event", SPACE) if item["reason"] == "InvalidTopology"]


def test_the_api_takes_it_once(cluster: ApiClient, control_plane: ControlPlane) -> None:
    """If several replicas post it, kubectl shows one Event on the Service."""
    gone = replace(WRONG, name="gone")
    nowhere = replace(WRONG, namespace="nowhere")
    for instance in ("pod-1", "pod-2"):
        posted(cluster, gone, nowhere, WRONG, WRONG, instance=instance)
    (found,) = events(control_plane)
    assert found["reportingInstance"] == "pod-1"
    described = control_plane.kubectl("describe", "service", "web", "-n", SPACE)
    assert "InvalidTopology" in described and "'x' is listed twice" in described
    posted(cluster, replace(WRONG, message="invalid constraint: 'y' is listed twice"))
    assert len(events(control_plane)) == 2
