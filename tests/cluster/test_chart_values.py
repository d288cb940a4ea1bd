# SPDX-License-Identifier: Apache-2.0

"""The values of the Helm chart: which there are, which are refused, and what they do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import pytest
import yaml

from dnsserver import __version__
from dnsserver.programs.from_settings import store_of
from dnsserver.settings.settings import OLD_NAMES, Settings
from dnsserver.settings.values import ClusterSource, FederationSource
from dnsserver.tools.doctor.facts import Right
from dnsserver.tools.doctor.installation import needed_rights
from docs.pages import make_pages
from docs.pages.chart_pages import CHART
from tests.kit import helm
from tests.kit.helm import (
    CASES,
    CLUSTERS,
    EVERYTHING,
    FEDERATED,
    LOCATORS,
    MULTICLUSTER,
    NODES,
    ON,
    RefusedError,
    Values,
    by_name,
    rendered,
)
from tests.kit.kube import Item
from tests.kit.kustomize import CONTROLLER, HOOKS, SERVER, WEBHOOK, container_of, rights_in, settings_of


def test_helm_finds_no_fault() -> None:
    """With all warnings as errors."""
    for values in CASES.values():
        helm.run("lint", "--strict", str(CHART), values=values)


# What somebody writes, and the words of the refusal: each sort of rule in the schema, and each check of the templates.
BAD: Mapping[str, str] = {
    "replicas: 5": "at '': additional properties 'replicas' not allowed",
    "dns: {replicas: two}": "at '/dns/replicas': got string, want integer",
    "image: {tag: 1.1}": "at '/image/tag': got number, want string",
    "image: {repository: 'r:1'}": "at '/image/repository': 'r:1' does not match",
    "controller: {settings: {ttl: 5}}": "at '/controller/settings': additional properties 'ttl' not allowed",
    "dns: {settings: {listen: ['[::]:53']}}": "at '/dns/settings': additional properties 'listen' not allowed",
    "dns: {settings: {ttl: 9999}}": "/ttl': maximum: got 9,999, want 3,600",
    "dns: {settings: {log-queries: 0}}": "/log-queries': minimum: got 0, want 1",
    "dns: {settings: {log-level: loud}}":
        "at '/dns/settings/log-level': value must be one of 'debug', 'info', 'warning', 'error'",
    "dns: {settings: {client-source: pod}}": "at '/dns/settings/client-source': 'pod' does not match pattern",
    "dns: {zoneSpread: Always}": "at '/dns/zoneSpread': value must be one of 'ScheduleAnyway'",
    "dns: {service: {trafficDistribution: Near}}":
        "at '/dns/service/trafficDistribution': value must be one of '', 'PreferSameZone'",
    "dns: {service: {clusterIP: None}}": "at '/dns/service/clusterIP': 'None' does not match",
    "clusters: [{name: a}]": "at '/clusters/0': missing property 'secret'",
    "metrics: {interval: '30'}": "at '/metrics/interval': '30' does not match pattern",
    "commonLabels: {helm.sh/chart: a}": "commonLabels: helm.sh/chart found",
    "quota: {enabled: gke}": "at '/quota/enabled': value must be one of true, false",
    "{quota: {enabled: true}, priorityClassName: high}": 'found with priorityClassName "high", expected',
    "fullnameOverride: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":
        "at '/fullnameOverride': maxLength: got 51, want 50",
    "dns: {service: {type: ExternalName}}":
        "at '/dns/service/type': value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'",
    "webhook: {topologySpreadConstraints: [{maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}":
        "at '/webhook/topologySpreadConstraints/0': missing property 'topologyKey'",
    "metrics: {runbookUrl: docs/runbook.md}": "at '/metrics/runbookUrl': 'docs/runbook.md'",
    "extraObjects: [1]": "at '/extraObjects/0': got number, want string or object",
    "dns: {settings: {state-dir: state}}":
        "dns.settings.state-dir: state found, expected a path that begins with a slash",
    "clusters: [{name: a, secret: a}, {name: a, secret: b}]": "clusters: a found twice, expected each",
    "podLabels: {app.kubernetes.io/name: a}": "podLabels: app.kubernetes.io/name found",
    "dns: {enabled: false}": "dns.enabled, controller.enabled, webhook.enabled: false",
    "dns: {settings: {client-source: podlocators}}":
        "dns.settings.client-source: podlocators found without controller.enabled, expected both",
    "dns: {autoscaling: {enabled: true, maxReplicas: 2}}":
        "dns.autoscaling.maxReplicas: 2 found, expected at least minReplicas: 3",
    "dns: {autoscaling: {enabled: true, queriesPerSecond: 0}}":
        "dns.autoscaling: neither queriesPerSecond nor cpuUtilization found",
    "controller: {enabled: true, federate: {zone: my.example}}":
        "controller.federate.zone: my.example found without controller.federate.clustersSecret, expected the Secret",
    "controller: {enabled: true, federate: {zone: my.example, clustersSecret: clusters}}":
        "controller.federate.zone: my.example found without controller.federate.secret, expected the Secret",
    "controller: {enabled: true, federate: {secret: api}}":
        "controller.federate.secret: api found without controller.federate.zone, expected the zone",
    "controller: {federate: {zone: my.example, secret: api, clustersSecret: clusters}}":
        "controller.federate.zone: my.example found without controller.enabled, expected both",
    "controller: {enabled: true, federate: {zone: my.example, secret: api, clustersSecret: clusters}}":
        "controller.federate.zone: my.example found without dns.settings.cluster-name, expected the name",
    "controller: {federate: {zone: my.example=/x}}":
        "at '/controller/federate/zone': 'my.example=/x' does not match pattern",
    "controller: {settings: {federate: my.example=/x}}":
        "at '/controller/settings': additional properties 'federate' not allowed",
    "metrics: {monitor: PodMonitor}": "metrics.monitor: found without metrics.enabled",
    "metrics: {rules: true}": "metrics.rules: found without metrics.enabled, expected both",
}  # fmt: skip


@pytest.mark.parametrize("written", BAD)
def test_a_bad_value_is_refused_by_its_name(written: str) -> None:
    """The message says where it is, what was found and what is expected."""
    with pytest.raises(RefusedError, match=re.escape(BAD[written])):
        rendered(yaml.safe_load(written))


def made_of(values: Values, kind: str, name: str, *flags: str) -> Item:
    """Return one object that the chart makes of *values*."""
    return by_name(rendered(values, *flags))[kind, name]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param({}, f"topodns:{__version__}", id="version of the chart"),
        pytest.param({"tag": "0.1.0-rc.1"}, "topodns:0.1.0-rc.1", id="tag"),
        pytest.param(
            {"repository": "registry.example:5000/topodns"}, f"registry.example:5000/topodns:{__version__}", id="repo"
        ),
        pytest.param({"tag": "1", "digest": f"sha256:{'a' * 64}"}, f"topodns@sha256:{'a' * 64}", id="digest"),
    ],
)
def test_all_pods_run_the_image(image: Values, expected: str) -> None:
    """One image for all Deployments, and for the Job."""
    objects = rendered({"image": image, "controller": ON, "webhook": ON})
    assert [container_of(made)["image"] for made in objects if made["kind"] in ("Deployment", "Job")] == [expected] * 4


def test_settings_reach_the_command_line() -> None:
    """Of each type, as YAML reads them: a switch, a number, a list, and ``off``."""
    settings = yaml.safe_load("""
        client-option: 65001
        forwarder-service: [kube-system/kube-dns]
        log-level: debug
        log-queries: 100
        max-connections: 1000000
        native: off
        nsid: off
        proxy-protocol: true
        service-selector: "team=shop,!internal"
        state-dir: null
        subnet: ["192.0.2.0/24=topology.kubernetes.io/zone=a", "198.51.100.0/24=rack=1"]
        upstream: [off]
        zonal: topology.example.com/rack
        zone: [cluster.local, in-addr.arpa]
    """)
    deployment = made_of({"dns": {"settings": settings}}, "Deployment", SERVER)
    _, read = settings_of(deployment)
    changed = {field.name for field in fields(Settings) if getattr(read, field.name) != field.default}
    assert changed == {name.replace("-", "_") for name, value in settings.items() if value is not None}
    assert (read.max_connections, read.client_option, read.upstream, read.proxy_protocol) == (
        1_000_000,
        65001,
        (),
        True,
    )
    assert "volumes" not in deployment["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("version", "asked", "expected"),
    [
        ("1.34", "PreferSameZone", "PreferSameZone"),
        ("v1.33.4-gke.1", "PreferSameZone", "PreferClose"),
        ("1.36", "PreferSameNode", "PreferSameNode"),
        ("1.36", "", None),
    ],
)
def test_the_service_prefers_by_the_name_that_kubernetes_knows(version: str, asked: str, expected: str | None) -> None:
    """``PreferSameZone`` is the newer name of ``PreferClose``, which older versions refuse and newer ones warn of."""
    values = {"dns": {"service": {"trafficDistribution": asked}}}
    service = made_of(values, "Service", SERVER, "--kube-version", version)
    assert service["spec"].get("trafficDistribution") == expected


@pytest.mark.parametrize(
    "settings",
    [
        {},
        NODES,
        {**NODES, "pods": "insecure"},
        {**NODES, "pods": "verified"},
        {"client-source": "pods, nodes"},
        LOCATORS,
        FEDERATED,
        MULTICLUSTER,
    ],
    ids=repr,
)
def test_the_server_may_read_what_it_watches_and_nothing_else(settings: Values) -> None:
    """Each kind that its settings make it watch, and what ``doctor`` looks for: without one it would never be ready."""
    objects = by_name(rendered({"dns": {"settings": settings}, "controller": ON}))
    _, read = settings_of(objects["Deployment", SERVER])
    given = {Right(*right) for right in rights_in(objects["ClusterRole", SERVER]["rules"])}
    assert given == {*needed_rights(store_of(read).kinds)}


@pytest.mark.parametrize(
    ("release", "namespace", "values", "message"),
    [
        ("1-dns", "dns", {}, "makes 1-dns-topodns the name of a Service, expected a letter first"),
        ("a.b", "dns", {}, "makes a.b-topodns the name of a Service, expected a letter first, and then letters"),
        ("topodns", "kube-system", {"quota": ON}, "quota.enabled: true found in namespace kube-system, expected a"),
    ],
)
def test_a_place_that_does_not_suit_is_refused(release: str, namespace: str, values: Values, message: str) -> None:
    """Before anything is installed, with the value that fixes it."""
    with pytest.raises(RefusedError, match=re.escape(message)):
        rendered(values, release=release, namespace=namespace)
    fixed = {"fullnameOverride": "dns"} if not values else {"quota": {"enabled": False}}
    assert rendered(fixed, release=release, namespace=namespace)


@pytest.mark.parametrize("release", ["1-dns", "a.b"])
def test_what_has_no_service_may_have_another_name(release: str) -> None:
    """The controller alone: Deployments and accounts take what no Service takes."""
    objects = rendered({"dns": {"enabled": False}, "controller": ON}, release=release)
    assert "Service" not in {made["kind"] for made in objects}


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_notes_name_what_takes_the_place_of_an_old_value(old: str, new: str) -> None:
    """It counts as before."""
    values = {"dns": {"settings": {old: ["shop"]}}}
    printed = helm.run("install", "topodns", str(CHART), "--dry-run=client", values=values)
    assert f"--{old}=shop" in printed
    assert f"dns.settings.{old} is called dns.settings.{new.replace('_', '-')} now" in printed


GKE = ("--kube-version", "v1.34.1-gke.1829001")


@pytest.mark.parametrize(
    ("values", "namespace", "flags", "there"),
    [
        ({}, "topodns", (), False),
        ({}, "topodns", GKE, True),
        ({}, "kube-system", GKE, False),
        ({"quota": {"enabled": True}}, "topodns", (), True),
        ({"quota": {"enabled": False}}, "topodns", GKE, False),
        ({"priorityClassName": ""}, "topodns", GKE, False),
    ],
)
def test_a_quota_is_only_where_pods_need_one(
    values: Values, namespace: str, flags: tuple[str, ...], there: bool
) -> None:
    """Elsewhere it would count the pods of others. GKE has one in kube-system, and asks for one by the class alone."""
    objects = rendered(values, *flags, namespace=namespace)
    assert any(made["kind"] == "ResourceQuota" for made in objects) == there


IS_OPENSHIFT = ("--api-versions", "security.openshift.io/v1")
# The annotation openshift.io/sa.scc.uid-range of a namespace, say "1000660000/10000". Users and fsGroup must be in it.
USERS = range(1_000_660_000, 1_000_670_000)
VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def refused(spec: Item) -> Iterator[str]:
    """Yield what OpenShift's SecurityContextConstraints ``restricted-v2`` refuse of the spec of a pod."""
    yield from (f"{name}: {spec[name]}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume: {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    for context in (spec.get("securityContext", {}), *(each.get("securityContext", {}) for each in containers)):
        for name in ("runAsUser", "fsGroup"):
            if context.get(name, USERS[0]) not in USERS:
                yield f"{name}: {context[name]}"
        yield from (f"{name}: true" for name in ("privileged", "allowPrivilegeEscalation") if context.get(name))
        if added := {*context.get("capabilities", {}).get("add", ())} - {"NET_BIND_SERVICE"}:
            yield f"capabilities: {sorted(added)}"
        if (profile := context.get("seccompProfile", {}).get("type", "RuntimeDefault")) != "RuntimeDefault":
            yield f"seccompProfile: {profile}"
        if "seLinuxOptions" in context:
            yield f"seLinuxOptions: {context['seLinuxOptions']}"
    for container in containers:
        yield from (f"hostPort: {port['hostPort']}" for port in container.get("ports", ()) if "hostPort" in port)


@pytest.mark.parametrize("case", CASES)
def test_openshift_admits_all_pods(case: str) -> None:
    """By ``restricted-v2``, told of the cluster by its API or by a value; and they have what Pod Security wants."""
    for values, flags in ((CASES[case], IS_OPENSHIFT), ({**CASES[case], "openshift": True}, ())):
        specs = pod_specs(rendered(values, *flags, tests=True))
        assert len(specs) > 1 and [[*refused(spec)] for spec in specs] == [[]] * len(specs)
        assert all(spec["securityContext"]["runAsNonRoot"] for spec in specs)


def test_users_are_ours_elsewhere() -> None:
    """Where nothing tells of OpenShift, which would refuse them."""
    (spec,) = pod_specs(rendered({}))
    assert [*refused(spec)] == ["runAsUser: 65532", "fsGroup: 65532"]


@pytest.mark.parametrize("flags", [(), IS_OPENSHIFT])
def test_users_are_those_of_the_values(flags: tuple[str, ...]) -> None:
    """Where OpenShift does not choose them, or shall not."""
    values = {**EVERYTHING, "openshift": False, "podSecurityContext": {"runAsUser": 7, "fsGroup": None}}
    values["securityContext"] = {"readOnlyRootFilesystem": False}
    for spec in pod_specs(rendered(values, *flags, tests=True)):
        assert (spec["securityContext"]["runAsUser"], spec["securityContext"].get("fsGroup")) == (7, None)
        assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False


def pod_specs(objects: Sequence[Item]) -> list[Item]:
    """Return the specs of all pods that objects are, or make."""
    made = [one["spec"]["template"] for one in objects if one["kind"] in ("Deployment", "Job")]
    return [pod["spec"] for pod in (*made, *(one for one in objects if one["kind"] == "Pod"))]


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("topodns", {}, "topodns"),
        ("edge", {}, "edge-topodns"),
        ("edge", {"nameOverride": "near"}, "edge-near"),
        ("near-1", {"nameOverride": "near"}, "near-1"),
        ("edge", {"nameOverride": "near", "fullnameOverride": "dns"}, "dns"),
    ],
)
def test_names_can_be_chosen(release: str, values: Values, name: str) -> None:
    """All objects have them; the labels by which pods are found stay, as Kubernetes wants of a Deployment."""
    shared = {"crds": {"enabled": False}, "controller": ON, "metrics": ON, "webhook": ON}
    objects = by_name(rendered({**values, **shared}, release=release))
    assert [key for key in objects if not key[1].startswith(name)] == []
    for component, suffix in (("dns", ""), ("controller", "-controller"), ("webhook", "-webhook")):
        deployment = objects["Deployment", name + suffix]["spec"]
        assert deployment["selector"]["matchLabels"] == {
            "app.kubernetes.io/name": "topodns",
            "app.kubernetes.io/instance": release,
            "app.kubernetes.io/component": component,
        }
        assert deployment["template"]["spec"]["serviceAccountName"] == name + suffix


