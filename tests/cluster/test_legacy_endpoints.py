# SPDX-License-Identifier: Apache-2.0

"""Endpoints, the kind before EndpointSlices, mirrored by a real API server, and read from its dump."""

from __future__ import annotations

from collections.abc import Iterator

import dns.edns
import dns.message
import pytest
import yaml

from tests.kit.api_objects import ZONE, Item, endpoints, namespace, pod, service, zone_nodes
from tests.kit.in_memory import ask_in_memory, responder_of, snapshot_of
from tests.kit.kube import Api, ControlPlane
from tests.kit.live_server import Asker, addresses, serving_live
from tests.kit.topodns_process import run
from tests.kit.waiting import until

WHERE = "legacy"
ZONES = ("a", "b", "c")
CLIENTS = {zone: f"10.244.{number}.9" for number, zone in enumerate(ZONES, 1)}
BY_HAND = {"a": {"10.244.1.1", "10.244.1.2"}, "b": {"10.244.2.1"}}  # none is in zone c
EVERYWHERE = BY_HAND["a"] | BY_HAND["b"]
SOFT = {"a": BY_HAND["a"], "b": BY_HAND["b"], "c": EVERYWHERE}
HARD = {"a": BY_HAND["a"], "b": BY_HAND["b"], "c": set[str]()}
OF_PODS = {"a": {"10.244.1.21"}, "b": {"10.244.2.21"}, "c": {"10.244.1.21", "10.244.2.21"}}
EXPECTED = {"soft": SOFT, "hard": HARD, "pods": OF_PODS}


def written(name: str) -> Item:
    """Return Endpoints that somebody writes by hand for a Service without a selector."""
    ready = [{"ip": ip, "nodeName": f"legacy-{zone}1"} for zone, ips in BY_HAND.items() for ip in sorted(ips)]
    unready = [{"ip": "10.244.3.1", "nodeName": "legacy-c1"}]
    ports = [{"name": "main", "port": 80, "protocol": "TCP"}]
    return endpoints(name, {"addresses": ready, "notReadyAddresses": unready, "ports": ports}, where=WHERE)


def filled(api: Api, kind: str, field: str) -> int:
    """Return the number of objects of a kind that have endpoints, in their *field*."""
    return sum(bool(item.get(field)) for item in api.items(kind, WHERE))


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Services with hand-written Endpoints, soft and hard, and one with pods, in three zones."""
    control_plane.settle()  # what is wrong in other tests' objects is wrong in the dump, as long as they are there
    api, nodes = control_plane.api, zone_nodes("legacy", ZONES)
    api.create(
        namespace(WHERE),
        *nodes,
        *(pod(f"client-{zone}", [ip], f"legacy-{zone}1", where=WHERE) for zone, ip in CLIENTS.items()),
        *(pod(f"web-{zone}", [*OF_PODS[zone]], f"legacy-{zone}1", where=WHERE, labels={"app": "web"}) for zone in "ab"),
        service("soft", where=WHERE, keys=f"{ZONE},*"),
        service("hard", where=WHERE, keys=ZONE),
        service("pods", where=WHERE, keys=f"{ZONE},*", selector={"app": "web"}),
        written("soft"),
        written("hard"),
    )
    for kind, field in (("Endpoints", "subsets"), ("EndpointSlice", "endpoints")):
        until(
            lambda kind=kind, field=field: filled(api, kind, field) == len(EXPECTED), f"Kubernetes writes each {kind}"
        )
    yield control_plane
    api.delete(*({"kind": "Pod", **item} for item in api.items("Pod", WHERE)), *nodes, namespace(WHERE))


def test_a_live_cluster_mirrors_them(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> None:
    """topodns watches EndpointSlices alone: Kubernetes makes slices of Endpoints, and answers follow their changes."""
    with serving_live(tmp_path_factory.mktemp("legacy"), cluster.kubeconfig) as server:
        for name, expected in EXPECTED.items():
            with Asker(server, f"{name}.{WHERE}", CLIENTS) as asker:
                asker.until(expected)
                assert asker.saw() == {zone: {frozenset(answer)} for zone, answer in expected.items()}
        with Asker(server, f"hard.{WHERE}", CLIENTS) as asker:
            change = written("hard")["subsets"][0]
            change["addresses"] += change.pop("notReadyAddresses")
            cluster.api.patch(written("hard"), {"subsets": [change]})
            asker.until({**HARD, "c": {"10.244.3.1"}})
            cluster.api.patch(written("hard"), {"subsets": written("hard")["subsets"]})
            asker.until(HARD)


@pytest.mark.parametrize("kinds", ["endpoints", "endpointslices", "endpoints,endpointslices"])
def test_a_dump_of_either_or_both(cluster: ControlPlane, kinds: str) -> None:
    """A dump answers the same by Endpoints, by EndpointSlices, and by both; nothing counts twice."""
    text = cluster.dump(f"namespaces,nodes,pods,services,{kinds}")
    ours = {"Endpoints", "EndpointSlice"} & {item["kind"] for item in yaml.safe_load(text)["items"]}
    assert len(ours) == len(kinds.split(","))
    responder = responder_of(text, {"trusted-forwarder": "127.0.0.1/32"})
    for name, expected in EXPECTED.items():
        for zone, answer in expected.items():
            subnet = dns.edns.ECSOption(CLIENTS[zone], 32)
            query = dns.message.make_query(f"{name}.{WHERE}.svc.cluster.local", "A", use_edns=0, options=[subnet])
            reply = ask_in_memory(responder, query, "127.0.0.1")
            assert reply is not None and addresses(reply) == answer, (name, zone)
            assert sum(len(rrset) for rrset in reply.answer) == len(answer)
    assert not [row for row in snapshot_of(text).findings if row.namespace == WHERE]


def test_what_kubectl_prints_of_a_real_cluster_holds_no_error(cluster: ControlPlane) -> None:
    """A dump as the README shows it, of a real cluster."""
    ran = run("check", "--snapshot", "-", stdin=cluster.dump())
    assert ran.returncode == 0 and "0 errors" in ran.stdout, ran.stdout + ran.stderr
