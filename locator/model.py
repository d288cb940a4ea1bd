# SPDX-License-Identifier: Apache-2.0

"""Frozen records of the Kubernetes objects that can change an answer.

A record holds only what an answer can depend on. If a change to an object, such as a node's heartbeat, cannot change
an answer, the records before and after it are equal.
Addresses are 4 or 16 packed bytes; an IPv4-mapped IPv6 address is stored as IPv4.
The ``key`` of a record identifies the object among all objects of its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from locator.endpoints import Endpoint as Endpoint
from locator.endpoints import Hints as Hints
from locator.endpoints import Port as Port
from locator.endpoints import SliceEndpoints
from locator.ip import Network
from locator.labels import Selector
from locator.labels import is_dns_label as is_dns_label
from locator.printable import cut

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"  # on a slice: which controller keeps it
SLICE_CONTROLLER = "endpointslice-controller.k8s.io"  # Kubernetes' own, for Services with a selector
MIRRORING_CONTROLLER = "endpointslicemirroring-controller.k8s.io"  # for Endpoints of Services without one
IMPORTED = "multicluster.kubernetes.io/service-name"  # on a slice: the ServiceImport that it belongs to (KEP-1645)
SOURCE_CLUSTER = "multicluster.kubernetes.io/source-cluster"  # on such a slice: the cluster of its endpoints
CLUSTER = "topodns.io/cluster"  # what a cluster is called among several; topodns adds it to the labels of each Node

OWN = ""  # stands for the own cluster, whatever it is called, where others have their names
OWN_CLUSTER = "local"  # what the own cluster is called unless --cluster-name says otherwise

# Kubernetes 1.17 renamed these labels. Both names are still in use, sometimes on one node.
SUCCESSORS = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}

ENDPOINTS = "Endpoints"  # the older kind, with all endpoints of a Service in one object

NODE_NAME = ""  # stands for a node's name where label keys are listed; no label key is empty
NODE_SLOT = "#slot"  # likewise for its slot; no label key has this sign

MAX_NAME = 253  # characters of a domain name without its final dot (RFC 1035, section 3.1)

RUNNING = "Running"  # a phase of pods
FINISHED = ("Succeeded", "Failed")  # likewise: a pod in these never runs again

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)  # most severe first


class Location(Struct, frozen=True, eq=False, weakref=True):
    """Where an address is: a node and its labels, or only some labels.

    ``known`` is false for a client that could not be located. Locations compare by identity, so that a reader can
    use a location as the key of a cache, and by weak reference forget those that are gone.
    ``slot`` is that of the node's name (``locator.topology.balance``) if the labels are those of a node of the own
    cluster that is known, and perhaps of a subnet, None otherwise.
    """

    node: str | None
    labels: dict[str, str]
    known: bool = True
    slot: int | None = None

    @property
    def cluster(self) -> str:
        """The name of the cluster, empty if it is not known."""
        return self.labels.get(CLUSTER, "")

    def value(self, key: str) -> str | None:
        """Return the value of a topology key, given by its current or its old name, or None."""
        return self.labels.get(SUCCESSORS.get(key, key))

    def client_value(self, key: str) -> Any:
        """Return what a constraint compares: a label by its current name, or the node for NODE_NAME and NODE_SLOT."""
        if key == NODE_SLOT:
            return self.slot
        return self.node if key == NODE_NAME else self.labels.get(key)


UNKNOWN_LOCATION = Location(None, {}, known=False)


def canonical_labels(labels: dict[str, str], *, node: str | None = None) -> dict[str, str]:
    """Return *labels* under their current names; *node* is the hostname label if there is none.

    A label whose value is empty is no label: Kubernetes takes an empty zone as no zone, too.
    """
    present = {key: value for key, value in labels.items() if value and key not in SUCCESSORS}
    for old, new in SUCCESSORS.items():
        if labels.get(old):
            present.setdefault(new, labels[old])
    if node is not None:
        present.setdefault(HOSTNAME, node)
    return present


def in_cluster(labels: dict[str, str], cluster: str) -> dict[str, str]:
    """Return *labels* of an object in the *cluster* of that name, with the label that says so."""
    return {**labels, CLUSTER: cluster}


def in_two_clusters(one: Location, other: Location) -> bool:
    """Whether two locations are known to be in different clusters, so that nodes of one name are two."""
    clusters = one.labels.get(CLUSTER), other.labels.get(CLUSTER)
    return None not in clusters and clusters[0] != clusters[1]


def object_key(namespace: str, name: str) -> str:
    """Return ``namespace/name``, or the name alone of an object that is in no namespace."""
    return f"{namespace}/{name}" if namespace else name


class Namespaced(Struct, frozen=True):
    """What all objects in a namespace have in common."""

    namespace: str
    name: str

    @property
    def key(self) -> str:
        """The object's ``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Namespace(Struct, frozen=True):
    """A namespace and its labels, which ``--namespace-selector`` can match."""

    name: str
    labels: dict[str, str] = {}

    @property
    def key(self) -> str:
        """The object's name."""
        return self.name


