# SPDX-License-Identifier: Apache-2.0

"""Who asks: workloads from pods, within an hour and within bounds; and the clients that a Service could name."""

from __future__ import annotations

import pytest

from dnsserver.tools.live import askers as live_askers
from dnsserver.tools.live.askers import AGAIN, HOUR, Askers, SeenClient, Workload, proposal, workload_of
from locator.model import Pod

OWNERS = [
    ("ReplicaSet/web-5d8c9f7b6f", Workload("shop", "Deployment", "web")),
    ("ReplicaSet/web", Workload("shop", "ReplicaSet", "web")),
    ("ReplicaSet/my-app", Workload("shop", "ReplicaSet", "my-app")),  # no hash has an "a"
    ("StatefulSet/db", Workload("shop", "StatefulSet", "db")),
    ("Job/night-28930440", Workload("shop", "CronJob", "night")),
    ("Job/once", Workload("shop", "Job", "once")),
    ("", Workload("shop", "Pod", "front")),
]


@pytest.mark.parametrize(("owner", "workload"), OWNERS, ids=[owner or "none" for owner, _ in OWNERS])
def test_the_workload_of_a_pod(owner: str, workload: Workload) -> None:
    assert workload_of(Pod("shop", "front", owner=owner)) == workload


WEB, JOBS, NODE = Workload("shop", "Deployment", "web"), Workload("jobs", "Job", "once"), Workload("", "node", "n1")


def asking(askers: Askers, service: str, number: int, workload: Workload, now: float) -> None:
    address = number.to_bytes(4)
    if askers.unknown([address], now):
        askers.learn({address: SeenClient(f"client {number}", workload)}, now)
    askers.asked(service, address, now)


def test_workloads() -> None:
    """Each client counts once, for an hour since it asked last; those with the most clients come first."""
    askers = Askers()
    for number, workload in enumerate((WEB, JOBS, WEB, NODE)):
        for _ in range(3):
            asking(askers, "shop/db", number, workload, 10.0 + number)
    asking(askers, "shop/other", 0, WEB, 20.0)
    assert askers.workloads("shop/db") == [(WEB, 2, 12.0), (NODE, 1, 13.0), (JOBS, 1, 11.0)]
    assert askers.workloads("shop/other") == [(WEB, 1, 20.0)] and not askers.workloads("shop/none")
    asking(askers, "shop/db", 2, WEB, HOUR)
    askers.forget(HOUR + 15)
    assert askers.workloads("shop/db") == [(WEB, 1, HOUR)]


def test_an_address_may_get_another_pod() -> None:
    """Who has an address is looked up again after a while, also of one that asks all the time."""
    askers = Askers()
    asking(askers, "shop/db", 1, WEB, 0.0)
    asking(askers, "shop/db", 1, JOBS, AGAIN)
    assert not askers.unknown([(1).to_bytes(4)], AGAIN) and askers.unknown([(1).to_bytes(4)], AGAIN + 1)
    askers.asked("shop/db", (9).to_bytes(4), 1.0)  # nobody knows who that is
    assert [number for _, number, _ in askers.workloads("shop/db")] == [1]


def test_clients_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound others are left out, and it says so; after an hour there is room again."""
    monkeypatch.setattr(live_askers, "MAX_SEEN", 10)
    askers = Askers()
    for number in range(20):
        asking(askers, f"shop/s-{number % 2}", number, WEB, 0.0)
    assert askers.full and sum(row[1] for name in "01" for row in askers.workloads(f"shop/s-{name}")) == 10
    askers.forget(HOUR + 1)
    assert not askers.full
    asking(askers, "shop/s-0", 30, WEB, HOUR + 2)
    assert askers.workloads("shop/s-0") == [(WEB, 1, HOUR + 2)]


def test_what_is_known_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_askers, "MAX_KNOWN", 10)
    askers = Askers()
    for number in range(100):
        asking(askers, "shop/db", number, WEB, number * 10.0)
    assert askers.unknown([(1).to_bytes(4)], 1000.0) and not askers.unknown([(99).to_bytes(4)], 1000.0)
    assert [number for _, number, _ in askers.workloads("shop/db")] == [100]


def test_the_proposal() -> None:
    """Names the namespaces of pods, each once; what is no pod cannot be named."""
    assert proposal((WEB, JOBS, NODE, Workload("shop", "Pod", "x"))) == "jobs; shop"
    assert proposal((NODE,)) == ""
