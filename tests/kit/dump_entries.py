# SPDX-License-Identifier: Apache-2.0

"""What a text holds as a dump, and what is said of one that is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from locator.api.dump import DumpEntry, ListOf, OtherKind, Skipped, entries
from locator.api.dump_text import NotADump
from locator.model import Finding, Object
from tests.kit.api_objects import Item


def objects_in(found: Iterable[DumpEntry]) -> list[Object]:
    return [item for _, item in found if not isinstance(item, Finding | OtherKind | ListOf | Skipped)]


def read(text: str | bytes, **options: Any) -> list[DumpEntry]:
    return list(entries(text.encode() if isinstance(text, str) else text, **options))


def refused(text: str | bytes, **options: Any) -> str:
    with pytest.raises(NotADump) as caught:
        read(text, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


def listed(items: Sequence[Item], kind: str = "List") -> Item:
    return {"apiVersion": "v1", "items": list(items), "kind": kind, "metadata": {"resourceVersion": ""}}
