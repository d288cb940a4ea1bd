"""A query name and what it means, by the schema of Kubernetes' DNS-based service discovery 1.1.0.

``SHAPES`` is the whole schema as far as topodns serves it: one row a shape of name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from locator.ip import Network, address_text, parse_address, plain_network
from locator.model import MAX_NAME, Endpoint, is_dns_label

APEX = "apex"
BETWEEN = "between"  # an empty non-terminal that always exists
NAME_SERVER = "name server"
VERSION = "version"
POD_NAMESPACE = "pod namespace"
POD = "pod"
NAMESPACE = "namespace"
SERVICE = "service"
PROTOCOL = "protocol"
PORT = "port"
ENDPOINT = "endpoint"
ZONAL = "zonal"
PINNED = "pinned"
PREFERRED = "preferred"
REVERSE = "reverse"
IMPOSSIBLE = "impossible"

# What every zone has, the reverse ones included.
EVERYWHERE = (
    ("", APEX),
    ("dns", BETWEEN),
    ("ns.dns", NAME_SERVER),
    ("dns-version", VERSION),
    ("svc", BETWEEN),
    ("pod", BETWEEN),
)
# The part of a name before its zone -> what it names. ``{x}`` stands for any label that does not
# begin with an underscore, ``_{x}`` for one that does, ``{x...}`` at the head for one or more labels
# of any kind. The first row that fits decides.
SHAPES = (
    *EVERYWHERE,
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
# Which names of pods exist: none, those of any address, those of pods that are known.
DISABLED, INSECURE, VERIFIED = "disabled", "insecure", "verified"
REVERSE_ZONES = {(b"in-addr", b"arpa"): 4, (b"ip6", b"arpa"): 16}  # -> octets in an address (RFC 1035, RFC 3596)

MAX_LABEL = 63  # octets (RFC 1035, section 3.1)
MAX_ZONE = MAX_NAME - len("dns-version.")  # the longest name that every zone has


class Zone(Struct, frozen=True):
    """A zone that is served: its name without the final dot, and its labels, in lower case."""

    name: str
    labels: tuple[bytes, ...]

    @property
    def reverse(self) -> bool:
        """Whether names in it stand for addresses."""
        return self.labels[-2:] in REVERSE_ZONES


class Meaning(Struct, frozen=True):
    """What a name inside a served zone names; the fields that its shape has are filled in.

    ``network`` is the block of addresses that a reverse name stands for.
    """

    shape: str
    zone: Zone
    name: str
    namespace: str = ""
    service: str = ""
    port: str = ""
    protocol: str = ""
    endpoint: str = ""
    pod: str = ""
    value: str = ""
    network: Network | None = None

    @property
    def service_key(self) -> str:
        """The key of the Service that the name belongs to."""
        return f"{self.namespace}/{self.service}"


def parse_zone(text: str) -> Zone:
    """Return the zone of a name such as ``cluster.local``. Raises ValueError."""
    name = text.rstrip(".").lower()
    labels = labels_of(name)
    if not labels or len(name) > MAX_ZONE:
        raise ValueError(f"{text!r} is no zone name")
    return Zone(name, labels)


def labels_of(text: str) -> tuple[bytes, ...]:
    """Return the labels of a name as people write it, in lower case. Raises ValueError."""
    try:
        labels = tuple(label.encode("ascii") for label in text.rstrip(".").lower().split(".")) if text != "." else ()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not ASCII") from None
    if any(not 0 < len(label) <= MAX_LABEL for label in labels) or sum(map(len, labels)) + len(labels) > 254:
        raise ValueError(f"{text!r} is no domain name")
    return labels


def name_text(labels: Iterable[bytes]) -> str:
    """Return a name as text, of whatever octets: one that is no host's stays what it is, and is like no other."""
    return ".".join(map(_label_text, labels))


def _label_text(label: bytes) -> str:
    return label.decode("latin-1").replace(".", "\\.")  # a dot within a label parts nothing


def meaning_of(labels: Sequence[bytes], zones: Iterable[Zone]) -> Meaning | None:
    """Return what a name in lower case means, None outside the zones; the longest zone around it decides."""
    within = [zone for zone in zones if tuple(labels[len(labels) - len(zone.labels) :]) == zone.labels]
    if not within:
        return None
    zone = max(within, key=lambda zone: len(zone.labels))
    relative = list(map(_label_text, labels[: len(labels) - len(zone.labels)]))
    name = name_text(labels)
    for pattern, shape in _REVERSE_PATTERNS if zone.reverse else _PATTERNS:
        fields = _match(pattern, relative)
        if fields is not None:
            return Meaning(shape, zone, name, **fields)  # type: ignore[arg-type]  # no row fills in a network
    if zone.reverse and (network := _reverse_network(labels)) is not None:
        return Meaning(REVERSE, zone, name, network=network)
    return Meaning(IMPOSSIBLE, zone, name)


def _reverse_network(labels: Sequence[bytes]) -> Network | None:
    """Return the block of addresses that a name in a reverse zone stands for, None if it is none.

    Each label is an octet of an IPv4 address in decimal (RFC 1035, section 3.5), or four bits
    of an IPv6 address in hexadecimal (RFC 3596, section 2.5), the last ones first.
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


def _match(pattern: tuple[tuple[str, str], ...], labels: Sequence[str]) -> dict[str, str] | None:
    fields = {}
    if pattern and pattern[0][1].endswith(MANY):
        many = len(labels) - len(pattern) + 1
        if many < 1:
            return None
        fields[pattern[0][1].removesuffix(MANY)] = ".".join(labels[:many])
        pattern, labels = pattern[1:], labels[many:]
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


MANY = "*"  # at the end of a field that takes one or more labels


def _pattern(text: str) -> tuple[tuple[str, str], ...]:
    """Compile a row: for each label what it starts with or is, and the field it fills, if any."""
    pairs = (label.partition("{") for label in text.replace("...}", MANY).split(".") if label)
    return tuple((literal, field.rstrip("}")) for literal, _, field in pairs)


_PATTERNS = tuple((_pattern(text), shape) for text, shape in SHAPES)
_REVERSE_PATTERNS = tuple((_pattern(text), shape) for text, shape in EVERYWHERE)


def endpoint_label(endpoint: Endpoint, address: bytes, *, pod_names: bool = False) -> str:
    """Return the first label of an endpoint's own name.

    Its hostname, else with *pod_names* its pod's name if that is one label, else the address
    with dashes.
    """
    if endpoint.hostname:
        return endpoint.hostname
    if pod_names and endpoint.pod and is_dns_label(endpoint.pod):
        return endpoint.pod
    dashed = address_text(address).replace(".", "-").replace(":", "-")
    return f"{dashed}0" if dashed.endswith("-") else dashed  # no label of a host ends with a dash


_ADDRESS_LETTERS = frozenset("0123456789abcdef-")


def pod_address(label: str) -> bytes | None:
    """Return the address in a pod's name: with dashes for its dots or colons; None if it is none."""
    if not set(label) <= _ADDRESS_LETTERS:
        return None
    dots = label.count("-") == 3 and "--" not in label
    try:
        return parse_address(label.replace("-", "." if dots else ":"))
    except ValueError:
        return None
