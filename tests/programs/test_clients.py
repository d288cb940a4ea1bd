# SPDX-License-Identifier: Apache-2.0

"""``topodns clients`` and the operation of that name: who asked a running server for a Service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import dns.edns
import dns.message
import pytest

from tests.kit.api_client import API, request
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.live_server import TRUSTED
from tests.kit.topodns_process import Server, serving


def owned(item: Item, kind: str, name: str) -> Item:
    """Return a pod that a controller keeps."""
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "1", "controller": True}
    return {**item, "metadata": {**item["metadata"], "ownerReferences": [reference]}}


CLUSTER: list[Item] = [
    *map(namespace, ("shop", "jobs")),
    node("a1", {ZONE: "a"}, addresses=["10.0.0.1"], cidrs=["10.244.1.0/24"]),
    *(owned(pod(f"web-{number}", [f"10.244.1.{number}"], "a1"), "ReplicaSet", "web-5d8c9f7b6f") for number in (1, 2)),
    owned(pod("night", ["10.244.1.3"], "a1", where="jobs"), "Job", "night-28930440"),
    owned(pod("idle", ["10.244.1.4"], "a1"), "StatefulSet", "idle"),
    service("db", keys=f"{ZONE},*"),
    endpoint_slice("db", 1, [endpoint("10.244.1.9", nodeName="a1")]),
    service("quiet", keys=f"{ZONE},*"),
]


def asked(server: Server, client: str) -> None:
    query = dns.message.make_query("db.shop.svc.cluster.local", "A", options=[dns.edns.ECSOption(client, 32)])
    server.ask(query)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags: dict[str, Any] = {"http": "127.0.0.1:0", "trusted-forwarder": TRUSTED}
    with serving(tmp_path_factory.mktemp("clients"), listed(CLUSTER), flags=flags) as server:
        for client in ("10.244.1.1", "10.244.1.2", "10.244.1.3", "10.0.0.1", "10.244.1.77"):
            for _ in range(3):
                asked(server, client)
        yield server


WORKLOADS = [
    ("shop", "Deployment", "web", 2),
    (None, "node", "node a1", 1),
    (None, "podcidr", "pod CIDR 10.244.1.0/24 of a1", 1),
    ("jobs", "CronJob", "night", 1),
]


def test_workloads_that_asked(server: Server) -> None:
    """By owner, whether Python or native code answered; what is no pod as what it is; and who did not ask."""
    found = request(server, f"{API}/clients", service="shop/db").json
    rows = [(row["namespace"], row["kind"], row["name"], row["pods"]) for row in found["workloads"]]
    assert rows == WORKLOADS
    assert found["proposal"] == "topodns.io/clients: jobs; shop" and found["complete"]
    assert found["others"] == [{"namespace": "shop", "kind": "StatefulSet", "name": "idle", "pods": 1}]
    assert found["other_workloads"] == 1


def test_the_command(server: Server, topodns: Run) -> None:
    """Prints the same as a table, with the command to paste; and as JSON or YAML."""
    url = f"http://{server.http}"
    ran = topodns("clients", "svc/db", "-n", "shop", "--server", url)
    assert ran.status == 0 and ran.err == ""
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert lines[2] == "NAMESPACE WORKLOAD CLIENTS LAST ASKED"
    assert lines[3].startswith("shop Deployment web 2 2")
    assert "kubectl -n shop annotate service db --overwrite topodns.io/clients='jobs; shop'" in lines
    assert "shop/idle (1)" in lines[-1]
    as_json = json.loads(topodns("clients", "db.shop", "--server", url, "-o", "json").out)
    assert as_json["workloads"] == request(server, f"{API}/clients", service="shop/db").json["workloads"]
    nobody = topodns("clients", "shop/quiet", "--server", url)
    said = r"nobody that topodns can locate asked this server for shop/quiet in the last \d+ (seconds?|minutes)\n"
    assert nobody.status == 0 and re.fullmatch(said, nobody.out)


WRONG = [
    ((), "NS/NAME: missing, expected NAMESPACE/NAME, NAME.NAMESPACE, or svc/NAME with -n NAMESPACE"),
    (("db",), "NS/NAME: 'db', expected NAMESPACE/NAME"),
    (("shop/quite",), "NS/NAME: shop/quite found, expected a Service that is served, did you mean shop/quiet?"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(row[0]) or "none" for row in WRONG])
def test_a_service_that_is_none(server: Server, topodns: Run, arguments: tuple[str, ...], message: str) -> None:
    """Is wrong input; a misspelled one gets the nearest."""
    ran = topodns("clients", *arguments, "--server", f"http://{server.http}")
    assert ran.status == 2 and ran.err.startswith(f"topodns: {message}")
