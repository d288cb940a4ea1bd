# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --federate`` while clusters, the federation API and controllers go away and come back.

Nothing is lost or doubled, and nothing is deleted on the strength of what could not be read.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.api_objects import Item, service
from tests.kit.federation import (
    FINALIZER,
    LABEL,
    NAMES,
    WITHIN,
    Federating,
    Federation,
    busiest_second,
    config_map,
    workload,
)
from tests.kit.proxy import Proxy
from tests.kit.waiting import until

WRITES_PER_SECOND = 20
MOVED_SECONDS = 30  # the least that migrate-after takes


@pytest.fixture(autouse=True)
def _controller(federation: Federation) -> None:
    federation.controller()


def where_copied(federation: Federation, written: Item) -> set[str]:
    return {name for name, copy in federation.copies(written).items() if copy}


@contextmanager
def away(federation: Federation, *names: str) -> Iterator[None]:
    """Kill the API servers of clusters, and start them again after the block."""
    for name in names:
        federation.clusters[name].plane.kill()
    try:
        yield
    finally:
        for name in names:
            federation.clusters[name].plane.start()


# Deletion


@pytest.mark.parametrize("kind", ["Service", "Deployment", "ConfigMap"])
def test_deletion(federation: Federation, kind: str) -> None:
    """The finalizer holds an object until every copy is gone; pods and slices go with the copies."""
    where = f"deletion-{kind.lower()}"
    made = {
        "Service": service("web", where=where, cluster_ips=()),
        "Deployment": workload(where, 3),
        "ConfigMap": config_map("web", where),
    }
    written = made[kind]
    federation.apply(written)
    federation.until_synced(written)
    found = federation.api.find(written)
    assert found is not None and FINALIZER in found["metadata"]["finalizers"]
    if kind == "Deployment":
        west = federation.clusters["west"].plane.api
        until(lambda: west.items("Pod", where), "a pod")
    federation.delete(written)
    federation.until_gone(written)
    if kind == "Deployment":
        until(lambda: not west.items("Pod", where) and not west.items("ReplicaSet", where), "pods are gone")


def test_a_copy_that_is_held_holds_the_object(federation: Federation) -> None:
    """While a copy cannot go, since a finalizer in its cluster holds it, the object stays."""
    written = config_map("held", "held")
    federation.apply(written)
    federation.until_synced(written)
    west = federation.clusters["west"].plane.api
    west.patch(written, {"metadata": {"finalizers": ["example.com/guard"]}})
    federation.delete(written)
    until(lambda: where_copied(federation, written) == {"west"}, lambda: f"{where_copied(federation, written)}")
    federation.until_quiet()
    assert federation.api.find(written) is not None
    west.patch(written, {"metadata": {"finalizers": None}})
    federation.until_gone(written)


def test_deletion_and_creation_again(federation: Federation) -> None:
    """An object that is deleted and written again at once is there in the end, with what was written last."""
    written = config_map("again", "again", level="1")
    federation.apply(written)
    federation.until_synced(written)
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "gone")
    again = config_map("again", "again", level="2")
    federation.apply(again)
    federation.until_synced(again)
    assert [copy and copy["data"] for copy in federation.copies(again).values()] == [{"level": "2"}] * 3


def test_orphan(federation: Federation) -> None:
    """``orphan: "true"`` leaves the copies, without the label: nothing else of them changes."""
    written = workload("orphan", 6)
    federation.apply(written)
    federation.until_synced(written)
    federation.annotate(written, orphan="true")
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "the object is gone")
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 2}
    for copy in federation.copies(written).values():
        assert copy is not None and LABEL not in copy["metadata"]["labels"]
    federation.until_quiet()
    assert where_copied(federation, written) == {*NAMES}
    # They are somebody else's now.
    federation.apply(workload("orphan", 9))
    federation.until_states(written, east="not-ours", south="not-ours", west="not-ours")


def test_orphan_in_a_cluster_of_the_list(federation: Federation) -> None:
    """With ``orphan``, the end of an object leaves what is there; what was taken out of the list before is gone."""
    written = config_map("orphan", "orphan-list")
    written["metadata"]["annotations"] = {"topodns.io/clusters": "east,west"}
    federation.apply(written)
    federation.until_synced(written, clusters=["east", "west"])
    federation.annotate(written, clusters="west", orphan="true")
    federation.until_synced(written, clusters=["west"])
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "the object is gone")
    assert "west" in where_copied(federation, written)


