# SPDX-License-Identifier: Apache-2.0

"""Every setting of topodns: one frozen record, with the flag of each field.

Pure. ``reading`` builds the record from flags, environment variables and a file; ``values`` parses single values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from dnsserver.names import DISABLED, INSECURE, VERIFIED, Zone, parse_zone
from dnsserver.settings import values
from dnsserver.settings.flags import (
    ANSWERING,
    ANSWERS,
    ASKING,
    CHECKING,
    CLIENTS_AND_FORWARDERS,
    CLUSTER_TO_READ,
    CLUSTERS,
    CONTROLLER,
    CONTROLLING,
    DUMPING,
    EVERY_COMMAND,
    EXPLAINING,
    HINTING,
    LOGGING,
    OUTPUT,
    PROBING,
    READING,
    RUNNING,
    SERVER,
    SERVING,
    WEBHOOK,
    WRITING,
    Flag,
    flag_of,
    repeatable,
    several,
    single,
    switch,
)
from dnsserver.settings.values import (
    HONOR,
    IGNORE,
    NODES,
    OFF,
    PODS,
    ClusterSource,
    ListenAddress,
    Subnet,
    ZoneKeys,
    any_text,
    choice,
    or_off,
    seconds,
    whole_number,
)
from locator.ip import Network
from locator.labels import Selector
from locator.model import CLUSTER, ERROR, OWN_CLUSTER, REGION, WARNING, ZONE
from locator.topology.selection import ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the operator configures. A command reads the settings once, when it starts, and hands them down."""

    candidates: bool = switch(
        theme=OUTPUT, help="List every endpoint, and why it was chosen or not", commands=EXPLAINING
    )
    """Off, because a Service can have thousands of endpoints."""

    fail_on: str = single(
        ERROR,
        choice("SEVERITY", ERROR, WARNING),
        theme=OUTPUT,
        help="The least severe finding for which the exit status is 1: error or warning",
        commands=CHECKING,
    )
    """A warning may be meant; a pipeline that wants none says so."""

    snapshot: tuple[str, ...] = repeatable(
        (),
        any_text("PATH", "a file, a folder or -"),
        theme=CLUSTER_TO_READ,
        help="Read the cluster from this dump, not from an API server: a file or folder with the YAML or JSON that "
        "'kubectl get namespaces,nodes,pods,services,endpointslices -A -o yaml' prints, or - for standard input. "
        "'serve' reads it again when it changes and on SIGHUP",
        commands=(*READING, *DUMPING),
        shown="none",
    )
    """topodns merges several dumps. If an object is in two of them, the later one counts."""

    server: str | None = single(
        None,
        values.SERVER_URL,
        theme=CLUSTER_TO_READ,
        help="Ask the running server with its HTTP API at this URL: an address of 'serve --http' where --console is on",
        commands=ASKING,
        shown="tail: http://127.0.0.1:9153; explain: none, it reads the cluster itself",
    )
    """``explain`` then answers from what the server has read, by the server's settings."""

    kubeconfig: str | None = single(
        None,
        any_text("PATH", "a kubeconfig"),
        theme=CLUSTER_TO_READ,
        help="Read the live cluster of this kubeconfig",
        commands=EVERY_COMMAND,
        shown="in a pod its service account, else $KUBECONFIG or ~/.kube/config",
    )
    """Without --snapshot, topodns reads a live cluster."""

    context: str | None = single(
        None,
        any_text("NAME", "a context of the kubeconfig"),
        theme=CLUSTER_TO_READ,
        help="Use this context of the kubeconfig",
        commands=EVERY_COMMAND,
        shown="the current context",
    )
    """Works like ``kubectl --context``."""

    zone: tuple[Zone, ...] = several(
        tuple(map(parse_zone, ("cluster.local", "in-addr.arpa", "ip6.arpa"))),
        values.ZONES,
        theme=ANSWERS,
        help="Answer for the names in this zone; a network such as 10.96.0.0/12 means its reverse zones",
        shown="cluster.local, in-addr.arpa, ip6.arpa",
    )
    """The given zones replace the default zones. A file can give none, if there are federated or multi-cluster ones."""

    ttl: int = single(5, seconds(0, 3600), theme=ANSWERS, help="TTL of the records in an answer")
    """5 s is the default of CoreDNS: endpoints come and go."""

    ns_address: tuple[bytes, ...] = repeatable(
        (),
        values.ADDRESS,
        theme=ANSWERS,
        help="Address of the name server ns.dns.<zone>",
        shown="the listen addresses that are not wildcards",
    )
    """The address records that come with each zone's NS record."""

    serve_namespace: tuple[str, ...] = repeatable(
        (),
        values.NAMESPACE,
        theme=ANSWERS,
        help="Serve only the Services in this namespace",
        shown="all",
        old_name="namespace",
    )
    """Limits which Services are served, not which clients can be located."""

    namespace_selector: Selector | None = single(
        None,
        values.SELECTOR,
        theme=ANSWERS,
        help="Serve only Services whose namespace matches this selector",
        shown="all",
    )
    """If topodns knows no Namespace objects, no namespace matches."""

    service_selector: Selector | None = single(
        None, values.SELECTOR, theme=ANSWERS, help="Serve only Services that match this selector", shown="all"
    )
    """Works like ``labels`` of CoreDNS."""

    pods: str = single(
        DISABLED,
        choice("MODE", DISABLED, INSECURE, VERIFIED),
        theme=ANSWERS,
        help="Which names such as 10-0-0-1.shop.pod.<zone> exist: none (disabled), one for every address (insecure), "
        "or one for each pod of the namespace (verified)",
    )
    """Disabled, as in CoreDNS: ``insecure`` gives a name to any address that a client makes up."""

    endpoint_pod_names: bool = switch(
        theme=ANSWERS, help="Name endpoints without a hostname after their pod, not after their address"
    )
    """Works like ``endpoint_pod_names`` of CoreDNS."""

    ignore_empty_service: bool = switch(
        theme=ANSWERS, help="Answer NXDOMAIN for a ClusterIP Service without ready endpoints"
    )
    """The client then tries the next domain of its search path, which may belong to another cluster."""

    no_endpoints: bool = switch(theme=ANSWERS, help="Serve no endpoint records, and so no headless Services")
    """Works like ``noendpoints`` of CoreDNS."""

    zonal: str | None = single(
        ZONE,
        or_off(values.LABEL_KEY, None),
        theme=ANSWERS,
        help="Node label that zonal names select by: <value>.pin._zone.<service>... returns only the endpoints on "
        "nodes with that value, <value>.prefer._zone.<service>... returns all endpoints if no node with that value has "
        "one. off: no zonal names",
    )
    """On by default, because it affects only names that contain the label ``_zone``."""

    upstream: tuple[ListenAddress, ...] | None = repeatable(
        None,
        or_off(values.UPSTREAM_ADDRESS, None),
        theme=ANSWERS,
        help="Resolve the targets of ExternalName Services outside the served zones through this DNS server. off: "
        "answer with the CNAME alone",
        shown="in a pod the name servers of its resolv.conf, else none",
    )
    """Clients behind a stub zone do not follow a CNAME themselves."""

    default_topology_keys: tuple[ZoneKeys, ...] = repeatable(
        (),
        values.ZONE_KEYS,
        theme=ANSWERS,
        help="Topology keys, in order, for the Services that ask for none, if a client asks for them in this zone. * "
        "at the end means any endpoint. Serve the cluster in a second --zone, and give that one a default: clients "
        "then opt in by the name that they ask for",
        shown="none",
    )
    """A default for ``cluster.local`` itself would change answers that nobody asked to change."""

    traffic_distribution: str = single(
        HONOR,
        choice("MODE", HONOR, IGNORE),
        theme=ANSWERS,
        help="Whether a headless Service's trafficDistribution and the hints of its EndpointSlices choose endpoints, "
        "as kube-proxy does for cluster IPs: honor, or ignore",
    )
    """Kubernetes itself heeds both for virtual IPs only."""

    cluster_name: str = single(
        OWN_CLUSTER,
        values.CLUSTER_NAME,
        theme=CLUSTERS,
        help="Name of the own cluster, the value of the topology key topodns.io/cluster there",
        commands=PROBING,
    )
    """Every server and controller should call a cluster by the same name."""

    cluster: tuple[ClusterSource, ...] = repeatable(
        (),
        values.CLUSTER_SOURCE,
        theme=CLUSTERS,
        help="Read this other cluster, too: by a kubeconfig (its current context, or CONTEXT), or from a dump, a file "
        "or folder as for --snapshot",
        commands=PROBING,
        shown="none",
    )
    """A cluster that cannot be reached costs the others nothing."""

    cluster_max_age: int = single(
        3600,
        seconds(1, 31_536_000),
        theme=CLUSTERS,
        help="Forget another cluster once it has been out of reach for this long",
        commands=SERVING,
    )
    """An API server can be away while its cluster works. The own cluster is never forgotten."""

    flat_network: tuple[frozenset[str], ...] = repeatable(
        (),
        values.CLUSTER_NAMES,
        theme=CLUSTERS,
        help="Clusters whose pods reach each other's addresses, so that federated names give endpoints among them",
        shown="none",
    )
    """Without it, clients of other clusters get the addresses of load balancers."""

    federation: tuple[Zone, ...] = several(
        (),
        values.OTHER_ZONE,
        theme=CLUSTERS,
        help="Answer for federated names in this zone: SERVICE.NAMESPACE.<zone> is the exported Services of that name "
        "in all clusters, the nearest first",
        shown="none",
    )
    """A Service is exported by a ServiceExport, or by the annotation ``topodns.io/federated: "true"``."""

    federation_topology_keys: tuple[str, ...] = single(
        (CLUSTER, ZONE, REGION, ANY),
        values.TOPOLOGY_KEYS,
        theme=CLUSTERS,
        help="Topology keys, in order, for federated names whose Services ask for none",
        shown=",".join((CLUSTER, ZONE, REGION, ANY)),
    )
    """The own cluster first, then what is near."""

    federation_spares: int = single(
        2,
        whole_number(0, 16),
        theme=CLUSTERS,
        help="How many addresses that are less near follow the nearest ones in answers to federated names, for clients "
        "that try one address after another",
    )
    """Few: a client that gives up on all of them has waited long enough to ask again."""

    multicluster: tuple[Zone, ...] = several(
        (),
        values.OTHER_ZONE,
        theme=CLUSTERS,
        help="Answer for the names of multi-cluster Services (KEP-1645) in this zone, such as clusterset.local",
        shown="none",
    )
    """Works like ``multicluster`` of CoreDNS's plugin kubernetes."""

    unknown_client: str = single(
        "strict",
        choice("MODE", "strict", "all"),
        theme=CLIENTS_AND_FORWARDERS,
        help="What a client that topodns cannot locate gets from a Service whose topology keys do not end with *: "
        "no endpoint (strict) or every ready endpoint (all)",
    )
    """``strict`` is what kube-proxy did for topologyKeys."""

    client_source: frozenset[str] = single(
        frozenset((PODS, NODES)),
        values.CLIENT_SOURCES,
        theme=CLIENTS_AND_FORWARDERS,
        help="Kinds of objects to locate clients by, separated by commas: pods, podlocators, nodes. topodns does not "
        "watch the other kinds",
        shown="pods,nodes",
    )
    """5,000 nodes take less memory than 150,000 pods, and their pod CIDRs often locate clients as well."""

    subnet: tuple[Subnet, ...] = repeatable(
        (),
        values.SUBNET,
        theme=CLIENTS_AND_FORWARDERS,
        help="Node labels to assume for clients in this network that nothing else locates: machines outside "
        "the cluster, or new pods of one without pod CIDRs, for which 'check' proposes this flag",
        shown="none",
    )
    """The longest prefix counts. An address that the cluster knows is located by the cluster first."""

    trusted_forwarder: tuple[Network, ...] = repeatable(
        (),
        values.NETWORK,
        theme=CLIENTS_AND_FORWARDERS,
        help="Trust the client address that a forwarder in this network sends",
        shown="none",
    )
    """Adds to the endpoints of --forwarder-service."""

    forwarder_service: tuple[str, ...] | None = repeatable(
        None,
        or_off(values.SERVICE_KEY, None),
        theme=CLIENTS_AND_FORWARDERS,
        help="Trust the client address that an endpoint of this Service sends. Replaces the DNS Services that topodns "
        "discovers. off: trust no Service's endpoints",
        shown="discovered by name and label",
    )
    """With None, topodns discovers the cluster's own DNS: every Service in kube-system that is named kube-dns or
    labelled ``k8s-app: kube-dns``, and openshift-dns/dns-default. The cluster's DNS forwards the queries of every pod,
    so topodns trusts it to name clients."""

    client_option: int | None = single(
        None,
        or_off(values.OPTION_CODE, None),
        theme=CLIENTS_AND_FORWARDERS,
        help="Take the client's address (4 or 16 bytes) from this EDNS option if a trusted forwarder sends it",
        shown="off",
    )
    """Off, because CoreDNS passes on such an option unchanged if a pod sends one."""

    proxy_protocol: bool = switch(
        theme=CLIENTS_AND_FORWARDERS,
        help="Take the client's address from a PROXY protocol header (version 2) if a trusted forwarder sends it",
        commands=SERVING,
    )
    """Takes precedence over --client-option, which takes precedence over EDNS client subnet. The latter is always
    on."""

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
        help="Serve metrics and health checks over HTTP at this address. off: no HTTP",
        commands=RUNNING,
        shown="127.0.0.1:9153; in a pod [::]:9153; console: a free port of 127.0.0.1",
    )
    """9153 is CoreDNS's metrics port. If the default address cannot be bound, the server runs without HTTP; a given
    address that cannot be bound is an error."""

    console: bool | None = single(
        None,
        values.SWITCH,
        theme=SERVER,
        help="Serve the console and the HTTP API at the address of --http. They show names, addresses and labels of "
        "the cluster to everybody who reaches that address",
        commands=SERVING,
        shown="on if that is a loopback address, off otherwise",
    )
    """Metrics and health checks are served in any case. Console and API have no password of their own."""

    shutdown_delay: int | None = single(
        None,
        seconds(0, 3600),
        theme=SERVER,
        help="After SIGTERM, go on answering for this long while /readyz returns 503, and after that until nobody asks "
        "any more, for at most 5 s; then end. terminationGracePeriodSeconds of the pod must be 15 s longer",
        commands=ANSWERING,
        shown="12 in a pod, otherwise 0",
    )
    """A Service goes on sending to a pod that ends, until its readiness probe has failed and every kube-proxy knows.
    SIGINT (Ctrl-C) and a second SIGTERM end at once."""

    max_connections: int = single(
        4096,
        whole_number(1, 1_000_000),
        theme=SERVER,
        help="Maximum number of open TCP connections. At the limit, topodns closes the one that has been idle longest. "
        "One source has at most a quarter of them (but eight in any case), unless it is a trusted forwarder or a node",
        commands=SERVING,
    )
    """There is no limit per forwarder: CoreDNS opens one connection for each query in flight."""

    tcp_idle_timeout: int = single(
        30,
        seconds(1, 3600),
        theme=SERVER,
        help="Close a TCP connection that is idle for this long",
        commands=SERVING,
    )
    """RFC 9210 asks for at least a few seconds. Forwarders keep their connections for 10 to 20 s."""

    max_queries_in_flight: int = single(
        128,
        whole_number(1, 65535),
        theme=SERVER,
        help="Maximum number of unanswered queries on one TCP connection. At the limit, topodns stops reading from the "
        "connection",
        commands=SERVING,
    )
    """Only queries that topodns resolves through --upstream have to wait."""

    max_udp_size: int = single(
        1232,
        whole_number(512, 4096),
        theme=SERVER,
        help="Maximum size of a UDP reply in octets, even if the client accepts more. Most clients ask again over TCP "
        "for what does not fit",
        commands=SERVING,
    )
    """1232 octets cross every network in one piece (DNS Flag Day 2020), and some networks lose fragments. More helps
    clients that do not use TCP, such as HAProxy."""

    native: str = single(
        "auto",
        choice("MODE", "auto", "off"),
        theme=SERVER,
        help="Whether native code repeats remembered answers over UDP: auto (if it is installed), or off",
        commands=SERVING,
    )
    """Off shows whether a fault is the native code's. The answers are the same, at several times the CPU time."""

    stale_after: int = single(
        60,
        seconds(1, 86400),
        theme=SERVER,
        help="Mark answers as stale once the API server has been unreachable for this long",
        commands=SERVING,
    )
    """A restarting API server is usually back within a minute."""

    state_dir: str | None = single(
        None,
        any_text("PATH", "a folder"),
        theme=SERVER,
        help="Save the state of the cluster to a file in this folder. After a restart, topodns answers from that file "
        "until it reaches the API server",
        commands=SERVING,
        shown="none",
    )
    """Lets a server that starts while the API server is down answer queries."""

    state_max_age: int = single(
        3600,
        seconds(1, 31_536_000),
        theme=SERVER,
        help="Ignore a state file that is older than this",
        commands=SERVING,
    )
    """Kubernetes gives the address of a finished pod to another pod."""

    nsid: bytes | None = single(
        None,
        or_off(values.NSID, b""),
        theme=SERVER,
        help="Name that this server returns to clients that ask which server answered (NSID, RFC 5001). off: no name",
        commands=SERVING,
        shown="the host name",
    )
    """In a pod, the host name is the pod's name."""

    metrics_per_service: bool = switch(
        theme=SERVER,
        help="Count the zones of answers (topodns_answer_zones_total) by Service, too, for the first 1000 Services",
        commands=SERVING,
    )
    """Off, because each Service adds a series for each zone and kind of answer."""

    lease: tuple[str, str] | None = single(
        None,
        values.OBJECT_KEY,
        theme=CONTROLLER,
        help="Lease for leader election among replicas. Only the leader writes",
        commands=WRITING,
        shown="topodns-controller or topodns-webhook, in the namespace of the pod or of the kubeconfig's context",
    )
    """Two replicas that write at once would undo each other's work."""

    writes_per_second: int = single(
        50,
        whole_number(1, 10_000),
        theme=CONTROLLER,
        help="Maximum number of objects (PodLocators, EndpointSlices) to write per second",
        commands=WRITING,
    )
    """At this rate, writing 150,000 PodLocators takes 50 minutes and is a light load for an API server."""

    health: bool = switch(
        theme=CONTROLLER,
        help="Probe the load balancers of Services that have the annotation topodns.io/health, in all clusters, and "
        "write the results as ServiceHealth objects, which 'serve' reads",
        commands=CONTROLLING,
    )
    """Off, because the probes come from wherever the controller runs, and must get through firewalls."""

    labels: tuple[str, ...] = repeatable(
        (),
        any_text("GLOB", "a pattern such as 'topology.kubernetes.io/*'"),
        theme=CONTROLLER,
        help="Copy only the node labels that match this pattern into PodLocators",
        shown="all",
        commands=CONTROLLING,
    )
    """Labels that no topology key uses make PodLocators larger and change them more often."""

    webhook_listen: ListenAddress | None = single(
        None,
        values.LISTEN_ADDRESS,
        theme=WEBHOOK,
        help="Answer AdmissionReviews over HTTPS at this address, at the path /mutate/endpointslices",
        commands=HINTING,
        shown="127.0.0.1:8443; in a pod [::]:8443",
    )
    """Firewalls between API servers and nodes often allow 8443 for webhooks."""

    tls_cert: str | None = single(
        None,
        any_text("PATH", "a file in PEM"),
        theme=WEBHOOK,
        help="Serve this certificate, with the chain to its CA. It is read again when it changes. Needs --tls-key",
        commands=HINTING,
        shown="none: the webhook issues its own",
    )
    """For certificates by cert-manager or another authority, which also puts its CA into the webhook configuration."""

    tls_key: str | None = single(
        None,
        any_text("PATH", "a file in PEM"),
        theme=WEBHOOK,
        help="The private key of --tls-cert",
        commands=HINTING,
        shown="none",
    )
    """It is read again when it changes."""

    tls_secret: tuple[str, str] | None = single(
        None,
        values.OBJECT_KEY,
        theme=WEBHOOK,
        help="Keep the webhook's own certificate in this Secret, which all replicas share",
        commands=HINTING,
        shown="in a pod topodns-webhook in its namespace",
    )
    """Outside a pod, no namespace is certainly the webhook's own."""

    webhook_configuration: str | None = single(
        None,
        values.OBJECT_NAME,
        theme=WEBHOOK,
        help="The MutatingWebhookConfiguration that calls the webhook. The webhook's own certificate is for the "
        "Service in it. The webhook puts its CA there; if it may not, it logs the command that does",
        commands=HINTING,
        shown="topodns-webhook",
    )
    """API servers trust the CAs in the configuration, and no others."""

    log_format: str = single(
        "text",
        choice("FORMAT", "text", "json"),
        theme=LOGGING,
        help="Format of log lines: text or json",
        commands=EVERY_COMMAND,
    )
    """JSON suits programs that collect logs."""

    log_level: str = single(
        "info",
        choice("LEVEL", "debug", "info", "warning", "error"),
        theme=LOGGING,
        help="Log messages of this level and above: debug, info, warning or error",
        commands=EVERY_COMMAND,
    )
    """topodns logs single queries at debug level only."""

    log_queries: int | None = single(
        None,
        or_off(whole_number(1, 10_000), None),
        theme=LOGGING,
        help="Write at most this many decisions a second to standard error, each as a line of JSON, drawn evenly from "
        "all of that second. Native code then repeats no answers. off: none",
        commands=SERVING,
        shown="off",
    )
    """Most who want to see queries want to see them now: 'topodns tail'."""


FLAGS: Mapping[str, Flag] = {setting.name: flag_of(setting) for setting in fields(Settings)}
OLD_NAMES: Mapping[str, str] = {flag.old_name: name for name, flag in FLAGS.items() if flag.old_name}
