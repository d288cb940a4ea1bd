# SPDX-License-Identifier: Apache-2.0

"""The rights of the manifests: the programs need each of them, and have no others.

``ROWS`` is their table. The programs run against the real API server with a token of a ServiceAccount: with all rows
nothing is refused, and without any one row the program names the missing rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused
from locator.publishing.dns_endpoints import OURS as OURS_ALONE
from locator.topology.hints import OPT_IN_LABELS
from tests.kit import api_objects, kustomize
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, namespace, node, service
from tests.kit.balanced_services import balanced
from tests.kit.go_programs import dns_endpoints_crd
from tests.kit.kube import ControlPlane, Item
from tests.kit.kustomize import (
    CONTROLLER,
    EVERYTHING,
    FEDERATION,
    INSTALLER,
    NAMESPACE,
    READER,
    SERVER,
    WEBHOOK,
    object_of,
    objects_of,
    rights_in,
)
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

WHERE = "rbac"
HOOKS_KIND = "MutatingWebhookConfiguration"
LEASE = "topodns-controller"
OURS = "topodns.io"
HOOKS = "admissionregistration.k8s.io"
MULTICLUSTER = "multicluster.x-k8s.io"
RBAC = "rbac.authorization.k8s.io/v1"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LOCATORS = f"/apis/{OURS}/v1alpha1/namespaces/{WHERE}/podlocators"
HEALTHS = f"/apis/{OURS}/v1alpha1/servicehealths"
POLICIES = f"/apis/{OURS}/v1alpha1/namespaces/{WHERE}/servicepolicies"
PUBLISH = ("--publish", "--federation=fed.example.com")
COMMANDS = {
    SERVER: ("serve", "--listen=127.0.0.1:0", "--federation=fed.example.com", "--multicluster=clusterset.local"),
    READER: ("serve", "--listen=127.0.0.1:0", "--federation=fed.example.com", f"--snapshot={ROOT / 'examples'}"),
    CONTROLLER: ("controller", "--health", f"--lease={NAMESPACE}/{LEASE}", *PUBLISH),
    WEBHOOK: ("webhook", "--webhook-listen=127.0.0.1:0", f"--lease={NAMESPACE}/{WEBHOOK}",
              f"--tls-secret={NAMESPACE}/{WEBHOOK}"),
    INSTALLER: ("webhook", "--install-ca", f"--tls-secret={NAMESPACE}/{WEBHOOK}"),
}  # fmt: skip
EXTERNAL = "externaldns.k8s.io"
NAMES = f"/apis/{EXTERNAL}/v1alpha1/namespaces/{NAMESPACE}/dnsendpoints"
PUBLISHED, MOVED, ENDED = (f"{name}.{WHERE}.fed.example.com" for name in ("published", "moved", "ended"))
WATCH = ("list", "watch")
FEDERATED = "serviceexports", "servicehealths"  # only --federation needs them
IMPORTED = ("serviceimports",)  # only --multicluster needs them
SEVERAL = *FEDERATED, *IMPORTED
OF_NAMES = ("namespaces", "endpointslices", "serviceexports", "dnsendpoints")  # only --publish needs them


class Row(NamedTuple):
    """A right, what it is for, and what the program says without it.

    ``said`` is empty if no test can provoke that, or if another watch of the account shows it. ``own`` is whether it is
    for the namespace of the program alone, ``only`` the name of the one object that it is for.
    """

    account: str
    group: str
    resource: str
    verbs: tuple[str, ...]
    use: str
    said: str
    own: bool = False
    only: str = ""

    @property
    def rule(self) -> str:
        """Return the rule in the words of a refusal."""
        verbs = ", ".join(f'"{verb}"' for verb in self.verbs)
        return f'apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: [{verbs}]'


ROWS = (
    Row(SERVER, "", "namespaces", WATCH, "which names exist; --namespace-selector", ""),
    Row(SERVER, "", "services", WATCH, "what is answered", ""),
    Row(SERVER, "discovery.k8s.io", "endpointslices", WATCH, "what is answered; forwarders", ""),
    Row(SERVER, OURS, "servicepolicies", WATCH, "what policies ask for", ""),
    Row(SERVER, "", "nodes", WATCH, "--client-source nodes", ""),
    Row(SERVER, "", "pods", WATCH, "--client-source pods", "Pod: 403"),
    Row(SERVER, MULTICLUSTER, "serviceexports", WATCH, "--federation: what is exported", "ServiceExport: 403"),
    Row(SERVER, OURS, "servicehealths", WATCH, "--federation: votes", ""),
    Row(SERVER, MULTICLUSTER, "serviceimports", WATCH, "--multicluster", ""),
    Row(SERVER, "", "services", ("get",), "the uid of an Event's Service", f"{WHERE}/bad: no Event posted: 403"),
    Row(SERVER, "", "events", ("create",), "Events", f"{WHERE}/bad: no Event posted: 403"),
    Row(READER, "", "namespaces", WATCH, "--namespace-selector", "Namespace: 403"),
    Row(READER, "", "services", WATCH, "what is answered", "Service: 403"),
    Row(READER, "discovery.k8s.io", "endpointslices", WATCH, "what is answered", "EndpointSlice: 403"),
    Row(READER, OURS, "servicepolicies", WATCH, "what policies ask for", "ServicePolicy: 403"),
    Row(READER, MULTICLUSTER, "serviceexports", WATCH, "--federation: what is exported", "ServiceExport: 403"),
    Row(READER, OURS, "servicehealths", WATCH, "--federation: votes", "ServiceHealth: 403"),
    Row(READER, "", "nodes", WATCH, "--client-source nodes", "Node: 403"),
    Row(READER, "", "pods", WATCH, "--client-source pods", "Pod: 403"),
    Row(CONTROLLER, "", "pods", WATCH, "which PodLocators there are to be", "Pod: 403"),
    Row(CONTROLLER, "", "nodes", WATCH, "nodeLabels", "Node: 403"),
    Row(CONTROLLER, OURS, "podlocators", WATCH, "which PodLocators there are", "PodLocator: 403"),
    Row(CONTROLLER, "", "pods", ("get",), "is a pod that was never seen there?", f"PodLocator {WHERE}/orphan: 403"),
    Row(CONTROLLER, OURS, "podlocators", ("create",), "a new pod", f"PodLocator {WHERE}/new: 403"),
    Row(CONTROLLER, OURS, "podlocators", ("patch",), "a pod moved, a node relabelled", "PodLocator .*/wrong: 403"),
    Row(CONTROLLER, OURS, "podlocators", ("delete",), "a pod gone", f"PodLocator {WHERE}/orphan: 403"),
    Row(CONTROLLER, "", "services", WATCH, "what policies select; --health: what to probe", "Service: 403"),
    Row(CONTROLLER, OURS, "servicepolicies", WATCH, "which policies there are", "ServicePolicy: 403"),
    Row(CONTROLLER, OURS, "servicepolicies", ("get",), "is one there whose status is not?", ""),
    Row(CONTROLLER, OURS, "servicepolicies/status", ("patch",), "their status", f"ServicePolicy {WHERE}/near: 403"),
    Row(CONTROLLER, OURS, "servicehealths", WATCH, "--health: what is there; --publish: votes", "ServiceHealth: 403"),
    Row(CONTROLLER, OURS, "servicehealths", ("create",), "--health: votes", "ServiceHealth balanced.rbac: 403"),
    Row(CONTROLLER, OURS, "servicehealths", ("patch",), "--health: renewals", "ServiceHealth stale.rbac: 403"),
    Row(CONTROLLER, OURS, "servicehealths", ("delete",), "--health: no Service", "ServiceHealth gone.rbac: 403"),
    Row(CONTROLLER, "", "namespaces", WATCH, "--publish, as the server", "Namespace: 403"),
    Row(CONTROLLER, "discovery.k8s.io", "endpointslices", WATCH, "--publish: is any ready?", "EndpointSlice: 403"),
    Row(CONTROLLER, MULTICLUSTER, "serviceexports", WATCH, "--publish: what is exported", "ServiceExport: 403"),
    Row(CONTROLLER, EXTERNAL, "dnsendpoints", WATCH, "--publish: what there is", "DNSEndpoint: 403", own=True),
    Row(CONTROLLER, EXTERNAL, "dnsendpoints", ("create",), "--publish: names", f"{PUBLISHED}: 403", own=True),
    Row(CONTROLLER, EXTERNAL, "dnsendpoints", ("patch",), "--publish: addresses", f"{MOVED}: 403", own=True),
    Row(CONTROLLER, EXTERNAL, "dnsendpoints", ("delete",), "--publish: no balancer", f"{ENDED}: 403", own=True),
    Row(CONTROLLER, "coordination.k8s.io", "leases", ("create",), "the first to lead", "Lease .*: 403", own=True),
    Row(CONTROLLER, "coordination.k8s.io", "leases", ("get",), "who leads", "Lease .*: 403", own=True, only=LEASE),
    Row(CONTROLLER, "coordination.k8s.io", "leases", ("update",), "leading on", "Lease .*: 403", own=True, only=LEASE),
    Row(WEBHOOK, "", "nodes", WATCH, "what the nodes of a zone share", "Node: 403"),
    Row(WEBHOOK, "", "services", WATCH, "what Services ask for", "Service: 403"),
    Row(WEBHOOK, OURS, "servicepolicies", WATCH, "what policies ask for", "ServicePolicy: 403"),
    Row(WEBHOOK, "discovery.k8s.io", "endpointslices", WATCH, "a Service's other slices", "EndpointSlice: 403"),
    Row(WEBHOOK, "discovery.k8s.io", "endpointslices", ("patch",), "old hints", f"EndpointSlice {WHERE}/bad-old: 403"),
    Row(WEBHOOK, HOOKS, "mutatingwebhookconfigurations", ("get",), "whom for, CA", "certificate: 403", only=WEBHOOK),
    Row(WEBHOOK, "", "secrets", ("get",), "its certificate", "certificate: 403", own=True, only=WEBHOOK),
    Row(WEBHOOK, "", "secrets", ("patch",), "its certificate", "certificate: 403", own=True, only=WEBHOOK),
    Row(WEBHOOK, "coordination.k8s.io", "leases", ("create",), "the first to lead", "Lease .*: 403", own=True),
    Row(WEBHOOK, "coordination.k8s.io", "leases", ("get",), "who leads", "Lease .*: 403", own=True, only=WEBHOOK),
    Row(WEBHOOK, "coordination.k8s.io", "leases", ("update",), "leading on", "Lease .*: 403", own=True, only=WEBHOOK),
    Row(INSTALLER, HOOKS, "mutatingwebhookconfigurations", ("get",), "whom it is for", "^topodns: 403", only=WEBHOOK),
    Row(INSTALLER, HOOKS, "mutatingwebhookconfigurations", ("patch",), "the CA", "^topodns: 403", only=WEBHOOK),
    Row(INSTALLER, "", "secrets", ("get",), "the CA", "^topodns: 403", own=True, only=WEBHOOK),
    Row(INSTALLER, "", "secrets", ("patch",), "the CA", "^topodns: 403", own=True, only=WEBHOOK),
)  # fmt: skip


def rows_of(account: str) -> list[Row]:
    return [row for row in ROWS if row.account == account]


Granted = tuple[str, str, str, str]  # a right, and the name of the object that it is for, empty if it is for all


def granted_by(rows: Iterable[Row]) -> set[Granted]:
    return {(row.group, row.resource, verb, row.only) for row in rows for verb in row.verbs}


def granted_in(rules: Iterable[Item]) -> set[Granted]:
    """Return what rules allow."""
    return {
        (*right, name) for rule in rules for right in rights_in([rule]) for name in rule.get("resourceNames") or [""]
    }


# Accounts beside those of the manifests: one lacks each row, and one has none.
LACKING = {
    f"{row.account}-without-{'-'.join(row.verbs)}-{row.resource.replace('/', '-')}": row for row in ROWS if row.said
}
NOBODY = "nobody"
ACCOUNTS = {
    NOBODY: [],
    **{name: [row for row in rows_of(lacking.account) if row != lacking] for name, lacking in LACKING.items()},
}


# -- what stands in the manifests


@pytest.mark.parametrize(
    ("variant", "account", "without", "more"),
    [
        pytest.param("base", SERVER, SEVERAL, (), id="base"),
        pytest.param("base without pods", SERVER, ("pods", *SEVERAL), (), id="without-pods"),
        pytest.param("base with podlocators", SERVER, ("pods", "nodes", *SEVERAL), ("podlocators",), id="podlocators"),
        pytest.param("base with multicluster", SERVER, FEDERATED, (), id="multicluster"),
        pytest.param("clusters", SERVER, IMPORTED, (), id="clusters"),
        pytest.param("clusters with multicluster", SERVER, (), (), id="clusters-and-multicluster"),
        pytest.param("remote", READER, (), (), id="remote"),
        pytest.param("base with podlocators", CONTROLLER, ("servicehealths", *OF_NAMES), (), id="controller"),
        pytest.param("base with health", CONTROLLER, OF_NAMES, (), id="health"),
        pytest.param(EVERYTHING, CONTROLLER, (), (), id="health-and-publish"),
        pytest.param("webhook", WEBHOOK, (), (), id="webhook"),
        pytest.param("webhook", INSTALLER, (), (), id="installer"),
    ],
)
def test_the_roles_are_the_table(variant: str, account: str, without: Sequence[str], more: Sequence[str]) -> None:
    """The roles allow what is watched, each right once, and nothing by ``*``."""
    roles = [role for role in objects_of(variant, "ClusterRole", "Role") if role["metadata"]["name"] == account]
    expected = granted_by(row for row in rows_of(account) if row.resource not in without)
    expected |= {(OURS, resource, verb, "") for resource in more for verb in WATCH}
    assert granted_in(rule for role in roles for rule in role["rules"]) == expected


def test_what_distributes_may_do_at_home_what_it_may_elsewhere() -> None:
    """And nothing more: the own cluster is one of all. ``test_federation_rights`` shows that each right is used."""
    home, plain = (
        granted_in(object_of(variant, "ClusterRole", CONTROLLER)["rules"])
        for variant in ("clusters with federate", "base with controller")
    )
    elsewhere = granted_in(object_of("federation cluster", "ClusterRole", FEDERATION)["rules"])
    assert home == plain | elsewhere
    assert all("*" not in right for right in home)


def test_a_snapshot_needs_no_right() -> None:
    """Its pod has no token."""
    assert not objects_of("snapshot", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    (deployment,) = objects_of("snapshot", "Deployment")
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


# -- what the API server makes of it


def pod(name: str, address: str) -> Item:
    return api_objects.pod(name, [address], "rbac-node", where=WHERE)


def exported(name: str) -> list[Item]:
    """Return a Service with a federated name, which has an endpoint, and a load balancer in the status."""
    made = service(name, where=WHERE, cluster_ips=(), annotations={"topodns.io/federated": "true"}, type="LoadBalancer")
    slices = endpoint_slice(name, "1", [endpoint("10.253.0.1", nodeName="rbac-node", zone="a")], where=WHERE)
    return [{**made, "status": api_objects.load_balancer_status(["127.0.2.2"])}, slices]


SERVICE = service("bad", where=WHERE, keys="*,not-last")
HOMES = [endpoint("10.253.0.1", nodeName="rbac-node", zone="a")]
SLICE = endpoint_slice("bad", "old", HOMES, where=WHERE, labels={OPT_IN_LABELS[0]: "true"})
POLICY = api_objects.service_policy("near", ZONE, where=WHERE, app="none")
BALANCED = [balanced(name, ["127.0.2.1"], where=WHERE) for name in ("balanced", "stale")]
WORLD = [
    namespace(WHERE),
    node("rbac-node", {ZONE: "a"}),
    pod("new", "10.253.0.1"),
    pod("wrong", "10.253.0.2"),
    SERVICE,
    *BALANCED,
    SLICE,
    *(one for name in ("published", "moved") for one in exported(name)),
]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return a cluster with the manifests' accounts, one account less each row, and work for both programs."""
    kinds = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "ClusterRoleBinding", "Role", "RoleBinding")
    kinds = (*kinds, "Secret", "MutatingWebhookConfiguration")
    kinds = (*kinds, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    roles = [*objects_of("remote"), object_of("clusters with multicluster", "ClusterRole", SERVER)]
    roles += [object_of(EVERYTHING, "ClusterRole", name) for name in (CONTROLLER, WEBHOOK, INSTALLER)]
    tried = [item for name, rows in ACCOUNTS.items() for item in account_with(name, rows)]
    names = yaml.safe_load(dns_endpoints_crd().read_text())
    with kustomize.installed(control_plane, [*objects_of(EVERYTHING, *kinds), *roles, names]):
        control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(tried))
        control_plane.api.create(*WORLD)
        for one in (item for item in WORLD if item["kind"] == "Service" and "status" in item):
            control_plane.api.patch_status(one, one["status"])
        for one in COMMANDS:  # who grants rights hears of a role a moment after it was made
            granted = granted_by(rows_of(one))
            until(
                lambda one=one, granted=granted: allowed(control_plane, one, NAMESPACE) >= granted, f"rights of {one}"
            )
        yield control_plane
        control_plane.api.delete(*reversed(WORLD))
        for plural in ("clusterroles", "clusterrolebindings"):  # the others go with the namespace
            control_plane.api.request("DELETE", f"/apis/{RBAC}/{plural}?labelSelector=tried")


