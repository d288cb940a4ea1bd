# SPDX-License-Identifier: Apache-2.0

"""The manifests as users build them: an overlay, or the base with some components."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from dnsserver.settings.reading import read_settings
from dnsserver.settings.settings import FLAGS, Settings
from tests.kit import go_programs
from tests.kit.kube import ApiError, ControlPlane, Item
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE, until

MANIFESTS = ROOT / "manifests"
NAMESPACE = "topodns"
SERVER, CONTROLLER, WEBHOOK = "topodns", "topodns-controller", "topodns-webhook"  # Deployments, and ServiceAccounts
INSTALLER = "topodns-webhook-ca"  # the ServiceAccount of the Job that lets API servers trust the webhook
HOOKS = "MutatingWebhookConfiguration"
FEDERATION = "topodns-federation"  # the ServiceAccount of 'topodns controller --federate', and its namespace
READER = "topodns-reader"  # the ServiceAccount for topodns in another cluster, and its namespace

# Variants that a user may build: the folder, and the components beside those that it includes already.
VARIANTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "base": ("base", ()),
    "base with metrics": ("base", ("metrics",)),
    "base before 1.34": ("base", ("before-1.34",)),
    "base with monitoring": ("base", ("monitoring",)),
    "base without pods": ("base", ("without-pods",)),
    "base with admission": ("base", ("admission",)),
    "base with controller": ("base", ("controller",)),
    "base with health": ("base", ("controller", "health")),
    "base with publish": ("base", ("controller", "publish")),
    "base with multicluster": ("base", ("multicluster",)),
    "base with webhook": ("base", ("webhook",)),
    "base with quota": ("base", ("quota",)),
    "base with openshift": ("base", ("openshift",)),
    "base with podlocators": ("base", ("controller", "podlocators")),
    "base with podlocators and metrics": ("base", ("controller", "podlocators", "metrics")),
    "coredns-stub": ("overlays/coredns-stub", ()),
    "coredns-stub with all": (
        "overlays/coredns-stub",
        ("metrics", "controller", "health", "publish", "multicluster", "podlocators", "webhook", "quota"),
    ),
    "coredns-stub without pods": ("overlays/coredns-stub", ("without-pods", "metrics", "admission")),
    "nodelocal": ("overlays/nodelocal", ()),
    "nodelocal with metrics": ("overlays/nodelocal", ("metrics",)),
    "clusters": ("overlays/clusters", ()),
    "clusters with multicluster": ("overlays/clusters", ("multicluster",)),
    "clusters without pods": ("overlays/clusters", ("without-pods", "metrics", "admission")),
    "clusters with podlocators": ("overlays/clusters", ("controller", "podlocators", "webhook")),
    "clusters with federate": ("overlays/clusters", ("controller", "federate")),
    "clusters with health, publish and federate": (
        "overlays/clusters",
        ("controller", "health", "publish", "federate"),
    ),
    "clusters with openshift": ("overlays/clusters", ("controller", "webhook", "openshift")),
    "remote": ("remote", ()),
    "federation api": ("federation/api", ()),
    "federation cluster": ("federation/cluster", ()),
    "webhook": ("overlays/webhook", ()),
    "webhook with metrics": ("overlays/webhook", ("metrics", "admission")),
    "snapshot": ("overlays/snapshot", ()),
    "snapshot with metrics": ("overlays/snapshot", ("metrics",)),
}
EVERYTHING = "coredns-stub with all"  # but without admission, which would refuse what tests of other rules create
# Variants that give rights alone, and install no topodns.
RIGHTS_ALONE = ("remote", "federation api", "federation cluster")

Right = tuple[str, str, str]  # API group, resource, verb


class UnbuildableError(Exception):
    """kustomize refuses to build; the text is its message."""


def kustomization(folder: str, components: Iterable[str] = (), **more: Any) -> Item:
    """Return the overlay of a user who builds on *folder* of the manifests, with components."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(MANIFESTS / folder)],
        "components": [str(MANIFESTS / "components" / name) for name in components],
        **more,
    }


def build(overlay: Item) -> str:
    """Return an overlay as the real kubectl builds it. Raises UnbuildableError."""
    with tempfile.TemporaryDirectory() as folder:
        # kustomize takes no absolute paths.
        placed = {
            **overlay,
            **{key: [os.path.relpath(path, folder) for path in overlay[key]] for key in ("resources", "components")},
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(placed))
        command = [str(go_programs.control_plane() / "kubectl"), "kustomize", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise UnbuildableError(done.stderr)
    return done.stdout


@lru_cache(maxsize=len(VARIANTS))
def text_of(variant: str) -> str:
    """Return a variant as kubectl builds it."""
    return build(kustomization(*VARIANTS[variant]))


def objects_of(variant: str, *kinds: str) -> Sequence[Item]:
    """Return the objects of a variant, or those of some kinds."""
    return [item for item in yaml.load_all(text_of(variant), yaml.CSafeLoader) if not kinds or item["kind"] in kinds]


def object_of(variant: str, kind: str, name: str) -> Item:
    """Return one object of a variant."""
    (found,) = (item for item in objects_of(variant, kind) if item["metadata"]["name"] == name)
    return found


def container_of(deployment: Item) -> Item:
    """Return the container of a Deployment."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def settings_of(deployment: Item) -> tuple[str, Settings]:
    """Return the command of a Deployment's container, and its settings as the command line reads them."""
    command, *flags = container_of(deployment)["args"]
    given: dict[str, list[str]] = {}
    for flag in flags:
        name, sign, value = flag.removeprefix("--").partition("=")
        given.setdefault(name.replace("-", "_"), []).append(value if sign else "on")
    assert all(command in FLAGS[name].commands for name in given)
    settings, _ = read_settings(flags=given, environment={}, file=None)
    return command, settings


def rights_in(rules: Iterable[Item]) -> set[Right]:
    """Return what a role's rules allow, one right each."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@contextmanager
def installed(plane: ControlPlane, objects: Sequence[Item]) -> Iterator[ControlPlane]:
    """Apply objects to the cluster with strict validation; delete all of them at the end of the block.

    Namespaces take some seconds more to end, for which whoever creates them again waits.
    """
    spaces = [item for item in objects if item["kind"] == "Namespace"]
    kinds = [item["spec"] for item in objects if item["kind"] == "CustomResourceDefinition"]

    def serve_kinds() -> None:
        until(lambda: all(_is_served(plane, kind) for kind in kinds), "kinds that are established to be served")

    if spaces:
        plane.settle(*(item["metadata"]["name"] for item in spaces))
    try:
        plane.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(objects))
        if kinds:
            plane.kubectl("wait", "--for=condition=Established", "crd", "-l", f"app.kubernetes.io/name={SERVER}")
        serve_kinds()
        yield plane
        # Started again, an API server cannot count what it does not watch yet: it would end a kind minutes later.
        serve_kinds()
    finally:
        others = [item for item in objects if item not in spaces]
        for items, wait in ((spaces, "--wait=false"), (others, "--wait")):
            if items:
                plane.kubectl("delete", "--ignore-not-found", wait, "-f", "-", stdin=yaml.safe_dump_all(items))


def _is_served(plane: ControlPlane, kind: Item) -> bool:
    """Whether the API server serves a kind: a CRD is established a moment before (404, then 429 until it watches)."""
    try:
        plane.api.request("GET", f"/apis/{kind['group']}/{kind['versions'][0]['name']}/{kind['names']['plural']}")
    except ApiError:
        return False
    return True
