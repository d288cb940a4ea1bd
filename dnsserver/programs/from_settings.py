# SPDX-License-Identifier: Apache-2.0

"""Makes from the settings what several commands start with: the store, the authority, the live cluster.

``topodns check`` and ``topodns explain`` run without a server, so this module imports no server.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dnsserver.answers.decision import Authority
from dnsserver.names import FEDERATION, MULTICLUSTER, VERIFIED
from dnsserver.net.sockets import WILDCARDS, default_listen, in_pod
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import HONOR, NODES, POD_LOCATORS, PODS, ListenAddress
from locator.federation.clusterset import ClusterSet
from locator.federation.federating import Joining, default_constraint, flat_pairs
from locator.ip import Network
from locator.model import OWN_CLUSTER
from locator.printable import shell_words
from locator.state.store import Store, StoreOptions
from locator.topology.scope import Scope

if TYPE_CHECKING:
    from dnsserver.responder.replies import ReplyOptions
    from locator.cluster.api_client import ApiClient

log = logging.getLogger("topodns")

DEFAULT_PORT = 1053
HTTP_PORT = 9153  # as CoreDNS' metrics
RESOLV_CONF = "/etc/resolv.conf"


def store_of(settings: Settings) -> Store:
    """Return an empty store for the Services, clients and networks of the own cluster that the settings describe."""
    return Store(
        StoreOptions(
            cluster=settings.cluster_name,
            subnets=_subnets_of(settings),
            forwarders=settings.trusted_forwarder,
            forwarder_services=settings.forwarder_service,
            pods=PODS in settings.client_source,
            pod_locators=POD_LOCATORS in settings.client_source,
            nodes=NODES in settings.client_source,
            pod_names=settings.pods == VERIFIED,
            scope=_scope_of(settings),
            endpoint_records=not settings.no_endpoints,
            honor_kubernetes=settings.traffic_distribution == HONOR,
            default_keys={default.zone.name: default.keys for default in settings.default_topology_keys},
            exports=bool(settings.federation),
            imports=bool(settings.multicluster),
        )
    )


def other_store_of(settings: Settings, cluster: str) -> Store:
    """Return an empty store for another cluster: for its clients, and for the Services that it exports."""
    return Store(
        StoreOptions(
            cluster=cluster,
            subnets=_subnets_of(settings),
            pods=PODS in settings.client_source,
            pod_locators=POD_LOCATORS in settings.client_source,
            nodes=NODES in settings.client_source,
            scope=_scope_of(settings),
            endpoint_records=not settings.no_endpoints,
            exports=bool(settings.federation),
            nodes_by_name=bool(settings.multicluster),
            balances=False,  # their names are answered there
        )
    )


def cluster_set_of(settings: Settings) -> ClusterSet | None:
    """Return what reads all clusters as one, the own one at first; None if nothing needs more than that."""
    if not _reads_several(settings):
        return None
    default = default_constraint(settings.federation_topology_keys)
    return ClusterSet(
        settings.cluster_name,
        Joining(flat_pairs(settings.flat_network), default, resolves=bool(upstream_of(settings))),
        honor_kubernetes=settings.traffic_distribution == HONOR,
    )


def _reads_several(settings: Settings) -> bool:
    several = settings.cluster or settings.cluster_dir is not None
    return bool(several or settings.federation or settings.multicluster)


def _subnets_of(settings: Settings) -> dict[Network, dict[str, str]]:
    return {subnet.network: dict(subnet.labels) for subnet in settings.subnet}


def _scope_of(settings: Settings) -> Scope:
    return Scope(frozenset(settings.serve_namespace), settings.namespace_selector, settings.service_selector)


def authority_of(settings: Settings) -> Authority:
    """Return the zones, and how a server answers for them."""
    listen = [address.address for address in listen_of(settings) if address.address not in WILDCARDS]
    return Authority(
        zones=(
            *settings.zone,
            *(replace(zone, about=FEDERATION) for zone in settings.federation),
            *(replace(zone, about=MULTICLUSTER) for zone in settings.multicluster),
        ),
        ttl=settings.ttl,
        addresses=settings.ns_address or tuple(dict.fromkeys(listen)),
        unknown_gets_all=settings.unknown_client == "all",
        spares=settings.federation_spares,
        tells_clusters=settings.cluster_name != OWN_CLUSTER or _reads_several(settings),
        pods=settings.pods,
        endpoint_pod_names=settings.endpoint_pod_names,
        ignore_empty_service=settings.ignore_empty_service,
        zonal=settings.zonal,
        has_upstream=bool(upstream_of(settings)),
        default_keys={default.zone.name: default.keys for default in settings.default_topology_keys},
    )


def reply_options_of(settings: Settings) -> ReplyOptions:
    """Return how a server reads queries and writes replies. Its NSID is the host name unless another is set."""
    from dnsserver.responder.replies import ReplyOptions  # nothing but a server replies

    nsid = socket.gethostname().encode() if settings.nsid is None else settings.nsid
    return ReplyOptions(settings.client_option, settings.proxy_protocol, nsid, settings.max_udp_size)


def upstream_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return the name servers to ask for names outside the zones; empty if there are none."""
    if settings.upstream is not None:
        return settings.upstream
    if not in_pod():
        return ()
    from dnsserver.net import upstream  # imports dnspython, which nothing else here needs

    try:
        return upstream.servers_in(RESOLV_CONF)
    except upstream.NoServers as error:
        log.warning("--upstream: %s; targets of ExternalName Services are not resolved", error)
        return ()


def listen_of(settings: Settings) -> tuple[ListenAddress, ...]:
    """Return the addresses on which a server answers DNS."""
    return settings.listen or (default_listen(DEFAULT_PORT),)


def kubectl_of(settings: Settings) -> str:
    """Return the kubectl command that reaches the live cluster of the settings, for a shell."""
    flags = (("--kubeconfig", settings.kubeconfig), ("--context", settings.context))
    return shell_words("kubectl", *(word for flag, value in flags if value is not None for word in (flag, value)))


def tried_by_kubectl(settings: Settings, *, credentials: bool = False) -> str:
    """Return the end of a message about an API server: which kubectl command shows whether it responds.

    With *credentials* the command shows as whom the API server takes the user.
    """
    if settings.kubeconfig is None and settings.context is None and in_pod():
        return ""  # an image has no kubectl
    shows = "cluster-info' shows whether it responds to kubectl"
    if credentials:
        shows = "auth whoami' shows as whom the API server takes you"
    return f"; '{kubectl_of(settings)} {shows}"


def cluster_of(settings: Settings) -> ApiClient:
    """Return a client of the live cluster that the settings name. Raises BadCluster."""
    from locator.cluster.api_client import ApiClient  # imports urllib3, which reading files does not need

    return ApiClient(kubeconfig=settings.kubeconfig, context=settings.context)
