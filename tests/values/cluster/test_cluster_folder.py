# SPDX-License-Identifier: Apache-2.0

"""Which clusters a folder has, and what is told while it changes."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from locator.cluster.api_client import ApiClient
from locator.cluster.cluster_folder import ClusterFolder, OpenedCluster, cluster_name_of
from locator.cluster.dump_files import DumpFiles
from locator.cluster.dumps.reading import BadDump
from locator.model import Finding
from locator.printable import printable
from tests.kit.api_objects import item, listed
from tests.kit.kube import config_of
from tests.kit.mounted_secret import mount
from tests.kit.waiting import PATIENCE, until_in_trio

RESERVED = {"east": "the own cluster's (--cluster-name)"}
HOSTILE = printable(os.fsdecode(b"\xff\x1b"))
DUMP = listed([item("Namespace", "shop")])


def kubeconfig(port: int = 1, token: str = "") -> str:
    """Return a kubeconfig for a port of this machine."""
    config = config_of(f"http://127.0.0.1:{port}")
    config["users"][0]["user"] = {"token": token}
    return json.dumps(config)


@pytest.mark.parametrize(("file", "name"), [
    ("west", "west"), ("west.yaml", "west"), ("west.yml", "west"), ("west.json", "west"), ("west.yaml.gz", "west"),
    ("west.kubeconfig", "west"), ("west.conf", "west"), ("west.kubeconfig.yaml", "west"), ("yaml", "yaml"),
    ("we.st.yaml", "we.st"), ("west.txt", "west.txt"), ("west.yaml.bak", "west.yaml.bak"),
])  # fmt: skip
def test_a_file_is_named_for_its_cluster(file: str, name: str) -> None:
    """With an ending or without one."""
    assert cluster_name_of(file) == name


def test_what_a_folder_has(tmp_path: Path) -> None:
    """Whatever is no cluster is told of, but for what the kubelet and editors hide."""
    mount(tmp_path, {"west": kubeconfig(), "south": DUMP, "broken": "clusters: 3", "west_1": DUMP, "lost": None})
    for name in ("east.yaml", "west.yaml", "readme.txt", ".west.yaml.swp", os.fsdecode(b"\xff\x1b")):
        (tmp_path / name).write_text(DUMP)
    (tmp_path / "north").mkdir()
    os.mkfifo(tmp_path / "pipe")
    folder = ClusterFolder(str(tmp_path), RESERVED)
    folder.read()
    kinds = {name: type(opened) for name, opened in folder.clusters.items()}
    assert kinds == {"west": ApiClient, "south": DumpFiles, "broken": ApiClient, "lost": ApiClient, "north": DumpFiles}
    found = {Path(finding.file).name: finding.message for finding in folder.findings}
    assert found.keys() == {"broken", "west_1", "lost", "east.yaml", "west.yaml", "readme.txt", "pipe", HOSTILE}
    assert found["east.yaml"] == "the name east is the own cluster's (--cluster-name)"
    assert found["west.yaml"] == "the name west is that of west"
    assert found["readme.txt"] == "'readme.txt' is no name of a cluster"
    assert "\x1b" not in HOSTILE and all(str(finding).encode() for finding in folder.findings)
    assert {finding.code for finding in folder.findings} == {"InvalidClusterFile"}


def test_a_folder_that_is_missing_is_a_wrong_setting(tmp_path: Path) -> None:
    """One that is empty is none."""
    ClusterFolder(str(tmp_path), {}).read()
    with pytest.raises(BadDump, match="absent: No such file or directory, expected a folder"):
        ClusterFolder(str(tmp_path / "absent"), {}).read()


class Followed:
    """A folder that is followed: what it told."""

    def __init__(self, path: Path) -> None:
        self.folder = ClusterFolder(str(path), RESERVED)
        self.folder.read()
        self.told: list[tuple[str, OpenedCluster | None]] = []
        self.findings: list[str] = []

    def change(self, name: str, opened: OpenedCluster | None) -> None:
        self.told.append((name, opened))

    def take_findings(self, findings: Sequence[Finding]) -> None:
        self.findings = [finding.message for finding in findings]

    def client(self, name: str) -> ApiClient:
        client = self.folder.clusters[name]
        assert isinstance(client, ApiClient)
        return client


def follow(path: Path, steps: Callable[[Followed], Awaitable[None]]) -> None:
    """Follow a folder until *steps* are done, and what is left of them is awaited."""

    async def main() -> None:
        followed = Followed(path)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(followed.folder.run, followed.change, followed.take_findings)
                await steps(followed)
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_clusters_come_and_go(tmp_path: Path) -> None:
    """Nothing is told of those that stay."""
    mount(tmp_path, {"west": kubeconfig()})

    async def steps(followed: Followed) -> None:
        mount(tmp_path, {"west": kubeconfig(), "south": DUMP})
        await until_in_trio(lambda: [name for name, _ in followed.told] == ["south"])
        assert isinstance(followed.told[0][1], DumpFiles)
        mount(tmp_path, {"south": DUMP})
        await until_in_trio(lambda: len(followed.told) == 2)
        assert followed.told[1] == ("west", None)
        assert followed.folder.clusters.keys() == {"south"}

    follow(tmp_path, steps)


def test_what_somebody_writes_all_the_time_holds_up_nothing_else(tmp_path: Path) -> None:
    """Such as the dump of a large cluster. Until it is whole, it is as it was."""
    (tmp_path / "west.yaml").write_text(DUMP)

    async def write() -> None:
        for count in itertools.count():
            text = DUMP + "\n" * count
            await trio.to_thread.run_sync((tmp_path / "east-2.yaml").write_text, text)
            await trio.to_thread.run_sync((tmp_path / "west.yaml").write_text, text)

    async def steps(followed: Followed) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            (tmp_path / "south.yaml").write_text(DUMP)
            await until_in_trio(lambda: followed.told)
            assert [name for name, _ in followed.told] == ["south"]
            assert followed.folder.clusters.keys() == {"west", "south"}
            nursery.cancel_scope.cancel()
        await until_in_trio(lambda: len(followed.told) == 2)
        assert followed.folder.clusters.keys() == {"west", "south", "east-2"}

    follow(tmp_path, steps)


def test_a_kubeconfig_that_changes_is_used_by_its_client(tmp_path: Path) -> None:
    """One with another address, too; one that cannot be read is a finding, and the last one stays in force."""
    mount(tmp_path, {"west": kubeconfig(token="old")})
    moves = list[str]()

    async def steps(followed: Followed) -> None:
        client = followed.client("west")
        client.on_moved.append(lambda: moves.append(client.host))
        waited_for = client.server_readiness.next
        mount(tmp_path, {"west": kubeconfig(token="new")})
        await until_in_trio(waited_for.is_set)
        assert not moves
        mount(tmp_path, {"west": kubeconfig(2)})
        await until_in_trio(lambda: moves == ["http://127.0.0.1:2"])
        for broken in ("", "users: [", "kind: Config\nclusters: []", None):
            mount(tmp_path, {"west": broken})
            await until_in_trio(lambda: len(followed.findings) == 1)
            assert client.host == "http://127.0.0.1:2"
            mount(tmp_path, {"west": kubeconfig(2)})
            await until_in_trio(lambda: not followed.findings)
        assert (followed.client("west"), followed.told, len(moves)) == (client, [], 1)

    follow(tmp_path, steps)


def test_a_kubeconfig_in_place_of_a_dump(tmp_path: Path) -> None:
    """And back: the cluster goes, and comes again at once."""
    mount(tmp_path, {"west": DUMP})

    async def steps(followed: Followed) -> None:
        for text, kind in ((kubeconfig(), ApiClient), (DUMP, DumpFiles)):
            followed.told.clear()
            mount(tmp_path, {"west": text})
            await until_in_trio(lambda: len(followed.told) == 2)
            assert [type(opened) for _, opened in followed.told] == [type(None), kind]

    follow(tmp_path, steps)


def test_a_kubeconfig_that_was_broken_first(tmp_path: Path) -> None:
    """Its cluster is there from the beginning."""
    mount(tmp_path, {"west": "users: ["})

    async def steps(followed: Followed) -> None:
        client = followed.client("west")
        assert client.unusable
        mount(tmp_path, {"west": kubeconfig()})
        await until_in_trio(lambda: not client.unusable)
        assert (client.host, followed.told) == ("http://127.0.0.1:1", [])
        await until_in_trio(lambda: not followed.folder.findings)

    follow(tmp_path, steps)


def test_a_folder_that_vanishes_takes_nothing_away(tmp_path: Path) -> None:
    """A list that cannot be read says nothing about what is gone."""
    path = tmp_path / "clusters"
    path.mkdir()
    mount(path, {"west": DUMP})

    async def steps(followed: Followed) -> None:
        path.rename(tmp_path / "elsewhere")
        await until_in_trio(lambda: bool(followed.findings))
        assert followed.findings == ["No such file or directory, expected a folder with a kubeconfig or dump for each "
                                     "other cluster"]  # fmt: skip
        (tmp_path / "elsewhere").rename(path)
        await until_in_trio(lambda: not followed.findings)
        assert followed.told == []

    follow(path, steps)
