"""A dump as a source: what ``kubectl get ... -o yaml|json`` prints, in files, folders or a pipe.

YAML becomes JSON first, so that one decoder reads both. Composing YAML holds the interpreter
for seconds, and a server must answer meanwhile: ``load`` reads in a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.to_process
import msgspec
import trio
import yaml
from msgspec import Struct
from yaml._yaml import CParser  # libyaml's; PyYAML's wheels always have it

from locator.decoding import MalformedJSON, NotJSON, decode
from locator.model import KINDS, WARNING, EndpointSlice, Finding, Namespace, Node, Object, Pod, Service
from locator.store import Store

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
POLL_SECONDS = 1.0  # one stat a second for each file; inotify misses the symlink swap of a ConfigMap
BATCH = 500  # objects that cross from the reading process at a time: some milliseconds of work

# Blocks of kubectl's YAML that nobody reads, two thirds of a pod. A block is its key and all
# lines indented deeper; labels hold no blocks, so no label can be mistaken for one.
_SKIMMED = re.compile(
    rb"^( *)(?:managedFields|ownerReferences|containers|initContainers|ephemeralContainers|volumes|tolerations"
    rb"|affinity|securityContext|hostIPs|containerStatuses|initContainerStatuses|images|volumesInUse|volumesAttached"
    rb"|conditions(?=:\r?\n *-)):\r?\n(?:\1(?: .*|- .*)\r?\n|\r?\n)*",
    re.MULTILINE,
)
# A list as kubectl writes it. Its items begin at the margin, so that it can be cut between them:
# many small trees are made faster than a large one, in a fraction of the memory. And what stands
# four spaces deep is of metadata, spec or status, never a label.
_LIST = re.compile(rb"apiVersion: v1\nitems:\n(?=- )")
_ITEM = re.compile(rb"^- ", re.MULTILINE)
_LIST_END = re.compile(rb"^[^- \n]", re.MULTILINE)
_LIST_SKIMMED = re.compile(
    rb"^    (?:uid|resourceVersion|generateName|dnsPolicy|enableServiceLinks|preemptionPolicy|restartPolicy"
    rb"|schedulerName|serviceAccount|serviceAccountName|terminationGracePeriodSeconds|hostIP|qosClass|startTime): .*\n",
    re.MULTILINE,
)
CHUNK = 50  # items composed at a time
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_PLAIN: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class BadSnapshot(Exception):
    """A snapshot that cannot be read as a whole; the text names file, place and reason.

    ``missing`` says that there was nothing to read.
    """


class Dump(Struct):
    """What stood in a snapshot: objects in the order found, what was wrong, and in which file each stood.

    ``origins`` are files by kind and key; pods have none, since nothing is found wrong in them later.
    """

    objects: list[Object]
    findings: list[Finding]
    origins: dict[str, str]

    def located(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return findings that were made later, with the files that their objects stood in."""
        rows = []
        for each in findings:
            key = f"{each.namespace}/{each.name}" if each.namespace else each.name
            rows.append(msgspec.structs.replace(each, file=self.origins.get(f"{each.kind} {key}", "")))
        return rows


