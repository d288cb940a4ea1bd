# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --federate`` on real control planes: what is copied, where to, and what is told of it.

Everything is written by kubectl to a federation API without controllers, and looked at in the clusters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit.api_objects import Item, deployment, item, namespace, service
from tests.kit.federation import (
    FEDERATED,
    FIELD_MANAGER,
    FINALIZER,
    LABEL,
    NAMES,
    STATUS,
    WITHIN,
    ZONE,
    Federation,
    config_map,
    workload,
)
from tests.kit.programs import tail
from tests.kit.topodns_process import run
from tests.kit.waiting import until

DRIFT_SECONDS = 10.0  # within which a copy is again as it should be


@pytest.fixture(autouse=True)
def _controller(federation: Federation) -> None:
    federation.controller()


def everywhere(federation: Federation, *items: Item) -> bool:
    return all(all(federation.copies(item).values()) for item in items)


def nowhere(federation: Federation, *items: Item) -> bool:
    return not any(any(federation.copies(item).values()) for item in items)


# Kinds


@pytest.mark.parametrize("server_side", [False, True], ids=["kubectl apply", "kubectl apply --server-side"])
def test_kinds(federation: Federation, server_side: bool) -> None:
    """Services, workloads and what their pods need are in every cluster, and so are their namespaces."""
    where = "kinds-server" if server_side else "kinds"
    items = [
        service("web", where=where, cluster_ips=(), selects=True),
        workload(where, 3),
        workload(where, 3, name="set", kind="ReplicaSet"),
        workload(where, 3, name="old", kind="ReplicationController"),
        config_map("settings", where, level="high"),
        item("Secret", "password", where, stringData={"word": "s3cret"}, type="Opaque"),
        item("ServiceAccount", "robot", where),
    ]
    federation.apply(*items, server_side=server_side)
    federation.until_synced(*items)
    assert everywhere(federation, *items)
    for copy in federation.copies(items[4]).values():
        assert copy is not None and copy["data"] == {"level": "high"}
    for copy in federation.copies(items[5]).values():
        assert copy is not None and (copy["data"], copy["type"]) == ({"word": "czNjcmV0"}, "Opaque")


def test_what_is_passed_over(federation: Federation) -> None:
    """What Kubernetes makes itself, what others own, and all of kube-... namespaces stay where they are."""
    where = "passed-over"
    owner = config_map("owner", where)
    federation.apply(owner)
    found = federation.api.find(owner)
    assert found is not None
    owned = config_map("owned", where)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": found["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [reference]
    set_of_a_deployment = workload(where, 3, name="owned", kind="ReplicaSet")
    set_of_a_deployment["metadata"]["ownerReferences"] = [reference]
    token = item("Secret", "token", where, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "robot"}
    kubernetes = item("Service", "kubernetes", "default")
    passed = [
        item("ServiceAccount", "default", where),  # as the controllers of a cluster make them
        config_map("kube-root-ca.crt", where, **{"ca.crt": "of the federation API"}),
        token,
        owned,
        set_of_a_deployment,
        config_map("settings", "kube-system"),
        config_map("settings", "kube-anything"),
    ]
    last = config_map("last", where)
    federation.apply(item("ServiceAccount", "robot", where), *passed, last)
    federation.until_synced(last, owner)
    for item_ in [*passed, kubernetes]:
        assert not federation.states(item_), item_["metadata"]
        for copy in federation.copies(item_).values():
            assert LABEL not in (copy or {"metadata": {}})["metadata"].get("labels", {}), item_["metadata"]
        found = federation.api.find(item_)
        assert found is not None and "finalizers" not in found["metadata"]
    assert nowhere(federation, token, owned, set_of_a_deployment, *passed[5:])


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job"])
def test_other_workloads(federation: Federation, kind: str) -> None:
    """They are not distributed, and an Event at the object and the log say so."""
    where = f"others-{kind.lower()}"
    written = workload(where, 1, name="db", kind=kind)
    spec = written["spec"]
    if kind == "StatefulSet":
        spec["serviceName"] = "db"
    else:
        del spec["replicas"]
    if kind == "Job":
        written["apiVersion"] = "batch/v1"
        del spec["selector"]
        spec["template"]["spec"]["restartPolicy"] = "Never"
    federation.apply(written)
    federation.until_event(written, "NotDistributed")
    federation.controller().wait_for(rf"{kind} {where}/db: .*not distributed")
    assert federation.reasons(written) == {("Warning", "NotDistributed"): 1}
    assert nowhere(federation, written)