class Node(Struct, frozen=True, gc=False):
    """A node: its labels (canonical), its own addresses, and its pod CIDRs."""

    name: str
    labels: dict[str, str]
    addresses: tuple[bytes, ...] = ()
    pod_cidrs: tuple[Network, ...] = ()

    @property
    def key(self) -> str:
        """The object's name."""
        return self.name


class Pod(Namespaced, frozen=True, gc=False, array_like=True):
    """A pod as a client: its addresses, its node, its phase, and when it was created (RFC 3339 text).

    ``owner`` is the controller that keeps it, as ``ReplicaSet/web-5d8``, "" if none does.
    """

    addresses: tuple[bytes, ...] = ()
    node: str | None = None
    host_network: bool = False
    phase: str = RUNNING
    created: str = ""
    owner: str = ""

    @property
    def finished(self) -> bool:
        """Whether its addresses are free for other pods."""
        return self.phase in FINISHED

    @property
    def asks(self) -> bool:
        """Whether it can be a client now: it is running, and has an address."""
        return self.phase == RUNNING and bool(self.addresses)


class ClientPod(Pod, frozen=True, gc=False, array_like=True):
    """A pod, and what tells whether it is one of the clients that somebody means.

    ``labels`` are those that the reader asked for.
    """

    labels: dict[str, str] = {}


def labels_of(pod: Pod | PodLocator) -> dict[str, str]:
    """Return the labels of a pod, as far as they were read; a PodLocator has none of them."""
    return pod.labels if isinstance(pod, ClientPod) else {}


class PodLocator(Namespaced, frozen=True):
    """A pod's addresses, its node, and some of that node's labels (canonical), as KEP-536 defines the kind."""

    addresses: tuple[bytes, ...] = ()
    node: str | None = None
    labels: dict[str, str] = {}


class Service(Namespaced, frozen=True, gc=False):
    """A Service.

    ``alias`` is the target of an ExternalName Service, in lower case without a final dot: empty if the target is not
    a domain name, None for every other type of Service.
    ``publishes_unready`` is ``spec.publishNotReadyAddresses``: peers find each other before they are ready.
    ``topology_keys`` is None if ``spec.topologyKeys`` is absent. ``annotations`` holds only
    ``topodns.io/...`` and those of Kubernetes that a constraint is read from.
    ``selects_pods``: Kubernetes' own controller keeps its EndpointSlices, by the Service's selector.
    ``created`` is RFC 3339 text. ``ingress`` has the addresses and host names (in lower case) of its load balancer.
    ``health_check_port`` is ``spec.healthCheckNodePort``, 0 if there is none.
    """

    headless: bool = False
    cluster_ips: tuple[bytes, ...] = ()
    ports: tuple[Port, ...] = ()
    external_traffic_policy: str = ""
    topology_keys: tuple[str, ...] | None = None
    traffic_distribution: str = ""
    created: str = ""
    ingress: tuple[str, ...] = ()
    health_check_port: int = 0
    alias: str | None = None
    publishes_unready: bool = False
    selects_pods: bool = False
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    @property
    def virtual(self) -> bool:
        """Whether clients reach the endpoints through a cluster IP, even one that is not allocated yet."""
        return not self.headless and self.alias is None


class ServicePolicy(Namespaced, frozen=True):
    """A constraint on all Services of a namespace whose labels ``selector`` matches.

    ``topology_key`` and ``mode`` may be invalid: they hold what the user wrote, but a mode by its alias is the mode
    itself. A policy whose ``topology_key`` is None says nothing. ``created`` is RFC 3339 text.
    """

    created: str
    selector: Selector
    topology_key: str | None
    mode: str


class ServiceExport(Namespaced, frozen=True):
    """Says that the Service of its name is for all clusters (KEP-1645)."""


class ServiceImport(Namespaced, frozen=True):
    """A multi-cluster Service, as one cluster's controller has imported it (KEP-1645).

    The fields are as in ``Service``, and ``as_service`` hands them on; ``cluster_ips`` are the ``ips`` of a
    ServiceImport of type ClusterSetIP. ``clusters`` are the clusters that its status lists, in lower case; empty if it
    lists none.
    """

    headless: bool = False
    cluster_ips: tuple[bytes, ...] = ()
    ports: tuple[Port, ...] = ()
    traffic_distribution: str = ""
    annotations: dict[str, str] = {}
    clusters: tuple[str, ...] = ()

    def as_service(self) -> Service:
        """Return the multi-cluster Service as if it were a Service of one cluster."""
        return Service(
            self.namespace,
            self.name,
            headless=self.headless,
            cluster_ips=self.cluster_ips,
            ports=self.ports,
            traffic_distribution=self.traffic_distribution,
            annotations=self.annotations,
        )