class Snapshots:
    """The files, folders and pipes of ``--snapshot``, in order.

    A pipe is read once and kept, since it cannot be read again.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._kept: dict[str, bytes] = {}

    def check(self) -> None:
        """Raise BadSnapshot if a path leads nowhere. Reads nothing."""
        for path in self._paths:
            if path != STDIN and not os.path.exists(path):
                raise BadSnapshot(f"{path}: No such file or directory, expected a file or folder")

    def inputs(self) -> list[tuple[str, bytes | None]]:
        """Return each file to read by name, with its content where it is kept. Raises BadSnapshot."""
        rows: list[tuple[str, bytes | None]] = []
        for path in self._paths:
            if path == STDIN:
                if path not in self._kept:
                    self._kept[path] = _read_standard_input()
                rows.append(("standard input", self._kept[path]))
                continue
            try:
                mode = os.stat(path).st_mode
                if stat.S_ISDIR(mode):
                    within = [each for each in sorted(Path(path).iterdir()) if each.suffix in SUFFIXES]
                    rows += [(str(each), None) for each in within if each.is_file()]
                elif stat.S_ISREG(mode):
                    rows.append((path, None))
                else:
                    if path not in self._kept:
                        self._kept[path] = Path(path).read_bytes()
                    rows.append((path, self._kept[path]))
            except OSError as error:
                raise BadSnapshot(f"{path}: {error.strerror}, expected a file or folder") from None
        if not rows:
            raise BadSnapshot(
                f"{', '.join(self._paths)}: nothing to read, expected files ending in {', '.join(SUFFIXES)}"
            )
        return rows

    def signature(self) -> object:
        """Return a value that differs whenever a file was changed, added or removed."""
        try:
            names = [name for name, content in self.inputs() if content is None]
            return [(name, s.st_mtime_ns, s.st_size, s.st_ino) for name in names for s in [os.stat(name)]]
        except (BadSnapshot, OSError) as error:
            return str(error)

    async def changed(self, before: object) -> None:
        """Wait until the files differ from the signature *before* and are quiet: written to the end."""
        seen = before
        while True:
            await trio.sleep(POLL_SECONDS)
            last, seen = seen, await trio.to_thread.run_sync(self.signature)
            if seen != before and seen == last:
                return


def _read_standard_input() -> bytes:
    """Read past Python's own buffer, whose lock would hold up an end that comes before the input's."""
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def read(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
    """Read every input, as ``Snapshots.inputs`` gives them. Raises BadSnapshot.

    Of an object that stands twice the later one holds; the finding says so.
    """
    collecting = gc.isenabled()
    gc.disable()  # a dump is one growing tree: collecting it again and again takes longer than reading it
    try:
        return _read(inputs)
    finally:
        if collecting:
            gc.enable()


def _read(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
    objects: dict[tuple[type, str], Object] = {}
    findings: list[Finding] = []
    origins: dict[str, str] = {}
    for name, content in inputs:
        try:
            data = Path(name).read_bytes() if content is None else content
        except OSError as error:
            raise BadSnapshot(f"{name}: {error.strerror}, expected a file that can be read") from None
        for found in _objects(name, data):
            if isinstance(found, Finding):
                findings.append(msgspec.structs.replace(found, file=name))
                continue
            key = (type(found), found.key)
            if key in objects:
                place = found.key.rpartition("/")
                message = "the same object stands twice; the later one holds"
                findings.append(Finding(WARNING, type(found).__name__, place[0], place[2], "", message, "", name))
            objects[key] = found
            if not isinstance(found, Pod):
                origins[f"{type(found).__name__} {found.key}"] = name
    if not objects and not findings:  # a kubeconfig, say, or the wrong folder
        names = ", ".join(dict.fromkeys(name for name, _ in inputs))
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise BadSnapshot(f"{names}: no object that matters, expected some of {kinds}")
    return Dump(list(objects.values()), findings, origins)


def apply(objects: Iterable[Object], store: Store) -> None:
    """Make *objects* all that *store* knows."""
    by_kind: dict[type[Object], list[Object]] = {kind: [] for kind in KINDS}
    for each in objects:
        by_kind[type(each)].append(each)
    for kind, each_kind in by_kind.items():
        store.replace(kind, each_kind)


class _Batch(Struct):
    """Objects by kind, as they cross from the reading process."""

    namespaces: list[Namespace] = []
    nodes: list[Node] = []
    pods: list[Pod] = []
    services: list[Service] = []
    slices: list[EndpointSlice] = []


_FIELDS: dict[type[Object], str] = dict(zip(KINDS, _Batch.__struct_fields__, strict=True))


class _Rest(Struct):
    """What crosses beside the objects."""

    findings: list[Finding]
    origins: dict[str, str]


def _read_packed(inputs: list[tuple[str, bytes | None]]) -> tuple[list[bytes], bytes]:
    dump = read(inputs)
    batches = []
    for start in range(0, len(dump.objects), BATCH):
        batch = _Batch()
        for each in dump.objects[start : start + BATCH]:
            getattr(batch, _FIELDS[type(each)]).append(each)
        batches.append(msgspec.msgpack.encode(batch))
    return batches, msgspec.msgpack.encode(_Rest(dump.findings, dump.origins))


def _unpack(batches: list[bytes], packed_rest: bytes) -> Dump:
    objects: list[Object] = []
    for packed in batches:
        batch = msgspec.msgpack.decode(packed, type=_Batch)
        for name in _FIELDS.values():
            objects += getattr(batch, name)
    rest = msgspec.msgpack.decode(packed_rest, type=_Rest)
    return Dump(objects, rest.findings, rest.origins)


async def load(snapshots: Snapshots) -> Dump:
    """Read the snapshots in another process, while this one goes on answering. Raises BadSnapshot."""
    inputs = await trio.to_thread.run_sync(snapshots.inputs, abandon_on_cancel=True)
    try:
        packed = await anyio.to_process.run_sync(_read_packed, inputs, cancellable=True)
    except (anyio.BrokenWorkerProcess, OSError) as error:  # killed for want of memory, or no descriptor left
        raise BadSnapshot(
            f"{inputs[0][0]}: the process that reads it failed ({error or type(error).__name__})"
        ) from None
    return await trio.to_thread.run_sync(_unpack, *packed)


def _objects(name: str, data: bytes) -> Iterator[Object | Finding]:
    documents = 0
    try:
        if data.lstrip()[:1] in (b"{", b"["):
            try:
                yield from decode(data)
                return
            except MalformedJSON:  # said before the first object: not one document of JSON
                pass
        for document, first in _documents(name, data):
            documents += 1
            yield from decode(document, first=first)
    except NotJSON as error:
        raise BadSnapshot(f"{name}: document {documents or 1}: {error}") from None
    except RecursionError:
        raise BadSnapshot(f"{name}: nested too deeply") from None
    if not documents:  # such as a file that kubectl is about to write into
        raise BadSnapshot(f"{name}: nothing in it, expected Kubernetes objects")


def _documents(name: str, data: bytes) -> list[tuple[bytes, int]]:
    """Return each document of a file as JSON, with the number of its first item in the list it is cut from."""
    if data.lstrip()[:1] in (b"{", b"["):
        return [(document, 0) for document in _flow(name, data)]
    try:
        return [
            (msgspec.json.encode(document), first)
            for part, first in _parts(_SKIMMED.sub(b"", data))
            for document in _yaml_documents(part)
            if document is not None
        ]
    except (yaml.YAMLError, ValueError, RecursionError):  # what was left out may be the reason, and moved the lines
        return [(msgspec.json.encode(document), 0) for document in _whole_yaml(name, data) if document is not None]


def _parts(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Cut a list as kubectl writes it into lists of some items each; anything else stays whole."""
    head = _LIST.match(data)
    end = _LIST_END.search(data, head.end()) if head is not None else None
    if head is None or end is None or not data.startswith(b"kind: List\n", end.start()) or b"\n---" in data:
        yield data, 0
        return
    items = _LIST_SKIMMED.sub(b"", data[head.end() : end.start()])
    starts = [match.start() for match in _ITEM.finditer(items)][::CHUNK]
    for number, (start, stop) in enumerate(pairwise((*starts, len(items)))):
        yield b"kind: List\nitems:\n" + items[start:stop], number * CHUNK