def account_with(name: str, rows: Sequence[Row]) -> list[Item]:
    """Return an account with the rights of *rows*, in the form of the manifests."""

    def role(kind: str, granted: Iterable[Row]) -> list[Item]:
        where = {"namespace": NAMESPACE} if kind == "Role" else {}
        made = {"apiVersion": RBAC, "metadata": {"name": name, "labels": {"tried": ""}, **where}}
        rules = [{"apiGroups": [row.group], "resources": [row.resource], "verbs": list(row.verbs)} for row in granted]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
        binding = {**made, "kind": f"{kind}Binding", "roleRef": reference, "subjects": [subject]}
        return [{**made, "kind": kind, "rules": rules}, binding]

    return [
        api_objects.item("ServiceAccount", name, NAMESPACE),
        *role("ClusterRole", (row for row in rows if not row.own)),
        *role("Role", (row for row in rows if row.own)),
    ]


def token_of(plane: ControlPlane, account: str) -> str:
    """Return a token as a pod of the account would have it."""
    where = READER if account == READER else NAMESPACE
    return plane.token(where, account)


def allowed(plane: ControlPlane, account: str, where: str) -> set[Granted]:
    """Return what the API server lets an account do in a namespace."""
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": where}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    asked = ("--token", token_of(plane, account), "create", "--raw", path, "-f", "-")
    status = json.loads(plane.kubectl(*asked, stdin=json.dumps(review)))["status"]
    assert not status["incomplete"]
    return granted_in(status["resourceRules"])


