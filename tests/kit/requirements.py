# SPDX-License-Identifier: Apache-2.0

"""What is pinned: ``requirements.txt`` has the libraries of topodns, ``constraints.txt`` those of its developers, too.

``native/crates.lock`` has the crates of the native code.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.this_machine import ROOT

REQUIREMENTS, CONSTRAINTS = ROOT / "requirements.txt", ROOT / "constraints.txt"
CRATES = ROOT / "native" / "crates.lock"
_NOT_IN_THE_IMAGE = re.compile(r'pip uninstall -y ([^\n]*)|UNUSED_LIBRARIES="([^"]*)"')


class Pin(Struct, frozen=True):
    """A pinned library; ``lines`` is how the file writes it."""

    name: str
    version: str
    requirement: Requirement
    hashes: tuple[str, ...]
    lines: str


class Crate(Struct, frozen=True):
    """A locked crate."""

    name: str
    version: str
    checksum: str


def crates(path: Path = CRATES) -> list[Crate]:
    """Return the crates of a lock, but for the one that it belongs to."""
    return [
        Crate(package["name"], package["version"], package["checksum"])
        for package in tomllib.loads(path.read_text())["package"]
        if "checksum" in package
    ]


def pins(path: Path) -> list[Pin]:
    """Return the pins of a file."""
    found = []
    for lines in re.findall(r"^[\w.-]+==.*\n(?:    .*\n)*", path.read_text(), re.MULTILINE):
        requirement = Requirement(lines.partition("\\")[0].strip())
        (version,) = (specifier.version for specifier in requirement.specifier)
        hashes = tuple(re.findall(r"--hash=(sha256:[0-9a-f]{64})", lines))
        found.append(Pin(canonicalize_name(requirement.name), version, requirement, hashes, lines))
    return found


def in_the_image() -> list[Pin]:
    """Return the pins of what the image has, on a machine like this one."""
    removed = set(
        re.split(r"[\s\\]+", " ".join(map("".join, _NOT_IN_THE_IMAGE.findall((ROOT / "Dockerfile").read_text()))))
    )
    return [
        pin
        for pin in pins(REQUIREMENTS)
        if pin.name not in removed and (pin.requirement.marker is None or pin.requirement.marker.evaluate())
    ]
