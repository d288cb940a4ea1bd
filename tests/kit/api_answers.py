# SPDX-License-Identifier: Apache-2.0

"""An API server's answers to a list or a watch, without a server: lines of a watch, pages of a list, and a stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from tests.kit.waiting import PATIENCE

Raw = dict[str, Any]
INITIAL_END = {"k8s.io/initial-events-end": "true"}


def raw(name: str, version: int, label: object = "1", *, uid: str = "1") -> Raw:
    """Return a namespace; with a *label* that is not a string, decoding it fails."""
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version), "labels": {"v": label}}}


def line(event: str, item: Raw) -> bytes:
    return json.dumps({"type": event, "object": item}).encode()


def bookmark(version: int, annotations: Mapping[str, str] | None = None) -> bytes:
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(version), "annotations": annotations}})


def error(code: int, message: str = "why") -> bytes:
    return line("ERROR", {"kind": "Status", "code": code, "reason": "Reason", "message": message})


def page(*items: Raw, version: int, more: str = "") -> bytes:
    return json.dumps({"metadata": {"resourceVersion": str(version), "continue": more}, "items": items}).encode()


class Answer:
    """A response that yields batches of lines; then it raises *then*, ends, or (*waits*) stays open until ``end``."""

    def __init__(
        self, *batches: list[bytes], then: Exception | None = None, waits: bool = False, page: bytes = b""
    ) -> None:
        self.batches, self.then, self.waits, self.page = batches, then, waits, page
        self.given = 0
        self.ended = threading.Event()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def __iter__(self) -> Iterator[list[bytes]]:
        for batch in self.batches:
            self.given += 1
            yield batch
        if self.waits:
            assert self.ended.wait(PATIENCE)
        if self.then is not None:
            raise self.then

    def read(self) -> bytes:
        return self.page

    def end(self) -> None:
        self.ended.set()
