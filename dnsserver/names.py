# SPDX-License-Identifier: Apache-2.0

"""Parses query names by the Kubernetes DNS-based service discovery schema 1.1.0.

``NAME_TYPES`` is the whole schema as far as topodns serves it, one row for each type of name. Zones about multi-cluster
and about federated Services have tables of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from locator.ip import (
    Network,
    address_text,
    host_network,
    is_address,
    network_text,
    parse_address,
    parse_network,
    plain_network,
)
from locator.model import MAX_NAME, Endpoint, is_dns_label

APEX = "apex"
EMPTY_NON_TERMINAL = "empty non-terminal"  # one that exists in every zone
NAME_SERVER = "name server"
VERSION = "version"
POD_NAMESPACE = "pod namespace"
POD = "pod"
NAMESPACE = "namespace"
SERVICE = "service"
PROTOCOL = "protocol"
PORT = "port"
CLUSTER = "cluster"
ENDPOINT = "endpoint"
ZONAL = "zonal"
PINNED = "pinned"
PREFERRED = "preferred"
REVERSE = "reverse"
IMPOSSIBLE = "impossible"
FEDERATED_NAMESPACE = "federated namespace"
FEDERATED_SERVICE = "federated service"
FEDERATED_PROTOCOL = "federated protocol"
FEDERATED_PORT = "federated port"
FEDERATED_CLUSTER = "federated cluster"
FEDERATED_ENTRY = "federated entry"

# The types of an endpoint's own name: that of one whose slice names no cluster has the form of a cluster's.
ENDPOINTS_OWN = (ENDPOINT, CLUSTER)

# What the names in a zone are about; a reverse zone's are about addresses.
SERVICES, FEDERATION, MULTICLUSTER = "services", "federation", "multicluster"

# The types of names that every zone has, reverse zones included.
NAME_TYPES_OF_EVERY_ZONE = (
    ("", APEX),
    ("dns", EMPTY_NON_TERMINAL),
    ("ns.dns", NAME_SERVER),
    ("dns-version", VERSION),
    ("svc", EMPTY_NON_TERMINAL),
    ("pod", EMPTY_NON_TERMINAL),
)
# The part of a name before its zone -> its type. ``{x}`` matches one label without a leading underscore, ``_{x}`` one
# label with it, ``{x...}`` one or more labels of any kind; it may only come first. The first row that matches decides.
NAME_TYPES = (
    *NAME_TYPES_OF_EVERY_ZONE,
    ("{namespace}.pod", POD_NAMESPACE),
    ("{pod}.{namespace}.pod", POD),
    ("{namespace}.svc", NAMESPACE),
    ("{service}.{namespace}.svc", SERVICE),
    ("_zone.{service}.{namespace}.svc", ZONAL),
    ("pin._zone.{service}.{namespace}.svc", ZONAL),
    ("prefer._zone.{service}.{namespace}.svc", ZONAL),
    ("{value...}.pin._zone.{service}.{namespace}.svc", PINNED),
    ("{value...}.prefer._zone.{service}.{namespace}.svc", PREFERRED),
    ("_{protocol}.{service}.{namespace}.svc", PROTOCOL),
    ("_{port}._{protocol}.{service}.{namespace}.svc", PORT),
    ("{endpoint}.{service}.{namespace}.svc", ENDPOINT),
)
# Of multi-cluster Services (KEP-1645). There are no zonal names, and an endpoint's names its cluster.
MULTICLUSTER_NAME_TYPES = (
    *NAME_TYPES_OF_EVERY_ZONE,
    ("{namespace}.pod", POD_NAMESPACE),
    ("{pod}.{namespace}.pod", POD),
    ("{namespace}.svc", NAMESPACE),
    ("{service}.{namespace}.svc", SERVICE),
    ("_{protocol}.{service}.{namespace}.svc", PROTOCOL),
    ("_{port}._{protocol}.{service}.{namespace}.svc", PORT),
    ("{cluster}.{service}.{namespace}.svc", CLUSTER),
    ("{endpoint}.{cluster}.{service}.{namespace}.svc", ENDPOINT),
)
# Of federated Services. The name server comes first, whatever Services there are.
FEDERATION_NAME_TYPES = (
    ("", APEX),
    ("ns.dns", NAME_SERVER),
    ("dns", EMPTY_NON_TERMINAL),
    ("{namespace}", FEDERATED_NAMESPACE),
    ("{service}.{namespace}", FEDERATED_SERVICE),
    ("_{protocol}.{service}.{namespace}", FEDERATED_PROTOCOL),
    ("_{port}._{protocol}.{service}.{namespace}", FEDERATED_PORT),
    ("{cluster}.{service}.{namespace}", FEDERATED_CLUSTER),
    ("{endpoint}.{cluster}.{service}.{namespace}", FEDERATED_ENTRY),
)
# Values of --pods: no pod names exist, those of every address do, or those of known pods do.
DISABLED, INSECURE, VERIFIED = "disabled", "insecure", "verified"
REVERSE_ZONES = {(b"in-addr", b"arpa"): 4, (b"ip6", b"arpa"): 16}  # -> octets in an address (RFC 1035, RFC 3596)

MAX_LABEL = 63  # octets (RFC 1035, section 3.1)
# Letters, digits, and inside a label hyphens (RFC 1123, section 2.1); underscores, which some domains begin with.
_ZONE_LABEL = re.compile("[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?")
# How CoreDNS writes networks (Go, net.ParseCIDR): with a prefix length, not with a mask, and without an interface.
NETWORK = re.compile("[0-9a-fA-F.:]+/(?:0|[1-9][0-9]*)")
MAX_ZONE = MAX_NAME - len("dns-version.")  # the longest name that every zone has


class Zone(Struct, frozen=True, gc=False):
    """A served DNS zone: its name without the final dot and its labels, both in lower case.

    ``about`` says what its names mean.
    """

    name: str
    labels: tuple[bytes, ...]
    about: str = SERVICES

    @property
    def reverse(self) -> bool:
        """Whether it is a reverse zone, whose names stand for addresses."""
        return self.labels[-2:] in REVERSE_ZONES


class QueryName(Struct, frozen=True, gc=False):
    """A name in a served DNS zone: its type, and the fields that this type has; other fields are empty.

    ``network`` is the address block that a reverse name stands for.
    """

    name_type: str
    zone: Zone
    name: str
    namespace: str = ""
    service: str = ""
    port: str = ""
    protocol: str = ""
    endpoint: str = ""
    cluster: str = ""
    pod: str = ""
    value: str = ""
    network: Network | None = None

    @property
    def service_key(self) -> str:
        """``namespace/name`` of the Service that the name belongs to."""
        return f"{self.namespace}/{self.service}"

    @property
    def endpoint_labels(self) -> str:
        """The labels in front of the Service's name, if they can be those of an endpoint: its own and its cluster's."""
        return ".".join(filter(None, (self.endpoint, self.cluster)))


def parse_zone(text: str) -> Zone:
    """Parse a DNS zone's name, such as ``cluster.local``, with or without a final dot. Raises ValueError."""
    name = text.removesuffix(".").lower()
    if is_address(name):
        raise ValueError(f"{text!r} is an address, whose network is {network_text(host_network(parse_address(name)))}")
    labels = name.split(".")
    if any(len(label) > MAX_LABEL for label in labels) or len(name) > MAX_ZONE:
        raise ValueError(f"{text!r} is too long: a label has at most {MAX_LABEL} octets, the name {MAX_ZONE}")
    if not all(map(_ZONE_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ValueError(f"{text!r} is not a domain name")
    return Zone(name, labels_of(name))


def parse_zones(text: str) -> tuple[Zone, ...]:
    """Parse a DNS zone's name, or a network, which means its reverse zones. Raises ValueError."""
    try:
        network = parse_network(text, strict=False) if NETWORK.fullmatch(text) else None
    except ValueError:
        network = None
    return (parse_zone(text),) if network is None else tuple(map(parse_zone, reverse_zone_names(network)))


def reverse_zone_names(network: Network) -> Iterator[str]:
    """Yield the names of the reverse zones that a network consists of, as CoreDNS has it.

    A prefix that ends within a label of these names means several zones: 10.96.0.0/12 is 96.10 to 111.10.in-addr.arpa.
    """
    size = 8 * len(network.address)
    bits, form, ending = (8, "d", "in-addr.arpa") if size == 32 else (4, "x", "ip6.arpa")
    count = -(-network.length // bits)  # labels before the ending
    first = int.from_bytes(network.address) >> (size - count * bits)
    for number in range(first, first + (1 << (count * bits - network.length))):
        parts = [format(number >> (bits * position) & ((1 << bits) - 1), form) for position in range(count)]
        yield ".".join((*parts, ending))


def labels_of(text: str) -> tuple[bytes, ...]:
    """Return the labels, in lower case, of a name written as text. Raises ValueError."""
    try:
        labels = tuple(text.rstrip(".").lower().encode("ascii").split(b".")) if text != "." else ()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not ASCII") from None
    sizes = [len(label) for label in labels]
    if 0 in sizes or max(sizes, default=0) > MAX_LABEL or sum(sizes) + len(sizes) > 254:
        raise ValueError(f"{text!r} is not a domain name")
    return labels


def name_text(labels: Sequence[bytes]) -> str:
    """Return a name as text. Labels may hold any octets; names without a backslash never give the same text."""
    text = b".".join(labels).decode("latin-1")
    return text if text.count(".") < len(labels) else ".".join(map(label_text, labels))


def _label_texts(labels: Sequence[bytes]) -> list[str]:
    texts = b".".join(labels).decode("latin-1").split(".")
    return texts if len(texts) == len(labels) else list(map(label_text, labels))


def label_text(label: bytes) -> str:
    """Return one label of ``name_text``."""
    return label.decode("latin-1").replace(".", "\\.")  # a dot inside a label is not a separator


def query_name_of(labels: Sequence[bytes], zones: Iterable[Zone]) -> QueryName | None:
    """Return what a name in lower case is, or None outside *zones*. The longest matching zone decides."""
    zone = _enclosing_zone(tuple(labels), zones)
    if zone is None:
        return None
    texts = _label_texts(labels)
    name, relative = ".".join(texts), texts[: len(labels) - len(zone.labels)]
    ending = relative[-1] if relative else "", min(len(relative), _MANY_LABELS)
    patterns = _REVERSE_PATTERNS if zone.reverse else _PATTERNS[zone.about]
    for pattern, name_type in (*patterns.get(ending, ()), *patterns.get(("", ending[1]), ())):
        fields = _match(pattern, relative)
        if fields is not None:
            return QueryName(name_type, zone, name, **fields)  # type: ignore[arg-type]  # no pattern fills in a network
    if zone.reverse and (network := _reverse_network(labels)) is not None:
        return QueryName(REVERSE, zone, name, network=network)
    return QueryName(IMPOSSIBLE, zone, name)


def _enclosing_zone(labels: tuple[bytes, ...], zones: Iterable[Zone]) -> Zone | None:
    """Return the longest of *zones* that contains a name, None if none does."""
    longest = None
    for zone in zones:
        size = len(zone.labels)
        if labels[-size:] == zone.labels and (longest is None or size > len(longest.labels)):
            longest = zone
    return longest


def _reverse_network(labels: Sequence[bytes]) -> Network | None:
    """Return the address block that a name in a reverse zone stands for, or None if its labels are not an address.

    A label is one octet of an IPv4 address in decimal (RFC 1035, section 3.5) or four bits of an IPv6 address in
    hexadecimal (RFC 3596, section 2.5). The last octet or digit of the address comes first.
    """
    size = REVERSE_ZONES[labels[-2], labels[-1]]
    base, bits, known = (10, 8, _OCTETS) if size == 4 else (16, 4, _NIBBLES)
    parts = labels[-3::-1]
    if len(parts) * bits > 8 * size or any(part not in known for part in parts):
        return None
    number = 0
    for part in parts:
        number = number << bits | int(part, base)
    return plain_network(Network((number << (8 * size - bits * len(parts))).to_bytes(size), bits * len(parts)))


_OCTETS = frozenset(b"%d" % number for number in range(256))
_NIBBLES = frozenset(b"%x" % number for number in range(16))


Pattern = tuple[tuple[str, str], ...]  # for each label its literal text, and the field that it fills or ""


def _match(pattern: Pattern, labels: Sequence[str]) -> dict[str, str] | None:
    """Return the fields that *labels* fill in *pattern*, or None if they do not match it."""
    fields = {}
    if pattern and pattern[0][1].endswith(MANY):
        count = len(labels) - len(pattern) + 1
        if count < 1:
            return None
        fields[pattern[0][1].removesuffix(MANY)] = ".".join(labels[:count])
        pattern, labels = pattern[1:], labels[count:]
    if len(pattern) != len(labels):
        return None
    for (literal, field), label in zip(pattern, labels, strict=True):
        if not field:
            if label != literal:
                return None
        elif label.startswith("_") == (literal == "_"):
            fields[field] = label.removeprefix(literal)
        else:
            return None
    return fields


MANY = "*"  # marks a field that takes one or more labels


def _pattern(text: str) -> Pattern:
    """Compile the first column of ``NAME_TYPES``, or of another table of name types."""
    pairs = (label.partition("{") for label in text.replace("...}", MANY).split(".") if label)
    return tuple((literal, field.rstrip("}")) for literal, _, field in pairs)


def _by_ending(name_types: Sequence[tuple[str, str]]) -> dict[tuple[str, int], list[tuple[Pattern, str]]]:
    """Return the patterns that a name can match, and its types, by its last label before the zone and number of labels.

    Names with more labels than ``_MANY_LABELS`` count as if they had so many: only patterns with ``MANY`` match them.
    """
    by_ending: dict[tuple[str, int], list[tuple[Pattern, str]]] = {}
    for text, name_type in name_types:
        pattern = _pattern(text)
        longest = _MANY_LABELS if pattern and pattern[0][1].endswith(MANY) else len(pattern)
        for number in range(len(pattern), longest + 1):
            by_ending.setdefault((pattern[-1][0] if pattern else "", number), []).append((pattern, name_type))
    return by_ending


_MANY_LABELS = 1 + max(text.count(".") + 1 for text, _ in NAME_TYPES)
_PATTERNS = {
    about: _by_ending(name_types)
    for about, name_types in (
        (SERVICES, NAME_TYPES),
        (FEDERATION, FEDERATION_NAME_TYPES),
        (MULTICLUSTER, MULTICLUSTER_NAME_TYPES),
    )
}
_REVERSE_PATTERNS = _by_ending(NAME_TYPES_OF_EVERY_ZONE)


def endpoint_label(endpoint: Endpoint, address: bytes, *, pod_names: bool = False) -> str:
    """Return the first label of an endpoint's own name.

    It is the endpoint's hostname, else with *pod_names* the name of its pod if that is a single label, else the
    address with dashes.
    """
    if endpoint.hostname:
        return endpoint.hostname
    if pod_names and endpoint.pod and is_dns_label(endpoint.pod):
        return endpoint.pod
    return dashed_label(address)


def dashed_label(address: bytes) -> str:
    """Return an address as a label, with dashes."""
    if len(address) == 4:
        return "-".join(map(str, address))
    dashed = address_text(address).replace(":", "-")
    # A host name's label begins and ends with a letter or a digit (RFC 1123, section 2.1).
    return f"{'0' if dashed.startswith('-') else ''}{dashed}{'0' if dashed.endswith('-') else ''}"


_ADDRESS_LETTERS = frozenset("0123456789abcdef-")


def pod_address(label: str) -> bytes | None:
    """Return the address that a pod's name spells, with dashes for dots or colons, or None if it spells none."""
    if not set(label) <= _ADDRESS_LETTERS:
        return None
    dots = label.count("-") == 3 and "--" not in label
    try:
        return parse_address(label.replace("-", "." if dots else ":"))
    except ValueError:
        return None
