# SPDX-License-Identifier: Apache-2.0

"""``topodns doctor``: what it concludes from what was read, without a cluster."""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import yaml
from kubernetes.client import V1ConfigMap, V1Deployment, V1ObjectMeta, V1Pod, V1PodStatus, V1Service, V1ServiceSpec
from msgspec.structs import replace

from dnsserver.cli.commands.doctor import text_of
from dnsserver.cli.errors import EXIT_FAILED, WrongInput
from dnsserver.cli.reading import replicas
from dnsserver.cli.reading.asking import ask, source_towards
from dnsserver.cli.reading.installed import settings_in
from dnsserver.metrics.reading import Samples
from dnsserver.programs.from_settings import authority_of
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import ListenAddress
from dnsserver.text import RED
from dnsserver.tools.corefile.checks import check
from dnsserver.tools.corefile.stub_zones import read
from dnsserver.tools.doctor.answers import compared
from dnsserver.tools.doctor.corefiles import corefile_steps
from dnsserver.tools.doctor.custom_resources import CUSTOM_RESOURCES, fields_of
from dnsserver.tools.doctor.diagnosis import diagnose
from dnsserver.tools.doctor.facts import Comparison, Facts, Installed, NameServer, Question, Replica, Reply, Right, View
from dnsserver.tools.doctor.providers import PROVIDERS
from dnsserver.tools.doctor.steps import DoctorStep, StepCode, Unread, as_json
from locator.cluster.api_client import ApiClient
from locator.ip import parse_address
from locator.model import Node
from locator.printable import MAX_LINE, printable
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, listed
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import snapshot_of
from tests.kit.other_server import Response, kubeconfig, other_server
from tests.kit.this_machine import ROOT, free_port

TO = "10.96.0.53"
ECS = "rewrite edns0 subnet set 32 128 revert"
STUB = f"shop.svc.cluster.local:53 {{\n    errors\n    {ECS}\n    forward . {TO}\n}}\n"
CACHE = STUB.replace(ECS, "bind 169.254.20.10")
KUBEADM = """\
.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
    }
    forward . /etc/resolv.conf
    cache 30
    reload
}
"""
IMPORTING = KUBEADM + "import custom/*.server\n"


def config_map_of(key: str, data: dict[str, str] | None = None, **of: Any) -> V1ConfigMap:
    namespace, _, name = key.partition("/")
    return V1ConfigMap(metadata=V1ObjectMeta(name=name, namespace=namespace, resource_version="7", **of), data=data)


def config_map(key: str, corefile: str = KUBEADM, **of: Any) -> dict[str, V1ConfigMap]:
    return {key: config_map_of(key, {"Corefile": corefile}, **of)}


SERVICE = V1Service(metadata=V1ObjectMeta(name="topodns", namespace="topodns"), spec=V1ServiceSpec(cluster_ips=[TO]))
INSTALLED = Installed("topodns", None, SERVICE, (), Settings(), "", True, {}, {})
FACTS = Facts("0.1.0", "kubectl", INSTALLED, forwarders=[NameServer("kube-system/coredns-1", bytes((10, 0, 0, 2)), 53)])


def steps_of(facts: Facts, code: StepCode) -> list[DoctorStep]:
    return [step for step in diagnose(facts) if step.code is code]


