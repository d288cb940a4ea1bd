# SPDX-License-Identifier: Apache-2.0

"""The annotations that topodns reads in a Service: their names, and how their values are written.

The ValidatingAdmissionPolicy in ``manifests/chart/files/admission`` has the same rules in CEL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from locator.labels import ClientSelector, parse_client_selector
from locator.model import Service

PREFIX = "topodns.io/"
PREFIXES = (PREFIX, "topodns/")  # the second is a mistake, which 'check' reports
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
MAX_OVERLOAD = "topodns.io/max-overload"
CLIENTS = "topodns.io/clients"
HEALTH = "topodns.io/health"
FEDERATED = "topodns.io/federated"
FEDERATION = "topodns.io/federation"  # a label of copies, with the name of their federation
# These count in a federation API alone, where 'controller --federate' reads them.
CLUSTERS = "topodns.io/clusters"
WEIGHTS = "topodns.io/cluster-weights"
OVERPROVISION = "topodns.io/overprovision"
REPLICAS = "topodns.io/replicas"
MIGRATE_AFTER = "topodns.io/migrate-after"
ADOPT = "topodns.io/adopt"
ORPHAN = "topodns.io/orphan"
FEDERATION_STATUS = "topodns.io/federation-status"  # written there by topodns
OF_FEDERATIONS = (
    CLUSTERS, WEIGHTS, OVERPROVISION, REPLICAS, MIGRATE_AFTER, ADOPT, ORPHAN, FEDERATION_STATUS,
)  # fmt: skip
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS, MAX_OVERLOAD, CLIENTS, HEALTH, FEDERATED, *OF_FEDERATIONS)
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"
# Kubernetes reads the second only where the first, its older name, is absent.
TOPOLOGY_MODES = ("service.kubernetes.io/topology-aware-hints", TOPOLOGY_MODE)

# Unicode's White_Space, which CEL trims, too. str.strip() alone would also strip the separators U+001C to U+001F.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_WHITE_SPACE += "\u2028\u2029\u202f\u205f\u3000"

# Each running pod is compared with each selector, and an annotation may have 256 KiB.
MAX_SELECTORS = 16  # that topodns.io/clients has
MAX_CLIENTS = 2000  # characters of topodns.io/clients

LEAST_OVERLOAD, MOST_OVERLOAD = 1.1, 10  # values of topodns.io/max-overload
_MAX_OVERLOAD = re.compile(r"0*(1\.[1-9][0-9]*|[2-9](\.[0-9]+)?|10(\.0+)?)")
_HEALTH = re.compile(
    r"tcp(?::(?P<tcp>[1-9][0-9]{0,4}))?|http(?P<tls>s?):(?P<http>[1-9][0-9]{0,4})(?P<path>/[!-~]{0,999})"
)
HEALTH_CHECKS = "tcp, tcp:PORT, http:PORT/PATH or https:PORT/PATH"
_LAST_PORT = 65535


class HealthCheck(Struct, frozen=True):
    """How the load balancers of a Service are probed.

    ``port`` is None for the first TCP port of the Service. ``path`` is what HTTP asks for, None if a TCP connection is
    enough; with ``tls``, by HTTPS.
    """

    port: int | None
    path: str | None
    tls: bool

    def port_of(self, service: Service) -> int | None:
        """Return the port to probe, None if it is none of ``probed_ports``."""
        ports = tcp_ports(service) if self.port is None else [p for p in probed_ports(service) if p == self.port]
        return ports[0] if ports else None


def tcp_ports(service: Service) -> list[int]:
    """Return the TCP ports of a Service, in its order."""
    return [port.number for port in service.ports if port.protocol == "tcp"]


def probed_ports(service: Service) -> list[int]:
    """Return the ports of a Service that its owner may have probed: its TCP ports, and the one for health checks.

    Any other port is somebody else's, at an address that the Service may share with them: a node's, say.
    """
    return tcp_ports(service) + [service.health_check_port] * bool(service.health_check_port)


def field_of(annotation: str) -> str:
    """Return the field of an object in which an annotation is, as findings name it."""
    return f"metadata.annotations[{annotation}]"


def trimmed(text: str) -> str:
    """Return *text* without the white space around it, which never counts."""
    return text.strip(_WHITE_SPACE)


def min_endpoints(service: Service) -> int | None:
    """Return the value of the annotation ``topodns.io/min-endpoints``, 1 if it is absent, None if it is invalid."""
    return whole_number(trimmed(service.annotations.get(MIN_ENDPOINTS, "1"))) or None


def whole_number(text: str) -> int | None:
    """Return a whole number of at most nine digits, None if *text* is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def max_overload(service: Service) -> float | None:
    """Return the value of ``topodns.io/max-overload``, a decimal number from 1.1 to 10; None if absent or invalid."""
    text = trimmed(service.annotations.get(MAX_OVERLOAD, ""))
    return float(text) if _MAX_OVERLOAD.fullmatch(text) else None


def asking(service: Service) -> tuple[ClientSelector, ...] | None:
    """Return who asks by ``topodns.io/clients``: ``NAMESPACE[/SELECTOR]``, separated by ``;``. None if it is invalid.

    None also if it is absent: then everybody asks who is no endpoint. An empty part is invalid, as an empty topology
    key is.
    """
    text = trimmed(service.annotations.get(CLIENTS, ""))
    parts = text.split(";", MAX_SELECTORS)
    if not text or len(text) > MAX_CLIENTS or len(parts) > MAX_SELECTORS:
        return None
    try:
        return tuple(parse_client_selector(trimmed(part)) for part in parts)
    except ValueError:
        return None


def labels_asked_for(services: Iterable[Service], *, not_balanced_too: bool = False) -> frozenset[str]:
    """Return the keys of the labels of Pods by which balanced Services say who asks.

    Somebody may try to balance the others: then those that they say it by are among them.
    """
    asked = (asking(one) or () for one in services if not_balanced_too or max_overload(one) is not None)
    return frozenset(key for some in asked for one in some for key in one.selector.keys)


def is_federated(service: Service) -> bool:
    """Whether a Service's own annotation exports it to all clusters."""
    return service.annotations.get(FEDERATED) == "true"


def has_mode_auto(service: Service) -> bool:
    """Whether Kubernetes' controller decides about hints, which turns ``trafficDistribution`` off, too."""
    for name in TOPOLOGY_MODES:
        if name in service.annotations:
            return service.annotations[name] in ("Auto", "auto")
    return False


def health_check(text: str) -> HealthCheck | None:
    """Return what *text* asks for, one of ``HEALTH_CHECKS``; None if it is none of them.

    PORT is 1 to 65535, without leading zeros. PATH is visible ASCII, as HTTP sends it (RFC 9112, section 3.2), at most
    1,000 characters with the slash before it.
    """
    match = _HEALTH.fullmatch(trimmed(text))
    if match is None:
        return None
    port = match["tcp"] or match["http"]
    if port is not None and int(port) > _LAST_PORT:
        return None
    return HealthCheck(None if port is None else int(port), match["path"], match["tls"] == "s")
