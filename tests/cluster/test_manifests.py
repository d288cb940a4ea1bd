# SPDX-License-Identifier: Apache-2.0

"""The manifests: the real kubectl builds them, the real API server accepts them, and the programs take their flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from dnsserver.http.application import application
from dnsserver.http.webhook import PATH
from dnsserver.programs.webhook import HTTPS_PORT, NAME
from docs.pages.make_pages import rules
from locator.topology.hints import OPT_IN_LABELS
from tests.kit import kustomize
from tests.kit.api_objects import item, node
from tests.kit.kube import ControlPlane, Item, monitoring_api
from tests.kit.kustomize import (
    CONTROLLER,
    EVERYTHING,
    HOOKS,
    INSTALLER,
    MANIFESTS,
    NAMESPACE,
    SERVER,
    VARIANTS,
    WEBHOOK,
    container_of,
    object_of,
    objects_of,
    settings_of,
)
from tests.kit.this_machine import ROOT
from tests.kit.waiting import until
from tests.kit.webhook_process import AUTHORITY

CRITICAL = 2_000_000_000  # what system-cluster-critical stands for
PROGRAMS = {SERVER: "serve", CONTROLLER: "controller", WEBHOOK: "webhook"}  # Deployments, and their commands
REPLICAS = {SERVER: 3, CONTROLLER: 2, WEBHOOK: 2}
ALL = sum(REPLICAS.values())
READMES = sorted(MANIFESTS.rglob("*.md"))


@pytest.fixture(scope="module")
def everything(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with all objects of the manifests, but for the Job: another one would be refused."""
    variants = (EVERYTHING, "remote", "federation cluster")
    objects = [made for variant in variants for made in objects_of(variant) if made["kind"] != "Job"]
    with monitoring_api(control_plane), kustomize.installed(control_plane, objects):
        yield control_plane


def projected_in(deployment: Item) -> Iterator[str]:
    """Yield the folder in the container of each Secret that is mounted whole; all are mounted read-only.

    The kubeconfigs of the clusters are in a Secret of their own where they let topodns distribute objects.
    """
    federates = settings_of(deployment)[1].federate is not None
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"].get("volumes", ())}
    for mount in container_of(deployment).get("volumeMounts", ()):
        for source in volumes[mount["name"]].get("projected", {}).get("sources", ()):
            assert mount["readOnly"] and source["secret"] == {
                "name": "federation-clusters" if federates else "clusters"
            }
            yield mount["mountPath"]


# -- what is built


@pytest.mark.parametrize("variant", VARIANTS)
def test_containers_are_started_with_flags_that_exist(variant: str) -> None:
    """The command line accepts the arguments, and the files that they name are mounted."""
    for deployment in objects_of(variant, "Deployment"):
        command, settings = settings_of(deployment)
        assert command == PROGRAMS[deployment["metadata"]["name"]]
        mounts = {each["mountPath"]: each for each in container_of(deployment).get("volumeMounts", ())}
        for path in (*settings.snapshot, *([] if settings.federate is None else [settings.federate.path])):
            assert any(path.startswith(f"{mount}/") for mount in mounts)
        assert [*filter(None, [settings.cluster_dir])] == [*projected_in(deployment)]
        if settings.state_dir is not None:
            assert not mounts[settings.state_dir].get("readOnly")


