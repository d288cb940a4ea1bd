# SPDX-License-Identifier: Apache-2.0

"""What becomes of the objects of a federation API, in clusters that exist in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from locator.api.deltas import Replace
from locator.distribution.manifests import LABEL, MAX_LABEL, label_value
from locator.distribution.records import FINALIZER, Key
from locator.labels import parse_selector, valid_label_value
from tests.kit import api_objects
from tests.kit.api_objects import Item, topodns_annotations
from tests.kit.federation_world import ZONE, World, deployment, service

WEB = Key("Deployment", "shop/web")
SERVICE = Key("Service", "shop/web")
made = partial(api_objects.item, where="shop")


def world(*items: Item, clusters: tuple[str, ...] = ("east", "west"), **more: Any) -> World:
    """Return a world in which the federation API has these objects, and all is done."""
    found = World(*clusters, **more)
    for item in items:
        found.federation.put(item)
    found.wait()
    return found


# --- Which objects, and what a copy is --------------------------------------------------------------------------------

DISTRIBUTED = {
    "Service": service(),
    "Deployment": deployment(),
    "ReplicaSet": {**deployment(), "kind": "ReplicaSet"},
    "ReplicationController": {**deployment(), "apiVersion": "v1", "kind": "ReplicationController"},
    "ConfigMap": made("ConfigMap", "web", data={"a": "1"}),
    "Secret": made("Secret", "web", data={"a": "MQ=="}, type="Opaque"),
    "ServiceAccount": made("ServiceAccount", "web", automountServiceAccountToken=False),
}
PASSED_OVER = {
    "of kube-system": service(namespace="kube-system"),
    "owned": made("ReplicaSet", "web", metadata={"namespace": "shop", "name": "web", "ownerReferences": [{}]}),
    "root certificate": made("ConfigMap", "kube-root-ca.crt"),
    "default account": made("ServiceAccount", "default"),
    "the API's Service": service("kubernetes", namespace="default"),
    "token": made("Secret", "token", type="kubernetes.io/service-account-token"),
}


@pytest.mark.parametrize("item", DISTRIBUTED.values(), ids=DISTRIBUTED)
def test_every_cluster_gets_a_copy(item: Item) -> None:
    copies = world(item).copies(item["kind"], "shop/web")
    assert list(copies) == ["east", "west"]
    for copy in copies.values():
        assert copy["metadata"]["labels"][LABEL] == ZONE
        assert {key: copy.get(key) for key in ("data", "type")} == {key: item.get(key) for key in ("data", "type")}


@pytest.mark.parametrize("item", PASSED_OVER.values(), ids=PASSED_OVER)
def test_what_nobody_wrote_is_passed_over(item: Item) -> None:
    assert world(item).written() == 0


def test_a_selector_limits_what_is_distributed() -> None:
    chosen, other = service("a"), service("b")
    chosen["metadata"]["labels"] = {"tier": "all"}
    found = world(chosen, other, selector=parse_selector("tier=all"))
    assert list(found.copies("Service", "shop/a")) == ["east", "west"]
    assert found.copies("Service", "shop/b") == {}


def test_other_workloads_are_findings() -> None:
    (finding,) = world(made("StatefulSet", "db")).findings
    assert (finding.code, finding.kind, finding.namespace, finding.name) == (
        "NotDistributed",
        "StatefulSet",
        "shop",
        "db",
    )


def test_a_copy_has_what_was_written_and_nothing_that_a_server_gave_it() -> None:
    item = service(clusters="east")
    item["metadata"] |= {
        "labels": {"app": "web"},
        "uid": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {
            **item["metadata"]["annotations"],
            "a/b": "c",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
    }
    item["spec"] |= {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]}
    item["spec"] |= {"ipFamilyPolicy": "SingleStack", "healthCheckNodePort": 30001}
    item["spec"]["ports"][0]["nodePort"] = 30000
    item["status"] = {"loadBalancer": {}}
    (body,) = (write.body for write in world(item).servers["east"].writes if write.verb == "apply")
    assert body == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": "shop",
            "name": "web",
            "labels": {"app": "web", LABEL: ZONE},
            "annotations": {"a/b": "c", "topodns.io/federated": "true"},
        },
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "web"},
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}],
        },
    }


def test_a_headless_service_stays_headless() -> None:
    item = service(type_="ClusterIP")
    item["spec"] |= {"clusterIP": "None", "clusterIPs": ["None"]}
    copies = world(item).copies("Service", "shop/web")
    assert {copy["spec"].get("clusterIP") for copy in copies.values()} == {"None"}


@pytest.mark.parametrize("length", [1, 63, 64, 200, 253])
def test_the_label_fits_however_long_the_name_is(length: int) -> None:
    value = label_value(("a." * length)[: length - 1] + "b")
    assert len(value) <= MAX_LABEL
    assert valid_label_value(value)


def test_somebody_elses_fields_stay() -> None:
    found = world(service())
    found.servers["east"].patch(SERVICE, {"metadata": {"annotations": {"cloud.example/id": "7"}}})
    found.federation.put(service(type_="ClusterIP"))
    found.wait()
    copy = found.servers["east"].items[SERVICE]
    assert copy["spec"]["type"] == "ClusterIP"
    assert copy["metadata"]["annotations"]["cloud.example/id"] == "7"


def test_what_was_taken_out_of_an_object_goes_from_its_copies() -> None:
    item = made("ConfigMap", "web", data={"a": "1", "b": "2"})
    found = world(item)
    found.federation.put(made("ConfigMap", "web", data={"a": "1"}))
    found.wait()
    assert [copy["data"] for copy in found.copies("ConfigMap", "shop/web").values()] == [{"a": "1"}] * 2


def test_drift_is_corrected() -> None:
    found = world(made("ConfigMap", "web", data={"a": "1"}))
    found.servers["east"].patch(Key("ConfigMap", "shop/web"), {"data": {"a": "2"}})
    found.wait()
    assert found.copies("ConfigMap", "shop/web")["east"]["data"] == {"a": "1"}


def test_what_admission_changes_is_applied_once() -> None:
    found = world(deployment())
    writes = len(found.servers["east"].writes)
    copy = found.servers["east"].items[WEB]
    copy["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/nginx"

    def admit(write: Any) -> str:
        if write.verb == "apply":
            write.body["spec"]["template"]["spec"]["containers"][0]["image"] = "mirror/nginx"
        return ""

    found.servers["east"].refuses = admit
    found.servers["east"].put(copy)
    found.wait(60.0)
    assert len(found.servers["east"].writes) == writes + 1
    assert found.status("Deployment", "shop/web")["east"]["state"] == "synced"


def test_namespaces_are_made_and_left() -> None:
    found = world(service())
    found.federation.remove(SERVICE)
    found.wait()
    assert list(found.servers["east"].items) == [Key("Namespace", "shop")]


def test_a_namespace_that_is_being_deleted_is_made_again_as_soon_as_it_is_gone() -> None:
    found = world(service())
    east, namespace = found.servers["east"], Key("Namespace", "shop")
    east.items[namespace]["metadata"]["finalizers"] = ["kubernetes"]
    east.remove(namespace)
    east.remove(SERVICE)
    found.wait()
    assert list(east.items) == [namespace]
    told = found.status("Service", "shop/web")["east"]
    assert (told["state"], told["message"]) == ("waiting", "its namespace is being deleted")
    east.remove(namespace, by_force=True)
    found.wait()
    assert set(east.items) == {namespace, SERVICE}
    assert found.status("Service", "shop/web")["east"]["state"] == "synced"


def test_a_restart_writes_nothing() -> None:
    found = world(*DISTRIBUTED.values(), deployment("other", topodns="x"))
    before = found.written()
    found.start()
    found.wait(100.0)
    assert found.written() == before


# --- Somebody else's objects ------------------------------------------------------------------------------------------


def test_somebody_elses_object_is_untouched_until_it_is_adopted() -> None:
    found = World("east", "west")
    theirs = found.servers["east"].put(service(type_="ClusterIP"))
    found.federation.put(service())
    found.wait()
    assert found.servers["east"].items[SERVICE] == theirs
    told = found.status("Service", "shop/web")
    assert {cluster: one["state"] for cluster, one in told.items()} == {"east": "not-ours", "west": "synced"}
    assert [(finding.code, "cluster east" in finding.message) for finding in found.findings] == [("NotOurs", True)]
    found.federation.put(service(adopt="true"))
    found.wait()
    assert found.servers["east"].items[SERVICE]["metadata"]["labels"][LABEL] == ZONE
    assert found.status("Service", "shop/web")["east"]["state"] == "synced"


def test_a_copy_whose_making_was_not_heard_of_is_no_object_of_somebody_else() -> None:
    found = world(service())
    (write,) = (write for write in found.servers["east"].writes if write.verb == "apply")
    assert write.unless is not None
    assert not write.unless.is_found("uid", {LABEL: ZONE})
    assert write.unless.is_found("uid", {LABEL: "other.example"})
    assert write.unless.is_found("uid", {})
    assert not write.unless.is_found("", {})


@pytest.mark.parametrize(
    "text",
    [
        '{"east":{"x":' + "[" * 100_000,
        '{"east":{"wanted":0,"x":' + "[" * 100_000 + "]" * 100_000 + "}}",
        "[]",
        '{"a":1}',
    ],
    ids=["deep", "deep and whole", "list", "number"],
)
def test_what_others_write_into_the_status_is_replaced(text: str) -> None:
    item = deployment(replicas=4, migrate_after="300")
    item["metadata"]["annotations"]["topodns.io/federation-status"] = text
    found = world(item)
    assert found.replicas("shop/web") == {"east": 2, "west": 2}
    assert [one["wanted"] for one in found.status("Deployment", "shop/web").values()] == [2, 2]


def test_an_object_that_only_has_the_label_is_no_copy() -> None:
    found = world(service())
    like_a_copy = made("ConfigMap", "mine", labels={LABEL: ZONE})
    found.servers["east"].put(like_a_copy)
    found.wait()
    assert "ConfigMap" in {key.kind for key in found.servers["east"].items}


@pytest.mark.parametrize("annotations", [{"adopt": "true"}, {"clusters": "west"}, {}], ids=str)
def test_a_cluster_that_turns_out_to_be_the_federation_api_changes_nothing_there(annotations: dict[str, str]) -> None:
    found = World("east", "west")
    found.servers["east"] = found.federation
    item = deployment(replicas=8, **annotations)
    found.federation.put(item)
    found.wait(60.0)
    item["metadata"]["labels"] = {LABEL: ZONE}
    found.federation.put(item)
    found.wait(60.0)
    after = found.federation.items[WEB]
    assert after["spec"] == item["spec"]
    assert "deletionTimestamp" not in after["metadata"]


def test_what_was_refused_is_forgotten_when_it_is_not_wanted_any_more() -> None:
    found = world(deployment())
    found.servers["east"].refuses = lambda write: "no such image" if write.verb == "apply" else ""
    found.federation.put(deployment(image="newer"))
    found.wait()
    assert found.status("Deployment", "shop/web")["east"]["state"] == "refused"
    found.federation.put(deployment())
    found.wait()
    assert found.status("Deployment", "shop/web")["east"]["state"] == "synced"


def test_what_a_cluster_refuses_is_told_in_its_words_and_the_others_go_on() -> None:
    found = World("east", "west")
    found.servers["east"].refuses = lambda write: "exceeded quota: few" if write.verb == "apply" else ""
    found.federation.put(deployment())
    found.wait()
    told = found.status("Deployment", "shop/web")
    assert (told["east"]["state"], told["east"]["message"]) == ("refused", "exceeded quota: few")
    assert told["west"]["state"] == "synced"
    assert [(finding.code, finding.message) for finding in found.findings] == [
        ("Refused", "cluster east: exceeded quota: few")
    ]
    found.servers["east"].refuses = lambda write: ""
    found.wait(60.0)
    assert found.status("Deployment", "shop/web")["east"]["state"] == "synced"


def test_what_somebody_writes_overtakes_what_is_refused_again_and_again() -> None:
    found, names = World("east"), ["a", "b", "c", "d"]
    asked: list[str] = []

    def refuse(write: Any) -> str:
        asked.append(write.body["metadata"]["name"])
        return "no" if write.verb == "apply" else ""

    found.servers["east"].refuses = refuse
    for name in names:
        found.federation.put(made("ConfigMap", name, data={}))
    found.wait()
    due = found.destinations.clusters["east"].next_write(found.now + 100.0)  # by now all of them are due
    assert due is not None
    asked.clear()
    found.federation.put(made("ConfigMap", "d", data={"a": "1"}))
    found.wait()
    assert list(dict.fromkeys(asked)) == ["d", "b", "c"]


def test_what_a_cluster_says_at_length_is_cut() -> None:
    found = World("east", "west")
    found.servers["east"].refuses = lambda write: "no, " * 30_000 if write.verb == "apply" else ""
    found.federation.put(deployment())
    found.wait()
    told = found.status("Deployment", "shop/web")["east"]
    assert told["message"].startswith("no, no, ")
    assert len(told["message"]) < 1100  # all annotations of an object together have 256 KiB


# --- Where, and how many ----------------------------------------------------------------------------------------------


def test_what_is_taken_out_of_the_list_of_clusters_is_deleted_there() -> None:
    found = world(service())
    found.federation.put(service(clusters="west"))
    found.wait()
    assert list(found.copies("Service", "shop/web")) == ["west"]
    assert list(found.status("Service", "shop/web")) == ["west"]


REPLICAS = {
    "equal, the rest to the first": (deployment(replicas=7), {"east": 4, "west": 3}),
    "none": (deployment(replicas=0), {"east": 0, "west": 0}),
    "weights": (deployment(replicas=6, cluster_weights="east=1,west=2"), {"east": 2, "west": 4}),
    "one that is not named": (deployment(replicas=6, cluster_weights="west=2"), {"east": 0, "west": 6}),
    "one may be lost": (deployment(replicas=6, overprovision="1"), {"east": 6, "west": 6}),
    "in some clusters": (deployment(replicas=6, clusters="east"), {"east": 6}),
}


@pytest.mark.parametrize(("item", "expected"), REPLICAS.values(), ids=REPLICAS)
def test_replicas_are_split(item: Item, expected: dict[str, int]) -> None:
    found = world(item)
    assert found.replicas("shop/web") == expected
    told = found.status("Deployment", "shop/web")
    assert {cluster: one["wanted"] for cluster, one in told.items()} == expected


@pytest.mark.parametrize("way", ["annotation", "autoscaler"])
def test_replicas_can_be_a_clusters_own_business(way: str) -> None:
    def item(replicas: int, image: str) -> Item:
        made = deployment(replicas=replicas, image=image)
        if way == "annotation":
            made["metadata"]["annotations"]["topodns.io/replicas"] = "local"
        return made

    found = World("east", "west")
    if way == "autoscaler":
        target = {"kind": "Deployment", "name": "web"}
        found.servers["east"].put(made("HorizontalPodAutoscaler", "web", spec={"scaleTargetRef": target}))
    found.federation.put(item(4, "nginx"))
    found.wait()
    assert found.replicas("shop/web") == {"east": 2, "west": 2}
    found.servers["east"].patch(WEB, {"spec": {"replicas": 9}})
    found.federation.put(item(6, "newer"))
    found.wait()
    assert found.replicas("shop/web")["east"] == 9
    copy = found.copies("Deployment", "shop/web")["east"]
    assert copy["spec"]["template"]["spec"]["containers"][0]["image"] == "newer"
    assert found.status("Deployment", "shop/web")["east"]["wanted"] is None


def test_shares_migrate_and_come_back() -> None:
    found = world(deployment(replicas=6, migrate_after="300"))
    found.cut("east")
    found.wait(200.0)
    assert found.replicas("shop/web") == {"east": 3, "west": 3}
    found.wait(100.0)
    assert found.replicas("shop/web") == {"east": 3, "west": 6}
    found.start()  # another leader, which knows of it from what is told
    found.wait(15.0)
    assert found.replicas("shop/web") == {"east": 3, "west": 6}
    assert found.status("Deployment", "shop/web")["east"]["state"] == "unreachable"
    found.heal("east")
    found.wait(10.0)
    assert found.replicas("shop/web") == {"east": 3, "west": 6}
    found.wait(60.0)
    assert found.replicas("shop/web") == {"east": 3, "west": 3}


def test_only_what_has_migrated_is_taken_from_what_is_told() -> None:
    """No replicas in a cluster may mean that there are few, or that somebody has copied the annotation."""
    few = deployment(replicas=1, migrate_after="300")
    copied = deployment("other", replicas=4)
    copied["metadata"]["annotations"]["topodns.io/federation-status"] = (
        '{"west":{"wanted":0,"replicas":0,"ready":0,"state":"unreachable","message":""}}'
    )
    found = world(few)
    found.start()
    few["spec"]["replicas"] = 6
    for item in (few, copied):
        found.federation.put(item)
    found.wait()
    assert found.replicas("shop/web") == {"east": 3, "west": 3}
    scaled = [write.body["spec"]["replicas"] for write in found.servers["east"].writes if write.key.endswith("other")]
    assert scaled == [2]


def test_no_share_migrates_while_nothing_can_be_read() -> None:
    found = world(deployment(replicas=6, migrate_after="300"), clusters=("east", "north", "west"))
    for cluster in ("east", "north", "west"):
        found.cut(cluster)
    found.wait(1000.0)
    found.heal("east")
    found.wait(100.0)
    found.heal("west")
    found.wait(100.0)
    assert found.replicas("shop/web") == {"east": 2, "north": 2, "west": 2}
    found.wait(200.0)
    assert found.replicas("shop/web") == {"east": 3, "north": 2, "west": 3}


def test_shares_never_migrate_unasked() -> None:
    found = world(deployment(replicas=6))
    found.cut("east")
    found.wait(1e6)
    assert found.replicas("shop/web") == {"east": 3, "west": 3}


# --- What is told -----------------------------------------------------------------------------------------------------


def report(found: World, cluster: str, **status: int | str) -> None:
    """Let a cluster's controllers write the status of its Deployment."""
    server = found.servers[cluster]
    item = server.items[WEB]
    server.put({**item, "status": {"observedGeneration": item["metadata"]["generation"], **status}})


