# SPDX-License-Identifier: Apache-2.0

"""``topodns dump`` of a real cluster with an installation: what is in it, what never is, and that it answers alike."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dnsserver.cli.errors import EXIT_DONE
from tests.kit.api_objects import deployment, item, namespace, node, pod
from tests.kit.certificates import issued
from tests.kit.commands_in_process import Ran, Run
from tests.kit.doctor_world import CLIENTS, NAME, SYSTEM, WHERE, ZONES, World, running_world
from tests.kit.kube import ControlPlane
from tests.kit.kustomize import NAMESPACE, SERVER
from tests.kit.network_namespaces import PREFIX
from tests.kit.other_server import Response, other_server

CONFIDENTIAL = "confidential"
PLANTED = [
    item(kind, f"planted-{kind.lower()}", where, **{field: {"key": CONFIDENTIAL}})
    for kind, field in (("Secret", "stringData"), ("ConfigMap", "data"))
    for where in (NAMESPACE, SYSTEM)
]


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An installation, with something confidential wherever it may stand."""
    with running_world(control_plane, tmp_path_factory.mktemp("dump")) as running:
        control_plane.api.create(*PLANTED)
        kubectl = control_plane.kubectl
        kubectl("-n", NAMESPACE, "set", "env", f"deployment/{SERVER}", f"PASSWORD={CONFIDENTIAL}")
        kubectl("-n", WHERE, "annotate", "service", "cache", f"example.com/note={CONFIDENTIAL}")
        kubectl("-n", WHERE, "annotate", "pods", "--all", f"example.com/note={CONFIDENTIAL}")
        running.settled()
        running.ready()
        yield running
        control_plane.api.delete(*PLANTED)


class Dump(NamedTuple):
    """A dump: what the command said, the folder, and its files."""

    ran: Ran
    folder: Path
    files: dict[str, str]

    @property
    def manifest(self) -> Any:
        return json.loads(self.files["manifest.json"])


def dump(topodns: Run, folder: Path, kubeconfig: Path, *words: str) -> Dump:
    """Run the command, and unpack what it wrote."""
    path = folder / "a.tar.gz"
    ran = topodns("dump", "--kubeconfig", str(kubeconfig), "--output", str(path), *words)
    assert ran.status == EXIT_DONE, ran.err
    with tarfile.open(path) as opened:
        opened.extractall(folder, filter="data")
    inside = folder / "topodns-dump"
    files = {str(file.relative_to(inside)): file.read_text() for file in inside.rglob("*") if file.is_file()}
    return Dump(ran, inside, files)


def test_the_installation(world: World, topodns: Run, tmp_path: Path) -> None:
    """All parts are there, and what is missing is named: no kubelet has logs here."""
    found = dump(topodns, tmp_path, world.plane.kubeconfig)
    (pod,) = json.loads(found.files["installation/pods.json"])["items"]
    name = pod["metadata"]["name"]
    assert [row["name"] for row in found.manifest["errors"]] == [f"pods/{name}/topodns.log"]
    assert f"not read: pods/{name}/topodns.log: " in found.ran.err
    (deployment,) = json.loads(found.files["installation/deployments.json"])["items"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "PASSWORD"} in container["env"] and "serve" in container["args"] and container["resources"]
    assert deployment["status"]["readyReplicas"] == 1 and pod["status"]["phase"] == "Running"
    assert "topodns_dns_requests_total{" in found.files[f"pods/{name}/metrics.txt"]
    assert "[+]" in found.files[f"pods/{name}/readyz.txt"]
    assert "rewrite edns0" in found.files[f"forwarders/{SYSTEM}_coredns_Corefile.txt"]
    assert json.loads(found.files["doctor.json"])["counts"]["passed"] and "passed" in found.files["doctor.txt"]
    events = json.loads(found.files["installation/events.json"])["items"]
    assert {event["involvedObject"]["kind"] for event in events} >= {"Deployment", "ReplicaSet"}
    assert not [file for file, text in found.files.items() if CONFIDENTIAL in text]


def test_it_answers_as_the_cluster(world: World, topodns: Run, tmp_path: Path) -> None:
    """``check`` and ``explain`` say of the archive what they say of the cluster."""
    objects = str(dump(topodns, tmp_path, world.plane.kubeconfig).folder / "objects")

    def said(*words: str) -> list[Any]:
        return [
            topodns(*words, *where, "-o", "json").json
            for where in (("--kubeconfig", str(world.plane.kubeconfig)), ("--snapshot", objects))
        ]

    live, read = said("check")
    without_file = [{**row, "file": "", "line": None} for row in read]
    assert without_file == [{**row, "file": "", "line": None} for row in live]
    for client in CLIENTS.values():
        live, read = said("explain", NAME, "--client", client, "--candidates")
        assert live == read and live["outcome"] == "nearest"


