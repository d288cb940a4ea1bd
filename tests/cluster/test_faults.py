# SPDX-License-Identifier: Apache-2.0

"""Faults of the API server: no query is lost meanwhile, and afterwards the answers have all changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kit.api_objects import ZONE, namespace, pod, service, zone_nodes
from tests.kit.kube import ControlPlane
from tests.kit.live_server import (
    CAUGHT_UP,
    RECOVERY,
    Asker,
    answered,
    asked,
    extended_errors,
    serving_live,
)
from tests.kit.proxy import Proxy
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

WHERE = "faults"
NAME = f"cache.{WHERE}"
ZONES = ("a", "b")
NODES = zone_nodes("faults", ZONES)
CLIENTS = {"a": "10.242.1.1", "b": "10.242.2.1"}
MEMBERS = {
    address: pod(
        f"cache-{address.replace('.', '-')}", [address], f"faults-{zone}1", where=WHERE, labels={"app": "cache"}
    )
    for zone, address in (("a", "10.243.1.1"), ("b", "10.243.2.1"), ("a", "10.243.1.2"))
}
SECOND = "10.243.1.2"
CACHE = service("cache", where=WHERE, keys=f"{ZONE},*", selector={"app": "cache"})
OBJECTS = [
    namespace(WHERE),
    *NODES,
    *(pod(f"client-{zone}", [CLIENTS[zone]], f"faults-{zone}1", where=WHERE) for zone in ZONES),
    *MEMBERS.values(),
    CACHE,
]
STALE, NOT_READY = 3, 14


@pytest.fixture(scope="module")
def plane(frail_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Two zones with a client and an endpoint each, and one endpoint that comes and goes."""
    frail_control_plane.api.create(*OBJECTS)
    yield frail_control_plane
    left = [{"kind": "Pod", **item} for item in frail_control_plane.api.items("Pod", WHERE)]
    frail_control_plane.api.delete(*left, CACHE, *NODES, namespace(WHERE))


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[Proxy]:
    with Proxy(plane.port) as running:
        yield running


