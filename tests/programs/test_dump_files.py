# SPDX-License-Identifier: Apache-2.0

"""Dumps in files, folders and pipes: each is read, or a message says why not."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import queue
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio
import yaml

from locator.api import dump
from locator.cluster import dump_files
from locator.cluster.dumps import worker
from locator.cluster.dumps.reading import BadDump, Input
from tests.kit.api_objects import node
from tests.kit.commands_in_process import Run
from tests.kit.dump_entries import listed
from tests.kit.in_memory import dump_of
from tests.kit.kube import config_of
from tests.kit.programs import environment
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND
from tests.kit.waiting import PATIENCE

TEXT = "kind: List\nitems: []\n"


def test_findings_count_items_from_the_head_of_the_list() -> None:
    """A finding about an object without a name says which one it is, and where it begins."""
    items = [node(f"n{n}") for n in range(103)]
    nameless = 57
    del items[nameless]["metadata"]["name"]
    text = yaml.safe_dump(listed(items))
    (finding,) = dump_of(text).findings
    begins = [line for line, words in enumerate(text.splitlines(), 1) if words.startswith("- ")]
    assert (finding.name, finding.line) == (f"items[{nameless}]", begins[nameless])


def test_a_broken_item_is_found_at_its_line() -> None:
    """The line is that of the file."""
    lines = yaml.safe_dump(listed([node(f"n{n}") for n in range(9)])).splitlines()
    broken = len(lines) - 7
    lines.insert(broken, "  : [")
    with pytest.raises(BadDump, match=rf"cluster\.yaml: line ({broken + 1}|{broken + 2}): "):
        dump_of("\n".join(lines))


def test_too_little_memory_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which file was too large, in the reading process and in ``check``."""

    def entries(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(dump, "entries", entries)
    given = [Input("cluster.yaml", TEXT.encode())]
    packed = worker.read_packed(pickle.dumps(given))
    for of in (lambda: worker.unpacked(packed), lambda: dump_files.read_here(given)):
        with pytest.raises(
            BadDump,
            match=r"^cluster\.yaml: too little memory to read this, expected a smaller dump, or a higher limit$",
        ):
            of()


def test_standard_input_that_is_closed() -> None:
    """It is never taken for what the command itself has opened meanwhile, which gets its number."""
    arguments = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "serve", "--snapshot", "-"]
    ran = subprocess.run(arguments, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stderr) == (2, "topodns: standard input: Bad file descriptor, expected a snapshot\n")


@pytest.mark.parametrize("named", ["file", "pipe", "packed", "two-files"])
def test_endless_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topodns: Run, named: str) -> None:
    """All files together have a limit, unpacked; a device behind a descriptor has no end at all."""
    monkeypatch.setattr("locator.api.dump_text.MAX_OCTETS", 3 << 20)
    monkeypatch.setattr("locator.cluster.dump_files.MAX_OCTETS", 3 << 20)
    large = f"{TEXT}# {'a' * (2 << 20)}\n".encode()
    (tmp_path / "a.yaml").write_bytes(large)
    (tmp_path / "b.yaml").write_bytes(large)
    (tmp_path / "c.yaml").write_bytes(large + large)
    (tmp_path / "d.yaml.gz").write_bytes(gzip.compress(large + large))
    with open("/dev/zero", "rb") as zero:
        paths = {
            "file": ["c.yaml"], "packed": ["d.yaml.gz"], "two-files": ["a.yaml", "b.yaml"],
            "pipe": [f"/dev/fd/{zero.fileno()}"],
        }[named]  # fmt: skip
        ran = topodns("check", *(word for path in paths for word in ("--snapshot", os.path.join(tmp_path, path))))
    message = r"topodns: \S+: more than \d GiB in all that is read, unpacked; expected a dump\n"
    assert ran.status == 2 and re.fullmatch(message, ran.err)


