# SPDX-License-Identifier: Apache-2.0

"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.commands_in_process import Run, commands_in_process
from tests.kit.federation import Federation, running_federation
from tests.kit.in_memory import Cluster
from tests.kit.kube import ControlPlane, running_control_plane
from tests.kit.topodns_process import Server, serving

# Every run draws the same examples. A slow or busy machine must not fail a test.
settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


# Files that take minutes. Whoever begins one last keeps the other workers waiting for the end.
LONG = (
    "test_lint.py",
    *("test_image.py", "test_controller.py", "test_peers.py", "test_doctor_live.py", "test_rbac.py", "test_tenants.py"),
    *("test_compared_with_coredns.py", "test_forwarders.py", "test_under_attack.py", "test_instructions.py"),
    *("test_federation.py", "test_federation_faults.py", "test_federation_replicas.py"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add a flag for the tests that are too slow to run at each push."""
    parser.addoption("--slow", action="store_true", help="also run what is marked as slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is slow without ``--slow``, and let long files begin first."""
    slow = {item for item in items if item.get_closest_marker("slow")}
    if slow and not config.getoption("--slow"):
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture
def topodns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Return a function that runs a command in this process."""
    with commands_in_process(monkeypatch, capsys) as run:
        yield run


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a real server as ``topodns_process.serving`` does, until the test ends."""
    with ExitStack() as stack:

        def start(cluster: Cluster | Path, *arguments: str, **more: Any) -> Server:
            return stack.enter_context(serving(tmp_path, cluster, *arguments, **more))

        yield start


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a real Kubernetes control plane for the whole session; each test uses its own namespaces."""
    with running_control_plane(tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="session")
def frail_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a control plane whose API server tests may kill and stop; after each test it must run again."""
    with running_control_plane(tmp_path_factory.mktemp("frail-control-plane")) as running:
        yield running


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Run a federation of real control planes for the tests of one file; each test uses its own namespaces."""
    with running_federation(tmp_path_factory.mktemp("federation")) as running:
        yield running


@pytest.fixture
def _heeds_sigint() -> Iterator[None]:
    """Have processes notice signals even if the tests run in the background, where a shell has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
