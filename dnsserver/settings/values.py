# SPDX-License-Identifier: Apache-2.0

"""Parses single values of settings: a ``Syntax`` for each type of value, from a whole number to an address with a port.

Pure. ``settings`` says what the values mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from dnsserver.names import Zone, parse_zone, parse_zones
from locator.ip import Network, address_text, parse_address, parse_network
from locator.labels import Selector, parse_selector, valid_label_key
from locator.model import MAX_NAME, is_dns_label, object_key
from locator.topology.constraints import keys_error

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)

DNS_PORT = 53
MAX_NSID = 128  # octets; fits a reply of 512 octets beside the longest question
ON_WORDS, OFF_WORDS = ("on", "true"), ("off", "false")  # YAML 1.1 parses a bare on or off as a boolean
SERVICE_WORDS = ("service", "services", "svc")  # as kubectl takes the kind
OFF: Final = "off"  # the value of a setting that is switched off where None means that it was not given
HONOR, IGNORE = "honor", "ignore"  # the values of --traffic-distribution
PODS, POD_LOCATORS, NODES = "pods", "podlocators", "nodes"  # the values of --client-source


@dataclass(frozen=True, slots=True)
class Syntax(Generic[T_co]):
    """How to write a value of type *T_co*.

    ``metavar`` stands for the value in ``--help``. ``read`` parses a text; its ValueError says what was found, and
    ``expected`` completes the message: ``FOUND, expected EXPECTED``. ``words`` are the values that have a meaning of
    their own, such as all those of an enumeration.
    """

    metavar: str
    expected: str
    read: Callable[[str], T_co]
    words: tuple[str, ...] = ()


def refused(text: str, error: ValueError) -> str:
    """Return what was found, for a message: the whole *text*, and what is wrong in it."""
    found = str(error)
    return found if repr(text) in found else f"{text!r}: {found}"


class ListenAddress(NamedTuple):
    """A packed address and a port. Port 0 means any free port."""

    address: bytes
    port: int

    def __str__(self) -> str:
        text = address_text(self.address)
        return f"[{text}]:{self.port}" if len(self.address) == 16 else f"{text}:{self.port}"


class Subnet(NamedTuple):
    """A network outside the cluster, and the node labels to assume for its clients."""

    network: Network
    labels: tuple[tuple[str, str], ...]


class ZoneKeys(NamedTuple):
    """A DNS zone, and the topology keys of Services that declare no constraint when they are asked for in it."""

    zone: Zone
    keys: tuple[str, ...]


class ServiceName(NamedTuple):
    """A Service as people name it. Its namespace is None if ``-n`` gives it."""

    namespace: str | None
    name: str

    def key(self, namespace: Callable[[], str]) -> str:
        """Return its key; *namespace* is asked only if it names none."""
        return object_key(self.namespace or namespace(), self.name)


class ClusterSource(NamedTuple):
    """Another cluster: its name, the path of a kubeconfig or a dump, and a context of the kubeconfig or None."""

    name: str
    path: str
    context: str | None = None


class FederationSource(NamedTuple):
    """A federation API: the federation's name, the path of a kubeconfig, and a context of it or None."""

    name: str
    path: str
    context: str | None = None


def parse_upstream(text: str) -> ListenAddress:
    """Parse the address of a DNS server, with or without a port. Raises ValueError.

    An IPv6 address needs brackets if a port follows.
    """
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or (":" in host and not host.endswith("]")):
        host, port = text, str(DNS_PORT)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return ListenAddress(parse_address(bare), _port(port, 1))


def parse_service(text: str) -> ServiceName:
    """Parse NAMESPACE/NAME, NAME.NAMESPACE, or svc/NAME as kubectl takes it. Raises ValueError."""
    namespace, slash, name = text.partition("/")
    if not slash:
        name, _, namespace = text.partition(".")
    of_kind = slash and namespace.lower() in SERVICE_WORDS
    if not (of_kind or is_dns_label(namespace)) or not all(map(is_dns_label, name.split("."))):
        raise ValueError(repr(text))
    return ServiceName(None if of_kind else namespace, name)


def any_text(metavar: str, expected: str) -> Syntax[str]:
    """Return the syntax of a text that is not empty."""
    return Syntax(metavar, expected, _text)


def as_it_is(metavar: str) -> Syntax[str]:
    """Return the syntax of a text that another module parses, which says what it expects."""
    return Syntax(metavar, "", str)


def amount(metavar: str, unit: str = "") -> Syntax[float]:
    """Return the syntax of a number that may have decimals, and is not negative; nobody writes its *unit*."""
    return Syntax(metavar, f"a number{f' of {unit}' if unit else ''} from 0 on", _amount)


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(repr(text)) from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(repr(text))
    return number


