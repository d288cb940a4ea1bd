# SPDX-License-Identifier: Apache-2.0

"""The house: which folder may import which. Purity is the default; the path alone tells."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.import_graph import COMPOSITION, EDGES, FOLDERS, MODULES, folder_imports, imports, is_edge, within
from tests.this_machine import ROOT

# What reaches outside, waits, or differs from one call to the next.
IMPURE = {
    *("anyio", "asyncio", "concurrent", "starlette", "trio"),  # concurrency, and what brings it
    *("multiprocessing", "queue", "signal", "subprocess", "threading"),
    *("ctypes", "os", "pathlib", "select", "selectors", "socket", "ssl", "sys", "tempfile", "urllib"),  # the machine
    *("kubernetes", "logging", "random", "secrets", "time"),
}


PURE = [name for name in MODULES if not is_edge(name)]


def test_there_is_something_to_check() -> None:
    """A rule over no modules would hold for ever."""
    looked_at = {"locator.topology.selection", "dnsserver.responder.responder", "dnsserver.net.udp"}
    assert looked_at <= set(MODULES)
    assert "locator.cluster.dump_files" not in PURE and "dnsserver.responder.responder" in PURE


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_reach_nothing_outside(name: str) -> None:
    """No trio, kubernetes, socket, thread, clock, chance or log, and no edge, outside the edge folders."""
    for imported in imports(name):
        assert imported.partition(".")[0] not in IMPURE, f"{name} imports {imported}"
        assert not is_edge(imported), f"{name} is pure and imports the edge {imported}"


def test_there_is_no_circle_between_folders() -> None:
    """Whoever reads one folder need not know those that use it."""
    try:
        TopologicalSorter(folder_imports()).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, ("locator",))])
def test_locator_never_imports_dnsserver(name: str) -> None:
    """What is where can be known without DNS."""
    assert not [imported for imported in imports(name) if within(imported, ("dnsserver",))]


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, EDGES) and not within(name, COMPOSITION)])
def test_edges_do_not_import_composition(name: str) -> None:
    """cli -> app -> edges -> pure, never back."""
    assert not [imported for imported in imports(name) if within(imported, COMPOSITION)]


@pytest.mark.parametrize("name", COMPOSITION)
def test_composition_points_one_way(name: str) -> None:
    """``__main__`` starts ``cli``, ``cli`` starts ``app``, and nothing the other way round."""
    before = COMPOSITION[: COMPOSITION.index(name) + (name in MODULES and name not in FOLDERS)]
    inside = [module for module in MODULES if within(module, (name,))]
    assert not [imported for module in inside for imported in imports(module) if within(imported, before)]


@pytest.mark.parametrize(
    ("library", "only"),
    [("dnslib", {"dnsserver.message"}), ("prometheus_client", {"dnsserver.metrics", "dnsserver.http"}),
     ("kubernetes", {"locator.cluster.api_client", "locator.cluster.credentials"}),
     ("yaml", {"dnsserver.cli.commands.explain", "locator.api.yaml_text"}),
     ("dns", {"dnsserver.inspection.tap.lines", "dnsserver.net.asking", "dnsserver.net.upstream"}),
     ("cryptography", {"locator.cluster.certificates.issuing"}),
     ("h11", {"dnsserver.http.conversation", "locator.cluster.leading.probe"}),
     ("shlex", {"locator.printable"}),
     ("jinja2", {"dnsserver.http.console.rendering"})],
)  # fmt: skip
def test_a_library_has_one_door(library: str, only: set[str]) -> None:
    """Foreign things stay in the module that is their door."""
    found = {name for name in MODULES for imported in imports(name) if within(imported, (library,))}
    assert found and all(within(name, tuple(only)) for name in found)


@pytest.mark.parametrize("name", MODULES)
def test_decoders_are_created_on_import(name: str) -> None:
    """msgspec crashes if two threads create what decodes a type at once, and ``decode(..., type=...)`` creates it."""
    for call in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            decodes = call.func.attr in ("decode", "convert") and "type" in {word.arg for word in call.keywords}
            assert not decodes, f"{name}, line {call.lineno}: create a Decoder on import"


def test_the_process_that_reads_a_dump_loads_little() -> None:
    """It is started for each reading, and loading what a server needs would take twice as long."""
    program = "import sys, locator.cluster.dumps.__main__; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(ran.stdout.split())
    assert "locator.api.dump" in loaded
    assert not {"asyncio", "kubernetes", "locator.state.store", "trio"} & loaded


def test_every_package_is_installed() -> None:
    """A folder that the distribution leaves out would work here and nowhere else."""
    import tomllib

    from setuptools import find_packages

    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    assert found.pop("namespaces") is False  # templates and pictures are no packages
    packages = find_packages(str(ROOT), **found)
    assert set(packages) == {name for name, path in MODULES.items() if path.name == "__init__.py"}