def test_a_cluster_that_cannot_be_read_holds_the_deletion(federation: Federation) -> None:
    """Copies go where they can; the object goes once the cluster is back and its copy is gone."""
    written = config_map("settings", "holds")
    federation.apply(written)
    federation.until_synced(written)
    with away(federation, "west"):
        federation.until_states(written, west="unreachable")
        federation.delete(written)
        east, south = (federation.clusters[name] for name in ("east", "south"))
        until(lambda: not east.find(written) and not south.find(written), "gone from the others", within=WITHIN)
        federation.until_states(written, west="unreachable")
        found = federation.api.find(written)
        assert found is not None and FINALIZER in found["metadata"]["finalizers"]
    federation.until_gone(written, within=WITHIN)


def test_a_cluster_that_is_no_longer_configured_holds_nothing(federation: Federation) -> None:
    """Its copies are its own from then on; what is deleted goes without it."""
    written = config_map("settings", "released")
    federation.apply(written, config_map("other", "released"))  # an empty federation API would delete nothing
    federation.until_synced(written)
    federation.controller(without="west")
    federation.until_synced(written, clusters=["east", "south"])
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "the object is gone", within=WITHIN)
    assert where_copied(federation, written) == {"west"}
    # Configured again, it is found to have what nobody wants any more.
    federation.controller()
    federation.until_gone(written, within=WITHIN)


def test_a_cluster_comes_and_goes(federation: Federation, tmp_path: Path) -> None:
    """With ``--cluster-dir``, a cluster is distributed to once its kubeconfig is there, and left as it is without."""
    folder = tmp_path / "clusters"
    folder.mkdir()

    def appear() -> None:
        shutil.copy(federation.clusters["west"].kubeconfig, tmp_path / "west.yaml").rename(folder / "west.yaml")

    written = config_map("settings", "folder")
    federation.controller(f"--cluster-dir={folder}", without="west")
    federation.apply(written, config_map("other", "folder"))  # an empty federation API would delete nothing
    federation.until_synced(written, clusters=["east", "south"])
    assert where_copied(federation, written) == {"east", "south"}
    appear()
    federation.until_synced(written)
    (folder / "west.yaml").unlink()
    federation.until_synced(written, clusters=["east", "south"])
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "the object is gone", within=WITHIN)
    assert where_copied(federation, written) == {"west"}
    appear()
    federation.until_gone(written, within=WITHIN)


def test_a_cluster_that_is_lost_and_comes_back(federation: Federation) -> None:
    """Meanwhile the others follow every change; it catches up. Nobody else gets its replicas without migrate-after."""
    written = workload("lost", 6)
    federation.apply(written)
    federation.until_synced(written)
    with away(federation, "west"):
        federation.until_states(written, west="unreachable", east="synced")
        federation.change(written, replicas=9)
        until(lambda: federation.status(written)["east"]["wanted"] == 3, lambda: f"{federation.status(written)}")
        for name in ("east", "south"):
            cluster = federation.clusters[name]
            until(lambda cluster=cluster: (cluster.find(written) or {})["spec"]["replicas"] == 3, "3 replicas")
        new = config_map("new", "lost")
        federation.apply(new)
        federation.until_states(new, west="unreachable", east="synced", south="synced")
    federation.until_synced(written, new, within=WITHIN)
    federation.until_replicas(written, east=3, south=3, west=3)


def test_a_cluster_that_hangs(federation: Federation) -> None:
    """One that accepts connections and says nothing holds up neither the others nor the end of the controller."""
    written = workload("hangs", 6)
    federation.apply(written)
    federation.until_synced(written)
    south = federation.clusters["south"].plane
    south.stop()
    try:
        federation.change(written, replicas=9)
        for name in ("east", "west"):
            cluster = federation.clusters[name]
            until(lambda cluster=cluster: (cluster.find(written) or {})["spec"]["replicas"] == 3, "3 replicas")
        federation.until_states(written, south="unreachable")
    finally:
        south.wake()
    federation.until_synced(written, within=WITHIN)
    federation.until_replicas(written, east=3, south=3, west=3)