class EndpointSlice(Namespaced, frozen=True, gc=False):
    """A slice of a Service's endpoints. ``service`` is the Service's name, None if no label states it.

    ``imported_service`` is likewise that of a ServiceImport.

    ``kind`` is the kind of the object that it was read from: EndpointSlice, or in a dump also Endpoints.
    ``managed_by`` is the controller that keeps it, as its label says; that of Endpoints is Kubernetes' own.
    ``deleting``: it has been deleted, and stays until somebody removes its finalizers.
    """

    service: str | None
    endpoints: SliceEndpoints = SliceEndpoints()
    kind: str = "EndpointSlice"
    imported_service: str | None = None
    managed_by: str = ""
    deleting: bool = False

    @property
    def key(self) -> str:
        """The object's ``namespace/name``, marked if it is an Endpoints object: a slice may have the same name."""
        own = f"{self.namespace}/{self.name}"
        return f"{own} ({ENDPOINTS})" if self.kind == ENDPOINTS else own

    @property
    def managed(self) -> bool:
        """Whether Kubernetes' own EndpointSlice controller keeps the slice. It keeps none that has been deleted."""
        return self.managed_by == SLICE_CONTROLLER and not self.deleting

    @property
    def mirrored(self) -> bool:
        """Whether the EndpointSliceMirroring controller keeps the slice."""
        return self.managed_by == MIRRORING_CONTROLLER

    @property
    def service_key(self) -> str | None:
        """The key of the Service that the slice belongs to."""
        return None if self.service is None else f"{self.namespace}/{self.service}"

    @property
    def import_key(self) -> str | None:
        """The key of the ServiceImport that the slice belongs to."""
        return None if self.imported_service is None else f"{self.namespace}/{self.imported_service}"


class HealthEntry(Struct, frozen=True):
    """What one prober says of one address: the text of an IP address, or a host name in lower case.

    ``since`` (RFC 3339) is when ``healthy`` last changed. ``message`` says why the address is not healthy.
    """

    address: str
    healthy: bool
    since: str = ""
    message: str = ""


class ServiceHealth(Struct, frozen=True):
    """The votes of one cluster on the load balancers of one Service.

    ``cluster`` is the one whose prober writes it. ``service`` is the key of the Service. ``renewed`` is when the prober
    last wrote it, as it stands there (RFC 3339).
    """

    name: str
    service: str
    entries: tuple[HealthEntry, ...] = ()
    renewed: str = ""
    cluster: str = ""
    version: str = ""

    @property
    def key(self) -> str:
        """The object's name."""
        return self.name


Object = (
    Namespace
    | Node
    | Pod
    | PodLocator
    | Service
    | ServicePolicy
    | EndpointSlice
    | ServiceExport
    | ServiceImport
    | ServiceHealth
)

KINDS: tuple[type[Object], ...] = (
    *(Namespace, Node, Pod, PodLocator, Service, ServicePolicy, EndpointSlice),
    *(ServiceExport, ServiceImport, ServiceHealth),
)


def by_kind(objects: Iterable[Object]) -> dict[type[Object], list[Object]]:
    """Return *objects* by their kind, with an empty list for a kind without objects."""
    of_kind: dict[type[Object], list[Object]] = {kind: [] for kind in KINDS}
    for item in objects:
        of_kind[kind_of(item)].append(item)
    return of_kind


def kind_of(item: Object) -> type[Object]:
    """Return the kind of an object."""
    return Pod if isinstance(item, ClientPod) else type(item)


def listed(texts: Sequence[str], most: int) -> str:
    """Return at most some of the texts, and how many are left out: ``a, b and 3 more``."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def and_more(number: int, where: str = "") -> str:
    """Return how many there are besides the one that a text names, of a *number* in all: `` (and 3 more)``."""
    return f" (and {number - 1} more{where})" if number > 1 else ""


class Finding(Struct, frozen=True, gc=False):
    """A problem in a cluster, a dump or a Corefile, as ``topodns check`` reports it.

    ``code`` names the cause and is stable. The texts may change, and no program parses them; they are printable, and
    cut. The names are as somebody wrote them.
    ``file`` is the file that holds the object, empty for a live cluster. ``line`` is None if it is not known.
    ``cluster`` is the name of another cluster that holds it, empty for the own one.
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
    cluster: str = ""

    def in_cluster(self, cluster: str) -> Finding:
        """Return the same finding about an object in another cluster; empty for the own one."""
        return replace(self, cluster=cluster)

    def fields(self) -> dict[str, str | int]:
        """Return what it is about, by name: all that is not empty, but the texts and the severity."""
        texts = ("severity", "message", "expected")
        return {name: value for name, value in asdict(self).items() if name not in texts and value not in ("", None)}

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        key = object_key(self.namespace, self.name)
        cluster = self.cluster and f"cluster {self.cluster}"
        where = (cluster, self.file, line, f"{self.kind} {key}".strip(), self.field)
        message = f"{self.message}, expected {self.expected}" if self.expected else self.message
        return f"{': '.join([*map(cut, filter(None, where)), message])} [{self.code}]"


class Health(NamedTuple):
    """One line of ``/readyz?verbose``: whether this part of topodns is healthy, and why.

    ``problem`` is what is wrong although it is: topodns goes on with what it knew before.
    """

    ok: bool
    text: str = "ok"
    problem: str = ""
