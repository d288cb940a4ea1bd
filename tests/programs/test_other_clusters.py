# SPDX-License-Identifier: Apache-2.0

"""What a server says about other clusters that refuse, hang or come back, and what they cost it."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from tests.kit.api_objects import listed
from tests.kit.kube import config_of
from tests.kit.three_clusters import three_clusters
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until
from tests.oracle.twin_map import of_kind

NAME = "web.shop.svc.cluster.local"
FLAGS = ("--forwarder-service=off", "--cluster-name=east", "--federation=fed.example")


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "east.json"
    path.write_text(listed(three_clusters()["east"]))
    return f"--snapshot={path}"


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[str]:
    """A cluster whose API server accepts connections, and never says anything."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield kubeconfig(tmp_path, "hanging", listener.getsockname()[1])


def kubeconfig(folder: Path, name: str, port: int) -> str:
    path = folder / f"{name}.config"
    path.write_text(json.dumps(config_of(f"http://127.0.0.1:{port}")))
    return f"--cluster={name}={path}"


@contextmanager
def serving(*flags: str) -> Iterator[Server]:
    """Run a server until the block ends; it may not be ready yet."""
    server = Server(["serve", "--listen=127.0.0.1:0", "--http=127.0.0.1:0", *FLAGS, *flags])
    try:
        server.wait_for("^listening http ")
        yield server.bound()
        status = server.end()
    finally:
        server.end(signal.SIGKILL)
    assert status == 0, "\n".join(server.lines)


def test_a_server_that_waits_for_a_cluster_is_not_ready(own: str, hanging: str) -> None:
    """Whoever is told that it is ready gets answers."""
    with serving(own, hanging) as server:
        until(lambda: server.get("/readyz")[0] == 200, "the server to be ready", within=PATIENCE)
        assert server.ask(dns.message.make_query(NAME, "A")).rcode() == dns.rcode.NOERROR
        assert "[+]clusters ok\n[+]cluster hanging not read yet" in server.get("/readyz?verbose")[1]


def test_log_lines_about_a_cluster_name_it(own: str, tmp_path: Path) -> None:
    """Several clusters have a kind of the same name each."""
    with serving(own, kubeconfig(tmp_path, "away", 1)) as server:
        server.wait_for(r"WARNING cluster away: http://127\.0\.0\.1:1: Connection refused$")
        assert not [line for line in server.lines if "refused" in line and "cluster away: " not in line]


def test_a_dump_that_breaks_is_told_of(own: str, tmp_path: Path) -> None:
    """Its last version stays; findings between the clusters name the file, as all others do."""
    west, after = tmp_path / "west.json", three_clusters()["west"]
    (web,) = of_kind(after, "Service")
    web["status"] = {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}}
    west.write_text(listed(three_clusters()["west"]))
    with serving(own, f"--cluster=west={west}", "--upstream=off") as server:
        until(lambda: server.get("/readyz")[0] == 200, "the server to be ready", within=PATIENCE)
        assert "[+]cluster west ok\n" in server.get("/readyz?verbose")[1]
        west.write_text("kind: [")
        server.wait_for("keeping the previous version")
        assert f"[+]cluster west as it was before: {west}: line 2: " in server.get("/readyz?verbose")[1]
        west.write_text(listed(after))
        server.wait_for(f"WARNING cluster west: {west}: line 1: Service .*HostNameWithoutUpstream")
        server.wait_for("snapshot read again")
        assert "[+]cluster west ok\n" in server.get("/readyz?verbose")[1]
