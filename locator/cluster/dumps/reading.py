"""Reads files into one dump, and passes a dump from one process to another.

A server starts a process for each reading, so every import here delays it.
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
    """The files cannot be read at all; the text names the file, the line if known, and the reason."""


class Dump(Struct):
    """The objects in all files in order, the findings, and the file of each object.

    ``origins`` maps objects (``object_reference``) to files. It leaves out pods: no later check reports them.
    """

    objects: list[Object]
    findings: list[Finding]
    origins: dict[str, str]

    def batch(self) -> DeltaBatch:
        """Return the dump as the batch of a source: it replaces all objects and all findings."""
        return DeltaBatch(replacements(self.objects), {"dump": self.findings}, files=self.origins)


def read_inputs(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
    """Read *inputs* (``DumpFiles.inputs``). Raises BadDump.

    If an object occurs twice, the later one counts, and there is a finding.
    """
    objects: dict[tuple[type, str], Object] = {}
    findings: list[Finding] = []
    origins: dict[str, str] = {}
    for name, content in inputs:
        for item in _objects(name, content):
            if isinstance(item, Finding):
                findings.append(msgspec.structs.replace(item, file=name))
                continue
            key, kind = (type(item), item.key), type(item).__name__
            if key in objects:
                namespace, _, own_name = item.key.rpartition("/")
                message = "the same object occurs twice; the later one counts"
                finding = ClusterCode.ObjectTwice.finding(
                    kind, namespace, own_name, field="", message=message, file=name
                )
                findings.append(finding)
            objects[key] = item
            if not isinstance(item, Pod):
                origins[object_reference(kind, item.key)] = name
    if not objects and not findings:  # the file is a kubeconfig, for example, or the folder the wrong one
        names = ", ".join(dict.fromkeys(name for name, _ in inputs))
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise BadDump(f"{names}: no object that topodns reads, expected some of {kinds}")
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
    except MemoryError:  # where the operating system limits a process, as ``ulimit -v`` does
        raise BadDump(f"{name}: too little memory to read this") from None


class _Packed(NamedTuple):
    """A dump as one process sends it to another."""

    batches: list[bytes]
    findings: list[Finding]
    origins: dict[str, str]


def read_packed(inputs: bytes) -> bytes:
    """Read pickled *inputs*; return the dump or the BadDump for ``unpacked``."""
    try:
        result = read_inputs(pickle.loads(inputs))
    except BadDump as error:
        return pickle.dumps(error)
    return pickle.dumps(_Packed(list(packing.batches(result.objects)), result.findings, result.origins))


def unpacked(packed: bytes) -> Dump:
    """Return the dump that ``read_packed`` read. Raises BadDump."""
    result: _Packed | BadDump = pickle.loads(packed)
    if isinstance(result, BadDump):
        raise result
    return Dump(list(packing.unbatched(result.batches)), result.findings, result.origins)