@pytest.fixture
def kubeconfig(plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> Path:
    return plane.kubeconfig_with(tmp_path / "by-way-of-the-proxy", port=proxy.port)


def expected(*, second: bool) -> dict[str, set[str]]:
    return {"a": {"10.243.1.1", SECOND} if second else {"10.243.1.1"}, "b": {"10.243.2.1"}}


def turn(plane: ControlPlane, *, ready: bool) -> None:
    """Make the second endpoint of zone a ready or not, and wait until the Service's slices show it."""
    plane.api.patch_status(MEMBERS[SECOND], {"conditions": [{"type": "Ready", "status": str(ready)}]})

    def seen() -> bool:
        slices = plane.api.items("EndpointSlice", WHERE, labels="kubernetes.io/service-name=cache")
        return any(
            endpoint["conditions"]["ready"] == ready
            for one in slices
            for endpoint in one["endpoints"] or ()
            if endpoint["addresses"] == [SECOND]
        )

    until(seen, "Kubernetes' own controller to follow", within=RECOVERY)  # it has lost contact, too


def either(who: str) -> set[frozenset[str]]:
    """What a client may see while the second endpoint comes or goes."""
    return {frozenset(expected(second=each)[who]) for each in (True, False)}


Fault = Callable[[ControlPlane, Proxy, Callable[[], None]], None]


def cut(plane: ControlPlane, proxy: Proxy, change: Callable[[], None]) -> None:
    """Each connection is reset, and the cluster changes before the server connects again."""
    proxy.cut()
    change()


def stopped(plane: ControlPlane, proxy: Proxy, change: Callable[[], None]) -> None:
    """The API server's process is stopped, with all its connections, and continued."""
    plane.stop()
    proxy.cut()  # whoever comes again gets no answer
    cuts = proxy.opened
    until(lambda: proxy.opened >= cuts + 5, "all kinds to try again")
    plane.wake()
    change()


def killed(plane: ControlPlane, proxy: Proxy, change: Callable[[], None]) -> None:
    """The API server is killed and started again on the same etcd; it may refuse an old resourceVersion."""
    plane.kill()
    plane.start()
    change()


def forgetful(plane: ControlPlane, proxy: Proxy, change: Callable[[], None]) -> None:
    """The API server restarts without a watch cache, on an etcd that compacts within seconds: old versions get 410."""
    plane.kill()
    plane.start("--watch-cache=false", "--etcd-compaction-interval=1s")
    change()


FAULTS: list[Fault] = [cut, stopped, forgetful, killed]  # the last one leaves it as it was


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_fault_of_the_api_server_costs_an_answer(
    fault: Fault, plane: ControlPlane, proxy: Proxy, kubeconfig: Path, tmp_path: Path
) -> None:
    """Under load, clients get the last known answer, then the new one; no SERVFAIL, no lost query."""
    turn(plane, ready=True)
    with serving_live(tmp_path, kubeconfig) as server, Asker(server, NAME, CLIENTS) as asker:
        asker.until(expected(second=True))
        fault(plane, proxy, partial(turn, plane, ready=False))
        asker.until(expected(second=False), seen=either)
        assert asker.lost == []
        assert not [line for line in server.lines if "Traceback" in line]


def test_a_cluster_that_is_built_anew(plane: ControlPlane, kubeconfig: Path, tmp_path: Path) -> None:
    """The API server comes back with an empty etcd: what was goes when it says so, and what is new is followed."""
    turn(plane, ready=True)
    with serving_live(tmp_path, kubeconfig) as server:
        until(lambda: gets_both(server), "both members")
        plane.rebuild()
        until(lambda: answered(server, NAME, CLIENTS["a"]) == {"NXDOMAIN"}, "no Service", within=CAUGHT_UP)
        plane.api.create(*OBJECTS)
        turn(plane, ready=True)
        until(lambda: gets_both(server), "both new members", within=CAUGHT_UP)
        turn(plane, ready=False)
        until(lambda: not gets_both(server), "the change", within=CAUGHT_UP)


def readiness(server: Server) -> str:
    status, text = server.get("/readyz?verbose")
    assert status == 200
    return text


def test_while_there_is_no_api_server(
    plane: ControlPlane, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A server that knows the cluster gives stale answers; one with a state file starts from it; others wait."""
    folders = [tmp_path_factory.mktemp(name) for name in ("knowing", "kept", "new")]
    state = f"--state-dir={folders[1] / 'state'}"
    turn(plane, ready=True)
    with serving_live(folders[0], kubeconfig, "--stale-after=1") as knowing:
        with serving_live(folders[1], kubeconfig, state) as keeping:
            for server in (knowing, keeping):
                until(lambda server=server: gets_both(server), "both members")
                assert errors(server) == set()
        plane.kill()
        with (
            serving_live(folders[1], kubeconfig, state) as kept,
            serving_live(folders[2], kubeconfig, started=False) as new,
        ):
            kept.wait_for(r"answering from the state file .*/state/view, \d+ s old, until the cluster has been listed")
            until(lambda: errors(knowing) == {STALE}, "answers that say they are stale")
            assert errors(kept) == {STALE}
            assert gets_both(knowing) and gets_both(kept), "the last known answer"
            assert asked(new, NAME, CLIENTS["a"]).rcode() == 2 and errors(new) == {NOT_READY}
            until(lambda: "[+]EndpointSlice no contact, for " in readiness(knowing), "each kind to have lost contact")
            assert "[+]EndpointSlice not listed yet, for " in readiness(kept)
            status, text = new.get("/readyz?verbose")
            assert status == 503 and "[-]EndpointSlice not listed yet, for " in text

            plane.start()
            new.wait_for(r"^ready$", within=CAUGHT_UP)
            turn(plane, ready=False)
            for server in (knowing, kept, new):
                until(lambda server=server: not gets_both(server), "the change", within=CAUGHT_UP)
                until(lambda server=server: is_fresh(server), lambda server=server: readiness(server), within=CAUGHT_UP)


def is_fresh(server: Server) -> bool:
    """Whether answers are not stale and every kind is in contact.

    A kind whose version has expired is in contact for a moment, then without contact for less than ``--stale-after``:
    so both must hold.
    """
    ready = readiness(server)
    return errors(server) == set() and "no contact" not in ready and "not listed" not in ready


def gets_both(server: Server) -> bool:
    return answered(server, NAME, CLIENTS["a"]) == expected(second=True)["a"]


def errors(server: Server) -> set[int]:
    return extended_errors(asked(server, NAME, CLIENTS["a"]))
