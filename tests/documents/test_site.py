# SPDX-License-Identifier: Apache-2.0

"""The documentation as a site: it is built strictly, needs nobody else, and each of its links leads somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs.pages import site_pages
from tests.kit.this_machine import ROOT
from tests.release.release import STAND_ALONE

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("use", "href")}


class Html(HTMLParser):
    """What a page of the site links to, what it loads, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (tag, name) in LOADED:
                self.loaded.append(value or "")
            if (tag, name) == ("a", "href"):
                self.links.append(value or "")
            if name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make site`` builds it: any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(site_dir=str(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> Mapping[Path, Html]:
    """Each page of the site, read."""
    return {path: Html(path) for path in site.rglob("*.html")}


def test_links_lead_somewhere(site: Path, pages: Mapping[Path, Html]) -> None:
    """Also those to files and pages outside of docs/: to a file of the site, and to an anchor in it."""
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "data"):
                continue
            target = path.parent / unquote(parts.path) if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if path.name == "404.html":  # its links are for the root of a server
                target = site / parts.path.lstrip("/")
            known = pages.get(target.resolve())
            if not target.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.parametrize("place", STAND_ALONE)
def test_pages_elsewhere_lead_into_the_site(site: Path, pages: Mapping[Path, Html], place: str) -> None:
    """Where a release shows a page without the others, each of its links leads to a page of the site, and an anchor."""
    address = "https://docs.example/topodns"
    markdown = site_pages.with_address(place, (ROOT / place).read_text(), address)
    links = re.findall(rf"\]\({address}/([^)#]*)#?([^)]*)\)", markdown)
    assert links
    for path, anchor in links:
        target = site / path
        assert target.is_file(), path
        assert not anchor or anchor in pages[target].anchors, f"{path}#{anchor}"


def test_nothing_is_loaded_from_the_internet(site: Path, pages: Mapping[Path, Html]) -> None:
    """No script, style, picture or font."""
    for path, page in pages.items():
        assert [link for link in page.loaded if re.match(r"(https?:)?//", link)] == [], path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text()), sheet
    # The theme would load it from the Internet.
    assert not any('class="mermaid"' in path.read_text() for path in pages)


def test_code_in_tables_is_shown_as_it_is_typed(site: Path) -> None:
    """Without the backslash that a forge needs before ``|`` in a cell."""
    assert "<code>topodns check | true</code>" in (site / "command-line.html").read_text()
    assert [path.name for path in site.rglob("*.html") if re.search(r"<td>.*\\\|", path.read_text())] == []


def test_every_page_can_be_found(site: Path) -> None:
    """The search knows each page of the project, in a script that a browser reads from a file, too."""
    index = json.loads((site / "search" / "search_index.js").read_text().removeprefix("var __index = "))
    titles = {entry["title"] for entry in index["docs"]}
    for page in site_pages.pages():
        heading = re.findall(r"^# (.*)$", page.read_text(), re.MULTILINE)[0].replace("`", "")
        assert any(heading in title for title in titles), page
