# SPDX-License-Identifier: Apache-2.0

"""The clusters in a folder, as a mounted Secret is one: a kubeconfig or a dump for each, followed while it changes.

A file is named for its cluster, with or without one of ENDINGS. What begins with a dot is no cluster: that is how the
kubelet names the folders that it swaps. A file that cannot be read is a finding, and its cluster goes on with what was
read last. So does everything while the folder itself cannot be read.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

from locator.cluster.file_version import version_of
from locator.findings import ClusterCode
from locator.model import Finding, is_dns_label
from locator.printable import printable

if TYPE_CHECKING:
    from locator.cluster.api_client import ApiClient  # imports urllib3, which reading files does not need
    from locator.cluster.dump_files import DumpFiles

ENDINGS = (".yaml", ".yml", ".json", ".gz", ".kubeconfig", ".conf", ".config")
LOST_AND_FOUND = "lost+found"  # of a file system that is mounted there
POLL_SECONDS = 0.5  # inotify misses how a mounted Secret changes, by a symlink; two looks alike: nobody writes a file

OpenedCluster: TypeAlias = "ApiClient | DumpFiles"
OnChange: TypeAlias = "Callable[[str, OpenedCluster | None], None]"
OnFindings = Callable[[Sequence[Finding]], None]
Look: TypeAlias = "dict[str, _Seen] | str"  # at a folder: its files; a text if it cannot be read


def open_cluster(path: str, context: str | None = None) -> OpenedCluster:
    """Return a client for the API server of a kubeconfig, or the files of a dump. Raises BadCluster, BadDump."""
    from locator.cluster import dump_files

    if context is None and not dump_files.is_kubeconfig(path):
        return dump_files.DumpFiles((path,))
    from locator.cluster.api_client import ApiClient

    return ApiClient(kubeconfig=path, context=context)


class _Seen(NamedTuple):
    """What a look at a file shows: it changes whenever the file does. ``problem`` says why there is nothing to open."""

    signature: tuple[int, ...] = ()
    problem: str = ""


class ClusterFolder:
    """The clusters in the folder *path*. *reserved* are names that no file may have, each with whose it is.

    Call ``read`` once. A server then runs ``run``, which tells of each change.
    """

    def __init__(self, path: str, reserved: Mapping[str, str]) -> None:
        self._path, self._reserved = path, reserved
        self.clusters: dict[str, OpenedCluster] = {}
        """By name. A client whose kubeconfig has never been readable is ``unusable``: its requests are Unreachable."""
        self._files: dict[str, str] = {}  # by the name of the cluster
        self._seen: Look = {}  # as taken up last
        self._problems: dict[str, str] = {}  # by the name of the cluster, why its file cannot be used as it is now
        self._misnamed: Sequence[Finding] = ()

    @property
    def findings(self) -> list[Finding]:
        """What is wrong in the folder now."""
        found = [unreadable(self._path, self._seen)] if isinstance(self._seen, str) else []
        unusable = [
            unreadable(os.path.join(self._path, self._files[name]), self._problems[name]) for name in self._problems
        ]
        return [*found, *self._misnamed, *unusable]

    def read(self) -> None:
        """Open the cluster of each file. Raises BadDump if the folder cannot be read."""
        from locator.cluster.dumps.reading import BadDump

        seen = self._look()
        if isinstance(seen, str):
            raise BadDump(f"{self._path}: {seen}")
        self._seen = seen
        self._files, self._misnamed = self._named(seen)
        for name, file in self._files.items():
            self.clusters[name] = self._open(name, file)

    async def run(self, on_change: OnChange, on_findings: OnFindings) -> None:
        """Follow the folder for ever. Everything is called in this task.

        *on_change* gets the name of each cluster that comes, with what to read it from, and of each that goes, with
        None. One that goes and comes again at once is read from something else: a dump in place of a kubeconfig. A
        kubeconfig that changes is no change: its client uses it at once, and lists again if the API server is another
        one. *on_findings* gets ``findings`` whenever they change.
        """
        while True:
            told = self.findings
            await self._take_up(await self._changed(), on_change)
            if self.findings != told:
                on_findings(self.findings)

    async def _take_up(self, seen: Look, on_change: OnChange) -> None:
        before, self._seen = self._seen, seen
        if isinstance(seen, str):
            return
        files, self._misnamed = self._named(seen)
        for name in [name for name in self.clusters if self._files[name] != files.get(name)]:
            self._problems.pop(name, None)
            del self._files[name], self.clusters[name]
            on_change(name, None)
        for name, file in files.items():
            if name not in self.clusters:
                self._files[name] = file
                self.clusters[name] = await trio.to_thread.run_sync(self._open, name, file, abandon_on_cancel=True)
                on_change(name, self.clusters[name])
            elif isinstance(before, str) or before.get(file) != seen[file]:
                other = await self._read_again(name, file)
                if other is not None:
                    on_change(name, None)
                    self.clusters[name] = other
                    on_change(name, other)

    def _open(self, name: str, file: str) -> OpenedCluster:
        """Open a cluster that is new; note why it cannot be read as it is now."""
        from locator.cluster import dump_files
        from locator.cluster.dumps.reading import BadDump

        path = os.path.join(self._path, file)
        try:
            if not dump_files.is_kubeconfig(path):
                return dump_files.DumpFiles((path,))
        except BadDump as error:
            self._problems[name] = str(error)
        from locator.cluster.api_client import ApiClient

        client = ApiClient(kubeconfig=path, required=False)  # votes count as with it, and nothing of it is taken back
        if client.unusable:
            self._problems.setdefault(name, client.unusable)
        return client

    async def _read_again(self, name: str, file: str) -> OpenedCluster | None:
        """Take up a file that has changed; return what to read the cluster from now, None if that is the same."""
        from locator.cluster import dump_files
        from locator.cluster.dumps.reading import BadDump

        known, path = self.clusters[name], os.path.join(self._path, file)
        self._problems.pop(name, None)
        try:
            is_kubeconfig = await trio.to_thread.run_sync(dump_files.is_kubeconfig, path, abandon_on_cancel=True)
            if isinstance(known, dump_files.DumpFiles) and not is_kubeconfig:
                return None  # whoever reads it sees that it has changed
            if not is_kubeconfig:
                files = dump_files.DumpFiles((path,))
                await dump_files.read_in_other_process(files)  # it may be what is left of a kubeconfig
                return files
        except BadDump as error:
            self._problems[name] = str(error)
            return None
        return await self._use_kubeconfig(name, path)

    async def _use_kubeconfig(self, name: str, path: str) -> OpenedCluster | None:
        from locator.cluster.api_client import ApiClient
        from locator.cluster.credentials import BadCluster

        known = self.clusters[name]
        try:
            if not isinstance(known, ApiClient):
                return await trio.to_thread.run_sync(open_cluster, path, abandon_on_cancel=True)
            await known.reconfigure()
        except BadCluster as error:
            self._problems[name] = str(error)
        return None

    def _named(self, seen: Mapping[str, _Seen]) -> tuple[dict[str, str], list[Finding]]:
        """Return the file of each cluster, and a finding for each file that is none. A file in use goes first."""
        files, findings = dict[str, str](), list[Finding]()
        in_use = set(self._files.values())
        for file in sorted(seen, key=lambda file: (file not in in_use, file)):
            name = cluster_name_of(file)
            problem, expected = seen[file].problem, ""
            if not problem and not is_dns_label(name):
                problem, expected = f"{name!r} is no name of a cluster", "a DNS label, and after it nothing or "
                expected += " or ".join((", ".join(ENDINGS[:-1]), ENDINGS[-1]))
            elif not problem and (name in self._reserved or name in files):
                whose = self._reserved.get(name) or f"that of {files[name]}"
                problem, expected = f"the name {name} is {whose}", "a name of its own"
            if problem:
                findings.append(unreadable(os.path.join(self._path, file), problem, expected))
            else:
                files[name] = file
        return files, findings

    async def _changed(self) -> Look:
        """Wait until the folder differs from what was taken up last; return what is there.

        A file to which somebody writes is as it was: others do not wait for it.
        """
        ended = threading.Event()
        try:
            return await trio.to_thread.run_sync(self._poll, ended, abandon_on_cancel=True)
        finally:
            ended.set()

    def _poll(self, ended: threading.Event) -> Look:
        """Do so in a thread, which wakes the event loop only then. Return when *ended*, too."""
        known = seen = at_rest = self._seen
        while at_rest == known:
            if ended.wait(POLL_SECONDS):
                break
            last, seen = seen, self._look()
            at_rest = _at_rest(known, last, seen)
        return at_rest

    def _look(self) -> Look:
        try:
            files = [name for name in os.listdir(self._path) if not name.startswith(".") and name != LOST_AND_FOUND]
        except OSError as error:
            return f"{error.strerror}, expected a folder with a kubeconfig or dump for each other cluster"
        return {file: _seen(os.path.join(self._path, file)) for file in files}


def cluster_name_of(file: str) -> str:
    """Return the name of a cluster's file without its endings, such as ``.yaml.gz``."""
    name, dot, ending = file.rpartition(".")
    return cluster_name_of(name) if f"{dot}{ending}" in ENDINGS else file


def _at_rest(known: Look, last: Look, seen: Look) -> Look:
    """Return what two looks show alike; of files where they differ, what was *known* before."""
    if isinstance(known, str) or isinstance(last, str) or isinstance(seen, str):
        return seen if seen == last else known
    shown = {file: (seen if seen.get(file) == last.get(file) else known).get(file) for file in {**known, **seen}}
    return {file: found for file, found in shown.items() if found is not None}


def _seen(path: str) -> _Seen:
    try:
        found = os.stat(path)
    except OSError as error:  # a link that leads nowhere, say: the kubelet takes it away
        return _Seen((error.errno or 0,))
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return _Seen((*version_of(found), found.st_dev, found.st_mode))
    return _Seen(problem="a device, pipe or socket found, expected a file")


def unreadable(path: str, problem: str, expected: str = "") -> Finding:
    """Return the finding about a file that cannot be used, since there is a *problem*."""
    message = problem.removeprefix(f"{path}: ")
    return ClusterCode.InvalidClusterFile.finding(file=printable(path), message=message, expected=expected)