def each_row(names: str, table: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Run a test for each row of a table, which begins with the id."""
    return pytest.mark.parametrize(names, [row[1:] for row in table], ids=[row[0] for row in table])


# --- Providers --------------------------------------------------------------------------------------------------------

EKS_LABELS = {"eks.amazonaws.com/component": "coredns", "k8s-app": "kube-dns"}
K3S = {"objectset.rio.cattle.io/owner-name": "coredns"}
GKE = {"cloud.google.com/gke-nodepool": "x"}
COREDNS, CUSTOM, KUBE_DNS = (f"kube-system/{name}" for name in ("coredns", "coredns-custom", "kube-dns"))
CLUSTERS: list[tuple[str, dict[str, V1ConfigMap], dict[str, str], list[tuple[str, str]]]] = [
    ("kubeadm", config_map(COREDNS), {}, [("kubeadm", "-n kube-system patch configmap coredns")]),
    ("EKS add-on", config_map(COREDNS, labels=EKS_LABELS), {"eks.amazonaws.com/nodegroup": "x"},
     [("EKS", "aws eks update-addon --cluster-name CLUSTER --addon-name coredns")]),
    ("EKS Auto Mode", {}, {"eks.amazonaws.com/compute-type": "auto"}, [("EKS Auto Mode", "topodns corefile")]),
    ("EKS, some nodes in Auto Mode", config_map(COREDNS, labels=EKS_LABELS), {"eks.amazonaws.com/compute-type": "auto"},
     [("EKS", "aws eks update-addon"), ("EKS Auto Mode", "topodns corefile")]),
    ("GKE", {KUBE_DNS: config_map_of(KUBE_DNS)}, GKE, [("GKE", "-n kube-system patch configmap kube-dns")]),
    ("GKE with Cloud DNS", {}, GKE, [("GKE with Cloud DNS", "topodns corefile")]),
    ("AKS", config_map(COREDNS, IMPORTING, labels={"addonmanager.kubernetes.io/mode": "Reconcile"}),
     {"kubernetes.azure.com/cluster": "x"}, [("AKS", '"name": "coredns-custom"')]),
    ("k3s", config_map(COREDNS, KUBEADM + "import /etc/coredns/custom/*.server\n", annotations=K3S), {},
     [("k3s", '"name": "coredns-custom"')]),
    ("RKE2", config_map("kube-system/rke2-coredns-rke2-coredns"), {}, [("RKE2", '"kind": "HelmChartConfig"')]),
    ("OpenShift", config_map("openshift-dns/dns-default", KUBEADM.replace(":53", ":5353")), {},
     [("OpenShift", "patch dns.operator.openshift.io default")]),
    ("another with coredns-custom", config_map(COREDNS, IMPORTING), {},
     [("a provider with coredns-custom", '"name": "coredns-custom"')]),
]  # fmt: skip


@each_row("config_maps, labels, expected", CLUSTERS)
def test_who_owns_the_corefile(
    config_maps: dict[str, V1ConfigMap], labels: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """Nothing forwards to topodns yet: the step names the owner, and its command edits the object that is ours."""
    dns = () if expected[0][0] == "GKE with Cloud DNS" else FACTS.forwarders
    facts = replace(FACTS, config_maps=config_maps, nodes=[Node("n", labels)], forwarders=dns, view=VIEW)
    steps = steps_of(facts, StepCode.ForwarderForwards)
    assert len(steps) == len(expected)
    for step, (provider, command) in zip(steps, expected, strict=True):
        row = next(row for row in PROVIDERS if row.name == provider)
        assert provider in step.subject and row.owner in step.message
        assert step.status == ("failed" if row.config_map else "unknown")
        assert command in step.commands[0], step.commands
    assert {row[3][0][0] for row in CLUSTERS} == {provider.name for provider in PROVIDERS}


@pytest.mark.parametrize("name", ["kubeadm", "AKS", "k3s", "RKE2", "EKS add-on"])
def test_the_edited_corefile_forwards(name: str) -> None:
    """What a command writes has no error by ``corefile --check``, and forwards the cluster's zone."""
    config_maps, labels = next(row[1:3] for row in CLUSTERS if row[0] == name)
    facts = replace(FACTS, config_maps=config_maps, nodes=[Node("n", labels)])
    (step,) = steps_of(facts, StepCode.ForwarderForwards)
    written = step.commands[0].replace("\\n", "\n").replace('\\"', '"')
    if name == "RKE2":
        assert '"name": "rewrite"' in written and '"parameters": "edns0 subnet set 32 128 revert"' in written
        return
    stub = re.search(r"cluster\.local:53 \{.*?\n\}", written, re.DOTALL)
    assert stub is not None
    assert not check(read(stub[0], forwarder="coredns", zones=("cluster.local",)))


def test_other_stub_domains_stay() -> None:
    """The command for kube-dns writes them again, beside ours."""
    others = {"example.org": ["192.0.2.1"], "svc.cluster.local": ["192.0.2.2"]}
    facts = replace(
        FACTS, config_maps={KUBE_DNS: config_map_of(KUBE_DNS, {"stubDomains": json.dumps(others)})},
        nodes=[Node("n", GKE)],
    )  # fmt: skip
    (step,) = steps_of(facts, StepCode.ForwarderForwards)
    patch = json.loads(shlex.split(step.commands[0])[-1])
    assert json.loads(patch["data"]["stubDomains"]) == {**others, "svc.cluster.local": [TO]}
    unreadable = {KUBE_DNS: config_map_of(KUBE_DNS, {"stubDomains": "[]"})}
    (step,) = steps_of(replace(facts, config_maps=unreadable), StepCode.ForwarderForwards)
    assert step.commands == ("kubectl -n kube-system edit configmap kube-dns",)


def test_forwarded_by_stub_domains() -> None:
    """They are enough; what Corefiles forward is shown by ``test_a_fix_changes_only_what_is_at_fault``."""
    config_maps = {KUBE_DNS: config_map_of(KUBE_DNS, {"stubDomains": json.dumps({"shop.svc.cluster.local": [TO]})})}
    facts = replace(FACTS, config_maps=config_maps, nodes=[Node("n", GKE)])
    for code in (StepCode.ForwarderForwards, StepCode.NodeLocalForwards):
        assert [step.message for step in steps_of(facts, code) if step.status != "passed"] == []


WHOLE = (
    f"# ours\nshop.svc.cluster.local:53 {{\n    errors  # all\n    {ECS}\n    forward . {TO} 127.0.0.1:5301 {{\n"
    "        policy sequential\n        failover SERVFAIL REFUSED\n    }\n}\n"
    "cluster.local:5301 {\n    bind 127.0.0.1\n    kubernetes cluster.local\n}\n"
)
UNNAMED_CLIENT = WHOLE.replace(f"    {ECS}\n", "")
ALONE = WHOLE.replace(" 127.0.0.1:5301 {\n        policy sequential\n        failover SERVFAIL REFUSED\n    }", "")
FIXES: list[tuple[str, dict[str, V1ConfigMap], str, str, str]] = [
    # id, the ConfigMaps, the code in the message, which key is written, and what it then has
    ("no client is named", config_map(COREDNS, UNNAMED_CLIENT + KUBEADM), "ClientNotNamed", "Corefile",
     UNNAMED_CLIENT.replace(f"    forward . {TO}", f"    forward . {TO}").replace(
         "    errors  # all\n", f"    {ECS}\n    errors  # all\n") + KUBEADM),
    ("the old fix", config_map(COREDNS, ALONE + KUBEADM), "FallbackUnused", "Corefile",
     WHOLE.replace("REFUSED\n", "REFUSED\n        max_fails 1\n        health_check 100ms\n") + KUBEADM),
    ("only the block of the fallback", config_map(COREDNS, KUBEADM + WHOLE[WHOLE.index("cluster.local:5301"):]),
     "FallbackUnused", "Corefile", ""),
    ("another address", config_map(COREDNS, WHOLE.replace(TO, "10.96.0.9") + KUBEADM), "nothing forwards",
     "Corefile", WHOLE + KUBEADM),
    ("a file of coredns-custom",
     {**config_map(COREDNS, IMPORTING), CUSTOM: config_map_of(CUSTOM, {
         "a.server": "a.example {\n    log\n}", "shop.server": UNNAMED_CLIENT.rstrip("\n"), "x.override": "log"})},
     "ClientNotNamed", "shop.server",
     UNNAMED_CLIENT.rstrip("\n").replace("    errors  # all\n", f"    {ECS}\n    errors  # all\n")),
    ("nothing in coredns-custom", {**config_map(COREDNS, IMPORTING), CUSTOM: config_map_of(CUSTOM, {
        "topodns.server": "# later"})}, "nothing forwards", "topodns.server", ""),
    ("NodeLocal DNSCache", {**config_map(COREDNS), **config_map("kube-system/node-local-dns", CACHE.replace(
        f"    forward . {TO}", f"    forward . {TO} {{\n        except x.shop.svc.cluster.local  # no\n    }}"))},
     "StubZoneExcepted", "Corefile", CACHE.replace(f"    forward . {TO}", f"    forward . {TO} {{\n    }}")),
]  # fmt: skip


@each_row("config_maps, message, key, expected", FIXES)
def test_a_fix_changes_only_what_is_at_fault(
    config_maps: dict[str, V1ConfigMap], message: str, key: str, expected: str
) -> None:
    """The rest of the user's Corefile stays, ``--fail-open`` included; the step shows the lines. Then all passes."""
    facts = replace(FACTS, config_maps=config_maps)
    (step,) = (step for step in corefile_steps(facts) if step.status == "failed")
    assert message in step.message
    words = shlex.split(step.commands[0].partition(" && ")[0])
    name = f"{words[words.index('-n') + 1]}/{words[words.index('configmap') + 1]}"
    (written,) = json.loads(words[-1])["data"].items()
    assert written[0] == key and (not expected or written[1] == expected)
    changes = [line for line in step.difference.splitlines()[2:] if line[0] in "+-"]
    assert changes and {line[1:] for line in changes if line[0] == "+"} <= set(written[1].splitlines())
    old = config_maps[name]
    fixed = replace(
        facts, config_maps={**config_maps, name: config_map_of(name, {**(old.data or {}), key: written[1]})}
    )
    assert [step.message for step in corefile_steps(fixed) if step.status != "passed"] == []
    assert ("127.0.0.1:5301 {" in written[1]) == ("5301" in written[1])


def test_external_names_of_namespaces_that_are_not_forwarded() -> None:
    """Only the cluster knows them: a Service of another namespace whose target is in the stub zone."""
    aliases = [api_objects.external(name, f"{name}.shop.svc.cluster.local", where=name) for name in ("shop", "other")]
    items = listed([*map(api_objects.namespace, ("shop", "other")), *aliases])
    services = [compiled.service for compiled in snapshot_of(items).services.values()]
    served = View(snapshot_of(items, {"serve-namespace": ["shop"]}), (), authority_of(Settings()))
    facts = replace(FACTS, view=served, services=services, config_maps=config_map(COREDNS, STUB + KUBEADM))
    (step,) = steps_of(facts, StepCode.ForwarderForwards)
    assert step.status == "passed"
    assert step.message == (
        "shop.svc.cluster.local go to topodns; warning: line 8: .:53: Service other/other names "
        "other.shop.svc.cluster.local, which kubernetes answers in this block: topodns is not asked, expected "
        "other.svc.cluster.local, too, forwarded at line 1 [ExternalNameBypassesStub]"
    )


AUTOPATH = STUB + KUBEADM.replace("insecure", "verified").replace("errors", "autopath @kubernetes")
JUDGED: list[tuple[str, dict[str, V1ConfigMap], str, str, tuple[str, ...]]] = [
    # id, the ConfigMaps, the status, what is in the message, and the commands
    ("a warning", config_map(COREDNS, AUTOPATH), "passed", "[AutopathBypassesStub]", ()),
    ("unreadable", config_map(COREDNS, "shop {\n"), "failed", "line 1: the block has no end",
     ("kubectl -n kube-system edit configmap coredns",)),
    ("none", {}, "unknown", "no ConfigMap of a known DNS server found", ("kubectl -n kube-system get configmaps",)),
]  # fmt: skip


@each_row("config_maps, status, message, commands", JUDGED)
def test_what_no_command_writes(
    config_maps: dict[str, V1ConfigMap], status: str, message: str, commands: tuple[str, ...]
) -> None:
    """A warning of ``corefile --check`` is said; where nobody knows what was meant, the command opens an editor."""
    (step,) = steps_of(replace(FACTS, config_maps=config_maps), StepCode.ForwarderForwards)
    assert (step.status, step.commands) == (status, commands) and message in step.message


# --- What is installed ------------------------------------------------------------------------------------------------


def deployed(*, name: str = "topodns", **container: Any) -> Any:
    """Return a Deployment of topodns with a container."""
    volumes = [{"name": "config", "configMap": {"name": "settings"}}]
    template = {"metadata": {}, "spec": {"containers": [{"name": name, **container}], "volumes": volumes}}
    spec = {"selector": {"matchLabels": {"app.kubernetes.io/component": "dns"}}, "template": template}
    return V1Deployment.from_dict({"metadata": {"name": "topodns"}, "spec": spec, "status": {}})


def commands_about(name: str) -> list[list[str]]:
    """Return the words of the commands that fix an installation where everything is called *name*."""
    deployment, controller = (deployed(name=name, image=f"{name}:1", args=["serve"]) for _ in range(2))
    for found, words in ((deployment, "others"), (controller, "error looking up service account")):
        found.metadata.name = found.spec.template.spec.service_account_name = name
        found.spec.selector.match_labels = {"app": name}
        refused = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": words}
        found.status.conditions = [refused]
    pods = [replica_pod(name, "Running", waiting="CrashLoopBackOff", node=name)]
    service = V1Service(metadata=V1ObjectMeta(name=name), spec=V1ServiceSpec(selector={"x": "y"}))
    installed = replace(
        INSTALLED, namespace=name, deployment=deployment, others=[controller], service=service, pods=pods,
        settings_error="--ttl: 'x'", rights={Right("", "pods", "list"): False},
    )  # fmt: skip
    asked = Comparison(f"kube-system/{name}", "UDP", QUESTION, Reply(b"", "SERVFAIL"), ANSWER, "NOERROR")
    facts = replace(
        FACTS, installed=installed, view=VIEW, troubles={name: "gone"}, nodes=[Node("n", {ZONE: "a"}), Node(name, {})],
        replicas=[Replica(pods[0], {"Pod": (False, "403")}, Unread(""), Unread(""))],
        replica_answers=[replace(asked, reply=Reply(error="timed out"))], forwarder_answers=[asked],
    )  # fmt: skip
    commands = [command for step in diagnose(facts) for command in step.commands]
    return [shlex.split(command.partition(" <<")[0]) for command in commands]


@pytest.mark.parametrize("name", ["x$(reboot)", "a b;c", "it's", "a\nb", "`x`", "*"])
def test_names_are_quoted(name: str) -> None:
    """Whoever may create an object somewhere in the cluster writes its name."""
    plain = commands_about("plain")
    assert len(plain) > 10
    assert commands_about(name) == [[word.replace("plain", printable(name)) for word in words] for words in plain]


def test_no_name_becomes_a_flag() -> None:
    """Of what an EndpointSlice names nobody checks the name: to delete the pod ``--all`` would delete all."""
    found = commands_about("--all")
    assert len(found) == len(commands_about("plain")) and not [words for words in found if "--all" in words]


EDIT = "kubectl -n topodns edit deployment topodns"
WRONG_FLAGS: list[tuple[str, dict[str, list[str]], str, str | None]] = [
    # id, what the container has, the message about it, and which flag the command takes away
    ("one", {"args": ["serve", "--ttl=x", "--pods=insecure"]}, "--ttl: 'x'", "args/1"),
    ("one of several", {"args": ["serve", "--subnet=10.0.0.0/8=a=b", "--subnet=x"]}, "--subnet: 'x'", None),
    ("in two words", {"args": ["serve", "--ttl", "x"]}, "--ttl: 'x'", None),
    ("a variable", {"args": ["serve"]}, "TOPODNS_TTL: 'x'", None),
    ("in the command", {"command": ["topodns", "serve", "--ttl=x"]}, "--ttl: 'x'", "command/2"),
]


@each_row("container, error, wrong", WRONG_FLAGS)
def test_only_the_wrong_flag_goes(container: dict[str, list[str]], error: str, wrong: str | None) -> None:
    """And only if it still stands where it stood. Where nobody knows which one it is, the command opens an editor."""
    installed = replace(INSTALLED, deployment=deployed(**container))
    (step,) = steps_of(replace(FACTS, installed=installed), StepCode.SettingsValid)
    ((field, words),) = container.items()
    assert (step.status, step.message) == ("passed", " ".join(words))
    (step,) = steps_of(replace(FACTS, installed=replace(installed, settings_error=error)), StepCode.SettingsValid)
    if wrong is None:
        assert step.commands == (EDIT,)
        return
    path = f"/spec/template/spec/containers/0/{wrong}"
    assert json.loads(shlex.split(step.commands[0])[-1]) == [
        {"op": "test", "path": path, "value": words[int(wrong.removeprefix(f"{field}/"))]},
        {"op": "remove", "path": path},
    ]


PRIORITIES = (
    'pods "t-1" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [system-node-critical'
    " system-cluster-critical]}]"
)
REFUSED = [
    # id, the words of the condition, what the command begins with, and what is in it
    ("OpenShift", 'pods "t-" is forbidden: unable to validate against any security context constraint: [provider'
     ' "restricted-v2": .spec.securityContext.fsGroup: Invalid value: [65532]]', "patch deployment topodns",
     '{"securityContext": {"runAsUser": null, "runAsGroup": null, "fsGroup": null}}'),
    ("GKE", PRIORITIES, "apply", '"values": ["system-node-critical", "system-cluster-critical"]'),
    ("a quota", 'pods "t-1" is forbidden: exceeded quota: team-a, requested: limits.memory=1Gi,'
     " used: limits.memory=2Gi, limited: limits.memory=2Gi", "edit resourcequota team-a", ""),
    ("a LimitRange", 'pods "t-1" is forbidden: maximum memory usage per Container is 512Mi, but limit is 1Gi',
     "edit limitranges", ""),
    ("a class", 'pods "t-1" is forbidden: no PriorityClass with name x was found', "patch deployment topodns",
     "/spec/template/spec/priorityClassName"),
    ("an account", 'pods "t-" is forbidden: error looking up service account topodns/t: serviceaccount "t" not found',
     "create serviceaccount default", ""),
    ("Pod Security", 'pods "t-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
     "edit deployment topodns", ""),
    ("a webhook", 'admission webhook "policies.example" denied the request: no', "edit deployment topodns", ""),
    ("others", "Internal error", "describe replicasets -l app.kubernetes.io/component=dns", ""),
]  # fmt: skip


@each_row("words, command, part", REFUSED)
def test_what_refuses_its_pods(words: str, command: str, part: str) -> None:
    """With its own words, and the command that fixes it."""
    deployment = deployed(args=["serve"])
    deployment.status.conditions = [
        {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": "no"},
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": words},
    ]
    facts = replace(FACTS, installed=replace(INSTALLED, deployment=deployment))
    (step,) = steps_of(facts, StepCode.PodsCreated)
    assert (step.status, step.message) == ("failed", f"FailedCreate: {words}")
    (found,) = step.commands
    expected = f"kubectl {command}" if command == "apply" else f"kubectl -n topodns {command}"
    assert found.startswith(expected) and part in found
    (step,) = steps_of(facts, StepCode.ReplicasReady)
    assert step.message == "0 of 1 are ready, and there is no other pod"
    deployment.status.conditions = []
    assert [step.status for step in steps_of(facts, StepCode.PodsCreated)] == ["passed"]


def replica_pod(name: str, phase: str, *, waiting: str = "", ready: bool = False, node: str = "") -> Any:
    state = {"name": "topodns", "image": "", "imageID": "", "ready": ready, "restartCount": 0,
             "state": {"waiting": {"reason": waiting}}}  # fmt: skip
    return V1Pod.from_dict({
        "metadata": {"name": name, "namespace": "dns"}, "spec": {"nodeName": node, "containers": []},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}],
                   "containerStatuses": [state] if waiting else None},
    })  # fmt: skip