def _flow(name: str, data: bytes) -> list[bytes]:
    """Return the documents of what begins with a brace: concatenated JSON, or YAML's flow style."""
    documents = []
    try:
        text, decoder = data.decode().strip(), json.JSONDecoder()
        while text:
            _, end = decoder.raw_decode(text)
            documents.append(text[:end].encode())
            text = text[end:].lstrip()
    except UnicodeDecodeError as error:
        raise BadSnapshot(f"{name}: byte {error.start}: no UTF-8, expected JSON or YAML") from None
    except json.JSONDecodeError as error:
        if name.endswith(".json"):
            raise BadSnapshot(f"{name}: line {error.lineno}: {error.msg}, expected JSON") from None
        return [msgspec.json.encode(document) for document in _whole_yaml(name, data)]
    return documents


def _whole_yaml(name: str, data: bytes) -> list[Any]:
    try:
        return list(_yaml_documents(data))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise BadSnapshot(f"{name}: {line}{error.problem or error.context}, expected YAML") from None
    except yaml.reader.ReaderError as error:
        raise BadSnapshot(f"{name}: byte {error.position}: {error.reason}, expected YAML") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadSnapshot(f"{name}: {error}, expected YAML") from None


_UNQUOTED: Any = object()


class _Loader(CParser):
    """libyaml's composer, which notes of each scalar only whether it stood without quotes."""

    def __init__(self, stream: bytes) -> None:
        CParser.__init__(self, stream)

    def resolve(self, kind: type[Any], value: str | None, implicit: Any) -> object:
        return _UNQUOTED if kind is yaml.ScalarNode and implicit[0] else None

    def descend_resolver(self, node: Any, index: Any) -> None:
        """Part of the composer's protocol; nothing here depends on a path."""

    def ascend_resolver(self) -> None:
        """Part of the composer's protocol; nothing here depends on a path."""


def _yaml_documents(data: bytes) -> Iterator[Any]:
    loader = _Loader(data)
    try:
        while loader.check_node():
            yield _plain(loader.get_node())
    finally:
        loader.dispose()


def _plain(node: Any) -> Any:
    """Return a composed node as JSON's types (YAML 1.2's core schema, with fractions left as text)."""
    if node.__class__ is yaml.ScalarNode:
        value: str = node.value
        if node.tag is _UNQUOTED:
            if value in _PLAIN:
                return _PLAIN[value]
            if _INTEGER.fullmatch(value):
                return int(value)
        return value
    if node.__class__ is yaml.MappingNode:
        return {str(key.value): _plain(value) for key, value in node.value}
    return [_plain(each) for each in node.value]
