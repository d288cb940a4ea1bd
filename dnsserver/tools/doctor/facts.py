# SPDX-License-Identifier: Apache-2.0

"""What ``topodns doctor`` has read, before it concludes anything: values alone.

Whatever could not be read is ``Unread``, with the reason. Objects are models of the official client that have metadata,
a spec and a status, as far as their kinds do. To import them takes seconds, and strict types would ask at each field
whether it is there: so their types are names only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from dnsserver.answers.decision import Authority
from dnsserver.metrics.reading import Samples
from dnsserver.settings.settings import Settings
from dnsserver.tools.doctor.steps import Unread, read_or
from locator.model import Finding, Node, Pod, Service
from locator.printable import filled
from locator.state.snapshot import Snapshot

V1ConfigMap: TypeAlias = Any
V1Container: TypeAlias = Any
V1CustomResourceDefinition: TypeAlias = Any
V1Deployment: TypeAlias = Any
V1Pod: TypeAlias = Any
V1Service: TypeAlias = Any


def container_of(deployment: V1Deployment) -> V1Container:
    """Return the container of topodns: that of this name, else the first one that runs ``serve``, else the first."""
    containers = deployment.spec.template.spec.containers
    named = [container for container in containers if container.name == "topodns"]
    serving = [container for container in containers if "serve" in words_of(container)]
    return [*named, *serving, *containers][0]


def words_of(container: V1Container) -> list[str]:
    """Return the command line of a container, as far as the image does not give it."""
    return [*(container.command or ()), *(container.args or ())]


def condition_of(item: Any, kind: str) -> Any:
    """Return a condition of an object, or None."""
    return next((condition for condition in item.status.conditions or () if condition.type == kind), None)


def is_ready(pod: V1Pod) -> bool:
    """Whether a pod gets queries."""
    ready = condition_of(pod, "Ready")
    return ready is not None and ready.status == "True"


def status_of(pod: V1Pod) -> str:
    """Return why a container of a pod waits, such as "CrashLoopBackOff", else the phase of the pod."""
    states = [status.state.waiting for status in pod.status.container_statuses or () if status.state is not None]
    waiting = next((state.reason for state in states if state is not None), None)
    return waiting or pod.status.phase or ""


class Right(NamedTuple):
    """A right that ``serve`` needs: an API group, a resource and a verb."""

    group: str
    resource: str
    verb: str


class Installed(Struct, frozen=True):
    """What of topodns is in the cluster.

    ``deployment`` and ``service`` are None if there is none. ``settings`` are those of the Deployment; if they are
    wrong, ``settings_error`` says why; if nobody could read them, they are the defaults, and not ``settings_known``.
    ``rights`` are those that ``serve`` needs with them, and whether it has each.
    ``crds`` are those that it reads, by name. ``others`` are the Deployments of its controller and its webhook. If the
    pods could not be listed, ``pods_unread`` says why, and ``pods`` are those that the Service's EndpointSlices name.
    """

    namespace: str
    deployment: V1Deployment | Unread | None
    service: V1Service | Unread | None
    pods: Sequence[V1Pod] | Unread
    settings: Settings
    settings_error: str
    settings_known: bool
    rights: Mapping[Right, bool] | Unread
    crds: Mapping[str, V1CustomResourceDefinition | Unread | None]
    others: Sequence[V1Deployment] = ()
    pods_unread: Unread | None = None

    @property
    def cluster_ips(self) -> list[str]:
        """The addresses of the Service, as far as they are known."""
        service = read_or(self.service, None)
        return [] if service is None else service.spec.cluster_ips or []


class View(Struct, frozen=True):
    """The cluster as topodns would see it now. ``authority`` says how it answers."""

    snapshot: Snapshot
    findings: Sequence[Finding]
    authority: Authority


class NameServer(Struct, frozen=True):
    """A replica, or a server of the cluster's own DNS: its pod or its address, where it answers, and on which node."""

    name: str
    address: bytes
    port: int
    node: str = ""


class Replica(Struct, frozen=True):
    """What a replica says of itself: its checks by name, each good or not, and its metrics before and after queries."""

    pod: V1Pod
    checks: Mapping[str, tuple[bool, str]] | Unread
    before: Samples | Unread
    after: Samples | Unread

    @property
    def name(self) -> str:
        """The name of its pod."""
        return str(self.pod.metadata.name)


class Question(Struct, frozen=True):
    """A query to compare with ``explain``: its name and type (A or AAAA), the client that it is for, and its zone.

    ``client`` is the address that ECS names, or empty: the place that asks is the client itself.
    """

    name: str
    qtype: str
    client: str
    zone: str


class Reply(Struct, frozen=True):
    """What came back. ``source`` is the address that asked, None if no route leads to the server.

    ``error`` is not empty if no reply came. ``cut``: there is more.
    """

    source: bytes | None = None
    rcode: str = ""
    addresses: frozenset[str] = frozenset()
    cut: bool = False
    error: str = ""


class Comparison(Struct, frozen=True):
    """A question that was asked of one server: a replica, or a forwarder. ``expected`` is what ``explain`` says.

    ``certain`` is false if nobody knows as which client the server sees the place that asks.
    """

    server: str
    transport: str
    question: Question
    reply: Reply
    expected: frozenset[str]
    expected_rcode: str
    certain: bool = True

    @property
    def right(self) -> bool:
        """Whether the reply is what ``explain`` says."""
        reply = self.reply
        if reply.error:
            return False
        same = reply.addresses <= self.expected if reply.cut else reply.addresses == self.expected
        return same and reply.rcode == self.expected_rcode


class Facts(Struct, frozen=True):
    """Everything that was read.

    ``version`` is that of this program, ``kubectl`` the command that reaches this cluster. If the API server cannot be
    reached, ``unreachable`` says why, and the rest is empty. ``troubles`` are the nodes that are not ready, with the
    reason. ``services`` are those of all namespaces, also of those that topodns does not serve. ``config_maps`` are
    those of the namespaces of DNS, by ``namespace/name``. ``forwarders`` are the addresses of the cluster's own DNS.
    ``own_addresses`` are those from which ``doctor`` asked.
    """

    version: str
    kubectl: str
    installed: Installed
    unreachable: str = ""
    nodes: Sequence[Node] | Unread = ()
    troubles: Mapping[str, str] | Unread = {}
    pods: Sequence[Pod] | Unread = ()
    services: Sequence[Service] | Unread = ()
    view: View | Unread = Unread("")
    config_maps: Mapping[str, V1ConfigMap] | Unread = {}
    forwarders: Sequence[NameServer] = ()
    replicas: Sequence[Replica] = ()
    replica_answers: Sequence[Comparison] | Unread = ()
    forwarder_answers: Sequence[Comparison] | Unread = ()
    own_addresses: frozenset[bytes] = frozenset()

    def command(self, template: str, **words: str) -> str:
        """Return a command of kubectl: *words* stand, quoted for a shell, for their names in *template*.

        Anybody may have created what is named there.
        """
        return f"{self.kubectl} {filled(template, words)}"

    def command_here(self, template: str, **words: str) -> str:
        """Return a command in the namespace of topodns, as ``command`` does."""
        return self.command(f"-n NAMESPACE {template}", NAMESPACE=self.installed.namespace, **words)
