# SPDX-License-Identifier: Apache-2.0

"""End to end, as KEP-536 asks: a real cluster changes, and each zone gets exactly the answers that it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from locator.cluster import dump_files
from locator.cluster.dump_files import DumpFiles
from tests.kit.api_objects import TOPOLOGY_KEYS, ZONE, Item, namespace, pod, service, zone_nodes
from tests.kit.commands_in_process import Run
from tests.kit.kube import ControlPlane
from tests.kit.live_server import Asker, answered, asked, extended_errors, serving_live
from tests.kit.programs import environment
from tests.kit.topodns_process import Server, run
from tests.kit.waiting import PATIENCE, until

WHERE = "kep"
ZONES = ("a", "b", "c")
NODES = zone_nodes("kep", ZONES, each=2)
CLIENTS = {zone: f"10.240.{number}.1" for number, zone in enumerate(ZONES, 1)}
SERVICE = service("cache", where=WHERE, keys=f"{ZONE},*", selector={"app": "cache"})
NAME = f"cache.{WHERE}"
ANYWHERE = "192.0.2.1"


def member(number: int, zone: str, *, on: int = 1, ready: bool = True) -> Item:
    """Return a pod of the Service; its address contains zone and number."""
    address = f"10.241.{ZONES.index(zone) + 1}.{number}"
    return pod(
        f"cache-{zone}-{number}", [address], f"kep-{zone}{on}", where=WHERE, labels={"app": "cache"}, ready=ready
    )


def address_of(pod: Item) -> str:
    address: str = pod["status"]["podIP"]
    return address


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Three zones of two nodes, with a client and a pod of the Service in each."""
    clients = [pod(f"client-{zone}", [CLIENTS[zone]], f"kep-{zone}1", where=WHERE) for zone in ZONES]
    items = [namespace(WHERE), *NODES, *clients, *(member(1, zone) for zone in ZONES), SERVICE]
    control_plane.api.create(*items)
    yield control_plane
    left = [{"kind": "Pod", **item} for item in control_plane.api.items("Pod", WHERE)]
    control_plane.api.delete(*left, SERVICE, *NODES[:5], namespace(WHERE))


