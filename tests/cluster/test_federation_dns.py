# SPDX-License-Identifier: Apache-2.0

"""The answers for a federated Service from its creation by one ``kubectl apply`` to its end, asked without a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

from tests.kit.api_objects import deployment, load_balancer_status, service
from tests.kit.federation import NAMES, ZONE, Federation
from tests.kit.live_server import Asker, serving_live
from tests.kit.waiting import until

SPACE = "dns"
CLIENTS = {"east": "10.71.9.9", "south": "10.72.9.9", "west": "10.73.9.9", "elsewhere": "192.0.2.1"}
BALANCERS = {"east": "203.0.113.1", "south": "203.0.113.2", "west": "203.0.113.3"}
NONE, NODATA = {"NXDOMAIN"}, set[str]()
WEB = service("web", where=SPACE, cluster_ips=(), selects=True, type="LoadBalancer")
PODS = deployment("web", where=SPACE, labels={"app": "web"}, replicas=6)


def balance(federation: Federation, *names: str) -> None:
    """Do what a cloud does: write the address of the load balancer."""
    for name in names:
        federation.clusters[name].plane.api.patch_status(WEB, load_balancer_status([BALANCERS[name]]))


def run(federation: Federation, *names: str) -> None:
    """Let the pods of clusters run until all are ready."""

    def ready() -> bool:
        federation.run_pods(SPACE, *names)
        found = federation.status(PODS)
        return all(found[name]["ready"] == 2 for name in names)

    until(ready, lambda: f"{federation.status(PODS)}")


def virtual(federation: Federation, name: str) -> str:
    """Return the Service's address in a cluster."""
    found = federation.clusters[name].find(WEB)
    assert found is not None
    return str(found["spec"]["clusterIP"])


def parts(*answers: set[str]) -> set[frozenset[str]]:
    """Return all answers that have some of these addresses."""
    return {
        frozenset(some)
        for answer in answers
        for size in range(1, len(answer) + 1)
        for some in combinations(answer, size)
    }


def test_from_the_first_to_the_last(federation: Federation, tmp_path: Path) -> None:
    """No query gets a wrong answer: no address that is not ready, no failure, and none of what was before or after."""
    federation.controller()
    with ExitStack() as stack:
        askers = []
        for own in ("east", "west"):
            folder = tmp_path / own
            folder.mkdir()
            clusters = [f"{name}={federation.clusters[name].plane.kubeconfig}" for name in NAMES if name != own]
            flags = {"cluster-name": own, "federation": [ZONE], "cluster": clusters}
            server = stack.enter_context(serving_live(folder, federation.clusters[own].plane.kubeconfig, flags=flags))
            askers.append(stack.enter_context(Asker(server, f"web.{SPACE}", CLIENTS, zone=ZONE)))

        def now(
            expected: Mapping[str, set[str]], seen: Callable[[str], set[frozenset[str]]] = lambda who: set()
        ) -> dict[str, set[str]]:
            """Wait until all get what is *expected*; meanwhile they got that, the answer before, or one of *seen*."""
            for asker in askers:
                asker.until(expected, seen=lambda who: {frozenset(before[who]), frozenset(expected[who])} | seen(who))
            return dict(expected)

        before = dict.fromkeys(CLIENTS, NONE)
        before = now(before)
        federation.apply(WEB, PODS)
        federation.until_synced(WEB, PODS)
        before = now(before)  # no pod is ready anywhere
        run(federation, "west")
        # West has an entry for its own clients, and none for others, since it has no load balancer.
        before = now({**dict.fromkeys(CLIENTS, NODATA), "west": {virtual(federation, "west")}})
        balance(federation, "west")
        west = {BALANCERS["west"]}
        before = now({**dict.fromkeys(CLIENTS, west), "west": {virtual(federation, "west")}})
        run(federation, "east", "south")
        balance(federation, "east", "south")
        all_balancers = {*BALANCERS.values()}
        everything = {"elsewhere": all_balancers} | {
            name: all_balancers - {BALANCERS[name]} | {virtual(federation, name)} for name in NAMES
        }
        before = now(everything, seen=lambda who: parts(everything[who] | before[who]))
        federation.delete(WEB)
        now(dict.fromkeys(CLIENTS, NONE), seen=lambda who: parts(everything[who]))
        federation.until_gone(WEB)
        for asker in askers:
            assert all(answers == {frozenset(NONE)} for answers in asker.saw().values())
            assert not asker.lost and asker.asked > 100