@pytest.mark.slow
def test_migration(federation: Federation) -> None:
    """After migrate-after the others run the lost share, also after a restart; it is taken back after 60 s."""
    written, stays = workload("migrates", 6, migrate_after="30"), workload("stays", 6)
    federation.apply(written)
    federation.apply(stays)
    federation.until_synced(written, stays)

    def of(name: str, item: Item) -> int:
        return int((federation.clusters[name].find(item) or {})["spec"]["replicas"])

    with away(federation, "west"):
        until(
            lambda: [of(name, written) for name in ("east", "south")] == [3, 3],
            lambda: f"{federation.status(written)}",
            within=MOVED_SECONDS + WITHIN,
        )
        assert [of(name, stays) for name in ("east", "south")] == [2, 2]
        until(lambda: federation.status(written)["west"]["wanted"] == 0, lambda: f"{federation.status(written)}")
        federation.end_controllers()
        federation.controller()
        probe = config_map("probe", "migrates")
        federation.apply(probe)
        federation.until_states(probe, east="synced", south="synced")
        federation.until_quiet()
        assert [of(name, written) for name in ("east", "south")] == [3, 3]
    federation.until_states(stays, west="synced")
    assert [of(name, written) for name in ("east", "south")] == [3, 3]  # it has not been read for 60 s yet
    federation.until_replicas(written, within=60 + WITHIN, east=2, south=2, west=2)


# What could not be read


def vanish(federation: Federation, written: Item) -> None:
    """Let an object vanish as a restored backup does, while no controller runs that could put the finalizer back."""
    federation.end_controllers()
    federation.api.plane.api.patch(written, {"metadata": {"finalizers": None}})
    federation.delete(written)


def test_vanished(federation: Federation) -> None:
    """Copies whose object has vanished without the finalizer's leave are deleted: the federation API has others."""
    kept, gone = config_map("kept", "vanished"), config_map("gone", "vanished")
    federation.apply(kept, gone)
    federation.until_synced(kept, gone)
    vanish(federation, gone)
    federation.controller()
    federation.until_gone(gone, within=WITHIN)
    assert where_copied(federation, kept) == {*NAMES}


def test_somebody_takes_the_finalizer_off(federation: Federation) -> None:
    """It is put back."""
    written = config_map("settings", "finalizer")
    federation.apply(written)
    federation.until_synced(written)
    federation.api.plane.api.patch(written, {"metadata": {"finalizers": None}})

    def held() -> bool:
        found = federation.api.find(written)
        return found is not None and FINALIZER in found["metadata"].get("finalizers", [])

    until(held, "the finalizer is back")


def test_an_empty_federation_api(federation: Federation) -> None:
    """An API that has lost everything deletes nothing anywhere, and the controller says so."""
    items = [config_map("settings", "empty"), workload("empty", 6), service("web", where="empty", cluster_ips=())]
    federation.apply(*items)
    federation.until_synced(*items)
    federation.end_controllers()
    before = {name: copies_of(federation, name) for name in NAMES}
    federation.api.plane.rebuild()
    federation.api.allow()
    controller = federation.controller()
    controller.wait_for("the federation API is empty|has no object")
    federation.until_quiet()
    assert {name: copies_of(federation, name) for name in NAMES} == before
    # One object that is written there says that the rest is not wanted any more.
    again = config_map("settings", "empty")
    federation.apply(again)
    federation.until_synced(again, within=WITHIN)
    federation.until_gone(*items[1:], within=WITHIN)


def copies_of(federation: Federation, name: str) -> dict[str, str]:
    """Return all copies in a cluster with their versions."""
    api = federation.clusters[name].plane.api
    return {
        f"{kind} {found['metadata']['namespace']}/{found['metadata']['name']}": found["metadata"]["uid"]
        for kind in ("Service", "Deployment", "ConfigMap", "Secret", "ServiceAccount")
        for found in api.items(kind, labels=LABEL)
    }


def test_a_list_that_is_half_read(federation: Federation, tmp_path: Path) -> None:
    """While the list of a kind breaks off, nothing is deleted; once it is whole, what has vanished is."""
    rng = random.Random(1)  # the API server compresses what it sends
    large = [config_map(f"large-{number}", "half", text=rng.randbytes(50_000).hex()) for number in range(16)]
    gone = config_map("gone", "half")
    federation.apply(*large, gone)
    federation.until_synced(*large, gone)
    vanish(federation, gone)
    with Proxy(federation.api.plane.port) as proxy:
        config = tmp_path / "proxied"
        config.write_text(
            federation.api.kubeconfig.read_text().replace(f":{federation.api.plane.port}", f":{proxy.port}")
        )
        proxy.cut_after(300_000)
        arguments = [flag.replace(str(federation.api.kubeconfig), str(config)) for flag in federation.arguments()]
        controller = federation.further(*arguments)
        until(lambda: proxy.cuts >= 3, "the list breaks off again and again", within=WITHIN)
        assert where_copied(federation, gone) == {*NAMES}
        proxy.cut_after(None)
        controller.until_leading()
        federation.until_gone(gone, within=WITHIN)
        federation.end_controllers()


