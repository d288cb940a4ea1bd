# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --health`` on a real control plane, with load balancers on loopback addresses."""

from __future__ import annotations

import json
import signal
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from locator.cluster.certificates import issuing
from tests.kit import kustomize, topodns_process
from tests.kit.api_objects import listed, load_balancer_status, namespace
from tests.kit.balanced_services import HEALTH, balanced
from tests.kit.balancers import Balancer
from tests.kit.kube import ControlPlane, Item, config_of
from tests.kit.kustomize import objects_of
from tests.kit.mounted_secret import mount
from tests.kit.prober_process import COMMAND, Probing
from tests.kit.topodns_process import Process
from tests.kit.waiting import PATIENCE, until

SPACE = "health"
WITHIN = 3 * PATIENCE  # for what follows after a Lease has expired, or an API server was away

Probe = Callable[..., Probing]


@pytest.fixture(scope="module")
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane with the CRDs and a namespace."""
    plane = frail_control_plane
    with kustomize.installed(plane, objects_of("base with health", "CustomResourceDefinition")):
        plane.api.create(namespace(SPACE))
        yield plane
        plane.api.delete(namespace(SPACE))


@pytest.fixture
def probe(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    """Return a function that starts a controller; all of a test's have one Lease. Services end with the test."""
    monkeypatch.setattr(topodns_process, "COMMAND", COMMAND)
    lease = f"{SPACE}/of-{uuid.uuid4()}"
    with ExitStack() as stack:

        def start(*arguments: str) -> Probing:
            common = [f"--kubeconfig={plane.kubeconfig}", f"--lease={lease}", "--cluster-name=east"]
            probing = Probing([*common, *arguments])
            stack.callback(probing.end)
            return probing

        yield start
    for item in plane.api.items("Service", SPACE):
        plane.api.delete(item | {"kind": "Service"})
    plane.api.request("DELETE", plane.api.path("ServiceHealth"))


@pytest.fixture
def balancer() -> Iterator[Callable[[str], Balancer]]:
    """Return a function that makes a load balancer at a loopback address."""
    with ExitStack() as stack:

        def make(host: str) -> Balancer:
            made = Balancer(host)
            stack.callback(made.stop)
            return made

        yield make


def create(plane: ControlPlane, name: str, addresses: Sequence[str], check: str) -> Item:
    """Create a Service with a load balancer, as its controller leaves it."""
    item = balanced(name, addresses, check, where=SPACE)
    plane.api.create(item)
    plane.api.patch_status(item, item["status"])
    return item


def status(plane: ControlPlane, name: str) -> Mapping[str, Any]:
    """Return the status of a ServiceHealth, empty if there is none."""
    items = plane.api.items("ServiceHealth")
    return next((dict(item["status"]) for item in items if item["metadata"]["name"] == f"{name}.{SPACE}"), {})


def said(plane: ControlPlane, name: str) -> dict[str, str]:
    """Return what a ServiceHealth says of each address: why it is unhealthy, empty if it is healthy."""
    entries = status(plane, name).get("entries", ())
    return {entry["address"]: "" if entry["healthy"] else entry["message"] for entry in entries}


def until_said(plane: ControlPlane, name: str, expected: Mapping[str, str], *, within: float = PATIENCE) -> None:
    until(lambda: said(plane, name) == expected, lambda: f"{name}: {said(plane, name)}, not {expected}", within=within)


def test_flags_without_health_or_publish_have_no_effect(tmp_path: Path) -> None:
    """Whoever forgets one of the two is told."""
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(config_of()))
    of_names = ("--federation=fed.example", "--upstream=127.0.0.1", "--cluster-max-age=60")
    flags = (f"--kubeconfig={config}", "--http=127.0.0.1:0", f"--cluster=west={config}", *of_names)
    prober = Process(["controller", *flags])
    try:
        prober.wait_for("--cluster has no effect without --health, --publish or --federate")
        for flag in of_names:
            prober.wait_for(f"{flag.partition('=')[0]} has no effect without --publish")
    finally:
        prober.end()