def test_selector(federation: Federation) -> None:
    """``--federate-selector`` limits what is distributed; what is not, is left alone, whoever's it is."""
    mine = config_map("mine", "selected")
    mine["metadata"]["labels"] = {"federate": "yes"}
    other = config_map("other", "selected")
    federation.controller("--federate-selector=federate=yes")
    federation.apply(other, mine)
    federation.until_synced(mine)
    assert nowhere(federation, other) and federation.states(other) == {}
    federation.controller()
    federation.until_synced(other, mine)


# Copies


def test_a_copy_of_a_service(federation: Federation) -> None:
    """It is the object as written, without what a cluster allocates, and with our label and annotation."""
    where = "service-copy"
    written = service(
        "web",
        where=where,
        cluster_ips=(),
        labels={"team": "shop"},
        annotations={"example.com/note": "as written", "topodns.io/topology-keys": "topodns.io/cluster,*"},
        selects=True,
        type="LoadBalancer",
        ports=[("main", 80, "TCP"), ("admin", 81, "TCP")],
    )
    federation.apply(written)
    federation.until_synced(written)
    original = federation.api.find(written)
    assert original is not None
    for name, copy in federation.copies(written).items():
        assert copy is not None
        metadata, spec = copy["metadata"], copy["spec"]
        assert metadata["labels"] == {"team": "shop", LABEL: ZONE}, name
        assert metadata["annotations"].items() >= written["metadata"]["annotations"].items()
        assert metadata["annotations"][FEDERATED] == "true" and STATUS not in metadata["annotations"]
        assert metadata["uid"] != original["metadata"]["uid"] and FINALIZER not in metadata.get("finalizers", [])
        assert (spec["selector"], spec["type"]) == ({"app": "web"}, "LoadBalancer")
        assert [(port["name"], port["port"]) for port in spec["ports"]] == [("main", 80), ("admin", 81)]
        assert fields_of(copy, FIELD_MANAGER)["f:spec"].keys().isdisjoint({"f:clusterIP", "f:clusterIPs"})
        assert "nodePort" not in str(fields_of(copy, FIELD_MANAGER))
        assert not copy["status"].get("loadBalancer")


def fields_of(copy: Item, manager: str) -> dict[str, Any]:
    """Return the fields that a manager applies."""
    (entry,) = (
        entry
        for entry in copy["metadata"]["managedFields"]
        if entry["manager"] == manager and not entry.get("subresource")
    )
    assert entry["operation"] == "Apply"
    return dict(entry["fieldsV1"])


def test_a_headless_service(federation: Federation) -> None:
    """It is headless everywhere."""
    written = service("web", where="headless", selects=True)
    federation.apply(written)
    federation.until_synced(written)
    for copy in federation.copies(written).values():
        assert copy is not None and copy["spec"]["clusterIP"] == "None"


def test_cluster_ip_and_node_port_of_the_federation_api(federation: Federation) -> None:
    """What the federation API has allocated may be taken in a cluster, and does not matter there."""
    where = "allocated"
    written = service("web", where=where, cluster_ips=(), type="NodePort")
    federation.apply(
        written | {"metadata": {**written["metadata"], "annotations": {"topodns.io/clusters": "south,west"}}}
    )
    federation.until_synced(written, clusters=["south", "west"])
    found = federation.api.find(written)
    assert found is not None
    taken = service(
        "taken", where="allocated-taken", cluster_ips=found["spec"]["clusterIPs"], type="NodePort",
        ports=[("main", 80, "TCP")],
    )  # fmt: skip
    taken["spec"]["ports"][0]["nodePort"] = found["spec"]["ports"][0]["nodePort"]
    federation.clusters["east"].plane.api.create(namespace("allocated-taken"), taken)
    federation.annotate(written, clusters=None)
    federation.until_synced(written)