def test_the_pods_that_are_not_ready_are_looked_at() -> None:
    """By their names, in the namespace where they are, and those of the controller by its own labels."""
    deployment, controller = deployed(args=["serve"]), deployed(args=["controller"])
    deployment.spec.replicas = 4
    controller.metadata.name = "topodns-controller"
    controller.spec.selector.match_labels["app.kubernetes.io/component"] = "controller"
    pods = [
        replica_pod("good", "Running", ready=True),
        replica_pod("new", "Pending"),
        replica_pod("slow", "Running"),
        replica_pod("broken", "Running", waiting="CrashLoopBackOff"),
    ]
    deployment.status.ready_replicas = 1
    installed = replace(INSTALLED, namespace="dns", deployment=deployment, pods=pods, others=[controller])
    step, other = steps_of(replace(FACTS, installed=installed), StepCode.ReplicasReady)
    assert step.message == "1 of 4 are ready; new: Pending; slow: Running; broken: CrashLoopBackOff"
    assert step.commands == (
        "kubectl -n dns describe pod new",
        "kubectl -n dns describe pod slow",
        "kubectl -n dns logs slow --tail=20",
        "kubectl -n dns describe pod broken",
        "kubectl -n dns logs broken --tail=20 --previous",
    )
    assert (other.subject, other.message) == ("dns/topodns-controller", "0 of 1 are ready")
    selector = "-l app.kubernetes.io/component=controller"
    assert other.commands == (
        f"kubectl -n dns describe pods {selector}",
        f"kubectl -n dns logs {selector} --tail=20 --prefix",
    )