def whole_number(low: int, high: int) -> Syntax[int]:
    """Return the syntax of a whole number."""
    return Syntax("NUMBER", f"a whole number from {low} to {high}", lambda text: _whole(text, low, high))


def seconds(low: int, high: int) -> Syntax[int]:
    """Return the syntax of a time in whole seconds."""
    return Syntax("SECONDS", f"a whole number of seconds from {low} to {high}", lambda text: _whole(text, low, high))


def choice(metavar: str, *words: str) -> Syntax[str]:
    """Return the syntax of one of *words*."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(repr(text))
        return text

    return Syntax(metavar, f"{', '.join(words[:-1])} or {words[-1]}", read, words)


def or_off(syntax: Syntax[T], off: U) -> Syntax[T | U]:
    """Return a syntax that also takes ``off``, and then yields the value *off*."""
    return Syntax(
        syntax.metavar,
        f"{syntax.expected}, or off",
        lambda text: off if text in OFF_WORDS else syntax.read(text),
        (*syntax.words, OFF),
    )


def _text(text: str) -> str:
    if not text:
        raise ValueError("empty")
    if "\0" in text:  # no file name can hold it
        raise ValueError(repr(text))
    return text


def _whole(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise ValueError(repr(text))
    return int(text)


def _port(text: str, low: int) -> int:
    """Parse a port. Raises ValueError."""
    try:
        return _whole(text, low, 65535)
    except ValueError:
        raise ValueError(f"{text!r} is not a port from {low} to 65535") from None


def _switch(text: str) -> bool:
    if text not in (*ON_WORDS, *OFF_WORDS):
        raise ValueError(repr(text))
    return text in ON_WORDS


def _dns_label(text: str) -> str:
    if not is_dns_label(text):
        raise ValueError(repr(text))
    return text


def _object_name(text: str) -> str:
    """Parse the name of an object of most kinds: DNS labels with dots between them."""
    if len(text) > MAX_NAME or not all(map(is_dns_label, text.split("."))):
        raise ValueError(repr(text))
    return text


def _object_key(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not is_dns_label(namespace):
        raise ValueError(repr(text))
    return namespace, _object_name(name)


def _key(text: str) -> str:
    return "/".join(_object_key(text))


def _service_key(text: str) -> str:
    namespace, name = parse_service(text)
    if namespace is None:
        raise ValueError(f"{text!r} names no namespace")
    return object_key(namespace, name)


def _server_url(text: str) -> str:
    match = re.fullmatch(r"https?://(?:\[[0-9a-fA-F:.]+\]|[^][:/?#@\s]+)(?::([0-9]{1,5}))?(?:/[^?#\s]*)?", text)
    if match is None or (match[1] is not None and not 0 < int(match[1]) <= 65535):
        raise ValueError(repr(text))
    return text.rstrip("/")


def _label_key(text: str) -> str:
    if not valid_label_key(text) or text == "on":  # what ``true`` in a file becomes; nobody means a label
        raise ValueError(repr(text))
    return text


def _listen(text: str) -> ListenAddress:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ValueError(repr(text))
    if not host:
        raise ValueError("no address")
    return ListenAddress(parse_address(host.removeprefix("[").removesuffix("]")), _port(port, 0))


def _client_sources(text: str) -> frozenset[str]:
    sources = frozenset(part.strip() for part in text.split(","))
    if not sources <= {PODS, POD_LOCATORS, NODES}:
        raise ValueError(repr(text))
    return sources


def _subnet(text: str) -> Subnet:
    network, _, rest = text.partition("=")
    pairs = [pair.partition("=") for pair in rest.split(",")]
    if not all(valid_label_key(key) and equals and value for key, equals, value in pairs):
        raise ValueError(f"{rest!r} as labels of {network}")
    return Subnet(parse_network(network), tuple((key, value) for key, _, value in pairs))


def _zone_keys(text: str) -> ZoneKeys:
    zone, _, listed = text.partition("=")
    try:
        keys = _topology_keys(listed)
    except ValueError as error:
        raise ValueError(f"{text!r}: {str(error).removeprefix(f'{listed!r}: ')}") from None
    return ZoneKeys(parse_zone(zone), keys)


def _cluster(text: str) -> ClusterSource:
    name, path, context = _named_path(text)
    if not is_dns_label(name):
        raise ValueError(repr(text))
    return ClusterSource(name, path, context)


def _federation(text: str) -> FederationSource:
    name, path, context = _named_path(text)
    return FederationSource(parse_zone(name).name, path, context)


def _named_path(text: str) -> tuple[str, str, str | None]:
    """Return the parts of ``NAME=PATH[#CONTEXT]``. Raises ValueError."""
    name, _, where = text.partition("=")
    path, mark, context = where.rpartition("#")
    if not where or (mark and not (path and context)):
        raise ValueError(repr(text))
    return (name, _text(path), context) if mark else (name, _text(where), None)


def _cluster_names(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or len(set(names)) < len(names) or not all(map(is_dns_label, names)):
        raise ValueError(repr(text))
    return frozenset(names)


def _topology_keys(text: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in text.split(","))
    if (error := keys_error(keys)) is not None:
        raise ValueError(f"{text!r}: {error}")
    return keys


def _option_code(text: str) -> int:
    """Parse an option code, in decimal or, as Corefiles write it, in hexadecimal."""
    code = int(text, 16) if re.fullmatch("0[xX][0-9a-fA-F]{1,4}", text) else _whole(text, 0, 65535)
    if not 65001 <= code <= 65534:
        raise ValueError(repr(text))
    return code


def _nsid(text: str) -> bytes:
    octets = _text(text).encode()
    if len(octets) > MAX_NSID:
        raise ValueError(f"{len(octets)} octets")
    return octets


# The "=" is required: the next word is never the value.
SWITCH = Syntax("=on|off", "on or off", _switch, (ON_WORDS[0], OFF))
ZONES: Syntax[tuple[Zone, ...]] = Syntax(
    "NAME", "a domain name such as cluster.local, or a network such as 10.96.0.0/12", parse_zones
)
NAMESPACE = Syntax("NAME", "the name of a namespace", _dns_label)
IN_NAMESPACE = Syntax("NAMESPACE", NAMESPACE.expected, _dns_label)  # of -n
OBJECT_NAME = Syntax("NAME", "the name of an object", _object_name)
OBJECT_KEY = Syntax("NS/NAME", "NAMESPACE/NAME", _object_key)
KEY = Syntax("NS/NAME", "NAMESPACE/NAME", _key)
SERVICE_KEY = Syntax("NS/NAME", "NAMESPACE/NAME or NAME.NAMESPACE", _service_key)
SERVICE = Syntax("NS/NAME", "NAMESPACE/NAME, NAME.NAMESPACE, or svc/NAME with -n NAMESPACE", parse_service)
SERVER_URL = Syntax("URL", "http://HOST:PORT", _server_url)
LABEL_KEY = Syntax("KEY", "a label key", _label_key)
SELECTOR: Syntax[Selector] = Syntax("SELECTOR", "a label selector such as 'team=shop,!internal'", parse_selector)
ADDRESS = Syntax("ADDR", "an IPv4 or IPv6 address", parse_address)
NETWORK = Syntax("CIDR", "an address block without host bits, such as 10.96.0.10/32", parse_network)
LISTEN_ADDRESS = Syntax(
    "ADDR:PORT", "ADDRESS:PORT such as 127.0.0.1:1053, with an IPv6 address in brackets: [::1]:1053", _listen
)
UPSTREAM_ADDRESS = Syntax("ADDR[:PORT]", "ADDRESS or ADDRESS:PORT", parse_upstream)
CLIENT_SOURCES = Syntax(
    "SOURCES", "some of pods, podlocators and nodes, separated by commas", _client_sources, (PODS, POD_LOCATORS, NODES)
)
SUBNET = Syntax("CIDR=KEY=VALUE[,KEY=VALUE]", "CIDR=KEY=VALUE[,KEY=VALUE]", _subnet)
ZONE_KEYS = Syntax("ZONE=KEY[,KEY]", "ZONE=KEY[,KEY] with a domain name, label keys, and * only at the end", _zone_keys)
CLUSTER_NAME = Syntax("NAME", "a DNS label: lower-case letters, digits and inner hyphens", _dns_label)
CLUSTER_SOURCE = Syntax("NAME=PATH[#CONTEXT]", "NAME=PATH or NAME=PATH#CONTEXT, where NAME is a DNS label", _cluster)
FEDERATION_SOURCE = Syntax(
    "NAME=KUBECONFIG[#CONTEXT]",
    "NAME=KUBECONFIG or NAME=KUBECONFIG#CONTEXT, where NAME is a domain name such as fed.example.com",
    _federation,
)
CLUSTER_NAMES = Syntax("NAME,NAME[,...]", "names of two or more clusters, separated by commas", _cluster_names)
TOPOLOGY_KEYS = Syntax("KEY[,KEY]", "label keys, separated by commas, and * only at the end", _topology_keys)
OTHER_ZONE: Syntax[tuple[Zone, ...]] = Syntax(
    "ZONE", "a domain name such as fed.example.com", lambda text: (parse_zone(text),)
)
OPTION_CODE = Syntax("CODE", "a number from 65001 to 65534 (0xfde9 to 0xfffe)", _option_code)
NSID = Syntax("TEXT", f"a text of at most {MAX_NSID} octets", _nsid)
