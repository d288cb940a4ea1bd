"""Every setting: one frozen record, read once from flags, environment and file, and handed down.

Pure: the environment and the file's content are handed in. Flag beats environment beats file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from dnsserver.answers.decision import DISABLED, INSECURE, VERIFIED
from dnsserver.names import Zone, parse_zone
from locator.ip import Network, address_text, network_text, parse_address, parse_network
from locator.labels import Selector, parse_selector, valid_label_key
from locator.model import ZONE, is_dns_label

ENVIRONMENT = "TOPODNS_"
# What Kubernetes itself sets in pods beside a Service that is called topodns.
_SERVICE_LINKS = re.compile(r"TOPODNS_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")

CLUSTER = "Where the cluster comes from"
ANSWERS = "What is answered"
CLIENTS = "Who is asking"
SERVER = "The server"
CONTROLLER = "The controller"
LOGGING = "Logging"
THEMES = (CLUSTER, ANSWERS, CLIENTS, CONTROLLER, SERVER, LOGGING)

READING = ("serve", "explain", "check")
SERVING = ("serve",)
CONTROLLING = ("controller",)

PODS, POD_LOCATORS, NODES = "pods", "podlocators", "nodes"  # what --client-source may name
POD_MODES = (DISABLED, INSECURE, VERIFIED)
DNS_PORT = 53
MAX_NSID = 128  # octets; with the longest question it fits a reply of 512
LOG_LEVELS = ("debug", "info", "warning", "error")


class Wrong(Exception):
    """A setting that cannot be used: where it stands, what was found and what was expected."""


class ListenAddress(NamedTuple):
    """An address (packed) and a port, 0 for any free one."""

    address: bytes
    port: int

    def __str__(self) -> str:
        text = address_text(self.address)
        return f"[{text}]:{self.port}" if len(self.address) == 16 else f"{text}:{self.port}"


class Subnet(NamedTuple):
    """Where a network outside the cluster is."""

    network: Network
    labels: tuple[tuple[str, str], ...]


class Flag(NamedTuple):
    """How a setting is written: its theme, what stands for its value, how that is read, and for whom.

    ``read`` raises ValueError with what was found; ``expected`` says the rest.
    """

    theme: str
    metavar: str
    read: Callable[[str], Any]
    expected: str
    help: str
    commands: tuple[str, ...] = READING
    shown: str = ""
    repeatable: bool = False

    @property
    def switch(self) -> bool:
        """Whether the flag alone says something, without a value."""
        return self.read is _switch


def _flag(default: Any, *row: Any, **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(*row, **more)})


def _text(text: str) -> str:
    if not text:
        raise ValueError("nothing stands there")
    return text


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
            raise ValueError(repr(text))
        return int(text)

    return read


def _option_code(text: str) -> int:
    """A number, in hexadecimal, too, as Corefiles have it."""
    number = int(text, 16) if re.fullmatch("0[xX][0-9a-fA-F]{1,4}", text) else _whole(0, 65535)(text)
    if not 65001 <= number <= 65534:
        raise ValueError(repr(text))
    return number


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(repr(text))
        return text

    return read


def _or_off(read: Callable[[str], Any], off: Any) -> Callable[[str], Any]:
    return lambda text: off if text in ("off", "false") else read(text)


def _switch(text: str) -> bool:
    if text not in ("on", "true", "off", "false"):
        raise ValueError(repr(text))
    return text in ("on", "true")


def _label_key(text: str) -> str:
    if not valid_label_key(text) or text == "on":  # a file's ``true`` is no label
        raise ValueError(repr(text))
    return text


def _namespace(text: str) -> str:
    if not is_dns_label(text):
        raise ValueError(repr(text))
    return text


def _nsid(text: str) -> bytes:
    octets = _text(text).encode()
    if len(octets) > MAX_NSID:
        raise ValueError(f"{len(octets)} octets")
    return octets


def parse_upstream(text: str) -> ListenAddress:
    """An address with a port or without; one of IPv6 with a port has brackets."""
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or (":" in host and not host.endswith("]")):
        host, port = text, str(DNS_PORT)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return ListenAddress(parse_address(bare), _whole(1, 65535)(port))


def _listen(text: str) -> ListenAddress:
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise ValueError(repr(text))
    return ListenAddress(parse_address(host.removeprefix("[").removesuffix("]")), _whole(0, 65535)(port))


def _sources(text: str) -> frozenset[str]:
    sources = frozenset(part.strip() for part in text.split(","))
    if not sources <= {PODS, POD_LOCATORS, NODES}:
        raise ValueError(repr(text))
    return sources


def _object_key(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ValueError(repr(text))
    return namespace, name


def _service_key(text: str) -> str:
    return "/".join(_object_key(text))


def _subnet(text: str) -> Subnet:
    network, _, rest = text.partition("=")
    pairs = [pair.partition("=") for pair in rest.split(",")]
    if not all(valid_label_key(key) and equals and value for key, equals, value in pairs):
        raise ValueError(f"{rest!r} as labels of {network}")
    return Subnet(parse_network(network), tuple((key, value) for key, _, value in pairs))


_ZONES = tuple(map(parse_zone, ("cluster.local", "in-addr.arpa", "ip6.arpa")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a server, or a look at what one would answer, is told from outside."""

    snapshot: tuple[str, ...] = _flag(
        (), CLUSTER, "PATH", _text, "a file, a folder or -",
        "what 'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml' prints, as YAML or JSON: a file, "
        "a folder, or - for standard input; read again when it changes or on SIGHUP",
        repeatable=True, shown="none",
    )  # fmt: skip
    """Several are merged: of an object that stands twice, the later one holds."""

    kubeconfig: str | None = _flag(
        None, CLUSTER, "PATH", _text, "a kubeconfig", "a live cluster, as a kubeconfig names it",
        (*READING, *CONTROLLING), shown="in a pod its service account, else $KUBECONFIG or ~/.kube/config",
    )  # fmt: skip
    """Without --snapshot the cluster is a live one."""

    context: str | None = _flag(
        None, CLUSTER, "NAME", _text, "a context of the kubeconfig", "which of the kubeconfig's contexts",
        (*READING, *CONTROLLING), shown="its current one",
    )  # fmt: skip
    """As ``kubectl --context``."""

    zone: tuple[Zone, ...] = _flag(
        _ZONES, ANSWERS, "NAME", parse_zone, "a domain name", "a zone to answer for",
        repeatable=True, shown="cluster.local, in-addr.arpa, ip6.arpa",
    )  # fmt: skip
    """Given at all, it replaces the default."""

    ttl: int = _flag(
        5, ANSWERS, "SECONDS", _whole(0, 3600), "a whole number of seconds from 0 to 3600", "TTL of records",
    )  # fmt: skip
    """5 s is CoreDNS's default: endpoints come and go."""

    ns_address: tuple[bytes, ...] = _flag(
        (), ANSWERS, "ADDR", parse_address, "an IPv4 or IPv6 address", "address of the name server ns.dns.<zone>",
        repeatable=True, shown="the listen addresses that are not wildcards",
    )  # fmt: skip
    """What the glue of the zone's NS record says."""

    namespace: tuple[str, ...] = _flag(
        (), ANSWERS, "NAME", _namespace, "a namespace's name", "a namespace whose Services are served",
        repeatable=True, shown="all",
    )  # fmt: skip
    """Limits what is served, never who can be located."""

    namespace_selector: Selector | None = _flag(
        None, ANSWERS, "SELECTOR", parse_selector, "a label selector such as 'team=shop,!internal'",
        "labels of the namespaces whose Services are served", shown="all",
    )  # fmt: skip
    """Without Namespace objects nothing is selected."""

    service_selector: Selector | None = _flag(
        None, ANSWERS, "SELECTOR", parse_selector, "a label selector such as 'team=shop,!internal'",
        "labels of the Services that are served", shown="all",
    )  # fmt: skip
    """As CoreDNS's ``labels``."""

    pods: str = _flag(
        DISABLED, ANSWERS, "MODE", _one_of(*POD_MODES), ", ".join(POD_MODES),
        "whether names such as 10-0-0-1.shop.pod.<zone> exist: never, always, or where the namespace has such a pod",
    )  # fmt: skip
    """Disabled as in CoreDNS: nobody is to get a name for any address they like."""

    endpoint_pod_names: bool = _flag(
        False, ANSWERS, "on|off", _switch, "on or off",
        "name endpoints without a hostname after their pods, not by their addresses", shown="off",
    )  # fmt: skip
    """As CoreDNS's ``endpoint_pod_names``."""

    ignore_empty_service: bool = _flag(
        False, ANSWERS, "on|off", _switch, "on or off",
        "NXDOMAIN for a ClusterIP Service without ready endpoints", shown="off",
    )  # fmt: skip
    """So that a client goes on along its search path: to another cluster, say."""

    no_endpoints: bool = _flag(
        False, ANSWERS, "on|off", _switch, "on or off",
        "no records of endpoints at all, so none of headless Services", shown="off",
    )  # fmt: skip
    """As CoreDNS's ``noendpoints``."""

    zonal: str | None = _flag(
        ZONE, ANSWERS, "KEY", _or_off(_label_key, None), "a label's key, or off",
        "the label behind the names <value>.pin._zone.<service>... and <value>.prefer._zone.<service>...",
    )  # fmt: skip
    """CoreDNS has them for zones, where ``zonal`` is given; only names that end in ``_zone`` are touched."""

    upstream: tuple[ListenAddress, ...] | None = _flag(
        None, ANSWERS, "ADDR[:PORT]", _or_off(parse_upstream, None), "ADDRESS or ADDRESS:PORT, or off",
        "a resolver for the targets of ExternalName Services that lie outside the zones",
        repeatable=True, shown="in a pod the name servers of its resolv.conf, else none",
    )  # fmt: skip
    """The clients of a stub zone do not chase a CNAME themselves."""

    unknown_client: str = _flag(
        "strict", CLIENTS, "MODE", _one_of("strict", "all"), "strict or all",
        "what a client that cannot be located gets where a Service insists on nearness: nothing, or all endpoints",
    )  # fmt: skip
    """Strict is what kube-proxy did for topologyKeys."""

    client_source: frozenset[str] = _flag(
        frozenset((PODS, NODES)), CLIENTS, "SOURCES", _sources, "some of pods, podlocators and nodes, by commas",
        "the objects that tell where addresses are; others are not watched", shown="pods,nodes",
    )  # fmt: skip
    """5,000 nodes are cheaper to hold than 150,000 pods, and their pod CIDRs often tell as much."""

    subnet: tuple[Subnet, ...] = _flag(
        (), CLIENTS, "CIDR=KEY=VALUE[,KEY=VALUE]", _subnet, "CIDR=KEY=VALUE[,KEY=VALUE]",
        "labels of a network outside the cluster", repeatable=True, shown="none",
    )  # fmt: skip
    """The longest prefix decides; anything known of the cluster comes before it."""

    trusted_forwarder: tuple[Network, ...] = _flag(
        (), CLIENTS, "CIDR", parse_network, "an address block without host bits, such as 10.96.0.10/32",
        "forwarders that are believed when they name a client", repeatable=True, shown="none",
    )  # fmt: skip
    """Beside the endpoints of --forwarder-service."""

    forwarder_service: tuple[str, ...] | None = _flag(
        None, CLIENTS, "NS/NAME", _or_off(_service_key, None), "NAMESPACE/NAME, or off",
        "a Service whose endpoints are trusted forwarders, instead of those that are found; off for none",
        repeatable=True, shown="found by name and label",
    )  # fmt: skip
    """None finds the cluster's own DNS: every Service of kube-system that is called kube-dns or labelled
    ``k8s-app: kube-dns``, and openshift-dns/dns-default. It forwards for every pod, so its word on clients counts."""

    client_option: int | None = _flag(
        None, CLIENTS, "CODE", _or_off(_option_code, None), "a number from 65001 to 65534 (0xfde9 to 0xfffe), or off",
        "EDNS option in which a trusted forwarder names the client by 4 or 16 octets", shown="off",
    )  # fmt: skip
    """Off, since CoreDNS passes on what pods themselves put into such an option."""

    proxy_protocol: bool = _flag(
        False, CLIENTS, "on|off", _switch, "on or off",
        "read the PROXY protocol's header (version 2) where a trusted forwarder puts one before its queries", SERVING,
        shown="off",
    )  # fmt: skip
    """It comes before --client-option, and that before EDNS client subnet, which is always on."""

    listen: tuple[ListenAddress, ...] = _flag(
        (), SERVER, "ADDR:PORT", _listen, "ADDRESS:PORT, with an IPv6 address in brackets",
        "where DNS is answered, by UDP and TCP; port 0 takes a free one", SERVING,
        repeatable=True, shown="127.0.0.1:1053; in a pod [::]:1053",
    )  # fmt: skip
    """A port above 1023 needs no capability."""

    http: ListenAddress | str | None = _flag(
        None, SERVER, "ADDR:PORT", _or_off(_listen, "off"), "ADDRESS:PORT or off",
        "where metrics and health are served by HTTP", (*SERVING, *CONTROLLING),
        shown="127.0.0.1:9153; in a pod [::]:9153",
    )  # fmt: skip
    """9153 is the port of CoreDNS's metrics. Only the default may fail to be bound without ending the server."""

    max_connections: int = _flag(
        4096, SERVER, "NUMBER", _whole(1, 1_000_000), "a whole number from 1",
        "open TCP connections; at the limit the longest idle one is closed", SERVING,
    )  # fmt: skip
    """CoreDNS opens one for each query in flight, so no forwarder has a limit of its own."""

    tcp_idle_timeout: int = _flag(
        30, SERVER, "SECONDS", _whole(1, 3600), "a whole number of seconds from 1 to 3600",
        "how long a TCP connection may be idle", SERVING,
    )  # fmt: skip
    """RFC 9210 asks for some seconds at least; forwarders keep theirs 10 to 20 s."""

    max_queries_in_flight: int = _flag(
        128, SERVER, "NUMBER", _whole(1, 65535), "a whole number from 1 to 65535",
        "queries of one TCP connection that may wait for their answers; then it is not read further", SERVING,
    )  # fmt: skip
    """Only what --upstream is asked for waits."""

    stale_after: int = _flag(
        60, SERVER, "SECONDS", _whole(1, 86400), "a whole number of seconds from 1 to 86400",
        "how long after contact with the API server was lost answers begin to say that they are stale", SERVING,
    )  # fmt: skip
    """An API server that is restarted is back within a minute."""

    state_dir: str | None = _flag(
        None, SERVER, "PATH", _text, "a folder", "where the last view of the cluster is kept, to start from", SERVING,
        shown="none",
    )  # fmt: skip
    """So that a server that starts while there is no API server can answer."""

    state_max_age: int = _flag(
        3600, SERVER, "SECONDS", _whole(1, 31_536_000), "a whole number of seconds from 1",
        "how old a kept view may be to be believed", SERVING,
    )  # fmt: skip
    """Addresses of pods that have ended are given to strangers."""

    nsid: bytes | None = _flag(
        None, SERVER, "TEXT", _or_off(_nsid, b""), f"a text of at most {MAX_NSID} octets, or off",
        "what names this server to those who ask which of several answered (RFC 5001)", SERVING, shown="the host name",
    )  # fmt: skip
    """In a pod the host name is the pod's."""

    lease: tuple[str, str] | None = _flag(
        None, CONTROLLER, "NS/NAME", _object_key, "NAMESPACE/NAME", "the Lease that one of several controllers holds",
        CONTROLLING, shown="topodns-controller, in the namespace of the pod or of the kubeconfig's context",
    )  # fmt: skip
    """Only its holder writes."""

    writes_per_second: int = _flag(
        50, CONTROLLER, "NUMBER", _whole(1, 10_000), "a whole number from 1 to 10000", "PodLocators written a second",
        CONTROLLING,
    )  # fmt: skip
    """150,000 are written within 50 minutes so, and an API server that serves others, too, hardly feels it."""

    labels: tuple[str, ...] = _flag(
        (), CONTROLLER, "GLOB", _text, "a pattern such as 'topology.kubernetes.io/*'",
        "node labels that PodLocators tell", CONTROLLING, repeatable=True, shown="all",
    )  # fmt: skip
    """Labels that no topology key will ever name make objects large, and changes many."""

    log_format: str = _flag(
        "text", LOGGING, "FORMAT", _one_of("text", "json"), "text or json", "how log lines are written",
        (*READING, *CONTROLLING),
    )  # fmt: skip
    """JSON for machines that collect logs."""

    log_level: str = _flag(
        "info", LOGGING, "LEVEL", _one_of(*LOG_LEVELS), ", ".join(LOG_LEVELS), "the least that is logged",
        (*READING, *CONTROLLING),
    )  # fmt: skip
    """Nothing is logged for each query at any level above debug."""


