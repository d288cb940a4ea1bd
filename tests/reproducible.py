"""``make reproducible``: two builds of the image are one. ``make test`` leaves it out: it takes more than a minute."""

from __future__ import annotations

from pathlib import Path

from tests.container import Image


def test_two_builds_are_one(tmp_path: Path) -> None:
    """Whoever builds the image again gets the very same one, if files and image get the same date."""
    image = Image(tmp_path, "localhost/topodns:twice")
    first, second = image.digest, image.build()
    assert first == second