def test_common_labels_are_everywhere_but_in_selectors() -> None:
    """On all objects, those of the test too, and all pods, of which ``podLabels`` may say otherwise."""
    values = {**EVERYTHING, "commonLabels": {"team": "network", "cost": "1"}, "podLabels": {"cost": "2"}}
    objects = rendered(values, tests=True)
    for made in objects:
        assert made["metadata"]["labels"].items() >= {"team": "network", "cost": "1"}.items() or made["kind"] == "Pod"
        assert "team" not in json.dumps(made["spec"].get("selector") if "spec" in made else None)
    templates = [made["spec"]["template"] for made in objects if made["kind"] in ("Deployment", "Job")]
    for pod in (*templates, *(made for made in objects if made["kind"] == "Pod")):
        assert pod["metadata"]["labels"].items() >= {"team": "network", "cost": "2"}.items()


def test_objects_of_users_are_templates() -> None:
    """As YAML or as text."""
    name = '{{ include "topodns.fullname" . }}-more'
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    text = 'kind: Secret\nmetadata: {name: x, namespace: "{{ .Release.Namespace }}"}\n'
    objects = by_name(rendered({"extraObjects": [config_map, text]}, release="edge", namespace="dns"))
    assert ("ConfigMap", "edge-topodns-more") in objects
    assert objects["Secret", "x"]["metadata"]["namespace"] == "dns"