def test_the_reading_process_heeds_the_limit_of_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whichever version the control groups are; what the kernel can take back counts as free."""
    limits = list[tuple[int, int]]()
    monkeypatch.setattr(worker, "CGROUPS", tmp_path)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    worker.stay_within()
    for files in (
        {
            "memory.max": "1000\n",
            "memory.current": "600\n",
            "memory.stat": "anon 1\ninactive_file 70\nactive_file 30\n",
        },
        {"memory.max": "max\n"},
        {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "950", "memory/memory.stat": ""},
    ):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        worker.stay_within()
    assert [soft for soft, _ in limits] == [450, 0]


def test_too_little_memory_ends_only_the_reading_process(tmp_path: Path) -> None:
    """What is too large is a message, as a limit of the memory makes it an error and no end of the process."""
    path = tmp_path / "large.yaml"
    path.touch()
    os.truncate(path, 1 << 30)
    read = f"ulimit -d 200000; exec '{sys.executable}' -m locator.cluster.dumps.worker"
    ran = subprocess.run(
        ["sh", "-c", read], input=pickle.dumps([Input(str(path))]), capture_output=True, cwd=ROOT, check=True
    )
    with pytest.raises(BadDump, match=r"large\.yaml: too little memory to read this, expected"):
        worker.unpacked(ran.stdout)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("printf 'Traceback:\\nImportError: no module\\n' >&2; exit 1", "ImportError: no module"),
        ("exit 3", "no reason given"),
    ],
    ids=["with-a-reason", "without"],
)
def test_a_reading_process_that_fails(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words are part of the error, and not its traceback."""
    program, file = tmp_path / "python", tmp_path / "cluster.yaml"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    file.write_text(TEXT)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(BadDump) as caught:
        trio.run(dump_files.read_in_other_process, dump_files.DumpFiles([str(file)]))
    assert str(caught.value) == f"{file}: the process that reads it failed ({reason})"


class LookedAt(dump_files.DumpFiles):
    """Files that change at the tenth look."""

    looks = 0

    def signature(self) -> object:
        self.looks += 1
        return self.looks >= 10


class Wakes(trio.abc.Instrument):
    """Counts how often an event loop woke."""

    number = 0

    def after_io_wait(self, timeout: float) -> None:
        self.number += timeout > 0


def test_looking_at_files_wakes_no_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a change does, once nobody writes to the files any more."""
    monkeypatch.setattr("locator.cluster.dump_files.POLL_SECONDS", 0.001)
    files, wakes = LookedAt([str(tmp_path)]), Wakes()
    trio.run(files.wait_for_change, False, instruments=[wakes])
    assert files.looks == 11
    assert wakes.number <= 2


def test_a_file_system_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop runs on, and nothing waits for the hanging look when the server ends or rereads on SIGHUP."""
    monkeypatch.setattr("locator.cluster.dump_files.POLL_SECONDS", 0.001)
    looking, released, outcome = threading.Event(), threading.Event(), queue.SimpleQueue[bool]()

    class Hanging(dump_files.DumpFiles):
        def signature(self) -> object:
            looking.set()
            outcome.put(released.wait(PATIENCE))
            return True

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Hanging([str(tmp_path)]).wait_for_change, False)
            assert await trio.to_thread.run_sync(looking.wait, PATIENCE)
            nursery.cancel_scope.cancel()

    trio.run(run)
    released.set()
    assert outcome.get()  # the look hung until then


# A kubeconfig or a dump

HELD = {"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"config": yaml.safe_dump(config_of())}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(yaml.safe_dump(config_of()), True, id="YAML"),
        pytest.param(json.dumps(config_of()), True, id="JSON"),
        pytest.param(json.dumps(config_of(), indent=2), True, id="JSON with lines"),
        pytest.param("current-context: x\n", True, id="a part of one"),
        pytest.param(yaml.safe_dump({"kind": "List", "items": [HELD]}), False, id="a dump with one in a ConfigMap"),
        pytest.param(json.dumps({"kind": "List", "items": [HELD]}), False, id="the same in JSON"),
        pytest.param(json.dumps({"kind": "List", "items": [{**HELD, "data": {"x": json.dumps(config_of())}}]}), False,
                     id="JSON in JSON"),
        pytest.param("", False, id="empty"),
        pytest.param("\x00\udcff", False, id="binary"),
    ],
)  # fmt: skip
def test_a_kubeconfig_and_a_dump_are_told_apart(tmp_path: Path, text: str, expected: bool) -> None:
    """By what stands at the top level."""
    file = tmp_path / "file"
    file.write_text(text, errors="surrogateescape")
    assert dump_files.is_kubeconfig(str(file)) is expected
    assert not dump_files.is_kubeconfig(str(tmp_path)), "a folder is a dump"
    with pytest.raises(BadDump, match="missing: No such file or directory, expected a kubeconfig or a dump"):
        dump_files.is_kubeconfig(str(tmp_path / "missing"))


def test_a_pipe_is_a_dump_and_stays_whole() -> None:
    """As the shell's ``--cluster west=<(kubectl ...)`` gives one: it can be read only once."""
    reader, writer = os.pipe()
    try:
        os.write(writer, json.dumps(node("a")).encode())
        os.close(writer)
        path = f"/dev/fd/{reader}"
        assert not dump_files.is_kubeconfig(path)
        (found,) = dump_files.read_here(dump_files.DumpFiles([path]).inputs()).objects
    finally:
        os.close(reader)
    assert found.key == "a"
