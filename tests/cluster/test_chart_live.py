# SPDX-License-Identifier: Apache-2.0

"""The Helm chart on a real API server: installed, upgraded, rolled back, and in the place of kustomize."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnsserver import __version__
from docs.pages.chart_pages import CHART, PAGE
from tests.kit import helm, kustomize
from tests.kit.api_objects import item, namespace, service_policy
from tests.kit.helm import CASES, ON, RefusedError, rendered
from tests.kit.kube import ApiError, ControlPlane, Item, monitoring_api
from tests.kit.kustomize import HOOKS, SERVER, WEBHOOK, container_of
from tests.kit.page_commands import commands, section
from tests.kit.this_machine import ROOT
from tests.kit.waiting import until
from tests.kit.webhook_process import AUTHORITY

UPGRADES = ROOT / "docs" / "upgrade.md"


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
    """A cluster with the kinds of the Prometheus Operator, and with a namespace of OpenShift."""
    with monitoring_api(control_plane), spaced(control_plane, "chart"), spaced(control_plane, "openshift-dns"):
        yield control_plane


def test_the_api_server_takes_what_the_chart_makes(monitored: ControlPlane) -> None:
    """With strict validation, there is no error and no warning; where ``restricted`` is enforced, for the test, too."""
    how = ("--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors")
    for values in CASES.values():
        objects = rendered(values, namespace="chart", tests=True)
        monitored.kubectl("apply", *how, "-f", "-", stdin=yaml.safe_dump_all(objects))


def near(where: str) -> Item:
    """Return a ServicePolicy."""
    return service_policy("kept", "rack", "Preferred", where=where)


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
    page = UPGRADES.read_text().replace("manifests/chart", str(CHART)).replace("--namespace topodns", " ".join(there))
    upgrade, rollback = (shlex.split(command) for command in re.findall(r"^\$ helm (.*)$", page, re.MULTILINE))

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

        helm.run(*upgrade, how, plane=control_plane)
        assert state() == (__version__, 3, True) and kept() == before
        with pytest.raises(RefusedError, match="additional properties 'replicas' not allowed"):
            helm.run(*upgrade, how, values={"replicas": 5}, plane=control_plane)
        assert state() == (__version__, 3, True)
        helm.run(*rollback, plane=control_plane)
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


def test_rights_for_the_test_end_with_it(control_plane: ControlPlane) -> None:
    """``helm test`` says how ``topodns doctor`` ended. Before and after, there is neither its account nor its rights.

    The pod stays until the next test.
    """
    api, where = control_plane.api, "tested"
    pod, kinds = (
        api.path("Pod", where, "topodns-test"),
        "serviceaccount,role,rolebinding,clusterrole,clusterrolebinding",
    )

    def granted() -> set[str]:
        named = control_plane.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/name=topodns", "-o", "name").split()
        return {name for name in named if name.endswith("/topodns-test")}

    def started() -> bool:
        try:
            return api.request("GET", pod)["status"]["phase"] == "Pending" and len(granted()) == 5
        except ApiError:
            return False

    with spaced(control_plane, where), ThreadPoolExecutor() as pool:
        helm.run("install", "topodns", str(CHART), "--namespace", where, plane=control_plane)
        for phase in ("Succeeded", "Failed"):
            assert granted() == set()
            tested = pool.submit(helm.run, "test", "topodns", "--namespace", where, plane=control_plane)
            until(started, "the pod of the test")
            api.patch_status(item("Pod", "topodns-test", where), {"phase": phase})
            with nullcontext() if phase == "Succeeded" else pytest.raises(RefusedError, match="topodns-test failed"):
                assert "Phase:          Succeeded" in tested.result()
            assert granted() == set()
            assert api.request("GET", pod)["status"]["phase"] == phase
        helm.run("uninstall", "topodns", "--namespace", where, plane=control_plane)
        control_plane.kubectl("delete", "crd", "servicepolicies.topodns.io")


@pytest.mark.parametrize(("prepared", "left"), [(False, 1), (True, 4)], ids=["unprepared", "as the page says"])
def test_autoscaling_is_switched_on(control_plane: ControlPlane, prepared: bool, left: int) -> None:
    """Of a number that somebody else has set, the upgrade takes nothing away."""
    api, where = control_plane.api, f"scaled-{left}"
    (command,) = re.findall(r"^\$ kubectl -n topodns (scale .*)$", PAGE.read_text(), re.MULTILINE)
    with spaced(control_plane, where):
        helm.run("install", "topodns", str(CHART), "--namespace", where, plane=control_plane)
        if prepared:
            control_plane.kubectl("-n", where, *shlex.split(command))
        on = {"dns": {"autoscaling": ON}}
        helm.run("upgrade", "topodns", str(CHART), "--namespace", where, values=on, plane=control_plane)
        assert api.request("GET", api.path("Deployment", where, SERVER))["spec"]["replicas"] == left
        helm.run("uninstall", "topodns", "--namespace", where, plane=control_plane)
        control_plane.kubectl("delete", "crd", "servicepolicies.topodns.io")


def test_from_kustomize_to_helm(control_plane: ControlPlane) -> None:
    """The commands of the page leave the release alone, with the CRD and all policies."""
    kinds = (
        "deployments,services,configmaps,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,crds,"
        "validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    admission = [made for made in kustomize.objects_of("base with admission") if "Admission" in made["kind"]]
    with kustomize.installed(control_plane, [*kustomize.objects_of("base with webhook"), *admission]):
        control_plane.api.create(near("default"))
        for entry in commands(section(PAGE, "From kustomize to Helm")):
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