def test_each_component_has_its_place() -> None:
    """Its own values come before those of all pods; the Job is where the webhook is, and the test where DNS is."""
    values = {
        **EVERYTHING,
        "nodeSelector": {"of": "all"},
        "tolerations": [{"key": "all"}],
        "affinity": {"podAffinity": {}},
        "webhook": {**ON, "nodeSelector": {"of": "webhook"}, "affinity": {"podAntiAffinity": {}}},
        "controller": {**ON, "tolerations": [{"key": "controller"}]},
    }
    values["dns"] = {**EVERYTHING["dns"], "nodeSelector": {"of": "dns"}}
    objects = rendered(values, tests=True)
    found = {
        spec["containers"][0]["name"]: (
            spec["nodeSelector"]["of"], spec["tolerations"][0]["key"], *spec["affinity"],
        )
        for spec in pod_specs(objects)
    }  # fmt: skip
    assert found == {
        "topodns": ("dns", "all", "podAffinity"),
        "doctor": ("dns", "all", "podAffinity"),
        "controller": ("all", "controller", "podAffinity"),
        "webhook": ("webhook", "all", "podAntiAffinity"),
        "webhook-ca": ("webhook", "all", "podAntiAffinity"),
    }


def test_pods_are_spread_as_one_says() -> None:
    """In place of what the chart says; a constraint that names no pods is about those of the Deployment."""
    others = {**helm.SPREAD, "labelSelector": {"matchLabels": {"app": "other"}}}
    deployment = made_of({"dns": {"topologySpreadConstraints": [helm.SPREAD, others]}}, "Deployment", SERVER)["spec"]
    own = {**helm.SPREAD, "labelSelector": deployment["selector"]}
    assert deployment["template"]["spec"]["topologySpreadConstraints"] == [own, others]


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ({}, (None, None)),
        ({"type": "LoadBalancer"}, ("LoadBalancer", "Local")),
        ({"type": "NodePort", "externalTrafficPolicy": "Cluster"}, ("NodePort", "Cluster")),
    ],
)
def test_the_service_can_be_reached_from_outside(service: Values, expected: tuple[str | None, str | None]) -> None:
    """By default topodns then sees who asks."""
    spec = made_of({"dns": {"service": service}}, "Service", SERVER)["spec"]
    assert (spec.get("type"), spec.get("externalTrafficPolicy")) == expected


