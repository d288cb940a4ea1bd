# SPDX-License-Identifier: Apache-2.0

"""What a server says about other clusters that refuse, hang or break, and what they cost it."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import listed
from tests.kit.kube import config_of
from tests.kit.three_clusters import Change, three_clusters, web
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

NAME = "web.shop.svc.cluster.local"
FLAGS = ("--forwarder-service=off", "--cluster-name=east", "--federation=fed.example", "--upstream=off")


def write(path: Path, *changes: Change) -> None:
    """Write the cluster that the file is named for."""
    path.write_text(listed(three_clusters(*changes)[path.stem]))


@pytest.fixture(scope="module")
def west(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dump of a cluster that a server reads beside its own one."""
    path = tmp_path_factory.mktemp("clusters") / "west.json"
    write(path)
    return path


@pytest.fixture(scope="module")
def server(west: Path) -> Iterator[Server]:
    """Run a server that may not be ready yet: of two other clusters, one refuses connections, and one says nothing."""
    write(west.with_name("east.json"))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        others = [f"--cluster=west={west}"]
        for name, port in (("away", 1), ("hanging", listener.getsockname()[1])):
            path = west.with_name(f"{name}.config")
            path.write_text(json.dumps(config_of(f"http://127.0.0.1:{port}")))
            others.append(f"--cluster={name}={path}")
        own = f"--snapshot={west.with_name('east.json')}"
        server = Server(["serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", own, *FLAGS, *others])
        try:
            server.wait_for("^listening http ")
            yield server.bound()
            status = server.end()
        finally:
            server.end(signal.SIGKILL)
    assert status == 0, "\n".join(server.lines)


def test_a_server_that_waits_for_a_cluster_is_not_ready(server: Server) -> None:
    """Whoever is told that it is ready gets answers."""
    until(lambda: server.get("/readyz")[0] == 200, "the server to be ready", within=PATIENCE)
    assert server.ask(dns.message.make_query(NAME, "A")).rcode() == dns.rcode.NOERROR
    text = server.get("/readyz?verbose")[1]
    assert "[+]clusters ok\n" in text and "[+]cluster hanging not read yet" in text


def test_log_lines_about_a_cluster_name_it(server: Server) -> None:
    """Several clusters have a kind of the same name each."""
    server.wait_for(r"WARNING cluster away: http://127\.0\.0\.1:1: Connection refused$")
    assert not [line for line in server.lines if "refused" in line and "cluster away: " not in line]


def test_a_dump_that_breaks_is_told_of(server: Server, west: Path) -> None:
    """Its last version stays; findings between the clusters name the file, as all others do."""
    until(lambda: "[+]cluster west ok\n" in server.get("/readyz?verbose")[1], "west to be read", within=PATIENCE)
    west.write_text("kind: [")
    server.wait_for("keeping the previous version")
    assert f"[+]cluster west as it was before: {west}: line 2: " in server.get("/readyz?verbose")[1]
    write(west, web("west", balancers=["lb.example.com"]))
    server.wait_for(f"WARNING cluster west: {west}: line 1: Service .*HostNameWithoutUpstream")
    server.wait_for("snapshot read again")
    assert "[+]cluster west ok\n" in server.get("/readyz?verbose")[1]
