# SPDX-License-Identifier: Apache-2.0

"""A federation of real control planes: a federation API without controllers, and clusters whose controllers run.

Each cluster has a node, and a kubelet that a test lets look after the pods. What topodns writes anywhere stands in
the audit logs.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.kit import api_objects, kustomize
from tests.kit.api_objects import deployment, listed, namespace, node, topodns_annotations
from tests.kit.kube import ALL, ApiError, ControlPlane, Item, running_control_plane
from tests.kit.kubelet import Kubelet
from tests.kit.topodns_process import Process
from tests.kit.waiting import PATIENCE, until

ZONE = "my.example"
LABEL = FINALIZER = "topodns.io/federation"
FEDERATED = "topodns.io/federated"
STATUS = "topodns.io/federation-status"
FIELD_MANAGER = "topodns-federation"
NAMES = ("east", "south", "west")

WITHIN = 3 * PATIENCE  # for what follows after a Lease has expired, or an API server was away
TOKEN = "of-topodns"
USER = "topodns"
AUDIT_POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {{level: None, resources: [{{group: coordination.k8s.io, resources: [leases]}}]}}
- {{level: Metadata, users: [{USER}], verbs: [create, update, patch, delete, deletecollection]}}
- {{level: None}}
"""
API_RIGHTS, CLUSTER_RIGHTS = "federation api", "federation cluster"  # variants of the manifests
COMMAND = (sys.executable, "-m", "tests.kit.federator_process")


