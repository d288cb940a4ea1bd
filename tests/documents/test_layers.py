# SPDX-License-Identifier: Apache-2.0

"""Imports, as far as the contracts in ``pyproject.toml`` cannot say it: each library has one door."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.kit.import_graph import MODULES, imports, within
from tests.kit.this_machine import ROOT


@pytest.mark.parametrize(
    ("library", "only"),
    [("dnslib", {"dnsserver.message"}), ("prometheus_client", {"dnsserver.metrics", "dnsserver.http"}),
     ("kubernetes", {"locator.cluster.api_client", "locator.cluster.credentials", "dnsserver.cli.reading"}),
     ("yaml", {"dnsserver.cli.output", "locator.api.yaml_text"}),
     ("dns", {"dnsserver.tools.tap.lines", "dnsserver.cli.reading.asking", "dnsserver.net.upstream"}),
     ("cryptography", {"locator.cluster.certificates.issuing"}),
     ("h11", {"dnsserver.http.conversation", "locator.cluster.leading.probe"}),
     ("shlex", {"locator.printable"}),
     ("jinja2", {"dnsserver.tools.console.rendering", "dnsserver.tools.corefile.stub_blocks",
                 "dnsserver.tools.simulation.picture"})],
)  # fmt: skip
def test_a_library_has_one_door(library: str, only: set[str]) -> None:
    """Foreign things stay in the module that is their door."""
    may = re.compile(rf"\b(from|import) {library}\b")
    modules = [name for name, path in MODULES.items() if may.search(path.read_text())]
    found = {name for name in modules for imported in imports(name) if within(imported, {library})}
    assert found and all(within(name, only) for name in found)


def test_decoders_are_created_on_import() -> None:
    """msgspec crashes if two threads create what decodes a type at once, and ``decode(..., type=...)`` creates it."""
    for name, path in MODULES.items():
        if "type=" not in (text := path.read_text()):
            continue
        for call in ast.walk(ast.parse(text)):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                decodes = call.func.attr in ("decode", "convert") and "type" in {word.arg for word in call.keywords}
                assert not decodes, f"{name}, line {call.lineno}: create a Decoder on import"


def test_the_process_that_reads_a_dump_loads_little() -> None:
    """It is started for each reading, and loading what a server needs would take twice as long."""
    program = "import sys, locator.cluster.dumps.worker; print(*sys.modules)"
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
