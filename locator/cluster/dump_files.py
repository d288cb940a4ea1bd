# SPDX-License-Identifier: Apache-2.0

"""Dumps as a source: the output of ``kubectl get ... -o yaml|json`` in files, folders or a pipe.

Parsing YAML blocks the interpreter for seconds. A server must answer meanwhile, so it reads in another process.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import stat
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio

from locator.api.decoding import RESOURCES_BY_GROUP_KIND, ByGroupKind, by_group_kind
from locator.api.dump_text import MAX_OCTETS, NotADump
from locator.cluster.dumps import folders, reading, worker
from locator.cluster.dumps.reading import STANDARD_INPUT, BadDump, Dump, Input, Report
from locator.cluster.file_version import version_of
from locator.cluster.publisher import ReadBatch, ReadOnce, without_gc
from locator.model import Health

log = logging.getLogger("topodns")

STDIN = "-"
DESCRIPTORS = "/dev/fd/"  # what the shell's <(...) opens, which is no FIFO everywhere
MENTIONED = 3  # files that are passed over, where none is left
LOOK_SHARE = 20  # looking at the files takes at most one part in so many of the time: a bundle has thousands
POLL_SECONDS = 1.0  # one stat a second for each file; inotify misses how a mounted ConfigMap changes, by a symlink


class DumpFiles:
    """The files, folders and pipes of ``--snapshot``, in order.

    A pipe can be read only once, so its content stays in memory.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._pipes: dict[str, bytes] = {}  # by path, what was read from it

    def check(self) -> None:
        """Raise BadDump if a path does not exist, or standard input is closed. Reads no file."""
        for path in self.paths:
            try:
                os.stat(0 if path == STDIN else path)  # what is opened later may get the number of a closed one
            except OSError as error:
                raise _not_read(path, error) from None

    def inputs(self, report: Report = lambda text: None) -> list[Input]:
        """Return each file to read, for a pipe with its content, and each file that is passed over. Raises BadDump.

        Calls *report* before it waits for a pipe.
        """
        inputs = [source for path in self.paths for source in self._inputs_at(path, report)]
        passed = [(source.name, source.passed_over.found) for source in inputs if source.passed_over is not None]
        if len(passed) == len(inputs):
            first = "; ".join(f"{name}: {reason}" for name, reason in passed[:MENTIONED])
            found = f" ({first})" if first else ""
            raise BadDump(f"{', '.join(self.paths)}: nothing to read, expected {folders.EXPECTED_ENDING}{found}")
        return inputs

    def _inputs_at(self, path: str, report: Report) -> list[Input]:
        try:
            if path == STDIN:
                return [Input(STANDARD_INPUT, self._content_of(path, STANDARD_INPUT, report))]
            mode = os.stat(path).st_mode
            if stat.S_ISDIR(mode):
                return list(folders.inputs_in(path))
            if stat.S_ISREG(mode):
                return [Input(path)]
            if stat.S_ISFIFO(mode) or path.startswith(DESCRIPTORS):
                return [Input(path, self._content_of(path, path, report))]
        except OSError as error:
            raise _not_read(path, error) from None
        raise BadDump(f"{path}: a device or socket found, expected a file, folder or pipe")

    def _content_of(self, path: str, name: str, report: Report) -> bytes:
        """Return what is in a pipe. Raises OSError and BadDump."""
        if path not in self._pipes:
            report(f"reading {name}")
            is_ours = path != STDIN
            try:
                # Without Python's buffer: its lock would block an exit during the read.
                with open(path if is_ours else 0, "rb", buffering=0, closefd=is_ours) as pipe:
                    self._pipes[path] = reading.read_all(pipe.fileno(), MAX_OCTETS)
            except NotADump as error:
                raise BadDump(f"{name}: {error}") from None
        return self._pipes[path]

    def signature(self) -> object:
        """Return a value that changes whenever a file is changed, added or removed."""
        try:
            names = [source.name for source in self.inputs() if source.content is None and not source.passed_over]
            return [(name, *version_of(os.stat(name))) for name in names]
        except (BadDump, OSError) as error:
            return str(error)

    async def wait_for_change(self, before: object) -> None:
        """Wait until the files differ from the signature *before*, and nobody writes to them any more."""
        ended = threading.Event()
        try:
            await trio.to_thread.run_sync(self._poll, before, ended, abandon_on_cancel=True)
        finally:
            ended.set()

    def _poll(self, before: object, ended: threading.Event) -> None:
        """Do so in a thread, which wakes the event loop only when they differ. Return when *ended*, too."""
        seen, took = before, 0.0
        while not ended.wait(max(POLL_SECONDS, took * LOOK_SHARE)):
            began = time.monotonic()
            last, seen = seen, self.signature()
            took = time.monotonic() - began
            if seen != before and seen == last:
                return


def _not_read(path: str, error: OSError) -> BadDump:
    if path == STDIN:
        return BadDump(f"{STANDARD_INPUT}: {error.strerror}, expected a snapshot")
    return BadDump(f"{error.filename or path}: {error.strerror}, expected a file or folder")


