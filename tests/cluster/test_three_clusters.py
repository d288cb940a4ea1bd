# SPDX-License-Identifier: Apache-2.0

"""Three real clusters, read live: edits in any of them, votes of their probers, and an API server that goes away.

Load balancers are listeners on loopback addresses. Everything is asked of one server, which is in the cluster east.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import dns.edns
import dns.message
import pytest

from tests.kit import kustomize, topodns_process
from tests.kit.api_objects import MAIN, REGION, Item, endpoint, endpoint_slice, namespace, node, service
from tests.kit.balancers import Balancer
from tests.kit.in_memory import ClustersInMemory, ask_in_memory
from tests.kit.kube import ControlPlane, running_control_plane
from tests.kit.kustomize import objects_of
from tests.kit.live_server import serving_live
from tests.kit.prober_process import COMMAND, Probing
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

SPACE = "drill"
NAME = f"web.{SPACE}.fed.example"
NAMES = ("east", "west", "south")
CLIENTS = {"east": "10.71.0.9", "west": "10.72.0.9", "south": "10.73.0.9", "elsewhere": "192.0.2.1"}
FLAGS: dict[str, Any] = {
    "cluster-name": "east", "federation": ["fed.example"], "cluster-max-age": 3, "federation-spares": 3,
}  # fmt: skip
EXPORTED = {"topodns.io/federated": "true"}
DUMPED = "namespaces,nodes,pods,services,endpointslices,servicehealths"


class Cluster(NamedTuple):
    """A control plane, what is in it, and the load balancer of its Service."""

    name: str
    plane: ControlPlane
    balancer: Balancer
    items: Mapping[str, Item]


def items_of(number: int, balancer: Balancer) -> dict[str, Item]:
    """Return a node, and a Service with its slice, which no controller of Kubernetes touches."""
    annotations = {**EXPORTED, "topodns.io/health": f"tcp:{balancer.port}"}
    return {
        "node": node(f"{SPACE}-1", {REGION: f"r{number}"}, cidrs=[f"10.7{number}.0.0/24"]),
        "service": service(
            "web",
            where=SPACE,
            cluster_ips=(),
            annotations=annotations,
            type="LoadBalancer",
            ports=[*MAIN, ("checked", balancer.port, "TCP")],
        ),
        "slice": endpoint_slice("web", 1, [endpoint(f"10.7{number}.0.5", nodeName=f"{SPACE}-1")], where=SPACE),
    }


@pytest.fixture(scope="module")
def clusters(
    control_plane: ControlPlane, frail_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Cluster]]:
    """Return three clusters; the API server of west may be killed."""
    with ExitStack() as stack:
        third = stack.enter_context(running_control_plane(tmp_path_factory.mktemp("third")))
        found = {}
        for number, (name, plane) in enumerate(
            zip(NAMES, (control_plane, frail_control_plane, third), strict=True), start=1
        ):
            balancer = Balancer(f"127.0.7.{number}")
            stack.callback(balancer.stop)
            items = items_of(number, balancer)
            stack.enter_context(kustomize.installed(plane, objects_of("base with health", "CustomResourceDefinition")))
            plane.api.create(namespace(SPACE), *items.values())
            plane.api.patch_status(items["service"], ingress(balancer.host))
            stack.callback(plane.api.delete, items["node"], namespace(SPACE))
            found[name] = Cluster(name, plane, balancer, items)
        yield found


def ingress(*addresses: str) -> Item:
    return {"loadBalancer": {"ingress": [{"ip": address} for address in addresses]}}


@pytest.fixture(scope="module")
def server(clusters: Mapping[str, Cluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server in the cluster east, which reads all three."""
    others = [f"{name}={clusters[name].plane.kubeconfig}" for name in NAMES[1:]]
    with serving_live(
        tmp_path_factory.mktemp("server"), clusters["east"].plane.kubeconfig, flags={**FLAGS, "cluster": others}
    ) as running:
        yield running


def query(client: str) -> dns.message.Message:
    return dns.message.make_query(NAME, "A", use_edns=0, options=[dns.edns.ECSOption(client, 32)])


def data(reply: dns.message.Message | None) -> list[str]:
    assert reply is not None
    return [str(row) for rrset in reply.answer for row in rrset]


def answers(server: Server) -> dict[str, list[str]]:
    """Return what each client gets, the selection sorted: of one cluster, that is one address."""
    return {who: data(server.ask(query(client))) for who, client in CLIENTS.items()}