def test_a_kind_that_may_not_be_read(federation: Federation) -> None:
    """A kind whose list the federation API refuses deletes no copies of that kind."""
    maps, services = config_map("settings", "forbidden"), service("web", where="forbidden", cluster_ips=())
    other = config_map("other", "forbidden")
    federation.apply(maps, services, other)
    federation.until_synced(maps, services, other)
    vanish(federation, maps)
    federation.api.allow(but="configmaps")
    try:
        controller = federation.further()
        controller.wait_for("ConfigMap: 403 ")
        federation.until_quiet()
        assert where_copied(federation, maps) == {*NAMES}
    finally:
        federation.api.allow()
    federation.until_gone(maps, within=WITHIN)
    assert where_copied(federation, other) == {*NAMES}


def test_the_federation_api_away(federation: Federation) -> None:
    """While it is away all stays, and drift waits; when it is back, all goes on."""
    written = workload("api-away", 6)
    federation.apply(written)
    federation.until_synced(written)
    federation.api.plane.kill()
    try:
        federation.controller().wait_for("stopped leading", within=WITHIN)
        assert federation.replicas(written) == {"east": 2, "south": 2, "west": 2}
        federation.clusters["west"].plane.api.delete(written)
    finally:
        federation.api.plane.start()
    federation.until_replicas(written, within=WITHIN, east=2, south=2, west=2)
    federation.until_synced(written, within=WITHIN)


# Two replicas of the controller


def test_controllers_killed_in_turn(federation: Federation) -> None:
    """While objects are made, changed and deleted, two controllers are killed in turn: nothing is lost or doubled."""
    where, rounds = "killed", 4
    federation.end_controllers()
    running: list[Federating] = [federation.further(), federation.further()]
    lasting = workload(where, 6)
    federation.apply(lasting)
    kept: list[Item] = []
    for number in range(rounds):
        made = [config_map(f"c-{number}-{at}", where, level=str(number)) for at in range(12)]
        federation.apply(*made)
        running[number % 2].send(signal.SIGKILL)
        running[number % 2].end()
        federation.change(lasting, replicas=6 + number)
        federation.delete(*made[::2])
        kept += made[1::2]
        running[number % 2] = federation.further()
    federation.until_synced(lasting, *kept, within=WITHIN)
    expected = {found["metadata"]["name"] for found in kept}
    for name, cluster in federation.clusters.items():
        found = {item["metadata"]["name"] for item in cluster.plane.api.items("ConfigMap", where, labels=LABEL)}
        assert found == expected, name
    federation.until_replicas(lasting, east=3, south=3, west=3)
    for name in NAMES:
        pods = federation.clusters[name].plane.api.items("Pod", where)
        assert len(pods) == 3, name


def test_the_rate_of_writes(federation: Federation) -> None:
    """No cluster's API server sees more than 20 writes a second, however much there is to write."""
    items = [config_map(f"c-{number}", "rate") for number in range(40)]
    before = federation.write_counts()
    federation.apply(*items)
    federation.until_synced(*items, within=WITHIN)
    for name, member in federation.clusters.items():
        writes = member.writes()[before[name] :]
        assert len(writes) >= len(items)
        assert Counter(write.key for write in writes).most_common(1)[0][1] == 1  # each once
        assert busiest_second(writes) <= WRITES_PER_SECOND, name
    federation.delete(*items)
    federation.until_gone(*items, within=WITHIN)


def test_a_cluster_at_two_addresses(federation: Federation, tmp_path: Path) -> None:
    """It gets one share, under the name that was there before, and the status tells of the other name."""
    west = federation.clusters["west"]
    with Proxy(west.plane.port) as proxy:
        config = tmp_path / "twin"
        config.write_text(west.kubeconfig.read_text().replace(f":{west.plane.port}", f":{proxy.port}"))
        federation.controller(f"--cluster=twin={config}")
        written = workload("twins", 8)
        federation.apply(written)
        federation.until_states(written, east="synced", south="synced", west="synced", twin="unreachable")
        assert "is cluster west, too" in federation.status(written)["twin"]["message"]
        federation.until_quiet()
        assert federation.replicas(written) == {"east": 2, "south": 2, "west": 2}
        federation.controller(f"--cluster=twin={config}", without="west")
        federation.until_states(written, east="synced", south="synced", twin="synced")
