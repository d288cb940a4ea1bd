# SPDX-License-Identifier: Apache-2.0

"""``topodns doctor`` on a real cluster: each fault is found, and gone after the commands that it printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from dnsserver import __version__
from dnsserver.cli.reading import installed, replicas
from dnsserver.metrics.reading import read_samples
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, item, service
from tests.kit.commands_in_process import Ran, Run
from tests.kit.doctor_world import CLIENTS, NAME, NODE_CACHE, OTHER_FORWARDER, SYSTEM, WHERE, World, running_world
from tests.kit.helm import of_the_test
from tests.kit.kube import ControlPlane, Item
from tests.kit.kustomize import NAMESPACE, SERVER, container_of
from tests.kit.waiting import until

ECS = "rewrite edns0 subnet set 32 128 revert"
FORWARD = "forward . {topodns}"
BAD = service("bad", where=WHERE, keys="*,not-last")
READER = "reader"  # an account


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(control_plane, tmp_path_factory.mktemp("doctor")) as running:
        yield running


def doctor(topodns: Run, kubeconfig: Path, **env: str) -> Any:
    """Return what doctor prints; its exit status is 1 if a step failed."""
    ran: Ran = topodns("doctor", "--kubeconfig", str(kubeconfig), "-o", "json", **env)
    assert (ran.status, ran.err) == (int(ran.json["counts"]["failed"] > 0), "")
    return ran.json


def not_passed(found: Any) -> dict[str, set[str]]:
    """Return the codes of the steps that failed, or could not be looked at."""
    return {
        status: {step["code"] for step in found["steps"] if step["status"] == status}
        for status in ("failed", "unknown")
    }


def passed(found: Any) -> set[str]:
    return {step["code"] for step in found["steps"] if step["status"] == "passed"}


def told(found: Any) -> str:
    """Return what did not pass."""
    return "\n".join(f"{step['code']}: {step['message']}" for step in found["steps"] if step["status"] != "passed")


def test_nothing_is_wrong(world: World, topodns: Run) -> None:
    """Every step passes, and none is left out: each replica and forwarder is asked for each zone, over UDP and TCP."""
    found = doctor(topodns, world.plane.kubeconfig)
    assert not_passed(found) == {"failed": set(), "unknown": set()}
    answers = {step["code"]: step["message"] for step in found["steps"]}
    assert answers["ReplicaAnswers"] == f"{NAME}: the same for clients in a, b over TCP and UDP"
    assert answers["ForwarderAnswers"] == f"{NAME}: the same for clients over TCP and UDP"
    assert (found["namespace"], found["providers"], found["version"]) == (NAMESPACE, ["kubeadm"], __version__)


# --- What cannot be looked at -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False], ids=["in its container", "elsewhere"])
def test_with_the_rights_of_topodns_alone(
    world: World, topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """What may not be read is left out, with the rule that lacks. ``kubectl exec`` finds the flags in the container."""
    monkeypatch.setattr(installed, "FIRST_PROCESS", tmp_path / "cmdline")
    flags = f"--trusted-forwarder={world.address_here}/32"
    (tmp_path / "cmdline").write_text(f"/opt/topodns/bin/python\0/opt/topodns/bin/topodns\0serve\0{flags}\0")
    kubeconfig = world.plane.kubeconfig_with(tmp_path / "kubeconfig", token=world.plane.token(NAMESPACE, SERVER))
    found = doctor(topodns, kubeconfig, **({"KUBERNETES_SERVICE_HOST": "10.96.0.1"} if inside else {}))
    lacking = {
        "NodeLocalForwards": "configmaps", "ForwarderForwards": "configmaps", "DeploymentExists": "deployments",
        "SettingsValid": "deployments", "ImageVersion": "deployments", "ReplicasReady": "deployments",
        "PodsCreated": "deployments", "ResourcesCurrent": "customresourcedefinitions",
    }  # fmt: skip
    more = set() if inside else {"ReplicaAnswers"}
    assert not_passed(found) == {"failed": set(), "unknown": {*lacking, *more}}, told(found)
    for step in found["steps"]:
        if step["code"] in lacking:
            assert f'resources: ["{lacking[step["code"]]}"], verbs: [' in step["message"]
    assert passed(found) >= {"RightsGranted", "ReplicaSynced", "ForwarderAnswers", "NoErrorsFound"}


def test_with_the_rights_of_helm_test(world: World, topodns: Run, tmp_path: Path) -> None:
    """Nothing is left out, as for an administrator: neither the Corefile nor the Deployment, the CRDs or the rights."""
    rights = [made for made in of_the_test({}) if made["kind"] not in ("NetworkPolicy", "Pod")]
    (pod,) = (made for made in of_the_test({}) if made["kind"] == "Pod")
    world.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    try:
        token = world.plane.token(NAMESPACE, pod["spec"]["serviceAccountName"])
        kubeconfig = world.plane.kubeconfig_with(tmp_path / "kubeconfig", token=token)
        command, *flags = container_of({"spec": {"template": pod}})["args"]
        ran = topodns(command, *flags, "--kubeconfig", str(kubeconfig), "-o", "json")
    finally:
        world.plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(rights))
    assert not_passed(ran.json) == {"failed": set(), "unknown": set()}, told(ran.json)


@contextmanager
def account_with(world: World, folder: Path, *rights: Item) -> Iterator[Path]:
    """Have an account with these objects of RBAC until the block ends; yield its kubeconfig."""
    made = [item("ServiceAccount", READER, SYSTEM), *rights]
    world.plane.api.create(*made)
    try:
        yield world.plane.kubeconfig_with(folder / "kubeconfig", token=world.plane.token(SYSTEM, READER))
    finally:
        world.plane.api.delete(*made)


def bound(kind: str, role: str, *where: str) -> Item:
    """Return a binding of a ClusterRole to the account."""
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"kind": "ServiceAccount", "name": READER, "namespace": SYSTEM}
    return item(kind, READER, *where, roleRef=reference, subjects=[subject])


def test_with_rights_in_two_namespaces(world: World, topodns: Run, tmp_path: Path) -> None:
    """Those of topodns and of the cluster's DNS: what they hold is looked at, without ``-n``."""
    bindings = [bound("RoleBinding", "view", where) for where in (NAMESPACE, SYSTEM)]
    with account_with(world, tmp_path, *bindings) as kubeconfig:
        found = doctor(topodns, kubeconfig)
    assert not_passed(found)["failed"] == set(), told(found)
    assert passed(found) >= {
        *("DeploymentExists", "SettingsValid", "ServiceLeadsHere", "ForwarderForwards", "ReplicaSynced")
    }, told(found)