def test_numbers_are_summed_and_the_generation_is_observed_when_all_clusters_have_it() -> None:
    found = world(deployment(replicas=5))
    report(found, "east", replicas=3, readyReplicas=2, availableReplicas=1, updatedReplicas=3, unavailableReplicas=2)
    found.wait()
    status = found.federation.items[WEB]["status"]
    assert status.get("observedGeneration") is None
    report(found, "west", replicas=2, readyReplicas=2, availableReplicas=2, updatedReplicas=2)
    found.wait()
    assert found.federation.items[WEB]["status"] == {
        "replicas": 5,
        "readyReplicas": 4,
        "availableReplicas": 3,
        "updatedReplicas": 5,
        "unavailableReplicas": 2,
        "observedGeneration": 1,
    }
    told = found.status("Deployment", "shop/web")
    assert {cluster: (one["replicas"], one["ready"]) for cluster, one in told.items()} == {
        "east": (3, 2),
        "west": (2, 2),
    }


def test_a_status_that_cannot_be_read_holds_up_nothing() -> None:
    found = world(deployment(replicas=4))
    report(found, "east", readyReplicas="all")
    found.wait()
    found.federation.put(deployment(replicas=8))
    found.wait()
    assert found.replicas("shop/web") == {"east": 4, "west": 4}


