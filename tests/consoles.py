"""Commands in the ``console`` blocks of pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class Entry(NamedTuple):
    """A command, on one line; the comment behind it; and the output that the page shows below."""

    command: str
    comment: str
    output: str


def commands(page: str) -> Iterator[Entry]:
    """Yield the commands in all console blocks of a page, or of a part of one."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        yield from entries(block)


def entries(block: str) -> Iterator[Entry]:
    """Yield the commands of a block, each after ``$ ``."""
    for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = text.replace("\\\n", " ").partition("\n")
        command, _, comment = line.partition(" #")
        yield Entry(command.strip(), comment.strip(), output)
