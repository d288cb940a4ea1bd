# SPDX-License-Identifier: Apache-2.0

"""Who asks for near endpoints and does not get them is told why, by each command; what nearness gains, by simulate.

``tests/kit/finding_rows.py`` has all causes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.api_objects import (
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    node,
    pod,
    service,
)
from tests.kit.commands_in_process import Run

NODES = [node(f"{zone}1", {ZONE: zone, REGION: "r"}, addresses=[f"10.8.0.{n}"]) for n, zone in enumerate("abc", 1)]
ON = [endpoint(f"10.1.{number}.1", nodeName=on["metadata"]["name"]) for number, on in enumerate(NODES)]
CLIENTS = [pod("c-a", ["10.8.0.50"], "a1"), pod("c-b", ["10.8.0.51"], "b1")]
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}

Simulate = Callable[..., Any]


def for_zone(row: Item, zone: str) -> Item:
    return {**row, "hints": {"forZones": [{"name": zone}]}}


def web(rows: list[Item], **asked: Any) -> list[Item]:
    return [*NODES, *CLIENTS, service("web", **asked), endpoint_slice("web", 1, rows)]


TOLD = {
    "HintsIncomplete": web([for_zone(ON[0], "a"), ON[1]], trafficDistribution="PreferSameZone"),
    "AutoWithoutHints": web(ON, annotations=AUTO),
    "HintsElsewhere": web([for_zone(ON[0], "b"), for_zone(ON[1], "a")], annotations=AUTO),
    "TwinWithoutConstraint": [
        *web(ON), service("vip", cluster_ips=["10.96.0.9"], trafficDistribution="PreferClose"),
        endpoint_slice("vip", 1, ON)],
    "ConstraintWithoutEffect": web(ON[:2], trafficDistribution="PreferClose", publishNotReadyAddresses=True),
    "ZoneInTwoRegions": [
        *(node(name, {ZONE: "a", REGION: region}) for name, region in (("a1", "r1"), ("b1", "r2"))),
        *web(ON[:2], keys=f"{ZONE},*")[len(NODES) :]],
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.json"


@pytest.fixture
def simulate(topodns: Run, path: Path) -> Simulate:
    def run(items: list[Item]) -> Any:
        path.write_text(listed(items))
        return topodns("simulate", "--snapshot", str(path), "-o", "json").json

    return run


@pytest.mark.parametrize("code", TOLD)
def test_told_by_each_command(topodns: Run, path: Path, code: str) -> None:
    """``explain`` and ``simulate`` name the cause that ``check`` finds, whatever source the nearness was asked from."""
    path.write_text(listed(TOLD[code]))
    asked = ("explain", "web.shop", "--client", "node/a1", "--snapshot", str(path))
    explanation = topodns(*asked, "-o", "json").json
    if code == "ConstraintWithoutEffect":
        assert "publishes addresses that are not ready" in explanation["constraint"]["without_effect"]
    else:
        assert code in [finding["code"] for finding in explanation["findings"]]
        assert f"[{code}]" in " ".join(topodns(*asked).out.split())
    simulated = topodns("simulate", "--service", "shop/web", "--snapshot", str(path), "-o", "json").json
    assert [finding["code"] for finding in simulated["findings"]].count(code) == 1


def test_the_default_of_the_zone_is_a_constraint(topodns: Run, path: Path) -> None:
    """A name of a zone with default keys asks for near endpoints, so no command says that its twin alone does."""
    code = "TwinWithoutConstraint"
    path.write_text(listed(TOLD[code]))
    zones = ("--zone", "own.example", "--default-topology-keys", f"own.example={ZONE},*")
    asked = ("--snapshot", str(path), "-o", "json", *zones)
    for zone, codes in (("cluster.local", [code]), ("own.example", [])):
        explained = topodns("explain", f"web.shop.svc.{zone}", "--client", "node/a1", *asked, "--zone", "cluster.local")
        assert [finding["code"] for finding in explained.json["findings"]] == codes
    assert code not in topodns("simulate", "--service", "shop/web", *asked).out
    assert code not in topodns("check", *asked).out


def test_who_asks_in_vain_is_simulated(topodns: Run, path: Path) -> None:
    """A Service that asks only for what Kubernetes does not give is simulated, and its text says what was asked."""
    path.write_text(listed(TOLD["AutoWithoutHints"]))
    ran = topodns("simulate", "--snapshot", str(path))
    assert "no constraint in effect: the Service's topology mode is Auto, and no ready endpoint has a hint" in ran.out
    assert ran.status == 0 and "[AutoWithoutHints]" in ran.out


TWO_EACH = [*ON[:2], *(endpoint(f"10.1.{number}.2", nodeName=f"{zone}1") for number, zone in enumerate("ab"))]
FAR = [endpoint(f"10.1.9.{number}", nodeName="c1") for number in (1, 2)]


@pytest.mark.parametrize(
    ("items", "codes"),
    [
        (web([for_zone(row, zone) for row, zone in zip(TWO_EACH, "baab", strict=True)]), ["SavesNothing"]),
        (web(TWO_EACH, trafficDistribution="PreferSameZone"), []),
        (web(FAR, keys=f"{ZONE},*"), ["ChoosesNothing"]),
        (web(FAR[:1], keys=f"{ZONE},*"), []),
    ],
    ids=["hints-elsewhere", "near", "far", "one"],
)
def test_a_constraint_without_gain_is_told(simulate: Simulate, items: list[Item], codes: list[str]) -> None:
    """``simulate`` says that a constraint chooses nothing, or that it saves no traffic between zones."""
    found = [finding["code"] for finding in simulate(items)["findings"]]
    assert [code for code in found if code in ("ChoosesNothing", "SavesNothing")] == codes


@pytest.mark.parametrize("own", [["10.8.0.50"], ["10.8.0.50", "fd00:8::50"]], ids=["four", "both"])
def test_clients_are_simulated_with_the_families_that_they_have(simulate: Simulate, own: list[str]) -> None:
    """A pod with IPv4 alone gets what A gives it; one with both gets the one choice; one that gets nothing is unmet."""
    six = endpoint("fd00::1", nodeName="a1", targetRef={"kind": "Pod", "name": "m-0"})
    four = endpoint("10.9.0.2", nodeName="b1", targetRef={"kind": "Pod", "name": "m-1"})
    slices = [endpoint_slice(name, family, [row], family=family) for name in ("soft", "hard")
              for family, row in (("IPv4", four), ("IPv6", six))]  # fmt: skip
    asking = [service("soft", keys=f"{ZONE},*"), service("hard", keys=ZONE), pod("client", own, "a1")]
    rows = {row["name"]: row for row in simulate([*NODES, *asking, *slices])["services"]}
    shares = {one["pod"]: one["share"] for one in rows["soft"]["endpoints"]}
    assert shares == ({"m-0": 0.0, "m-1": 1.0} if len(own) == 1 else {"m-0": 1.0, "m-1": 0.0})
    assert (rows["soft"]["unmet_clients"], rows["hard"]["unmet_clients"]) == (0, len(own) == 1)