@pytest.mark.parametrize("account", COMMANDS)
def test_an_account_may_do_what_the_table_says_and_no_more(cluster: ControlPlane, account: str) -> None:
    """No ConfigMap, no change of a Pod; one Lease, one Secret and, to read alone, one configuration of the webhook."""
    anybody = allowed(cluster, NOBODY, WHERE)
    for where in (WHERE, NAMESPACE):
        rows = [row for row in rows_of(account) if not row.own or where == NAMESPACE]
        assert allowed(cluster, account, where) - anybody == granted_by(rows), where
    assert all(resource.startswith("self") for _, resource, *_ in anybody)


# -- what the programs make of it


@contextmanager
def running(
    plane: ControlPlane, name: str, account: str, folder: Path, *, without: Sequence[str] = ()
) -> Iterator[Server]:
    """Run a program as one of ``ACCOUNTS``, *without* some of its flags, with work to do; undo it afterwards."""
    kubeconfig = plane.kubeconfig_with(folder / "kubeconfig", token=token_of(plane, name))
    for locator in ("wrong", "orphan") if account == CONTROLLER else ():
        plane.api.request("POST", LOCATORS, api_objects.item("PodLocator", locator, nodeName="elsewhere"))
    for name in ("stale", "gone") if account == CONTROLLER else ():
        plane.api.create(api_objects.item("ServiceHealth", f"{name}.{WHERE}"))
    for name in (MOVED, ENDED) if account == CONTROLLER else ():
        plane.api.create(api_objects.item("DNSEndpoint", name, NAMESPACE, labels=OURS_ALONE, spec={"endpoints": []}))
    if account == CONTROLLER:
        plane.api.create(POLICY)
    if account == WEBHOOK:
        plane.api.patch(SLICE, {"endpoints": HOMES})
    if account in (WEBHOOK, INSTALLER):
        plane.api.patch(api_objects.item("Secret", WEBHOOK, NAMESPACE), {"data": None})
    cluster = f"--cluster=west={kubeconfig}" if account == READER else f"--kubeconfig={kubeconfig}"
    flags = [flag for flag in COMMANDS[account] if flag not in without]
    process = Server([*flags, "--http=127.0.0.1:0", cluster])
    try:
        yield process
    finally:
        process.end()
        for path in (f"/api/v1/namespaces/{WHERE}/events", LOCATORS, HEALTHS, POLICIES, LEASES, NAMES):
            plane.api.request("DELETE", path)


