"""A dump as a source: what ``kubectl get ... -o yaml|json`` prints, in files, folders or a pipe.

Composing YAML holds the interpreter for seconds, and a server must answer meanwhile: ``load``
reads in a process of its own.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_process
import msgspec
import trio
from msgspec import Struct

from locator.api import dump, packing
from locator.api.deltas import DeltaBatch, place_of, replacements
from locator.cluster.publisher import Publisher, uncollected
from locator.finding_codes import ClusterCode
from locator.model import KINDS, Finding, Health, Object, Pod

log = logging.getLogger("topodns")

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
POLL_SECONDS = 1.0  # one stat a second for each file; inotify misses the symlink swap of a ConfigMap


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


class DumpFiles:
    """The files, folders and pipes of ``--snapshot``, in order.

    A pipe is read once and kept, since it cannot be read again.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._kept: dict[str, bytes] = {}

    def check(self) -> None:
        """Raise BadDump if a path leads nowhere. Reads nothing."""
        for path in self._paths:
            if path != STDIN and not os.path.exists(path):
                raise BadDump(f"{path}: No such file or directory, expected a file or folder")

    def inputs(self) -> list[tuple[str, bytes | None]]:
        """Return each file to read by name, with its content where it is kept. Raises BadDump."""
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
                raise BadDump(f"{path}: {error.strerror}, expected a file or folder") from None
        if not rows:
            raise BadDump(f"{', '.join(self._paths)}: nothing to read, expected files ending in {', '.join(SUFFIXES)}")
        return rows

    def signature(self) -> object:
        """Return a value that differs whenever a file was changed, added or removed."""
        try:
            names = [name for name, content in self.inputs() if content is None]
            return [(name, s.st_mtime_ns, s.st_size, s.st_ino) for name in names for s in [os.stat(name)]]
        except (BadDump, OSError) as error:
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
    try:
        while part := os.read(0, 1 << 20):
            parts.append(part)
    except OSError as error:  # closed, for one
        raise BadDump(f"standard input: {error.strerror}, expected a snapshot") from None
    return b"".join(parts)


def read(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
    """Read every input, as ``DumpFiles.inputs`` gives them. Raises BadDump.

    Of an object that stands twice the later one holds; the finding says so.
    """
    # A dump is one growing tree: collecting it again and again would take longer than reading it.
    return uncollected(partial(_read, inputs))


def _read(inputs: Sequence[tuple[str, bytes | None]]) -> Dump:
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
                origins[place_of(type(found).__name__, "", found.key)] = name
    if not objects and not findings:  # a kubeconfig, say, or the wrong folder
        names = ", ".join(dict.fromkeys(name for name, _ in inputs))
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise BadDump(f"{names}: no object that matters, expected some of {kinds}")
    return Dump(list(objects.values()), findings, origins)


def _objects(name: str, content: bytes | None) -> Iterator[Object | Finding]:
    try:
        data = Path(name).read_bytes() if content is None else content
        yield from dump.objects(data, only_json=name.endswith(".json"))
    except OSError as error:
        raise BadDump(f"{name}: {error.strerror}, expected a file that can be read") from None
    except dump.NotADump as error:
        raise BadDump(f"{name}: {error}") from None


class _Rest(Struct):
    """What crosses beside the objects."""

    findings: list[Finding]
    origins: dict[str, str]


def _read_packed(inputs: list[tuple[str, bytes | None]]) -> tuple[list[bytes], bytes]:
    dump = read(inputs)
    return list(packing.batches(dump.objects)), msgspec.msgpack.encode(_Rest(dump.findings, dump.origins))


def _unpack(batches: list[bytes], packed_rest: bytes) -> Dump:
    rest = msgspec.msgpack.decode(packed_rest, type=_Rest)
    return Dump(list(packing.unbatched(batches)), rest.findings, rest.origins)


async def load(snapshots: DumpFiles) -> Dump:
    """Read the snapshots in another process, while this one goes on answering. Raises BadDump."""
    inputs = await trio.to_thread.run_sync(snapshots.inputs, abandon_on_cancel=True)
    try:
        packed = await anyio.to_process.run_sync(_read_packed, inputs, cancellable=True)
    except (anyio.BrokenWorkerProcess, OSError) as error:  # killed for want of memory, or no descriptor left
        raise BadDump(f"{inputs[0][0]}: the process that reads it failed ({error or type(error).__name__})") from None
    return await trio.to_thread.run_sync(_unpack, *packed)


class DumpSource:
    """Sends *publisher* what stands in *files*: all of it now, and all of it again whenever they change.

    *reread* is told after each reading but the first whether the files could be read: a broken new version
    changes nothing.
    """

    def __init__(self, files: DumpFiles, publisher: Publisher, *, reread: Callable[[bool], None]) -> None:
        """Raise BadDump if there is nothing to read. Reads nothing yet."""
        files.check()
        self._files = files
        self._publisher = publisher
        self._reread = reread
        self._asked = trio.Event()

    def health(self) -> Mapping[str, Health]:
        """Return whether the files have been read."""
        known = self._publisher.snapshot is not None
        return {"snapshot": Health(True) if known else Health(False, "not read yet")}

    def stale(self, after: float) -> bool:
        """Files are what they are: never stale."""
        return False

    def read_again(self) -> None:
        """Read the files even if they did not change."""
        self._asked.set()

    async def run(self) -> None:
        """Read the files now, and again for ever. Raises BadDump if they cannot be read now."""
        signature = await trio.to_thread.run_sync(self._files.signature, abandon_on_cancel=True)
        await self._read()
        while True:
            await self._changed(signature)
            self._asked = trio.Event()
            signature = await trio.to_thread.run_sync(self._files.signature)
            try:
                await self._read()
            except BadDump as error:
                self._reread(False)
                log.error("%s; the view from before stays", error)
            except Exception:  # the wall around one reading
                self._reread(False)
                log.exception("the snapshot could not be read; the view from before stays")
            else:
                self._reread(True)
                log.info("snapshot read again")

    async def _changed(self, signature: object) -> None:
        """Wait until the files differ from *signature*, or somebody asks for them to be read."""
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await self._asked.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await self._files.changed(signature)
            nursery.cancel_scope.cancel()

    async def _read(self) -> None:
        dump = await load(self._files)
        await self._publisher.deltas.send(dump.batch())
        await self._publisher.flush()
