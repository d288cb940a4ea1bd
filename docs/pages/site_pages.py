# SPDX-License-Identifier: Apache-2.0

"""Makes the pages outside of ``docs/`` part of the site, and their links lead to the same places: a hook of mkdocs.

In the site, what is in ``docs/`` is at the top, and everything else where it is in the project.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs/"
BESIDE = ("*.md", "examples/*.md", "manifests/**/*.md")
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#\s]+)")
BLOCK = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
IN_LIST = re.compile(r"^  ```.*?^  ```$|^  (?=\S)", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
AFTER_PARAGRAPH = re.compile(r"(\n\n    (?! ).*(?:\n    .*)*\n)(?=- )")


def pages() -> list[Path]:
    """Return every page of the project that people read."""
    return sorted({*(ROOT / DOCS).glob("*.md"), *(path for pattern in BESIDE for path in ROOT.glob(pattern))})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of ``docs/``, and the files that pages link to."""
    for page in pages():
        place = page.relative_to(ROOT).as_posix()
        for path in (place, *_links(place, page.read_text())):
            if not path.startswith(DOCS) and not files.get_file_from_path(path) and (ROOT / path).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page for the site, from a page as forges show it."""
    place = page.file.src_uri if (ROOT / page.file.src_uri).exists() else DOCS + page.file.src_uri
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        return posixpath.relpath(_target(place, link[0]).removeprefix(DOCS), here or ".")

    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    return with_source(_outside_blocks(lambda text: _as_python_has_it(LINK.sub(moved, text)), markdown), source)


def with_source(markdown: str, source: str) -> str:
    """Return a page that says what git clones, unless *source* is a placeholder."""
    return markdown if ".invalid" in source else markdown.replace("<this repository>", source)


def with_address(place: str, markdown: str, address: str) -> str:
    """Return a page whose links lead to the site at *address*, for where it stands without the other pages."""

    def moved(link: re.Match[str]) -> str:
        path = PurePosixPath(_target(place, link[0]).removeprefix(DOCS))
        html = path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")
        return f"{address}/{html if path.suffix == '.md' else path}"

    return _outside_blocks(lambda text: LINK.sub(moved, text), markdown)


def _target(place: str, link: str) -> str:
    """Return where in the project a link of the page at *place* leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def _links(place: str, markdown: str) -> Iterator[str]:
    for text in BLOCK.split(markdown)[::2]:
        yield from (_target(place, link) for link in LINK.findall(text))


def _outside_blocks(change: Callable[[str], str], markdown: str) -> str:
    parts = BLOCK.split(markdown)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def _as_python_has_it(text: str) -> str:
    """Return Markdown as Python has it.

    Items are indented by four, and follow paragraphs after a blank line. ``|`` in the code of a table's cell needs no
    backslash.
    """
    unescaped = CODE.sub(lambda code: code[0].replace(r"\|", "|"), text)
    indented = IN_LIST.sub(lambda inside: re.sub(r"^(?=.)", "  ", inside[0], flags=re.MULTILINE), unescaped)
    return AFTER_PARAGRAPH.sub(r"\1\n", indented)
