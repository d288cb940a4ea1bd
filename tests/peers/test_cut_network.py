# SPDX-License-Identifier: Apache-2.0

"""A network that is cut tells nobody: neither end of a connection gets a packet."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from locator.cluster.api_client import ApiClient
from locator.cluster.credentials import DEAD
from locator.cluster.responses import Unreachable
from tests.kit.kube import config_of
from tests.kit.network_namespaces import PREFIX, Machine, Network, one_network
from tests.kit.programs import Daemon

PORT = 8001
SILENCE = 60.0  # seconds that topodns would wait for data

# Begins a response that does not end, as a watch does; to /silent it only acknowledges.
SERVER = f"""
import socket, threading

def serve(connection):
    if b"/silent" not in connection.recv(10_000):
        connection.sendall(b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n3\\r\\n{{}}\\n\\r\\n')
    connection.recv(1)

with socket.create_server(("", {PORT})) as listener:
    print("listening", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


class Far(NamedTuple):
    """A server on another machine, and a client of it."""

    network: Network
    machine: Machine
    client: ApiClient


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    with one_network() as network, network.machine(f"{PREFIX}.2") as machine:
        server = Daemon.start([*machine.there, sys.executable, "-c", SERVER], tmp_path, name="far-server")
        try:
            server.until(lambda: "listening" in server.printed.read_text())
            kubeconfig = tmp_path / "kubeconfig"
            kubeconfig.write_text(json.dumps(config_of(f"http://{machine.address}:{PORT}")))
            yield Far(network, machine, ApiClient(kubeconfig=str(kubeconfig)))
        finally:
            server.end()


def test_a_watch_that_nothing_reaches_any_more_is_given_up(far: Far) -> None:
    """By the kernel, in seconds, so that a new one begins as soon as the network is whole."""
    with far.client.open("/watch", {}, silence=SILENCE) as stream:
        lines = iter(stream)
        assert next(lines) == [b"{}"]
        with far.network.cut_off(far.machine):
            began = time.monotonic()
            with pytest.raises(Unreachable, match="the answer broke off") as caught:
                next(lines)
            assert time.monotonic() - began < DEAD + 3.0
            assert caught.value.reason == "cut"
    with far.client.open("/watch", {}, silence=SILENCE) as stream:
        assert next(iter(stream)) == [b"{}"]


def test_a_server_that_only_acknowledges_is_waited_for(far: Far) -> None:
    """It may be stopped, or busy; the kernel does not take that for a cut."""
    silence = DEAD + 1.0
    with pytest.raises(Unreachable, match=f"silent for {silence:g} s"):
        far.client.open("/silent", {}, silence=silence)
