# SPDX-License-Identifier: Apache-2.0

"""Settings of what is answered, and to whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dnsserver.names import DISABLED, INSECURE, VERIFIED, Zone, parse_zone
from dnsserver.settings import values
from dnsserver.settings.flags import SERVING, WITH_CLUSTERS, repeatable, several, single, switch
from dnsserver.settings.values import (
    HONOR,
    IGNORE,
    NODES,
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
from locator.model import CLUSTER, OWN_CLUSTER, REGION, ZONE
from locator.topology.selection import ANY_ENDPOINT


@dataclass(frozen=True, kw_only=True)
class AnswerSettings:
    """The names that topodns answers, and with what."""

    zone: tuple[Zone, ...] = several(
        tuple(map(parse_zone, ("cluster.local", "in-addr.arpa", "ip6.arpa"))),
        values.ZONES,
        help="Answer for the names in this zone; a network such as 10.96.0.0/12 means its reverse zones",
        shown="cluster.local, in-addr.arpa, ip6.arpa",
    )
    """The given zones replace the default zones. A file can give none, if there are federated or multi-cluster ones."""

    ttl: int = single(5, seconds(0, 3600), help="TTL of the records in an answer")
    """5 s is the default of CoreDNS: endpoints come and go."""

    ns_address: tuple[bytes, ...] = repeatable(
        (),
        values.ADDRESS,
        help="Address of the name server ns.dns.<zone>",
        shown="the listen addresses that are not wildcards",
    )
    """The address records that come with each zone's NS record."""

    serve_namespace: tuple[str, ...] = repeatable(
        (), values.NAMESPACE, help="Serve only the Services in this namespace", shown="all", old_name="namespace"
    )
    """Limits which Services are served, not which clients can be located."""

    namespace_selector: Selector | None = single(
        None, values.SELECTOR, help="Serve only Services whose namespace matches this selector", shown="all"
    )
    """If topodns knows no Namespace objects, no namespace matches."""

    service_selector: Selector | None = single(
        None, values.SELECTOR, help="Serve only Services that match this selector", shown="all"
    )
    """Works like ``labels`` of CoreDNS."""

    pods: str = single(
        DISABLED,
        choice("MODE", DISABLED, INSECURE, VERIFIED),
        help="Which names such as 10-0-0-1.shop.pod.<zone> exist: none (disabled), one for every address (insecure), "
        "or one for each pod of the namespace (verified)",
    )
    """Disabled, as in CoreDNS: ``insecure`` gives a name to any address that a client makes up."""

    endpoint_pod_names: bool = switch(help="Name endpoints without a hostname after their pod, not after their address")
    """Works like ``endpoint_pod_names`` of CoreDNS."""

    ignore_empty_service: bool = switch(help="Answer NXDOMAIN for a ClusterIP Service without ready endpoints")
    """The client then tries the next domain of its search path, which may belong to another cluster."""

    no_endpoints: bool = switch(help="Serve no endpoint records, and so no headless Services")
    """Works like ``noendpoints`` of CoreDNS."""

    zonal: str | None = single(
        ZONE,
        or_off(values.LABEL_KEY, None),
        help="Node label that zonal names select by: <value>.pin._zone.<service>... returns only the endpoints on "
        "nodes with that value, <value>.prefer._zone.<service>... returns all endpoints if no node with that value has "
        "one. off: no zonal names",
    )
    """On by default, because it affects only names that contain the label ``_zone``."""

    upstream: tuple[ListenAddress, ...] | None = repeatable(
        None,
        or_off(values.UPSTREAM_ADDRESS, None),
        help="Resolve the targets of ExternalName Services outside the served zones, and for federated names the host "
        "names of load balancers, through this DNS server. off: answer with the CNAME alone, and without those",
        shown="in a pod the name servers of its resolv.conf, else none",
        commands=WITH_CLUSTERS,
    )
    """Clients behind a stub zone do not follow a CNAME themselves."""

    default_topology_keys: tuple[ZoneKeys, ...] = repeatable(
        (),
        values.ZONE_KEYS,
        help="Topology keys, in order, for the Services that ask for none, if a client asks for them in this zone. * "
        "at the end means any endpoint. Serve the cluster in a second --zone, and give that one a default: clients "
        "then opt in by the name that they ask for",
        shown="none",
    )
    """A default for ``cluster.local`` itself would change answers that nobody asked to change."""

    traffic_distribution: str = single(
        HONOR,
        choice("MODE", HONOR, IGNORE),
        help="Whether a headless Service's trafficDistribution and the hints of its EndpointSlices choose endpoints, "
        "as kube-proxy does for cluster IPs: honor, or ignore",
    )
    """Kubernetes itself heeds both for virtual IPs only."""