def copy_of_clusters(page: str) -> Item:
    """Return the overlay of several clusters with the components of a page's example, as a user would copy it.

    A component ``my-NAME`` is a copy of NAME.
    """
    folder = MANIFESTS / "overlays" / "clusters"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    overlay["resources"] = [str(MANIFESTS / "base")]
    (lines,) = re.findall(r"```yaml\n(components:\n.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    components = yaml.safe_load(lines.replace("/my-", "/"))["components"]
    overlay["components"] = [str((folder / path).resolve()) for path in components]
    return dict(overlay)


def deployments_in(overlay: Item) -> list[Item]:
    """Return the Deployments that kubectl makes of an overlay."""
    return [made for made in yaml.safe_load_all(kustomize.build(overlay)) if made["kind"] == "Deployment"]


def test_the_prober_is_told_of_the_same_clusters() -> None:
    """With the lines of docs/health.md in the overlay of several clusters, the controller has names and kubeconfigs."""
    deployments = deployments_in(copy_of_clusters("health.md"))
    first, second = (settings_of(made)[1] for made in deployments)
    assert (first.cluster_name, first.cluster_dir) == (second.cluster_name, second.cluster_dir)
    assert [[first.cluster_dir]] * 2 == [[*projected_in(made)] for made in deployments]


def test_what_distributes_has_kubeconfigs_of_its_own() -> None:
    """With the lines of docs/federation.md: the server may not write, and nothing tells of clusters twice."""
    overlay = copy_of_clusters("federation.md")
    with pytest.raises(kustomize.UnbuildableError, match="/spec/template/spec/volumes"):
        kustomize.build(overlay)
    overlay["patches"].pop()
    server, controller = deployments_in(overlay)
    assert [[*projected_in(made)] for made in (server, controller)] == [["/clusters"]] * 2
    first, second = (settings_of(made)[1] for made in (server, controller))
    assert second.federate is not None and first.cluster_name == second.cluster_name
    assert [zone.name for zone in first.federation] == [second.federate.name]


@pytest.mark.parametrize("components", [("podlocators", "without-pods"), ("without-pods", "podlocators")])
def test_components_that_contradict_each_other_are_refused(components: tuple[str, ...]) -> None:
    """Two components that set the client source do not build together."""
    with pytest.raises(kustomize.UnbuildableError, match="/rules/4/resources"):
        kustomize.build(kustomize.kustomization("base", components))


def test_probes_ask_paths_that_are_served() -> None:
    """Each probe's path exists."""
    served = {
        getattr(route, "path", None) for route in application(CollectorRegistry(), ready=dict, loopback=False).routes
    }
    for deployment in objects_of(EVERYTHING, "Deployment"):
        container = container_of(deployment)
        probes = [container[probe]["httpGet"] for probe in ("livenessProbe", "readinessProbe")]
        assert {probe["path"] for probe in probes} <= served
        assert {probe["port"] for probe in probes} <= {port["name"] for port in container["ports"]}


def test_network_policies_let_in_what_the_pods_offer() -> None:
    """Each port of each pod is open: metrics to those who scrape, the others to all. Egress is not limited."""
    policies = [policy["spec"] for policy in objects_of(EVERYTHING, "NetworkPolicy")]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies)
    for deployment in objects_of(EVERYTHING, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        opened = {
            (port["port"], port["protocol"]): "from" in rule
            for policy in policies
            if policy["podSelector"]["matchLabels"].items() <= labels
            for rule in policy["ingress"]
            for port in rule["ports"]
        }
        ports = {(port["name"], port["protocol"]) for port in container_of(deployment)["ports"]}
        assert opened == {port: port[0] == "http" for port in ports}


def test_replicas_look_at_each_other() -> None:
    """``topodns doctor`` in one of them reads what the others say, whoever else may."""
    (policy,) = objects_of("base", "NetworkPolicy")
    rule = {"from": [{"podSelector": policy["spec"]["podSelector"]}], "ports": [{"port": "http", "protocol": "TCP"}]}
    assert rule in policy["spec"]["ingress"]


def test_all_moves_into_another_namespace() -> None:
    """``namespace:`` of an overlay moves the subjects of bindings, and the Service of the webhook, too."""
    moved = kustomize.build(
        kustomize.kustomization("base", ("controller", "health", "podlocators", "metrics", "webhook"), namespace="dns")
    )
    assert not re.search(rf"namespace: {NAMESPACE}\b", moved)
    named = {item["metadata"]["name"] for item in yaml.safe_load_all(moved) if item["kind"] == "Namespace"}
    assert named == {"dns"}


def test_the_overlay_that_the_readme_shows_is_one(everything: ControlPlane) -> None:
    """The overlay on the page builds, and the API server accepts it."""
    (shown,) = re.findall(r"```yaml\n(.*?)```", (MANIFESTS / "README.md").read_text(), re.DOTALL)
    overlay = yaml.safe_load(shown)
    for key in ("resources", "components"):
        overlay[key] = [str((MANIFESTS / "overlays" / "mine" / path).resolve()) for path in overlay[key]]
    built = kustomize.build(overlay)
    assert "registry.example/topodns:0.1.0" in built
    assert "--ttl=10" in built
    everything.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=built)