def events(plane: ControlPlane) -> list[str]:
    found = plane.api.items("Event", WHERE)
    return [f"{event['reason']} {event['involvedObject']['name']}" for event in found if event["type"] == "Warning"]


def locators(plane: ControlPlane) -> dict[str, str]:
    return {item["metadata"]["name"]: item.get("nodeName", "") for item in plane.api.request("GET", LOCATORS)["items"]}


def votes(plane: ControlPlane) -> dict[str, int]:
    """Return the number of votes in each ServiceHealth."""
    found = plane.api.items("ServiceHealth")
    return {item["metadata"]["name"]: len(item.get("status", {}).get("entries", ())) for item in found}


def published(plane: ControlPlane) -> dict[str, int]:
    """Return the number of records in each DNSEndpoint."""
    found = plane.api.items("DNSEndpoint", NAMESPACE)
    return {item["metadata"]["name"]: len(item["spec"].get("endpoints", ())) for item in found}


def test_serve_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    """With the table's rights, ``serve`` reads all kinds and posts an Event."""
    with running(cluster, SERVER, SERVER, tmp_path) as process:
        process.wait_for("^ready$")
        until(lambda: events(cluster) == ["InvalidTopology bad"], lambda: f"one Event: {events(cluster)}")
        assert not [line for line in process.lines if re.search(r"\b403\b", line)]