def test_a_missing_crd_is_said(frail_control_plane: ControlPlane) -> None:
    """Before anything is installed: the controller says what it lacks, and is not ready."""
    prober = Probing([f"--kubeconfig={frail_control_plane.kubeconfig}", "--lease=default/none"])
    try:
        prober.wait_for("ServiceHealth: 404 .*is its CRD installed")
    finally:
        prober.end()


def test_the_life_of_a_servicehealth(plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer]) -> None:
    """It says what was found; it follows the Service's addresses, and goes with the annotation."""
    one, two = balancer("127.0.1.1"), balancer("127.0.1.2")
    item = create(plane, "web", ["127.0.1.1"], f"tcp:{one.port}")
    prober = probe().until_leading()
    until_said(plane, "web", {"127.0.1.1": ""})
    found = status(plane, "web")
    assert (found["cluster"], found["service"]) == ("east", {"namespace": SPACE, "name": "web"})
    one.stop()
    until_said(plane, "web", {"127.0.1.1": "Connection refused"})
    prober.wait_for(f"Service {SPACE}/web: 127.0.1.1 port {one.port} is unhealthy: Connection refused")
    metrics = prober.metrics()
    assert (
        metrics['topodns_probed_addresses{healthy="false"}'] == 1
        and metrics['topodns_probes_total{result="failure"}'] >= 3
    )
    # Others see a write before its result is counted.
    until(lambda: prober.metrics()['topodns_servicehealth_writes_total{result="done",verb="patch"}'] >= 1, "a count")
    one.start()
    until_said(plane, "web", {"127.0.1.1": ""})
    other = balanced("web", [], f"http:{two.port}/healthz", where=SPACE)
    annotations, ports = other["metadata"]["annotations"], other["spec"]["ports"]
    plane.api.patch(item, {"metadata": {"annotations": annotations}, "spec": {"ports": ports}})
    plane.api.patch_status(item, load_balancer_status(["127.0.1.2"]))
    until_said(plane, "web", {"127.0.1.2": ""})
    two.status = 503
    until_said(plane, "web", {"127.0.1.2": "HTTP status 503"})
    two.status = 302
    until_said(plane, "web", {"127.0.1.2": ""})
    plane.api.patch(item, {"metadata": {"annotations": {HEALTH: None}}})
    until(lambda: status(plane, "web") == {}, "it is deleted")


def test_https(plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer], tmp_path: Path) -> None:
    """A certificate that nobody trusts will do; a load balancer without TLS is unhealthy."""
    one, now, pair = balancer("127.0.1.3"), time.time(), tmp_path / "pair.pem"
    found = issuing.issue(issuing.new_authority(now, 9e5), ["lb.example"], now, 9e5)
    pair.write_bytes(found.key + found.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    create(plane, "web", ["127.0.1.3"], f"https:{one.port}/healthz")
    probe().until_leading()
    until_said(plane, "web", {"127.0.1.3": "TLS: wrong version number"})
    one.stop()
    one.tls = context
    one.start()
    until_said(plane, "web", {"127.0.1.3": ""})
    one.status = 503
    until_said(plane, "web", {"127.0.1.3": "HTTP status 503"})


def test_the_next_leader_goes_on(plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer]) -> None:
    """After the first one is killed, its votes stand, and stay as old as they are."""
    up = balancer("127.0.1.4")
    create(plane, "web", ["127.0.1.4", "127.0.1.5"], f"tcp:{up.port}")
    first = probe().until_leading()
    second = probe()
    until_said(plane, "web", {"127.0.1.4": "", "127.0.1.5": "Connection refused"})
    before = status(plane, "web")
    assert not any(number for name, number in second.metrics().items() if name.startswith("topodns_probes_total"))
    first.send(signal.SIGKILL)
    second.until_leading()
    until(lambda: status(plane, "web")["renewTime"] > before["renewTime"], "it renews", within=WITHIN)
    assert status(plane, "web")["entries"] == before["entries"]
    up.stop()
    until_said(plane, "web", dict.fromkeys(["127.0.1.4", "127.0.1.5"], "Connection refused"))


