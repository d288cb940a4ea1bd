# SPDX-License-Identifier: Apache-2.0

"""Which API servers a federation distributes to, while kubeconfigs change."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from dnsserver.programs.federation import Federation
from locator.cluster.api_client import ApiClient
from locator.cluster.leading.elector import LeaderElector
from locator.cluster.leading.federator import Federator
from locator.control.lease import LeaderElection
from tests.kit.kube import config_of


def test_a_kubeconfig_that_comes_to_name_another_ones_api_server_is_not_written_to(tmp_path: Path) -> None:
    """The federation API's, or that of a cluster that has another name, too; until it is the only one to name it."""

    def client(name: str, port: int) -> ApiClient:
        (tmp_path / name).write_text(json.dumps(config_of(f"http://127.0.0.1:{port}")))
        return ApiClient(kubeconfig=str(tmp_path / name))

    async def main() -> None:
        api = client("federation", 1)
        elector = LeaderElector(api, LeaderElection("me", "ns", "lease"), writes="")
        federator = Federator("fed.example.com", api, elector, instance="me")
        federation = Federation(elector, federator, is_own=False)
        clients = {name: client(name, port) for name, port in (("east", 2), ("west", 3), ("late", 3))}

        async def move(name: str, port: int) -> None:
            client(name, port)
            await clients[name].reconfigure()

        for name, opened in clients.items():
            federation.change(name, opened)
        assert federator.reachable == {"east": True, "west": True}  # and the last one is a twin
        await move("east", 1)
        assert federator.reachable == {"east": False, "west": True}
        await move("east", 3)
        assert federator.reachable == {"east": False, "west": True}
        await move("west", 4)
        assert federator.reachable == {"east": True, "west": True}
        await move("late", 5)
        assert federator.reachable == {"east": True, "west": True, "late": True}
        await move("late", 4)
        assert federator.reachable == {"east": True, "west": True, "late": False}
        federation.change("west", None)
        assert federator.reachable == {"east": True, "late": True}
        federation.change("new", client("new", 3))  # east gets another name: both files are there for a while
        assert federator.reachable == {"east": True, "late": True}
        federation.change("east", None)
        assert federator.reachable == {"late": True, "new": True}

    trio.run(main)
