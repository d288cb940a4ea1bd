# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --publish`` on a real control plane, and external-dns, which takes its DNSEndpoints."""

from __future__ import annotations

import re
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.kit import kustomize
from tests.kit.api_objects import Item, endpoint, endpoint_slice, listed, load_balancer_status, namespace, service
from tests.kit.coredns import running_coredns
from tests.kit.go_programs import dns_endpoints_crd
from tests.kit.kube import ControlPlane, config_of
from tests.kit.kustomize import objects_of
from tests.kit.other_dns import other_dns
from tests.kit.prober_process import COMMAND
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

SPACE, OURS = "published", "published-dns"  # of the Service, and of the DNSEndpoints
ZONE = "fed.example.com"
NAME = f"web.{SPACE}.{ZONE}"
EUROPE, ASIA, OTHER = "192.0.2.1", "192.0.2.2", "192.0.2.3"
WRITES = "topodns_dnsendpoint_writes_total"
LATE = 3 * PATIENCE  # for what follows after a Lease has expired, or a watch has waited

Publish = Callable[..., Server]


def exported(*balancers: str) -> list[Item]:
    """Return the Service of the name, with load balancers and an endpoint."""
    marks = {"topodns.io/federated": "true"}
    made = service("web", where=SPACE, cluster_ips=(), annotations=marks, type="LoadBalancer")
    made["status"] = load_balancer_status(balancers)
    return [namespace(SPACE), made, endpoint_slice("web", "1", [endpoint("10.253.9.1")], where=SPACE)]


@pytest.fixture(scope="module")
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a control plane with the kinds of topodns and two namespaces, but no DNSEndpoints."""
    plane = frail_control_plane
    with kustomize.installed(plane, objects_of("base with health", "CustomResourceDefinition")):
        plane.api.create(namespace(SPACE), namespace(OURS))
        yield plane
        plane.api.delete(namespace(SPACE), namespace(OURS))


@pytest.fixture(scope="module")
def kinds(plane: ControlPlane) -> Iterator[None]:
    """Serve DNSEndpoints from now on: an API server takes seconds to serve a kind again that it has just forgotten."""
    with kustomize.installed(plane, list(yaml.safe_load_all(dns_endpoints_crd().read_text()))):
        yield


@pytest.fixture
def publish(plane: ControlPlane) -> Iterator[Publish]:
    """Return a function that starts a controller; all of a test's have one Lease. DNSEndpoints end with the test."""
    lease = f"{OURS}/of-{uuid.uuid4()}"
    with ExitStack() as stack:

        def start(*arguments: str) -> Server:
            common = [f"--kubeconfig={plane.kubeconfig}", f"--lease={lease}", "--cluster-name=europe"]
            flags = ["--publish", f"--federation={ZONE}", *common, "--http=127.0.0.1:0"]
            process = Server(["controller", *flags, *arguments], command=COMMAND)
            stack.callback(process.end)
            process.http = process.wait_for(r"^listening http (\S+)$")[1]
            return process

        yield start
    plane.api.request("DELETE", plane.api.path("DNSEndpoint", OURS))


@pytest.fixture
def balance(plane: ControlPlane) -> Iterator[Callable[..., None]]:
    """Return a function that gives the Service load balancers; it ends with the test."""
    _, made, slices = exported()
    plane.api.create(made, slices)

    def change(*balancers: str) -> None:
        plane.api.patch_status(made, load_balancer_status(balancers))

    yield change
    plane.api.delete(made, slices)


def said(plane: ControlPlane) -> dict[str, Sequence[str]]:
    """Return the addresses in the DNSEndpoint of the name by type of record; empty if there is none."""
    items = [item for item in plane.api.items("DNSEndpoint", OURS) if item["metadata"]["name"] == NAME]
    return {record["recordType"]: record["targets"] for item in items for record in item["spec"]["endpoints"]}


def written(process: Server) -> dict[str, float]:
    """Return the number of writes of DNSEndpoints that succeeded, by verb."""
    return {verb: process.metrics()[WRITES, "done", verb] for verb in ("create", "patch", "delete")}


def until_said(plane: ControlPlane, *addresses: str, within: float = PATIENCE) -> None:
    wanted = {"A": list(addresses)} if addresses else {}
    until(lambda: said(plane) == wanted, lambda: f"{wanted}, not {said(plane)}", within=within)


def test_the_crd_comes_later(
    plane: ControlPlane, publish: Publish, balance: Callable[..., None], request: pytest.FixtureRequest
) -> None:
    """The controller says what it lacks, goes on with the rest, and publishes as soon as it can."""
    balance(EUROPE)
    process = publish()
    process.wait_for("DNSEndpoint: 404 .*is its CRD installed")
    process.wait_for("became leader: this replica writes PodLocators, DNSEndpoints and the status of ServicePolicies")
    until(lambda: process.get("/readyz")[0] == 200, lambda: f"ready: {process.get('/readyz?verbose')}")
    assert re.search(r"DNSEndpoint not listed yet, .* is its CRD installed\?", process.get("/readyz?verbose")[1])
    request.getfixturevalue("kinds")  # before other tests ask for it
    until_said(plane, EUROPE, within=LATE)
    balance()
    until_said(plane)