def test_a_balanced_service_is_reached_by_its_federated_name() -> None:
    found = world(service(), service("inner", type_="ClusterIP"))
    status = found.federation.items[SERVICE]["status"]
    assert status == {"loadBalancer": {"ingress": [{"hostname": f"web.shop.{ZONE}"}]}}
    assert "status" not in found.federation.items[Key("Service", "shop/inner")]


def test_numbers_of_a_cluster_that_is_lost_are_those_that_were_read_last() -> None:
    found = world(deployment(replicas=5))
    for cluster, replicas in (("east", 3), ("west", 2)):
        report(
            found,
            cluster,
            replicas=replicas,
            readyReplicas=replicas,
            availableReplicas=replicas,
            updatedReplicas=replicas,
        )
    found.wait()
    before = found.federation.items[WEB]["status"]
    found.cut("east")
    found.start()
    found.wait(30.0)
    assert found.federation.items[WEB]["status"] == before
    assert found.status("Deployment", "shop/web")["east"] == {
        "wanted": 3,
        "replicas": 3,
        "ready": 3,
        "state": "unreachable",
        "message": "no route to host",
    }


def test_another_error_of_a_cluster_that_is_lost_is_not_told_again() -> None:
    found = world(service())
    found.cut("east")
    found.wait(30.0)
    before = found.written()
    found.problem = "connection refused"
    found.wait(30.0)
    assert found.written() == before
    assert found.status("Service", "shop/web")["east"]["message"] == "no route to host"


