# SPDX-License-Identifier: Apache-2.0

"""How many replicas ``topodns controller --federate`` lets each real cluster run, and what it tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.api_objects import Item, item, topodns_annotations
from tests.kit.federation import STATUS, WITHIN, Federation, workload
from tests.kit.waiting import until
from tests.oracle.federation_creation import brute_split

SUMS = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "unavailableReplicas")


@pytest.fixture(autouse=True)
def _controller(federation: Federation) -> None:
    federation.controller()


def wanted(federation: Federation, item: Item) -> dict[str, Any]:
    """Return how many replicas the status says each cluster is to run."""
    return {name: told.get("wanted") for name, told in federation.status(item).items()}


def test_equal_parts(federation: Federation) -> None:
    """What does not divide goes to the first clusters by name, one each; so it is after every change."""
    written = workload("equal", 8)
    federation.apply(written)
    federation.until_synced(written)
    for number in (8, 9, 1, 0, 100):
        federation.change(written, replicas=number)
        expected = brute_split(number, {"east": 1, "south": 1, "west": 1})
        federation.until_replicas(written, **expected)
        until(
            lambda expected=expected: wanted(federation, written) == expected, lambda: f"{federation.status(written)}"
        )


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_other_kinds(federation: Federation, kind: str) -> None:
    """ReplicaSets and ReplicationControllers are split like Deployments."""
    written = workload(f"split-{kind.lower()}", 8, kind=kind)
    federation.apply(written)
    federation.until_replicas(written, east=3, south=3, west=2)
    federation.until_synced(written)


def test_without_replicas(federation: Federation) -> None:
    """Who writes no number gets one replica, as in any cluster: the federation API has filled it in."""
    written = workload("default", 1)
    del written["spec"]["replicas"]
    federation.apply(written)
    federation.until_replicas(written, east=1, south=0, west=0)


def test_weights(federation: Federation) -> None:
    """``cluster-weights`` splits in proportion; who is not named gets 0; without them the parts are equal again."""
    written = workload("weights", 7, cluster_weights="east=2, south=1,west=1")
    federation.apply(written)
    federation.until_replicas(written, east=3, south=2, west=2)
    federation.annotate(written, cluster_weights="west=2,east=1")
    federation.until_replicas(written, east=2, south=0, west=5)
    federation.until_synced(written)
    federation.annotate(written, cluster_weights=None)
    federation.until_replicas(written, east=3, south=2, west=2)


def test_weights_of_some_clusters(federation: Federation) -> None:
    """Replicas are split over the clusters of ``topodns.io/clusters`` alone."""
    written = workload("some", 7, clusters="east,west")
    federation.apply(written)
    federation.until_replicas(written, east=4, south=None, west=3)
    federation.annotate(written, clusters="west,south")
    federation.until_replicas(written, east=None, south=4, west=3)


def test_overprovision(federation: Federation) -> None:
    """As many remain as are asked for, whichever clusters are lost."""
    written = workload("overprovision", 10, overprovision="1")
    federation.apply(written)
    federation.until_replicas(written, east=5, south=5, west=5)
    federation.annotate(written, overprovision="2")
    federation.until_replicas(written, east=10, south=10, west=10)
    federation.annotate(written, overprovision="1", cluster_weights="east=2,south=1,west=1")
    federation.until_replicas(written, east=10, south=5, west=5)
    federation.annotate(written, overprovision="0", cluster_weights=None)
    federation.until_replicas(written, east=4, south=3, west=3)


def scale(federation: Federation, name: str, written: Item, replicas: int) -> None:
    """Scale a copy in one cluster as ``kubectl scale`` and an autoscaler do."""
    plane = federation.clusters[name].plane
    plane.kubectl("scale", f"--replicas={replicas}", "-n", written["metadata"]["namespace"], "deployment/web")


def changed(federation: Federation, written: Item) -> None:
    """Change something else of a workload, and wait until all clusters have it."""
    federation.change(written, minReadySeconds=11)

    def arrived() -> bool:
        copies = federation.copies(written).values()
        return all(copy is not None and copy["spec"].get("minReadySeconds") == 11 for copy in copies)

    until(arrived, "the change is everywhere")
    federation.until_quiet()


def test_scaled_by_hand(federation: Federation) -> None:
    """Without ``replicas: local``, a number that somebody changes in a cluster is changed back."""
    written = workload("by-hand", 6)
    federation.apply(written)
    federation.until_synced(written)
    scale(federation, "west", written, 9)
    federation.until_replicas(written, east=2, south=2, west=2)


def test_local(federation: Federation) -> None:
    """``replicas: local``: after its creation, the number is each cluster's own business."""
    written = workload("local", 6, replicas="local")
    federation.apply(written)
    federation.until_replicas(written, east=2, south=2, west=2)
    federation.until_synced(written)
    scale(federation, "west", written, 9)
    changed(federation, written)
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 9}
    federation.change(written, replicas=30)
    changed_after = workload("local", 3, name="probe")
    federation.apply(changed_after)
    federation.until_synced(changed_after, written)
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 9}
    # A copy that is made anew begins with its share.
    federation.clusters["south"].plane.api.delete(written)
    federation.until_replicas(written, east=2, south=10, west=9)


