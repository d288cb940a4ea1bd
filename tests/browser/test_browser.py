# SPDX-License-Identifier: Apache-2.0

"""The browser of the tests: an error in a page fails the test that visits it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit import axe
from tests.kit.browser import FaultyPageError, visiting

PAGE = """<!doctype html><html lang="en"><title>A page</title><meta http-equiv="Content-Security-Policy"
content="script-src 'unsafe-inline'; img-src 'none'"><main><h1>A page</h1>{}</main></html>"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.html"
    path.write_text(PAGE.format("<p>Some text.</p>"))
    return path


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("<script>console.error('told')</script>", "console: .*: told"),
        ("<script>missing()</script>", "script: missing is not defined"),
        ("<link rel=stylesheet href=missing.css>", "request: .*/missing.css: net::ERR_FILE_NOT_FOUND"),
        ("<script>alert('Hello')</script>", "dialog: Hello"),
        ("<img alt='' src=data:,>", "console: .*Content Security Policy"),
    ],
    ids=["console", "script", "request", "dialog", "policy"],
)
def test_an_error_in_a_page(chromium: Browser, page: Path, fault: str, error: str) -> None:
    """Of each sort."""
    page.write_text(PAGE.format(fault))
    with pytest.raises(FaultyPageError, match=error), visiting(chromium, page.as_uri()):
        pass


def test_a_page_without_an_error(chromium: Browser, page: Path) -> None:
    """Can be visited, and has no fault."""
    with visiting(chromium, page.as_uri()) as visited:
        assert axe.faults(visited) == []


def test_a_fault_that_axe_finds(chromium: Browser, page: Path) -> None:
    """Such as grey on white."""
    page.write_text(PAGE.format("<p style='color: #aaa; background: #fff'>Some text.</p>"))
    with visiting(chromium, page.as_uri()) as visited:
        (fault,) = axe.faults(visited)
    assert fault.startswith("color-contrast: ")
