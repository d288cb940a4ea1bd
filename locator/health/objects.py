# SPDX-License-Identifier: Apache-2.0

"""ServiceHealth objects: what a cluster's prober has found out about the load balancers of one Service.

The prober's cluster holds one for each Service, called ``NAME.NAMESPACE``; the Service may be in any cluster. Only the
prober writes it, and always as a whole. ``topodns serve`` reads those of all clusters.
"""

from __future__ import annotations

from typing import Any

from locator.model import ServiceHealth


def health_name(service: str) -> str:
    """Return the name of the ServiceHealth of the Service with the key *service*."""
    namespace, _, name = service.partition("/")
    return f"{name}.{namespace}"


def status_of(health: ServiceHealth) -> dict[str, Any]:
    """Return the status of a ServiceHealth as JSON."""
    namespace, _, name = health.service.partition("/")
    return {
        "cluster": health.cluster,
        "service": {"namespace": namespace, "name": name},
        "entries": [
            {
                "address": entry.address,
                "healthy": entry.healthy,
                **({"since": entry.since} if entry.since else {}),  # the schema takes no empty time
                **({"message": entry.message} if entry.message else {}),
            }
            for entry in health.entries
        ],
        "renewTime": health.renewed,
    }