def test_alerts_lead_to_a_runbook_of_ones_own() -> None:
    """Each to its section there; without the value, to that of the project."""
    for url in ("", "https://wiki.example/topodns"):
        values = {"metrics": {**ON, "rules": True, "runbookUrl": url}}
        (group,) = made_of(values, "PrometheusRule", SERVER)["spec"]["groups"]
        page = url or make_pages.rules()[0]["annotations"]["runbook_url"].partition("#")[0]
        links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"]}
        assert links == {alert: f"{page}#{alert.lower()}" for alert in links}


@pytest.mark.parametrize(
    "values", [{"dns": {"enabled": False}, "webhook": ON}, {"dns": {"snapshot": {"configMap": "snapshot"}}}]
)
def test_what_doctor_cannot_examine_is_not_tested(values: Values) -> None:
    """Without a server, or with one that answers from a dump, there is no test, and no right for it."""
    assert "helm.sh/hook" not in helm.run("template", "topodns", str(CHART), values=values)


def test_rights_of_the_test_change_nothing() -> None:
    """They are for the namespaces of topodns and of CoreDNS. ``test_chart_live`` shows that they end with the test."""
    objects = helm.of_the_test(EVERYTHING)
    rights = {right for made in objects for right in rights_in(made.get("rules", ()))}
    assert {right for right in rights if right[2] not in ("get", "list")} == {
        ("authorization.k8s.io", "subjectaccessreviews", "create")
    }
    where = {made["metadata"].get("namespace") for made in objects if made["kind"] == "RoleBinding"}
    assert where == {"topodns", "kube-system"}


