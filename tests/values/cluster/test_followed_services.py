# SPDX-License-Identifier: Apache-2.0

"""A dump that is not required, as the prober reads other clusters: no reading of it ends the program."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from locator.cluster import dump_files
from locator.cluster.dump_files import DumpFiles, DumpSource
from locator.cluster.dumps.reading import Dump
from locator.model import Health
from tests.kit.api_objects import listed, service
from tests.kit.files import replace_file
from tests.kit.waiting import PATIENCE, until_in_trio


def names(dump: Dump) -> list[str]:
    return [item.key for item in dump.objects]


def test_what_cannot_be_read_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a broken dump nor an error of topodns ends the prober, which has other clusters, too."""
    monkeypatch.setattr(dump_files, "POLL_SECONDS", 0.01)
    caplog.set_level(logging.ERROR, "topodns")  # whatever level another test has set
    path = tmp_path / "west.json"
    read, said = dump_files.read_in_other_process, list[Health]()

    async def fails_at_an_empty_object(files: DumpFiles) -> Dump:
        if path.read_text() == "{}":
            raise ValueError("a bug")
        return await read(files)

    monkeypatch.setattr(dump_files, "read_in_other_process", fails_at_an_empty_object)

    async def main() -> None:
        send, receive = trio.open_memory_channel[Dump](1)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                followed = DumpSource(DumpFiles((str(path),)), send.send, about="cluster west", required=False)
                said.append(followed.health()["snapshot"])
                nursery.start_soon(followed.run)
                for number, text in enumerate(("rubbish: [", "rubbish: [", "{}"), 1):
                    replace_file(path, text)
                    await until_in_trio(lambda number=number: len(caplog.records) == number)  # type: ignore[misc]
                    said.append(followed.health()["snapshot"])
                    if number == 1:
                        replace_file(path, listed([service("web")]))
                        assert names(await receive.receive()) == ["shop/web"]
                        await until_in_trio(lambda: followed.health()["snapshot"] == Health(True))
                replace_file(path, listed([service("db")]))
                assert names(await receive.receive()) == ["shop/db"]
                await until_in_trio(lambda: followed.health()["snapshot"] == Health(True))
                said.append(followed.health()["snapshot"])
                nursery.cancel_scope.cancel()

    trio.run(main)
    first, broken, internal = (record.getMessage() for record in caplog.records)
    assert broken.startswith(f"cluster west: {path}: line ")
    problem = broken.removeprefix("cluster west: ").removesuffix("; keeping the previous version")
    assert (first, broken) == (
        f"cluster west: {problem}; none of its objects is known",
        f"cluster west: {problem}; keeping the previous version",
    )
    assert internal == "cluster west: the dump could not be read; keeping the previous version"
    bug = "internal error: ValueError('a bug')"
    assert said == [
        Health(False, "not read yet"),
        Health(False, f"not read yet; {problem}"),
        Health(True, f"as it was before: {problem}", problem),
        Health(True, f"as it was before: {bug}", bug),
        Health(True),
    ]
