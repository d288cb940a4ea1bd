# SPDX-License-Identifier: Apache-2.0

"""The prober follows the Services of a cluster that it knows from a dump."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from locator.api.deltas import DeltaBatch, Replace
from locator.cluster import dump_files
from locator.cluster.dump_files import DumpFiles
from locator.cluster.dumps.reading import Dump
from locator.cluster.leading.health_controller import FollowedDump
from locator.model import Health, Service
from tests.kit.api_objects import listed, service
from tests.kit.files import replace_file
from tests.kit.waiting import PATIENCE, until_in_trio


def names(batch: DeltaBatch) -> list[str]:
    (delta,) = batch.deltas
    assert isinstance(delta, Replace) and delta.kind is Service
    return [found.name for found in delta.objects]


def test_what_cannot_be_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a broken dump nor an error of topodns ends the prober, which has other clusters, too."""
    monkeypatch.setattr(dump_files, "POLL_SECONDS", 0.01)
    path, readings = tmp_path / "west.json", 0
    read, said = dump_files.read_in_other_process, list[Health]()

    async def fails_the_fourth_time(files: DumpFiles) -> Dump:
        nonlocal readings
        readings += 1
        if readings == 4:
            raise ValueError("a bug")
        return await read(files)

    monkeypatch.setattr(dump_files, "read_in_other_process", fails_the_fourth_time)

    async def main() -> None:
        send, receive = trio.open_memory_channel[DeltaBatch](1)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                followed = FollowedDump("west", DumpFiles((str(path),)), send)
                said.append(followed.health())
                nursery.start_soon(followed.run)
                for number, text in enumerate(("rubbish: [", "rubbish: [", "{}"), 1):
                    replace_file(path, text)
                    await until_in_trio(lambda number=number: len(caplog.records) == number)  # type: ignore[misc]
                    said.append(followed.health())
                    if number == 1:
                        replace_file(path, listed([service("web")]))
                        assert names(await receive.receive()) == ["web"]
                replace_file(path, listed([service("db")]))
                assert names(await receive.receive()) == ["db"]
                said.append(followed.health())
                nursery.cancel_scope.cancel()

    trio.run(main)
    first, broken, internal = (record.getMessage() for record in caplog.records)
    assert broken.startswith(f"cluster west: {path}: line ")
    problem = broken.removeprefix("cluster west: ").removesuffix("; keeping the Services that are known")
    assert (first, broken) == (
        f"cluster west: {problem}; none of its Services is known",
        f"cluster west: {problem}; keeping the Services that are known",
    )
    assert internal == "cluster west: the dump could not be read; keeping the Services that are known"
    assert said == [
        (False, "not read yet"),
        (False, f"not read yet; {problem}"),
        (True, f"as it was before: {problem}"),
        (True, "as it was before: internal error: ValueError('a bug')"),
        (True, "ok"),
    ]