def test_the_webhook_is_registered_for_what_it_answers() -> None:
    """The Service's port and path lead to it, and slices of either label pass exactly one of its two entries."""
    (configuration,) = objects_of("webhook", HOOKS)
    entries = [dict(entry) for entry in configuration["webhooks"]]
    service = object_of("webhook", "Service", WEBHOOK)
    selectors = [entry.pop("objectSelector") for entry in entries]
    assert len({entry.pop("name") for entry in entries}) == 2 and entries[0] == entries[1]
    (client,) = entries[0]["clientConfig"].values()
    ports = {port["port"]: port["targetPort"] for port in service["spec"]["ports"]}
    (container,) = object_of("webhook", "Deployment", WEBHOOK)["spec"]["template"]["spec"]["containers"]
    listens = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (client["name"], client["namespace"], client["path"]) == (WEBHOOK, NAMESPACE, PATH)
    assert listens[ports[client["port"]]] == HTTPS_PORT
    assert (entries[0]["failurePolicy"], entries[0]["sideEffects"]) == ("Ignore", "None")
    assert entries[0]["timeoutSeconds"] <= 2
    ours, gardeners = OPT_IN_LABELS
    assert selectors == [
        {"matchLabels": {ours: "true"}},
        {
            "matchLabels": {gardeners: "true"},
            "matchExpressions": [{"key": ours, "operator": "NotIn", "values": ["true"]}],
        },
    ]


def test_the_names_that_the_webhook_expects() -> None:
    """Its defaults are the names of the manifests' objects, and the Job has its account, and the command alone."""
    for kind in ("Secret", HOOKS):
        assert object_of("webhook", kind, NAME)
    spec = object_of("webhook", "Job", INSTALLER)["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["containers"][0]["args"]) == (INSTALLER, ["webhook", "--install-ca"])


# -- what the API server says


def each_object(*kinds: str) -> Sequence[Item]:
    """Return the objects of all variants, or those of some kinds; those that are alike once."""
    made = (item for variant in VARIANTS for item in objects_of(variant, *kinds))
    return [*{json.dumps(item): item for item in made}.values()]


def test_the_api_server_takes_every_variant(everything: ControlPlane) -> None:
    """With strict validation, there is no error, and no warning but that which the component for old versions names."""
    text = yaml.safe_dump_all(each_object()).replace(
        "trafficDistribution: PreferClose", "trafficDistribution: PreferSameZone"
    )
    said = everything.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-", stdin=text
    )
    assert said.count("serverside-applied (server dry run)") == len(each_object())


@pytest.mark.parametrize("server_side", [True, False], ids=["server-side", "client-side"])
def test_applying_again_keeps_the_certificate(everything: ControlPlane, server_side: bool) -> None:
    """What the webhook wrote into its Secret and its configuration is not the manifests', which say nothing of it."""
    api, own = everything.api, [object_of("webhook", kind, WEBHOOK) for kind in ("Secret", HOOKS)]
    api.patch(own[0], {"data": {"tls.crt": "eA=="}})
    bundles = [{"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": AUTHORITY} for at in (0, 1)]
    api.request("PATCH", api.path_of(own[1]), bundles, media="application/json-patch+json")
    how = ("--server-side",) if server_side else ()
    everything.kubectl("apply", *how, "-f", "-", stdin=yaml.safe_dump_all(own))
    secret, hooks = (api.request("GET", api.path_of(one)) for one in own)
    assert secret["data"] == {"tls.crt": "eA=="}
    assert [hook["clientConfig"]["caBundle"] for hook in hooks["webhooks"]] == [AUTHORITY] * 2


def pods_of(plane: ControlPlane, deployment: str) -> list[Item]:
    labels = object_of(EVERYTHING, "Deployment", deployment)["spec"]["selector"]["matchLabels"]
    return plane.api.items("Pod", NAMESPACE, labels=",".join(f"{key}={value}" for key, value in labels.items()))


@pytest.mark.parametrize("deployment", PROGRAMS)
def test_pods_are_admitted_where_restricted_is_enforced(everything: ControlPlane, deployment: str) -> None:
    """Pod Security, the quota and the priority class admit all pods."""
    enforced = everything.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}")["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"
    until(lambda: len(pods_of(everything, deployment)) == REPLICAS[deployment], f"all pods of {deployment}")
    assert {pod["spec"]["priority"] for pod in pods_of(everything, deployment)} == {CRITICAL}


