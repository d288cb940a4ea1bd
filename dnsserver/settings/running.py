# SPDX-License-Identifier: Apache-2.0

"""Settings of how the server, the controller and the webhook run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dnsserver.settings import values
from dnsserver.settings.flags import ENDING_LATE, SERVING, SERVING_HTTP, WRITING, repeatable, single, switch
from dnsserver.settings.values import (
    OFF,
    FederationSource,
    ListenAddress,
    any_text,
    choice,
    or_off,
    seconds,
    whole_number,
)
from locator.labels import Selector


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How the server runs."""

    listen: tuple[ListenAddress, ...] = repeatable(
        (),
        values.LISTEN_ADDRESS,
        help="Answer DNS over UDP and TCP at this address. Port 0 takes any free port",
        shown="127.0.0.1:1053; in a pod [::]:1053",
    )
    """A port above 1023 needs no capability."""

    http: ListenAddress | Literal["off"] | None = single(
        None,
        or_off(values.LISTEN_ADDRESS, OFF),
        help="Serve metrics and health checks over HTTP at this address. off: no HTTP",
        shown="127.0.0.1:9153; in a pod [::]:9153; console: a free port of 127.0.0.1",
        commands=SERVING_HTTP,
    )
    """9153 is CoreDNS's metrics port. If the default address cannot be bound, the server runs without HTTP; a given
    address that cannot be bound is an error."""

    console: bool | None = single(
        None,
        values.SWITCH,
        help="Serve the console and the HTTP API at the address of --http. They show names, addresses and labels of "
        "the cluster to everybody who reaches that address",
        shown="on if that is a loopback address, off otherwise",
    )
    """Metrics and health checks are served in any case. Console and API have no password of their own."""

    shutdown_delay: int | None = single(
        None,
        seconds(0, 3600),
        help="After SIGTERM, go on answering for this long while /readyz returns 503, and after that until nobody asks "
        "any more, for at most 5 s; then end. terminationGracePeriodSeconds of the pod must be 15 s longer",
        shown="12 in a pod, otherwise 0",
        commands=ENDING_LATE,
    )
    """A Service goes on sending to a pod that ends, until its readiness probe has failed and every kube-proxy knows.
    SIGINT (Ctrl-C) and a second SIGTERM end at once."""

    max_connections: int = single(
        4096,
        whole_number(1, 1_000_000),
        help="Maximum number of open TCP connections. At the limit, topodns closes the one that has been idle longest. "
        "One source has at most a quarter of them (but eight in any case), unless it is a trusted forwarder or a node",
    )
    """There is no limit per forwarder: CoreDNS opens one connection for each query in flight."""

    tcp_idle_timeout: int = single(30, seconds(1, 3600), help="Close a TCP connection that is idle for this long")
    """RFC 9210 asks for at least a few seconds. Forwarders keep their connections for 10 to 20 s."""

    max_queries_in_flight: int = single(
        128,
        whole_number(1, 65535),
        help="Maximum number of unanswered queries on one TCP connection. At the limit, topodns stops reading from the "
        "connection",
    )
    """Only queries that topodns resolves through --upstream have to wait."""

    max_udp_size: int = single(
        1232,
        whole_number(512, 4096),
        help="Maximum size of a UDP reply in octets, even if the client accepts more. Most clients ask again over TCP "
        "for what does not fit",
    )
    """1232 octets cross every network in one piece (DNS Flag Day 2020), and some networks lose fragments. More helps
    clients that do not use TCP, such as HAProxy."""

    native: str = single(
        "auto",
        choice("MODE", "auto", "off"),
        help="Whether native code repeats remembered answers over UDP: auto (if it is installed), or off",
    )
    """Off shows whether a fault is the native code's. The answers are the same, at several times the CPU time."""

    stale_after: int = single(
        60, seconds(1, 86400), help="Mark answers as stale once the API server has been unreachable for this long"
    )
    """A restarting API server is usually back within a minute."""

    state_dir: str | None = single(
        None,
        any_text("PATH", "a folder"),
        help="Save the state of the cluster to a file in this folder. After a restart, topodns answers from that file "
        "until it reaches the API server",
        shown="none",
    )
    """Lets a server that starts while the API server is down answer queries."""

    state_max_age: int = single(3600, seconds(1, 31_536_000), help="Ignore a state file that is older than this")
    """Kubernetes gives the address of a finished pod to another pod."""

    nsid: bytes | None = single(
        None,
        or_off(values.NSID, b""),
        help="Name that this server returns to clients that ask which server answered (NSID, RFC 5001). off: no name",
        shown="the host name",
    )
    """In a pod, the host name is the pod's name."""

    metrics_per_service: bool = switch(
        help="Count answers by Service, too, for 1000 Services at a time: their zones (topodns_answer_zones_total) and "
        "their outcomes (topodns_service_answers_total)"
    )
    """Off, because each Service adds a series for each zone and kind of answer."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """How what writes objects runs: the controller and, in part, the webhook."""

    lease: tuple[str, str] | None = single(
        None,
        values.OBJECT_KEY,
        help="Lease for leader election among replicas. Only the leader writes",
        shown="topodns-controller or topodns-webhook, in the namespace of the pod or of the kubeconfig's context",
        commands=WRITING,
    )
    """Two replicas that write at once would undo each other's work."""

    health: bool = switch(
        help="Probe the load balancers of Services that have the annotation topodns.io/health, in all clusters, and "
        "write the results as ServiceHealth objects, which 'serve' reads"
    )
    """Off, because the probes come from wherever the controller runs, and must get through firewalls."""

    federate: FederationSource | None = single(
        None,
        values.FEDERATION_SOURCE,
        help="Distribute the Services, workloads and what they need from this federation API, an API server of its "
        "own, to all clusters. NAME is the zone of the federated names",
        shown="none",
    )
    """Whoever may write to that API decides what runs in all clusters."""

    federate_selector: Selector | None = single(
        None, values.SELECTOR, help="Distribute only objects whose labels match this selector", shown="all"
    )
    """For a federation API that holds other things, too."""

    publish: bool = switch(
        help="Write a DNSEndpoint object for each federated name (--federation) that has load balancers, with their "
        "healthy addresses, so that external-dns publishes the name in other DNS services"
    )
    """Off, because names that were in the cluster's DNS alone are then in public DNS."""

    labels: tuple[str, ...] = repeatable(
        (),
        any_text("GLOB", "a pattern such as 'topology.kubernetes.io/*'"),
        help="Copy only the node labels that match this pattern into PodLocators",
        shown="all",
    )
    """Labels that no topology key uses make PodLocators larger and change them more often."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """Where the webhook answers, and its certificate."""

    webhook_listen: ListenAddress | None = single(
        None,
        values.LISTEN_ADDRESS,
        help="Answer AdmissionReviews over HTTPS at this address, at the path /mutate/endpointslices",
        shown="127.0.0.1:8443; in a pod [::]:8443",
    )
    """Firewalls between API servers and nodes often allow 8443 for webhooks."""

    tls_cert: str | None = single(
        None,
        any_text("PATH", "a file in PEM"),
        help="Serve this certificate, with the chain to its CA. It is read again when it changes. Needs --tls-key",
        shown="none: the webhook issues its own",
    )
    """For certificates by cert-manager or another authority, which also puts its CA into the webhook configuration."""

    tls_key: str | None = single(
        None, any_text("PATH", "a file in PEM"), help="The private key of --tls-cert", shown="none"
    )
    """It is read again when it changes."""

    tls_secret: tuple[str, str] | None = single(
        None,
        values.OBJECT_KEY,
        help="Keep the webhook's own certificate in this Secret, which all replicas share",
        shown="in a pod topodns-webhook in its namespace",
    )
    """Outside a pod, no namespace is certainly the webhook's own."""

    webhook_configuration: str | None = single(
        None,
        values.OBJECT_NAME,
        help="The MutatingWebhookConfiguration that calls the webhook. The webhook's own certificate is for the "
        "Service in it. The webhook puts its CA there; if it may not, it logs the command that does",
        shown="topodns-webhook",
    )
    """API servers trust the CAs in the configuration, and no others."""


@dataclass(frozen=True, kw_only=True)
class LoggingSettings:
    """What is logged."""

    log_format: str = single("text", choice("FORMAT", "text", "json"), help="Format of log lines: text or json")
    """JSON suits programs that collect logs."""

    log_level: str = single(
        "info",
        choice("LEVEL", "debug", "info", "warning", "error"),
        help="Log messages of this level and above: debug, info, warning or error",
    )
    """topodns logs single queries at debug level only."""

    log_queries: int | None = single(
        None,
        or_off(whole_number(1, 10_000), None),
        help="Write at most this many decisions a second to standard error, each as a line of JSON, drawn evenly from "
        "all of that second. Native code then repeats no answers. off: none",
        shown="off",
        commands=SERVING,
    )
    """Most who want to see queries want to see them now: 'topodns tail'."""