@pytest.mark.slow
@pytest.mark.usefixtures("kinds")
def test_external_dns_writes_the_names(
    plane: ControlPlane, publish: Publish, balance: Callable[..., None], tmp_path: Path
) -> None:
    """Another DNS answers what the clusters have: from the first load balancer to the last one's end."""
    balance(EUROPE)
    asia = tmp_path / "asia.json"
    asia.write_text(listed(exported(ASIA, "2001:db8::2")))
    publish(f"--cluster=asia={asia}")
    with other_dns(tmp_path, plane, ZONE, OURS) as dns:

        def until_answered(*addresses: str) -> None:
            wanted = (set(addresses), 180 if addresses else 0)
            dns.writer.until(lambda: dns.answer(NAME) == wanted, within=LATE)

        until_answered(EUROPE, ASIA)
        dns.writer.until(lambda: dns.answer(NAME, "AAAA") == ({"2001:db8::2"}, 180))
        balance(OTHER)
        until_answered(OTHER, ASIA)
        asia.write_text(listed(exported()))
        until_answered(OTHER)
        balance()
        until_answered()
        assert said(plane) == {}


@pytest.mark.usefixtures("kinds")
def test_the_next_leader_goes_on(plane: ControlPlane, publish: Publish, balance: Callable[..., None]) -> None:
    """Only the leader writes; when it is killed, the other one writes what has changed since."""
    balance(EUROPE)
    first = publish()
    until_said(plane, EUROPE)
    second = publish()
    first.send(signal.SIGKILL)
    balance(OTHER)
    until_said(plane, OTHER, within=LATE)
    # Others see a write before its result is counted.
    until(lambda: written(second) == {"create": 0, "patch": 1, "delete": 0}, lambda: f"{written(second)}")


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("flag", ["--cluster=gone={0}/gone#main", "--cluster-dir={0}"])
def test_a_cluster_that_cannot_be_read(
    plane: ControlPlane, publish: Publish, balance: Callable[..., None], tmp_path: Path, flag: str
) -> None:
    """What is written of it stays for ``--cluster-max-age``, also after a restart; the others go on."""
    (tmp_path / "gone").write_text(yaml.safe_dump(config_of()))
    gone = flag.format(tmp_path)
    balance(EUROPE)
    plane.api.create(ours(EUROPE, ASIA))
    process = publish(gone)
    balance(OTHER)
    until_said(plane, EUROPE, ASIA, OTHER)
    assert "[+]cluster gone not read yet" in process.get("/readyz?verbose")[1]
    process.end()
    publish(gone, "--cluster-max-age=2")
    until_said(plane, OTHER, within=LATE)


@pytest.mark.usefixtures("kinds")
def test_host_names(plane: ControlPlane, publish: Publish, balance: Callable[..., None], tmp_path: Path) -> None:
    """They are resolved by the upstream; without one, the log says why there is nothing."""
    balance("lb.example")
    without = publish("--upstream=off")
    without.wait_for("nobody resolves lb.example: the load balancer is in no answer")
    assert said(plane) == {}
    without.end()
    with running_coredns(tmp_path, f"hosts {{\n{EUROPE} lb.example\n}}") as upstream:
        publish(f"--upstream=127.0.0.1:{upstream.port}")
        until_said(plane, EUROPE, within=LATE)


@pytest.mark.usefixtures("kinds")
def test_somebody_elses_is_left_alone(plane: ControlPlane, publish: Publish, balance: Callable[..., None]) -> None:
    """It stays as it is, and whoever looks is told; once it is gone, the name is published."""
    foreign = ours("198.51.100.1", labels={})
    plane.api.create(foreign)
    balance(EUROPE)
    process = publish()
    process.wait_for(f"{NAME} is not published: the DNSEndpoint of that name is somebody else's")
    assert f"{NAME} is not published" in process.get("/readyz?verbose")[1]
    assert said(plane) == {"A": ["198.51.100.1"]}
    plane.api.delete(foreign)
    until_said(plane, EUROPE)


def ours(*addresses: str, labels: Mapping[str, str] | None = None) -> Item:
    """Return the DNSEndpoint of the name as topodns writes it, or with other *labels*."""
    marks = {"app.kubernetes.io/managed-by": "topodns"} if labels is None else dict(labels)
    records = [{"dnsName": NAME, "recordTTL": 180, "recordType": "A", "targets": list(addresses)}]
    return {
        "apiVersion": "externaldns.k8s.io/v1alpha1",
        "kind": "DNSEndpoint",
        "metadata": {"name": NAME, "namespace": OURS, "labels": marks},
        "spec": {"endpoints": records},
    }
