# SPDX-License-Identifier: Apache-2.0

"""The rights of ``controller --federate`` in the manifests: it uses each of them, and needs no others.

The audit logs of a federation API and of a cluster say what it asks for, while each kind of object comes, changes, is
written badly, and goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import kustomize
from tests.kit.api_objects import Item, item, listed, service
from tests.kit.federation import USER, WITHIN, ZONE, Federation, Member, running_federation, workload
from tests.kit.kustomize import Right, rights_in
from tests.kit.waiting import until

WHERE = "rights"
GROUPS = ("", "apps", "autoscaling", "batch", "coordination.k8s.io")
POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: Metadata, users: [{USER}], resources: {json.dumps([{"group": group} for group in GROUPS])}}}
- {{level: None}}
"""
POD = {"containers": [{"name": "main", "image": "none"}]}
DISTRIBUTED = [
    service("web", where=WHERE, cluster_ips=(), type="LoadBalancer"),
    workload(WHERE, 1),
    workload(WHERE, 1, name="set", kind="ReplicaSet"),
    workload(WHERE, 1, name="old", kind="ReplicationController"),
    item("ConfigMap", "settings", WHERE, data={"level": "high"}),
    item("Secret", "password", WHERE, stringData={"word": "s3cret"}),
    item("ServiceAccount", "robot", WHERE),
]  # fmt: skip
AT_HOME = [{**one, "metadata": {**one["metadata"], "namespace": "at-home"}} for one in DISTRIBUTED]
JOB = {"template": {"spec": {**POD, "restartPolicy": "Never"}}}
PODS = {"selector": {"matchLabels": {"app": "db"}}, "template": {"metadata": {"labels": {"app": "db"}}, "spec": POD}}
OTHERS = [
    item("StatefulSet", "db", WHERE, spec={**PODS, "serviceName": "db"}) | {"apiVersion": "apps/v1"},
    item("DaemonSet", "db", WHERE, spec=PODS) | {"apiVersion": "apps/v1"},
    item("Job", "db", WHERE, spec=JOB) | {"apiVersion": "batch/v1"},
    item("CronJob", "db", WHERE, spec={"schedule": "0 0 1 1 *", "jobTemplate": {"spec": JOB}})
    | {"apiVersion": "batch/v1"},
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Return a federation of one cluster in which all has happened to objects of each kind that can happen."""
    with running_federation(tmp_path_factory.mktemp("rights"), ["east"], policy=POLICY) as federation:
        federation.controller()
        federation.apply(*DISTRIBUTED, *OTHERS)
        federation.until_synced(*DISTRIBUTED)
        for one in DISTRIBUTED:
            federation.api.plane.api.patch(one, {"metadata": {"labels": {"changed": "yes"}}})
        for one in DISTRIBUTED:
            until(lambda one=one: _is_changed(federation, one), lambda one=one: f"{one['kind']} changed")
            federation.annotate(one, clusters="nowhere")
            federation.until_event(one, "InvalidFederation")
            federation.annotate(one, clusters=None)
        for one in OTHERS:
            federation.until_event(one, "NotDistributed")
        # By kubectl: without its propagation policy, a ReplicationController waits for the garbage collector.
        federation.api.plane.kubectl("delete", "--wait=false", "-f", "-", stdin=listed(DISTRIBUTED))
        federation.until_gone(*DISTRIBUTED)
        yield federation


def _is_changed(federation: Federation, written: Item) -> bool:
    (copy,) = federation.copies(written).values()
    return copy is not None and copy["metadata"]["labels"].get("changed") == "yes"


def rights_used(member: Member) -> set[Right]:
    """Return what topodns has asked an API server for; nothing was refused."""
    used: set[Right] = set()
    for line in member.audit.read_text().splitlines():
        told = json.loads(line)
        about, code = told["objectRef"], told["responseStatus"]["code"]
        assert code != 403, told
        resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
        verbs = [told["verb"]]
        if told["verb"] == "patch" and code == 201:  # who applies what is not there needs both rights
            verbs.append("create")
        if told["verb"] == "watch":  # an API server that streams no lists is asked for them
            verbs.append("list")
        used |= {(about.get("apiGroup", ""), resource, verb) for verb in verbs}
    return used


@pytest.mark.parametrize("where", ["federation api", "federation cluster"])
def test_each_right_is_used_and_no_other(asked: Federation, where: str) -> None:
    """The manifests' roles allow what is asked for: all of it, nothing else, and nothing by ``*``."""
    (cluster,) = asked.clusters.values()
    roles = kustomize.objects_of(where, "ClusterRole", "Role")
    granted = rights_in(rule for role in roles for rule in role["rules"])
    assert rights_used(asked.api if where == "federation api" else cluster) == granted


def test_the_own_cluster_is_one_of_all(asked: Federation, tmp_path: Path) -> None:
    """With the controller's account there, as in a pod: nothing is refused, and what is distributed comes and goes."""
    (east,) = asked.clusters.values()
    roles = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
    objects = kustomize.objects_of("clusters with federate", "Namespace", "CustomResourceDefinition", *roles)
    with kustomize.installed(east.plane, objects):
        token = east.plane.token(kustomize.NAMESPACE, kustomize.CONTROLLER)
        own = east.plane.kubeconfig_with(tmp_path / "kubeconfig", token=token)
        lease = f"--lease={kustomize.NAMESPACE}/{kustomize.CONTROLLER}"
        asked.end_controllers()
        federate = f"--federate={ZONE}={asked.api.kubeconfig}"
        running = asked.further(federate, f"--kubeconfig={own}", "--cluster-name=east", lease)
        asked.apply(*AT_HOME)
        asked.until_synced(*AT_HOME, within=WITHIN)
        asked.api.plane.kubectl("delete", "--wait=false", "-f", "-", stdin=listed(AT_HOME))
        asked.until_gone(*AT_HOME)
        asked.end_controllers()
        assert not [line for line in running.lines if re.search(r"\b403\b", line)]
