"""Makes HTML of what a page shows. Whatever stands in a name, a label or an annotation, it is text there.

The only module that imports jinja2.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dnsserver import __version__

FOLDER = Path(__file__).parent / "templates"


def environment() -> Environment:
    """Return the templates, which escape everything, and end with an error rather than leave something out."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    templates.filters.update(
        duration=_duration, grouped=_grouped, parted=_parted, segment=_segment, short=_short, within_pairs=_within_pairs
    )
    templates.globals.update(program_version=__version__)
    return templates


def _grouped(number: int) -> str:
    """Return ``12,345``."""
    return f"{number:,}"


def _duration(seconds: int) -> str:
    """Return ``45 seconds`` or ``5 minutes``."""
    if seconds < 120:
        return f"{seconds} second{'' if seconds == 1 else 's'}"
    if seconds < 7200:
        return f"{seconds // 60} minutes"
    return f"{seconds // 3600} hours"


def _parted(key: str) -> tuple[str, str, str]:
    """Return the prefix of a label key, the slash, and its name; the first two are empty where it has none."""
    return key.rpartition("/")


def _short(key: str) -> str:
    """Return the name of a label key, without its prefix."""
    return key.rpartition("/")[2]


def _segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def _within_pairs(within: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the parameters of a URL that say within what."""
    return [("within", f"{key}={value}") for key, value in within]
