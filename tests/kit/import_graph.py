# SPDX-License-Identifier: Apache-2.0

"""Which module imports which."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.kit.this_machine import ROOT

PACKAGES = ("dnsserver", "locator")


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def within(name: str, packages: set[str]) -> bool:
    """Whether a module is one of *packages*, or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@cache
def imports(name: str) -> Sequence[str]:
    """Return every module that a module imports, wherever the import stands in it."""
    return [*_imports(name)]


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            module = node.module or ""
            # ``from package import module`` imports the module, ``from module import name`` the module, too.
            yield from (f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
                        for alias in node.names)  # fmt: skip