# --- Deletion ---------------------------------------------------------------------------------------------------------


def test_an_object_goes_after_its_copies() -> None:
    found = world(service(), made("ConfigMap", "other"))
    assert found.federation.items[SERVICE]["metadata"]["finalizers"] == [FINALIZER]
    found.cut("east")
    found.federation.remove(SERVICE)
    found.wait(60.0)
    assert list(found.copies("Service", "shop/web")) == ["east"]
    assert found.status("Service", "shop/web")["east"]["state"] == "unreachable"
    found.heal("east")
    found.wait(5.0)
    assert found.copies("Service", "shop/web") == {}
    assert SERVICE not in found.federation.items


def test_a_copy_that_was_asked_to_go_is_there_until_its_watch_says_otherwise() -> None:
    found = world(service(), clusters=("east",))
    found.servers["east"].refuses = lambda write: "not now" if write.verb == "delete" else ""
    found.federation.remove(SERVICE)
    found.wait()
    east = found.destinations.clusters["east"]
    deletion = east.next_write(found.now + 100.0)
    assert deletion is not None
    east.written(deletion, None, began=found.now)  # its finalizers may hold it
    found.wait(10.0)
    assert SERVICE in found.federation.items


def test_a_deletion_that_a_cluster_refuses_is_told_in_its_words() -> None:
    found = world(service(), made("ConfigMap", "other"))
    found.servers["east"].refuses = lambda write: "the policy keep forbids it" if write.verb == "delete" else ""
    found.federation.remove(SERVICE)
    found.wait()
    told = found.status("Service", "shop/web")
    assert [(cluster, one["state"], one["message"]) for cluster, one in told.items()] == [
        ("east", "refused", "the policy keep forbids it")
    ]
    assert [(finding.code, finding.message) for finding in found.findings] == [
        ("Refused", "cluster east: the policy keep forbids it")
    ]
    found.servers["east"].refuses = lambda write: ""
    found.wait(60.0)
    assert SERVICE not in found.federation.items