def is_kubeconfig(path: str) -> bool:
    """Whether a file is a kubeconfig rather than a dump, by its beginning. Raises BadDump if it cannot be read.

    A folder or a pipe is a dump: to look into a pipe would take away what is read later.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            beginning = file.read(reading.BEGINNING)
    except OSError as error:
        raise BadDump(f"{path}: {error.strerror}, expected a kubeconfig or a dump") from None
    return reading.begins_kubeconfig(beginning)


def read_here(
    inputs: Sequence[Input],
    report: Report = lambda text: None,
    resources: ByGroupKind = RESOURCES_BY_GROUP_KIND,
) -> Dump:
    """Read *inputs* (``DumpFiles.inputs``) in this process. Raises BadDump.

    If an object occurs twice and differs, the later one counts, and there is a finding. Calls *report* with what it
    reads now. *resources* says how each kind is read.
    """
    # The parsed objects only grow in number. Collections that visit them repeatedly would take longer than reading.
    return without_gc(partial(reading.read_inputs, inputs, report, resources))


async def read_in_other_process(files: DumpFiles) -> Dump:
    """Read *files* in another process, which ends afterwards; this process can answer meanwhile. Raises BadDump."""
    inputs = await trio.to_thread.run_sync(files.inputs, abandon_on_cancel=True)
    try:
        done = await trio.run_process(
            [sys.executable, "-P", "-m", "locator.cluster.dumps.worker"],
            stdin=pickle.dumps(inputs),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # finds the same modules as this process
            process_group=0,  # Ctrl-C reaches only this process, which then ends the other
        )
    except OSError as error:  # out of memory or file descriptors
        raise BadDump(f"{inputs[0].name}: the process that reads it cannot start ({error.strerror})") from None
    if done.returncode < 0:  # mostly by the kernel, when memory runs out
        reason = signal.strsignal(-done.returncode)
        raise BadDump(f"{inputs[0].name}: the process that reads it was ended ({reason})")
    if done.returncode:
        *_, reason = done.stderr.decode(errors="replace").split("\n")[:-1] or ("no reason given",)
        raise BadDump(f"{inputs[0].name}: the process that reads it failed ({reason})")
    return await trio.to_thread.run_sync(worker.unpacked, done.stdout)


class DumpSource:
    """Reads *files* into *deliver*, and reads them again whenever one changes.

    Calls *on_reread* after each reading but the first: True if it succeeded, False if the previous objects stay in use.
    Calls *on_problem* after each reading with why it failed, empty if it did not; of a single one, only if it failed.
    Messages begin with *about*. The first reading must not fail if the files are *required*.
    """

    def __init__(
        self,
        files: DumpFiles,
        deliver: Callable[[Dump], Awaitable[None]],
        *,
        on_reread: Callable[[bool], None] = lambda succeeded: None,
        on_problem: Callable[[str], None] = lambda problem: None,
        about: str = "",
        required: bool = True,
    ) -> None:
        self._required = required
        self._files, self._deliver, self._on_reread = files, deliver, on_reread
        self._on_problem = on_problem
        self._about = f"{about}: " if about else ""
        self._requested = trio.Event()
        self._was_read, self._problem = False, ""  # the problem is that of the last reading

    def health(self) -> Mapping[str, Health]:
        """Return whether the files have been read; what was read before a problem stays in use."""
        if self._was_read:
            state = Health(True, f"as it was before: {self._problem}" if self._problem else "ok", self._problem)
        else:
            state = Health(False, f"not read yet; {self._problem}" if self._problem else "not read yet")
        return {"snapshot": state}

    def stale(self, after: float) -> bool:
        """Return False: files do not become stale."""
        return False

    def age(self) -> float:
        """Return 0: files do not age."""
        return 0.0

    def read_pod_labels(self, keys: frozenset[str]) -> None:
        """Do nothing: whoever reads a dump finds the Services that ask for labels there."""

    def read_again(self) -> None:
        """Read the files again even if they did not change."""
        self._requested.set()

    async def run(self) -> None:
        """Read the files now, and again at each change, for ever. Raises BadDump if the first must not fail."""
        is_first = True
        while True:
            self._requested = trio.Event()
            signature = await trio.to_thread.run_sync(self._files.signature, abandon_on_cancel=True)
            kept = "keeping the previous version" if self._was_read else "none of its objects is known"
            try:
                await self._read()
            except BadDump as error:
                if is_first and self._required:
                    raise BadDump(f"{self._about}{error}") from None
                self._problem = str(error)
                log.error("%s%s; %s", self._about, error, kept)
            except Exception as error:  # boundary: one reading
                if is_first and self._required:
                    raise
                self._problem = f"internal error: {error!r}"
                log.exception("%sthe dump could not be read; %s", self._about, kept)
            else:
                if not is_first:
                    log.info("%ssnapshot read again", self._about)
            if not is_first:
                self._on_reread(not self._problem)
            self._on_problem(self._problem)
            is_first = False
            await self._wait_for_change_or_request(signature)

    async def read_once(self, wanted: ReadOnce) -> ReadBatch:
        """Read the files now, in this process, which has nothing else to do. Raises BadDump."""

        def work() -> Dump:
            return read_here(self._files.inputs(wanted.report), wanted.report, by_group_kind(wanted.resources))

        try:
            dump = await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except BadDump as error:
            self._on_problem(str(error))
            raise BadDump(f"{self._about}{error}") from None
        return ReadBatch(dump.batch(), dump.counts)

    async def _read(self) -> None:
        await self._deliver(await read_in_other_process(self._files))
        self._was_read, self._problem = True, ""

    async def _wait_for_change_or_request(self, signature: object) -> None:
        """Wait until the files differ from *signature*, or until ``read_again`` is called."""
        async with trio.open_nursery() as nursery:

            async def wait_for_request() -> None:
                await self._requested.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(wait_for_request)
            await self._files.wait_for_change(signature)
            nursery.cancel_scope.cancel()