def test_deployments_keep_what_is_written(federation: Federation) -> None:
    """Pod templates, strategies and further fields arrive; finalizers, owners and status do not."""
    where = "deployment-copy"
    written = deployment("web", where=where, labels={"app": "web"}, replicas=3, minReadySeconds=7, paused=True)
    written["spec"]["strategy"] = {"type": "Recreate"}
    written["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "LEVEL", "value": "high"}]
    written["metadata"]["finalizers"] = ["example.com/guard"]
    federation.apply(written)
    federation.until_synced(written)
    found = federation.api.find(written)
    assert found is not None and {FINALIZER, "example.com/guard"} == {*found["metadata"]["finalizers"]}
    for copy in federation.copies(written).values():
        assert copy is not None
        assert "finalizers" not in copy["metadata"] and "ownerReferences" not in copy["metadata"]
        spec = copy["spec"]
        assert (spec["minReadySeconds"], spec["paused"], spec["strategy"]) == (7, True, {"type": "Recreate"})
        assert spec["template"]["spec"]["containers"][0]["env"] == [{"name": "LEVEL", "value": "high"}]
    federation.api.plane.api.patch(written, {"metadata": {"finalizers": [FINALIZER]}})


def test_a_change_is_everywhere(federation: Federation) -> None:
    """What is changed, added or taken away in the federation API is so in the clusters."""
    where = "changes"
    written = config_map("settings", where, level="high", mode="fast")
    written["metadata"]["labels"] = {"team": "shop", "tier": "1"}
    federation.apply(written)
    federation.until_synced(written)
    changed = config_map("settings", where, level="low", colour="red")
    changed["metadata"]["labels"] = {"team": "bank"}
    federation.apply(changed)

    def as_changed(copy: Item | None) -> bool:
        return copy is not None and (copy.get("data"), copy["metadata"]["labels"]) == (
            {"level": "low", "colour": "red"},
            {"team": "bank", LABEL: ZONE},
        )

    until(lambda: all(map(as_changed, federation.copies(written).values())), lambda: f"{federation.copies(written)}")


def test_somebody_elses_fields_stay(federation: Federation) -> None:
    """A cloud's annotations and a user's labels on a copy are kept when the object changes."""
    written = service("web", where="their-fields", cluster_ips=(), annotations={"example.com/mine": "1"})
    federation.apply(written)
    federation.until_synced(written)
    theirs = {"labels": {"example.com/seen": "yes"}, "annotations": {"cloud.example.com/balancer": "lb-1"}}
    for cluster in federation.clusters.values():
        cluster.plane.api.patch(written, {"metadata": theirs})
    written["metadata"]["annotations"] = {"example.com/mine": "2"}
    federation.apply(written)

    def mine(copy: Item | None) -> str:
        return str((copy or {})["metadata"]["annotations"].get("example.com/mine"))

    until(lambda: {mine(copy) for copy in federation.copies(written).values()} == {"2"}, "the change")
    for copy in federation.copies(written).values():
        assert copy is not None
        assert copy["metadata"]["annotations"].items() >= theirs["annotations"].items()
        assert copy["metadata"]["labels"].items() >= theirs["labels"].items()


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"level": "by hand"}},
        {"data": {"level": None}},
        {"metadata": {"annotations": None, "labels": {"team": None}}},
        None,
    ],
    ids=["changed", "taken away", "a label taken away", "deleted"],
)
def test_drift(federation: Federation, change: Mapping[str, Any] | None) -> None:
    """What somebody changes or deletes in a cluster is again as it should be within 10 s."""
    written = config_map("settings", "drift", level="high")
    written["metadata"]["labels"] = {"team": "shop"}
    federation.apply(written)
    federation.until_synced(written)
    west = federation.clusters["west"]
    if change is None:
        west.plane.api.delete(written)
    else:
        west.plane.api.patch(written, change)

    def right() -> bool:
        copy = west.find(written)
        return copy is not None and (copy.get("data"), copy["metadata"]["labels"]) == (
            {"level": "high"},
            {"team": "shop", LABEL: ZONE},
        )

    until(right, lambda: f"{west.find(written)}", within=DRIFT_SECONDS)


