# SPDX-License-Identifier: Apache-2.0

"""Makes HTML of what a page shows. Whatever stands in a name, a label or an annotation, it is text there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dnsserver import __version__
from locator.printable import MAX_TEXT, cut

MAX_WORDS = 28_000  # characters of texts on a page, before the others are cut to BRIEF
BRIEF = 24
FOLDER = Path(__file__).parent / "templates"


_left: ContextVar[int] = ContextVar("left")  # of MAX_WORDS on the page that is made now


def environment() -> Environment:
    """Return the templates, which escape everything, and end with an error rather than leave something out."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    templates.filters.update(
        duration=_duration, grouped=_grouped, parted=_parted, segment=_segment, short=_short, within_pairs=_within_pairs
    )
    templates.globals.update(program_version=__version__)
    return templates


def rendered(templates: Environment, name: str, parts: Mapping[str, Any]) -> str:
    """Return a page. However long the texts in it are, and whoever wrote them, it has few of their octets."""
    _left.set(MAX_WORDS)
    return templates.get_template(name).render(parts)


def _shown(value: object) -> object:
    """Return what a page shows of a text that others may have written."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    left = _left.get()
    shown = escape(cut(value, MAX_TEXT) if left > 0 else cut(value, BRIEF, said=False))
    _left.set(left - len(shown))
    return shown


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


def _segment(text: str) -> Markup:
    """Return a text as one segment of a path."""
    return Markup(quote(text, safe=""))  # a link that is cut leads nowhere


def _within_pairs(within: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the parameters of a URL that say within what."""
    return [("within", f"{key}={value}") for key, value in within]
