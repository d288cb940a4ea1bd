"""A query name and what it means, by the schema of Kubernetes' DNS-based service discovery 1.1.0.

``SHAPES`` is the whole schema as far as topodns serves it: one row a shape of name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from locator.addresses import address_text
from locator.model import Endpoint

APEX = "apex"
BETWEEN = "between"  # an empty non-terminal that always exists
NAME_SERVER = "name server"
NAMESPACE = "namespace"
SERVICE = "service"
PROTOCOL = "protocol"
PORT = "port"
ENDPOINT = "endpoint"
IMPOSSIBLE = "impossible"

# The part of a name before its zone -> what it names. ``{x}`` stands for any label that does not
# begin with an underscore, ``_{x}`` for one that does. The first row that fits decides.
SHAPES = (
    ("", APEX),
    ("dns", BETWEEN),
    ("ns.dns", NAME_SERVER),
    ("svc", BETWEEN),
    ("pod", BETWEEN),
    ("{namespace}.svc", NAMESPACE),
    ("{service}.{namespace}.svc", SERVICE),
    ("_{protocol}.{service}.{namespace}.svc", PROTOCOL),
    ("_{port}._{protocol}.{service}.{namespace}.svc", PORT),
    ("{endpoint}.{service}.{namespace}.svc", ENDPOINT),
)
REVERSE_SHAPES = SHAPES[:3]  # what a reverse zone has


MAX_NAME = 253  # characters of a name without its final dot (RFC 1035, section 3.1)
MAX_ZONE = MAX_NAME - len("hostmaster.")  # the longest name that every zone has


class Zone(Struct, frozen=True):
    """A zone that is served: its name without the final dot, and its labels, in lower case."""

    name: str
    labels: tuple[bytes, ...]

    @property
    def reverse(self) -> bool:
        """Whether names in it stand for addresses."""
        return self.labels[-2:] in ((b"in-addr", b"arpa"), (b"ip6", b"arpa"))


class Meaning(Struct, frozen=True):
    """What a name inside a served zone names; the fields that its shape has are filled in."""

    shape: str
    zone: Zone
    name: str
    namespace: str = ""
    service: str = ""
    port: str = ""
    protocol: str = ""
    endpoint: str = ""

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
    if any(not 0 < len(label) <= 63 for label in labels) or sum(map(len, labels)) + len(labels) > 254:
        raise ValueError(f"{text!r} is no domain name")
    return labels


def meaning_of(labels: Sequence[bytes], zones: Iterable[Zone]) -> Meaning | None:
    """Return what a name in lower case means, None outside the zones; the longest zone around it decides."""
    within = [zone for zone in zones if tuple(labels[len(labels) - len(zone.labels) :]) == zone.labels]
    if not within:
        return None
    zone = max(within, key=lambda zone: len(zone.labels))
    relative = [label.decode("ascii", "replace") for label in labels[: len(labels) - len(zone.labels)]]
    name = ".".join((*relative, zone.name))
    for pattern, shape in _REVERSE_PATTERNS if zone.reverse else _PATTERNS:
        fields = _match(pattern, relative)
        if fields is not None:
            return Meaning(shape, zone, name, **fields)
    return Meaning(IMPOSSIBLE, zone, name)


def _match(pattern: tuple[tuple[str, str], ...], labels: Sequence[str]) -> dict[str, str] | None:
    if len(pattern) != len(labels):
        return None
    fields = {}
    for (literal, field), label in zip(pattern, labels, strict=True):
        if not field:
            if label != literal:
                return None
        elif label.startswith("_") == (literal == "_"):
            fields[field] = label.removeprefix(literal)
        else:
            return None
    return fields


def _pattern(text: str) -> tuple[tuple[str, str], ...]:
    """Compile a row: for each label what it starts with or is, and the field it fills, if any."""
    pairs = (label.partition("{") for label in text.split(".") if label)
    return tuple((literal, field.rstrip("}")) for literal, _, field in pairs)


_PATTERNS = tuple((_pattern(text), shape) for text, shape in SHAPES)
_REVERSE_PATTERNS = tuple((_pattern(text), shape) for text, shape in REVERSE_SHAPES)


def endpoint_label(endpoint: Endpoint, address: bytes) -> str:
    """Return the first label of an endpoint's own name: its hostname, else the address with dashes."""
    return endpoint.hostname or address_text(address).replace(".", "-").replace(":", "-")
