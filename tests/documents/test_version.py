# SPDX-License-Identifier: Apache-2.0

"""One version: that of ``dnsserver``. Whatever else names one names the same. And the versions of others."""

from __future__ import annotations

import re
import tomllib

import pytest

from dnsserver import __version__
from docs.pages.site_pages import pages
from tests.kit.go_programs import COREDNS, HELM, KUBERNETES
from tests.kit.this_machine import ROOT

# Files, or all pages, and what says the version in them. An image without a tag would be ``latest``: nobody builds it.
PLACES = {
    "chart": ("manifests/chart/Chart.yaml", r"^version: (\S+)$"),
    "chart's app": ("manifests/chart/Chart.yaml", r"^appVersion: (\S+)$"),
    "native code": ("native/Cargo.toml", r'^version = "(.+?)"'),
    "images of the manifests": ("manifests/**/*.yaml", r"^ *image: topodns:?(\S*)$"),
    "images of examples": ("examples/**/*.yaml", r"^ *image: topodns:?(\S*)$"),
    "images of pages": ("", r"^\$ (?:docker|kind) (?:.*\\\n)*?.*[ /]topodns:?(\S*)"),
    "overlays": ("manifests/overlays/*/kustomization.yaml", r"^#? *newTag: (\S+)$"),
    "overlays of pages": ("", r"^ *newTag: (\S+)$"),
}


@pytest.mark.parametrize("place", PLACES)
def test_it_is_the_same_everywhere(place: str) -> None:
    """In each place that names it, of which there is one at least."""
    files, pattern = PLACES[place]
    paths = ROOT.glob(files) if files else pages()
    found = {version for path in paths for version in re.findall(pattern, path.read_text(), re.MULTILINE)}
    assert found == {__version__}


def test_the_package_takes_it_from_the_code() -> None:
    """``pyproject.toml`` names none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "dnsserver.__version__"}


def test_the_page_names_what_tests_run_with() -> None:
    """``docs/versions.md``: what is supported, and which versions tests have."""
    page = (ROOT / "docs" / "versions.md").read_text()
    rows = dict(re.findall(r"^\| (\w+)(?:,[^|]*)? +\| (.*) \|$", page, re.MULTILINE)[::-1])  # the first row of each
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = (ROOT / "manifests" / "chart" / "Chart.yaml").read_text()
    (kubernetes,) = re.findall(r'^kubeVersion: ">=(\d+\.\d+)\.0-0"$', chart, re.MULTILINE)
    assert rows["Kubernetes"].startswith(f"{kubernetes} and newer | {KUBERNETES.removeprefix('v')}: ")
    assert rows["CoreDNS"].endswith(f" | {COREDNS.removeprefix('v')}")
    assert f" | {HELM.removeprefix('v')}, " in rows["Helm"]
    assert rows["Python"].startswith(f"{project['requires-python'].removeprefix('>=')} and newer, ")
    assert "Programming Language :: Python :: 3.11" in project["classifiers"]