def elsewhere(server: Server) -> set[str]:
    return set(answers(server)["elsewhere"])


def expected(clusters: Mapping[str, Cluster]) -> dict[str, list[str]]:
    """Return what each client gets by the dumps of the three clusters."""
    dumps = {name: cluster.plane.dump(DUMPED) for name, cluster in clusters.items()}
    responder = ClustersInMemory(
        dumps["east"], {name: dumps[name] for name in NAMES[1:]}, {**FLAGS, "upstream": "off"}
    ).responder()
    return {who: data(ask_in_memory(responder, query(client), client)) for who, client in CLIENTS.items()}


def sets(found: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {who: tuple(sorted(addresses)) for who, addresses in found.items()}


def until_dumps_say_so(clusters: Mapping[str, Cluster], server: Server) -> None:
    wanted = sets(expected(clusters))
    until(lambda: sets(answers(server)) == wanted, lambda: f"{wanted}, not {answers(server)}")


def until_all(clusters: Mapping[str, Cluster], server: Server, *without: str, within: float = PATIENCE) -> None:
    """Wait until clients elsewhere get the load balancers of all clusters but some."""
    wanted = {cluster.balancer.host for name, cluster in clusters.items() if name not in without}
    until(lambda: elsewhere(server) == wanted, lambda: f"{wanted}, not {elsewhere(server)}", within=within)


def test_votes(clusters: Mapping[str, Cluster], server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer that fails leaves the answers once most probers say so, and comes back when it works.

    A prober alone changes nothing, nor does one that ends.
    """
    monkeypatch.setattr(topodns_process, "COMMAND", COMMAND)
    until_all(clusters, server)
    with ExitStack() as stack:
        prober(clusters, stack, "east")
        clusters["south"].balancer.stop()
        until(lambda: votes_counted(server) == {"east": 3, "west": 0, "south": 0}, lambda: votes_counted(server))
        until(lambda: against(clusters["east"]) == {"127.0.7.3"}, lambda: against(clusters["east"]))
        assert elsewhere(server) == {"127.0.7.1", "127.0.7.2", "127.0.7.3"}
        second = prober(clusters, stack, "west")
        until_all(clusters, server, "south")
        assert answers(server)["south"][0].startswith("10.96.")  # in its own cluster, the cluster IP stays
        assert answers(server)["east"][1:] == ["127.0.7.2"]
        for name in ("east", "west"):
            clusters[name].balancer.stop()
        until_all(clusters, server)  # all votes against all
        for cluster in clusters.values():
            cluster.balancer.start()
        until(lambda: not against(clusters["east"]) | against(clusters["west"]), "all healthy")
        second.end()
        until_all(clusters, server)


def prober(clusters: Mapping[str, Cluster], stack: ExitStack, name: str) -> Probing:
    """Start the prober of a cluster, which ends with *stack*."""
    others = [f"--cluster={other}={clusters[other].plane.kubeconfig}" for other in NAMES if other != name]
    lease = f"--lease={SPACE}/{name}"
    probing = Probing([f"--kubeconfig={clusters[name].plane.kubeconfig}", f"--cluster-name={name}", lease, *others])
    stack.callback(probing.end)
    return probing.until_leading()


def test_a_witness(clusters: Mapping[str, Cluster], server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two clusters one is lost, with its API server, prober and load balancer; a third without Services votes, too.

    Without the witness's vote, the load balancer would stay. It comes back with its cluster.
    """
    monkeypatch.setattr(topodns_process, "COMMAND", COMMAND)
    until_all(clusters, server)
    west, witness, items = clusters["west"], clusters["south"].plane.api, clusters["south"].items
    witness.delete(items["service"], items["slice"], items["node"])
    until_all(clusters, server, "south")
    with ExitStack() as stack:
        prober(clusters, stack, "east")
        prober(clusters, stack, "south")
        both = {"east": 2, "south": 2}
        until(lambda: votes_counted(server).items() >= both.items(), lambda: f"{both} of {votes_counted(server)}")
        west.plane.kill()
        west.balancer.stop()
        try:
            until_all(clusters, server, "west", "south")
        finally:
            west.balancer.start()
            west.plane.start()
        until_all(clusters, server, "south", within=3 * PATIENCE)
    witness.create(items["node"], items["service"], items["slice"])
    witness.patch_status(items["service"], ingress(clusters["south"].balancer.host))
    until_all(clusters, server)


def votes_counted(server: Server) -> Mapping[str, int]:
    """Return on how many addresses each cluster has a vote that counts."""
    found = server.metrics()
    return {name: int(found["topodns_health_votes", name]) for name in NAMES}


def against(cluster: Cluster) -> set[str]:
    """Return the addresses that the prober of a cluster votes against."""
    return {
        entry["address"]
        for found in cluster.plane.api.items("ServiceHealth")
        for entry in found["status"]["entries"]
        if not entry["healthy"]
    }


def test_a_cluster_that_is_lost(clusters: Mapping[str, Cluster], server: Server) -> None:
    """Its view stays for --cluster-max-age, then it contributes nothing; the others do not notice; then it is back."""
    until_all(clusters, server)
    west = clusters["west"].plane
    west.kill()
    try:
        server.wait_for("cluster west: out of reach for 3 s")
        until_all(clusters, server, "west")
        found = answers(server)
        assert found["west"] and set(found["west"]) == {"127.0.7.1", "127.0.7.3"}  # nobody knows where it is
        ages = {key[1]: age for key, age in server.metrics().items() if key[0] == "topodns_cluster_view_age_seconds"}
        assert {name for name, age in ages.items() if age} == {"west"} and ages["west"] >= 3
        status, text = server.get("/readyz?verbose")
        assert (status, "[+]cluster west no contact for" in text) == (200, True)
        clusters["east"].plane.api.patch_status(clusters["east"].items["service"], ingress("203.0.113.1"))
        until(lambda: "203.0.113.1" in elsewhere(server), lambda: elsewhere(server))
    finally:
        west.start()
    clusters["east"].plane.api.patch_status(clusters["east"].items["service"], ingress("127.0.7.1"))
    until_all(clusters, server, within=3 * PATIENCE)
    assert answers(server)["west"][0].startswith("10.96.")
    assert server.metrics()["topodns_cluster_view_age_seconds", "west"] == 0


def test_a_restart_while_a_cluster_is_away(clusters: Mapping[str, Cluster], tmp_path: Path) -> None:
    """Each cluster has a state file: the other cluster's last view counts again, and is as old as it is."""
    flags = {
        **FLAGS, "cluster": f"west={clusters['west'].plane.kubeconfig}", "state-dir": str(tmp_path / "state"),
        "cluster-max-age": 3600,
    }  # fmt: skip
    east, west = clusters["east"].plane, clusters["west"].plane
    both = {"127.0.7.1", "127.0.7.2"}
    with serving_live(tmp_path, east.kubeconfig, flags=flags) as first:
        until(lambda: elsewhere(first) == both, lambda: elsewhere(first))
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"view", "view-west"}
    west.kill()
    try:
        with serving_live(tmp_path, east.kubeconfig, flags=flags) as second:
            assert elsewhere(second) == both
            assert answers(second)["west"][0].startswith("10.96.")
            assert "[+]cluster west no contact for" in second.get("/readyz?verbose")[1]
    finally:
        west.start()


def test_random_edits(clusters: Mapping[str, Cluster], server: Server) -> None:
    """Whatever happens in any cluster: soon all clients get what the dumps of all clusters say."""
    until_all(clusters, server, within=3 * PATIENCE)
    rng = random.Random(15)

    def edit() -> None:
        cluster = clusters[rng.choice(NAMES)]
        api, items = cluster.plane.api, cluster.items
        number = NAMES.index(cluster.name) + 1
        choice = rng.randrange(5)
        if choice == 0:
            api.patch_status(items["service"], ingress(*rng.sample([cluster.balancer.host, "203.0.113.7"], 2)[:1]))
        elif choice == 1:
            exported = rng.choice(("true", "false"))
            api.patch(items["service"], {"metadata": {"annotations": {"topodns.io/federated": exported}}})
        elif choice == 2:
            keys = rng.choice((f"{REGION},*", "topodns.io/cluster", "topodns.io/cluster,*", None))
            api.patch(items["service"], {"metadata": {"annotations": {"topodns.io/topology-keys": keys}}})
        elif choice == 3:
            hosts = [endpoint(f"10.7{number}.0.{last}", nodeName=f"{SPACE}-1") for last in range(5, rng.randint(5, 8))]
            api.patch(items["slice"], {"endpoints": hosts})
        else:
            api.patch(items["node"], {"metadata": {"labels": {REGION: f"r{rng.randint(1, 3)}"}}})

    for _ in range(4):
        for _ in range(6):
            edit()
        until_dumps_say_so(clusters, server)