def test_reading_another_cluster_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    """With the table's rights, ``serve --cluster`` reads all kinds."""
    with running(cluster, READER, READER, tmp_path) as process:
        process.wait_for("^ready$")
        checks = process.bound().get
        until(lambda: "cluster west ok" in checks("/readyz?verbose")[1], lambda: f"{checks('/readyz?verbose')}")
        assert not [line for line in process.lines if re.search(r"\b403\b", line)]


LOCATED = {"new": "rbac-node", "wrong": "rbac-node"}


def test_the_controller_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    """With the table's rights, the controller leads, creates, fixes and deletes."""
    with running(cluster, CONTROLLER, CONTROLLER, tmp_path) as process:
        until(lambda: locators(cluster) == LOCATED, lambda: f"{locators(cluster)}: {process.lines}")
        until(lambda: votes(cluster) == {"balanced.rbac": 1, "stale.rbac": 1}, lambda: f"{votes(cluster)}")
        until(lambda: cluster.api.request("GET", cluster.api.path_of(POLICY)).get("status"), "the status of a policy")
        until(lambda: published(cluster) == {PUBLISHED: 1, MOVED: 1}, lambda: f"{published(cluster)}")
        assert not [line for line in process.lines if re.search(r"\b403\b", line)]


def test_a_controller_without_the_rights_for_policies(cluster: ControlPlane, tmp_path: Path) -> None:
    """As after an upgrade that left the old role: it says so once, is ready, and keeps PodLocators all the same."""
    account = next(
        name for name, row in LACKING.items() if (row.account, row.resource) == (CONTROLLER, "servicepolicies")
    )
    with running(cluster, account, CONTROLLER, tmp_path, without=PUBLISH) as process:
        process.http = process.wait_for(r"^listening http (\S+)$")[1]
        until(lambda: locators(cluster) == LOCATED, lambda: f"{locators(cluster)}: {process.lines}")
        until(lambda: process.get("/readyz")[0] == 200, lambda: f"ready: {process.get('/readyz?verbose')}")
        assert "[+]ServicePolicy not listed yet" in process.get("/readyz?verbose")[1]
        synced = [line for line in process.get("/metrics")[1].splitlines() if line.startswith("topodns_synced{")]
        assert synced and all(line.endswith(" 1.0") for line in synced)  # else an alert says that it is not ready
        assert len([line for line in process.lines if "ServicePolicy: 403" in line]) == 1


