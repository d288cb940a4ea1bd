"""What the manifests say is what the program takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import ApiClient, V1Deployment, V1Namespace, V1Service
from prometheus_client import CollectorRegistry

from dnsserver.net.admin import application
from dnsserver.settings import read_settings

ROOT = Path(__file__).parent.parent
KINDS = {"Deployment": V1Deployment, "Namespace": V1Namespace, "Service": V1Service}


def manifest() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "manifests" / "snapshot.yaml").read_text())
    return {each["kind"]: each for each in documents}


def test_every_field_is_one_that_kubernetes_has() -> None:
    """The official client's models know every field: none is misspelled."""
    client = ApiClient()
    for kind, each in manifest().items():
        model = client.deserialize(json.dumps(each), KINDS[kind], "application/json")
        assert client.sanitize_for_serialization(model) == each


def test_the_container_is_started_with_flags_that_exist() -> None:
    """The arguments are read as the command line reads them."""
    container = manifest()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    command, *flags = container["args"]
    assert command == "serve"
    given = {flag.removeprefix("--").partition("=")[0]: [flag.partition("=")[2]] for flag in flags}
    settings, _ = read_settings(flags=given, environment={}, file=None)
    mount = container["volumeMounts"][0]["mountPath"]
    assert all(path.startswith(mount) for path in settings.snapshot)


def test_the_probes_ask_paths_that_are_served() -> None:
    """A probe of a path that nobody serves would end every pod."""
    container = manifest()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    served = {route.path for route in application(CollectorRegistry(), live={}, ready={}).routes}
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} <= served
