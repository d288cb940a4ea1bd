# SPDX-License-Identifier: Apache-2.0

"""Converts ServiceHealths, which any prober, or somebody by hand, has written."""

from __future__ import annotations

from locator.api import schema
from locator.api.finding_collector import FindingCollector
from locator.ip import address_text, parse_address
from locator.model import HealthEntry, ServiceHealth, is_dns_label
from locator.printable import quoted
from locator.times import parse_time


def to_service_health(raw: schema.ServiceHealth, collector: FindingCollector) -> ServiceHealth | None:
    """Convert a ServiceHealth; None if its name is not that of a Service. An entry that says nothing is left out."""
    name, status = raw.metadata.name or "", raw.status or schema.HealthStatus()
    service = service_of(name)
    if service is None:
        collector.wrong("metadata.name", f"{quoted(name)} is the name of no Service", "NAME.NAMESPACE of a Service")
        return None
    about = status.service
    if about is not None and f"{about.namespace}/{about.name}" != service:
        collector.wrong("status.service", f"{about.namespace}/{about.name} in {name}", "the Service of its name")
        return None
    renewed = status.renew_time or ""
    if renewed or status.entries:
        collector.try_parse("status.renewTime", parse_time, renewed, "a time in RFC 3339")
    entries: dict[str, HealthEntry] = {}
    for position, entry in enumerate(status.entries or ()):
        if not entry.address or entry.healthy is None:
            collector.wrong(f"status.entries[{position}]", "an entry without a vote", "an address, and healthy or not")
            continue
        address = canonical_address(entry.address)
        entries[address] = HealthEntry(address, entry.healthy, entry.since or "", entry.message or "")
    return ServiceHealth(
        name=name,
        service=service,
        entries=tuple(entries.values()),
        renewed=renewed,
        cluster=status.cluster or "",
        version=raw.metadata.version or "",
    )


def service_of(name: str) -> str | None:
    """Return the key of the Service that a ServiceHealth called *name* is about; None for any other name."""
    service, _, namespace = name.partition(".")
    return f"{namespace}/{service}" if is_dns_label(service) and is_dns_label(namespace) else None


def canonical_address(text: str) -> str:
    """Return the one text of an address that may have several: an IP address, or else a host name in lower case."""
    try:
        return address_text(parse_address(text))
    except ValueError:
        return text.lower().removesuffix(".")
