# SPDX-License-Identifier: Apache-2.0

"""Rules for the tests: none imports another, and none reads what is private."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.kit.this_machine import ROOT

OWN = {"self", "cls"}
# Their documentation gives these to everybody, in spite of the underscore.
PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}
BY_NAME = {"delattr", "getattr", "hasattr", "setattr"}  # functions that take an attribute's name
# What a module that breaks a rule has; to parse all modules takes seconds.
SUSPICIOUS = re.compile(
    r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|attr\(.*[\"'][\w.]*_|^ *(from|import) [^(\n]*(\([^)]*)?(\b_[a-zA-Z]|\btest_)",
    re.MULTILINE,
)


def private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__") and last not in PUBLIC


def private_reads(tree: ast.AST) -> Iterator[str]:
    """Yield each use of a private name outside its class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"line {node.lineno}: import {alias.name}" for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if called in BY_NAME:
                yield from (f"line {node.lineno}: {name}" for name in names if private(name))


def imported_tests(tree: ast.AST) -> Iterator[str]:
    """Yield each import of a test module."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        if any(name.startswith("tests.") and ".test_" in name for name in names):
            yield ast.unparse(node)


@cache
def trees() -> dict[str, ast.AST]:
    """Return what each module of the tests and of the benchmark says that may break a rule, by its path."""
    paths = sorted(path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    return {path: ast.parse(text) for path, text in texts.items() if SUSPICIOUS.search(text)}


def test_nothing_private_is_read() -> None:
    """A test that depends on private names breaks when the code improves."""
    assert [f"{path}: {read}" for path, tree in trees().items() for read in private_reads(tree)] == []


def test_no_test_imports_another() -> None:
    """What several tests need is in a module named for what it offers."""
    assert [f"{path}: {other}" for path, tree in trees().items() for other in imported_tests(tree)] == []
