"""Every setting of topodns: one frozen record, and for each field the flag that it is given by.

Pure. ``reading`` makes the record from flags, environment and file; ``values`` says how single values are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from dnsserver.names import DISABLED, INSECURE, VERIFIED, Zone, parse_zone
from dnsserver.settings import values
from dnsserver.settings.flags import (
    ALL,
    ANSWERS,
    CLIENTS,
    CLUSTER,
    CONTROLLER,
    CONTROLLING,
    LOGGING,
    RUNNING,
    SERVER,
    SERVING,
    Flag,
    flag_of,
    repeatable,
    single,
    switch,
)
from dnsserver.settings.values import (
    NODES,
    OFF,
    PODS,
    ListenAddress,
    Subnet,
    any_text,
    choice,
    or_off,
    seconds,
    whole_number,
)
from locator.ip import Network
from locator.labels import Selector
from locator.model import ZONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator tells topodns. Read once, when a command starts, and handed down."""

    snapshot: tuple[str, ...] = repeatable(
        (),
        any_text("PATH", "a file, a folder or -"),
        theme=CLUSTER,
        help="Read the cluster from a snapshot: what 'kubectl get namespaces,nodes,pods,services,endpointslices -A "
        "-o yaml' prints, as YAML or JSON, in a file, in a folder, or on standard input (-). 'serve' reads it again "
        "when it changes and on SIGHUP",
        shown="none",
    )
    """Several snapshots are merged. If an object stands in two of them, the later one counts."""

    kubeconfig: str | None = single(
        None,
        any_text("PATH", "a kubeconfig"),
        theme=CLUSTER,
        help="Read the live cluster that this kubeconfig names",
        commands=ALL,
        shown="in a pod its service account, else $KUBECONFIG or ~/.kube/config",
    )
    """Without --snapshot, topodns reads a live cluster."""

    context: str | None = single(
        None,
        any_text("NAME", "a context of the kubeconfig"),
        theme=CLUSTER,
        help="Use this context of the kubeconfig",
        commands=ALL,
        shown="the current context",
    )
    """Works like ``kubectl --context``."""

    zone: tuple[Zone, ...] = repeatable(
        tuple(map(parse_zone, ("cluster.local", "in-addr.arpa", "ip6.arpa"))),
        values.ZONE_NAME,
        theme=ANSWERS,
        help="Answer for the names in this zone",
        shown="cluster.local, in-addr.arpa, ip6.arpa",
    )
    """Zones that are given replace the default; they are not added to it."""

    ttl: int = single(5, seconds(0, 3600), theme=ANSWERS, help="TTL of the records in an answer")
    """5 s is the default of CoreDNS: endpoints come and go."""

    ns_address: tuple[bytes, ...] = repeatable(
        (),
        values.ADDRESS,
        theme=ANSWERS,
        help="Address of the name server ns.dns.<zone>",
        shown="the listen addresses that are not wildcards",
    )
    """The glue of the zone's NS record carries these addresses."""

    namespace: tuple[str, ...] = repeatable(
        (), values.NAMESPACE, theme=ANSWERS, help="Serve only the Services in this namespace", shown="all"
    )
    """Limits which Services are served, never who can be located."""

    namespace_selector: Selector | None = single(
        None, values.SELECTOR, theme=ANSWERS, help="Serve only Services whose namespace has these labels", shown="all"
    )
    """A cluster without Namespace objects has no namespace that matches."""

    service_selector: Selector | None = single(
        None, values.SELECTOR, theme=ANSWERS, help="Serve only Services that have these labels", shown="all"
    )
    """Works like ``labels`` of CoreDNS."""

    pods: str = single(
        DISABLED,
        choice("MODE", DISABLED, INSECURE, VERIFIED),
        theme=ANSWERS,
        help="Which names such as 10-0-0-1.shop.pod.<zone> exist: none (disabled), those of every address (insecure), "
        "or those of the pods in the namespace (verified)",
    )
    """Disabled, as in CoreDNS: otherwise anyone could get a name for any address."""

    endpoint_pod_names: bool = switch(
        theme=ANSWERS, help="Name an endpoint that has no hostname after its pod, not after its address"
    )
    """Works like ``endpoint_pod_names`` of CoreDNS."""

    ignore_empty_service: bool = switch(
        theme=ANSWERS, help="Answer NXDOMAIN for a ClusterIP Service that has no ready endpoint"
    )
    """The client then tries the next domain of its search path, which may be another cluster's."""

    no_endpoints: bool = switch(theme=ANSWERS, help="Serve no endpoint records, and so no headless Services")
    """Works like ``noendpoints`` of CoreDNS."""

    zonal: str | None = single(
        ZONE,
        or_off(values.LABEL_KEY, None),
        theme=ANSWERS,
        help="Node label that zonal names refer to: <value>.pin._zone.<service>... gives only the endpoints whose node "
        "has this value of the label, <value>.prefer._zone.<service>... gives all if there is none",
    )
    """On by default, because only names with the label ``_zone`` are affected."""

    upstream: tuple[ListenAddress, ...] | None = repeatable(
        None,
        or_off(values.UPSTREAM_ADDRESS, None),
        theme=ANSWERS,
        help="Ask this DNS server for the targets of ExternalName Services outside the served zones",
        shown="in a pod the name servers of its resolv.conf, else none",
    )
    """The clients of a stub zone do not follow a CNAME themselves."""

    unknown_client: str = single(
        "strict",
        choice("MODE", "strict", "all"),
        theme=CLIENTS,
        help="What a client that topodns cannot locate gets from a Service whose topology keys do not end with *: "
        "no endpoint (strict) or every ready endpoint (all)",
    )
    """Strict is what kube-proxy did for topologyKeys."""

    client_source: frozenset[str] = single(
        frozenset((PODS, NODES)),
        values.CLIENT_SOURCES,
        theme=CLIENTS,
        help="Objects to locate clients by, separated by commas: pods, podlocators, nodes. topodns does not watch "
        "the others",
        shown="pods,nodes",
    )
    """5,000 nodes take less memory than 150,000 pods, and their pod CIDRs often say as much."""

    subnet: tuple[Subnet, ...] = repeatable(
        (), values.SUBNET, theme=CLIENTS, help="Labels of the clients in a network outside the cluster", shown="none"
    )
    """The longest prefix counts. What the cluster says of an address counts before any subnet."""

    trusted_forwarder: tuple[Network, ...] = repeatable(
        (),
        values.NETWORK,
        theme=CLIENTS,
        help="Let the forwarders in this network tell who the client is",
        shown="none",
    )
    """Adds to the endpoints of --forwarder-service."""

    forwarder_service: tuple[str, ...] | None = repeatable(
        None,
        or_off(values.SERVICE_KEY, None),
        theme=CLIENTS,
        help="Let the endpoints of this Service tell who the client is, instead of those of the DNS Services that "
        "topodns discovers",
        shown="found by name and label",
    )
    """None discovers the cluster's own DNS: every Service of kube-system that is called kube-dns or labelled
    ``k8s-app: kube-dns``, and openshift-dns/dns-default. It forwards the queries of every pod, so topodns trusts
    what it says of clients."""

    client_option: int | None = single(
        None,
        or_off(values.OPTION_CODE, None),
        theme=CLIENTS,
        help="Take the client's address (4 or 16 bytes) from this EDNS option if a trusted forwarder sends it",
        shown="off",
    )
    """Off, because CoreDNS passes on whatever a pod puts into such an option."""

    proxy_protocol: bool = switch(
        theme=CLIENTS,
        help="Take the client's address from a PROXY protocol header (version 2) if a trusted forwarder sends it",
        commands=SERVING,
    )
    """Counts before --client-option, and that before EDNS client subnet, which is always on."""

    listen: tuple[ListenAddress, ...] = repeatable(
        (),
        values.LISTEN_ADDRESS,
        theme=SERVER,
        help="Answer DNS over UDP and TCP at this address. Port 0 takes any free port",
        shown="127.0.0.1:1053; in a pod [::]:1053",
        commands=SERVING,
    )
    """A port above 1023 needs no capability."""

    http: ListenAddress | Literal["off"] | None = single(
        None,
        or_off(values.LISTEN_ADDRESS, OFF),
        theme=SERVER,
        help="Serve metrics and health over HTTP at this address",
        commands=RUNNING,
        shown="127.0.0.1:9153; in a pod [::]:9153",
    )
    """9153 is the port of CoreDNS's metrics. If only the default cannot be bound, the server runs without HTTP."""

    max_connections: int = single(
        4096,
        whole_number(1, 1_000_000),
        theme=SERVER,
        help="Maximum number of open TCP connections. At the limit, topodns closes the one that is idle the longest",
        commands=SERVING,
    )
    """CoreDNS opens one connection for each query in flight, so no forwarder has a limit of its own."""

    tcp_idle_timeout: int = single(
        30,
        seconds(1, 3600),
        theme=SERVER,
        help="Close a TCP connection that is idle for this long",
        commands=SERVING,
    )
    """RFC 9210 asks for some seconds at least. Forwarders keep their connections for 10 to 20 s."""

    max_queries_in_flight: int = single(
        128,
        whole_number(1, 65535),
        theme=SERVER,
        help="Maximum number of queries on one TCP connection that wait for an answer. At the limit, topodns stops "
        "reading from the connection",
        commands=SERVING,
    )
    """Only queries that --upstream is asked for have to wait."""

    stale_after: int = single(
        60,
        seconds(1, 86400),
        theme=SERVER,
        help="Mark answers as stale once the API server has been out of reach for this long",
        commands=SERVING,
    )
    """An API server that restarts is back within a minute."""

    state_dir: str | None = single(
        None,
        any_text("PATH", "a folder"),
        theme=SERVER,
        help="Save the view of the cluster in this folder, and answer from it after a restart until the API server "
        "is reached",
        commands=SERVING,
        shown="none",
    )
    """A server that starts while the API server is down can then answer."""

    state_max_age: int = single(
        3600,
        seconds(1, 31_536_000),
        theme=SERVER,
        help="Ignore a saved view that is older than this",
        commands=SERVING,
    )
    """Kubernetes gives the addresses of pods that have ended to other pods."""

    nsid: bytes | None = single(
        None,
        or_off(values.NSID, b""),
        theme=SERVER,
        help="Name of this server, for clients that ask which server has answered (NSID, RFC 5001)",
        commands=SERVING,
        shown="the host name",
    )
    """In a pod the host name is the name of the pod."""

    lease: tuple[str, str] | None = single(
        None,
        values.OBJECT_KEY,
        theme=CONTROLLER,
        help="Lease that replicas compete for. Only its holder writes",
        commands=CONTROLLING,
        shown="topodns-controller in the namespace of the pod or of the kubeconfig's context",
    )
    """Two controllers that wrote at once would undo each other's work."""

    writes_per_second: int = single(
        50,
        whole_number(1, 10_000),
        theme=CONTROLLER,
        help="Maximum number of PodLocators to write per second",
        commands=CONTROLLING,
    )
    """At this rate 150,000 PodLocators take 50 minutes, and an API server that serves others hardly notices."""

    labels: tuple[str, ...] = repeatable(
        (),
        any_text("GLOB", "a pattern such as 'topology.kubernetes.io/*'"),
        theme=CONTROLLER,
        help="Copy only the node labels that match this pattern into PodLocators",
        shown="all",
        commands=CONTROLLING,
    )
    """Labels that no topology key names make the objects large, and more of them change."""

    log_format: str = single(
        "text",
        choice("FORMAT", "text", "json"),
        theme=LOGGING,
        help="Format of log lines",
        commands=ALL,
    )
    """JSON is for programs that collect logs."""

    log_level: str = single(
        "info",
        choice("LEVEL", "debug", "info", "warning", "error"),
        theme=LOGGING,
        help="Log messages of this level and above",
        commands=ALL,
    )
    """Above debug, topodns logs nothing for a single query."""


FLAGS: Mapping[str, Flag] = {setting.name: flag_of(setting) for setting in fields(Settings)}
