# SPDX-License-Identifier: Apache-2.0

"""How soon what is written to a federation API is in all clusters, and what that costs, on real API servers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench.servers import needed
from bench.tables import table, verdict
from tests.kit.api_objects import Item, deployment, item, namespace, service
from tests.kit.federation import Federation, Member, busiest_second, running_federation
from tests.kit.waiting import until

WHERE = "federating"
CLUSTERS = ("a", "b", "c", "d", "e")
OBJECTS = 500
CHANGES = 30
PATIENCE_SECONDS = 120.0

CHANGE_SECONDS = 2.0  # within which a change is in all clusters
WRITES_PER_SECOND = 20  # to one API server, in any second
RESIDENT_MIB = 60.0


class Federated(NamedTuple):
    """What was measured: seconds, the most writes that one cluster saw in a second, writes of a restart, and MiB."""

    created: float
    changed: Sequence[float]
    busiest: int
    restarted: int
    resident: float


def measure(folder: Path) -> Federated:
    """Create objects, change some of them one after another, and start the controller again."""
    with ExitStack() as stack:
        with needed():
            federation = stack.enter_context(running_federation(folder, CLUSTERS))
        federation.controller()
        objects = [_object(number) for number in range(OBJECTS)]
        began = time.perf_counter()
        federation.api.plane.api.create(namespace(WHERE), *objects)
        until(
            lambda: all(_has_all(member) for member in federation.clusters.values()), "copies", within=PATIENCE_SECONDS
        )
        created = time.perf_counter() - began
        federation.until_quiet()
        changed = [_change(federation, number) for number in range(CHANGES)]
        busiest = max(busiest_second(member.writes()) for member in federation.clusters.values())
        federation.until_quiet()
        before = sum(federation.write_counts().values())
        federation.end_controllers()
        controller = federation.controller()
        probe = _object(OBJECTS)
        federation.api.plane.api.create(probe)  # once it is everywhere, all has been compared
        federation.until_synced(probe)
        federation.until_quiet()
        members = (federation.api, *federation.clusters.values())
        name = f"{WHERE}/{probe['metadata']['name']}"
        mine = sum(write.key.startswith(name) for member in members for write in member.writes())
        return Federated(
            created,
            changed,
            busiest,
            sum(federation.write_counts().values()) - before - mine,
            _resident(controller.process.pid),
        )


def report(found: Federated) -> str:
    """Return the table of what was measured, and whether it meets the targets."""
    longest = max(found.changed)
    rows = [
        (f"{OBJECTS} objects created, in all clusters after", f"{found.created:.1f} s", ""),
        (
            "a change, in all clusters after (p50, longest)",
            f"{sorted(found.changed)[len(found.changed) // 2]:.2f} s, {longest:.2f} s",
            verdict(longest, CHANGE_SECONDS, "≤ {:.0f} s"),
        ),
        (
            "writes to one cluster in any second, at most",
            f"{found.busiest}",
            verdict(found.busiest, WRITES_PER_SECOND, "≤ {:.0f}"),
        ),
        ("writes after a restart", f"{found.restarted}", verdict(found.restarted, 0, "≤ {:.0f}")),
        ("resident memory", f"{found.resident:.0f} MiB", verdict(found.resident, RESIDENT_MIB, "≤ {:.0f} MiB")),
    ]
    return (
        f"{table(('federated creation', 'measured', 'target'), rows)}\n"
        f"{OBJECTS} objects in {len(CLUSTERS)} clusters. All API servers run on this machine, too.\n"
    )


def _object(number: int) -> Item:
    name = f"o{number}"
    if number % 5 < 2:
        return item("ConfigMap", name, WHERE, data={"number": "0"})
    if number % 5 == 2:
        return deployment(name, where=WHERE, labels={"app": name}, replicas=len(CLUSTERS))
    return service(name, where=WHERE, cluster_ips=(), selects=True)


def _has_all(member: Member) -> bool:
    return sum(len(member.plane.api.items(kind, WHERE)) for kind in ("ConfigMap", "Deployment", "Service")) > OBJECTS


def _change(federation: Federation, number: int) -> float:
    """Change a ConfigMap; return the seconds until all clusters have it."""
    written = _object(5 * number)
    text = str(number + 1)
    federation.api.plane.api.patch(written, {"data": {"number": text}})
    began = time.perf_counter()
    for member in federation.clusters.values():
        until(lambda member=member: (member.find(written) or {})["data"]["number"] == text, "a change")
    return time.perf_counter() - began


def _resident(pid: int) -> float:
    (kib,) = re.findall(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(kib) / 1024