def test_the_webhook_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    """With the table's rights, the webhook has a certificate, leads, and corrects hints.

    It may not put its CA into the configuration, and says which command does.
    """

    def hints() -> Any:
        return cluster.api.request("GET", cluster.api.path_of(SLICE))["endpoints"][0].get("hints")

    with running(cluster, WEBHOOK, WEBHOOK, tmp_path) as process:
        process.wait_for("certificate: new connections get")
        until(lambda: hints() == {"forZones": [{"name": "a"}]}, lambda: f"{hints()}: {process.lines}")
        process.wait_for("does not hold the CA.*Run as somebody who may: topodns webhook --install-ca")
        assert len([line for line in process.lines if re.search(r"\b403\b", line)]) == 1


def test_the_installer_is_refused_nothing(cluster: ControlPlane, tmp_path: Path) -> None:
    """With the table's rights, the Job lets API servers trust what the webhook serves."""
    with running(cluster, INSTALLER, INSTALLER, tmp_path) as process:
        assert process.wait() == 0, process.lines
        hooks = cluster.api.request("GET", cluster.api.path(HOOKS_KIND, name=WEBHOOK))["webhooks"]
        authority = cluster.api.request("GET", cluster.api.path("Secret", NAMESPACE, WEBHOOK))["data"]["ca.crt"]
        assert [hook["clientConfig"]["caBundle"] for hook in hooks] == [authority] * 2


