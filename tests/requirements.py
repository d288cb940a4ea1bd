"""The pinned libraries: ``requirements.txt`` has those of topodns, ``constraints.txt`` those of its developers, too."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.this_machine import ROOT

REQUIREMENTS, CONSTRAINTS = ROOT / "requirements.txt", ROOT / "constraints.txt"
_NOT_IN_THE_IMAGE = re.compile(r'pip uninstall -y ([^\n]*)|UNUSED_LIBRARIES="([^"]*)"')


class Pin(Struct, frozen=True):
    """A pinned library; ``lines`` is how the file writes it."""

    name: str
    version: str
    requirement: Requirement
    hashes: tuple[str, ...]
    lines: str


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
