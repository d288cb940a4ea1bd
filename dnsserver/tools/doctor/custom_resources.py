# SPDX-License-Identifier: Apache-2.0

"""The custom resources of this version: which fields their CRDs have, and what needs them.

The API server drops fields that a CRD does not declare, so an older CRD loses what users write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from locator.model import Object, PodLocator, ServiceHealth, ServicePolicy

VERSION = "v1alpha1"
_EXPRESSION = "spec.serviceSelector.matchExpressions"


class CustomResource(Struct, frozen=True):
    """A custom resource: the kind, its manifest in the project, and its fields beside those of every object."""

    kind: type[Object]
    manifest: str
    fields: frozenset[str]


CUSTOM_RESOURCES: Mapping[str, CustomResource] = {
    "servicepolicies.topodns.io": CustomResource(
        ServicePolicy,
        "manifests/chart/files/servicepolicies/servicepolicies.yaml",
        frozenset((
            *("spec", "spec.serviceSelector", "spec.serviceSelector.matchLabels", _EXPRESSION),
            *(f"{_EXPRESSION}.{field}" for field in ("key", "operator", "values")),
            *("spec.topology", "spec.topology.key", "spec.topology.mode"),
            *("status", "status.observedGeneration", "status.services", "status.conditions"),
            *(f"status.conditions.{field}" for field in ("type", "status", "observedGeneration", "lastTransitionTime")),
            *(f"status.conditions.{field}" for field in ("reason", "message")),
        )),
    ),
    "podlocators.topodns.io": CustomResource(
        PodLocator,
        "manifests/chart/files/podlocators/podlocators.yaml",
        frozenset(("ips", "ips.ip", "nodeName", "nodeLabels")),
    ),
    "servicehealths.topodns.io": CustomResource(
        ServiceHealth,
        "manifests/chart/files/servicehealths/servicehealths.yaml",
        frozenset((
            *("status", "status.cluster", "status.service", "status.service.namespace", "status.service.name"),
            *("status.entries", *(f"status.entries.{field}" for field in ("address", "healthy", "since", "message"))),
            "status.renewTime",
        )),
    ),
}  # fmt: skip
_OF_EVERY_OBJECT = {"apiVersion", "kind", "metadata"}


def fields_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that a schema (OpenAPI v3, as a CRD has it) declares, by their paths."""
    return frozenset(_fields(schema, "")) - _OF_EVERY_OBJECT


def _fields(schema: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        return
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        yield f"{path}{name}"
        yield from _fields(inner, f"{path}{name}.")
    yield from _fields(schema.get("items"), path)
