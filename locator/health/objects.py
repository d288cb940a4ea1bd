"""ServiceHealth objects: what a cluster's prober has found out about the load balancers of one Service.

The prober's cluster holds one for each Service, called ``NAME.NAMESPACE``; the Service may be in any cluster. Only the
prober writes it, and always as a whole. ``topodns serve`` reads those of all clusters.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from locator.api import schema
from locator.api.decoding import Resource
from locator.api.finding_collector import FindingCollector
from locator.ip import address_text, parse_address
from locator.model import is_dns_label

GROUP_VERSION = "topodns.io/v1alpha1"
KIND = "ServiceHealth"
SERVICE_HEALTHS = f"/apis/{GROUP_VERSION}/servicehealths"
MERGE_PATCH = "application/merge-patch+json"  # RFC 7396: a list is replaced


class HealthEntry(Struct, frozen=True):
    """What one prober says of one address: the text of an IP address, or a host name in lower case.

    ``since`` (RFC 3339) is when ``healthy`` last changed. ``message`` says why the address is not healthy.
    """

    address: str
    healthy: bool
    since: str = ""
    message: str = ""


class ServiceHealth(Struct, frozen=True):
    """The votes of one cluster on the load balancers of one Service.

    ``service`` is the key of the Service. ``renewed`` is when the prober last wrote it, as it stands there (RFC 3339).
    """

    name: str
    service: str
    entries: tuple[HealthEntry, ...] = ()
    renewed: str = ""
    cluster: str = ""
    version: str = ""

    @property
    def key(self) -> str:
        """The object's name."""
        return self.name


def health_name(service: str) -> str:
    """Return the name of the ServiceHealth of the Service with the key *service*."""
    namespace, _, name = service.partition("/")
    return f"{name}.{namespace}"


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


def health_path(name: str = "") -> str:
    """Return the API path of a ServiceHealth, or without *name* of all."""
    return f"{SERVICE_HEALTHS}/{name}" if name else SERVICE_HEALTHS


def create_body(health: ServiceHealth) -> dict[str, Any]:
    """Return a new ServiceHealth as JSON."""
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {"name": health.name},
        "status": _status(health),
    }


def patch_body(health: ServiceHealth) -> dict[str, Any]:
    """Return the merge patch that turns the ``version`` of a ServiceHealth, and no other one, into *health*."""
    return {"metadata": {"resourceVersion": health.version}, "status": _status(health)}


def delete_options(health: ServiceHealth) -> dict[str, Any]:
    """Return the options that delete this version of *health* and no other."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": health.version}}


def _status(health: ServiceHealth) -> dict[str, Any]:
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


class _ServiceReference(Struct):
    namespace: str | None = None
    name: str | None = None


class _Entry(Struct):
    address: str | None = None
    healthy: bool | None = None
    since: str | None = None
    message: str | None = None


class _Status(Struct, rename="camel"):
    cluster: str | None = None
    service: _ServiceReference | None = None
    entries: list[_Entry] | None = None
    renew_time: str | None = None


class ServiceHealthJson(Struct):
    """A ServiceHealth."""

    metadata: schema.Meta
    status: _Status | None = None


def to_service_health(raw: ServiceHealthJson, collector: FindingCollector) -> ServiceHealth | None:
    """Convert a ServiceHealth; None if its name is not that of a Service. An entry that says nothing is left out."""
    name, status = raw.metadata.name or "", raw.status or _Status()
    service = service_of(name)
    if service is None:
        collector.wrong("metadata.name", f"{name!r} is the name of no Service", "NAME.NAMESPACE of a Service")
        return None
    about = status.service
    if about is not None and f"{about.namespace}/{about.name}" != service:
        collector.wrong("status.service", f"{about.namespace}/{about.name} in {name}", "the Service of its name")
        return None
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
        renewed=status.renew_time or "",
        cluster=status.cluster or "",
        version=raw.metadata.version or "",
    )


# Optional: the CRD comes with the component of the manifests that switches the prober on.
SERVICE_HEALTH = Resource(KIND, SERVICE_HEALTHS, Decoder(ServiceHealthJson), to_service_health, optional=True)
