# SPDX-License-Identifier: Apache-2.0

"""``topodns console``: the pages of the console, by a program that answers no DNS queries."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api_client import request
from tests.kit.api_objects import listed, service
from tests.kit.commands_in_process import Run
from tests.kit.console_pages import CONSOLE_CLUSTER, page
from tests.kit.files import replace_file
from tests.kit.other_server import kubeconfig
from tests.kit.skewed import skewed
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND, Process
from tests.kit.waiting import until


class Shown(Process):
    """A running ``topodns console``, whose pages are at ``http``."""

    def __init__(self, *arguments: str) -> None:
        command = ["sh", "-c", 'exec "$@" >&2', "sh", *COMMAND]  # standard output is where its lines are read
        super().__init__(["console", *arguments], command=command)
        self.http = self.wait_for(r"^http://(127\.0\.0\.1:\d+)/$")[1]


@contextmanager
def shown(*arguments: str) -> Iterator[Any]:
    """Run ``topodns console`` until the block ends, where a signal ends it with status 0."""
    process = Shown(*arguments)
    try:
        yield process
        assert process.end() == 0
    finally:
        process.end(signal.SIGKILL)


@pytest.mark.parametrize("cluster", ["no pods", "finished"])
def test_endpoints_that_name_no_pod_that_asks(tmp_path: Path, cluster: str) -> None:
    """They are no clients, and take none away: every page is there, and counts the pods that it has."""
    items, finished, dump = skewed(), cluster == "finished", tmp_path / "cluster.json"
    for item in [item for item in items if item["kind"] == "Pod"]:
        if not finished:
            items.remove(item)
        elif item["metadata"]["name"].startswith("web-"):
            item["status"]["phase"] = "Succeeded"
    dump.write_text(listed(items))
    with shown(str(dump)) as running:
        first, found = page(running, "/"), page(running, "/services/shop/web")
        assert first.status == found.status == 200
        assert ("knows no Pods" in found.text) == ("knows no Pods" in first.text) == (not finished)
        for text in ("\N{MULTIPLICATION SIGN} an even share", "crosses zones", "zone=a6"):  # not one that waits to run
            assert (text in found.text) == finished, text


def test_a_dump_without_slices(tmp_path: Path) -> None:
    """No page says that a Service has no endpoint where the dump does not say so."""
    dump = tmp_path / "cluster.json"
    dump.write_text(listed([item for item in skewed() if item["kind"] != "EndpointSlice"]))
    with shown(str(dump)) as running:
        assert "Not known: the dump has neither EndpointSlices nor Endpoints" in page(running, "/").text


def test_console_of_a_dump(tmp_path: Path) -> None:
    """It can be opened once its address is there, follows the files, answers no DNS, and Ctrl-C ends it."""
    path = tmp_path / "cluster.json"
    path.write_text(listed(CONSOLE_CLUSTER))
    with shown(str(path)) as running:
        found = page(running, "/")
        assert found.status == 200 and "answers no DNS queries" in found.text and "each pod asks once" in found.text
        assert {"a", "b", "shop/hard"} <= set(found.rows), "zones of clients, and a Service to look at"
        assert "/tail" not in found.attributes("a", "href") and request(running, "/api/v1/tail").status == 404
        assert "/api/v1/tail" not in request(running, "/api/v1/openapi.json").json["paths"]
        assert not [line for line in running.lines if line.startswith("listening udp")]
        assert request(running, "/", headers={"Host": "evil.example"}).status == 403
        assert page(running, "/services/shop/near", client="10.244.1.9").rows[0] == "10.244.1.7"
        assert page(running, "/explain", name="near.shop", client="pod/front", namespace="shop").status == 200
        replace_file(path, listed([*CONSOLE_CLUSTER, service("later")]))
        until(lambda: "shop/later" in page(running, "/services").rows, "the file is read again")
        assert running.end(signal.SIGINT) == 0


def test_a_node_of_another_cluster() -> None:
    """Nothing leads from it to the own cluster's node or Service of the same name."""
    europe, central = (str(ROOT / "examples" / "clusters" / f"{name}.yaml") for name in ("europe", "us-central"))
    with shown(europe, "--cluster-name", "europe", "--cluster", f"us-central={central}") as running:
        for cluster, leads in (("europe", True), ("us-central", False)):
            found = page(running, f"/nodes/{cluster}/node-1")
            assert "shop/web" in found.text and cluster in found.text
            links = found.attributes("a", "href")
            assert ("/services/shop/web" in links) == ("/explain?client=node%2Fnode-1" in links) == leads


def test_console_of_a_live_cluster(tmp_path: Path) -> None:
    """It can be opened before the cluster can be reached, and says what is wrong."""
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    with shown("--kubeconfig", str(config)) as running:
        assert "Not ready" in page(running, "/").text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.yaml",), "missing.yaml: No such file or directory, expected a file or folder\n"),
        (("--http", "0.0.0.0:0", "x"), "--http: 0.0.0.0:0 found, expected an address of this machine alone"),
        (("--http", "off", "x"), "--http: off found, expected an address of this machine alone"),
    ],
)
def test_console_with_wrong_arguments(topodns: Run, arguments: tuple[str, ...], message: str) -> None:
    """A message, no traceback, and nothing on standard output."""
    ran = topodns("console", *arguments)
    assert (ran.status, ran.out) == (2, "") and ran.err.startswith(f"topodns: {message}")


def test_console_whose_port_is_taken(topodns: Run) -> None:
    """Status 1, and which program has it can be found."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = topodns("console", "--http", at, str(ROOT / "examples" / "cluster.yaml"))
    assert (ran.status, ran.out) == (1, "") and f"topodns: --http {at}: tcp: port in use" in ran.err
