# SPDX-License-Identifier: Apache-2.0

"""``docs/install.md``: its commands on a machine, for a real API server. ``test_image`` runs that of the container."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from dnsserver import __version__
from tests.kit.api_objects import node
from tests.kit.files import copy_of_the_project
from tests.kit.kube import ControlPlane
from tests.kit.page_commands import commands, section
from tests.kit.programs import environment, ready
from tests.kit.shells import Shell
from tests.kit.this_machine import ROOT

PAGE = ROOT / "docs" / "install.md"
MINUTES = 240.0  # pip fetches libraries
ANY_PORT = {"TOPODNS_LISTEN": "127.0.0.1:0", "TOPODNS_HTTP": "off"}


def below(heading: str) -> Sequence[str]:
    """Return the commands below a heading of the page."""
    return [entry.command for entry in commands(section(PAGE, heading))]


@contextmanager
def running(script: Sequence[str], shell: Shell) -> Iterator[str]:
    """Run commands one after another in one shell, the last of which serves; yield what they printed."""
    assert script[-1].startswith("topodns serve")
    text = "\n".join([*script[:-1], f"exec {script[-1]}"])
    env = {**shell.env, **ANY_PORT}
    with ready(["bash", "-euc", text], shell.folder, name="commands", env=env, within=MINUTES) as daemon:
        yield daemon.printed.read_text()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of this repository, without what others have built in it."""
    return copy_of_the_project(tmp_path / "topodns")


def test_on_a_machine(control_plane: ControlPlane, clone: Path) -> None:
    """Without cargo, a virtual environment gets all of topodns but its native code, and reads kubectl's cluster."""
    shell = Shell(clone, environment({"KUBECONFIG": str(control_plane.kubeconfig), "CARGO": str(clone / "none")}))
    with running(below("On a machine"), shell) as printed:
        assert "0 errors" in printed, "of check"
    version = Shell(clone, {}).run(".venv/bin/topodns version")
    assert version[0] == f"topodns {__version__}"
    assert "not installed" in version[-1]


def test_from_a_dump(control_plane: ControlPlane, tmp_path: Path) -> None:
    """What kubectl prints is what topodns reads."""
    only = node("only")  # the control plane has none of its own, and a dump without Nodes is not whole
    control_plane.api.create(only)
    shell = Shell.with_kubeconfig(tmp_path, control_plane.kubeconfig)
    try:
        with running(below("From a dump"), shell) as printed:
            assert "0 errors" in printed, "of check"
    finally:
        control_plane.api.delete(only)
    assert (tmp_path / "cluster.yaml").stat().st_size > 1000
