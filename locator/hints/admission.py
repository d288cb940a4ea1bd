# SPDX-License-Identifier: Apache-2.0

"""Answers AdmissionReviews (admission.k8s.io/v1) of EndpointSlices: allowed, perhaps with a patch of the hints.

Every review that can be read is allowed. A slice without hints, or with outdated ones, is better than none.
"""

from __future__ import annotations

import base64

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from locator.api.decoding import RESOURCES
from locator.api.finding_collector import FindingCollector
from locator.hints.rules import HintRules
from locator.hints.slices import GROUP, SLICES, VERSION, HintedSlice, SliceJson, hints_patch, to_hinted_slice
from locator.model import EndpointSlice

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
MAX_ENDPOINTS = 1000  # of a slice: the API server refuses more, and 85,000, which fit a review, would take a second

# What became of a review, as the metric counts it.
PATCHED = "patched"
UNCHANGED = "unchanged"  # the hints are as they should be
IGNORED_REVIEW = "ignored"  # another resource, or a slice that does not ask for hints or has no known Service
UNSYNCED = "unsynced"  # not everything has been listed yet
UNREADABLE = "unreadable"  # no AdmissionReview: there is nothing to reply to
REVIEW_OUTCOMES = (PATCHED, UNCHANGED, IGNORED_REVIEW, UNSYNCED, UNREADABLE)


class ReviewReply(Struct, frozen=True):
    """The reply to a review as JSON, and what became of the review. ``body`` is empty if it is ``UNREADABLE``."""

    body: bytes
    outcome: str


class _GroupVersionResource(Struct):
    group: str = ""
    version: str = ""
    resource: str = ""


class _AdmissionRequest(Struct, rename="camel"):
    uid: str
    resource: _GroupVersionResource
    namespace: str = ""
    sub_resource: str = ""
    object: Raw = Raw(b"null")


class _AdmissionReview(Struct, rename="camel"):
    api_version: str
    kind: str
    request: _AdmissionRequest


_REVIEWS, _SLICES = Decoder(_AdmissionReview), Decoder(SliceJson)
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def reply_to_untrusted(raw: bytes, rules: HintRules) -> ReviewReply:
    """Return the reply to an AdmissionReview. Never raises."""
    try:
        review = _REVIEWS.decode(raw)
    except _UNDECODABLE:
        return ReviewReply(b"", UNREADABLE)
    request = review.request
    if (review.api_version, review.kind) != (API_VERSION, KIND) or not request.uid:
        return ReviewReply(b"", UNREADABLE)
    outcome, patch = _judge_untrusted(request, rules)
    response: dict[str, object] = {"uid": request.uid, "allowed": True}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    body = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return ReviewReply(body, outcome)


def _judge_untrusted(request: _AdmissionRequest, rules: HintRules) -> tuple[str, bytes]:
    """Return what becomes of a review, and the JSON patch, empty if there is none."""
    resource = request.resource
    if (resource.group, resource.version, resource.resource, request.sub_resource) != (GROUP, VERSION, SLICES, ""):
        return IGNORED_REVIEW, b""
    one = _slice_untrusted(request)
    if one is None or not one.opted_in:
        return IGNORED_REVIEW, b""
    if not rules.objects.has_synced:
        return UNSYNCED, b""
    wanted = rules.wanted(one)
    if wanted is None:
        return IGNORED_REVIEW, b""
    patch = hints_patch(one, wanted)
    return (PATCHED, msgspec.json.encode(patch)) if patch else (UNCHANGED, b"")


def _slice_untrusted(request: _AdmissionRequest) -> HintedSlice | None:
    """Return the slice under review, None if it is unreadable or too large. A new slice may not have its name yet."""
    try:
        raw = _SLICES.decode(request.object)
    except _UNDECODABLE:
        return None
    if len(raw.endpoints or ()) > MAX_ENDPOINTS:
        return None
    raw.metadata.namespace = request.namespace or raw.metadata.namespace
    resource = RESOURCES[EndpointSlice]
    return to_hinted_slice(raw, FindingCollector(resource.code, resource.name, request.namespace, ""))