def test_nodes_that_are_not_ready() -> None:
    """They are named with the pods of topodns and of the DNS there; without any, it is no fault."""
    troubles = {"n1": "NodeStatusUnknown: Kubelet stopped posting node status.", "n2": "KubeletNotReady"}
    forwarders = [NameServer("kube-system/coredns-1", bytes((10, 0, 0, 2)), 53, "n1")]
    installed = replace(INSTALLED, pods=[replica_pod("topodns-1", "Running", node="n1")])
    facts = replace(FACTS, installed=installed, forwarders=forwarders, troubles=troubles)
    (step,) = steps_of(facts, StepCode.NodesReady)
    assert (step.status, step.commands) == ("failed", ("kubectl describe node n1",))
    assert step.message == (
        "n1 (NodeStatusUnknown: Kubelet stopped posting node status.): topodns/topodns-1, kube-system/coredns-1; "
        "not ready: n2, without a pod of topodns or of the cluster's DNS"
    )
    (step,) = steps_of(replace(facts, troubles={"n2": "KubeletNotReady"}), StepCode.NodesReady)
    assert step.status == "passed" and step.message.startswith("not ready: n2, without")
    assert [step.message for step in steps_of(FACTS, StepCode.NodesReady)] == ["all are"]


def test_a_large_cluster_is_shown_in_part() -> None:
    """Of many nodes without a zone, and of many DNS servers, the report has some."""
    nodes = [Node("n", {ZONE: "a"}), *(Node(f"n{number}", {}) for number in range(1000))]
    asked = [Comparison("kube-system/coredns-1", "UDP", QUESTION, Reply(b"", "NOERROR", ANSWER), ANSWER, "NOERROR")]
    facts = replace(FACTS, nodes=nodes, forwarders=FACTS.forwarders * 1000, view=VIEW, forwarder_answers=asked)
    (step,) = steps_of(facts, StepCode.NodesHaveZones)
    assert len(step.commands) == 10 and "1000 of 1001 nodes" in step.message and "and 990 more" in step.message
    *_, others = steps_of(facts, StepCode.ForwarderAnswers)
    assert (others.status, others.message) == ("unknown", "968 more servers of the cluster's DNS were not asked")


