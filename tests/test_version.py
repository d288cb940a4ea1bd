"""One version: that of ``dnsserver``. Whatever else names one names the same."""

from __future__ import annotations

import re
import tomllib

import pytest

from dnsserver import __version__
from tests.site_pages import pages
from tests.this_machine import ROOT

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