def test_while_its_api_server_is_away_it_goes_on(
    plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer]
) -> None:
    """What it found out meanwhile is written as soon as it leads again."""
    one = balancer("127.0.1.6")
    create(plane, "web", ["127.0.1.6"], f"tcp:{one.port}")
    prober = probe().until_leading()
    until_said(plane, "web", {"127.0.1.6": ""})
    plane.kill()
    try:
        prober.wait_for("stopped leading")
        one.stop()
        prober.wait_for("127.0.1.6 port .* is unhealthy")
    finally:
        plane.start()
    until_said(plane, "web", {"127.0.1.6": "Connection refused"}, within=WITHIN)
    assert sum("is unhealthy" in line for line in prober.lines) == 1


def test_other_clusters(plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer], tmp_path: Path) -> None:
    """It probes their Services, too, live or from a dump; one that cannot be read costs the others nothing."""
    ours, theirs = balancer("127.0.1.7"), balancer("127.0.1.8")
    dump, gone = tmp_path / "west.json", tmp_path / "gone"
    dump.write_text(listed([balanced("web", ["127.0.1.8"], f"tcp:{theirs.port}", where=SPACE)]))
    gone.write_text(yaml.safe_dump(config_of()))
    create(plane, "web", ["127.0.1.7"], f"tcp:{ours.port}")
    others = [f"--cluster=west={dump}", f"--cluster=again={plane.kubeconfig}", f"--cluster=gone={gone}#main"]
    prober = probe(*others).until_leading()
    until_said(plane, "web", {"127.0.1.7": "", "127.0.1.8": ""})
    theirs.stop()
    until_said(plane, "web", {"127.0.1.7": "", "127.0.1.8": "Connection refused"})
    dump.write_text(listed([balanced("web", ["127.0.1.9"], "tcp:1", where=SPACE)]))
    until_said(plane, "web", {"127.0.1.7": "", "127.0.1.9": "Connection refused"})
    dump.write_text(json.dumps({"kind": "Nothing"}))
    prober.wait_for("cluster west: .*; keeping the previous version")
    found = prober.clusters()
    assert (found["again"], found["west"].partition(": ")[0]) == ("ok", "as it was before")
    assert found["gone"].startswith("not listed yet, for ")
    assert said(plane, "web") == {"127.0.1.7": "", "127.0.1.9": "Connection refused"}


def test_clusters_that_come_and_go(
    plane: ControlPlane, probe: Probe, balancer: Callable[[str], Balancer], tmp_path: Path
) -> None:
    """A leader probes the addresses of a cluster as long as its file is there, and no restart is needed."""
    ours, theirs = balancer("127.0.1.7"), balancer("127.0.1.8")
    create(plane, "web", ["127.0.1.7"], f"tcp:{ours.port}")
    mount(tmp_path, {"west": listed([balanced("web", ["127.0.1.8"], f"tcp:{theirs.port}", where=SPACE)])})
    prober = probe(f"--cluster-dir={tmp_path}").until_leading()
    until_said(plane, "web", {"127.0.1.7": "", "127.0.1.8": ""})
    mount(tmp_path, {"again.yaml": plane.kubeconfig.read_text(), "broken": "users: ["})
    until_said(plane, "web", {"127.0.1.7": ""})
    until(lambda: prober.clusters().get("again") == "ok", lambda: f"{prober.clusters()}")
    assert prober.clusters().keys() == {"again", "broken"}
    prober.wait_for("WARNING .*/broken: .*InvalidClusterFile")
    mount(tmp_path, {"west": listed([balanced("web", ["127.0.1.8"], f"tcp:{theirs.port}", where=SPACE)])})
    until_said(plane, "web", {"127.0.1.7": "", "127.0.1.8": ""})
    assert prober.clusters() == {"west": "ok"}


def test_a_cluster_that_is_not_there(topodns: Any, tmp_path: Path) -> None:
    """A file that does not exist is a wrong setting."""
    config, missing = tmp_path / "kubeconfig", tmp_path / "missing.yaml"
    config.write_text(yaml.safe_dump(config_of()))
    ran = topodns("controller", "--health", f"--kubeconfig={config}", f"--cluster=west={missing}")
    assert (ran.status, ran.err) == (
        2,
        f"topodns: --cluster west: {missing}: No such file or directory, expected a kubeconfig or a dump\n",
    )
