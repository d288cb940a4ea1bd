# SPDX-License-Identifier: Apache-2.0

"""Clusters of a folder, which come, change and go while a server answers; and commands, which read them once."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import listed
from tests.kit.commands_in_process import Run
from tests.kit.kube import config_of
from tests.kit.mounted_secret import mount
from tests.kit.three_clusters import Change, three_clusters, web
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

FEDERATED, PLAIN = "web.shop.fed.example", "web.shop.svc.cluster.local"
EAST, WEST, SOUTH = "192.0.2.1", "192.0.2.2", "192.0.2.3"
FLAGS = ("--cluster-name=east", "--federation=fed.example", "--federation-spares=9")
SERVING = ("--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--forwarder-service=off", "--upstream=off")


def dump(name: str, *changes: Change) -> str:
    """Return the dump of one of the three clusters."""
    return listed(three_clusters(*changes)[name])


class Asker:
    """Asks a server without a pause, in a thread: ``wrong`` are the answers that were not as they had to be."""

    def __init__(self, server: Server) -> None:
        self.allowed: Collection[str] = ()
        """The addresses that the federated name may have now."""
        self.wrong: list[str] = []
        self.asked = 0
        self._server = server
        self._plain = self.addresses(PLAIN)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def addresses(self, name: str) -> list[str]:
        """Return the addresses of a name, in their order."""
        reply = self._server.ask(dns.message.make_query(name, "A"))
        assert reply.rcode() == dns.rcode.NOERROR
        return [str(record) for found in reply.answer for record in found]

    def until(self, *expected: str) -> None:
        """Let the federated name have other addresses, and wait until it has."""
        self.allowed = {*self.allowed, *expected}
        until(lambda: sorted(self.addresses(FEDERATED)) == sorted(expected), f"answers with {expected}")
        self.allowed = {*expected}

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask until the block ends."""
        self.allowed = {*self.addresses(FEDERATED)}
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            before = self.allowed
            try:
                plain, federated = self.addresses(PLAIN), self.addresses(FEDERATED)
            except Exception as error:
                self.wrong.append(repr(error))
                return
            if plain != self._plain or EAST not in federated or not {*federated} <= {*before, *self.allowed}:
                self.wrong.append(f"{plain} {federated}")
            self.asked += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder as of a mounted Secret with west, beside a dump of east."""
    (tmp_path / "east.json").write_text(dump("east"))
    folder = tmp_path / "clusters"
    folder.mkdir()
    mount(folder, {"west.json": dump("west")})
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """Run a server of east that reads the folder, too."""
    own = f"--snapshot={folder.with_name('east.json')}"
    server = Server(["serve", *SERVING, *FLAGS, own, f"--cluster-dir={folder}"]).started()
    try:
        yield server
        status = server.end()
    finally:
        server.end(signal.SIGKILL)
    assert status == 0, "\n".join(server.lines)


def test_clusters_come_change_and_go(server: Server, folder: Path) -> None:
    """Nobody else notices: each answer has what it has to have, all the time."""
    asker = Asker(server)
    with asker.asking():
        asker.until(EAST, WEST)
        mount(folder, {"west.json": dump("west"), "south": dump("south")})
        asker.until(EAST, WEST, SOUTH)
        server.wait_for("INFO cluster south: loaded ")
        mount(folder, {"west.json": dump("west", web("west", balancers=["192.0.2.22"])), "south": dump("south")})
        asker.until(EAST, "192.0.2.22", SOUTH)
        mount(folder, {"west.json": "kind: [", "south": dump("south")})
        server.wait_for(r"WARNING .*/west\.json: line 2: .*\[InvalidClusterFile\]$")
        assert sorted(asker.addresses(FEDERATED)) == sorted([EAST, "192.0.2.22", SOUTH])
        assert "[+]cluster west as it was before: " in server.get("/readyz?verbose")[1]
        mount(folder, {"west.json": dump("west"), "south": dump("south")})
        asker.until(EAST, WEST, SOUTH)
        mount(folder, {"south": dump("south")})
        asker.until(EAST, SOUTH)
    assert (asker.wrong, asker.asked > 100) == ([], True)
    shown = [name for name in server.metrics() if name[0] == "topodns_cluster_objects"]
    assert shown and all("south" in "".join(name) for name in shown)
    assert "west" not in server.get("/readyz?verbose")[1]
    assert "west" not in server.get("/api/v1/topology")[1]
    mount(folder, {})
    until(lambda: "cluster south" not in server.get("/readyz?verbose")[1], "an empty folder to be taken up")
    assert asker.addresses(FEDERATED) == [EAST]


def test_what_is_no_cluster_is_told_of(server: Server, folder: Path) -> None:
    """It holds nobody up, neither at the start nor later."""
    mount(folder, {"west.json": dump("west"), "broken": "users: [", "b_d": "", "east": dump("south")})
    for text in (
        r"/broken: line \d+: not YAML",
        "/b_d: 'b_d' is no name of a cluster",
        "/east: the name east is the own",
    ):
        server.wait_for(f"WARNING .*{text}.*InvalidClusterFile")
    assert server.get("/readyz")[0] == 200
    assert "[+]cluster broken not read yet; " in server.get("/readyz?verbose")[1]
    mount(folder, {"west.json": dump("west"), "broken": dump("south")})
    until(lambda: "[+]cluster broken ok" in server.get("/readyz?verbose")[1], "the file to be read")


def test_a_controller_tells_of_each_thing_once(folder: Path, tmp_path: Path) -> None:
    """All of its parts read the same clusters, and none of them by itself."""
    dead = json.dumps(config_of("https://127.0.0.1:1"))
    files = {"south": dead, "north": dead, "a_b": ""}
    mount(folder, files)
    own = tmp_path / "kubeconfig"
    own.write_text(json.dumps(config_of("https://127.0.0.1:2")))
    flags = ["--publish", "--federation=fed.example", "--health", "--lease=default/c", "--http=127.0.0.1:0"]
    process = Server(["controller", *flags, f"--kubeconfig={own}", f"--cluster-dir={folder}"])
    try:
        process.wait_for("/a_b: 'a_b' is no name of a cluster")
        mount(folder, {**files, "c_d": ""})
        process.wait_for("/c_d: 'c_d' is no name of a cluster")
        mount(folder, {"south": dead, "a_b": "", "c_d": ""})
        process.wait_for("cluster north: no longer in --cluster-dir")
    finally:
        assert process.end() == 0
    for text in ("/a_b: ", "/c_d: ", "is cluster north, too, expected each cluster once"):
        assert sum(text in line for line in process.lines) == 1, text


def test_a_federation_says_where_it_distributes_to(folder: Path, tmp_path: Path) -> None:
    """Also that it is nowhere; and what is about the federation API does not sound as if it were about a cluster."""
    own = tmp_path / "kubeconfig"
    own.write_text(json.dumps(config_of("https://127.0.0.1:1")))
    flags = [f"--kubeconfig={own}", f"--federate=fed.example={own}", f"--cluster-dir={folder}", "--http=127.0.0.1:0"]
    clusters = {name: json.dumps(config_of(f"https://127.0.0.1:{port}")) for port, name in enumerate(("b", "a"), 2)}
    mount(folder, {})
    process = Server(["controller", *flags])
    try:
        process.wait_for(
            "WARNING federation fed.example: distributes to no cluster, expected --cluster, or a kubeconfig"
        )
        process.wait_for("WARNING federation fed.example: https://127.0.0.1:1: Connection refused")
        mount(folder, clusters)
        process.wait_for("INFO cluster b: new in --cluster-dir")
        process.wait_for("WARNING cluster b: https://127.0.0.1:2: Connection refused")
    finally:
        assert process.end() == 0
    process = Server(["controller", *flags])
    try:
        process.wait_for("INFO federation fed.example: distributes to a, b$")
        process.wait_for("WARNING cluster a: https://127.0.0.1:3: Connection refused")
    finally:
        assert process.end() == 0


def test_a_flat_network_with_a_cluster_that_is_not_there(topodns: Run, folder: Path) -> None:
    """It may come, so this is no error. But it may be misspelled."""
    mount(folder, {"west.json": dump("west")})
    own = (f"--snapshot={folder.with_name('east.json')}", *FLAGS, f"--cluster-dir={folder}")
    checked = topodns("check", *own, "--flat-network=east,wets")
    assert checked.status == 0
    expected = "expected names of clusters: east, west; it counts once it is in --cluster-dir"
    assert f"WARNING --flat-network: no cluster wets, did you mean west?, {expected}\n" in checked.err
    assert "--flat-network" not in topodns("check", *own, "--flat-network=east,west").err


def test_a_folder_that_is_missing_is_a_wrong_setting(topodns: Run, folder: Path) -> None:
    """As a missing file of --cluster is one."""
    own = f"--snapshot={folder.with_name('east.json')}"
    for command in (["serve", *SERVING], ["check"], ["explain", FEDERATED, "--client", "10.1.0.5"]):
        ran = topodns(*command, own, *FLAGS, f"--cluster-dir={folder}/absent")
        assert ran.status == 2
        assert ran.err.startswith(
            f"topodns: --cluster-dir: {folder}/absent: No such file or directory, expected a folder"
        )


def test_commands_read_the_folder_once(topodns: Run, folder: Path) -> None:
    """A file that cannot be read is a finding, not the end."""
    mount(folder, {"west.json": dump("west"), "south": "kind: [", "broken": "users: [", "north": "nothing"})
    flags = (
        f"--snapshot={folder.with_name('east.json')}",
        *FLAGS,
        f"--cluster-dir={folder}",
        "--forwarder-service=off",
    )
    checked = topodns("check", *flags)
    assert (checked.status, checked.out.count("[InvalidClusterFile]")) == (0, 3)
    assert "[ClusterUnreachable]" not in checked.out
    explained = topodns("explain", FEDERATED, "--client", "10.1.0.5", *flags)
    assert explained.status == 0 and WEST in explained.out
    assert explained.err.count("[InvalidClusterFile]") == 3
    named = topodns("check", *flags, f"--cluster=west={folder / 'west.json'}")
    assert "/west.json: the name west is that of a --cluster" in named.out


def test_a_flat_network_may_name_a_cluster_that_is_to_come(topodns: Run, folder: Path) -> None:
    """Without a folder, it is a mistake."""
    flags = (f"--snapshot={folder.with_name('east.json')}", *FLAGS, "--flat-network=east,north")
    assert topodns("check", *flags, f"--cluster-dir={folder}").status == 0
    assert topodns("check", *flags).status == 2