def test_replicas_through_the_api_server(world: World, topodns: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no route leads to them."""
    monkeypatch.setattr(replicas, "NEAR_SECONDS", 1e-9)
    assert not_passed(doctor(topodns, world.plane.kubeconfig)) == {"failed": set(), "unknown": set()}


def test_replicas_by_their_endpoints(world: World, topodns: Run, tmp_path: Path) -> None:
    """Whoever may not list pods, such as topodns with PodLocators alone, finds them, and is told the missing right."""
    listed = {
        "": ["namespaces", "nodes", "services", "configmaps"],
        "discovery.k8s.io": ["endpointslices"],
        "topodns.io": ["servicepolicies"],
        "apps": ["deployments"],
    }
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["list"]} for group, names in listed.items()]
    rights = (item("ClusterRole", READER, rules=rules), bound("ClusterRoleBinding", READER))
    with account_with(world, tmp_path, *rights) as kubeconfig:
        found = doctor(topodns, kubeconfig)
    assert passed(found) >= {"ReplicaSynced", "ReplicasReady"}, told(found)
    (forbidden,) = (step for step in found["steps"] if step["subject"] == "its pods")
    assert forbidden["message"].startswith("1 found by EndpointSlices; its pods cannot be listed: ")
    assert 'resources: ["pods"], verbs: [' in forbidden["message"]


def test_an_address_to_which_no_route_leads(world: World, topodns: Run) -> None:
    """It is a dash that says so, with the command for a place from where one does. Who ends is not asked."""
    address, ending = "fd12:3456::2", "fd12:3456::3"
    ends = {"ready": False, "serving": True, "terminating": True}
    endpoints = [endpoint(address), {**endpoint(ending), "conditions": ends}]
    part = endpoint_slice("kube-dns", 9, endpoints, where=SYSTEM, family="IPv6")
    world.plane.api.create(part)
    try:
        found = doctor(topodns, world.plane.kubeconfig)
    finally:
        world.plane.api.delete(part)
    assert ending not in {step["subject"] for step in found["steps"]}
    (step,) = (step for step in found["steps"] if step["subject"] == address)
    assert step["status"] == "unknown"
    reasons = ("no route leads there from here", "no reply within 2 s", "No route to host", "Network is unreachable")
    assert step["message"] in [f"not reached from here: {address}: {reason}" for reason in reasons]
    assert step["commands"][0].endswith("exec deploy/topodns -- topodns doctor")


def test_its_queries_tell_nothing_of_clients(world: World, topodns: Run) -> None:
    """Neither its own nor those that CoreDNS passes on: who looks afterwards finds nothing of them."""

    def counted() -> dict[str, float]:
        pods = world.plane.api.items("Pod", NAMESPACE, labels=f"app.kubernetes.io/name={SERVER}")
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pods[0]['metadata']['name']}:9153/proxy/metrics"
        found = read_samples(world.plane.kubectl("get", "--raw", path))
        assert found is not None
        return {name: sum(rows.values()) for name, rows in found.items()}

    doctor(topodns, world.plane.kubeconfig)
    before = counted()
    doctor(topodns, world.plane.kubeconfig)  # takes longer than the metrics are kept
    after = counted()
    asked = after["topodns_probes_total"] - before["topodns_probes_total"]
    assert asked >= 6 and asked == after["topodns_dns_responses_total"] - before["topodns_dns_responses_total"]
    for name in ("topodns_clients_total", "topodns_unlocated_clients_total", "topodns_answer_zones_total"):
        assert after.get(name) == before.get(name), name


# --- Faults -----------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault: what plants it, the step whose commands fix it, what else fails, and what a reader fills in."""

    code: str
    plant: Callable[[World], object]
    others: tuple[str, ...] = ()
    words: Mapping[str, str] = {}


def kubectl(*arguments: str) -> Callable[[World], object]:
    return lambda world: world.plane.kubectl(*arguments)


def corefile(*lines: str) -> Callable[[World], object]:
    return lambda world: world.write_corefile("coredns", world.stub(*lines))


def patched(kind: str, name: str, operation: str, path: str, value: object = None) -> Callable[[World], object]:
    """Return what changes an object by a JSON patch."""
    change = {"op": operation, "path": path, **({} if value is None else {"value": value})}
    where = ("-n", NAMESPACE) if kind in ("deployment", "service") else ()
    return kubectl(*where, "patch", kind, name, "--type", "json", "-p", json.dumps([change]))


def without_rule(resource: str) -> Callable[[World], object]:
    """Return what takes a right from topodns, and starts it again."""

    def plant(world: World) -> None:
        role = world.plane.api.request("GET", world.plane.api.path("ClusterRole", None, SERVER))
        number = next(n for n, rule in enumerate(role["rules"]) if resource in rule["resources"])
        patched("clusterrole", SERVER, "remove", f"/rules/{number}")(world)
        kubectl("-n", NAMESPACE, "rollout", "restart", "deployment", SERVER)(world)

    return plant


def nodelocal(world: World) -> None:
    """Run a NodeLocal DNSCache that forwards to topodns, but not all."""
    bound = f"bind {NODE_CACHE}"
    text = world.stub(bound, f"{FORWARD} {{{{\n        force_tcp\n        except x.{WHERE}.svc.cluster.local\n    }}}}")
    world.write_corefile("node-local-dns", text.replace(".:53 {", f".:53 {{\n    {bound}"))


def at_a_provider(world: World) -> None:
    """Let a provider own the Corefile, which forwards nothing, but imports what is ours."""
    kubectl("label", "node", "doctor-a", "kubernetes.azure.com/cluster=x")(world)
    world.write_corefile("coredns", world.stub() + "import custom/*.server\n")


def old_corefile(world: World) -> None:
    """Correct the Corefile, while CoreDNS still has the one from before."""
    corefile("errors", FORWARD)(world)
    world.settled()
    corefile("errors", ECS, FORWARD)(world)


def old_flags(world: World) -> None:
    """Correct the flags, while the replicas still have those from before."""
    args = "/spec/template/spec/containers/0/args"
    patched("deployment", SERVER, "add", f"{args}/-", "--service-selector=app=none")(world)
    world.settled()
    world.ready()
    patched("deployment", SERVER, "remove", f"{args}/3")(world)


def refused(world: World) -> None:
    """Let nobody create its pods: they name a class that does not exist."""
    path = "/spec/template/spec/priorityClassName"
    patched("deployment", SERVER, "add", path, "none")(world)

    def is_told() -> bool:
        deployments = world.plane.api.items("Deployment", NAMESPACE)
        conditions = [found for deployment in deployments for found in deployment["status"].get("conditions", ())]
        return any(found["type"] == "ReplicaFailure" for found in conditions)

    until(is_told, "a condition")


def untrusted(world: World) -> None:
    for client in (*CLIENTS.values(), "192.0.2.1"):
        world.ask_as(OTHER_FORWARDER, client)


CRD = "servicepolicies.topodns.io"
MODE = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/topology/properties/mode"
MODE_COLUMN = "/spec/versions/0/additionalPrinterColumns/1"
FAULTS = {
    "a node without a zone": Fault(
        "NodesHaveZones", kubectl("label", "node", "doctor-b", f"{ZONE}-"), (), {"ZONE": "b"}
    ),
    "nothing is forwarded": Fault("ForwarderForwards", corefile()),
    "no client is named": Fault(
        "ForwarderForwards", corefile("errors", FORWARD), ("ForwardersNameClients", "ForwarderAnswers")
    ),
    "a Corefile that CoreDNS has not read": Fault("ForwarderAnswers", old_corefile, ("ForwardersNameClients",)),
    "nothing is forwarded, and the provider owns the Corefile": Fault("ForwarderForwards", at_a_provider),
    "an unknown flag": Fault(
        "SettingsValid", patched("deployment", SERVER, "add", "/spec/template/spec/containers/0/args/-", "--bogus=1")
    ),
    "flags that a replica does not have": Fault("ReplicaAnswers", old_flags, ("ForwarderAnswers",)),
    "an old image": Fault(
        "ImageVersion",
        kubectl("-n", NAMESPACE, "set", "image", f"deployment/{SERVER}", f"{SERVER}={SERVER}:0.0.9"),
        ("ReplicaVersion",),
    ),
    "a Service that leads nowhere": Fault(
        "ServiceLeadsHere", patched("service", SERVER, "add", "/spec/selector/app", "another")
    ),
    "a right is missing": Fault(
        "RightsGranted", without_rule("pods"), ("ReplicaSynced", "ReplicaAnswers", "ForwarderAnswers")
    ),
    "an old CRD": Fault("ResourcesCurrent", patched("crd", CRD, "remove", MODE)),
    "a forwarder that nobody trusts": Fault("ForwardersTrusted", untrusted),
    "clients that nothing locates": Fault(
        "ClientsLocated", lambda world: world.ask_as(world.address_here, "192.0.2.7"), (), {"ZONE": "a"}
    ),
    "an invalid constraint": Fault("NoErrorsFound", lambda world: world.plane.api.create(BAD)),
    "a NodeLocal DNSCache that leaves names out": Fault("NodeLocalForwards", nodelocal),
    "pods that are refused": Fault("PodsCreated", refused),
    "no replica": Fault(
        "ReplicasReady", kubectl("-n", NAMESPACE, "scale", "deployment", SERVER, "--replicas=0"), ("ForwarderAnswers",)
    ),
    "no Deployment": Fault(
        "DeploymentExists", kubectl("-n", NAMESPACE, "delete", "deployment", SERVER), ("ForwarderAnswers",)
    ),
}
NOT_RUN = (
    "an unknown flag",
    "pods that are refused",
    "a Corefile that CoreDNS has not read",
    "flags that a replica does not have",
)


def test_a_corefile_that_changed_meanwhile_stays(world: World, topodns: Run) -> None:
    """The API server refuses a command that was printed for another one."""
    corefile()(world)
    world.settled()
    found = doctor(topodns, world.plane.kubeconfig)
    (command,) = (
        command for step in found["steps"] if step["code"] == "ForwarderForwards" for command in step["commands"]
    )
    corefile("errors", ECS, FORWARD)(world)
    with pytest.raises(AssertionError, match="the object has been modified"):
        world.shell.run(command)
    world.settled()
    assert not not_passed(doctor(topodns, world.plane.kubeconfig))["failed"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_fixed(world: World, topodns: Run, name: str) -> None:
    """Found under its code, and only what follows from it beside; gone after the commands, as a reader runs them."""
    fault = FAULTS[name]
    fault.plant(world)
    if name not in NOT_RUN:
        world.settled()
    found = doctor(topodns, world.plane.kubeconfig)
    assert not_passed(found)["failed"] == {fault.code, *fault.others}, told(found)
    commands = [
        command for step in found["steps"] if (step["code"], step["status"]) == (fault.code, "failed")
        for command in step["commands"]
    ]  # fmt: skip
    assert commands
    for command in commands:
        for word, text in fault.words.items():
            command = command.replace(f"={word}", f"={text}")
        world.shell.run(command)
    world.settled()
    world.ready()
    after = doctor(topodns, world.plane.kubeconfig)
    assert not not_passed(after)["failed"], told(after)
    if fault.code == "NodeLocalForwards":
        assert "NodeLocal DNSCache of this node" in {step["subject"] for step in after["steps"]}
