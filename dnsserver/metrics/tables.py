# SPDX-License-Identifier: Apache-2.0

"""All metrics of topodns, by what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dnsserver.metrics import families
from dnsserver.metrics import server as server_metrics
from dnsserver.metrics.controller import OF_CONTROLLERS
from dnsserver.metrics.families import Family
from dnsserver.metrics.webhook import OF_WEBHOOKS

TABLES: Mapping[str, Iterable[Family]] = {
    "Queries": server_metrics.OF_QUERIES,
    "The cluster": server_metrics.OF_THE_CLUSTER,
    "Watches": families.OF_WATCHES,
    "The controller": OF_CONTROLLERS,
    "The webhook": OF_WEBHOOKS,
    "Each process": families.OF_EACH_PROCESS,
}
