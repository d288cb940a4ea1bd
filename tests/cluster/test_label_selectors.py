# SPDX-License-Identifier: Apache-2.0

"""Label selectors mean to topodns what they mean to a real API server."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from locator.api.dump import entries
from locator.labels import parse_selector
from locator.model import ServicePolicy
from tests.kit import api_objects
from tests.kit.kube import ApiError, ControlPlane
from tests.kit.label_selectors import NO_OBJECTS, NO_TEXTS, OBJECTS, TEXTS


def test_the_api_server_selects_alike(control_plane: ControlPlane) -> None:
    """For each selector, the API server finds the same Services or refuses it, too."""
    labels = [dict(pairs) for pairs in dict.fromkeys(tuple(each.items()) for row in TEXTS for each in row[2:])]
    items = [api_objects.service(f"s{number}", where="selectors", labels=own) for number, own in enumerate(labels)]
    control_plane.api.create(api_objects.namespace("selectors"), *items)
    for text in [row[1] for row in TEXTS]:
        found = control_plane.api.items("Service", "selectors", labels=quote(text))
        selector = parse_selector(text)
        expected = {f"s{number}" for number, own in enumerate(labels) if selector.matches(own)}
        assert (text, {item["metadata"]["name"] for item in found}) == (text, expected)
    for text in NO_TEXTS:
        if text.strip():  # to the API server, nothing is a selector of everything
            with pytest.raises(ApiError):
                control_plane.api.items("Service", "selectors", labels=quote(text))


def test_the_api_server_takes_the_same_selectors(control_plane: ControlPlane) -> None:
    """The API server refuses the same label selectors as topodns, and no others."""
    path = control_plane.api.path("Service", "default").replace("/api/v1", "/apis/networking.k8s.io/v1")
    path = path.replace("/services", "/networkpolicies?dryRun=All")

    def taken(selector: object) -> bool:
        item = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}}
        try:
            control_plane.api.request("POST", path, {**item, "spec": {"podSelector": selector}})
        except ApiError:
            return False
        return True

    def is_read(selector: object) -> bool:
        policy = api_objects.service_policy("p", api_objects.ZONE)
        policy["spec"]["serviceSelector"] = selector
        return any(isinstance(found, ServicePolicy) for _, found in entries(json.dumps(policy).encode()))

    rows = [(name, selector) for name, selector, *_ in (*OBJECTS, *NO_OBJECTS)]
    assert {name: taken(selector) for name, selector in rows} == {name: is_read(selector) for name, selector in rows}