def test_namespaces_stay(federation: Federation) -> None:
    """A namespace is made where it is missing, and stays when all that was in it is gone."""
    where = "stays"
    written = config_map("settings", where)
    federation.apply(written)
    federation.until_synced(written)
    federation.delete(written)
    federation.until_gone(written)
    space = namespace(where)
    assert all(cluster.find(space) for cluster in federation.clusters.values())


# Where


def test_only_some_clusters(federation: Federation) -> None:
    """``topodns.io/clusters`` says where; what is taken out of the list is deleted there."""
    written = config_map("settings", "some")
    written["metadata"]["annotations"] = {"topodns.io/clusters": "east, west"}
    federation.apply(written)
    federation.until_synced(written, clusters=["east", "west"])
    assert federation.clusters["south"].find(written) is None
    federation.annotate(written, clusters="south")
    federation.until_synced(written, clusters=["south"])
    until(lambda: {name for name, copy in federation.copies(written).items() if copy} == {"south"}, "only in south")
    federation.annotate(written, clusters=None)
    federation.until_synced(written)
    assert everywhere(federation, written)


# Somebody else's


def test_not_ours(federation: Federation) -> None:
    """An object without the label is left as it is, and Event and status say so, until it is adopted."""
    where = "not-ours"
    written = config_map("settings", where, level="high")
    theirs = config_map("settings", where, theirs="yes")
    federation.clusters["west"].plane.api.create(namespace(where), theirs)
    before = federation.clusters["west"].find(theirs)
    federation.apply(written)
    federation.until_states(written, east="synced", south="synced", west="not-ours")
    event = federation.until_event(written, "NotOurs")
    assert event["type"] == "Warning" and "west" in event["message"]
    assert federation.status(written)["west"]["message"]
    assert federation.clusters["west"].find(theirs) == before
    federation.annotate(written, adopt="true")
    federation.until_synced(written)
    adopted = federation.clusters["west"].find(written)
    assert adopted is not None and adopted["metadata"]["labels"][LABEL] == ZONE
    assert adopted["data"] == {"level": "high", "theirs": "yes"}  # their field stays


@pytest.mark.parametrize("value", [None, "other.example"], ids=["without", "of another federation"])
def test_a_label_taken_away(federation: Federation, value: str | None) -> None:
    """Who takes the label off a copy has it for himself: it is untouched from then on, until it is adopted."""
    written = config_map("settings", f"label-{len(value or '')}", level="high")
    federation.apply(written)
    federation.until_synced(written)
    west = federation.clusters["west"]
    west.plane.api.patch(written, {"metadata": {"labels": {LABEL: value}}, "data": {"level": "mine"}})
    federation.until_states(written, west="not-ours")
    federation.until_quiet()
    copy = west.find(written)
    assert copy is not None and copy["data"] == {"level": "mine"}
    federation.annotate(written, adopt="true")
    federation.until_synced(written)


def test_not_ours_outlives_the_object(federation: Federation) -> None:
    """When the federation's object ends, somebody else's stays; it holds up nobody."""
    where = "not-ours-ends"
    written = config_map("settings", where, level="high")
    federation.clusters["west"].plane.api.create(namespace(where), config_map("settings", where, theirs="yes"))
    federation.apply(written)
    federation.until_states(written, west="not-ours")
    federation.delete(written)
    until(lambda: federation.api.find(written) is None, "the object is gone")
    assert [name for name, copy in federation.copies(written).items() if copy] == ["west"]


# Status


def ingress(federation: Federation, written: Item) -> object:
    """Return the load balancers of a Service in the federation API."""
    return ((federation.api.find(written) or {})["status"]["loadBalancer"]).get("ingress")


