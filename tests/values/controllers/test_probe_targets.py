# SPDX-License-Identifier: Apache-2.0

"""Health by quorum, the prober: what it probes, and when it changes its mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from locator.health.rules import first_seen
from locator.health.targets import targets_of
from tests.kit.api_objects import Port
from tests.kit.balanced_services import HEALTH, balanced_record

ONE, TWO = "192.0.2.1", "192.0.2.2"
REFUSED = "connection refused"

NO_BALANCERS = (
    *("0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200"),
    *("::", "fe80::1", "ff02::1", "fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9f0"),
)


@pytest.mark.parametrize(
    ("probes", "healthy"),
    [
        ("", ""),
        ("++", "++"),
        ("--", "++"),
        ("---", "++-"),
        ("--+--", "+++++"),
        ("---+", "++--"),
        ("---++", "++--+"),
        ("---+-+-++", "++------+"),
        ("---++---", "++--+++-"),
    ],
)  # fmt: skip
def test_three_failures_in_a_row_and_two_successes(probes: str, healthy: str) -> None:
    """An address that nobody has probed is healthy; one that flaps stays what it was."""
    condition, states = first_seen(ONE, "t0"), ""
    for number, probe in enumerate(probes, start=1):
        condition = condition.after("" if probe == "+" else REFUSED, f"t{number}")
        states += "+" if condition.entry.healthy else "-"
    assert states == healthy
    changes = [number for number in range(1, len(states) + 1) if f"+{states}"[number - 1] != f"+{states}"[number]]
    assert condition.entry.since == f"t{changes[-1] if changes else 0}"


def test_the_message_is_the_latest_reason() -> None:
    """Why an unhealthy address failed last; a healthy one has no message."""
    condition = first_seen(ONE, "t")
    seen = []
    for failure in ("a", "b", "c", "d", "", ""):
        condition = condition.after(failure, "t")
        seen.append(condition.entry.message)
    assert seen == ["", "", "c", "d", "d", ""]


@pytest.mark.parametrize(
    ("check", "addresses", "ports", "expected"),
    [
        pytest.param("tcp", [ONE, TWO], [("http", 80, "TCP")], [(ONE, 80, None), (TWO, 80, None)], id="all addresses"),
        pytest.param("tcp", [ONE], [("dns", 53, "UDP"), ("x", 54, "TCP"), ("y", 55, "TCP")], [(ONE, 54, None)],
                     id="the first TCP port"),
        pytest.param("tcp", [ONE], [("dns", 53, "UDP")], [], id="no TCP port"),
        pytest.param("tcp:8443", [ONE], [("dns", 53, "UDP"), ("a", 80, "TCP"), ("b", 8443, "TCP")], [(ONE, 8443, None)],
                     id="another port of the Service"),
        pytest.param("tcp:8443", [ONE], [("a", 80, "TCP")], [], id="a port of somebody else"),
        pytest.param("http:10250/pods", [ONE], [], [], id="a port without any of its own"),
        pytest.param("tcp:53", [ONE], [("dns", 53, "UDP"), ("a", 80, "TCP")], [], id="a UDP port"),
        pytest.param("http:80/", [ONE], [("a", 80, "TCP")], [(ONE, 80, "/")], id="http"),
        pytest.param("http:80/healthz?deep=1", [ONE], [("a", 80, "TCP")], [(ONE, 80, "/healthz?deep=1")],
                     id="path with query"),
        pytest.param(None, [ONE], [("a", 80, "TCP")], [], id="no annotation"),
        pytest.param("tcp", [], [("a", 80, "TCP")], [], id="no address"),
        pytest.param("tcp", ["LB.example.com", "2001:DB8::1"], [("a", 80, "TCP")],
                     [("lb.example.com", 80, None), ("2001:db8::1", 80, None)], id="host name and IPv6"),
        pytest.param("tcp", [*NO_BALANCERS, ONE], [("a", 80, "TCP")], [(ONE, 80, None)], id="no address of a balancer"),
        pytest.param(
            "tcp", ["240.0.0.1"], [("a", 80, "TCP")], [("240.0.0.1", 80, None)], id="private in some clouds"
        ),
    ],
)  # fmt: skip
def test_what_is_probed(
    check: str | None, addresses: Sequence[str], ports: Sequence[Port], expected: Sequence[tuple[Any, ...]]
) -> None:
    """Each address of a load balancer, at the port and path of the annotation."""
    found = targets_of(balanced_record("web", addresses, check, ports=ports))
    assert [(target.address, target.port, target.path) for target in found] == expected


@pytest.mark.parametrize(("check", "tls"), [("tcp:443", False), ("http:443/", False), ("https:443/", True)])
def test_what_is_probed_over_tls(check: str, tls: bool) -> None:
    """What the annotation says, whatever the port is."""
    (target,) = targets_of(balanced_record("web", [ONE], check))
    assert (target.port, target.tls) == (443, tls)


def test_the_port_for_health_checks_is_the_services_own() -> None:
    """``spec.healthCheckNodePort``, as with ``externalTrafficPolicy: Local``; but ``tcp`` alone does not mean it."""
    own = replace(balanced_record("web", [ONE], "http:30123/healthz", ports=()), health_check_port=30123)
    assert [(target.port, target.path) for target in targets_of(own)] == [(30123, "/healthz")]
    assert not list(targets_of(replace(own, annotations={HEALTH: "tcp"})))
