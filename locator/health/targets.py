"""Which addresses are probed, and how: those of the load balancers of Services with ``topodns.io/health``."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from locator.model import Service
from locator.topology.annotations import health_check
from locator.topology.constraints import HEALTH


class Target(Struct, frozen=True):
    """One address of a Service, given by its key, and how it is probed: by HTTP if *path* is not None, else by TCP."""

    service: str
    address: str
    port: int
    path: str | None = None


def targets_of(service: Service) -> Iterator[Target]:
    """Yield what is probed of a Service: nothing without a valid annotation, a load balancer, and a TCP port."""
    check = health_check(service.annotations.get(HEALTH, ""))
    if check is None:
        return
    port = check.port or next((port.number for port in service.ports if port.protocol == "tcp"), None)
    if port is not None:
        for address in service.ingress:
            yield Target(service.key, address, port, check.path)