# -- what the admission policy makes of the webhook's right to patch slices

ENDPOINT = endpoint(
    "10.253.0.1", nodeName="rbac-node", zone="a", hostname="web-0", conditions={"ready": True, "serving": True},
    targetRef={"kind": "Pod", "name": "new", "namespace": WHERE},
)  # fmt: skip
GUARDED = endpoint_slice("bad", "guarded", [ENDPOINT, endpoint("10.253.0.2")], where=WHERE, labels={"kept": "yes"})
HINTS = {"forZones": [{"name": "a"}], "forNodes": [{"name": "rbac-node"}]}
HINT_PATCH = [{"op": "add", "path": "/endpoints/0/hints", "value": HINTS}]


def put(path: str, value: object) -> Sequence[Item]:
    return [{"op": "add", "path": path, "value": value}]


def removed(path: str) -> Sequence[Item]:
    return [{"op": "remove", "path": path}]


CHANGES: Mapping[str, Sequence[Item]] = {
    "addresses": put("/endpoints/0/addresses", ["10.253.0.66"]),
    "another address of the second": put("/endpoints/1/addresses", ["10.253.0.66"]),
    "ready": put("/endpoints/0/conditions/ready", False),
    "terminating": put("/endpoints/0/conditions/terminating", True),
    "no conditions": removed("/endpoints/0/conditions"),
    "hostname": put("/endpoints/0/hostname", "web-1"),
    "no hostname": removed("/endpoints/0/hostname"),
    "targetRef": put("/endpoints/0/targetRef/name", "another"),
    "nodeName": put("/endpoints/0/nodeName", "another"),
    "zone": put("/endpoints/0/zone", "b"),
    "a zone where none was": put("/endpoints/1/zone", "b"),
    "one endpoint more": put("/endpoints/-", {"addresses": ["10.253.0.66"]}),
    "one endpoint less": removed("/endpoints/1"),
    "no endpoints": put("/endpoints", []),
    "the other order": [{"op": "move", "from": "/endpoints/1", "path": "/endpoints/0"}],
    "port": put("/ports/0/port", 666),
    "no ports": put("/ports", []),
    "label": put("/metadata/labels/kept", "no"),
    "label of the Service": put("/metadata/labels/kubernetes.io~1service-name", "another"),
    "no labels": removed("/metadata/labels"),
    "annotations": put("/metadata/annotations", {"a": "b"}),
    "owner": put("/metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": "1"}]),
    "finalizers": put("/metadata/finalizers", ["example.com/never"]),
}


