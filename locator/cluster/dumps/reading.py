# SPDX-License-Identifier: Apache-2.0

"""Reads files into one dump.

A server starts a process for each reading (``worker``), so every import here delays it.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from locator.api import dump, dump_text
from locator.api.decoding import RESOURCES_BY_GROUP_KIND, ByGroupKind, by_group_kind, with_pod_labels
from locator.api.deltas import DeltaBatch, FileLine, Replace, object_reference
from locator.api.dump import ReadCounts, Skipped
from locator.findings import ClusterCode
from locator.model import (
    ENDPOINTS,
    ERROR,
    KINDS,
    EndpointSlice,
    Finding,
    Object,
    Pod,
    Service,
    and_more,
    by_kind,
    kind_of,
    object_key,
)
from locator.printable import printable
from locator.topology.annotations import labels_asked_for

Report = Callable[[str], None]  # takes what is being read now
STANDARD_INPUT = "standard input"
MENTIONED = 10  # files that are broken
PART = 1 << 20  # octets that are read at once
BEGINNING = 1 << 16  # octets of a file that tell a kubeconfig from a dump
_KUBECONFIG_KEY = re.compile(rb"^(?:clusters|contexts|current-context|users):", re.MULTILINE)
_JSON_KIND = re.compile(rb'"kind"\s*:\s*"(\w+)"')
LARGE = 10_000_000  # octets of YAML that take a second
REPORTED = 1000  # objects from one report to the next
NO_MEMORY = "too little memory to read this, expected a smaller dump, or a higher limit"
CORE_BY_MISTAKE = "core"  # a group that does not exist: the core group has no name


class BadDump(Exception):
    """The files cannot be read at all; the text names the file, the line if known, and the reason."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class Input(NamedTuple):
    """A file to read, or a pipe with its *content*.

    ``in_folder``: nobody has named this file, but its folder. ``passed_over`` says why it is not read, if it is not.
    """

    name: str
    content: bytes | None = None
    in_folder: bool = False
    passed_over: Skipped | None = None

    @property
    def file(self) -> str:
        """The name as a shell knows it, empty for standard input."""
        return "" if self.name == STANDARD_INPUT else self.name


class Dump(Struct):
    """The objects in all files in order, the findings, and where each object stands.

    ``origins`` maps objects (``object_reference``) to files. It leaves out pods: no later check reports them.
    ``lacks`` names the kinds of which there is no object, and no list: the dump says nothing about them.
    ``labels`` are the keys of the labels of Pods that were read.
    """

    objects: list[Object]
    findings: list[Finding]
    origins: dict[str, FileLine]
    lacks: frozenset[str]
    counts: ReadCounts
    labels: frozenset[str] = frozenset()

    def batch(self) -> DeltaBatch:
        """Return the dump as the batch of a source: it replaces all objects and all findings."""
        deltas = [
            Replace(kind, of_kind, lacks=kind.__name__ in self.lacks, partial=True, labels=self.labels)
            for kind, of_kind in by_kind(self.objects).items()
        ]
        return DeltaBatch(deltas, {"dump": self.findings}, files=self.origins)


def read_inputs(
    inputs: Sequence[Input],
    report: Report = lambda text: None,
    resources: ByGroupKind = RESOURCES_BY_GROUP_KIND,
) -> Dump:
    """Read *inputs* (``DumpFiles.inputs``). Raises BadDump. Calls *report* with what it reads now.

    *resources* says how each kind is read. The error names all files that are broken.

    If an object occurs twice and differs, the later one counts, and there is a finding. Endpoints count only for a
    Service that has no EndpointSlice in any file.
    """
    dump = _read_all(inputs, report, resources)
    read = resources["", Pod.__name__].labels
    services = (one for one in dump.objects if isinstance(one, Service))
    asked = labels_asked_for(services, not_balanced_too=True) | read  # nobody can have a dump read again for a label
    if asked != read:  # seldom, so nobody else has to find out first
        dump = _read_all(inputs, report, by_group_kind(with_pod_labels(asked)))
    dump.labels = asked
    return dump