FLAGS: Mapping[str, Flag] = {each.name: each.metadata["flag"] for each in fields(Settings)}


def read_settings(
    *, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], file: tuple[str, object] | None
) -> tuple[Settings, list[str]]:
    """Return the settings, and warnings: of variables that nobody reads, of values hardly meant. Raises Wrong.

    *flags* are the texts given on the command line by field name; *file* is a configuration
    file's name and content as YAML gives it.
    """
    texts: dict[str, tuple[str, Sequence[str]]] = {}
    if file is not None:
        texts.update(_from_file(*file))
    found, warnings = _from_environment(environment)
    texts.update(found)
    texts.update({name: (option(name), given) for name, given in flags.items()})
    values = {name: _value(name, where, given) for name, (where, given) in texts.items()}
    settings = Settings(**values)
    if all(zone.reverse for zone in settings.zone):
        raise Wrong(f"{texts['zone'][0]}: only reverse zones, expected one beside them for the names of Services")
    live = [name for name in ("kubeconfig", "context") if name in texts]
    if settings.snapshot and live:
        raise Wrong(f"{texts[live[0]][0]}: given beside {texts['snapshot'][0]}, expected one or the other")
    networks = [each.network for each in settings.subnet]
    for number, network in enumerate(networks):
        if network in networks[:number]:
            raise Wrong(f"{texts['subnet'][0]}: {network_text(network)} stands there twice, expected each network once")
    for network in dict.fromkeys(settings.trusted_forwarder):
        if network.length == 0:
            warnings.append(
                f"{texts['trusted_forwarder'][0]}: {network_text(network)} trusts everybody: whoever asks may name any "
                "address as the client's, and who names none is unknown"
            )
    if settings.client_source == {PODS}:
        warnings.append(
            f"{texts['client_source'][0]}: pods alone tell on which node a client is, but not in which zone"
        )
    return settings, warnings


