# SPDX-License-Identifier: Apache-2.0

"""The real Helm, and the chart as it renders it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from docs.pages.chart_pages import CHART
from tests.kit import go_programs
from tests.kit.kube import ControlPlane, Item
from tests.kit.kustomize import NAMESPACE
from tests.kit.programs import environment
from tests.kit.waiting import PATIENCE

RELEASE = "topodns"
Values = dict[str, Any]

# Parts of values.
NODES = {"client-source": "nodes"}
MULTICLUSTER = {"multicluster": ["clusterset.local"]}
FEDERATED = {"cluster-name": "europe", "federation": ["fed.example.com"]}
LOCATORS = {"client-source": "podlocators"}
CLUSTERS = [{"name": name, "secret": f"cluster-{name}"} for name in ("us-central", "us-east")]  # each in its own
ON = {"enabled": True}
HEALTH = {"controller": {**ON, "settings": {"health": True}}}
SPREAD = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
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
        "dashboard": True,
        "labels": {"release": "prometheus"},
    },
    "webhook": ON,
}

# Values that use all that the chart has.
CASES: Mapping[str, Values] = {
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
        "commonLabels": {"team": "network"},
        "controller": {**ON, "topologySpreadConstraints": [SPREAD]},
        "dns": {
            "service": {"clusterIP": "10.96.0.53", "annotations": {"a": "b"}, "type": "LoadBalancer"},
            "zoneSpread": "DoNotSchedule",
        },
        "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-more"}}],
        "image": {"digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "pull"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"sidecar.istio.io/inject": "false"},
        "priorityClassName": "",
        "tolerations": [{"operator": "Exists"}],
        "webhook": {**ON, "nodeSelector": {"role": "control-plane"}},
    },
    "OpenShift": {**HEALTH, "clusters": CLUSTERS, "openshift": True, "webhook": ON},
    "federation": {
        "clustersSecret": "clusters",
        "controller": {**ON, "federate": {"zone": "fed.example.com", "secret": "api", "clustersSecret": "copies"}},
        "dns": {"settings": FEDERATED},
    },
    "GKE": {"quota": ON},
    "nothing around": {"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}},
}


class RefusedError(Exception):
    """Helm refuses; the text is its message."""


def run(*arguments: str, values: Mapping[str, Any] | None = None, plane: ControlPlane | None = None) -> str:
    """Return Helm's standard output, with *values* and for a cluster if given. Raises RefusedError."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(go_programs.helm()), *arguments]
        if values is not None:
            command += ["--values", "-"]
        if plane is not None:
            command += ["--kubeconfig", str(plane.kubeconfig)]
        done = subprocess.run(
            command,
            input=yaml.safe_dump(values),
            capture_output=True,
            text=True,
            env=environment({"HOME": folder}),
            timeout=3 * PATIENCE,
            check=False,
        )
    if done.returncode:
        raise RefusedError(done.stderr)
    return done.stdout


def rendered(
    values: Mapping[str, Any],
    *flags: str,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    chart: Path = CHART,
    tests: bool = False,
) -> Sequence[Item]:
    """Return the objects that the chart makes of *values*, those of its *tests* too if wanted. Raises RefusedError."""
    flags = flags if tests else ("--skip-tests", *flags)
    printed = run("template", release, str(chart), "--namespace", namespace, *flags, values=values)
    return [item for item in yaml.load_all(printed, yaml.CSafeLoader) if item]


def of_the_test(values: Mapping[str, Any]) -> Sequence[Item]:
    """Return the objects that are there while ``helm test`` runs. Raises RefusedError."""
    return rendered(values, "--show-only", "templates/tests/doctor.yaml", tests=True)


def by_name(objects: Sequence[Item]) -> dict[tuple[str, str], Item]:
    """Return objects by kind and name, which no two of them share."""
    found = {(made["kind"], made["metadata"]["name"]): made for made in objects}
    assert len(found) == len(objects)
    return found