def _read_all(inputs: Sequence[Input], report: Report, resources: ByGroupKind) -> Dump:
    reading = _Reading(resources)
    bad = list[str]()
    for source in inputs:
        if source.passed_over:
            reading.pass_over(source.passed_over, FileLine(source.name, None))
            continue
        report(f"{source.name}: reading")
        try:
            reading.read(source, report)
        except OSError as error:
            bad.append(f"{source.name}: {error.strerror}, expected a file that can be read")
        except dump_text.NotADump as error:
            bad.append(f"{source.name}: {error}")
        except MemoryError:  # where the operating system limits a process, as ``ulimit -v`` does
            bad.append(f"{source.name}: {NO_MEMORY}")
    if bad:
        more = [f"and {len(bad) - MENTIONED} more"] if bad[MENTIONED:] else []
        raise BadDump("; ".join([*bad[:MENTIONED], *more]))
    # The file is a kubeconfig, for example, or the folder the wrong one.
    if not reading.objects and all(finding.severity != ERROR for finding in reading.findings):
        raise BadDump(_nothing_in([source for source in inputs if not source.passed_over]))
    return reading.dump()


class _Reading:
    """What has been read so far."""

    def __init__(self, resources: ByGroupKind) -> None:
        self.objects: dict[tuple[str, str], Object] = {}  # by kind and key
        self.findings: dict[Finding, Finding] = {}  # by what they say, without where
        self._resources = resources
        self._groups = {group for group, _ in resources} | {CORE_BY_MISTAKE}
        self._kinds = {kind: group for group, kind in resources}
        self._origins: dict[str, FileLine] = {}
        self._held = set[str]()
        self._unread = Counter[tuple[str, str]]()  # by group and kind
        self._misplaced: dict[tuple[str, str], FileLine] = {}  # the first of those that have a wrong group
        self._passed_over: dict[Skipped, list[FileLine]] = {}  # files, or documents in them
        self._files = set[str]()  # of which anything was read
        self._room = dump_text.MAX_OCTETS  # for what is still to be read
        self._large_yaml = 0

    def read(self, source: Input, report: Report) -> None:
        """Read a file. Raises OSError, NotADump and MemoryError."""
        data, file_name = _content(source, self._room), source.name.lower()
        if file_name.endswith(".gz"):
            data = dump_text.unpacked(data, source.file, self._room)
        self._room -= len(data)
        if len(data) > LARGE and data[:1] not in (b"{", b"["):
            self._large_yaml += len(data)
        entries = dump.entries(
            data,
            file=source.file,
            only_json=file_name.endswith((".json", ".json.gz")),
            among_others=source.in_folder,
            resources=self._resources,
        )
        number = skipped = 0
        for number, (line, item) in enumerate(entries, 1):
            if number % REPORTED == 0:
                report(f"{source.name}: reading, {number:,} objects so far")
            if isinstance(item, Skipped):
                skipped += 1
                self.pass_over(item, FileLine(source.name, line))
            elif isinstance(item, dump.OtherKind):
                self._unread[item] += 1
                if item.kind in self._kinds and item.group in self._groups:
                    self._misplaced.setdefault(item, FileLine(source.name, line))
            elif isinstance(item, dump.ListOf):
                self._held.add(item.kind)
            elif isinstance(item, Finding):
                self._held.add(item.kind)  # an object that cannot be read is one all the same
                self._find(replace(item, file=source.name))
            else:
                self._add(item, FileLine(source.name, line))
        if not skipped or skipped < number:
            self._files.add(source.name)

    def pass_over(self, reason: Skipped, origin: FileLine) -> None:
        """Note a file that is not read, or a document in one."""
        self._passed_over.setdefault(reason, []).append(origin)

    def dump(self) -> Dump:
        """Return all that was read."""
        every = self.objects.values()
        services = {item.key for item in every if isinstance(item, Service)}
        sliced = {item.service_key for item in every if isinstance(item, EndpointSlice) and item.kind != ENDPOINTS}

        def counts(kind: str, key: str) -> bool:
            return kind != ENDPOINTS or (key in services and key not in sliced)

        for (group, kind), origin in self._misplaced.items():
            self._find(_misplaced(group, kind, self._kinds[kind], self._unread[group, kind], origin))
        for reason, origins in self._passed_over.items():
            self._find(_passed_over(reason, origins))
        objects = [item for (kind, key), item in self.objects.items() if counts(kind, key)]
        findings = [
            row for row in self.findings.values() if counts(row.kind, object_key(row.namespace or "default", row.name))
        ]
        number = Counter(kind for kind, _ in self.objects)
        unread = {f"{kind}.{group}" if group else kind: n for (group, kind), n in self._unread.items()}
        held = self._held | number.keys()
        held |= {EndpointSlice.__name__} if ENDPOINTS in held else set()
        lacks = frozenset(kind.__name__ for kind in KINDS) - held
        passed_over = {origin.file for origins in self._passed_over.values() for origin in origins} - self._files
        counted = ReadCounts(len(self._files), number, unread, len(passed_over), self._large_yaml)
        return Dump(objects, findings, self._origins, lacks, counted)

    def _add(self, item: Object, origin: FileLine) -> None:
        kind, key = _identity(item)
        before = self.objects.get((kind, key))
        if before is not None and before != item:
            namespace, _, own_name = key.rpartition("/")
            message = "the same object occurs twice; the later one counts"
            finding = ClusterCode.ObjectTwice.finding(kind, namespace, own_name, message=message)
            self._find(replace(finding, file=origin.file, line=origin.line))
        self.objects[kind, key] = item
        if not isinstance(item, Pod):
            self._origins[object_reference(kind, key)] = origin

    def _find(self, finding: Finding) -> None:
        self.findings.setdefault(replace(finding, file="", line=None), finding)


