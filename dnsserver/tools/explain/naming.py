# SPDX-License-Identifier: Apache-2.0

"""Finds what people name as kubectl does: svc/NAME and partial names; pod/NAME, node/NAME and labels as a client."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dnsserver.answers.decision import Authority, UpstreamAnswer
from dnsserver.answers.resolution import nothing_outside, resolve
from dnsserver.message.wire import NXDOMAIN, A
from dnsserver.names import SERVICE, labels_of, query_name_of
from dnsserver.settings.values import SERVICE_WORDS, ServiceName, parse_service
from dnsserver.spelling import listed, names_in, nearest_key, nearest_label, suggestion
from dnsserver.tools.explain.explain import Asker, explain
from dnsserver.tools.explain.explanation import Explanation
from locator.ip import Network, host_network, parse_client
from locator.labels import valid_label_key
from locator.model import (
    HOSTNAME,
    SUCCESSORS,
    UNKNOWN_LOCATION,
    Location,
    Node,
    Object,
    Pod,
    PodLocator,
    Service,
    canonical_labels,
    is_dns_label,
    object_key,
)
from locator.places.book import NODE, SUBNET, Place
from locator.state.snapshot import Snapshot, lacking

KIND_WORDS: dict[str, type[Object]] = {  # as kubectl takes them: singular, plural, short
    **dict.fromkeys(SERVICE_WORDS, Service),
    **dict.fromkeys(("pod", "pods", "po"), Pod),
    **dict.fromkeys(("node", "nodes", "no"), Node),
}
EXPECTED_NAME = "svc/NAME, NAMESPACE/NAME or a domain name such as SERVICE.NAMESPACE"
EXPECTED_TYPE = "a record type such as A, AAAA or SRV"
LONGEST = "a name of at most 253 characters"
EXPECTED_CLIENT = "an address, a prefix, pod/NAME, node/NAME or labels such as topology.kubernetes.io/zone=a"

Labels = tuple[bytes, ...]  # of a domain name, in lower case


NAME, CLIENT = "name", "client"  # what people are asked for


class UnknownName(Exception):
    """What somebody named does not exist, or has no address. ``argument`` is ``NAME`` or ``CLIENT``."""

    def __init__(self, argument: str, text: str) -> None:
        super().__init__(text)
        self.argument = argument


class ObjectReference(NamedTuple):
    """A Pod or a Node as people write it: ``pod/frontend-0``, or ``pod/shop/frontend-0``, which says the namespace."""

    kind: type[Object]
    name: str
    namespace: str | None = None


class LabelledClient(NamedTuple):
    """A client that is anywhere on nodes with these labels. ``labels`` are canonical, ``text`` is what was written."""

    text: str
    labels: Mapping[str, str]


class NameContext(NamedTuple):
    """Where names are looked up: a snapshot, the objects that it was made from by key, and the namespace of ``-n``.

    Objects that nobody names may be missing.
    """

    snapshot: Snapshot
    objects: Mapping[type[Object], Mapping[str, Any]]
    namespace: str

    def find(self, kind: type[Object], name: str, argument: str) -> Any:
        """Return an object of the namespace, or a Node. Raises UnknownName."""
        key = self.key_of(kind, name)
        by_key = self.objects.get(kind, {})
        if (found := by_key.get(key)) is not None:
            return found
        if why := lacking(self.snapshot, kind):
            raise UnknownName(argument, f"no {kind.__name__} {key}: {why}")
        hint = suggestion(name, by_key) if kind is Node else self._hint(name, by_key)
        raise UnknownName(argument, f"no {kind.__name__} {key}{hint}")

    def key_of(self, kind: type[Object], name: str) -> str:
        """Return the key of the object of this name in the namespace."""
        return name if kind is Node else object_key(self.namespace, name)

    def _hint(self, name: str, keys: Collection[str]) -> str:
        service, _, rest = name.partition(".")
        whole = f"{rest.partition('.')[0]}/{service}"  # of a domain name, such as memcached.shop
        closest = whole if rest and whole in keys else nearest_key(self.namespace, name, keys)
        if closest is None:
            there = names_in(self.namespace, keys)
            return listed(there) if there or not keys else "; -n names another namespace"
        namespace, _, other = closest.partition("/")
        if namespace == self.namespace:
            return f", did you mean {other}?"
        return f", did you mean {closest} (-n {namespace})?"


def parse_name(text: str) -> ServiceName | str:
    """Parse NAME: a Service as kubectl or a key names it, or a domain name, whole or partial. Raises ValueError.

    A domain name may have slashes, too, such as 0/25.2.0.192.in-addr.arpa (RFC 2317).
    """
    word, slash, rest = text.partition("/")
    if slash and is_dns_label(word.lower()) and (word.isalpha() or "." not in rest):
        if KIND_WORDS.get(word.lower(), Service) is not Service:
            raise ValueError(repr(text))
        return parse_service(text)
    if "://" in text:
        raise ValueError(f"{text!r} is a URL")
    labels_of(text)
    return text


def parse_asker(text: str) -> Network | ObjectReference | LabelledClient:
    """Parse ``--client``: an address or a prefix, a reference to a Pod or Node, or labels. Raises ValueError."""
    if "=" in text:
        pairs = [pair.strip().partition("=") for pair in text.split(",")]
        if not all(valid_label_key(key) and value and "=" not in value for key, _, value in pairs):
            raise ValueError(repr(text))
        return LabelledClient(text, canonical_labels({key: value for key, _, value in pairs}))
    word, slash, name = text.partition("/")
    if not slash or not word.isalpha():
        return parse_client(text)
    kind = KIND_WORDS.get(word.lower())
    namespace = None
    if kind is Pod and "/" in name:
        namespace, _, name = name.partition("/")
    if kind not in (Pod, Node) or not name or "/" in name or namespace == "":
        raise ValueError(repr(text))
    return ObjectReference(kind, name, namespace)


class Served(Mapping[str, Service]):
    """The Services of a snapshot, by their keys."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._compiled = snapshot.services

    def __getitem__(self, key: str) -> Service:
        return self._compiled[key].service

    def __iter__(self) -> Iterator[str]:
        return iter(self._compiled)

    def __len__(self) -> int:
        return len(self._compiled)