@pytest.fixture(scope="module")
def server(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_live(tmp_path_factory.mktemp("live"), cluster.kubeconfig) as running:
        yield running


def own(*extra: Item, without: str = "") -> dict[str, set[str]]:
    """Return what each zone gets of the first pods and *extra* ones; a zone *without* any gets all."""
    members = [*(member(1, zone) for zone in ZONES), *extra]
    by_zone = {
        zone: {address_of(member) for member in members if member["spec"]["nodeName"].startswith(f"kep-{zone}")}
        for zone in ZONES
        if zone != without
    }
    everything = {address for addresses in by_zone.values() for address in addresses}
    return {zone: by_zone.get(zone) or everything for zone in ZONES}


def keys(plane: ControlPlane, text: str | None) -> None:
    plane.api.patch(SERVICE, {"metadata": {"annotations": {TOPOLOGY_KEYS: text}}})


def test_the_cluster_changes_and_the_answers_follow(cluster: ControlPlane, server: Server) -> None:
    """After each change (scale, move, relabel, delete, annotate), no client gets a wrong answer."""
    api = cluster.api
    everything = {address_of(member(1, zone)) for zone in ZONES}
    second = member(2, "a", on=2)
    moved = {**member(3, "b"), "spec": {**member(3, "b")["spec"]}}
    with Asker(server, NAME, CLIENTS) as asker:

        def becomes(expected: dict[str, set[str]]) -> None:
            asker.until(expected)
            for who, seen in asker.saw().items():
                assert seen == {frozenset(expected[who])}, who

        becomes(own())

        api.create(second)  # scaled up
        becomes(own(second))
        api.patch_status(second, {"conditions": [{"type": "Ready", "status": "False"}]})
        becomes(own())
        api.patch_status(second, {"conditions": [{"type": "Ready", "status": "True"}]})
        becomes(own(second))
        api.delete(second)  # scaled down
        becomes(own())

        api.delete(member(1, "c"))  # a zone without any: soft
        becomes(own(without="c"))
        keys(cluster, ZONE)  # hard
        becomes({**own(), "c": set()})
        reply = asked(server, NAME, CLIENTS["c"])
        assert extended_errors(reply) == {0} and reply.authority[0].ttl == 0
        api.create(member(1, "c"))
        becomes(own())
        assert asked(server, NAME, ANYWHERE).answer == []

        keys(cluster, f"kubernetes.io/hostname,{ZONE}")
        becomes(own())
        keys(cluster, None)
        becomes(dict.fromkeys(ZONES, everything))
        keys(cluster, f"*,{ZONE}")  # invalid: as if it had none
        server.wait_for(rf"Service {WHERE}/cache: .*: invalid constraint")  # the answers alone would not tell when
        becomes(dict.fromkeys(ZONES, everything))
        keys(cluster, f"{ZONE},*")
        becomes(own())

        api.create(moved)  # another pod of the set, then moved to another zone with another address
        becomes(own(moved))
        api.delete(moved)
        moved = pod(moved["metadata"]["name"], ["10.241.3.3"], "kep-c2", where=WHERE, labels={"app": "cache"})
        api.create(moved)
        becomes(own(moved))

        api.patch(NODES[5], {"metadata": {"labels": {ZONE: "a"}}})  # the node of the moved pod is in zone a now
        becomes({**own(), "a": {address_of(member(1, "a")), "10.241.3.3"}})
        api.delete(NODES[5])  # its pods are still there, for the slice's own word is left: the zone it was made with
        until(lambda: "kep-c2" not in {item["metadata"]["name"] for item in api.items("Node")}, "the node is gone")
        api.delete(moved)
        becomes(own())
        until(lambda: asker.asked > 100, "everybody to ask often")
        assert asker.lost == []
    assert not any("Traceback" in line for line in server.lines)


def test_an_invalid_constraint_is_told_to_whoever_describes_the_service(cluster: ControlPlane, server: Server) -> None:
    """``kubectl describe`` shows the Event."""
    broken = service("broken", where=WHERE, keys=f"*,{ZONE}", selector={"app": "broken"})
    cluster.api.create(broken)
    try:
        described = until(
            lambda: (
                (text := cluster.kubectl("-n", WHERE, "describe", "service", "broken")).count("InvalidTopology")
                and text
            ),
            "an event",
        )
        assert re.search(r"Warning\s+InvalidTopology\s.*topodns.*'\*' is key 1 of 2", described)
        server.wait_for(r"Service kep/broken: metadata\.annotations\[topodns\.io/topology-keys\]: invalid constraint")
    finally:
        cluster.api.delete(broken)


def test_explain_and_check_read_the_live_cluster(cluster: ControlPlane) -> None:
    """They print the same as for a dump."""
    cluster.settle()  # what is wrong in other tests' objects is told, too, as long as they are there
    explained = run(
        *("explain", f"{NAME}.svc.cluster.local", "--client", CLIENTS["b"], "--kubeconfig", str(cluster.kubeconfig))
    )
    assert explained.returncode == 0, explained.stderr
    assert "10.241.2.1" in explained.stdout and "10.241.1.1" not in explained.stdout
    checked = run("check", "--kubeconfig", str(cluster.kubeconfig))
    assert checked.returncode == 0 and "0 errors" in checked.stdout, checked.stdout + checked.stderr


def test_simulate_reads_the_live_cluster(cluster: ControlPlane) -> None:
    """Also where a server would not watch Pods: they are the clients."""
    for source in ("pods,nodes", "nodes"):
        ran = run(
            *("simulate", "--service", f"{WHERE}/cache", "--clients", WHERE, "--client-source", source),
            *("--kubeconfig", str(cluster.kubeconfig), "-o", "json"),
        )
        assert ran.returncode == 0, ran.stderr
        (row,) = json.loads(ran.stdout)["services"]
        assert [endpoint["share"] for endpoint in row["endpoints"]] == [pytest.approx(1 / 3)] * 3, row
        assert row["cross_zone"]["after"] == 0 and row["unmet_clients"] == 0


def test_kubectl_explains(cluster: ControlPlane, tmp_path: Path) -> None:
    """``kubectl topodns`` runs the plugin; without ``-n``, it looks in the namespace of the kubeconfig's context."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for context in config["contexts"]:
        context["context"]["namespace"] = WHERE
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    installed = str(Path(sys.executable).parent)
    env = environment({"HOME": str(tmp_path), "PATH": os.pathsep.join([installed, os.environ["PATH"]])})
    command = [cluster.programs / "kubectl", "topodns", "explain", "svc/cache", "--kubeconfig", kubeconfig]
    for flags in ((), ("--client-source", "nodes")):  # the second reads Pods for the name alone
        arguments = [*command, "--client", "pod/client-b", "--candidates", "-o", "json", *flags]
        done = subprocess.run(arguments, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        said = json.loads(done.stdout)
        assert said["question"]["name"] == f"{NAME}.svc.cluster.local."
        assert (said["client"]["address"], said["client"]["located_by"]) == (
            CLIENTS["b"], "unknown" if flags else "pod")  # fmt: skip
        chosen = {row["pod"] for row in said["candidates"] if row["chosen"]}
        assert chosen == ({f"cache-{zone}-1" for zone in ZONES} if flags else {"cache-b-1"})
    helped = subprocess.run([*command, "--help"], capture_output=True, text=True, env=env, timeout=PATIENCE, check=True)
    assert helped.stdout.startswith("usage: kubectl topodns explain ")


def test_health_and_metrics_tell_of_every_kind(cluster: ControlPlane, server: Server) -> None:
    """They show which kinds are watched, how many objects there are, and how soon changes are answered."""
    other = member(9, "b")
    # Kubernetes notes in the slice when a pod's readiness changed, if that was said: else there is nothing to measure.
    other["status"]["conditions"][0]["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.api.create(other)
    until(lambda: answered(server, NAME, CLIENTS["b"]) == own(other)["b"], "a change")
    cluster.api.delete(other)
    _, health = server.get("/readyz?verbose")
    for kind in ("Namespace", "Service", "EndpointSlice", "Node", "Pod"):
        assert f"[+]{kind} ok" in health
    # Whether this cluster has the CRD depends on which tests ran before.
    assert re.search(
        r"\[\+\]ServicePolicy (ok|none: the API server has no /apis/topodns.io/v1alpha1/servicepolicies)", health
    )
    _, metrics = server.get("/metrics")
    assert 'topodns_synced{kind="EndpointSlice"} 1.0' in metrics
    assert re.search(r'topodns_objects\{kind="Pod"\} [1-9]', metrics)
    assert re.search(r"topodns_kubernetes_dns_programming_duration_seconds_count [1-9]", metrics)
    assert "PodLocator" not in health, "what is not watched is not missed"


@pytest.mark.parametrize(
    ("has_token", "words", "kubectl_says"),
    [
        (False, "401 Unauthorized: Namespace: Unauthorized; the credentials are missing, wrong or expired; ",
         "You must be logged in to the server"),
        (True, f'403 Forbidden: Namespace: namespaces is forbidden: User "system:serviceaccount:{WHERE}:nobody" cannot',
         f"system:serviceaccount:{WHERE}:nobody"),
    ],
    ids=["wrong-token", "no-right"],
)  # fmt: skip
def test_an_api_server_that_refuses(
    cluster: ControlPlane, tmp_path: Path, has_token: bool, words: str, kubectl_says: str
) -> None:
    """``check`` says what it lacks, and a command of kubectl that shows the same of the same kubeconfig."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": WHERE}}
    cluster.api.create(account)
    try:
        token = cluster.kubectl("create", "token", "nobody", "-n", WHERE).strip() if has_token else "expired"
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        ran = run("check", "--kubeconfig", str(path))
        assert ran.returncode == 1 and re.match(f"topodns: https://[^ ]+: {re.escape(words)}", ran.stderr), ran.stderr
        command = ran.stderr.split("'")[-2].split()
        command[0] = str(cluster.programs / "kubectl")
        tried = subprocess.run(command, capture_output=True, text=True, env=environment({"HOME": str(tmp_path)}),
                               timeout=PATIENCE, check=False)  # fmt: skip
        assert command[1:3] == ["--kubeconfig", str(path)] and kubectl_says in tried.stdout + tried.stderr
    finally:
        cluster.api.delete(account)


def test_a_cluster_info_dump_of_kubectl(topodns: Run, tmp_path: Path, control_plane: ControlPlane) -> None:
    """kubectl dumps no EndpointSlices: the dump is read, and ``check`` says so."""
    control_plane.kubectl("cluster-info", "dump", "--all-namespaces", "--output-directory", str(tmp_path))
    dump = dump_files.read_here(DumpFiles([str(tmp_path)]).inputs())
    assert "default/kubernetes" in {item.key for item in dump.objects}
    ran = topodns("check", "--snapshot", str(tmp_path))
    assert "KindMissing" in ran.out and "UnreadableObject" not in ran.out
