"""The Helm chart: what the real helm makes of it is what kustomize builds, and a real API server takes it."""

from __future__ import annotations

import base64
import copy
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnsserver import __version__
from dnsserver.settings.fields import Settings
from locator.cluster.certificates.issuing import issue
from tests import chart_pages, helm, kustomize
from tests.api_objects import item, namespace
from tests.chart_pages import PAGE, SCHEMA, VALUES
from tests.consoles import entries
from tests.helm import CHART, RefusedError, rendered
from tests.kube import ApiError, ControlPlane, Item, monitoring_api
from tests.kustomize import CONTROLLER, NAMESPACE, SERVER, VARIANTS, WEBHOOK, container_of, settings_of
from tests.this_machine import ROOT
from tests.waiting import until

Values = dict[str, Any]
HOOKS = "MutatingWebhookConfiguration"
AUTHORITY = base64.b64encode(issue(["x"], 1_700_000_000, 1e9)[0]).decode()

NODES = {"client-source": "nodes"}
MULTICLUSTER = {"multicluster": ["clusterset.local"]}
FEDERATED = {"cluster-name": "europe", "federation": ["fed.example.com"]}
LOCATORS = {"client-source": "podlocators"}
CLUSTERS = [{"name": name, "secret": f"cluster-{name}"} for name in ("us-central", "us-east")]
ON = {"enabled": True}
HEALTH = {"controller": {**ON, "settings": {"health": True}}}
WEBHOOK_ALONE = {"dns": {"enabled": False}, "webhook": ON}
SNAPSHOT = {"dns": {"snapshot": {"configMap": "snapshot"}}}

