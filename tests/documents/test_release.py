# SPDX-License-Identifier: Apache-2.0

"""What ``make release`` refuses, and where it puts addresses. ``tests/release/reproducible.py`` makes whole ones."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from dnsserver import __version__
from docs.pages import site_pages
from locator.findings import documentation
from tests.kit.this_machine import ROOT
from tests.release.releasable import GIT, SET, releasable
from tests.release.release import CONTACTS, STAND_ALONE, UnfitError, addresses, put_in, refusals

READ = ("pyproject.toml", "CHANGELOG.md", *CONTACTS)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the files that decide, from which a release could be made."""
    for name in READ:
        shutil.copy(ROOT / name, tmp_path / name)
    return releasable(tmp_path)


def changed(clone: Path, edits: Mapping[str, tuple[str, str]]) -> None:
    """Replace a text in each file, and commit that."""
    for name, (old, new) in edits.items():
        text = (clone / name).read_text()
        assert old in text
        (clone / name).write_text(text.replace(old, new))
    subprocess.run([*GIT, "commit", "--quiet", "--all", "--message", "Edited"], cwd=clone, check=True)


def test_a_clone_is_released_once_its_addresses_are_set(clone: Path) -> None:
    """In one place, and in the pages that say whom to write to; the changes have a section of the version."""
    assert list(refusals(clone, __version__)) == []
    assert addresses(clone) == SET


REFUSED = {
    # id: what is changed, and the beginning of what is said
    "home": ({"pyproject.toml": ("home.example", "home.invalid")},
             "pyproject.toml: project.urls.Homepage: https://home.invalid/topodns is a placeholder"),
    "source": ({"pyproject.toml": ("source.example", "source.invalid")}, "pyproject.toml: project.urls.Source: "),
    "docs": ({"pyproject.toml": ("docs.example", "docs.invalid")}, "pyproject.toml: project.urls.Documentation: "),
    "registry": ({"pyproject.toml": ("registry.example", "registry.invalid")},
                 "pyproject.toml: tool.topodns.image: registry.invalid/topodns is a placeholder"),
    "tag": ({"pyproject.toml": ("registry.example/topodns", "registry.example/topodns:1")},
            "pyproject.toml: tool.topodns.image: found 'registry.example/topodns:1', expected a repository"),
    "no scheme": ({"pyproject.toml": ("https://home.example", "home.example")},
                  "pyproject.toml: project.urls.Homepage: found 'home.example/topodns', expected "),
    "no key": ({"pyproject.toml": ("Homepage", "Home")}, "pyproject.toml: project.urls.Homepage: found '', expected "),
    "contact": (
        {"SECURITY.md": ("# Reporting", "# Of security@topodns.invalid.")},
        "SECURITY.md: line 1: security@topodns.invalid is a placeholder",
    ),
    "maintainer": (
        {"MAINTAINERS.md": ("# Maintainers", "# <https://who.invalid/us>")},
        "MAINTAINERS.md: line 1: https://who.invalid/us is a placeholder",
    ),
    "changes": ({"CHANGELOG.md": (f"## [{__version__}]", "## [0.0.9]")},
                f"CHANGELOG.md: no section for {__version__}, expected a heading such as: ## [{__version__}] - "),
}  # fmt: skip


@pytest.mark.parametrize(("edits", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(clone: Path, edits: Mapping[str, tuple[str, str]], said: str) -> None:
    """One reason, which names the file and the key or line."""
    changed(clone, edits)
    (reason,) = refusals(clone, __version__)
    assert reason.startswith(said)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_a_dirty_tree_is_refused(clone: Path, name: str) -> None:
    """A file that was changed, or that git does not know."""
    with (clone / name).open("a") as file:
        file.write("\n")
    assert list(refusals(clone, __version__)) == [
        f"git: 1 files differ from the commit ({name}), expected none: git status"
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that addresses are put into, with the addresses."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "manifests" / "chart", tmp_path / "manifests" / "chart")
    (tmp_path / "locator").mkdir()
    shutil.copy(ROOT / "locator" / "findings.py", tmp_path / "locator")
    put_in(tmp_path, SET)
    return tmp_path


def test_pages_that_stand_alone_link_to_the_documentation(tree: Path) -> None:
    """The README, which PyPI shows, and the chart's page."""
    for page in STAND_ALONE:
        links = re.findall(r"\]\(([^)]*)\)", (tree / page).read_text())
        assert len(links) > 5
        assert [link for link in links if not link.startswith((f"{SET.documentation}/", "#"))] == []
    assert f"$ git clone {SET.source} topodns" in (tree / "README.md").read_text()


def test_codes_link_to_the_documentation(tree: Path) -> None:
    """In a release, the address of a finding's documentation is that of the site."""
    released = runpy.run_path(str(tree / "locator" / "findings.py"))
    assert released["documentation"]("UnmetClients") == f"{SET.documentation}/findings.html#unmetclients"
    assert documentation("UnmetClients") == "docs/findings.md#unmetclients"
    assert documentation("NodesReady", "doctor") == "docs/doctor.md#nodesready"


def test_pages_say_what_git_clones_once_that_is_known() -> None:
    """So does the site; with a placeholder, they say it in words."""
    page = "$ git clone <this repository> topodns"
    assert site_pages.with_source(page, "https://source.invalid/topodns") == page
    assert site_pages.with_source(page, SET.source) == f"$ git clone {SET.source} topodns"


def test_the_chart_names_them(tree: Path) -> None:
    """Its home, its source, its image, and the page that each alert leads to."""
    chart = tree / "manifests" / "chart"
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (about["home"], about["sources"]) == (SET.home, [SET.source])
    assert f'`image.repository` | `"{SET.image}"`' in (chart / "README.md").read_text()
    assert yaml.safe_load((chart / "values.yaml").read_text())["image"]["repository"] == SET.image
    rules = (chart / "files" / "monitoring" / "prometheusrule.yaml").read_text()
    pages = re.findall(r"runbook\w*: (\S+)#", rules)
    assert set(pages) == {f"{SET.documentation}/runbook.html"} and len(pages) > 10


def test_a_place_that_has_gone_is_an_error(tree: Path) -> None:
    """Put in a second time, the addresses find no place."""
    with pytest.raises(UnfitError, match=r"values\.yaml: nothing is like .* expected"):
        put_in(tree, SET)
