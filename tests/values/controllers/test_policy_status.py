# SPDX-License-Identifier: Apache-2.0

"""The status of ServicePolicies: which conditions hold, when the leader writes them, and that ``check`` agrees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from locator.api.deltas import Replace
from locator.findings import ClusterCode
from locator.model import Node, Service
from locator.policies.rules import PolicyRules
from locator.policies.status import POLICY_RESOURCES, ActualPolicy
from tests.kit.api_objects import RACK, REGION, ZONE, item, node, service, service_policy
from tests.kit.controlled import Controlled, record
from tests.kit.in_memory import checked
from tests.kit.kube import Item

NODES = [node("n1", {ZONE: "a", RACK: "r1"}), node("n2", {ZONE: "b"})]
FOUR, FIVE = "2026-01-01T00:00:04Z", "2026-01-01T00:00:05Z"


def policy(
    name: str = "near", key: str | None = ZONE, mode: str | None = "Required", app: str = "web", **meta: Any
) -> Item:
    made = service_policy(name, key, mode, app=app)
    made["metadata"] |= {"generation": 1, "resourceVersion": "1", **meta}
    return made


def selecting(selector: Item | None) -> Item:
    made = policy()
    made["spec"]["serviceSelector"] = selector
    return made


def web(name: str = "web", app: str = "web", labels: Mapping[str, str] | None = None, **fields: Any) -> Item:
    return service(name, labels={"app": app, **(labels or {})}, **fields)


def virtual(**fields: Any) -> Item:
    return web(cluster_ips=("10.96.0.7",), **fields)


class Cluster(Controlled):
    """A controller that has listed a cluster, and its API server."""

    def __init__(self, items: Iterable[Item], now: str = FOUR) -> None:
        self.now, items = now, list(items)
        super().__init__(PolicyRules(lambda: self.now), [thing for thing in items if thing["kind"] == "ServicePolicy"])
        for kind in (Node, Service):
            assert self.written() == []
            listed = [thing for thing in items if thing["kind"] == POLICY_RESOURCES[kind].name]
            self.reconciler.apply(Replace(kind, [record(POLICY_RESOURCES, thing) for thing in listed]))

    def change(self, thing: Item) -> None:
        """Change or create an object, but not its status."""
        known = self.stored.get(f"shop/{thing['metadata']['name']}", {}) if thing["kind"] == "ServicePolicy" else {}
        self.put({**thing, **({"status": known["status"]} if "status" in known else {})})

    def written(self) -> list[str]:
        """Carry out the writes that are due; return the names of the policies."""
        return sorted(write.key.removeprefix("shop/") for write in self.write())

    def status(self, name: str = "near") -> Any:
        return self.stored[f"shop/{name}"]["status"]

    def conditions(self, name: str = "near") -> dict[str, tuple[str, str, str]]:
        """Return the status, the reason and the message of each condition."""
        return {one["type"]: (one["status"], one["reason"], one["message"]) for one in self.status(name)["conditions"]}


class Row(NamedTuple):
    """A cluster; of the policy ``near``, the reasons of both conditions, a part of the second message, the number of
    Services, what ``check`` finds, and the first message.
    """

    name: str
    cluster: Sequence[Item]
    accepted: str
    effective: str
    words: str
    services: int
    found: str = ""
    why: str = ""


CONSTRAINS, OK = "Constrains", "Accepted"
INVALID = "InvalidServicePolicy"
MANY = [policy(f"p{number}", f"example.com/k{number}", "Preferred") for number in range(16)]
ROWS = (
    Row("required", [policy(), web()], OK, CONSTRAINS, "at least one", 1),
    Row("preferred", [policy(mode="Preferred"), web(), virtual(name="cluster-ip")], OK, CONSTRAINS, "", 2),
    Row("lower-case", [policy(mode="required"), web()], OK, CONSTRAINS, "", 1),
    Row("with-others", [policy(), policy("rack", RACK, "Preferred"), web()], OK, CONSTRAINS, "", 1),
    Row("before-the-annotation", [policy(), web(keys="*")], OK, CONSTRAINS, "", 1),
    Row("hinted", [policy(), virtual(labels={"topodns.io/hints": "true"})], OK, CONSTRAINS, "", 1),
    Row("federated", [policy(), virtual(annotations={"topodns.io/federated": "true"})], OK, CONSTRAINS, "", 1),
    Row("key-of-the-cluster", [policy(key="topodns.io/cluster"), web()], OK, CONSTRAINS, "", 1),
    Row("old-name-of-a-key", [policy(key="failure-domain.beta.kubernetes.io/zone"), web()], OK, CONSTRAINS, "", 1),
    Row("ignored", [policy(mode="Ignored"), web()], OK, "Ignored", "its mode is Ignored", 1),
    Row("no-mode", [policy(mode=None), web()], OK, "Ignored", "policy without a mode", 1, "PolicyWithoutMode"),
    Row("no-key", [policy(key=None), web()], OK, "WithoutKey", "policy without a key", 1, "EmptyTopologyKeys"),
    Row("no-key-and-another", [policy(key=None), policy("rack", RACK), web()], OK, "WithoutKey", "", 1,
        "EmptyTopologyKeys"),
    Row("beside-one-without-key", [policy(), policy("keyless", None), web()], OK, CONSTRAINS, "", 1,
        "EmptyTopologyKeys"),
    Row("ignored-without-key", [policy(key=None, mode="Ignored"), web()], OK, "Ignored", "its mode is Ignored", 1),
    Row("no-topology", [policy(key=None, mode=None), web()], OK, "Ignored", "without a mode", 1, "PolicyWithoutMode"),
    Row("mode-without-key", [policy(key=None, mode="strict"), web()], INVALID, "NotAccepted", "", 1, INVALID),
    Row("selects-nothing", [policy(), web(app="db")], OK, "SelectsNothing", "selects no Service", 0,
        "PolicySelectsNothing"),
    Row("another-namespace", [policy(), web(where="lab")], OK, "SelectsNothing", "", 0, "PolicySelectsNothing"),
    Row("cluster-ip", [policy(), virtual()], OK, "NotHeadless", "no headless Service", 1, "ConstraintWithoutEffect"),
    Row("peers", [policy(), web(publishNotReadyAddresses=True)], OK, "PublishNotReady", "not ready", 1,
        "ConstraintWithoutEffect"),
    Row("peers-with-keys", [policy(), web(publishNotReadyAddresses=True, keys=ZONE)], OK, "PublishNotReady", "", 1,
        "SourceNotHeard"),
    Row("peers-and-others", [policy(), web(publishNotReadyAddresses=True), web("db")], OK, CONSTRAINS, "", 2,
        "ConstraintWithoutEffect"),
    Row("required-key-on-no-node", [policy(key="example.com/racks"), web()], OK, "KeyOnNoNode",
        f"no node has the label example.com/racks, expected {RACK}; clients get no endpoint", 1, "KeyOnNoNode"),
    Row("preferred-key-on-no-node", [policy(key="example.com/racks", mode="Preferred"), web()], OK, "KeyOnNoNode",
        f"expected {RACK}", 1, "KeyOnNoNode"),
    Row("key", [policy(key="a b"), web()], INVALID, "NotAccepted", "does not accept", 1, INVALID),
    Row("mode", [policy(mode="strict"), web()], INVALID, "NotAccepted", "does not accept", 1, INVALID,
        "spec.topology.mode: 'strict' is no mode, expected Required, Preferred, Ignored"),
    Row("ignored-though-invalid", [policy(key="a b", mode="Ignored"), web()], INVALID, "NotAccepted", "", 1, INVALID),
    Row("empty-selector", [selecting({}), web()], INVALID, "NotAccepted", "", 0, INVALID),
    Row("no-selector", [selecting(None), web()], INVALID, "NotAccepted", "", 0, INVALID),
    Row("operator", [selecting({"matchExpressions": [{"key": "app", "operator": "Equals"}]}), web()], INVALID,
        "NotAccepted", "", 0, INVALID),
    Row("spoilt-by-another", [policy(), policy("bad", "a b"), web()], OK, INVALID, "ServicePolicy bad: 'a b'", 1,
        INVALID),
    Row("spoilt-by-another-elsewhere-effective", [policy(), policy("bad", "a b", app="db"), web(), web("db", "db")], OK,
        CONSTRAINS, "", 1, INVALID),
    Row("too-many-keys", [policy(), *MANY, web()], OK, INVALID, "17 keys, at most 16", 1, INVALID),
    Row("local-traffic", [policy(), web(externalTrafficPolicy="Local")], OK, INVALID, "externalTrafficPolicy: Local", 1,
        INVALID),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_conditions(row: Row) -> None:
    """``Accepted`` is about the policy alone, ``Effective`` about what it changes."""
    cluster = Cluster([*row.cluster, *NODES])
    assert "near" in cluster.written()
    (accepted, why, text), (effective, reason, message) = (
        cluster.conditions()[one] for one in ("Accepted", "Effective")
    )
    assert (accepted, why) == (str(row.accepted == OK), row.accepted)
    assert (effective, reason) == (str(row.effective == CONSTRAINS), row.effective)
    assert row.words in message and row.why in text
    assert cluster.status()["services"] == row.services


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_check_finds_the_same(row: Row) -> None:
    """What keeps a policy from having an effect is a finding, too, unless somebody wrote that it is to have none."""
    found = {finding.code for finding in checked([item("Namespace", "shop"), *row.cluster, *NODES])}
    about = {code.name for code in ClusterCode if "Policy" in code.name}
    about |= {"ConstraintWithoutEffect", "EmptyTopologyKeys", "KeyOnNoNode"}
    assert found & (about | {row.found}) == ({row.found} if row.found else set())


def test_the_status_is_written_once() -> None:
    """It stays while the same follows, also over a restart."""
    cluster = Cluster([policy(), web(), *NODES])
    assert cluster.written() == ["near"]
    times = {"lastTransitionTime": FOUR, "observedGeneration": 1}
    assert cluster.status() == {
        "observedGeneration": 1,
        "services": 1,
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "the policy is valid", **times},
            {"type": "Effective", "status": "True", "reason": "Constrains", **times,
             "message": "it constrains at least one Service that it selects"},
        ],
    }  # fmt: skip
    cluster.now = FIVE
    later = (
        web(annotations={"unrelated": "x"}),
        web("db", "db"),
        node("n3", {ZONE: "c"}),
        policy("rack", RACK, app="db"),
    )
    for thing in later:
        cluster.change(thing)
    assert cluster.written() == ["rack"]
    assert Cluster([*cluster.stored.values(), web(), web("db", "db"), *NODES], FIVE).written() == []


CHANGES: Mapping[str, tuple[Item | None, str, str, str, int]] = {
    "another-service": (web("second"), "True", FOUR, CONSTRAINS, 2),
    "service-gone": (None, "False", FIVE, "SelectsNothing", 0),
    "service-with-another-label": (web(app="db"), "False", FIVE, "SelectsNothing", 0),
    "service-with-a-cluster-ip": (virtual(), "False", FIVE, "NotHeadless", 1),
    "mode": (policy(mode="Ignored", generation=2), "False", FIVE, "Ignored", 1),
    "another-policy": (policy("bad", "a b"), "False", FIVE, INVALID, 1),
    "label-gone": (node("n1", {ZONE: "a"}), "False", FIVE, "KeyOnNoNode", 1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_written(change: str) -> None:
    """Each change that the status depends on; ``lastTransitionTime`` changes only with the condition."""
    after, status, since, reason, services = CHANGES[change]
    cluster = Cluster([policy(key=RACK), web(), *NODES])
    cluster.written()
    cluster.now = FIVE
    if after is None:
        cluster.drop(Service, "shop/web")
    else:
        cluster.change(after)
    assert "near" in cluster.written()
    (accepted, effective) = cluster.status()["conditions"]
    assert (effective["status"], effective["lastTransitionTime"], effective["reason"]) == (status, since, reason)
    assert accepted["lastTransitionTime"] == FOUR
    assert cluster.status()["services"] == services
    generation = 2 if change == "mode" else 1
    assert {cluster.status()["observedGeneration"], effective["observedGeneration"]} == {generation}


def test_what_others_write_into_the_status() -> None:
    """A condition of another type stays; one of ours is fixed."""
    cluster = Cluster([policy(), web(), *NODES])
    cluster.written()
    theirs = {"type": "example.com/Reviewed", "status": "True", "lastTransitionTime": FOUR}
    ours = cluster.status()["conditions"]
    cluster.put({**policy(), "status": {**cluster.status(), "conditions": [theirs, {**ours[1], "status": "False"}]}})
    assert cluster.written() == ["near"]
    assert {one["type"]: one["status"] for one in cluster.status()["conditions"]} == {
        "example.com/Reviewed": "True", "Accepted": "True", "Effective": "True",
    }  # fmt: skip
    assert theirs in cluster.status()["conditions"]
    cluster.change(policy())
    assert cluster.written() == []


def test_no_node_is_known() -> None:
    """Without Nodes, as with ``--client-source podlocators``, any key may be carried."""
    cluster = Cluster([policy(key=REGION), web()])
    cluster.written()
    assert cluster.conditions()["Effective"][:2] == ("True", CONSTRAINS)


def test_a_follower_forgets_what_is_gone() -> None:
    """Nobody takes keys out of its queue."""
    cluster = Cluster([policy(), web(), *NODES])
    cluster.drop(ActualPolicy, "shop/near")
    cluster.drop(Node, "n1")
    assert len(cluster.reconciler.queue) == 0
    assert cluster.reconciler.rules.objects.counts == {Node: 1, Service: 1, ActualPolicy: 0}