# --- Replicas, clients and answers ------------------------------------------------------------------------------------

POD = replica_pod("topodns-1", "Running")
HERE, ELSEWHERE, GONE = "10.0.0.9", "10.0.1.7", "10.0.2.7"
SNAPSHOT = snapshot_of(
    listed([
        api_objects.node("a", {ZONE: "a"}), api_objects.pod("here", [HERE], "a"),
        api_objects.pod("dnsmasq", [ELSEWHERE], "a"),
    ])
)  # fmt: skip
VIEW = View(SNAPSHOT, (), authority_of(Settings()))
GOOD = {"Pod": (True, "ok"), "ServicePolicy": (True, "none: the API server has no /apis/x")}


def samples(**of: Mapping[tuple[str, ...], float]) -> Samples:
    return {"topodns_build_info": {("3.12.1", "0.1.0"): 1.0}, **of}


def with_replica(
    before: Samples | Unread, after: Samples | Unread | None = None, checks: Any = GOOD, **more: Any
) -> Facts:
    replica = Replica(POD, checks, before, before if after is None else after)
    return replace(FACTS, replicas=[replica], view=VIEW, own_addresses=frozenset((parse_address(HERE),)), **more)


CHECKS = [
    ("in contact", GOOD, 0, "passed", "passed"),
    ("not listed", {"Pod": (False, "not listed yet, for 3 s: 403")}, 0, "failed", None),
    ("lost", {"Pod": (True, "no contact, for 90 s: refused")}, 90, "passed", "failed"),
    ("a watch that begins again", {"Pod": (True, "no contact, for 1 s")}, 1, "passed", "passed"),
    ("not read", Unread("no route"), 0, "unknown", "unknown"),
]


