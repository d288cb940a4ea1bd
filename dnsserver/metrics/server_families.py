# SPDX-License-Identifier: Apache-2.0

"""The metrics of a server: of its queries, and of what it knows of clusters."""

from __future__ import annotations

from dnsserver.message.wire import RCODES
from dnsserver.metrics.counters import ADDRESS, BLOCK, COUNTED_TYPES, MAX_SERVICES, OTHER, SUSPICIOUS_CLIENTS
from dnsserver.metrics.families import ANY, COUNTER, GAUGE, HISTOGRAM, Family
from locator.api.list_watch import REASONS
from locator.places.book import LOCATED_BY
from locator.topology.selection import OUTCOMES

# Whether the endpoints in an answer are in the client's zone: all, some, none; or it is not known.
SAME, SOME, ELSEWHERE, UNKNOWN = RELATIONS = "same", "some", "other", "unknown"

REQUESTS = Family(
    "topodns_dns_requests", COUNTER, "Queries received.",
    {"proto": ("udp", "tcp"), "family": ("1", "2"), "type": (*COUNTED_TYPES, OTHER)},
)  # fmt: skip
RESPONSES = Family("topodns_dns_responses", COUNTER, "Replies sent.", {"rcode": tuple(RCODES.values())})
REQUEST_DURATION = Family(
    "topodns_dns_request_duration_seconds", HISTOGRAM, "Time from receiving a query to sending its reply."
)
TRUNCATED = Family("topodns_dns_response_truncated", COUNTER, "Replies sent with the TC bit.")
ANSWERS = Family("topodns_answers", COUNTER, "Answers by how their endpoints were chosen.", {"outcome": OUTCOMES})
ANSWER_TIER = Family("topodns_answer_tier", COUNTER, "Answers by the topology key that decided.", {"key": ANY})
ANSWER_ZONES = Family(
    "topodns_answer_zones",
    COUNTER,
    "Answers with endpoints, by the client's zone, and by whether the endpoints are in it: all (same), some, or none "
    "(other). With --metrics-per-service also by service_namespace and service_name, which are empty for all Services "
    f"after the first {MAX_SERVICES}.",
    {"client_zone": ANY, "answer": RELATIONS},
)
CLIENTS = Family("topodns_clients", COUNTER, "Queries by how topodns located the client.", {"located_by": LOCATED_BY})
FORWARDED_WITHOUT_CLIENT = Family(
    "topodns_forwarded_without_client",
    COUNTER,
    "Queries from trusted forwarders that named no client.",
    {"forwarder": ANY},
)
SUBNETS_IGNORED = Family(
    "topodns_client_subnets_ignored",
    COUNTER,
    "Queries that named a client but did not come from a trusted forwarder.",
    {"source": ANY},
)
UNTRUSTED_FORWARDERS = Family(
    "topodns_untrusted_forwarders",
    GAUGE,
    f"Sources that are no trusted forwarder and have named {SUSPICIOUS_CLIENTS} clients, each with the value 1.",
    {"source": ANY},
)
UNLOCATED_CLIENTS = Family(
    "topodns_unlocated_clients",
    COUNTER,
    "Queries of clients that nothing locates, by what was looked up and the /24 or /64 around it.",
    {"reason": (ADDRESS, BLOCK), "range": ANY},
)
PROBES = Family(
    "topodns_probes",
    COUNTER,
    "Queries of topodns doctor, which say so by an EDNS option: requests as all others, but of no client.",
)
MALFORMED_PROXY_HEADERS = Family(
    "topodns_malformed_proxy_headers",
    COUNTER,
    "Queries dropped (UDP) and connections closed (TCP) for a malformed PROXY header.",
    {"proto": ("udp", "tcp")},
)
REMEMBERED = Family(
    "topodns_remembered", COUNTER, "Replies, remembered (hit) or computed (miss).", {"result": ("hit", "miss")}
)
UPSTREAM_REQUESTS = Family(
    "topodns_upstream_requests",
    COUNTER,
    "Queries that needed a name outside the zones, by result; refused: their namespace had used up its share.",
    {"result": ("remembered", "answered", "failed", "refused")},
)
SILENT = Family("topodns_silent", COUNTER, "Packets that got no reply.")
TCP_CONNECTIONS = Family("topodns_tcp_connections", GAUGE, "Open TCP connections.")

# Of the cluster.
PROGRAMMING_DURATION = Family(
    "topodns_kubernetes_dns_programming_duration_seconds",
    HISTOGRAM,
    "Time from the change of an EndpointSlice to answers that show it.",
)
INVALID_CONSTRAINTS = Family("topodns_invalid_constraints", GAUGE, "Services whose constraint is invalid.")
DISTRUSTED_POD_CIDRS = Family(
    "topodns_distrusted_pod_cidrs",
    GAUGE,
    "Pod CIDRs that topodns does not trust, because an endpoint in them is on another node.",
)
SNAPSHOT_RELOADS = Family(
    "topodns_snapshot_reloads", COUNTER, "Reloads of the --snapshot files.", {"result": ("success", "failure")}
)
CLUSTER_OBJECTS = Family(
    "topodns_cluster_objects", GAUGE, "Objects read from another cluster, by kind.",
    {"source_cluster": ANY, "kind": ANY}, "`--cluster`",
)  # fmt: skip
CLUSTER_VIEW_AGE = Family(
    "topodns_cluster_view_age_seconds", GAUGE,
    "For how long a cluster is out of reach, 0 while there is contact; the own one is called --cluster-name.",
    {"source_cluster": ANY},
)  # fmt: skip
CLUSTER_SYNCED = Family(
    "topodns_cluster_synced", GAUGE, "Whether all objects of a kind in another cluster have been read.",
    {"source_cluster": ANY, "kind": ANY}, "`--cluster`",
)  # fmt: skip
CLUSTER_WATCH_RESTARTS = Family(
    "topodns_cluster_watch_restarts", COUNTER, "Watches of another cluster restarted, by kind and reason.",
    {"source_cluster": ANY, "kind": ANY, "reason": REASONS}, "`--cluster`",
)  # fmt: skip
HEALTH_VOTES = Family(
    "topodns_health_votes", GAUGE, "Load balancer addresses on which a cluster has a vote.",
    {"source_cluster": ANY}, "several clusters",
)  # fmt: skip

OF_QUERIES = (
    REQUESTS, RESPONSES, REQUEST_DURATION, TRUNCATED, ANSWERS, ANSWER_TIER, ANSWER_ZONES, CLIENTS,
    FORWARDED_WITHOUT_CLIENT, SUBNETS_IGNORED, UNTRUSTED_FORWARDERS, UNLOCATED_CLIENTS, PROBES,
    MALFORMED_PROXY_HEADERS,
    REMEMBERED, UPSTREAM_REQUESTS, SILENT, TCP_CONNECTIONS,
)  # fmt: skip
OF_THE_CLUSTER = (
    PROGRAMMING_DURATION, INVALID_CONSTRAINTS, DISTRUSTED_POD_CIDRS, SNAPSHOT_RELOADS, CLUSTER_OBJECTS,
    CLUSTER_VIEW_AGE, CLUSTER_SYNCED, CLUSTER_WATCH_RESTARTS, HEALTH_VOTES,
)  # fmt: skip


def relation(zone: str, answered: frozenset[str]) -> str:
    """Return whether the zones of the endpoints in an answer are the client's; "" stands for an unknown zone."""
    if not zone:
        return UNKNOWN
    if zone in answered:
        return SAME if len(answered) == 1 else SOME
    return UNKNOWN if "" in answered else ELSEWHERE