# The values that make of the chart what each variant of the kustomize manifests is.
SAME: Mapping[str, Values] = {
    "base": {},
    "base with metrics": {"metrics": ON},
    "base without pods": {"dns": {"settings": NODES}},
    "base with monitoring": {"metrics": {**ON, "monitor": "PodMonitor", "rules": True, "dashboard": True}},
    "base with admission": {"admission": ON},
    "base with controller": {"controller": ON},
    "base with health": HEALTH,
    "base with multicluster": {"dns": {"settings": MULTICLUSTER}},
    "base with webhook": {"webhook": ON},
    "base with podlocators": {"controller": ON, "dns": {"settings": LOCATORS}},
    "base with podlocators and metrics": {"controller": ON, "dns": {"settings": LOCATORS}, "metrics": ON},
    "coredns-stub": {},
    "coredns-stub with all": {
        **HEALTH,
        "dns": {"settings": {**MULTICLUSTER, **LOCATORS}},
        "metrics": ON,
        "webhook": ON,
    },
    "coredns-stub without pods": {"dns": {"settings": NODES}, "metrics": ON, "admission": ON},
    "nodelocal": {"dns": {"settings": NODES}},
    "nodelocal with metrics": {"dns": {"settings": NODES}, "metrics": ON},
    "clusters": {"clusters": CLUSTERS, "dns": {"settings": FEDERATED}},
    "clusters with multicluster": {"clusters": CLUSTERS, "dns": {"settings": {**FEDERATED, **MULTICLUSTER}}},
    "clusters without pods": {
        "clusters": CLUSTERS,
        "dns": {"settings": {**FEDERATED, **NODES}},
        "metrics": ON,
        "admission": ON,
    },
    "clusters with podlocators": {
        "clusters": CLUSTERS,
        "dns": {"settings": {**FEDERATED, **LOCATORS}},
        "controller": ON,
        "webhook": ON,
    },
    "webhook": WEBHOOK_ALONE,
    "webhook with metrics": {**WEBHOOK_ALONE, "metrics": ON, "admission": ON},
    "snapshot": SNAPSHOT,
    "snapshot with metrics": {**SNAPSHOT, "metrics": ON},
}
EVERYTHING: Values = {
    **HEALTH,
    "admission": ON,
    "clusters": CLUSTERS,
    "dns": {"settings": {**FEDERATED, **MULTICLUSTER}, "autoscaling": {**ON, "cpuUtilization": 80}},
    "metrics": {
        **ON,
        "monitor": "ServiceMonitor",
        "interval": "15s",
        "rules": True,
        "labels": {"release": "prometheus"},
    },
    "webhook": ON,
}
MORE: Mapping[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "PodMonitor": {"metrics": {**ON, "monitor": "PodMonitor"}},
    "certificate of another": {
        "webhook": {
            **ON,
            "certificate": {"secret": "tls", "annotations": {"cert-manager.io/inject-ca-from": "topodns/tls"}},
        }
    },
    "pods as one likes": {
        "affinity": {"nodeAffinity": {}},
        "dns": {"service": {"clusterIP": "10.96.0.53", "annotations": {"a": "b"}}, "zoneSpread": "DoNotSchedule"},
        "image": {"digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "priorityClassName": "",
        "tolerations": [{"operator": "Exists"}],
    },
    "nothing around": {"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}},
}


# -- equal to the kustomize manifests


def without_helms_labels(made: Item) -> None:
    """Helm's objects say which release and version they belong to, and Services select the pods of their release."""

    def strip(value: Any) -> None:
        if isinstance(value, dict):
            for label in ("instance", "managed-by", "version"):
                value.pop(f"app.kubernetes.io/{label}", None)
            value.pop("helm.sh/chart", None)
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            strip(part)

    strip(made)


def without_policy_to_keep(made: Item) -> None:
    """CRDs outlive the release; kubectl delete -k takes them along."""
    if made["kind"] == "CustomResourceDefinition":
        assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}


def without_pull_policy(made: Item) -> None:
    """It is a value of the chart; without it, Kubernetes pulls an image with a tag if it is not present."""
    if made["kind"] == "Deployment":
        for container in made["spec"]["template"]["spec"]["containers"]:
            assert container.pop("imagePullPolicy") == "IfNotPresent"


def without_names_of_the_release(made: Item) -> None:
    """The chart says the names of the Lease, the Secret and the webhook configuration, which the release gives."""
    if made["kind"] == "Deployment":
        defaults = {
            f"--lease={NAMESPACE}/{made['metadata']['name']}",
            f"--tls-secret={NAMESPACE}/{WEBHOOK}",
            f"--webhook-configuration={WEBHOOK}",
        }
        container = made["spec"]["template"]["spec"]["containers"][0]
        container["args"] = [flag for flag in container["args"] if flag not in defaults]


def with_the_quotas_name(made: Item) -> None:
    """Two releases in a namespace have two quotas."""
    if made["kind"] == "ResourceQuota":
        assert made["metadata"]["name"] == "topodns-critical-pods"
        made["metadata"]["name"] = "critical-pods"


def with_the_older_name(made: Item) -> None:
    """The chart knows the version of Kubernetes, and kustomize does not; so it uses the name that 1.31 knows, too."""
    if made["kind"] == "Service" and made["spec"].get("trafficDistribution") == "PreferSameZone":
        made["spec"]["trafficDistribution"] = "PreferClose"


MEANT = (
    without_helms_labels,
    without_policy_to_keep,
    without_pull_policy,
    without_names_of_the_release,
    with_the_quotas_name,
    with_the_older_name,
)
LEFT_OUT = {"Namespace"}  # Helm is told of one, and creates it with --create-namespace


def comparable(made: Item) -> Item:
    """Return an object in which the order of flags, rules and verbs, and the line breaks of texts, do not count."""
    made = json.loads(re.sub(r"(\\n| )+", " ", json.dumps(made)))
    if made["kind"] == "Deployment":
        command, settings = settings_of(made)
        made["spec"]["template"]["spec"]["containers"][0]["args"] = [command, asdict(settings)]
    if "rules" in made and "Role" in made["kind"]:
        made["rules"] = sorted(
            (group, resource, *rule.get("resourceNames", ()), verb)
            for rule in made["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        )
    return made


def by_name(objects: Sequence[Item]) -> dict[tuple[str, str], Item]:
    found = {(made["kind"], made["metadata"]["name"]): made for made in objects}
    assert len(found) == len(objects)
    return found


def test_every_variant_has_its_values() -> None:
    """All but the one that installs no topodns: ``remote``."""
    assert SAME.keys() == VARIANTS.keys() - {"remote"}


@pytest.mark.parametrize("variant", SAME)
def test_the_chart_makes_what_kustomize_builds(variant: str) -> None:
    """Object for object and field for field, but for what ``MEANT`` and ``LEFT_OUT`` say."""
    objects = rendered(SAME[variant])
    for made in objects:
        for meant in MEANT:
            meant(made)
    built = [made for made in kustomize.objects_of(variant) if made["kind"] not in LEFT_OUT]
    found, expected = by_name([*map(comparable, objects)]), by_name([*map(comparable, built)])
    assert found.keys() == expected.keys()
    for name, made in found.items():
        assert made == expected[name], name


def test_the_page_says_the_same_values() -> None:
    """As the table that makes what kustomize builds, for each overlay and component."""
    rows = re.findall(r"^\| (`(?:overlays|components)/.*`) \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
    said = {name: yaml.safe_load(values) for names, values in rows for name in re.findall(r"`(.*?)`", names)}
    folders = [path for part in ("overlays", "components") for path in (kustomize.MANIFESTS / part).iterdir()]
    assert said.keys() == {f"{path.parent.name}/{path.name}" for path in folders}
    del said["overlays/clusters"]  # its row says in words which values
    for name, values in said.items():
        folder, _, part = name.partition("/")
        variant = part if folder == "overlays" else f"base with {part}"
        assert values == SAME[variant.replace("with without-pods", "without pods")], name


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: meant.__name__)
def test_each_difference_is_there(meant: Callable[[Item], None]) -> None:
    """No row of ``MEANT`` hides a difference that nobody knows of any more."""
    objects = rendered(SAME["coredns-stub with all"])
    before = copy.deepcopy(objects)
    for made in objects:
        meant(made)
    assert objects != before


# -- values


def test_helm_finds_no_fault() -> None:
    """With all warnings as errors."""
    for values in MORE.values():
        helm.run("lint", "--strict", str(CHART), values=values)


def test_the_schema_and_the_page_are_renewed() -> None:
    """They say what the flags and the values are."""
    assert SCHEMA.read_text() == chart_pages.schema(), "renew it: make docs"
    assert PAGE.read_text() == chart_pages.page(), "renew it: make docs"


def test_the_schema_has_the_values_and_no_others() -> None:
    """Each value has a default, but for those that begin empty; the schema lets in no key beside them."""

    def compare(schema: Item, values: Values, path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() == values.keys() | ({"global"} if not path else set()), path
        for name, value in values.items():
            compare(schema["properties"][name], value, f"{path}.{name}")

    compare(json.loads(SCHEMA.read_text()), yaml.safe_load(VALUES.read_text()), "")


def test_the_requests_are_those_that_were_measured() -> None:
    """The page about sizes says for which cluster."""
    (said,) = re.findall(
        r"Each requests (\w+) CPU and (\w+) of memory, with a limit of (\w+)\.",
        (ROOT / "docs" / "sizing.md").read_text(),
    )
    resources = yaml.safe_load(VALUES.read_text())["dns"]["resources"]
    assert said == (*(resources["requests"][name] for name in ("cpu", "memory")), resources["limits"]["memory"])


def test_every_value_is_commented_on_and_read() -> None:
    """So each is in the table of the page, and in a template."""

    def leaves(values: Values, path: str) -> Iterator[str]:
        for name, value in values.items():
            yield from leaves(value, f"{path}{name}.") if isinstance(value, dict) and value else [f"{path}{name}"]

    rows = [name for name, _, _ in chart_pages.values_rows()]
    for leaf in leaves(yaml.safe_load(VALUES.read_text()), ""):
        assert any(leaf == row or leaf.startswith(f"{row}.") for row in rows), leaf
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for row in rows:
        assert re.search(rf"\.{row.rpartition('.')[2]}\b", templates), row


BAD: Mapping[str, tuple[Values, str]] = {
    "unknown": ({"replicas": 5}, "at '': additional properties 'replicas' not allowed"),
    "unknown below": ({"dns": {"replica": 5}}, "at '/dns': additional properties 'replica' not allowed"),
    "text for a number": ({"dns": {"replicas": "two"}}, "at '/dns/replicas': got string, want integer"),
    "text for a switch": ({"webhook": {"enabled": "yes"}}, "at '/webhook/enabled': got string, want boolean"),
    "switch for a section": ({"controller": True}, "at '/controller': got boolean, want object"),
    "number as tag": ({"image": {"tag": 1.1}}, "at '/image/tag': got number, want string"),
    "tag in the repository": ({"image": {"repository": "r:1"}}, "at '/image/repository': 'r:1' does not match"),
    "digest": ({"image": {"digest": "abc"}}, "at '/image/digest': 'abc' does not match pattern"),
    "pull policy": ({"image": {"pullPolicy": "Maybe"}}, "at '/image/pullPolicy': value must be one of 'IfNotPresent'"),
    "unknown flag": ({"dns": {"settings": {"tll": 5}}}, "at '/dns/settings': additional properties 'tll' not allowed"),
    "flag of another command": (
        {"controller": {"settings": {"ttl": 5}}},
        "at '/controller/settings': additional properties 'ttl' not allowed",
    ),
    "flag that the chart gives": (
        {"dns": {"settings": {"listen": ["[::]:53"]}}},
        "at '/dns/settings': additional properties 'listen' not allowed",
    ),
    "number out of range": ({"dns": {"settings": {"ttl": 9999}}}, "/ttl': maximum: got 9,999, want 3,600"),
    "word of a setting": (
        {"dns": {"settings": {"log-level": "loud"}}},
        "at '/dns/settings/log-level': value must be one of 'debug', 'info', 'warning', 'error'",
    ),
    "no list": ({"dns": {"settings": {"zone": "cluster.local"}}}, "at '/dns/settings/zone': got string, want array"),
    "empty list": ({"dns": {"settings": {"zone": []}}}, "at '/dns/settings/zone': minItems: got 0, want 1"),
    "client source": (
        {"dns": {"settings": {"client-source": "pod"}}},
        "at '/dns/settings/client-source': 'pod' does not match pattern",
    ),
    "spread": ({"dns": {"zoneSpread": "Always"}}, "at '/dns/zoneSpread': value must be one of 'ScheduleAnyway'"),
    "traffic distribution": (
        {"dns": {"service": {"trafficDistribution": "Near"}}},
        "at '/dns/service/trafficDistribution': value must be one of '', 'PreferSameZone'",
    ),
    "cluster IP": ({"dns": {"service": {"clusterIP": "None"}}}, "at '/dns/service/clusterIP': 'None' does not match"),
    "resources": ({"dns": {"resources": {"cpu": 1}}}, "at '/dns/resources': additional properties 'cpu' not allowed"),
    "cluster without Secret": ({"clusters": [{"name": "a"}]}, "at '/clusters/0': missing property 'secret'"),
    "name of a cluster": ({"clusters": [{"name": "A", "secret": "a"}]}, "at '/clusters/0/name': 'A' does not match"),
    "nobody scrapes": ({"metrics": {**ON, "scrapers": []}}, "at '/metrics/scrapers': minItems: got 0, want 1"),
    "monitor": ({"metrics": {**ON, "monitor": "Probe"}}, "at '/metrics/monitor': value must be one of '', 'Pod"),
    "interval": ({"metrics": {"interval": "30"}}, "at '/metrics/interval': '30' does not match pattern"),
    "empty quota": ({"quota": {"pods": 0}}, "at '/quota/pods': minimum: got 0, want 1"),
    "number as label": ({"podLabels": {"a": 1}}, "at '/podLabels/a': got number, want string"),
    "label of the chart": ({"podLabels": {"app.kubernetes.io/name": "a"}}, "podLabels: app.kubernetes.io/name found"),
    "nothing to install": ({"dns": {"enabled": False}}, "dns.enabled, controller.enabled, webhook.enabled: false"),
    "nobody writes locators": (
        {"dns": {"settings": LOCATORS}},
        "dns.settings.client-source: podlocators found without controller.enabled, expected both",
    ),
    "less at most than at least": (
        {"dns": {"autoscaling": {**ON, "maxReplicas": 2}}},
        "dns.autoscaling.maxReplicas: 2 found, expected at least minReplicas: 3",
    ),
    "autoscaling by nothing": (
        {"dns": {"autoscaling": {**ON, "queriesPerSecond": 0}}},
        "dns.autoscaling: neither queriesPerSecond nor cpuUtilization found",
    ),
    "monitor of nothing": ({"metrics": {"monitor": "PodMonitor"}}, "metrics.monitor: found without metrics.enabled"),
    "rules for nothing": ({"metrics": {"rules": True}}, "metrics.rules: found without metrics.enabled, expected both"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_refused_by_its_name(case: str) -> None:
    """The message says where it is, what was found and what is expected."""
    values, message = BAD[case]
    with pytest.raises(RefusedError, match=re.escape(message)):
        rendered(values)


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
    """One image for all Deployments."""
    objects = rendered({"image": image, "controller": ON, "webhook": ON})
    assert [container_of(made)["image"] for made in objects if made["kind"] == "Deployment"] == [expected] * 3


def test_settings_reach_the_command_line() -> None:
    """Of each type, as YAML reads them: a switch, a number, a list, and ``off``."""
    settings = yaml.safe_load("""
        client-option: 65001
        forwarder-service: [kube-system/kube-dns]
        log-level: debug
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
        ("1.36", "PreferSameZone", "PreferSameZone"),
        ("1.34", "PreferSameZone", "PreferSameZone"),
        ("v1.33.4-gke.1", "PreferSameZone", "PreferClose"),
        ("1.31", "PreferSameZone", "PreferClose"),
        ("1.36", "PreferSameNode", "PreferSameNode"),
        ("1.36", "", None),
    ],
)
def test_the_service_prefers_by_the_name_that_kubernetes_knows(version: str, asked: str, expected: str | None) -> None:
    """``PreferSameZone`` is the newer name of ``PreferClose``, which older versions refuse and newer ones warn of."""
    values = {"dns": {"service": {"trafficDistribution": asked}}}
    service = made_of(values, "Service", SERVER, "--kube-version", version)
    assert service["spec"].get("trafficDistribution") == expected


def test_kubernetes_that_is_too_old_is_refused() -> None:
    """The message says which version is needed."""
    with pytest.raises(RefusedError, match=re.escape("chart requires kubeVersion: >=1.31.0-0")):
        rendered({}, "--kube-version", "1.30")


def test_the_prober_is_told_of_the_same_clusters() -> None:
    """With ``health``, the controller has the names and kubeconfigs that the server has."""
    objects = by_name(rendered(EVERYTHING))
    told, mounted = zip(
        *(
            ((settings.cluster_name, settings.cluster), deployment["spec"]["template"]["spec"]["volumes"][-2:])
            for deployment in (objects["Deployment", SERVER], objects["Deployment", CONTROLLER])
            for _, settings in [settings_of(deployment)]
        ),
        strict=True,
    )
    assert told[0] == told[1] and [cluster.name for cluster in told[0][1]] == ["us-central", "us-east"]
    assert mounted[0] == mounted[1]


def test_a_certificate_of_another_needs_no_rights() -> None:
    """The webhook reads it from the Secret of that name, and may neither read Secrets nor write its configuration."""
    objects = by_name(rendered(MORE["certificate of another"]))
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


# -- on a real API server


@contextmanager
def spaced(plane: ControlPlane, name: str) -> Iterator[None]:
    """Have a namespace for the release that enforces the level restricted, until the block ends."""
    space = namespace(name, {"pod-security.kubernetes.io/enforce": "restricted"})
    plane.api.create(space)
    try:
        yield
    finally:
        plane.api.delete(space)


@pytest.fixture(scope="module")
def monitored(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster with the kinds of the Prometheus Operator."""
    with monitoring_api(control_plane), spaced(control_plane, "chart"):
        yield control_plane


@pytest.mark.parametrize("case", MORE)
def test_the_api_server_takes_what_the_chart_makes(monitored: ControlPlane, case: str) -> None:
    """With strict validation, there is no error and no warning."""
    text = yaml.safe_dump_all(rendered(MORE[case], namespace="chart"))
    how = ("--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
    monitored.kubectl("apply", *how, "-f", "-", stdin=text)


def near(where: str) -> Item:
    """Return a ServicePolicy."""
    topology = {"key": "rack", "mode": "preferred"}
    spec = {"serviceSelector": {"matchLabels": {"app": "web"}}, "topology": topology}
    return item("ServicePolicy", "kept", where, spec=spec)


def older(folder: Path) -> Path:
    """Return the archive of a chart of an older version: with one replica less, and a CRD without its columns."""
    shutil.copytree(CHART, folder / "topodns")
    chart, values = folder / "topodns" / "Chart.yaml", folder / "topodns" / "values.yaml"
    crd = folder / "topodns" / "files" / "servicepolicies" / "servicepolicies.yaml"
    chart.write_text(re.sub(r"(?m)^(version|appVersion): .*$", r"\1: 0.0.9", chart.read_text()))
    values.write_text(values.read_text().replace("replicas: 3", "replicas: 2"))
    definition = yaml.safe_load(crd.read_text())
    del definition["spec"]["versions"][0]["additionalPrinterColumns"]
    crd.write_text(yaml.safe_dump(definition))
    helm.run("package", str(folder / "topodns"), "--destination", str(folder))
    return folder / "topodns-0.0.9.tgz"


@pytest.mark.parametrize(
    ("how", "where"),
    [("--server-side=true", "chart-4"), ("--server-side=false", "chart-3")],
    ids=["as Helm 4", "as Helm 3"],
)
def test_upgrade_rollback_and_another_start(control_plane: ControlPlane, tmp_path: Path, how: str, where: str) -> None:
    """Versions follow each other, back and forth. Policies, the certificate and the Service's address stay."""
    api, there = control_plane.api, ("--namespace", where)
    values = {"webhook": ON}
    policy = near(where)

    def state() -> tuple[str, int, bool]:
        """Return the version and number of the pods wanted, and whether the CRD has its columns."""
        deployment = api.request("GET", api.path("Deployment", where, SERVER))
        crd = api.request("GET", api.path("CustomResourceDefinition", name="servicepolicies.topodns.io"))
        image = container_of(deployment)["image"]
        columns = len(crd["spec"]["versions"][0].get("additionalPrinterColumns", ())) > 1  # Age is there without any
        return image.partition(":")[2], deployment["spec"]["replicas"], columns

    def kept() -> Any:
        secret = api.request("GET", api.path("Secret", where, WEBHOOK))["data"]
        hooks = api.request("GET", api.path(HOOKS, name=WEBHOOK))["webhooks"]
        address = api.request("GET", api.path("Service", where, SERVER))["spec"]["clusterIP"]
        return secret, [hook["clientConfig"].get("caBundle") for hook in hooks], address

    def created() -> bool:
        try:
            api.create(policy)
        except ApiError:
            return False
        return True

    def uids() -> list[str]:
        """Return the uids of all policies; none while the API server takes in a new schema (429)."""
        try:
            return [one["metadata"]["uid"] for one in api.items("ServicePolicy", where)]
        except ApiError:
            return []

    with spaced(control_plane, where):
        helm.run("install", "topodns", str(older(tmp_path)), *there, how, values=values, plane=control_plane)
        assert state() == ("0.0.9", 2, False)
        until(created, "ServicePolicies to be served")
        api.patch(item("Secret", WEBHOOK, where), {"data": {"tls.crt": "eA=="}})
        bundles = [{"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": AUTHORITY} for at in (0, 1)]
        api.request("PATCH", api.path(HOOKS, name=WEBHOOK), bundles, media="application/json-patch+json")
        before = kept()
        assert before[:2] == ({"tls.crt": "eA=="}, [AUTHORITY] * 2)
        created_ones = uids()

        current = ("upgrade", "topodns", str(CHART), *there, how, "--reset-then-reuse-values")
        helm.run(*current, plane=control_plane)
        assert state() == (__version__, 3, True) and kept() == before
        with pytest.raises(RefusedError, match="additional properties 'replicas' not allowed"):
            helm.run(*current, values={"replicas": 5}, plane=control_plane)
        assert state() == (__version__, 3, True)
        helm.run("rollback", "topodns", *there, plane=control_plane)
        assert state() == ("0.0.9", 2, False) and kept() == before

        helm.run("uninstall", "topodns", *there, plane=control_plane)
        left = control_plane.kubectl("-n", where, "get", "all,secrets,networkpolicies,servicepolicies", "-o", "name")
        assert left.split() == ["servicepolicy.topodns.io/kept"]
        assert uids() == created_ones
        helm.run("install", "topodns", str(CHART), *there, how, plane=control_plane)
        assert state() == (__version__, 3, True)
        other = ("install", "other-topodns", str(CHART), *there, how, "--dry-run=server")
        with pytest.raises(RefusedError, match="invalid ownership metadata"):
            helm.run(*other, plane=control_plane)
        helm.run(*other, "--take-ownership", plane=control_plane)
        helm.run("uninstall", "topodns", *there, plane=control_plane)
        control_plane.kubectl("delete", "crd", "servicepolicies.topodns.io")


def test_from_kustomize_to_helm(control_plane: ControlPlane) -> None:
    """The commands of the page leave the release alone, with the CRD and all policies."""
    control_plane.settle()
    kinds = "deployments,services,configmaps,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,crds"
    with kustomize.installed(control_plane, kustomize.objects_of("base with webhook")):
        control_plane.api.create(near("default"))
        section = PAGE.read_text().partition("## From kustomize to Helm\n")[2].partition("\n## ")[0]
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
            for entry in entries(block):
                program, *words = shlex.split(entry.command)
                if program == "helm":
                    here = [str(CHART) if word == "manifests/chart" else word for word in words]
                    helm.run(*here, values={"webhook": ON}, plane=control_plane)
                elif "rollout" not in words:  # there is no kubelet
                    control_plane.kubectl(*words)
        (policy,) = control_plane.api.items("ServicePolicy", "default")
        assert policy["spec"] == near("default")["spec"]
        left = json.loads(
            control_plane.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=topodns", "-o", "json")
        )["items"]
        assert {made["metadata"]["labels"]["app.kubernetes.io/managed-by"] for made in left} == {"Helm"}
        assert {made["kind"] for made in left} >= {"Deployment", "ClusterRole", "CustomResourceDefinition"}
        helm.run("uninstall", "dns", "--namespace", "dns", plane=control_plane)
        control_plane.api.delete(namespace("dns"))
