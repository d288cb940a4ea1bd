# SPDX-License-Identifier: Apache-2.0

"""axe-core, which finds what keeps people from using a page: with a screen reader, with little sight, by keyboard.

npm fetches it once, into ``.cache/``. Without npm the test is skipped, or fails in CI.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
from functools import cache
from pathlib import Path

from playwright.sync_api import Page

from tests.kit.made_once import made_once
from tests.kit.this_machine import needs_tool

VERSION = "4.14.1"
# As npm writes it into lock files.
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
SERIOUS = ("serious", "critical")
FETCHING = 120.0  # seconds

RUN = """async () => (await axe.run({resultTypes: ["violations"]})).violations.flatMap(
    ({id, impact, help, nodes}) => nodes.map(({target}) => [impact, `${id}: ${help}: ${target.join(" ")}`]))"""


def faults(page: Page) -> list[str]:
    """Return the serious and critical faults of a page: the rule, what it asks for, and where it is broken."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(_script())
    return [text for impact, text in page.evaluate(RUN) if impact in SERIOUS]


@cache
def _script() -> str:
    return (made_once("axe-core", [INTEGRITY.encode()], _fetch) / "axe.min.js").read_text()


def _fetch(folder: Path) -> None:
    """Put axe-core into a folder. Raises ValueError if it is not the one that we know."""
    npm = needs_tool("npm")
    command = (npm, "pack", "--silent", "--ignore-scripts", f"axe-core@{VERSION}")
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=FETCHING)
    archive = folder / f"axe-core-{VERSION}.tgz"
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        raise ValueError(f"axe-core {VERSION} has integrity {found}, expected {INTEGRITY}")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/axe.min.js")
        assert script is not None
        (folder / "axe.min.js").write_bytes(script.read())
