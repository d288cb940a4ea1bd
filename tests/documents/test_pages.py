# SPDX-License-Identifier: Apache-2.0

"""The pages for people: those that are made from code are those of today, and whatever a page names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dnsserver.cli.dispatch import COMMANDS, parser_of
from dnsserver.tools.doctor.steps import StepCode
from docs.pages.make_pages import made_from_code
from docs.pages.site_pages import pages
from tests.kit.import_graph import MODULES
from tests.kit.page_commands import commands
from tests.kit.this_machine import ROOT

EXEMPT = {"None"}  # no class
FOREIGN = {"cluster.local", "metav1.Condition", "metav1.Time"}  # they look like names of our code
GUIDES = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "releasing.md")  # to the code
PAGES = [page for page in pages() if page.name != "CHANGELOG.md"]  # which names what there was
OTHERS_FLAGS = {
    "--build-arg",  # of docker
    "--locked", "--package",  # of cargo
    "--require-hashes",  # of pip
    "--bump-revision", "--mark-compacted",  # of etcdutl
    "--create-namespace", "--reset-then-reuse-values", "--reuse-values", "--server-side", "--set",  # of Helm
    "--take-ownership",  # of Helm, too
    "--authentication-config",  # of kube-apiserver
    "--force-conflicts", "--ignore-not-found", "--replicas", "--tail",  # of kubectl
    "--delete-emptydir-data", "--force", "--grace-period", "--ignore-daemonsets",  # of kubectl, too
    "--only",  # of bench
}  # fmt: skip
NAMED = r"(?:[A-Z][a-z]+){2,}|[a-z_]+\.[A-Z]\w+"  # a class of several words; a class or a constant of a module
TOP = tuple(path.name for path in ROOT.iterdir() if path.name != "build")  # which is not part of it


def test_what_is_made_from_code_is_of_today() -> None:
    """Each page that ``make docs`` writes, and the files of the chart."""
    for path, text in made_from_code().items():
        assert (ROOT / path).read_text() == text, f"renew {path}: make docs"


def quoted(page: Path) -> list[str]:
    """Return what stands in backticks, outside blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


def names_of(code: ast.AST) -> Iterator[str]:
    """Yield the names that a module or a class defines, and those that its methods give to ``self``."""
    for node in ast.iter_child_nodes(code):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
        if isinstance(code, ast.ClassDef) and isinstance(node, ast.FunctionDef):
            for inner in ast.walk(node):
                match inner:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                        yield name


@cache
def owners() -> dict[str, list[Path]]:
    """Return where what has members is, by its name: the modules and the classes of the product and of the tests."""
    found: dict[str, list[Path]] = {}
    for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]:
        for name in {path.stem, *re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)}:
            found.setdefault(name, []).append(path)
    return found


@cache
def defined_in(path: Path) -> set[str]:
    """Return what pages may name of a module: ``module.name``, ``Class`` and ``Class.name``."""
    code = ast.parse(path.read_text())
    found = {f"{path.stem}.{name}" for name in names_of(code)}
    for node in code.body:
        if isinstance(node, ast.ClassDef):
            found |= {node.name, *(f"{node.name}.{name}" for name in names_of(node))}
    return found


def is_defined(name: str) -> bool:
    return any(name in defined_in(path) for path in owners().get(name.partition(".")[0], ()))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_what_a_guide_names_exists(page: Path) -> None:
    """Paths, modules' names, classes and their methods, as they stand in backticks."""
    files = [path for top in ("locator", "dnsserver", "tests") for path in (ROOT / top).rglob("*")]
    for text in quoted(page):
        if text.startswith(tuple(f"{name}/" for name in TOP)) or text in TOP:
            assert list(ROOT.glob(text.rstrip("/"))), f"{text} does not exist"
        elif text.endswith((".py", ".toml")):
            assert any(path.name == text for path in files), f"{text} does not exist"
        elif re.fullmatch(r"[A-Za-z_]+\.[A-Za-z_]+|[A-Z][a-z]\w+", text) and text not in EXEMPT:
            assert is_defined(text), f"{text} does not exist"


def test_what_a_docstring_names_exists() -> None:
    """In the product, by module or by class, as in ``Responder.answer``, and classes by names of several words."""
    for path in MODULES.values():
        for name in re.findall(r"``([A-Za-z_]+(?:\.[A-Za-z_]+)?)``", path.read_text()):
            owner, _, member = name.partition(".")
            is_ours = re.fullmatch(NAMED, name) or (member and owner in owners() and member not in ("py", "toml"))
            assert not is_ours or name in FOREIGN or is_defined(name), (
                f"{path.relative_to(ROOT)}: {name} does not exist"
            )


def flags() -> set[str]:
    """Return every flag of every command."""
    return {flag for name in COMMANDS for flag in parser_of(name).known_flags()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_that_a_page_names_exist(page: Path) -> None:
    """In backticks, and where ``topodns`` is run."""
    texts = quoted(page)
    for entry in commands(page.read_text()):
        texts += re.split(r"(?<!-n )topodns ", entry.command, maxsplit=1)[1:]  # kubectl -n topodns has other flags
    named = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert named - flags() - OTHERS_FLAGS == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file or folder of the project, and to a heading in it."""
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"
    for folder in re.findall(r"kubectl [^\n`]*?(?:apply|delete|diff) -k ([\w./-]+)", page.read_text()):
        assert (ROOT / folder / "kustomization.yaml").is_file(), f"{folder} has no kustomization"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_steps_that_a_page_shows_are_those_of_doctor(page: Path) -> None:
    """Each with its title, as ``doctor`` prints it."""
    for title in re.findall(r"^[\u2713\u2717\u2013] (.*?)(?: \(.*?\))?(?::|$)", page.read_text(), re.MULTILINE):
        assert title in {code.title for code in StepCode}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_stand_in_a_table(page: Path) -> None:
    """Below a head and its line: after an empty line, Markdown shows rows as a paragraph."""
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        assert re.match(r".*\n\|(?: *:?-+:? *\|)+\n", table), table.partition("\n")[0]
