# SPDX-License-Identifier: Apache-2.0

"""``check`` says which clients get nothing, and which zones have lost the endpoints of a Service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    service,
    service_policy,
)
from tests.kit.commands_in_process import Run
from tests.kit.crowded_zone import balanced, crowded
from tests.kit.lost_zone import three_zones

UNMET, LOST = "UnmetClients", "ZoneWithoutEndpoints"


class Row(NamedTuple):
    """A cluster, and what ``check`` says of its clients: the code, the Service, and the message."""

    name: str
    cluster: Sequence[Item]
    found: Sequence[tuple[str, str, str]] = ()
    others: Sequence[str] = ()
    """Codes of the same Services that say something already."""


def without(kind: str, cluster: Sequence[Item]) -> list[Item]:
    return [item for item in cluster if item["kind"] != kind]


OTHER = [service("none", keys=ZONE), endpoint_slice("none", 1, [])]
UNREADY = [endpoint("10.0.9.1", nodeName="a1", ready=False)]
V6 = [
    service("six", keys=f"{ZONE},*"),
    endpoint_slice("six", 1, [endpoint(f"fd00::{zone}", nodeName=f"{zone}1") for zone in "abc"], family="IPv6"),
]
LOST_B = [
    (UNMET, "hard", "2 of 6 clients get no address: 2 in b"),
    (LOST, "hard", "its only endpoint in zone b is not ready: 2 of 2 clients there get no address"),
    (LOST, "soft", "its only endpoint in zone b is not ready: 2 clients there get those of other zones"),
]
ROWS = [
    Row("peace", three_zones()),
    Row("a zone is lost", three_zones(lost="b"), LOST_B),
    Row("a zone never had any", three_zones(zones="ab"),
        [(UNMET, "hard", "1 of 6 clients gets no address: 1 in c")]),
    Row("lost goes before never had", three_zones(zones="bc", lost="c"), [
        (UNMET, "hard", "4 of 6 clients get no address: 1 in c, 3 in a"),
        (LOST, "hard", "its only endpoint in zone c is not ready: 1 of 1 client there gets no address"),
        (LOST, "soft", "its only endpoint in zone c is not ready: 1 client there gets those of other zones")]),
    Row("no endpoint at all", three_zones(*OTHER),
        [(UNMET, "none", "6 of 6 clients get no address: 3 in a, 2 in b, 1 in c")]),
    Row("none is ready", three_zones(OTHER[0], endpoint_slice("none", 1, UNREADY)),
        [(UNMET, "none", "6 of 6 clients get no address: 3 in a, 2 in b, 1 in c"),
         (LOST, "none", "its only endpoint in zone a is not ready: 3 of 3 clients there get no address")]),
    Row("none is ready, without a constraint", three_zones(
        service("down"), endpoint_slice("down", 1, UNREADY), service("idle"), endpoint_slice("idle", 1, [])),
        [(UNMET, "down", "6 of 6 clients get no address: 3 in a, 2 in b, 1 in c; its only endpoint is not ready")]),
    Row("other labels than zones", three_zones(hard=RACK, zones="ac"),
        [(UNMET, "hard", "2 of 6 clients get no address: 2 in rack=rb")]),
    Row("a zone in vain, nodes decide", three_zones(hard=f"{HOSTNAME},*", lost="b"), LOST_B[2:]),
    Row("a policy requires", three_zones(service_policy("p", ZONE, app="hard"), hard=f"{ZONE},*", lost="b"), LOST_B),
    Row("another family", three_zones(*V6),
        [(UNMET, "six", "6 of 6 clients get no address: 3 in a, 2 in b, 1 in c")]),
    Row("no pods", without("Pod", three_zones(lost="b"))),
    Row("no nodes", without("Node", three_zones(lost="b"))),
    Row("an error says it", three_zones(hard="example.com/typo"), others=["KeyOnNoNode"]),
    Row("spilled clients get something", crowded(balanced(f"{ZONE},*"))),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_findings_about_clients(topodns: Run, tmp_path: Path, row: Row) -> None:
    """Exactly these, and only once; nothing where nobody knows who asks, or from where."""
    (tmp_path / "cluster.json").write_text(listed(row.cluster))
    ran = topodns("check", "-o", "json", "--forwarder-service", "off", "--snapshot", str(tmp_path / "cluster.json"))
    found = [one for one in ran.json if one["code"] in (UNMET, LOST)]
    assert [(one["code"], one["name"], one["message"]) for one in found] == list(row.found)
    assert {one["severity"] for one in found if one["code"] == UNMET} <= {"warning"}
    assert {one["file"] for one in found} <= {str(tmp_path / "cluster.json")}
    assert set(row.others) <= {one["code"] for one in ran.json}


@pytest.mark.parametrize(("flags", "status"), [((), 0), (("--fail-on", "warning"), 1)], ids=["", "warning"])
def test_a_pipeline_fails_if_it_wants(topodns: Run, tmp_path: Path, flags: tuple[str, ...], status: int) -> None:
    """Unmet clients are a warning. The text says where each code is explained, once."""
    (tmp_path / "cluster.json").write_text(listed(three_zones(lost="b")))
    ran = topodns("check", "--forwarder-service", "off", "--snapshot", str(tmp_path / "cluster.json"), *flags)
    assert ran.status == status
    explained = [line.split() for line in ran.out.partition("What each code means:\n")[2].splitlines()]
    assert explained[:2] == [[code, f"docs/findings.md#{code.lower()}"] for code in (UNMET, LOST)]
    assert ran.out.endswith("\n0 errors, 1 warning, 2 infos\n")


def test_simulate_uses_the_same_code(topodns: Run, tmp_path: Path) -> None:
    """One cause has one code, and one word for ``--fail-on``."""
    (tmp_path / "cluster.json").write_text(listed(three_zones(lost="b")))
    flags: Any = ("simulate", "-o", "json", "--snapshot", str(tmp_path / "cluster.json"))
    ran = topodns(*flags, "--fail-on", "unmet")
    assert ran.status == 1
    assert {one["documentation"] for one in ran.json["findings"] if one["code"] == UNMET} == {
        "docs/findings.md#unmetclients"
    }