@each_row("checks, age, synced, fresh", CHECKS)
def test_checks_of_a_replica(checks: Any, age: int, synced: str, fresh: str | None) -> None:
    """Its own words decide; what is not listed is not stale, too."""
    facts = with_replica(samples(topodns_cluster_view_age_seconds={("local",): age, ("west",): 99}), checks=checks)
    assert [step.status for step in steps_of(facts, StepCode.ReplicaSynced)] == [synced]
    assert [step.status for step in steps_of(facts, StepCode.ReplicaFresh)] == ([] if fresh is None else [fresh])


IGNORED, SUSPECTS = "topodns_client_subnets_ignored_total", "topodns_untrusted_forwarders"
UNNAMED, UNLOCATED = "topodns_forwarded_without_client_total", "topodns_unlocated_clients_total"
OUTSIDE = ("192.0.2.0/24", "address")
COUNTED = [
    ("one that the cluster has", StepCode.ForwardersTrusted, {SUSPECTS: {(ELSEWHERE,): 1}}, {}, "failed"),
    ("one that is gone", StepCode.ForwardersTrusted, {SUSPECTS: {(GONE,): 1}}, {}, "passed"),
    ("one outside, asking", StepCode.ForwardersTrusted, {SUSPECTS: {(GONE,): 1}}, {IGNORED: {(GONE,): 2}}, "failed"),
    ("doctor itself", StepCode.ForwardersTrusted, {SUSPECTS: {(HERE,): 1}}, {IGNORED: {(HERE,): 2}}, "passed"),
    ("names nobody now", StepCode.ForwardersNameClients, {}, {UNNAMED: {(ELSEWHERE,): 2}}, "failed"),
    ("named nobody once", StepCode.ForwardersNameClients, {UNNAMED: {(ELSEWHERE,): 2}}, {}, "unknown"),
    ("doctor names nobody", StepCode.ForwardersNameClients, {}, {UNNAMED: {(HERE,): 2}}, "passed"),
    ("an unknown range", StepCode.ClientsLocated, {UNLOCATED: {OUTSIDE: 2}}, {}, "failed"),
    ("further ranges", StepCode.ClientsLocated, {UNLOCATED: {("other", "address"): 2}}, {}, "passed"),
    ("none", StepCode.ClientsLocated, {}, {}, "passed"),
    ("a source that is no address", StepCode.ForwardersTrusted, {SUSPECTS: {("x",): 1}}, {}, "passed"),
    ("a row of another version", StepCode.ForwardersTrusted, {SUSPECTS: {(ELSEWHERE, "udp"): 1}}, {}, "passed"),
    ("numbers that are none", StepCode.ForwardersNameClients, {UNNAMED: {("x",): 1, (ELSEWHERE,): math.inf}}, {},
     "passed"),
    ("a range that is none", StepCode.ClientsLocated, {UNLOCATED: {("x", "address"): math.nan, OUTSIDE: math.nan}}, {},
     "passed"),
    ("a build without labels", StepCode.ReplicaVersion, {"topodns_build_info": {(): 1}}, {}, "failed"),
]  # fmt: skip


@each_row("code, old, new, status", COUNTED)
def test_what_replicas_counted(code: StepCode, old: Mapping[str, Any], new: Mapping[str, Any], status: str) -> None:
    """What grows while doctor looks is so now; old numbers count where the cluster still shows the reason."""
    facts = with_replica(samples(**old), samples(**{**old, **new}))
    assert [step.status for step in steps_of(facts, code)] == [status]


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        ({}, "no client in a zone has got endpoints yet"),
        ({("unknown", "unknown"): 7}, "no client in a zone has got endpoints yet"),
        (
            {("same", "a"): 5, ("same", "b", "cache", "shop"): 1, ("some", "a"): 2, ("other", "b"): math.inf},
            "of 16 answers, 12 held endpoints of the client's zone alone, 4 others, too, 0 only others (replicas: 2)",
        ),
    ],
    ids=["none", "of-unknown-clients", "of-two-replicas"],
)
def test_how_near_answers_are(counted: Mapping[tuple[str, ...], float], said: str) -> None:
    """The counts of all replicas together, of each Service or not, are said and are no fault."""
    facts = with_replica(samples(topodns_answer_zones_total=counted))
    (step,) = steps_of(replace(facts, replicas=2 * facts.replicas), StepCode.AnswersNear)
    assert (step.status, step.message) == ("passed", said)


def test_a_replica_that_sends_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the start of a page is read, so that whoever answers in a replica's place fills no memory."""
    monkeypatch.setattr(replicas, "MAX_PAGE", 1 << 20)
    end = 64 << 20  # far more than the sockets of any machine hold
    sent = list[int]()  # bytes of each page

    def send(listener: socket.socket) -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            sent.append(0)
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while sent[-1] < end:
                    sent[-1] += connection.send(b"x" * (1 << 20))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=send, args=(listener,), daemon=True)
        thread.start()
        listen = ListenAddress(parse_address("127.0.0.1"), listener.getsockname()[1])
        pod = V1Pod(metadata=POD.metadata, status=V1PodStatus(phase="Running", pod_ip="127.0.0.1"))
        reader = replicas.Replicas(cast(ApiClient, None), replace(INSTALLED, settings=Settings(http=listen)), "kubectl")
        (replica,) = trio.run(reader.read, [pod])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert replica.before == Unread("/metrics: something else than metrics found")
    assert max(sent) < end


def test_a_forwarder_is_called_by_its_owner() -> None:
    """By address, and by the pod or node that has it."""
    (step,) = steps_of(with_replica(samples(**{SUSPECTS: {(ELSEWHERE,): 1}})), StepCode.ForwardersTrusted)
    assert step.subject == ELSEWHERE and step.message.startswith("pod shop/dnsmasq has this address")