def test_status_of_a_service(federation: Federation) -> None:
    """Its ingress is its federated name, and each cluster's state stands in the annotation."""
    written = service("web", where="status", cluster_ips=(), type="LoadBalancer")
    federation.apply(written)
    federation.until_synced(written)
    until(lambda: ingress(federation, written) == [{"hostname": f"web.status.{ZONE}"}], "the federated name")
    for told in federation.status(written).values():
        assert told.keys() <= {"wanted", "replicas", "ready", "state", "message"} and told["state"] == "synced"


def test_status_is_written_only_when_it_changes(federation: Federation) -> None:
    """While nothing changes, nothing is written: neither in the federation API nor in a cluster."""
    written = service("web", where="steady", cluster_ips=())
    federation.apply(written)
    federation.until_synced(written)
    federation.until_quiet()
    before = federation.api.find(written), federation.copies(written), federation.write_counts()
    # Something else changes in each API, and is looked at: what is steady is not written again.
    other = config_map("other", "steady")
    federation.apply(other)
    federation.until_synced(other)
    federation.delete(other)
    federation.until_gone(other)
    federation.until_quiet()
    assert (federation.api.find(written), federation.copies(written)) == before[:2]


# One controller


def test_a_restart_writes_nothing(federation: Federation) -> None:
    """A controller that starts finds everything as it should be."""
    written = workload("restart", 5)
    federation.apply(written, service("web", where="restart", cluster_ips=()), config_map("c", "restart", a="b"))
    federation.until_synced(written)
    federation.until_quiet()
    before = federation.write_counts()
    federation.end_controllers()
    federation.controller()
    probe = config_map("probe", "restart")  # once this is everywhere, all has been compared
    federation.apply(probe)
    federation.until_synced(probe)
    federation.until_quiet()
    wrote = {
        name: {(write.resource, write.key.split("/")[1]) for write in member.writes()[before[name] :]}
        for name, member in {"": federation.api, **federation.clusters}.items()
    }
    assert wrote == {name: {("configmaps", "probe")} for name in ("", *NAMES)}


def test_a_name_that_is_long(federation: Federation) -> None:
    """A federation's name above 63 octets is shortened by a hash in the label, and stays whole in the status."""
    long = ".".join(["a" * 40, "b" * 40, "example"])
    written = service("web", where="long", cluster_ips=(), type="LoadBalancer")
    arguments = [
        flag.replace(f"={ZONE}=", f"={long}=") for flag in federation.arguments("--federate-selector=long=yes")
    ]
    written["metadata"]["labels"] = {"long": "yes"}
    federation.end_controllers()
    federation.further(*arguments).until_leading()
    federation.apply(written)
    federation.until_synced(written)
    labels = {copy["metadata"]["labels"][LABEL] for copy in federation.copies(written).values() if copy is not None}
    assert len(labels) == 1 and len(label := labels.pop()) <= 63 and label != long
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", label) and label.startswith("a" * 40)
    until(lambda: ingress(federation, written) == [{"hostname": f"web.long.{long}"}], "the federated name")
    federation.delete(written)
    federation.until_gone(written, within=WITHIN)


# Settings


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--federate=my.example", "KUBECONFIG"),
        ("--federate=-bad-.example={}", "-bad-"),
        ("--federate=my.example=/nowhere/kubeconfig", "no such file"),
        ("--federate=my.example={}#none", "none"),
    ],
    ids=["no kubeconfig", "no zone", "no file", "no such context"],
)
def test_wrong_settings(federation: Federation, flag: str, said: str) -> None:
    """They are status 2, and one line says what is wrong."""
    _, *others = federation.arguments()
    ran = run("controller", flag.format(federation.api.kubeconfig), *others, "--http=127.0.0.1:0")
    assert (ran.returncode, said in ran.stderr) == (2, True), tail(ran.stderr)
    assert len(ran.stderr.splitlines()) == 1


def test_the_federation_api_is_no_cluster(federation: Federation) -> None:
    """The federation API is never one of the clusters: objects would be copies of themselves."""
    again = f"--cluster=again={federation.api.kubeconfig}"
    ran = run("controller", *federation.arguments(again), "--http=127.0.0.1:0")
    assert ran.returncode == 2 and "again" in ran.stderr, tail(ran.stderr)