def test_a_copy_that_takes_time_to_go_holds_its_object() -> None:
    found = world(service())
    found.servers["east"].patch(SERVICE, {"metadata": {"finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}})
    found.federation.remove(SERVICE)
    found.wait()
    assert SERVICE in found.federation.items
    found.servers["east"].remove(SERVICE, by_force=True)
    found.wait()
    assert SERVICE not in found.federation.items


def test_a_cluster_that_is_not_configured_any_more_holds_nothing() -> None:
    found = world(service())
    found.cut("east")
    found.federation.remove(SERVICE)
    found.wait(60.0)
    found.heal("east")
    del found.servers["east"]
    found.destinations.remove_cluster("east")
    found.wait()
    assert SERVICE not in found.federation.items


def test_a_write_may_end_after_its_cluster_was_removed() -> None:
    found = World("east", "west")
    found.servers["east"].refuses = lambda write: "not now" if write.verb == "apply" else ""
    found.federation.put(service())
    found.wait()
    east = found.destinations.clusters["east"]
    write = east.next_write(found.now + 100.0)
    assert write is not None
    found.destinations.remove_cluster("east")
    assert east.written(write, found.distribution.copy(SERVICE, "west"), began=found.now)
    east.gone(write)
    assert found.distribution.all_keys() == {SERVICE, Key("Namespace", "shop")}


def test_an_orphan_loses_the_label_and_nothing_else() -> None:
    found = world(service(orphan="true"))
    before = found.copies("Service", "shop/web")["east"]
    found.federation.remove(SERVICE)
    found.wait()
    assert SERVICE not in found.federation.items
    after = found.copies("Service", "shop/web")["east"]
    assert after["spec"] == before["spec"]
    assert LABEL not in after["metadata"]["labels"]


def test_an_orphan_annotation_that_cannot_be_read_holds_all_and_is_told() -> None:
    found = world(service())
    found.federation.put(service(orphan="yes"))
    found.federation.remove(SERVICE)
    found.wait()
    found.wait()
    assert list(found.copies("Service", "shop/web")) == ["east", "west"]
    assert [(finding.code, finding.field) for finding in found.findings] == [
        ("InvalidFederation", "metadata.annotations[topodns.io/orphan]")
    ]


def test_copies_without_an_object_go_only_beside_other_objects() -> None:
    found = world(service(), made("ConfigMap", "other"))
    other = Key("ConfigMap", "shop/other")
    found.federation.remove(SERVICE, by_force=True)
    found.wait()
    assert found.copies("Service", "shop/web") == {}
    found.federation.remove(other, by_force=True)
    found.wait(1000.0)
    assert list(found.copies("ConfigMap", "shop/other")) == ["east", "west"]
    found.federation.put(service())
    found.wait()
    assert found.copies("ConfigMap", "shop/other") == {}


def test_a_federation_api_that_loses_all_deletes_nothing_though_its_kinds_are_listed_one_by_one() -> None:
    found = world(service(), made("ConfigMap", "other"))
    kinds = found.distribution.originals
    for kind in kinds:
        found.destinations.apply(Replace(kind, []))
        found.wait()
    assert list(found.copies("Service", "shop/web")) == ["east", "west"]
    assert list(found.copies("ConfigMap", "shop/other")) == ["east", "west"]


@pytest.mark.parametrize("again", [True, False], ids=["listed", "after a while"])
def test_what_one_list_lacks_is_deleted_when_the_others_have_been_listed_or_do_not_begin(again: bool) -> None:
    found = world(service(), made("ConfigMap", "other"))
    others = {kind: list(found.distribution.objects.of_kind(kind).values()) for kind in found.distribution.originals}
    (services,) = (kind for kind in others if kind.__name__ == "OriginalService")
    found.destinations.apply(Replace(services, []))
    found.wait()
    assert list(found.copies("Service", "shop/web")) == ["east", "west"]
    for kind, objects in others.items() if again else ():
        if kind is not services:
            found.destinations.apply(Replace(kind, objects))
    found.wait(0.0 if again else 100.0)
    assert found.copies("Service", "shop/web") == {}


def test_an_object_that_goes_while_its_copy_is_being_made_waits_for_it() -> None:
    found = World("east")
    found.federation.put(service())

    def removed_meanwhile(write: Any) -> str:
        if write.verb == "apply":
            found.federation.remove(SERVICE)
            found.wait()
            assert SERVICE in found.federation.items
        return ""

    found.servers["east"].refuses = removed_meanwhile
    found.wait()
    found.wait(1.0)
    assert found.copies("Service", "shop/web") == {}
    assert SERVICE not in found.federation.items


def test_a_selector_that_matches_nothing_deletes_nothing() -> None:
    item, other = service(), service("other", orphan="true")
    found = world(item, other)
    found.select(parse_selector("tier=al"))
    found.wait(60.0)
    assert list(found.copies("Service", "shop/web")) == ["east", "west"]
    found.federation.remove(SERVICE)
    found.wait()
    assert found.copies("Service", "shop/web") == {}
    chosen = made("ConfigMap", "chosen", labels={"tier": "al"})
    found.federation.put(chosen)
    found.wait()
    left = found.copies("Service", "shop/other")
    assert {cluster: LABEL in copy["metadata"]["labels"] for cluster, copy in left.items()} == {
        "east": False,
        "west": False,
    }


def test_an_object_that_is_not_selected_any_more_loses_its_copies() -> None:
    item, other = service(), service("other")
    for one in (item, other):
        one["metadata"]["labels"] = {"tier": "all"}
    found = world(item, other, selector=parse_selector("tier=all"))
    found.federation.put(service())
    found.wait()
    assert found.copies("Service", "shop/web") == {}
    assert found.federation.items[SERVICE]["metadata"]["finalizers"] == []


# --- Bad input --------------------------------------------------------------------------------------------------------

INVALID = {
    "weights": ({"cluster_weights": "east"}, "topodns.io/cluster-weights"),
    "no number": ({"cluster_weights": "east=two"}, "topodns.io/cluster-weights"),
    "negative weight": ({"cluster_weights": "east=-1,west=1"}, "topodns.io/cluster-weights"),
    "too great": ({"cluster_weights": "east=1000001"}, "topodns.io/cluster-weights"),
    "weights of nobody": ({"cluster_weights": ""}, "topodns.io/cluster-weights"),
    "no weight": ({"cluster_weights": "east=0,west=0"}, "topodns.io/cluster-weights"),
    "twice": ({"cluster_weights": "east=1,east=2"}, "topodns.io/cluster-weights"),
    "unknown cluster": ({"clusters": "east,north"}, "topodns.io/clusters"),
    "unknown weight": ({"cluster_weights": "north=1"}, "topodns.io/cluster-weights"),
    "no cluster": ({"clusters": ""}, "topodns.io/clusters"),
    "all may be lost": ({"overprovision": "2"}, "topodns.io/overprovision"),
    "some may be lost": ({"overprovision": "some"}, "topodns.io/overprovision"),
    "negative": ({"overprovision": "-1"}, "topodns.io/overprovision"),
    "too soon": ({"migrate_after": "29"}, "topodns.io/migrate-after"),
    "no seconds": ({"migrate_after": "5m"}, "topodns.io/migrate-after"),
    "not local": ({"replicas": "remote"}, "topodns.io/replicas"),
    "neither yes nor no": ({"adopt": "yes"}, "topodns.io/adopt"),
}


@pytest.mark.parametrize(("annotations", "field"), INVALID.values(), ids=INVALID)
def test_bad_input_changes_nothing(annotations: dict[str, str], field: str) -> None:
    found = world(deployment(replicas=4))
    writes = found.written()
    item = deployment(image="newer")
    item["metadata"]["annotations"] = topodns_annotations(annotations)
    found.federation.put({**item, "spec": {**item["spec"], "replicas": 100}})
    found.wait(60.0)
    assert found.written() == writes
    (finding,) = found.findings
    assert (finding.code, finding.field) == ("InvalidFederation", f"metadata.annotations[{field}]")
    found.federation.put(deployment(replicas=6))
    found.wait()
    assert found.replicas("shop/web") == {"east": 3, "west": 3}


def test_a_bad_object_can_be_deleted() -> None:
    found = world(deployment())
    found.federation.put(deployment(clusters="north"))
    found.wait()
    found.federation.remove(WEB)
    found.wait()
    assert found.copies("Deployment", "shop/web") == {}
    assert WEB not in found.federation.items


def test_a_name_that_is_too_long_is_told() -> None:
    found = world(service("w" * 63, namespace="n" * 63), clusters=("east",))
    assert found.findings == []
    long = World("east")
    long.federation.put({**service("w" * 240), "spec": {}})
    long.wait()
    assert [(finding.code, finding.field) for finding in long.findings] == [("InvalidFederation", "metadata.name")]
    assert long.copies("Service", f"shop/{'w' * 240}") == {}