ANSWER = frozenset(("10.1.0.1",))
QUESTION = Question("web.shop.svc.cluster.local", "A", ELSEWHERE, "a")
REPLIES = [
    ("the same", Reply(b"\x0a\0\0\x09", "NOERROR", ANSWER), True, "passed"),
    ("cut", Reply(b"\x0a\0\0\x09", "NOERROR", frozenset(), True), True, "passed"),
    ("another", Reply(b"\x0a\0\0\x09", "NOERROR", frozenset(("10.1.0.2",))), True, "failed"),
    ("another rcode", Reply(b"\x0a\0\0\x09", "SERVFAIL"), True, "failed"),
    ("another, perhaps for another client", Reply(b"\x0a\0\0\x09", "SERVFAIL"), False, "unknown"),
    ("none, from outside", Reply(error="timed out"), True, "unknown"),
    ("none, from inside", Reply(b"\x0a\0\0\x09", error="timed out"), True, "failed"),
]  # fmt: skip


@each_row("reply, certain, status", REPLIES)
def test_answers(reply: Reply, certain: bool, status: str) -> None:
    """What differs is a cross; what cannot be reached from outside is a dash, with the command for inside."""
    asked = [
        Comparison("topodns-1", transport, QUESTION, reply, ANSWER, "NOERROR", certain) for transport in ("TCP", "UDP")
    ]
    facts = replace(FACTS, view=VIEW, replica_answers=asked)
    (step,) = steps_of(facts, StepCode.ReplicaAnswers)
    assert step.status == status
    if status == "unknown":
        assert step.commands == ("kubectl -n topodns exec deploy/topodns -- topodns doctor",)


IN_ZONES = {"a": "10.2.0.1", "b": "10.2.0.2"}
ZONAL = View(
    snapshot_of(
        listed([
            api_objects.node("a", {ZONE: "a"}, addresses=[IN_ZONES["a"]]),
            api_objects.node("b", {ZONE: "b"}, addresses=[IN_ZONES["b"]]),
            api_objects.node("nowhere", addresses=["10.2.0.3"]),
            api_objects.service("web", keys=ZONE),
            api_objects.endpoint_slice(
                "web", 0, [api_objects.endpoint(f"10.1.0.{n}", nodeName=zone) for n, zone in enumerate("ab", 1)]
            ),
        ])
    ), (), authority_of(Settings()),
)  # fmt: skip
# Where this place is; what comes back; whether it is right, as a client of which zone.
COMPARED: list[tuple[str, str | None, Reply, bool, str, str]] = [
    ("in a zone", "10.2.0.1", Reply(None, "NOERROR", frozenset(("10.1.0.1",))), True, "", "passed"),
    ("in a zone, as another", "10.2.0.1", Reply(None, "NOERROR", frozenset(("10.1.0.2",))), False, "", "failed"),
    ("on a node without a zone", "10.2.0.3", Reply(None, "NOERROR"), True, "", "passed"),
    ("in no zone", "192.0.2.7", Reply(None, "NOERROR"), True, "", "passed"),
    ("in no zone, behind a node", "192.0.2.7", Reply(None, "NOERROR", frozenset(("10.1.0.2",))), True, "b", "passed"),
    ("in no zone, as nobody", "192.0.2.7", Reply(None, "REFUSED"), False, "", "unknown"),
    ("without a route", None, Reply(error="fd00::1: no route leads there from here"), False, "", "unknown"),
]


@each_row("source, reply, right, zone, status", COMPARED)
def test_answers_are_compared(source: str | None, reply: Reply, right: bool, zone: str, status: str) -> None:
    """With what this place should get; from a place in no zone, with what the clients of some zone get, too."""
    reply = replace(reply, source=None if source is None else parse_address(source))
    question = Question("web.shop.svc.cluster.local", "A", "", "")
    asked = compared("kube-system/coredns-1", "UDP", question, reply, ZONAL, IN_ZONES)
    assert (asked.right, asked.question.zone) == (right, zone)
    nodes = [Node("a", {ZONE: "a"}, (parse_address(IN_ZONES["a"]),))]
    facts = replace(FACTS, view=ZONAL, nodes=nodes, replica_answers=[asked], forwarder_answers=[asked])
    (step,) = steps_of(facts, StepCode.ForwarderAnswers)
    assert step.status == status
    assert ("as one of whom this place asks" in step.message) == bool(zone)
    assert len(steps_of(facts, StepCode.ReplicaAnswers)) == (1 if source is None else 2)  # and that for every zone


def test_an_address_without_a_route() -> None:
    """It is a reply with the reason, and no exception: such as an IPv6 pod's from an IPv4 machine."""
    nobody = b"\xff" * 4  # a broadcast address, to which no socket connects
    assert source_towards(nobody) is None
    reply = trio.run(partial(ask, nobody, 53, QUESTION, tcp=False))
    assert reply == Reply(error="255.255.255.255: no route leads there from here")


# --- Tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUSTOM_RESOURCES)
def test_the_fields_are_those_of_the_manifest(name: str) -> None:
    """Or doctor would take our own CRD for an old or a new one."""
    ours = CUSTOM_RESOURCES[name]
    crd = yaml.safe_load((ROOT / ours.manifest).read_text())
    assert crd["metadata"]["name"] == name
    (version,) = crd["spec"]["versions"]
    assert fields_of(version["schema"]["openAPIV3Schema"]) == ours.fields


def test_json() -> None:
    """The fields of a step; what fixes it is only in one that did not pass."""
    step = DoctorStep(StepCode.ImageVersion, "failed", "topodns:0.0.9", commands=("kubectl set image",))
    code = StepCode.ImageVersion
    assert as_json(step) == {
        "code": "ImageVersion", "title": "its image", "subject": "", "status": "failed", "message": "topodns:0.0.9",
        "why": code.why, "cure": code.fix, "difference": "", "commands": ["kubectl set image"],
        "documentation": "docs/doctor.md#imageversion",
    }  # fmt: skip
    assert as_json(replace(step, status="passed")) == {**as_json(step), "status": "passed", "cure": "", "commands": []}


# --- The settings of a Deployment -------------------------------------------------------------------------------------

