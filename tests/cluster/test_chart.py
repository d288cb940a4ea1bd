# SPDX-License-Identifier: Apache-2.0

"""The Helm chart: what the real Helm makes of it is what kustomize builds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import reduce
from typing import Any

import pytest
import yaml

from docs.pages.chart_pages import PAGE
from tests.kit import kustomize
from tests.kit.helm import FEDERATED, Values, by_name, rendered
from tests.kit.kube import Item
from tests.kit.kustomize import MANIFESTS, NAMESPACE, RIGHTS_ALONE, VARIANTS, WEBHOOK, rights_in, settings_of

# What the chart's page says: the values that make of the chart what an overlay or a component is.
OF_PAGE: Mapping[str, Values] = {
    name: yaml.safe_load(values)
    for names, values in re.findall(r"^\| (`(?:overlays|components)/.*`) \| `(.*)` \|$", PAGE.read_text(), re.MULTILINE)
    for name in re.findall(r"`(.*?)`", names)
}
# Values of what the page says in words, or says nothing of.
IN_WORDS: Mapping[str, Values] = {
    "base": {},
    "overlays/clusters": {"clustersSecret": "clusters", "dns": {"settings": FEDERATED}},
}


def merged(values: Values, more: Values) -> Values:
    """Return values with more of them, as Helm merges ``--values``."""
    both = {key: merged(values[key], more[key]) for key in values.keys() & more.keys() if isinstance(more[key], dict)}
    return {**values, **more, **both}


def values_of(variant: str) -> Values:
    """Return the values that make of the chart what a variant of the manifests is."""
    folder, components = VARIANTS[variant]
    parts = [folder, *(f"components/{name}" for name in components)]
    return reduce(merged, [{**OF_PAGE, **IN_WORDS}[part] for part in parts])


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
    made = json.loads(re.sub(r"((?<!\\)\\n| )+", " ", json.dumps(made)))
    if made["kind"] == "Deployment":
        command, settings = settings_of(made)
        made["spec"]["template"]["spec"]["containers"][0]["args"] = [command, asdict(settings)]
    if "rules" in made and "Role" in made["kind"]:
        made["rules"] = sorted(
            (*right, *rule.get("resourceNames", ())) for rule in made["rules"] for right in rights_in([rule])
        )
    return made


def test_the_page_has_values_of_each_overlay_and_component() -> None:
    """So whoever has one knows what to write for the chart; and each is in a variant that is compared."""
    folders = {f"{part}/{path.name}" for part in ("overlays", "components") for path in (MANIFESTS / part).iterdir()}
    assert OF_PAGE.keys() == folders
    compared = {part for folder, names in VARIANTS.values() for part in (folder, *(f"components/{n}" for n in names))}
    assert compared >= folders


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {*RIGHTS_ALONE}))
def test_the_chart_makes_what_kustomize_builds(variant: str) -> None:
    """With the values of its page, object for object and field for field, but for ``MEANT`` and ``LEFT_OUT``."""
    objects = rendered(values_of(variant))
    for made in objects:
        for meant in MEANT:
            meant(made)
    built = [made for made in kustomize.objects_of(variant) if made["kind"] not in LEFT_OUT]
    found, expected = by_name([*map(comparable, objects)]), by_name([*map(comparable, built)])
    assert found.keys() == expected.keys()
    for name, made in found.items():
        assert made == expected[name], name
