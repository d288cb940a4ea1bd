# SPDX-License-Identifier: Apache-2.0

"""The Helm chart: what the real Helm makes of it is what kustomize builds."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest
import yaml

from docs.pages.chart_pages import PAGE
from tests.kit import kustomize
from tests.kit.helm import CLUSTERS, FEDERATED, HEALTH, LOCATORS, MULTICLUSTER, NODES, ON, Values, by_name, rendered
from tests.kit.kube import Item
from tests.kit.kustomize import NAMESPACE, VARIANTS, WEBHOOK, rights_in, settings_of

WEBHOOK_ALONE = {"dns": {"enabled": False}, "webhook": ON}
SNAPSHOT = {"dns": {"snapshot": {"configMap": "snapshot"}}}

# The values that make of the chart what each variant of the kustomize manifests is.
SAME: Mapping[str, Values] = {
    "base": {},
    "base before 1.34": {"dns": {"service": {"trafficDistribution": "PreferClose"}}},
    "base with metrics": {"metrics": ON},
    "base without pods": {"dns": {"settings": NODES}},
    "base with monitoring": {"metrics": {**ON, "monitor": "PodMonitor", "rules": True, "dashboard": True}},
    "base with admission": {"admission": ON},
    "base with controller": {"controller": ON},
    "base with health": HEALTH,
    "base with multicluster": {"dns": {"settings": MULTICLUSTER}},
    "base with webhook": {"webhook": ON},
    "base with quota": {"quota": ON},
    "base with openshift": {"openshift": True},
    "base with podlocators": {"controller": ON, "dns": {"settings": LOCATORS}},
    "base with podlocators and metrics": {"controller": ON, "dns": {"settings": LOCATORS}, "metrics": ON},
    "coredns-stub": {},
    "coredns-stub with all": {
        **HEALTH,
        "dns": {"settings": {**MULTICLUSTER, **LOCATORS}},
        "metrics": ON,
        "quota": ON,
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
    "clusters with openshift": {
        "clusters": CLUSTERS,
        "controller": ON,
        "dns": {"settings": FEDERATED},
        "openshift": True,
        "webhook": ON,
    },
    "webhook": WEBHOOK_ALONE,
    "webhook with metrics": {**WEBHOOK_ALONE, "metrics": ON, "admission": ON},
    "snapshot": SNAPSHOT,
    "snapshot with metrics": {**SNAPSHOT, "metrics": ON},
}


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
    if made["kind"] in RUNNING:
        for container in made["spec"]["template"]["spec"]["containers"]:
            assert container.pop("imagePullPolicy") == "IfNotPresent"


def without_names_of_the_release(made: Item) -> None:
    """The chart says the names of the Lease, the Secret and the webhook configuration, which the release gives."""
    if made["kind"] in RUNNING:
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


def without_the_revision(made: Item) -> None:
    """Helm's upgrades make another Job, because Kubernetes refuses to change one; kustomize's ends before the next.

    Helm waits for its Job, and fails if that has gone: https://github.com/haproxytech/helm-charts/issues/266.
    """
    if made["kind"] == "Job":
        made["metadata"]["name"] = made["metadata"]["name"].removesuffix("-1")
        assert made["spec"]["ttlSecondsAfterFinished"] == 3600
        made["spec"]["ttlSecondsAfterFinished"] = 60


MEANT = (
    without_helms_labels,
    without_policy_to_keep,
    without_pull_policy,
    without_names_of_the_release,
    with_the_quotas_name,
    without_the_revision,
)
RUNNING = ("Deployment", "Job")
LEFT_OUT = {"Namespace"}  # Helm is told of one, and creates it with --create-namespace


def comparable(made: Item) -> Item:
    """Return an object in which the order of flags, rules and verbs, and the line breaks of texts, do not count."""
    made = json.loads(re.sub(r"(\\n| )+", " ", json.dumps(made)))
    if made["kind"] == "Deployment":
        command, settings = settings_of(made)
        made["spec"]["template"]["spec"]["containers"][0]["args"] = [command, asdict(settings)]
    if "rules" in made and "Role" in made["kind"]:
        made["rules"] = sorted(
            (*right, *rule.get("resourceNames", ())) for rule in made["rules"] for right in rights_in([rule])
        )
    return made


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
        assert values == SAME[re.sub(r"with (without|before)-", r"\1 ", variant)], name


@pytest.mark.parametrize("meant", MEANT, ids=lambda meant: meant.__name__)
def test_each_difference_is_there(meant: Callable[[Item], None]) -> None:
    """No row of ``MEANT`` hides a difference that nobody knows of any more."""
    objects = rendered(SAME["coredns-stub with all"])
    before = copy.deepcopy(objects)
    for made in objects:
        meant(made)
    assert objects != before
