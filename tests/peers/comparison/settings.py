# SPDX-License-Identifier: Apache-2.0

"""Pairs of equivalent settings: options of CoreDNS's plugin ``kubernetes``, and flags of topodns."""

from __future__ import annotations

from typing import NamedTuple

from tests.peers.comparison.asking import CLUSTERSET, DOMAIN
from tests.peers.comparison.cluster import ROLE, SHOP


class Pair(NamedTuple):
    """Equivalent settings of both servers; ``share`` is the percentage of names in ``domain`` that are asked for."""

    name: str
    coredns: tuple[str, ...]
    topodns: tuple[str, ...]
    share: int = 18
    upstream: bool = True
    ttl: int = 5
    domain: str = DOMAIN


PAIRS = (
    # The first, because the others use its replies of CoreDNS.
    Pair("zonal", ("pods insecure", "zonal"), ("--pods", "insecure"), share=100),
    Pair("as-installed", (), (), upstream=False),
    Pair("verified", ("pods verified", "endpoint_pod_names", "zonal"), ("--pods", "verified", "--endpoint-pod-names")),
    Pair(
        "filtered",
        (f"namespaces edge {SHOP} empty", "ignore empty_service", "pods insecure", "zonal", "ttl 600"),
        (
            *[part for name in ("edge", SHOP, "empty") for part in ("--namespace", name)],
            *("--ignore-empty-service", "--pods", "insecure", "--ttl", "600"),
        ),
        ttl=600,
    ),
    Pair(
        "labelled",
        (f"labels {ROLE}=served", f"namespace_labels {ROLE}=served", "zonal", "ttl 0"),
        ("--service-selector", f"{ROLE}=served", "--namespace-selector", f"{ROLE}=served", "--ttl", "0"),
        ttl=0,
    ),
    Pair("without-endpoints", ("noendpoints",), ("--no-endpoints", "--zonal", "off")),
    Pair(
        "multicluster",
        (f"multicluster {CLUSTERSET}", "pods verified", "zonal"),
        ("--multicluster", CLUSTERSET, "--pods", "verified"),
        share=100,
        domain=CLUSTERSET,
    ),
    Pair(
        "multicluster-filtered",
        (
            *(f"multicluster {CLUSTERSET}", "namespaces edge empty", "ignore empty_service", "pods insecure"),
            *("endpoint_pod_names", "noendpoints", "ttl 600"),
        ),
        (
            *("--multicluster", CLUSTERSET, "--namespace", "edge", "--namespace", "empty", "--ignore-empty-service"),
            *("--pods", "insecure", "--endpoint-pod-names", "--no-endpoints", "--zonal", "off", "--ttl", "600"),
        ),
        share=100,
        ttl=600,
        domain=CLUSTERSET,
    ),
)