def test_with_cert_manager_nobody_may_change_the_configuration() -> None:
    """The patch in docs/hints.md deletes the Job, its account, and all that this account may do."""
    block = re.search(r"```yaml\n(patches:\n.*?)```", (ROOT / "docs" / "hints.md").read_text(), re.DOTALL)
    assert block is not None
    built = kustomize.build(kustomize.kustomization("overlays/webhook", **yaml.safe_load(block[1])))
    assert INSTALLER in kustomize.text_of("webhook") and INSTALLER not in built and WEBHOOK in built


def test_every_pod_can_run_where_restricted_is_enforced(everything: ControlPlane) -> None:
    """Also with kubeconfigs mounted, with what OpenShift wants, and that of the Job."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    for made in each_object("Deployment", "Job"):
        everything.api.request("POST", path, item("Pod", "tried", spec=made["spec"]["template"]["spec"]))


def test_the_quota_counts_these_pods(everything: ControlPlane) -> None:
    """The quota counts pods of the priority class, as providers require it."""

    def used() -> Any:
        quota = everything.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/critical-pods")
        return quota["status"].get("used", {}).get("pods")

    until(lambda: used() == str(ALL), lambda: f"{ALL} pods counted: {used()}")


def test_disruption_budgets_concern_these_pods(everything: ControlPlane) -> None:
    """The real controller counts the pods of each budget."""
    path = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"

    def expected() -> Mapping[str, int]:
        items = everything.api.request("GET", path)["items"]
        return {item["metadata"]["name"]: item.get("status", {}).get("expectedPods", 0) for item in items}

    until(lambda: expected() == REPLICAS, lambda: f"{REPLICAS}: {expected()}")


@pytest.fixture(scope="module")
def running(everything: ControlPlane) -> Iterator[ControlPlane]:
    """Run all pods on a node, with the status that a kubelet would report."""
    api, where = everything.api, node("manifests-node", {})
    until(lambda: len(everyone(everything)) == ALL, f"{ALL} pods")
    pods = everyone(everything)
    api.create(where)
    try:
        for number, pod in enumerate(pods):
            api.run_pod(pod, where["metadata"]["name"], f"10.252.0.{number + 1}", ready=False)
        yield everything
    finally:
        api.delete(*pods, where)  # there is no kubelet to end them


def everyone(plane: ControlPlane) -> list[Item]:
    return [{**pod, "kind": "Pod"} for name in PROGRAMS for pod in pods_of(plane, name)]


@pytest.mark.parametrize(
    ("service", "pods", "ports"),
    [
        pytest.param("topodns", 3, {(1053, "UDP"), (1053, "TCP")}, id="DNS"),
        pytest.param("topodns-webhook", 2, {(8443, "TCP")}, id="webhook"),
        pytest.param("topodns-metrics", 7, {(9153, "TCP")}, id="metrics"),
    ],
)
def test_services_lead_to_the_ports_of_the_pods(
    running: ControlPlane, service: str, pods: int, ports: set[tuple[int, str]]
) -> None:
    """The real controller's slices have DNS at 1053, UDP and TCP, and all metrics ports."""

    def found() -> tuple[int, set[tuple[int, str]]]:
        slices = running.api.items("EndpointSlice", NAMESPACE, labels=f"kubernetes.io/service-name={service}")
        named = {(port["port"], port["protocol"]) for one in slices for port in one["ports"] or ()}
        return sum(len(one["endpoints"] or ()) for one in slices), named

    until(lambda: found() == (pods, ports), lambda: f"{pods} pods at {ports}: {found()}")


def test_alerts_lead_to_a_runbook_of_ones_own() -> None:
    """By the lines of the page, in an overlay; each alert to its section."""
    (lines,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "runbook.md").read_text(), re.DOTALL)
    own = yaml.safe_load(lines)
    built = yaml.safe_load_all(kustomize.build(kustomize.kustomization("base", ("monitoring",), **own)))
    (rule,) = (made for made in built if made["kind"] == "PrometheusRule")
    links = [one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert links == [f"{own['replacements'][0]['sourceValue']}#{one['alert'].lower()}" for one in rules()]