@dataclass(frozen=True, kw_only=True)
class SeveralClustersSettings:
    """Other clusters, and the names that several clusters share."""

    cluster_name: str = single(
        OWN_CLUSTER,
        values.CLUSTER_NAME,
        help="Name of the own cluster, the value of the topology key topodns.io/cluster there",
        commands=WITH_CLUSTERS,
    )
    """Every server and controller should call a cluster by the same name."""

    cluster: tuple[ClusterSource, ...] = repeatable(
        (),
        values.CLUSTER_SOURCE,
        help="Read this other cluster, too: by a kubeconfig (its current context, or CONTEXT), or from a dump, a file "
        "or folder as for --snapshot",
        shown="none",
        commands=WITH_CLUSTERS,
    )
    """A cluster that cannot be reached costs the others nothing."""

    cluster_dir: str | None = single(
        None,
        any_text("PATH", "a folder"),
        help="Read the clusters in this folder, too, and follow it while it changes: a kubeconfig or dump for each, "
        "named for its cluster, such as us-east.yaml",
        shown="none",
        commands=WITH_CLUSTERS,
    )
    """Made for a mounted Secret. A cluster that comes or goes, or whose token is renewed, needs no restart."""

    cluster_max_age: int = single(
        3600,
        seconds(1, 31_536_000),
        help="Forget another cluster once it has been out of reach for this long",
        commands=(*SERVING, "controller"),
    )
    """An API server can be away while its cluster works. The own cluster is never forgotten."""

    flat_network: tuple[frozenset[str], ...] = repeatable(
        (),
        values.CLUSTER_NAMES,
        help="Clusters whose pods reach each other's addresses, so that federated names give endpoints among them",
        shown="none",
    )
    """Without it, clients of other clusters get the addresses of load balancers."""

    federation: tuple[Zone, ...] = several(
        (),
        values.OTHER_ZONE,
        help="Zone of federated names: SERVICE.NAMESPACE.<zone> is the exported Services of that name in all clusters, "
        "the nearest first",
        shown="none",
        commands=WITH_CLUSTERS,
    )
    """A Service is exported by a ServiceExport, or by the annotation ``topodns.io/federated: "true"``."""

    federation_topology_keys: tuple[str, ...] = single(
        (CLUSTER, ZONE, REGION, ANY_ENDPOINT),
        values.TOPOLOGY_KEYS,
        help="Topology keys, in order, for federated names whose Services ask for none",
        shown=",".join((CLUSTER, ZONE, REGION, ANY_ENDPOINT)),
    )
    """The own cluster first, then what is near."""

    federation_spares: int = single(
        2,
        whole_number(0, 16),
        help="How many addresses that are less near follow the nearest ones in answers to federated names, for clients "
        "that try one address after another",
    )
    """Few: a client that gives up on all of them has waited long enough to ask again."""

    multicluster: tuple[Zone, ...] = several(
        (),
        values.OTHER_ZONE,
        help="Answer for the names of multi-cluster Services (KEP-1645) in this zone, such as clusterset.local",
        shown="none",
    )
    """Works like ``multicluster`` of CoreDNS's plugin kubernetes."""


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Who asks, who may say so, and where that is."""

    unknown_client: str = single(
        "strict",
        choice("MODE", "strict", "all"),
        help="What a client that topodns cannot locate gets from a Service whose topology keys do not end with *: "
        "no endpoint (strict) or every ready endpoint (all)",
    )
    """``strict`` is what kube-proxy did for topologyKeys."""

    client_source: frozenset[str] = single(
        frozenset((PODS, NODES)),
        values.CLIENT_SOURCES,
        help="Kinds of objects to locate clients by, separated by commas: pods, podlocators, nodes. topodns does not "
        "watch the other kinds",
        shown="pods,nodes",
    )
    """5,000 nodes take less memory than 150,000 pods, and their pod CIDRs often locate clients as well."""

    subnet: tuple[Subnet, ...] = repeatable(
        (),
        values.SUBNET,
        help="Node labels to assume for clients in this network that nothing else locates: machines outside "
        "the cluster, or new pods of one without pod CIDRs, for which 'check' proposes this flag",
        shown="none",
    )
    """The longest prefix counts. An address that the cluster knows is located by the cluster first."""

    trusted_forwarder: tuple[Network, ...] = repeatable(
        (), values.NETWORK, help="Trust the client address that a forwarder in this network sends", shown="none"
    )
    """Adds to the endpoints of --forwarder-service."""

    forwarder_service: tuple[str, ...] | None = repeatable(
        None,
        or_off(values.SERVICE_KEY, None),
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
        help="Take the client's address (4 or 16 bytes) from this EDNS option if a trusted forwarder sends it",
        shown="off",
    )
    """Off, because CoreDNS passes on such an option unchanged if a pod sends one."""

    proxy_protocol: bool = switch(
        help="Take the client's address from a PROXY protocol header (version 2) if a trusted forwarder sends it",
        commands=SERVING,
    )
    """Takes precedence over --client-option, which takes precedence over EDNS client subnet. The latter is always
    on."""
