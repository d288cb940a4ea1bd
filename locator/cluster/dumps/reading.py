"""Reads files into one dump, and passes a dump from one process to another.

A server starts a process for each reading, so every import here delays it.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from locator.api import dump, packing
from locator.api.decoding import RESOURCES_BY_GROUP_KIND, ByGroupKind
from locator.api.deltas import DeltaBatch, object_reference, replacements
from locator.finding_codes import ClusterCode
from locator.model import ENDPOINTS, KINDS, EndpointSlice, Finding, Object, Pod, kind_of, object_key

Report = Callable[[str], None]  # takes what is being read now
BEGINNING = 1 << 16  # octets of a file that tell a kubeconfig from a dump
_KUBECONFIG_KEY = re.compile(rb"^(?:clusters|contexts|current-context|users):", re.MULTILINE)
_JSON_KIND = re.compile(rb'"kind"\s*:\s*"(\w+)"')
REPORTED = 1000  # objects from one report to the next


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


def read_inputs(
    inputs: Sequence[tuple[str, bytes | None]],
    report: Report = lambda text: None,
    resources: ByGroupKind = RESOURCES_BY_GROUP_KIND,
) -> Dump:
    """Read *inputs* (``DumpFiles.inputs``). Raises BadDump. Calls *report* with what it reads now.

    *resources* says how each kind is read.

    If an object occurs twice, the later one counts, and there is a finding. Endpoints count only for a Service that
    has no EndpointSlice in any file.
    """
    objects: dict[tuple[str, str], Object] = {}  # by kind and key
    findings: list[Finding] = []
    origins: dict[str, str] = {}
    for name, content in inputs:
        report(f"{name}: reading")
        for number, item in enumerate(_objects(name, content, resources), 1):
            if number % REPORTED == 0:
                report(f"{name}: reading, {number:,} objects so far")
            if isinstance(item, Finding):
                findings.append(msgspec.structs.replace(item, file=name))
                continue
            kind, key = _identity(item)
            if (kind, key) in objects:
                namespace, _, own_name = key.rpartition("/")
                message = "the same object occurs twice; the later one counts"
                finding = ClusterCode.ObjectTwice.finding(
                    kind, namespace, own_name, field="", message=message, file=name
                )
                findings.append(finding)
            objects[kind, key] = item
            if not isinstance(item, Pod):
                origins[object_reference(kind, key)] = name
    if not objects and not findings:  # the file is a kubeconfig, for example, or the folder the wrong one
        names = ", ".join(dict.fromkeys(name for name, _ in inputs))
        kinds = ", ".join([*(kind.__name__ for kind in KINDS), ENDPOINTS])
        for name, content in inputs:
            if begins_kubeconfig(_content(name, content)[:BEGINNING]):
                raise BadDump(f"{name}: a kubeconfig found, expected a dump; --kubeconfig {name} reads its cluster")
        raise BadDump(f"{names}: no object that topodns reads, expected some of {kinds}; {dump.COMMAND} prints them")
    served = dump.services_by_endpoints(objects.values())

    def counts(kind: str, key: str) -> bool:
        return kind != ENDPOINTS or key in served

    return Dump(
        [item for (kind, key), item in objects.items() if counts(kind, key)],
        [row for row in findings if counts(row.kind, object_key(row.namespace or "default", row.name))],
        origins,
    )


def _identity(item: Object) -> tuple[str, str]:
    """Return the kind and the ``namespace/name`` of an object as Kubernetes has it."""
    if isinstance(item, EndpointSlice):
        return item.kind, object_key(item.namespace, item.name)
    return kind_of(item).__name__, item.key


def _objects(name: str, content: bytes | None, resources: ByGroupKind) -> Iterator[Object | Finding]:
    try:
        yield from dump.objects(_content(name, content), only_json=name.endswith(".json"), resources=resources)
    except OSError as error:
        raise BadDump(f"{name}: {error.strerror}, expected a file that can be read") from None
    except dump.NotADump as error:
        raise BadDump(f"{name}: {error}") from None
    except MemoryError:  # where the operating system limits a process, as ``ulimit -v`` does
        raise BadDump(f"{name}: too little memory to read this") from None


def _content(name: str, content: bytes | None) -> bytes:
    """Return the content of an input. Raises OSError."""
    if content is not None:
        return content
    with open(name, "rb") as file:
        return file.read()


def begins_kubeconfig(beginning: bytes) -> bool:
    """Whether a file is a kubeconfig rather than a dump, by its first ``BEGINNING`` octets."""
    kind = _JSON_KIND.search(beginning) if beginning.lstrip().startswith(b"{") else None
    return kind[1] == b"Config" if kind is not None else _KUBECONFIG_KEY.search(beginning) is not None


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
