# SPDX-License-Identifier: Apache-2.0

"""What ``topodns doctor`` has read, before it concludes anything: values alone.

Whatever could not be read is ``Unread``, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from dnsserver.answers.decision import Authority
from dnsserver.metrics.reading import Samples
from dnsserver.settings.fields import Settings
from dnsserver.tools.doctor.objects import ConfigMap, Crd, Deployment, PlainService, ReplicaPod
from dnsserver.tools.doctor.steps import Unread
from locator.model import Finding, Node, Pod, Service
from locator.state.snapshot import Snapshot


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
    deployment: Deployment | Unread | None
    service: PlainService | Unread | None
    pods: Sequence[ReplicaPod] | Unread
    settings: Settings
    settings_error: str
    settings_known: bool
    rights: Mapping[Right, bool] | Unread
    crds: Mapping[str, Crd | Unread | None]
    others: Sequence[Deployment] = ()
    pods_unread: Unread | None = None


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

    pod: ReplicaPod
    checks: Mapping[str, tuple[bool, str]] | Unread
    before: Samples | Unread
    after: Samples | Unread

    @property
    def name(self) -> str:
        """The name of its pod."""
        return self.pod.metadata.name or ""


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

    ``version`` is that of this program, ``flags`` those of kubectl and topodns that lead to this cluster. If the API
    server cannot be reached, ``unreachable`` says why, and the rest is empty. ``troubles`` are the nodes that are not
    ready, with the reason. ``services`` are those of all namespaces, also of those that topodns does not serve.
    ``config_maps`` are those of the namespaces of DNS, by ``namespace/name``. ``forwarders`` are the addresses of the
    cluster's own DNS. ``own_addresses`` are those from which ``doctor`` asked.
    """

    version: str
    flags: str
    installed: Installed
    unreachable: str = ""
    nodes: Sequence[Node] | Unread = ()
    troubles: Mapping[str, str] | Unread = {}
    pods: Sequence[Pod] | Unread = ()
    services: Sequence[Service] | Unread = ()
    view: View | Unread = Unread("")
    config_maps: Mapping[str, ConfigMap] | Unread = {}
    forwarders: Sequence[NameServer] = ()
    replicas: Sequence[Replica] = ()
    replica_answers: Sequence[Comparison] | Unread = ()
    forwarder_answers: Sequence[Comparison] | Unread = ()
    own_addresses: frozenset[bytes] = frozenset()

    @property
    def kubectl(self) -> str:
        """The command that reaches this cluster."""
        return f"kubectl{self.flags}"