def test_local_begins(federation: Federation) -> None:
    """Who makes an existing workload local changes no number; who ends that gets the split again."""
    written = workload("local-begins", 6)
    federation.apply(written)
    federation.until_synced(written)
    federation.annotate(written, replicas="local")
    federation.until_quiet()
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 2}
    scale(federation, "east", written, 5)
    changed(federation, written)
    assert federation.replicas(written) == {"east": 5, "south": 2, "west": 2}
    federation.annotate(written, replicas=None)
    federation.until_replicas(written, east=2, south=2, west=2)


def test_an_autoscaler(federation: Federation) -> None:
    """An HPA in a cluster that names the workload has the number there; elsewhere it is split as ever."""
    written = workload("hpa", 6)
    federation.apply(written)
    federation.until_synced(written)
    west = federation.clusters["west"].plane
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    hpa = item("HorizontalPodAutoscaler", "web", "hpa", spec={"scaleTargetRef": target, "maxReplicas": 20})
    west.api.create(hpa | {"apiVersion": "autoscaling/v2"})
    federation.until_quiet()
    scale(federation, "west", written, 9)
    changed(federation, written)
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 9}
    federation.change(written, replicas=9)
    federation.until_replicas(written, east=3, south=3, west=9)
    west.api.delete(hpa)
    federation.until_replicas(written, east=3, south=3, west=3)


# Status


def test_sums(federation: Federation) -> None:
    """The status is the sum over all clusters, and each cluster's part stands in the annotation."""
    written = workload("sums", 8)
    federation.apply(written)
    federation.until_replicas(written, east=3, south=3, west=2)

    def status() -> dict[str, Any]:
        found = federation.api.find(written)
        assert found is not None
        return {name: found["status"].get(name, 0) for name in SUMS}

    def all_ready(*names: str) -> bool:
        federation.run_pods("sums", *names)
        return all(federation.status(written)[name]["ready"] == federation.replicas(written)[name] for name in names)

    until(lambda: all_ready("east", "south"), lambda: f"{federation.status(written)}", within=WITHIN)
    expected = {
        "replicas": 8,
        "readyReplicas": 6,
        "availableReplicas": 6,
        "updatedReplicas": 8,
        "unavailableReplicas": 2,
    }
    until(lambda: status() == expected, lambda: f"{expected}, not {status()}", within=WITHIN)
    found = federation.status(written)
    assert {name: (told["wanted"], told["replicas"], told["ready"]) for name, told in found.items()} == {
        "east": (3, 3, 3),
        "south": (3, 3, 3),
        "west": (2, 2, 0),
    }
    until(lambda: all_ready("west"), lambda: f"{federation.status(written)}", within=WITHIN)
    expected = {
        "replicas": 8,
        "readyReplicas": 8,
        "availableReplicas": 8,
        "updatedReplicas": 8,
        "unavailableReplicas": 0,
    }
    until(lambda: status() == expected, lambda: f"{expected}, not {status()}", within=WITHIN)
    federation.until_synced(written)


def test_rollout_status(federation: Federation) -> None:
    """``kubectl rollout status`` works in the federation API: ``observedGeneration`` follows, once all clusters do."""
    written = workload("rollout", 3)
    federation.apply(written)

    def ready() -> bool:
        federation.run_pods("rollout")
        found = federation.api.find(written)
        return found is not None and found["status"].get("availableReplicas") == 3

    def observed() -> bool:
        found = federation.api.find(written)
        return found is not None and found["status"].get("observedGeneration") == found["metadata"]["generation"]

    until(ready, lambda: f"{federation.api.find(written)}", within=WITHIN)
    until(observed, lambda: f"{federation.api.find(written)}")
    federation.change(written, revisionHistoryLimit=3)
    until(observed, lambda: f"{federation.api.find(written)}")
    plane = federation.api.plane
    said = plane.kubectl("rollout", "status", "-n", "rollout", "deployment/web", "--timeout=20s")
    assert "successfully rolled out" in said


