# SPDX-License-Identifier: Apache-2.0

"""A real Chromium, and pages in it that fail a test on any error: in the console, in a script, in a request.

Without Chromium the test is skipped, or fails in CI.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

from tests.kit.this_machine import lacking
from tests.kit.waiting import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # root cannot use it, and containers often do not have it
    "--disable-dev-shm-usage",  # containers have little shared memory
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
)
WIDE = (1280, 800)
LEFT = "net::ERR_ABORTED"  # of requests that ended because somebody left the page, such as a stream

Scheme = Literal["light", "dark"]


class FaultyPageError(Exception):
    """What went wrong in a page, one line for each error."""


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Run Chromium until the block ends."""
    program = next(filter(None, map(shutil.which, NAMES)), None) or lacking("chromium is not installed here")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*FLAGS, "--no-proxy-server"])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page that somebody visits; ``errors`` are what went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._responded)
        page.on("dialog", self._asked)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"console: {message.location['url']}: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != LEFT:
            self.errors.append(f"request: {request.url}: {request.failure}")

    def _responded(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"response: {response.url}: {response.status}")

    def _asked(self, dialog: Any) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def visiting(
    browser: Browser,
    url: str,
    *,
    width: int = WIDE[0],
    height: int = WIDE[1],
    scheme: Scheme = "light",
    javascript: bool = True,
    still: bool = True,
    allowed: str = "",
) -> Iterator[Page]:
    """Visit a page as somebody new until the block ends; fail on every error there but those that match *allowed*.

    *still*: the person has asked for reduced motion. Raises FaultyPageError.
    """
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=1,
        color_scheme=scheme,
        java_script_enabled=javascript,
        reduced_motion="reduce" if still else "no-preference",
        locale="en-GB",
        timezone_id="UTC",
    )
    context.set_default_timeout(PATIENCE * 1000)
    expect.set_options(timeout=PATIENCE * 1000)
    try:
        visit = Visit(context.new_page())
        visit.page.goto(url)
        try:
            yield visit.page
        except Exception as error:
            error.add_note("\n".join(["In the page:", *visit.errors]))
            raise
        errors = [error for error in visit.errors if not (allowed and re.search(allowed, error))]
        if errors:
            raise FaultyPageError("\n".join([visit.page.url, *errors]))
    finally:
        context.close()