def option(name: str) -> str:
    """Return a field's name as a flag."""
    return "--" + name.replace("_", "-")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...`` with the known word most like an unknown one."""
    near = difflib.get_close_matches(word, list(known), 1, 0.0)
    return f", did you mean {near[0]}?" if near else ""


def _value(name: str, where: str, given: Sequence[str]) -> Any:
    flag = FLAGS[name]
    values = []
    for text in given:
        try:
            values.append(flag.read(text))
        except ValueError as error:
            why = str(error)
            raise Wrong(
                f"{where}: {why if repr(text) in why else f'{text!r}: {why}'}, expected {flag.expected}"
            ) from None
    if flag.repeatable:
        return tuple(value for value in values if value is not None)
    if len(values) != 1:
        raise Wrong(f"{where}: {len(values)} values, expected one")
    return values[0]


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, tuple[str, list[str]]], list[str]]:
    known = {ENVIRONMENT + name.upper(): name for name in FLAGS}
    found, warnings = {}, []
    for variable, text in sorted(environment.items()):
        name = known.get(variable)
        if name is not None and not text.strip():
            continue  # manifests leave variables empty to say nothing
        if name is not None:
            found[name] = (variable, text.split() if FLAGS[name].repeatable else [text.strip()])
        elif (
            variable.startswith(ENVIRONMENT)
            and variable != f"{ENVIRONMENT}CONFIG"
            and not _SERVICE_LINKS.fullmatch(variable)
        ):
            warnings.append(f"{variable}: unknown environment variable{nearest(variable, known)}")
    return found, warnings


def _from_file(path: str, content: object) -> dict[str, tuple[str, list[str]]]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise Wrong(f"{path}: {type(content).__name__} found, expected settings as KEY: VALUE")
    known = {option(name).removeprefix("--"): name for name in FLAGS}
    found = {}
    for key, value in content.items():
        name = known.get(key)
        if name is None:
            raise Wrong(f"{path}: {key}: unknown key{nearest(str(key), known)}")
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, (dict, list)) or item is None for item in items):
            raise Wrong(f"{path}: {key}: {type(value).__name__} found, expected {FLAGS[name].expected}")
        found[name] = (f"{path}: {key}", [_scalar(item) for item in items])
    return found


def _scalar(item: object) -> str:
    return ("on" if item else "off") if isinstance(item, bool) else str(item)
