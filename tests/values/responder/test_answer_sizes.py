# SPDX-License-Identifier: Apache-2.0

"""``AnswerTooLarge``: check finds what no message holds, to the octet, and looks at few Services for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dnsserver.programs.from_settings import authority_of
from dnsserver.responder import answer_sizes
from dnsserver.responder.answer_sizes import too_large
from locator.state.snapshot import Snapshot
from tests.kit.api_objects import (
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    large,
    listed,
    namespace,
    service,
    service_policy,
    zone_nodes,
)
from tests.kit.commands_in_process import Run
from tests.kit.dns_queries import TC, query
from tests.kit.in_memory import CountedResponder, settings_of, snapshot_of
from tests.kit.random_queries import Asked, replied

NAME = "web.shop.svc.cluster.local"
TYPES = ("A", "AAAA", "SRV")


def cluster(count: int, *, families: str = "46", **fields: Any) -> list[Item]:
    """Return the Service web with *count* endpoints, in the zones a and b by turns; *fields* are the Service's."""
    ports = fields.pop("ports", (("main", 80, "TCP"),))
    made: list[Item] = [namespace("shop"), *zone_nodes("n", "ab"), service("web", ports=ports, **fields)]
    for family, text in (("IPv4", "10.1.{high}.{low}"), ("IPv6", "fd00::{high}:{low}")):
        if family[-1] in families:
            rows = [
                endpoint(
                    text.format(high=number // 250, low=number % 250 + 1),
                    hostname=f"w{number:04}",
                    nodeName=f"n-{'ab'[number % 2]}1",
                )
                for number in range(count)
            ]
            made.append(endpoint_slice("web", f"{family.lower()}-0", rows, family=family, ports=ports))
    return made


def found(items: Sequence[Item], flags: dict[str, Any] | None = None) -> str:
    """Return the message of the finding about web, empty without one."""
    return found_in(snapshot_of(listed(items), flags), flags)


def found_in(snapshot: Snapshot, flags: dict[str, Any] | None = None) -> str:
    findings = list(too_large(snapshot, authority_of(settings_of(flags))))
    about = {(row.code, row.severity, row.kind, row.namespace, row.name) for row in findings}
    assert len(findings) <= 1 and about <= {("AnswerTooLarge", "warning", "Service", "shop", "web")}
    return findings[0].message if findings else ""


def policy(mode: str) -> Item:
    """Return a ServicePolicy for the Service web, if it has the label ``app``."""
    return service_policy("near", ZONE, mode)


HOLDS = [
    # type, families, name asked, how many endpoints a message holds
    ("A", "4", NAME, 4093),
    ("AAAA", "6", NAME, 2338),
    ("SRV", "4", f"_main._tcp.{NAME}", 1259),
]


@pytest.mark.parametrize(("qtype", "families", "name", "most"), HOLDS, ids=[row[0] for row in HOLDS])
@pytest.mark.parametrize("more", [0, 1])
def test_one_record_decides(qtype: str, families: str, name: str, most: int, more: int) -> None:
    """The finding is there when a reply over TCP is truncated, and names the type and both numbers."""
    snapshot, responder = snapshot_of(listed(cluster(most + more, families=families))), CountedResponder(native=False)
    responder.publish(snapshot)
    reply = replied(responder, Asked(query(name, qtype), "192.0.2.1", "tcp"))
    assert bool(int.from_bytes(reply[2:4]) & TC) == bool(more)
    assert (f"{most + more} {qtype} records, of which a reply holds about {most}" in found_in(snapshot)) == bool(more)


SOFT, HARD = f"{ZONE},*", ZONE
BY_CLIENT = [
    # id, Service and further objects, records of the largest answer that is too large; 0: each client's fits
    ("soft: some client gets all", {"keys": SOFT}, [], 1400),
    ("hard: a zone's fit", {"keys": HARD}, [], 0),
    ("required by a policy", {"labels": {"app": "web"}}, [policy("required")], 0),
    ("preferred by a policy", {"labels": {"app": "web"}}, [policy("preferred")], 1400),
    ("not headless", {"cluster_ips": ("10.96.0.1",)}, [], 0),
    ("two ports", {"keys": HARD, "ports": (("a", 1, "TCP"), ("b", 2, "TCP"))}, [], 1400),
]


@pytest.mark.parametrize(
    ("fields", "more", "records"), [row[1:] for row in BY_CLIENT], ids=[row[0] for row in BY_CLIENT]
)
def test_what_no_client_gets_does_not_count(fields: dict[str, Any], more: list[Item], records: int) -> None:
    """A hard constraint divides the endpoints: what one client may get decides."""
    message = found([*cluster(1400, families="4", **fields), *more])
    assert (f"{records} SRV records" in message) if records else not message


def test_unknown_clients_may_get_all() -> None:
    """With ``--unknown-client all``, a hard constraint gives some clients everything."""
    assert "1400 SRV records" in found(cluster(1400, families="4", keys=HARD), {"unknown-client": "all"})


def test_all_types_stand_in_one_finding() -> None:
    """A Service has one finding, whatever is too large of it."""
    message = found(cluster(4200))
    assert [f" {qtype} records" in message for qtype in TYPES] == [True] * 3


def test_the_longest_zone_counts() -> None:
    """Targets end with the zone that is asked: 1000 fit in cluster.local."""
    items = cluster(1000, families="4")
    zone = ".".join(["cluster-of-the-northern-region"] * 3)
    assert not found(items) and "1000 SRV records" in found(items, {"zone": ["cluster.local", zone]})


def test_no_answer_of_millions_of_records_is_made() -> None:
    """Each endpoint has all ports of its slice. An SRV answer stops far beyond what a message holds."""
    ports = [(f"p{number}", number, "TCP") for number in range(1, 101)]
    assert "8192 SRV records, of which a reply holds about" in found(cluster(1000, families="4", ports=ports))


def test_few_services_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large cluster, check makes no answer of a Service that fits whatever its names are."""
    names = [f"s{number}" for number in range(20)]
    items = [namespace("shop"), *(item for name in names for item in large(name, 250))]
    snapshot, authority = snapshot_of(listed(items)), authority_of(settings_of())
    monkeypatch.setattr(answer_sizes, "resolve", None)
    assert not list(too_large(snapshot, authority))


def test_check_says_so(topodns: Run, tmp_path: Path) -> None:
    """The command prints it with the file."""
    path = tmp_path / "cluster.json"
    path.write_text(listed(cluster(1300, families="4")))
    ran = topodns("check", "--snapshot", str(path), "--fail-on", "warning")
    assert ran.status == 1
    (line,) = [line for line in ran.out.splitlines() if line.endswith("[AnswerTooLarge]")]
    assert (
        line.startswith("warning")
        and "cluster.json: line 1: Service shop/web: more endpoints than 64 KiB hold: 1300 SRV" in line
    )
