# SPDX-License-Identifier: Apache-2.0

"""The browser of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.kit.browser import running_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Run a real Chromium for the whole session."""
    with running_chromium() as browser:
        yield browser