class Missing(Mapping[str, None]):
    """The keys of all objects of a kind, none of which is the one that somebody named."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __getitem__(self, key: str) -> None:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def explain_named(
    name: ServiceName | str,
    qtype: int,
    client: Network | ObjectReference | LabelledClient,
    known: NameContext,
    authority: Authority,
    *,
    candidates: bool,
    outside: Callable[[str], UpstreamAnswer | None] = nothing_outside,
) -> Explanation:
    """Return the answer to *name* for *client*, and why, as ``explain`` does. Raises UnknownName."""
    labels, asker = question_name(name, known, authority), asker_named(client, known)
    return explain(labels, qtype, asker, known.snapshot, authority, candidates=candidates, outside=outside)


def by_key(objects: Iterable[Object]) -> dict[str, Any]:
    """Return objects of one kind as ``NameContext`` has them."""
    return {found.key: found for found in objects}


def question_name(name: ServiceName | str, known: NameContext, authority: Authority) -> Labels:
    """Return the labels of the name, completed as a resolver in a pod of the namespace would. Raises UnknownName."""
    zone = next(zone.name for zone in authority.zones if not zone.reverse)
    if isinstance(name, ServiceName):
        where = known if name.namespace is None else known._replace(namespace=name.namespace)
        service = where.find(Service, name.name, NAME)
        try:
            return labels_of(f"{service.name}.{service.namespace}.svc.{zone}")
        except ValueError as error:
            raise UnknownName(NAME, f"{error}, expected {LONGEST}") from None
    labels = labels_of(name)
    if name.endswith(".") or query_name_of(labels, authority.zones) is not None:
        return labels
    domains = (f"{known.namespace}.svc.{zone}", f"svc.{zone}", zone)  # as the kubelet writes into resolv.conf
    try:
        longer = [labels + labels_of(domain) for domain in domains if labels_of(f"{name}.{domain}")]
    except ValueError:  # longer than a name can be
        return labels
    found = [labels for labels in longer if _exists(labels, known.snapshot, authority)]
    return found[0] if found else _likeliest(labels, longer, known.snapshot)


def _exists(labels: Labels, snapshot: Snapshot, authority: Authority) -> bool:
    """Whether a name in a zone exists, or would if its Service had a ready endpoint."""
    query_name = query_name_of(labels, authority.zones)
    if query_name is not None and query_name.name_type == SERVICE and query_name.service_key in snapshot.services:
        return True
    return resolve(query_name, A, snapshot, UNKNOWN_LOCATION, authority).rcode != NXDOMAIN


def _likeliest(labels: Labels, longer: Sequence[Labels], snapshot: Snapshot) -> Labels:
    """Return what a partial name that does not exist in any domain was meant to be; *labels* themselves if unclear."""
    in_namespace, in_cluster, in_zone = longer
    if len(labels) == 1:
        return in_namespace
    if labels[-1] in (b"svc", b"pod"):
        return in_zone
    service, namespace = (label.decode() for label in labels[-2:])
    known_service = len(labels) == 2 and any(key.endswith(f"/{service}") for key in snapshot.services)
    return in_cluster if namespace in snapshot.namespaces or known_service else labels


def asker_named(client: Network | ObjectReference | LabelledClient, known: NameContext) -> Network | Asker:
    """Return the client that *client* names: by its first address, or without one by its labels. Raises UnknownName."""
    if isinstance(client, Network):
        return client
    if isinstance(client, LabelledClient):
        hostname = client.labels.get(HOSTNAME)
        nodes = (node.name for node in known.objects.get(Node, {}).values() if node.labels[HOSTNAME] == hostname)
        return Asker(client.text, Place(Location(next(nodes, None), dict(client.labels)), SUBNET), "--client")
    if client.namespace is not None:
        known = known._replace(namespace=client.namespace)
    pods, locators = known.objects.get(Pod), known.objects.get(PodLocator)
    if client.kind is Pod and locators and not pods:  # a dump without Pods
        addresses = known.find(PodLocator, client.name, CLIENT).addresses
    else:
        found = known.find(client.kind, client.name, CLIENT)
        if isinstance(found, Pod) and found.finished:
            raise UnknownName(CLIENT, f"Pod {found.key} has finished, expected one that has an address")
        addresses = found.addresses
        if isinstance(found, Node) and not addresses:
            return Asker(f"node/{found.name}", Place(Location(found.name, found.labels), NODE), f"node {found.name}")
    if not addresses:
        raise UnknownName(CLIENT, f"Pod {known.namespace}/{client.name} has no address yet, expected one that has")
    return host_network(addresses[0])


def topology_hints(topology: LabelledClient, keys: Sequence[str], nodes: Sequence[Node]) -> Iterator[str]:
    """Yield what may be wrong with a client's labels: no node has them, or all that do share another one of *keys*."""
    given = topology.labels
    for key, value in given.items():
        values = {node.labels[key] for node in nodes if key in node.labels}
        known = {key for node in nodes for key in node.labels}
        if not values:
            yield f"no node has the label {key}{nearest_label(key, known)}"
        elif value not in values:
            yield f"no node has {key}={value}{suggestion(value, values)}"
    there = [node for node in nodes if given.items() <= node.labels.items()]
    for key in dict.fromkeys(SUCCESSORS.get(key, key) for key in keys):
        shared = {node.labels.get(key) for node in there}
        if key not in given and len(shared) == 1 and None not in shared:
            label = f"{key}={shared.pop()}"
            yield f"all nodes there have {label}, too; to ask for a client on one of them, add it with a comma"
