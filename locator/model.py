"""Frozen records of the Kubernetes objects that can change an answer.

A record holds what an answer can depend on and nothing else, so that two records compare
equal exactly when no client could tell them apart: a heartbeat is invisible here.
Addresses are packed bytes, 4 or 16 of them, IPv4-mapped IPv6 already turned into IPv4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from locator.ip import Network
from locator.labels import Selector

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"

# Kubernetes 1.17 renamed these labels; both spellings still occur, sometimes on one node.
SUCCESSORS = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}

MAX_NAME = 253  # characters of a domain name without its final dot (RFC 1035, section 3.1)

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)  # the gravest first


_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def is_dns_label(text: str) -> bool:
    """Whether *text* can be a host's label: at most 63 small letters, digits and hyphens (RFC 1123, section 2.1)."""
    return _DNS_LABEL.fullmatch(text) is not None


class Location(Struct, frozen=True, eq=False):
    """Where an address is: a node and its labels, or only some labels.

    ``known`` is false for a client that could not be located. Two locations are equal only if they
    are the same object, so that what is worked out for one can be remembered by it.
    """

    node: str | None
    labels: dict[str, str]
    known: bool = True

    def value(self, key: str) -> str | None:
        """Return the value of a topology key here, under either of its names, or None."""
        return self.labels.get(SUCCESSORS.get(key, key))


UNKNOWN = Location(None, {}, known=False)


def canonical_labels(labels: dict[str, str], *, node: str | None = None) -> dict[str, str]:
    """Return *labels* under their present names; *node* stands in for a missing hostname label."""
    present = {key: value for key, value in labels.items() if key not in SUCCESSORS}
    for old, new in SUCCESSORS.items():
        if old in labels:
            present.setdefault(new, labels[old])
    if node is not None:
        present.setdefault(HOSTNAME, node)
    return present


class Namespace(Struct, frozen=True):
    """A namespace: its name, and its labels, by which it may be selected."""

    name: str
    labels: dict[str, str] = {}

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return self.name


class Node(Struct, frozen=True):
    """A node: its labels (canonical), its own addresses, and the blocks its pods live in."""

    name: str
    labels: dict[str, str]
    addresses: tuple[bytes, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return self.name


class Pod(Struct, frozen=True, gc=False):
    """A pod as a client: who holds which address, where, since when (RFC 3339 text)."""

    namespace: str
    name: str
    addresses: tuple[bytes, ...] = ()
    node: str | None = None
    host_network: bool = False
    finished: bool = False
    created: str = ""

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"


class PodLocator(Struct, frozen=True):
    """Where a pod's addresses are, by KEP-536: those of its node's labels (canonical) that are told."""

    namespace: str
    name: str
    addresses: tuple[bytes, ...] = ()
    node: str | None = None
    labels: dict[str, str] = {}

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"


class Port(Struct, frozen=True, gc=False):
    """A port of a Service or of an endpoint; ``name`` is empty for an unnamed one, ``protocol`` in lower case."""

    name: str
    number: int
    protocol: str = "tcp"


class Service(Struct, frozen=True):
    """A Service: what it is called, how it is reached, what it asks for, and its labels.

    ``alias`` is the name that an ExternalName Service stands for, in lower case and without a
    final dot, None for other Services; one that stands for no name has an empty one.
    ``publishes_unready`` says that addresses which are not ready are published, too, so that
    those behind it find each other.
    """

    namespace: str
    name: str
    headless: bool = False
    cluster_ips: tuple[bytes, ...] = ()
    ports: tuple[Port, ...] = ()
    external_traffic_policy: str = ""
    topology_keys: tuple[str, ...] | None = None
    alias: str | None = None
    publishes_unready: bool = False
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    """Only those of our own prefix."""

    @property
    def virtual(self) -> bool:
        """Whether it is reached by an address of its own, which leads to the endpoints."""
        return not self.headless and self.alias is None

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"


class ServicePolicy(Struct, frozen=True):
    """What is asked for all Services of a namespace that are selected by their labels.

    ``topology_key`` and ``mode`` stand as they were written, valid or not; ``created`` is RFC 3339 text.
    """

    namespace: str
    name: str
    created: str
    selector: Selector
    topology_key: str
    mode: str

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"


class Endpoint(Struct, frozen=True):
    """One endpoint: a pod, or whatever else stands behind a Service.

    ``word`` holds the labels that the slice itself states for the endpoint (its zone, or the
    topology map of older APIs); they count only where the node is not known.
    """

    addresses: tuple[bytes, ...]
    ports: tuple[Port, ...] = ()
    hostname: str | None = None
    node: str | None = None
    word: dict[str, str] = {}
    ready: bool = True
    pod: str | None = None


class EndpointSlice(Struct, frozen=True):
    """A slice of a Service's endpoints. ``service`` is None where no label names one."""

    namespace: str
    name: str
    service: str | None
    endpoints: tuple[Endpoint, ...] = ()

    @property
    def key(self) -> str:
        """What tells this object from others of its kind."""
        return f"{self.namespace}/{self.name}"

    @property
    def service_key(self) -> str | None:
        """The key of the Service that the slice belongs to."""
        return None if self.service is None else f"{self.namespace}/{self.service}"


Object = Namespace | Node | Pod | PodLocator | Service | ServicePolicy | EndpointSlice

KINDS: tuple[type[Object], ...] = (Namespace, Node, Pod, PodLocator, Service, ServicePolicy, EndpointSlice)


def by_kind(objects: Iterable[Object]) -> dict[type[Object], list[Object]]:
    """Return *objects* by their kind, an empty list for a kind of which there are none."""
    rows: dict[type[Object], list[Object]] = {kind: [] for kind in KINDS}
    for each in objects:
        rows[type(each)].append(each)
    return rows


class Finding(Struct, frozen=True, gc=False):
    """Something wrong in a cluster, a dump or a Corefile, in the words of ``check``.

    ``code`` names the cause and never changes; the other words may, and nothing reads them.
    ``file`` is where the object stood, if it came from a file, and ``line`` its line there, if it is known.
    """

    code: str
    severity: str
    kind: str
    namespace: str
    name: str
    field: str
    message: str
    expected: str = ""
    line: int | None = None
    file: str = ""

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        key = f"{self.namespace}/{self.name}" if self.namespace else self.name
        what = f"{self.message}, expected {self.expected}" if self.expected else self.message
        where = (self.file, line, f"{self.kind} {key}".strip(), self.field)
        return f"{': '.join(part for part in (*where, what) if part)} [{self.code}]"


class Health(NamedTuple):
    """Whether something is well enough to answer, and what there is to say of it."""

    ok: bool
    text: str = "ok"