def _misplaced(group: str, kind: str, own_group: str, number: int, origin: FileLine) -> Finding:
    found = f"{group or 'v1'} found" if group else "apiVersion v1, or none, found"
    return ClusterCode.PassedOver.finding(
        kind,
        field="apiVersion",
        message=f"not read: {found}{and_more(number)}",
        expected=f"a version of {own_group}, as in apiVersion: {own_group}/v1" if own_group else "apiVersion: v1",
        line=origin.line,
        file=origin.file,
    )


def _passed_over(reason: Skipped, origins: Sequence[FileLine]) -> Finding:
    """Return the finding about files, and documents in them, that were not read for one reason."""
    (file, documents), *others = Counter(origin.file for origin in origins).items()
    more = [f"{documents} documents"] if documents > 1 else []
    more += [f"and {len(others)} more file{'s' if len(others) > 1 else ''}"] if others else []
    message = f"not read: {reason.found}" + (f" ({', '.join(more)})" if more else "")
    return ClusterCode.PassedOver.finding(message=message, expected=reason.expected, line=origins[0].line, file=file)


def _nothing_in(inputs: Sequence[Input]) -> str:
    names = ", ".join(dict.fromkeys(source.name for source in inputs))
    kinds = ", ".join([*(kind.__name__ for kind in KINDS), ENDPOINTS])
    for source in inputs:
        if begins_kubeconfig(_beginning(source)):
            return f"{source.name}: a kubeconfig found, expected a dump; --kubeconfig {source.name} reads its cluster"
    return f"{names}: no object that topodns reads, expected some of {kinds}; {dump_text.COMMAND} prints them"


def _identity(item: Object) -> tuple[str, str]:
    """Return the kind and the ``namespace/name`` of an object as Kubernetes has it."""
    if isinstance(item, EndpointSlice):
        return item.kind, object_key(item.namespace, item.name)
    return kind_of(item).__name__, item.key


def _content(source: Input, most: int) -> bytes:
    """Return the content of an input, which may have *most* octets. Raises OSError and NotADump."""
    if source.content is not None:
        return source.content
    with open(source.name, "rb", buffering=0) as file:
        return read_all(file.fileno(), most)


def read_all(descriptor: int, most: int) -> bytes:
    """Return all that can be read from a file or a pipe. Raises OSError, and NotADump for more than *most* octets.

    A file system may say that a file is smaller than it is, and a device has no end.
    """
    content = io.BytesIO()  # its value is no copy
    while part := os.read(descriptor, PART):
        content.write(part)
        if content.tell() > most:
            raise dump_text.too_large()
    return content.getvalue()


def _beginning(source: Input) -> bytes:
    if source.content is not None:
        return source.content[:BEGINNING]
    with open(source.name, "rb") as file:
        return file.read(BEGINNING)


def begins_kubeconfig(beginning: bytes) -> bool:
    """Whether a file is a kubeconfig rather than a dump, by its first ``BEGINNING`` octets."""
    kind = _JSON_KIND.search(beginning) if beginning.lstrip().startswith(b"{") else None
    return kind[1] == b"Config" if kind is not None else _KUBECONFIG_KEY.search(beginning) is not None