@pytest.fixture(scope="module")
def guarded(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    """Return a client with the webhook's account, where a slice has each field, and the policy is in force."""
    kubeconfig = tmp_path_factory.mktemp("webhook") / "kubeconfig"
    client = ApiClient(kubeconfig=str(cluster.kubeconfig_with(kubeconfig, token=token_of(cluster, WEBHOOK))))
    cluster.api.create(GUARDED)
    until(lambda: refusal(client, cluster, CHANGES["zone"]), "the policy in force")
    yield client
    cluster.api.delete(GUARDED)


def refusal(client: ApiClient, plane: ControlPlane, patch: Sequence[Item]) -> str:
    """Return what the API server says to a patch of the slice, empty if it takes it."""
    try:
        path, media = plane.api.path_of(GUARDED), "application/json-patch+json"
        client.request("PATCH", path, query={"dryRun": "All"}, body=patch, media=media)
    except Refused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("change", CHANGES)
def test_the_webhook_changes_nothing_but_hints(cluster: ControlPlane, guarded: ApiClient, change: str) -> None:
    """Not even in one patch with hints. Nobody else is concerned: the same change by another is taken."""
    for patch in (CHANGES[change], [*HINT_PATCH, *CHANGES[change]]):
        assert "ValidatingAdmissionPolicy 'topodns-webhook'" in refusal(guarded, cluster, patch)
    path = f"{cluster.api.path_of(GUARDED)}?dryRun=All"
    cluster.api.request("PATCH", path, CHANGES[change], media="application/json-patch+json")


@pytest.mark.parametrize(
    "patch",
    [HINT_PATCH, put("/endpoints/1/hints", HINTS), [*HINT_PATCH, *removed("/endpoints/0/hints")], []],
    ids=["first", "second", "and-off-again", "nothing"],
)
def test_the_webhook_may_change_hints(cluster: ControlPlane, guarded: ApiClient, patch: Sequence[Item]) -> None:
    """Also those of any other slice."""
    assert refusal(guarded, cluster, patch) == ""


def test_the_policy_can_judge_the_largest_slice(cluster: ControlPlane, guarded: ApiClient) -> None:
    """1,000 endpoints, the most that the API server takes, cost less than an expression may."""
    homes = [{**ENDPOINT, "addresses": [f"10.254.{n // 250}.{n % 250 + 1}"]} for n in range(1000)]
    cluster.api.patch(GUARDED, {"endpoints": homes})
    hints = [put(f"/endpoints/{n}/hints", HINTS)[0] for n in range(1000)]
    assert refusal(guarded, cluster, hints) == ""
    assert "no other field" in refusal(guarded, cluster, [*hints, *put("/endpoints/999/zone", "b")])
    cluster.api.patch(GUARDED, {"endpoints": GUARDED["endpoints"]})


def test_the_expressions_of_the_policy_fit_the_types(cluster: ControlPlane) -> None:
    """The API server has no warning about it."""
    path = f"/apis/{HOOKS}/v1/validatingadmissionpolicies/{WEBHOOK}"
    status = until(lambda: cluster.api.request("GET", path).get("status", {}), "the types checked")
    assert status["typeChecking"] == {}


def test_the_policy_knows_each_field_of_a_slice(cluster: ControlPlane) -> None:
    """A new version of Kubernetes may bring another, which then needs a line in the policy."""
    schemas = cluster.api.request("GET", "/openapi/v3/apis/discovery.k8s.io/v1")["components"]["schemas"]
    fields = {name.rpartition(".")[2]: set(schema.get("properties", ())) for name, schema in schemas.items()}
    policy = yaml.safe_dump(object_of("webhook", "ValidatingAdmissionPolicy", WEBHOOK))
    for field in fields["Endpoint"] - {"hints"} | fields["EndpointSlice"] - {"apiVersion", "kind"}:
        assert re.search(rf"\.\??{field}\b", policy), field


@pytest.mark.parametrize(
    ("method", "media"),
    [
        pytest.param("POST", "application/json", id="create"),
        pytest.param("PATCH", "application/apply-patch+yaml", id="apply"),
        pytest.param("DELETE", "application/json", id="delete"),
        pytest.param("PUT", "application/json", id="update"),
    ],
)
def test_the_webhook_makes_and_removes_no_slice(
    cluster: ControlPlane, guarded: ApiClient, method: str, media: str
) -> None:
    """RBAC refuses, also what server-side apply would create."""
    new = {**GUARDED, "metadata": {**GUARDED["metadata"], "name": "tried"}}
    path = cluster.api.path("EndpointSlice", WHERE) if method == "POST" else cluster.api.path_of(new)
    with pytest.raises(Refused, match="403"):
        guarded.request(method, path, query={"fieldManager": "x"} if method == "PATCH" else None, body=new, media=media)


@pytest.mark.parametrize("name", LACKING)
def test_without_a_rule_the_program_names_it(cluster: ControlPlane, tmp_path: Path, name: str) -> None:
    """Each row is needed, and the message says what to grant."""
    row = LACKING[name]
    with running(cluster, name, row.account, tmp_path) as process:
        process.wait_for(f"{row.said}.*{re.escape(row.rule)}")
        if row.account == SERVER and row.verbs == WATCH:
            assert "ready" not in process.lines, "it does not answer from half a cluster"
