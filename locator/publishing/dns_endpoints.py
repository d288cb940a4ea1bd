# SPDX-License-Identifier: Apache-2.0

"""DNSEndpoints of external-dns (``externaldns.k8s.io/v1alpha1``): how they are read, and what is written into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from locator.api import schema
from locator.api.decoding import Resource
from locator.api.finding_collector import FindingCollector
from locator.ip import address_text, is_address, parse_address
from locator.model import Namespaced

TTL = 180  # seconds: what changes is in the DNS of others a minute later in any case, when external-dns looks again
MANAGED_BY, TOPODNS = "app.kubernetes.io/managed-by", "topodns"
OURS = {MANAGED_BY: TOPODNS}  # the labels of the objects that topodns keeps; it leaves all others alone
RECORD_TYPES = {"A": 4, "AAAA": 16}  # with the octets of an address


class DNSEndpoint(Namespaced, frozen=True):
    """A DNSEndpoint as it is in the API.

    ``ours`` says that it carries the labels ``OURS``. Only then, ``records`` is its ``spec.endpoints`` as written, None
    if it has none. ``version`` is its resourceVersion.
    """

    version: str
    ours: bool
    records: Any = None

    def addresses(self) -> Iterator[bytes]:
        """Yield the addresses in its records, some of them perhaps more than once."""
        for record in self.records if isinstance(self.records, list) else ():
            targets = record.get("targets") if isinstance(record, dict) else None
            for text in targets if isinstance(targets, list) else ():
                if isinstance(text, str) and is_address(text):
                    yield parse_address(text)


def resource_in(namespace: str) -> Resource:
    """Return how the DNSEndpoints of one namespace are read."""
    path = f"/apis/externaldns.k8s.io/v1alpha1/namespaces/{namespace}/dnsendpoints"
    return Resource("DNSEndpoint", path, _DECODER, _dns_endpoint)


def records(name: str, addresses: Iterable[bytes]) -> list[Mapping[str, Any]]:
    """Return ``spec.endpoints`` for a name with *addresses*, always in the same order; empty without any."""
    by_size: dict[int, list[bytes]] = {}
    for address in sorted(set(addresses)):
        by_size.setdefault(len(address), []).append(address)
    return [
        {"dnsName": name, "recordTTL": TTL, "recordType": record_type, "targets": [*map(address_text, by_size[size])]}
        for record_type, size in RECORD_TYPES.items()
        if size in by_size
    ]


class _Spec(Struct):
    endpoints: Any = None


class _DNSEndpointJson(Struct):
    metadata: schema.LabelledMeta
    spec: _Spec | None = None


_DECODER = Decoder(_DNSEndpointJson)


def _dns_endpoint(raw: _DNSEndpointJson, collector: FindingCollector) -> DNSEndpoint:
    meta = raw.metadata
    ours = OURS.items() <= (meta.labels or {}).items()
    found = raw.spec.endpoints if ours and raw.spec is not None else None
    return DNSEndpoint(meta.namespace or "default", meta.name or "", meta.version or "", ours, found)