def test_kubernetes_that_is_too_old_is_refused() -> None:
    """The message says which version is needed."""
    with pytest.raises(RefusedError, match=re.escape("chart requires kubeVersion: >=1.31.0-0")):
        rendered({}, "--kube-version", "1.30")


def test_the_prober_is_told_of_the_same_clusters() -> None:
    """With ``health``, the controller has the names and kubeconfigs that the server has."""
    objects = by_name(rendered(EVERYTHING))
    server, controller = (objects["Deployment", name] for name in (SERVER, CONTROLLER))
    first, second = (settings_of(made)[1] for made in (server, controller))
    assert (
        (first.cluster_name, first.cluster_dir) == (second.cluster_name, second.cluster_dir) == ("europe", "/clusters")
    )
    one, other = (made["spec"]["template"]["spec"]["volumes"][-2:] for made in (server, controller))
    assert one == other
    sources = [source["secret"] for source in one[0]["projected"]["sources"]]
    assert [item["path"] for source in sources for item in source["items"]] == ["us-central", "us-east"]


def test_a_context_is_named_by_a_flag() -> None:
    """Its kubeconfig is hidden in the folder, which has all others; a Secret of many clusters is mounted whole."""
    clusters = [
        {"name": "west", "secret": "west", "context": "admin"},
        {"name": "south", "secret": "south", "key": "k"},
    ]
    made = by_name(rendered({"clusters": clusters, "clustersSecret": "all"}))["Deployment", SERVER]
    _, settings = settings_of(made)
    assert (settings.cluster_dir, settings.cluster) == (
        "/clusters", (ClusterSource("west", "/clusters/.contexts/west", "admin"),)
    )  # fmt: skip
    (volume,) = (one for one in made["spec"]["template"]["spec"]["volumes"] if one["name"] == "clusters")
    assert [source["secret"] for source in volume["projected"]["sources"]] == [
        {"name": "all"},
        {"name": "west", "items": [{"key": "kubeconfig", "path": ".contexts/west"}]},
        {"name": "south", "items": [{"key": "k", "path": "south"}]},
    ]


