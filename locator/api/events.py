"""The Kubernetes Event that tells a Service's owner that its constraint is invalid.

Every replica sees the same and would say so. The Event's name is made from what it says, so that the API has it once:
who comes later is refused with 409, and that is as good as done.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from locator.model import MAX_NAME, Finding

COMPONENT = "topodns"
REASON = "InvalidTopology"
MAX_MESSAGE = 1024  # characters: what the newer of the two Event APIs allows
_DIGITS = 16  # of the name's hash: 64 bits, for the few Events of one Service


def service_path(finding: Finding) -> str:
    """Return where the API has the Service that a finding is about."""
    return f"/api/v1/namespaces/{finding.namespace}/services/{finding.name}"


def events_path(finding: Finding) -> str:
    """Return where its Events are created."""
    return f"/api/v1/namespaces/{finding.namespace}/events"


class _Meta(Struct):
    uid: str = ""


class _Service(Struct):
    metadata: _Meta


_DECODER = Decoder(_Service)  # here, not where threads use it first: msgspec 0.22 crashes if two do that at once


def uid_untrusted(raw: bytes) -> str:
    """Return the uid of an object, empty if it says none."""
    try:
        return _DECODER.decode(raw).metadata.uid
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def event_of(finding: Finding, uid: str, *, instance: str, wall: str) -> dict[str, Any]:
    """Return the Event that says on the Service with this *uid* what is wrong in it.

    *instance* is who says it, *wall* the time in RFC 3339, whole seconds. Neither is in the name.
    """
    message = f"{finding.field}: {finding.message}"
    if finding.expected:
        message = f"{message}, expected {finding.expected}"
    said = "\0".join((uid, REASON, finding.field, finding.message))
    digest = hashlib.sha256(said.encode(errors="replace")).hexdigest()[:_DIGITS]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": finding.namespace,
            "name": f"{finding.name[: MAX_NAME - _DIGITS - 1]}.{digest}",
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": finding.namespace,
            "name": finding.name,
            "uid": uid,
        },
        "type": "Warning",
        "reason": REASON,
        "message": message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": wall,
        "lastTimestamp": wall,
        "count": 1,
    }
