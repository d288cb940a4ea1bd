# SPDX-License-Identifier: Apache-2.0

"""``trafficDistribution`` and hints choose the endpoints of headless names: with the real EndpointSlice controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import pytest

from locator.topology.constraints import HINTS
from tests.kit.api_objects import Item, namespace, pod, service, zone_nodes
from tests.kit.in_memory import snapshot_of
from tests.kit.kube import ControlPlane
from tests.kit.live_server import Asker, serving_live
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

WHERE = "traffic"
NODES = zone_nodes(WHERE, ("a", "b", "c"), each=2)
# A client on each of four nodes, by its place. No endpoint runs in zone c.
CLIENTS = {"a1": "10.242.1.9", "a2": "10.242.2.9", "b1": "10.242.3.9", "c1": "10.242.5.9"}
ADDRESSES = {"a1": "10.242.1.1", "a2": "10.242.2.1", "b1": "10.242.3.1", "b2": "10.242.4.1"}
FIRST = ("a1", "a2", "b1")  # where pods of the Service run at first
WEB = service("web", where=WHERE, selector={"app": "web"})
AUTO = "service.kubernetes.io/topology-mode"

Answers = Mapping[str, set[str]]


def member(place: str) -> Item:
    """Return the pod of the Service on one node."""
    return pod(f"web-{place}", [ADDRESSES[place]], f"{WHERE}-{place}", where=WHERE, labels={"app": "web"})


def at(*places: str) -> set[str]:
    return {ADDRESSES[place] for place in places}


def to_all(*places: str) -> Answers:
    return dict.fromkeys(CLIENTS, at(*places))


def by_zone(*places: str) -> Answers:
    """Return what each client gets of pods at *places*: those in its zone, else all."""
    return {who: at(*(place for place in places if place[0] == who[0])) or at(*places) for who in CLIENTS}


def by_node(*places: str) -> Answers:
    """Return the same, but those on its node first."""
    return {who: at(who) if who in places else by_zone(*places)[who] for who in CLIENTS}


def never_nothing(who: str) -> set[frozenset[str]]:
    """Return every answer with an address."""
    every = list(ADDRESSES.values())
    return {frozenset(some) for count in range(1, len(every) + 1) for some in combinations(every, count)}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Six nodes in three zones, a client on four of them, and a headless Service with three pods."""
    api = control_plane.api
    clients = [pod(f"client-{place}", [ip], f"{WHERE}-{place}", where=WHERE) for place, ip in CLIENTS.items()]
    api.create(namespace(WHERE), *NODES, *clients, *map(member, FIRST), WEB)
    yield control_plane
    api.delete(*({"kind": "Pod", **item} for item in api.items("Pod", WHERE)), *NODES, namespace(WHERE))


@pytest.fixture(scope="module")
def server(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_live(tmp_path_factory.mktemp("traffic"), cluster.kubeconfig) as running:
        yield running


def distribute(plane: ControlPlane, value: str | None, mode: str | None = None) -> None:
    change = {"metadata": {"annotations": {AUTO: mode}}, "spec": {"trafficDistribution": value}}
    plane.api.patch(WEB, change)


def hints(plane: ControlPlane) -> list[Item]:
    """Return the hints of the Service's endpoints."""
    slices = plane.api.items("EndpointSlice", WHERE, labels="kubernetes.io/service-name=web")
    return [endpoint["hints"] for item in slices for endpoint in item["endpoints"] or () if "hints" in endpoint]


def source(plane: ControlPlane) -> str | None:
    """Return where the constraint of the Service comes from, by a dump of the cluster."""
    declaration = snapshot_of(plane.dump()).services[f"{WHERE}/web"].declaration
    return declaration.source if declaration is not None else None


CHANGES: Sequence[tuple[str | None, str | None, Answers, int]] = [
    # trafficDistribution, annotation, what the clients get, how many endpoints Kubernetes gives hints
    ("PreferSameZone", None, by_zone(*FIRST), 3),
    ("PreferSameNode", None, by_node(*FIRST), 3),
    ("PreferClose", None, by_zone(*FIRST), 3),
    ("PreferClose", "Auto", to_all(*FIRST), 0),  # Kubernetes decides, and gives no hints in so small a cluster
    ("PreferSameNode", "Disabled", by_node(*FIRST), 3),
    (None, None, to_all(*FIRST), 0),
]


def test_the_service_says_where_its_clients_go(cluster: ControlPlane, server: Server) -> None:
    """By the hints of the real controller, each client gets what kube-proxy on its node would choose from."""
    with Asker(server, f"web.{WHERE}", CLIENTS) as asker:
        asker.until(to_all(*FIRST))
        for value, mode, expected, hinted in CHANGES:
            distribute(cluster, value, mode)
            until(lambda hinted=hinted: len(hints(cluster)) == hinted, f"{hinted} endpoints have hints")
            asker.until(expected, seen=never_nothing)
            assert asker.saw() == {who: {frozenset(answer)} for who, answer in expected.items()}, value
            if hinted:
                assert source(cluster) == HINTS
        assert source(cluster) is None
        assert asker.lost == []