def test_hashed_names(world: World, topodns: Run, tmp_path: Path) -> None:
    """No name, address or text of the cluster is left, and each zone's client still gets its own endpoint."""
    found = dump(topodns, tmp_path, world.plane.kubeconfig, "--hash-names")
    assert not found.manifest["errors"] and {"doctor.json", "installation/events.json"} <= found.files.keys()
    names = [
        CONFIDENTIAL,
        PREFIX,
        world.address,
        *(f"{word}-{zone}" for word in (WHERE, "client", "cache") for zone in ZONES),
    ]
    assert not [(file, name) for file, text in found.files.items() for name in names if name in text + file]
    pods = json.loads(found.files["objects/pods.json"])["items"]
    nodes = json.loads(found.files["objects/nodes.json"])["items"]
    slices = json.loads(found.files["objects/endpointslices.json"])["items"]
    asked = next(
        one for one in slices if len(one["endpoints"] or ()) == len(ZONES) and "hostname" not in one["endpoints"][0]
    )
    service, space = asked["metadata"]["labels"]["kubernetes.io/service-name"], asked["metadata"]["namespace"]
    members = {row["addresses"][0] for row in asked["endpoints"]}
    clients = [one["status"]["podIP"] for one in pods if one["metadata"]["namespace"] == space]
    got = [
        topodns("explain", f"{service}.{space}.svc.cluster.local", "--client", client, "--snapshot",
                str(found.folder / "objects"), "-o", "json").json
        for client in clients if client not in members
    ]  # fmt: skip
    assert {row["data"] for one in got for row in one["answers"]} == members and len(nodes) >= len(ZONES)
    assert {one["outcome"] for one in got} == {"nearest"}


def test_few_rights(world: World, topodns: Run, tmp_path: Path) -> None:
    """What topodns' own account may not read is named, with the right that lacks; the rest is there."""
    token = world.plane.token(NAMESPACE, SERVER)
    found = dump(topodns, tmp_path, world.plane.kubeconfig_with(tmp_path / "kubeconfig", token=token))
    whys = {row["name"]: row["why"] for row in found.manifest["errors"]}
    assert 'resources: ["deployments"]' in whys["installation/deployments.json"]
    assert "objects/pods.json" in found.files and "objects/pods.json" not in whys
    assert all(f"not read: {name}: {why}" in found.ran.err for name, why in whys.items())


LOGS, LOG = "dump-logs", b"a line of the log\n"


def test_logs(control_plane: ControlPlane, topodns: Run, tmp_path: Path) -> None:
    """Of topodns' containers alone, as kubelets give them; also of the one before a restart."""
    ours, beside = {"name": "topodns", "image": "topodns"}, {"name": "mesh", "image": "none"}
    labels = {"app": "named-otherwise"}
    installed = deployment("dns", where=LOGS, labels=labels, replicas=0)
    installed["spec"]["template"]["spec"]["containers"] = [{**ours, "args": ["serve"]}, beside]
    restarted = [{"name": "topodns", "image": "", "imageID": "", "ready": True, "restartCount": 1}]
    runs = pod("dns-1", [], "logs-1", where=LOGS, labels=labels, containers=[ours, beside], phase="Pending")
    runs["status"]["containerStatuses"] = restarted
    machine = node("logs-1", addresses=["127.0.0.1"])
    _, pair = issued(["127.0.0.1"], time.time(), 3600.0)
    (tmp_path / "tls").write_bytes(pair.key + pair.certificate)
    with other_server(lambda: Response(200, LOG, "text/plain"), tls=tmp_path / "tls") as kubelet:
        machine["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": int(kubelet.rpartition(":")[2])}}
        control_plane.api.create(namespace(LOGS), machine, installed, runs)
        found = dump(topodns, tmp_path, control_plane.kubeconfig, "-n", LOGS)
    control_plane.api.delete(runs, installed, machine, namespace(LOGS))
    logs = {name: text for name, text in found.files.items() if name.endswith(".log")}
    assert logs == {f"pods/dns-1/topodns{previous}.log": LOG.decode() for previous in ("", ".previous")}
    assert {row["name"] for row in found.manifest["errors"]} == {"pods/dns-1/metrics.txt", "pods/dns-1/readyz.txt"}
