# SPDX-License-Identifier: Apache-2.0

"""Services with a load balancer, as a test of health probes wants them: as JSON, and as records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.model import Service
from tests.kit.api_objects import MAIN, Item, Port, load_balancer_status, service

HEALTH = "topodns.io/health"


def balanced(
    name: str, addresses: Sequence[str], check: str | None = "tcp", *, where: str = "shop",
    ports: Sequence[Port] | None = None,
) -> Item:  # fmt: skip
    """Return a Service with the annotation *check*, and IP addresses or host names in its status.

    By default it has the port that is to be checked.
    """
    if ports is None:
        ports = [*MAIN, *(("checked", int(number), "TCP") for number in re.findall(r":(\d+)", check or "")[:1])]
    annotations = {} if check is None else {HEALTH: check}
    made = service(name, where=where, cluster_ips=(), ports=ports, annotations=annotations, type="LoadBalancer")
    return {**made, "status": load_balancer_status(addresses)}


def balanced_record(name: str, addresses: Sequence[str], check: str | None = "tcp", **more: Sequence[Port]) -> Service:
    """Return the record of such a Service, in the namespace shop."""
    decoded = decode_untrusted(RESOURCES[Service], json.dumps(balanced(name, addresses, check, **more)).encode())
    assert isinstance(decoded.built, Service) and not decoded.findings
    return decoded.built
