# SPDX-License-Identifier: Apache-2.0

"""Which addresses are probed, and how: those of the load balancers of Services with ``topodns.io/health``."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from locator.ip import is_address, may_be_balancer, parse_address
from locator.model import Service
from locator.topology.annotations import HEALTH, health_check


class ProbeTarget(Struct, frozen=True):
    """One address of a Service, given by its key, and how it is probed: by TCP, or by HTTP if *path* is not None.

    *tls*: by HTTPS.
    """

    service: str
    address: str
    port: int
    path: str | None = None
    tls: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the Service."""
        return self.service.partition("/")[0]


def targets_of(service: Service) -> Iterator[ProbeTarget]:
    """Yield what is probed of a Service: nothing without a valid annotation, a load balancer, and a port of its own.

    Addresses that no load balancer can have are left out.
    """
    check = health_check(service.annotations.get(HEALTH, ""))
    port = check.port_of(service) if check is not None else None
    if check is not None and port is not None:
        for address in service.ingress:
            if not is_address(address) or may_be_balancer(parse_address(address)):
                yield ProbeTarget(service.key, address, port, check.path, check.tls)
