"""Files to one dump: the objects of all files, what is wrong in them, and how a dump crosses between two processes.

Every import here is paid at each reading.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from locator.api import dump, packing
from locator.api.deltas import DeltaBatch, object_reference, replacements
from locator.finding_codes import ClusterCode
from locator.model import KINDS, Finding, Object, Pod


class BadDump(Exception):
    """A snapshot that cannot be read as a whole; the text names file, place and reason."""


class Dump(Struct):
    """What stood in a snapshot: objects in the order found, what was wrong, and in which file each stood.

    ``origins`` are files by the objects' places; pods have none, since nothing is found wrong in them later.
    """

    objects: list[Object]
    findings: list[Finding]
    origins: dict[str, str]

    def batch(self) -> DeltaBatch:
        """Return it as what a source tells: all there is, and all that is wrong."""
        return DeltaBatch(replacements(self.objects), {"dump": self.findings}, files=self.origins)


def read(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
    """Read every input, as ``DumpFiles.inputs`` gives them. Raises BadDump.

    Of an object that stands twice the later one holds; the finding says so.
    """
    objects: dict[tuple[type, str], Object] = {}
    findings: list[Finding] = []
    origins: dict[str, str] = {}
    for name, content in inputs:
        for found in _objects(name, content):
            if isinstance(found, Finding):
                findings.append(msgspec.structs.replace(found, file=name))
                continue
            key = (type(found), found.key)
            if key in objects:
                kind, place = type(found).__name__, found.key.rpartition("/")
                message = "the same object stands twice; the later one holds"
                twice = ClusterCode.ObjectTwice.finding(kind, place[0], place[2], field="", message=message, file=name)
                findings.append(twice)
            objects[key] = found
            if not isinstance(found, Pod):
                origins[object_reference(type(found).__name__, "", found.key)] = name
    if not objects and not findings:  # a kubeconfig, say, or the wrong folder
        names = ", ".join(dict.fromkeys(name for name, _ in inputs))
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise BadDump(f"{names}: no object that matters, expected some of {kinds}")
    return Dump(list(objects.values()), findings, origins)


def _objects(name: str, content: bytes | None) -> Iterator[Object | Finding]:
    try:
        if content is None:
            with open(name, "rb") as file:
                content = file.read()
        yield from dump.objects(content, only_json=name.endswith(".json"))
    except OSError as error:
        raise BadDump(f"{name}: {error.strerror}, expected a file that can be read") from None
    except dump.NotADump as error:
        raise BadDump(f"{name}: {error}") from None


class _Packed(NamedTuple):
    """A dump as it crosses from one process to another."""

    batches: list[bytes]
    findings: list[Finding]
    origins: dict[str, str]


def read_packed(inputs: bytes) -> bytes:
    """Read pickled *inputs*; return the dump, or BadDump, as ``unpacked`` takes it."""
    try:
        found = read(pickle.loads(inputs))
    except BadDump as error:
        return pickle.dumps(error)
    return pickle.dumps(_Packed(list(packing.batches(found.objects)), found.findings, found.origins))


def unpacked(packed: bytes) -> Dump:
    """Return what ``read_packed`` has read. Raises BadDump."""
    found: _Packed | BadDump = pickle.loads(packed)
    if isinstance(found, BadDump):
        raise found
    return Dump(list(packing.unbatched(found.batches)), found.findings, found.origins)
