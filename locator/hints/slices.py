# SPDX-License-Identifier: Apache-2.0

"""The EndpointSlices that the webhook reads and patches: their JSON, their opt-in labels, and the patches.

Unlike the server's records, these keep every endpoint at its position, with its zone and its hints as the slice states
them, and the resourceVersion, so that a patch can require the version that it was computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from locator.api import schema
from locator.api.conversion import SERVICE_NAME, to_endpoint
from locator.api.decoding import NODE_METADATA, RESOURCES, Resource
from locator.api.finding_collector import FindingCollector
from locator.labels import valid_label_value
from locator.model import Endpoint, EndpointSlice, Hints, Namespaced, Node, Service, ServicePolicy
from locator.topology.hints import asks_for_hints

SLICES = "endpointslices"
GROUP, VERSION = "discovery.k8s.io", "v1"


class HintedEndpoint(Struct, frozen=True):
    """An endpoint at its position in a slice.

    ``zone`` is what the slice says, empty if it says none or what no hint can name. ``endpoint`` is None if no address
    of it is readable.
    """

    endpoint: Endpoint | None
    zone: str

    @property
    def hints(self) -> Hints | None:
        """The hints that the slice has for it, None if it has none."""
        return None if self.endpoint is None else self.endpoint.hints

    @property
    def address(self) -> bytes | None:
        """The address that kube-proxy uses."""
        return None if self.endpoint is None else self.endpoint.addresses[0]

    @property
    def terminating(self) -> bool:
        """Whether its pod has been asked to end."""
        return self.endpoint is not None and self.endpoint.terminating

    @property
    def ready(self) -> bool:
        """Whether kube-proxy and topodns use it: an endpoint is ready unless the slice says otherwise."""
        return self.endpoint is not None and self.endpoint.ready


class HintedSlice(Namespaced, frozen=True):
    """An EndpointSlice with its hints.

    ``service`` is the name of its Service, empty if no label states it. ``opted_in`` says whether a label asks for
    hints. ``endpoints`` is empty for a slice of domain names, which neither kube-proxy nor topodns reads.
    """

    version: str
    service: str
    opted_in: bool
    endpoints: tuple[HintedEndpoint, ...] = ()

    @property
    def service_key(self) -> str:
        """The key of the Service that the slice belongs to."""
        return f"{self.namespace}/{self.service}"


def hints_patch(actual: HintedSlice, wanted: Sequence[Hints | None]) -> list[dict[str, Any]]:
    """Return the JSON patch that gives each endpoint of *actual* its *wanted* hints; empty if all have them."""
    patch: list[dict[str, Any]] = []
    for position, (endpoint, hints) in enumerate(zip(actual.endpoints, wanted, strict=True)):
        path = f"/endpoints/{position}/hints"
        if hints == endpoint.hints:
            continue
        if hints is None:
            patch.append({"op": "remove", "path": path})
        else:  # "add" replaces what is there (RFC 6902, section 4.1)
            named = {"forZones": hints.zones, "forNodes": hints.nodes}
            value = {field: [{"name": name} for name in names] for field, names in named.items() if names}
            patch.append({"op": "add", "path": path, "value": value})
    return patch


class SliceJson(Struct, rename="camel"):
    """An EndpointSlice, v1."""

    metadata: schema.LabelledMeta
    address_type: str | None = None
    endpoints: list[schema.Endpoint] | None = None


def to_hinted_slice(raw: SliceJson, collector: FindingCollector) -> HintedSlice:
    """Convert an EndpointSlice."""
    labels = raw.metadata.labels or {}
    given = raw.endpoints or () if raw.address_type != "FQDN" else ()
    shared: dict[Hints, Hints] = {}
    namespace = raw.metadata.namespace or "default"
    return HintedSlice(
        namespace=namespace,
        name=raw.metadata.name or "",
        version=raw.metadata.version or "",
        service=labels.get(SERVICE_NAME) or "",
        opted_in=asks_for_hints(labels),
        endpoints=tuple(
            HintedEndpoint(
                endpoint=to_endpoint(endpoint, position, (), shared, collector, namespace),
                zone=endpoint.zone if endpoint.zone and valid_label_value(endpoint.zone) else "",
            )
            for position, endpoint in enumerate(given)
        ),
    )


HINT_RESOURCES: Mapping[type[Any], Resource] = {
    Node: NODE_METADATA,
    **{kind: RESOURCES[kind] for kind in (Service, ServicePolicy)},
    HintedSlice: RESOURCES[EndpointSlice]._replace(decoder=Decoder(SliceJson), build=to_hinted_slice),
}
