"""The house: which module may import what. Purity is the default; the path alone tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dnsserver", "locator")
EDGES = ("dnsserver.net", "locator.cluster")
COMPOSITION = ("dnsserver.__main__", "dnsserver.cli", "dnsserver.app")  # each may import those after it

# What reaches outside, waits, or differs from one call to the next.
IMPURE = {
    *("anyio", "asyncio", "concurrent", "hypercorn", "starlette", "trio"),  # concurrency, and what brings it
    *("multiprocessing", "queue", "signal", "subprocess", "threading"),
    *("ctypes", "os", "pathlib", "select", "selectors", "socket", "ssl", "sys", "tempfile", "urllib"),  # the machine
    *("kubernetes", "logging", "random", "secrets", "time"),
}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def is_edge(name: str) -> bool:
    return within(name, EDGES) or name in COMPOSITION


def imports(name: str) -> Iterator[str]:
    """Yield every module that a module imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            module = node.module or ""
            # ``from package import module`` imports the module, ``from module import thing`` the module, too.
            yield from (f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module
                        for alias in node.names)  # fmt: skip


PURE = [name for name in MODULES if not is_edge(name)]


def test_there_is_something_to_check() -> None:
    """A rule over no modules would hold for ever."""
    assert {"locator.selection", "dnsserver.responder", "dnsserver.net.udp", "locator.cluster.static"} <= set(MODULES)
    assert "locator.cluster.static" not in PURE and "dnsserver.responder" in PURE


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_reach_nothing_outside(name: str) -> None:
    """No trio, kubernetes, socket, thread, clock, chance or log, and no edge, outside the edge folders."""
    for imported in imports(name):
        assert imported.partition(".")[0] not in IMPURE, f"{name} imports {imported}"
        assert not is_edge(imported), f"{name} is pure and imports the edge {imported}"


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, ("locator",))])
def test_locator_never_imports_dnsserver(name: str) -> None:
    """What is where can be known without DNS."""
    assert not [imported for imported in imports(name) if within(imported, ("dnsserver",))]


@pytest.mark.parametrize("name", [name for name in MODULES if within(name, EDGES)])
def test_edges_do_not_import_composition(name: str) -> None:
    """cli -> app -> edges -> pure, never back."""
    assert not [imported for imported in imports(name) if imported in COMPOSITION]


@pytest.mark.parametrize("name", COMPOSITION)
def test_composition_points_one_way(name: str) -> None:
    """``__main__`` starts ``cli``, ``cli`` starts ``app``, and nothing the other way round."""
    before = COMPOSITION[: COMPOSITION.index(name) + 1]
    assert not [imported for imported in imports(name) if imported in before]


@pytest.mark.parametrize(
    ("library", "only"),
    [("dnslib", {"dnsserver.records"}), ("prometheus_client", {"dnsserver.metrics", "dnsserver.net.admin"}),
     ("kubernetes", {"locator.cluster.live"}), ("yaml", {"dnsserver.cli", "locator.documents"}),
     ("dns", {"dnsserver.net.upstream"})],
)  # fmt: skip
def test_a_library_has_one_door(library: str, only: set[str]) -> None:
    """Foreign things stay in the module that is their door."""
    found = {name for name in MODULES for imported in imports(name) if within(imported, (library,))}
    assert found <= only


def test_every_package_is_installed() -> None:
    """A folder that the distribution leaves out would work here and nowhere else."""
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {name for name, path in MODULES.items() if path.name == "__init__.py"}
