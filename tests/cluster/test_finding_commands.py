# SPDX-License-Identifier: Apache-2.0

"""The command of each finding of a cluster, run by kubectl on a real control plane."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from locator.findings import ClusterCode
from tests.kit import kustomize
from tests.kit.api_objects import endpoint_slice, namespace, node, service, service_policy
from tests.kit.kube import ApiError, ControlPlane
from tests.kit.kustomize import EVERYTHING, objects_of
from tests.kit.programs import environment
from tests.kit.waiting import PATIENCE

WHERE = "findings"
NAME = "near"  # of every object here
WORDS = {
    "NAMESPACE": WHERE, "NAME": NAME, "NODE": NAME, "KIND": "service", "ANNOTATION": "topodns.io/topology-key",
    "ZONE": "a", "PATH": "$KUBECONFIG",
}  # fmt: skip


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with a node and a namespace, and ``kubectl topodns``."""
    with kustomize.installed(control_plane, objects_of(EVERYTHING, "CustomResourceDefinition")):
        control_plane.api.create(namespace(WHERE), node(NAME))
        yield control_plane
        control_plane.api.delete(node(NAME), namespace(WHERE))


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The same with a Service, a slice and a policy, as no other command has left them."""
    slices = endpoint_slice("none", 1, [], where=WHERE)
    slices["metadata"]["name"] = NAME
    things = (service(NAME, where=WHERE), slices, service_policy(NAME, "rack", None, where=WHERE))
    plane.api.create(*things)
    yield plane
    for thing in things:
        with suppress(ApiError):  # a command has deleted it
            plane.api.delete(thing)


@pytest.mark.parametrize("code", ClusterCode, ids=lambda code: code.name)
def test_kubectl_takes_the_command(cluster: ControlPlane, tmp_path: Path, code: ClusterCode) -> None:
    """With the words in capitals replaced, as a reader would; ``edit`` opens an editor that changes nothing."""
    command = re.sub(r"\b[A-Z]+\b(?!:)", lambda word: WORDS.get(word[0], word[0]), code.command)
    programs = (cluster.programs, Path(sys.executable).parent, os.environ["PATH"])
    ran = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=environment({
            "PATH": ":".join(map(str, programs)), "KUBECONFIG": str(cluster.kubeconfig), "EDITOR": "true",
        }),
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command}: {ran.stderr}"
