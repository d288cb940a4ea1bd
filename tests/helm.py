"""The real Helm, and the chart as it renders it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests import go_programs
from tests.kube import ControlPlane, Item
from tests.kustomize import MANIFESTS, NAMESPACE
from tests.programs import environment
from tests.waiting import PATIENCE

CHART = MANIFESTS / "chart"
RELEASE = "topodns"


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
    values: Mapping[str, Any], *flags: str, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
) -> Sequence[Item]:
    """Return the objects that the chart makes of *values*. Raises RefusedError."""
    printed = run("template", release, str(chart), "--namespace", namespace, *flags, values=values)
    return [item for item in yaml.safe_load_all(printed) if item]