def test_a_cluster_that_refuses(federation: Federation) -> None:
    """What one cluster's API refuses is ``refused`` with its words, and an Event; the others go on."""
    quota = item("ResourceQuota", "few", "quota", spec={"hard": {"count/deployments.apps": "0"}})
    west = federation.clusters["west"].plane
    probe = item("ConfigMap", "probe", "quota")
    federation.apply(probe)
    federation.until_synced(probe)
    west.api.create(quota)
    until(lambda: _counts(west.api.items("ResourceQuota", "quota")), "the quota is in force")
    written = workload("quota", 6)
    federation.apply(written)
    federation.until_states(written, east="synced", south="synced", west="refused")
    assert "exceeded quota: few" in federation.status(written)["west"]["message"]
    event = federation.until_event(written, "Refused")
    assert event["type"] == "Warning"
    for word in ("west", "exceeded quota: few"):
        assert word in event["message"]
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": None}
    west.api.delete(quota)
    federation.until_synced(written, within=WITHIN)


def _counts(quotas: list[Item]) -> bool:
    return any("hard" in quota.get("status", {}) for quota in quotas)


# Bad input


INVALID = {  # tests/values/distribution/test_distribution.py has all that can be wrong
    "weights that do not parse": {"cluster_weights": "east=two"},
    "an unknown cluster": {"clusters": "east,north"},
    "migrate-after too short": {"migrate_after": "29"},
}


@pytest.mark.parametrize("annotations", INVALID.values(), ids=INVALID)
def test_invalid(federation: Federation, annotations: dict[str, str], request: pytest.FixtureRequest) -> None:
    """Nothing changes in any cluster, an Event and the log say what is wrong, and the last good state stays."""
    where = "-".join(["invalid", *request.node.callspec.id.split()]).lower()
    written = workload(where, 6)
    federation.apply(written)
    federation.until_synced(written)
    federation.until_quiet()
    before = federation.copies(written)
    federation.apply(workload(where, 60, **annotations))
    event = federation.until_event(written, "InvalidFederation")
    (name,) = topodns_annotations(annotations)
    assert event["type"] == "Warning" and name in event["message"]
    federation.controller().wait_for(f"Deployment {where}/web: .*{name}")
    federation.until_quiet()
    assert federation.copies(written) == before
    federation.apply(workload(where, 9))
    federation.until_replicas(written, east=3, south=3, west=3)


def test_invalid_from_the_beginning(federation: Federation) -> None:
    """What was never valid is nowhere."""
    written = workload("never-valid", 6, cluster_weights="north=1")
    federation.apply(written)
    federation.until_event(written, "InvalidFederation")
    assert federation.replicas(written) == {"east": None, "south": None, "west": None}
    federation.delete(written)
    federation.until_gone(written)


def test_a_name_too_long(federation: Federation) -> None:
    """A Service whose federated name does not fit is invalid: a DNS name has 253 characters at most."""
    # A label has 63 octets: only a long federation can make a name too long.
    long = ".".join(["a" * 60] * 3)
    arguments = federation.arguments("--federate-selector=too=long")
    federation.end_controllers()
    federation.further(*(flag.replace("=my.example=", f"={long}=") for flag in arguments)).until_leading()
    space = "n" * 60
    written = item("Service", "s" * 60, space, labels={"too": "long"}, spec={"ports": [{"port": 80}]})
    federation.apply(written)
    federation.until_event(written, "InvalidFederation")
    assert not any(federation.copies(written).values())
    federation.delete(written)
    federation.until_gone(written, within=WITHIN)


@pytest.mark.parametrize("text", ["[]", "{", '{"east": 3}', "x" * 1000], ids=["list", "no JSON", "other", "long"])
def test_a_status_that_somebody_broke(federation: Federation, text: str) -> None:
    """Whatever stands in the annotation is written anew, and nothing is read from it that could do harm."""
    written = workload("broken-status", 6)
    federation.apply(written)
    federation.until_synced(written)
    federation.api.plane.api.patch(written, {"metadata": {"annotations": {STATUS: text}}})

    def right() -> bool:
        found = federation.api.find(written)
        return found is not None and found["metadata"]["annotations"][STATUS] != text

    until(right, "a status")
    federation.until_synced(written)
    assert federation.replicas(written) == {"east": 2, "south": 2, "west": 2}