class Federating(Process):
    """A running ``topodns controller --federate``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(["controller", "--http=127.0.0.1:0", *arguments], command=COMMAND)
        self.wait_for("^listening http ")

    def until_leading(self) -> Federating:
        self.wait_for("became leader: ", within=WITHIN)
        return self


class WriteSeen(NamedTuple):
    """A write of topodns, as an API server saw it."""

    moment: float
    verb: str
    resource: str
    key: str
    status: int


class Member(NamedTuple):
    """A control plane as topodns may use it: with a kubeconfig of its own, and an audit log of its writes."""

    plane: ControlPlane
    kubeconfig: Path
    audit: Path
    rights: str

    def writes(self) -> list[WriteSeen]:
        """Return what topodns has written so far, without Leases and Events, and refused or not."""
        lines = self.audit.read_text().splitlines() if self.audit.exists() else []
        return [write for write in map(_write_of, lines) if write.resource != "events"]

    def allow(self, *, but: str = "") -> None:
        """Give topodns the rights that the manifests give it, all *but* those about one resource."""
        made = copy.deepcopy([*kustomize.objects_of(self.rights)])
        for item in made:
            for rule in item.get("rules", ()):
                rule["resources"] = [resource for resource in rule["resources"] if resource != but]
            if item["kind"].endswith("Binding"):
                item["subjects"] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))

    def find(self, item: Item) -> Item | None:
        """Return what stands there under the kind and name of an object, None if nothing does."""
        try:
            found: Item = self.plane.api.request("GET", self.plane.api.path_of(item))
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found | {"kind": item["kind"]}


def _write_of(line: str) -> WriteSeen:
    told = json.loads(line)
    about = told["objectRef"]
    moment = datetime.fromisoformat(told["requestReceivedTimestamp"]).timestamp()
    key = "/".join(part for part in (about.get("namespace"), about.get("name"), about.get("subresource")) if part)
    return WriteSeen(moment, told["verb"], about["resource"], key, told["responseStatus"]["code"])


def busiest_second(writes: Iterable[WriteSeen]) -> int:
    """Return the most of the writes to one API server that it saw in any second."""
    moments = [write.moment for write in writes]
    return max(sum(start <= moment < start + 1 for moment in moments) for start in moments)


def config_map(name: str, where: str, /, **data: str) -> Item:
    """Return a ConfigMap; without *data*, it has some."""
    return api_objects.item("ConfigMap", name, where, data=data or {"a": "b"})


def workload(where: str, replicas: int, /, name: str = "web", kind: str = "Deployment", **annotations: str) -> Item:
    """Return a workload in the namespace *where*, with annotations ``topodns.io/...``; ``_`` stands for ``-``."""
    made = deployment(name, where=where, labels={"app": name}, replicas=replicas) | {"kind": kind}
    made["metadata"]["annotations"] = topodns_annotations(annotations)
    if kind == "ReplicationController":
        made["apiVersion"], made["spec"]["selector"] = "v1", {"app": name}
    return made


class Federation:
    """The federation API, and its clusters by name; tests start and end the controllers."""

    def __init__(self, api: Member, clusters: Mapping[str, Member], kubelets: Mapping[str, Kubelet]) -> None:
        self.api, self.clusters = api, clusters
        self._kubelets = kubelets
        self._controllers: list[tuple[tuple[str, ...], Federating]] = []

    # Controllers

    def arguments(self, *more: str, without: str = "") -> list[str]:
        """Return the flags of a controller that distributes to all clusters, or all but one."""
        clusters = [f"--cluster={name}={it.kubeconfig}" for name, it in self.clusters.items() if name != without]
        return [f"--federate={ZONE}={self.api.kubeconfig}", f"--kubeconfig={self.api.kubeconfig}", *clusters, *more]

    def controller(self, *more: str, without: str = "") -> Federating:
        """Return the one controller with these flags that leads; all others end."""
        given = tuple(self.arguments(*more, without=without))
        for flags, running in list(self._controllers):
            if flags != given or running.process.poll() is not None:
                self._controllers.remove((flags, running))
                running.end()
        return self._controllers[0][1] if self._controllers else self.further(*given).until_leading()

    def further(self, *flags: str) -> Federating:
        """Return one more controller, with all *flags*, or the usual ones."""
        given = flags or tuple(self.arguments())
        started = Federating(given)
        self._controllers.append((given, started))
        return started

    def end_controllers(self) -> None:
        for _, running in self._controllers:
            running.end()
        self._controllers.clear()

    # Objects

    def apply(self, *items: Item, server_side: bool = False) -> None:
        """Write objects, and their namespaces, by ``kubectl apply``, as users do."""
        spaces = dict.fromkeys(item["metadata"]["namespace"] for item in items)
        text = listed([*map(namespace, spaces), *items])
        self.api.plane.kubectl("apply", *(["--server-side"] if server_side else []), "-f", "-", stdin=text)

    def annotate(self, item: Item, **annotations: str | None) -> None:
        """Change annotations ``topodns.io/...`` of an object; ``_`` stands for ``-``."""
        self.api.plane.api.patch(item, {"metadata": {"annotations": topodns_annotations(annotations)}})

    def change(self, item: Item, **fields: Any) -> None:
        """Merge *fields* into the ``spec`` of an object."""
        self.api.plane.api.patch(item, {"spec": fields})

    def delete(self, *items: Item) -> None:
        """Ask for the end of objects, as ``kubectl delete --wait=false`` does."""
        for item in items:
            self.api.plane.api.delete(item)

    def copies(self, item: Item) -> dict[str, Item | None]:
        """Return what each cluster has under the name of an object."""
        return {name: cluster.find(item) for name, cluster in self.clusters.items()}

    def replicas(self, item: Item) -> dict[str, int | None]:
        """Return how many replicas each cluster is to run, None where there is no copy."""
        return {name: None if copy is None else copy["spec"]["replicas"] for name, copy in self.copies(item).items()}

    def status(self, item: Item) -> dict[str, dict[str, Any]]:
        """Return what the annotation ``federation-status`` says; empty without."""
        found = self.api.find(item)
        text = (found or {"metadata": {}})["metadata"].get("annotations", {}).get(STATUS, "{}")
        return dict(json.loads(text))

    def states(self, item: Item) -> dict[str, str]:
        """Return the state of an object in each cluster."""
        return {name: told["state"] for name, told in self.status(item).items()}

    def reasons(self, item: Item) -> Counter[tuple[str, str]]:
        """Return type and reason of the Events at an object of the federation API."""
        return Counter((event["type"], event["reason"]) for event in self.events(item))

    def events(self, item: Item, reason: str = "") -> list[Item]:
        """Return the Events at an object of the federation API, or those with a reason."""
        metadata = item["metadata"]
        return [
            event
            for event in self.api.plane.api.items("Event", metadata["namespace"])
            if event["involvedObject"]["name"] == metadata["name"]
            and event["involvedObject"]["kind"] == item["kind"]
            and reason in ("", event["reason"])
        ]

    def run_pods(self, where: str, *names: str) -> None:
        """Let the kubelets of all clusters, or of some, look after the pods of a namespace."""
        for name in names or self.clusters:
            self._kubelets[name].look_after(where)

    # Waiting

    def until_synced(self, *items: Item, clusters: Sequence[str] | None = None, within: float = PATIENCE) -> None:
        """Wait until each object has a copy in these clusters, or all, and its status says so."""
        wanted = dict.fromkeys(self.clusters if clusters is None else clusters, "synced")
        for item in items:
            until(
                lambda item=item: self.states(item) == wanted, lambda item=item: f"{self.status(item)}", within=within
            )

    def until_states(self, item: Item, **expected: str) -> None:
        """Wait until these clusters have the *expected* states."""
        until(
            lambda: self.states(item).items() >= expected.items(),
            lambda: f"{expected}, not {self.status(item)}",
            within=WITHIN,
        )

    def until_event(self, item: Item, reason: str) -> Item:
        """Wait until there is one Event with a reason at an object of the federation API, and return it."""
        (event,) = until(lambda: self.events(item, reason), lambda: f"{reason} among {self.events(item)}")
        return dict(event)

    def until_replicas(self, item: Item, within: float = PATIENCE, **expected: int | None) -> None:
        """Wait until the clusters are to run as many replicas as *expected*."""
        until(lambda: self.replicas(item) == expected, lambda: f"{expected}, not {self.replicas(item)}", within=within)

    def until_gone(self, *items: Item, within: float = PATIENCE) -> None:
        """Wait until objects exist neither in the federation API nor in any cluster."""
        for item in items:
            until(
                lambda item=item: not self.api.find(item) and not any(self.copies(item).values()),
                lambda item=item: f"{item['metadata']['name']} gone from {self.copies(item)}",
                within=within,
            )

    def until_quiet(self) -> None:
        """Wait until topodns has written nothing anywhere for a time in which it would have looked again."""
        last = self.write_counts()
        quiet = 0

        def holds() -> bool:
            nonlocal last, quiet
            now = self.write_counts()
            quiet, last = (quiet + 1 if now == last else 0), now
            return quiet == 60

        until(holds, lambda: f"no more writes: {last}", within=WITHIN)

    def write_counts(self) -> dict[str, int]:
        """Return how often topodns has written to each API."""
        return {name: len(member.writes()) for name, member in {"": self.api, **self.clusters}.items()}


@contextmanager
def running_federation(
    folder: Path, names: Sequence[str] = NAMES, *, controllers: str = "", policy: str = AUDIT_POLICY
) -> Iterator[Federation]:
    """Run a federation with these clusters until the block ends; all start at once, and topodns does not run yet.

    *controllers* are the names of those that run for the federation API, *policy* says what stands in the audit logs.
    """
    with ExitStack() as stack, ThreadPoolExecutor(len(names) + 1) as starting:
        api = starting.submit(_start, stack, folder / "federation-api", API_RIGHTS, controllers, policy)
        started = {name: starting.submit(_start, stack, folder / name, CLUSTER_RIGHTS, ALL, policy) for name in names}
        members = {name: future.result() for name, future in started.items()}
        kubelets = {name: _kubelet(member, at) for at, (name, member) in enumerate(members.items(), 1)}
        federation = Federation(api.result(), members, kubelets)
        stack.callback(federation.end_controllers)
        yield federation


def _start(stack: ExitStack, folder: Path, rights: str, controllers: str, policy: str) -> Member:
    folder.mkdir(parents=True)
    audited, audit = folder / "audit.yaml", folder / "audit.log"
    audited.write_text(policy)
    flags = (f"--audit-policy-file={audited}", f"--audit-log-path={audit}")
    plane = stack.enter_context(
        running_control_plane(folder, *flags, tokens=f"{TOKEN},{USER},2\n", controllers=controllers)
    )
    kubeconfig = plane.kubeconfig_with(folder / "topodns.kubeconfig", token=TOKEN)
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = "kube-system"  # of the Lease; objects there are not distributed
    kubeconfig.write_text(yaml.safe_dump(config))
    member = Member(plane, kubeconfig, audit, rights)
    member.allow()
    return member


def _kubelet(member: Member, number: int) -> Kubelet:
    host = node("node-1", {}, cidrs=[f"10.{70 + number}.0.0/16"])
    member.plane.api.create(host)
    return Kubelet(member.plane.api, [host], {})