def test_what_distributes_has_kubeconfigs_of_its_own() -> None:
    """Its Secrets, and no other; a server beside it reads by those of ``clustersSecret`` and ``clusters``."""
    federate = {"zone": "my.example", "secret": "api", "key": "config", "context": "ops", "clustersSecret": "copies"}
    controller = {**ON, "settings": {"health": True, "federate-selector": "tier=web"}, "federate": federate}
    values = {"clustersSecret": "all", "clusters": CLUSTERS, "dns": {"settings": FEDERATED}, "controller": controller}
    objects = by_name(rendered(values))
    made = objects["Deployment", CONTROLLER]
    _, settings = settings_of(made)
    assert settings.federate == FederationSource("my.example", "/federation/kubeconfig", "ops")
    assert (settings.cluster_name, settings.cluster_dir, settings.cluster) == ("europe", "/clusters", ())
    assert settings.federate_selector is not None and settings.health
    volumes = {one["name"]: one for one in made["spec"]["template"]["spec"]["volumes"]}
    assert volumes["federation"]["secret"]["secretName"] == "api"
    assert volumes["federation"]["secret"]["items"] == [{"key": "config", "path": "kubeconfig"}]
    assert volumes["clusters"]["projected"]["sources"] == [{"secret": {"name": "copies"}}]
    assert {mount["name"] for mount in container_of(made)["volumeMounts"]} == volumes.keys()
    assert not {"api", "copies"} & {*re.findall(r"\w+", yaml.safe_dump(objects["Deployment", SERVER]))}


