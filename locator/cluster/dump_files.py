"""A dump as a source: what ``kubectl get ... -o yaml|json`` prints, in files, folders or a pipe.

Composing YAML holds the interpreter for seconds, and a server must answer meanwhile: ``load``
reads in a process of its own.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import trio

from locator.cluster.dumps import reading
from locator.cluster.dumps.reading import BadDump, Dump
from locator.cluster.publisher import Publisher, uncollected
from locator.model import Health

log = logging.getLogger("topodns")

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
POLL_SECONDS = 1.0  # one stat a second for each file; inotify misses the symlink swap of a ConfigMap


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
    return uncollected(partial(reading.read, inputs))


async def load(snapshots: DumpFiles) -> Dump:
    """Read the snapshots in another process, while this one goes on answering. Raises BadDump.

    The process lives no longer than the reading.
    """
    inputs = await trio.to_thread.run_sync(snapshots.inputs, abandon_on_cancel=True)
    try:
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "locator.cluster.dumps"],
            stdin=pickle.dumps(inputs),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # however this process found its modules
            process_group=0,  # Ctrl-C is for this process, which then ends the other
        )
    except OSError as error:  # no memory left, or no descriptor
        raise BadDump(f"{inputs[0][0]}: the process that reads it cannot start ({error.strerror})") from None
    if done.returncode < 0:  # by the system for want of memory, mostly
        reason = signal.strsignal(-done.returncode)
        raise BadDump(f"{inputs[0][0]}: the process that reads it was ended ({reason})")
    if done.returncode:
        raise RuntimeError(f"the process that reads snapshots failed: {done.stderr.decode(errors='replace')}")
    return await trio.to_thread.run_sync(reading.unpacked, done.stdout)


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
