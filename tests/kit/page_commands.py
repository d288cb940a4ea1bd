# SPDX-License-Identifier: Apache-2.0

"""Sections of pages, their tables, and the commands in their ``console`` blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A command, on one line; the comment behind it; and the output that the page shows below."""

    command: str
    comment: str
    output: str


def section(page: Path, heading: str) -> str:
    """Return the text below a heading of the second level, up to the next one."""
    (text,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page.read_text(), re.DOTALL | re.MULTILINE)
    return str(text)


def table(page: Path, heading: str) -> dict[str, list[str]]:
    """Return the first table below a heading: the other cells by the first."""
    lines = re.findall(r"^\| (.*) \|$", section(page, heading), re.MULTILINE)
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines)
    return {first: rest for first, *rest in rows}


def commands(page: str) -> Iterator[Entry]:
    """Yield the commands in all console blocks of a page, or of a part of one."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        yield from entries(block)


def entries(block: str) -> Iterator[Entry]:
    """Yield the commands of a block, each after ``$ ``."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = text.replace("\\\n", " ").partition("\n")
        command, _, comment = line.partition(" #")
        output = re.sub(r"(^# .*\n)+\Z", "", output, flags=re.MULTILINE)  # about the next command
        yield Entry(command.strip(), comment.strip(), output)
