# SPDX-License-Identifier: Apache-2.0

"""The replies to AdmissionReviews: whatever arrives, nothing is denied and nothing is raised."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.deltas import Replace
from locator.control.reconciler import Reconciler
from locator.hints.admission import IGNORED_REVIEW, PATCHED, UNCHANGED, UNREADABLE, UNSYNCED, reply_to_untrusted
from locator.hints.rules import HintRules
from locator.hints.slices import HINT_RESOURCES
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, node, service
from tests.kit.hint_worlds import HINTED, admitted, patched, records_of, review, rules_of, zones_of

SLICE = endpoint_slice("web", 0, [endpoint("10.0.0.1", nodeName="a1", zone="a")], labels=HINTED)
CLUSTER = [node("a1", {ZONE: "a"}), service("web", cluster_ips=("10.96.0.9",))]
RULES = rules_of(CLUSTER)
RIGHT = patched(SLICE, [{"op": "add", "path": "/endpoints/0/hints", "value": {"forZones": [{"name": "a"}]}}])
PODS = {"group": "", "version": "v1", "resource": "pods"}
NAMELESS = {**SLICE, "metadata": {"generateName": "web-", "labels": SLICE["metadata"]["labels"]}}


def test_a_patch() -> None:
    """The reply names the review, allows it, and patches the endpoints that need it."""
    reply = reply_to_untrusted(review(SLICE, uid="7"), RULES)
    said = json.loads(reply.body)
    patch = said["response"].pop("patch")
    response = {"uid": "7", "allowed": True, "patchType": "JSONPatch"}
    assert said == {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    assert patched(SLICE, json.loads(base64.b64decode(patch))) == RIGHT
    assert reply.outcome == PATCHED


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        pytest.param(review(RIGHT), UNCHANGED, id="as-it-should-be"),
        pytest.param(review({**SLICE, "metadata": {"name": "web-0"}}), IGNORED_REVIEW, id="no-label"),
        pytest.param(review(SLICE, resource=PODS), IGNORED_REVIEW, id="another-resource"),
        pytest.param(review(SLICE, subResource="status"), IGNORED_REVIEW, id="a-subresource"),
        pytest.param(review(SLICE, namespace="elsewhere"), IGNORED_REVIEW, id="no-such-service"),
        pytest.param(review(None), IGNORED_REVIEW, id="no-object"),
        pytest.param(review({"metadata": {"labels": HINTED}, "endpoints": "many"}), IGNORED_REVIEW, id="odd-object"),
        pytest.param(review([]), IGNORED_REVIEW, id="a-list"),
        pytest.param(review({**SLICE, "endpoints": SLICE["endpoints"] * 1000}), PATCHED, id="as-many-as-can-be"),
        pytest.param(review({**SLICE, "endpoints": SLICE["endpoints"] * 1001}), IGNORED_REVIEW, id="more-than-can-be"),
        pytest.param(review(NAMELESS), PATCHED, id="no-name-yet"),
    ],
)
def test_what_needs_no_patch_is_allowed(raw: bytes, outcome: str) -> None:
    reply = reply_to_untrusted(raw, RULES)
    assert reply.outcome == outcome
    response = json.loads(reply.body)["response"]
    assert response["allowed"] is True and ("patch" in response) == (outcome == PATCHED)


@pytest.mark.parametrize("missing", HINT_RESOURCES, ids=lambda kind: str(kind.__name__))
def test_while_a_kind_is_not_listed_everything_is_allowed(missing: type[Any]) -> None:
    """Half a cluster would give wrong hints."""
    rules = HintRules()
    for kind, records in records_of(CLUSTER).items():
        if kind is not missing:
            Reconciler(rules).apply(Replace(kind, records))
    reply = reply_to_untrusted(review(SLICE), rules)
    assert reply.outcome == UNSYNCED
    assert json.loads(reply.body)["response"] == {"uid": "u1", "allowed": True}


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff", b"{}", b"[]", b"null", b"[" * 100_000,
        json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}).encode(),
        review(SLICE, uid=""), review(SLICE).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v2"),
        review(SLICE).replace(b"AdmissionReview", b"ConversionReview"), review(SLICE)[:-2],
    ],
    ids=["empty", "no-text", "object", "list", "null", "deep", "no-request", "no-uid", "version", "kind", "cut"],
)  # fmt: skip
def test_what_is_no_review_gets_no_reply(raw: bytes) -> None:
    reply = reply_to_untrusted(raw, RULES)
    assert (reply.body, reply.outcome) == (b"", UNREADABLE)


@given(st.binary() | st.builds(lambda raw, at, other: raw[:at] + other + raw[at + len(other) :],
                               st.just(review(SLICE)), st.integers(0, 600), st.binary(max_size=8)))  # fmt: skip
def test_any_bytes(raw: bytes) -> None:
    """Whatever arrives, a reply comes back, and none denies."""
    reply = reply_to_untrusted(raw, RULES)
    assert (reply.outcome == UNREADABLE) == (reply.body == b"")
    assert not reply.body or json.loads(reply.body)["response"]["allowed"] is True


def test_siblings_come_from_the_store_and_the_slice_itself_from_the_review() -> None:
    """A review of an update counts in place of the slice that is known so far."""
    there = {"nodeName": "b1", "zone": "b"}
    starting, ready = (
        endpoint_slice("web", 1, [endpoint("10.0.0.2", ready=is_ready, **there)], labels=HINTED)
        for is_ready in (False, True)
    )
    nodes = [node("a1", {ZONE: "a"}), node("b1", {ZONE: "b"})]
    rules = rules_of([*nodes, service("web", cluster_ips=("10.96.0.9",), keys=f"{ZONE},*"), SLICE, starting])
    assert zones_of(admitted(SLICE, rules)) == [["a", "b"]], "its sibling has no ready endpoint"
    assert zones_of(admitted(ready, rules)) == [["b"]], "but it has one as it is under review"
