# SPDX-License-Identifier: Apache-2.0

"""Which module imports which, by module and by folder: for the rule of imports and for the diagram."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.this_machine import ROOT

PACKAGES = ("dnsserver", "locator")
EDGES = ("dnsserver.cli", "dnsserver.http", "dnsserver.net", "locator.cluster")
# Each may import those after it.
COMPOSITION = (
    "dnsserver.__main__",
    "dnsserver.cli",
    "dnsserver.webhook_app",
    "dnsserver.controller_app",
    "dnsserver.console_app",
    "dnsserver.app",
    "dnsserver.clusters",
    "dnsserver.cluster_sources",
    "dnsserver.from_settings",
)


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
FOLDERS = {name: path.parent for name, path in MODULES.items() if path.name == "__init__.py"}


def within(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of *packages*, or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_edge(name: str) -> bool:
    """Whether a module, or a folder, may use sockets, threads, clocks and logs."""
    return within(name, EDGES) or name in COMPOSITION


def imports(name: str) -> Iterator[str]:
    """Yield every module that a module imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            module = node.module or ""
            # ``from package import module`` imports the module, ``from module import name`` the module, too.
            yield from (f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
                        for alias in node.names)  # fmt: skip


def folder_of(name: str) -> str:
    """Return the folder that a module lies in; one that lies in a package itself counts as a folder of its own."""
    package, _, rest = name.partition(".")
    return name.rpartition(".")[0] if "." in rest else name if rest else package


def folder_imports() -> dict[str, set[str]]:
    """Return for each folder the other folders that it imports."""
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        if name in PACKAGES:  # a docstring, and no code
            continue
        used = {folder_of(imported) for imported in imports(name) if imported in MODULES and imported not in PACKAGES}
        graph.setdefault(folder_of(name), set()).update(used - {folder_of(name)})
    return graph