MOUNTED = {
    "volumeMounts": [{"name": "config", "mountPath": "/etc/topodns"}],
    "args": ["serve", "--config=/etc/topodns/c.yaml"],
}
FILE = [config_map_of("topodns/settings", {"c.yaml": "ttl: 7"})]
DEPLOYED: list[tuple[str, Mapping[str, Any], Sequence[V1ConfigMap], int | str]] = [
    ("defaults", {"args": ["serve"]}, (), 5),
    ("a flag", {"args": ["serve", "--ttl=7"]}, (), 7),
    ("a flag in two words", {"command": ["topodns", "serve"], "args": ["--ttl", "7"]}, (), 7),
    ("a variable", {"args": ["serve"], "env": [{"name": "TOPODNS_TTL", "value": "7"}, {"name": "X"}]}, (), 7),
    ("a file", MOUNTED, FILE, 7),
    ("a file that is not there", MOUNTED, (), "/etc/topodns/c.yaml: no ConfigMap with this file is mounted there"),
    ("an unknown flag", {"args": ["serve", "--tll=7"]}, (), "--tll: unknown flag of serve"),
    ("a wrong value", {"args": ["serve", "--ttl=x"]}, (), "--ttl: 'x'"),
]


@each_row("container, maps, ttl", DEPLOYED)
def test_the_settings_of_a_deployment(
    container: Mapping[str, Any], maps: Sequence[V1ConfigMap], ttl: int | str
) -> None:
    """As the process would read them."""
    deployment = deployed(**container)
    if isinstance(ttl, int):
        assert settings_in(deployment, maps).ttl == ttl
    else:
        with pytest.raises(WrongInput, match=re.escape(ttl)):
            settings_in(deployment, maps)


# --- The command ------------------------------------------------------------------------------------------------------


def test_an_api_server_that_cannot_be_reached(topodns: Run, tmp_path: Path) -> None:
    """One cross with the cause; the rest is left out. In a pipe there are no colours."""
    port = free_port()
    path = str(kubeconfig(tmp_path, f"https://127.0.0.1:{port}"))
    ran = topodns("doctor", "--kubeconfig", path)
    assert ran.status == EXIT_FAILED and not ran.err and RED not in ran.out
    first, *_, command, last = ran.out.splitlines()
    assert first == f"\u2717 the API server answers: https://127.0.0.1:{port}: Connection refused"
    assert (command, last) == (
        f"$ kubectl --kubeconfig {path} cluster-info",
        "1 failed, 0 could not be looked at, 0 passed",
    )
    found = topodns("doctor", "--kubeconfig", path, "-o", "json").json
    assert [step["code"] for step in found["steps"]] == ["ApiServerReachable"]
    assert set(found) == {"version", "namespace", "providers", "steps", "counts"}
    assert found["counts"] == {"passed": 0, "failed": 1, "unknown": 0}


@pytest.mark.parametrize("status", [401, 503])
def test_an_api_server_that_does_not_work(topodns: Run, tmp_path: Path, status: int) -> None:
    """One that knows nobody, or has lost etcd, is one cross, too: all other steps would say the same, slowly."""
    with other_server(lambda: Response(status, b"")) as address:
        path = kubeconfig(tmp_path, f"http://{address}")
        found = topodns("doctor", "--kubeconfig", str(path), "-o", "json").json
    assert [(step["code"], step["status"]) for step in found["steps"]] == [("ApiServerReachable", "failed")]
    assert str(status) in found["steps"][0]["message"]


NO_LISTS = [
    (b"{", "Input data was truncated"),
    (b'{"items": 7}', "'int' object is not iterable"),
    (b'{"items": [{"metadata": {"name": {"secret": 1}}}]}', "V1ObjectMeta.name: Input should be a valid string"),
]


@pytest.mark.parametrize(("body", "message"), NO_LISTS, ids=[row[0].decode() for row in NO_LISTS])
def test_an_api_server_that_sends_something_else(topodns: Run, tmp_path: Path, body: bytes, message: str) -> None:
    """What cannot be read is a dash that says why, without what was sent: it may be confidential."""
    with other_server(lambda: Response(200, body)) as address:
        found = topodns("doctor", "--kubeconfig", str(kubeconfig(tmp_path, f"http://{address}")), "-o", "json").json
    steps = {step["code"]: (step["status"], step["message"]) for step in found["steps"]}
    assert steps["ApiServerReachable"][0] == "passed" and steps["NodesReady"] == ("unknown", message)
    assert {steps[code][0] for code in ("ForwarderForwards", "DeploymentExists", "ServiceLeadsHere")} == {"unknown"}


def test_what_others_sent_commands_no_terminal(topodns: Run, tmp_path: Path) -> None:
    """Messages may hold words of an API server, a replica, or whoever created an object."""
    with other_server(lambda: Response(401, b'{"kind": "Status", "message": "\\u001b[2J"}')) as address:
        ran = topodns("doctor", "--kubeconfig", str(kubeconfig(tmp_path, f"http://{address}")))
    assert ran.status == EXIT_FAILED and "\\x1b[2J" in ran.out and "\x1b" not in ran.out


def test_a_command_is_whole(topodns: Run, tmp_path: Path) -> None:
    """However long it is: most of them hold a Corefile, and a shell would wait for the end of one that is cut."""
    name = "x" * 2 * MAX_LINE
    path = kubeconfig(tmp_path, f"https://127.0.0.1:{free_port()}")
    path.write_text(path.read_text().replace("main", name))
    ran = topodns("doctor", "--kubeconfig", str(path), "--context", name)
    assert f"$ kubectl --kubeconfig {path} --context {name} cluster-info\n" in ran.out


def test_a_terminal_without_these_marks() -> None:
    """Letters stand for them, and nothing breaks."""
    step = DoctorStep(StepCode.ImageVersion, "failed", "caf\xe9")
    assert text_of([step], "utf-8", colour=False).startswith("\u2717 its image: caf\xe9\n")
    assert text_of([step], "ascii", colour=False).startswith("x its image: caf?\n")