def test_a_certificate_of_another_needs_no_rights() -> None:
    """The webhook reads it from the Secret of that name, and may neither read Secrets nor write its configuration."""
    objects = by_name(rendered(CASES["certificate of another"]))
    deployment = objects["Deployment", WEBHOOK]
    _, settings = settings_of(deployment)
    mounts = {mount["name"]: mount["mountPath"] for mount in container_of(deployment)["volumeMounts"]}
    (volume,) = (one for one in deployment["spec"]["template"]["spec"]["volumes"] if "secret" in one)
    assert volume["secret"]["secretName"] == "tls"
    assert {settings.tls_cert, settings.tls_key} == {f"{mounts[volume['name']]}/tls.{part}" for part in ("crt", "key")}
    assert ("Secret", WEBHOOK) not in objects
    named = {name for made in objects.values() for rule in made.get("rules", ()) for name in rule.get("resources", ())}
    assert not named & {"secrets", "mutatingwebhookconfigurations"}
    assert objects[HOOKS, WEBHOOK]["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "topodns/tls"}


def test_the_autoscaler_alone_says_how_many_pods() -> None:
    """An upgrade does not set the number back."""
    assert "replicas" not in made_of(EVERYTHING, "Deployment", SERVER)["spec"]
    scaler = made_of(EVERYTHING, "HorizontalPodAutoscaler", SERVER)["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": SERVER}
    assert [metric["type"] for metric in scaler["metrics"]] == ["Pods", "Resource"]


@pytest.mark.parametrize("dns", [True, False])
def test_nobody_misses_a_server_that_is_not_wanted(dns: bool) -> None:
    """Of the alerts, TopodnsAbsent is for those who have a server."""
    values = {"dns": {"enabled": dns}, "webhook": ON, "metrics": {**ON, "rules": True}}
    (group,) = made_of(values, "PrometheusRule", SERVER)["spec"]["groups"]
    wanted = [rule["alert"] for rule in make_pages.rules() if dns or rule["alert"] != "TopodnsAbsent"]
    assert [rule["alert"] for rule in group["rules"]] == wanted


def test_two_releases_live_side_by_side() -> None:
    """No object of one has the name of one of the other, and each names its own Lease, Secret and hooks."""
    parts = {"controller": ON, "webhook": ON, "metrics": ON}
    first = by_name(rendered(parts))
    second = by_name(rendered({**parts, "crds": {"enabled": False}}, release="edge", namespace="edge"))
    assert not first.keys() & second.keys()
    _, webhook = settings_of(second["Deployment", "edge-topodns-webhook"])
    assert (webhook.lease, webhook.tls_secret) == (("edge", "edge-topodns-webhook"),) * 2
    assert webhook.webhook_configuration == "edge-topodns-webhook"
    _, controller = settings_of(second["Deployment", "edge-topodns-controller"])
    assert controller.lease == ("edge", "edge-topodns-controller")
    named = {
        name for role in second.values() for rule in role.get("rules", ()) for name in rule.get("resourceNames", ())
    }
    assert named == {"edge-topodns-webhook", "edge-topodns-controller"}
    text = yaml.safe_dump_all(second.values())
    assert "namespace: topodns" not in text and "app.kubernetes.io/instance: topodns" not in text
