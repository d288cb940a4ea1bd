# SPDX-License-Identifier: Apache-2.0

"""Makes what the hints webhook is told, a cluster and AdmissionReviews, and applies its patches to slices."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from locator.api.deltas import Replace
from locator.control.reconciler import Reconciler
from locator.hints.admission import reply_to_untrusted
from locator.hints.rules import HintRules
from locator.hints.slices import HINT_RESOURCES
from locator.topology.hints import OPT_IN_LABELS
from tests.kit.api_objects import Item
from tests.kit.controlled import record

HINTED = {OPT_IN_LABELS[0]: "true"}


def records_of(items: Iterable[Item]) -> dict[type[Any], list[Any]]:
    """Return objects of the API as the webhook's records, by kind."""
    kinds = {resource.name: kind for kind, resource in HINT_RESOURCES.items()}
    records: dict[type[Any], list[Any]] = {kind: [] for kind in HINT_RESOURCES}
    for item in items:
        if item["kind"] in kinds:
            records[kinds[item["kind"]]].append(record(HINT_RESOURCES, item))
    return records


def rules_of(items: Iterable[Item]) -> HintRules:
    """Return rules that know a cluster."""
    rules = HintRules()
    for kind, records in records_of(items).items():
        Reconciler(rules).apply(Replace(kind, records))
    return rules


def review(item: Any, *, uid: str = "u1", resource: Mapping[str, str] | None = None, **more: Any) -> bytes:
    """Return the AdmissionReview of a slice as the API server sends it."""
    kind = {"group": "discovery.k8s.io", "version": "v1", "kind": "EndpointSlice"}
    request = {
        "uid": uid,
        "kind": kind,
        "resource": resource or {"group": "discovery.k8s.io", "version": "v1", "resource": "endpointslices"},
        "operation": "UPDATE",
        "namespace": "shop",
        "object": item,
        **more,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def admitted(item: Item, rules: HintRules) -> Item:
    """Return a slice as the webhook leaves it."""
    reply = json.loads(reply_to_untrusted(review(item), rules).body)["response"]
    assert reply["allowed"] is True
    return patched(item, json.loads(base64.b64decode(reply["patch"]))) if "patch" in reply else item


def patched(item: Item, patch: Sequence[Mapping[str, Any]]) -> Item:
    """Return a slice with a patch of its hints applied (RFC 6902)."""
    item = copy.deepcopy(item)
    for step in patch:
        if step["op"] == "test":
            assert item["metadata"]["resourceVersion"] == step["value"]
            continue
        _, endpoints, position, hints = step["path"].split("/")
        endpoint = item[endpoints][int(position)]
        if step["op"] == "add":
            endpoint[hints] = step["value"]
        else:
            assert step["op"] == "remove"
            del endpoint[hints]
    return item


def zones_of(item: Item) -> list[list[str] | None]:
    """Return the zones that each endpoint of a slice is for, None without hints."""
    return _named(item, "forZones")


def nodes_of(item: Item) -> list[list[str] | None]:
    """Return the nodes that each endpoint of a slice is for, None without hints."""
    return _named(item, "forNodes")


def _named(item: Item, field: str) -> list[list[str] | None]:
    hints = [endpoint.get("hints") for endpoint in item["endpoints"]]
    return [None if hint is None else [entry["name"] for entry in hint.get(field, ())] for hint in hints]
