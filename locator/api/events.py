# SPDX-License-Identifier: Apache-2.0

"""The Kubernetes Event that warns a Service's owner of an invalid constraint.

Every replica finds the same and posts the Event. Its name is a hash of its content, so the API stores it once; for the
other replicas a 409 (Conflict) means success.
"""

from __future__ import annotations

import hashlib
from typing import Any

from locator.model import MAX_NAME, Finding

COMPONENT = "topodns"
REASON = "InvalidTopology"
MAX_MESSAGE = 1024  # characters; the limit of events.k8s.io/v1
_DIGITS = 16  # of the name's hash: 64 bits, for the few Events of one Service


def service_path(finding: Finding) -> str:
    """Return the API path of the Service that a finding is about."""
    return f"/api/v1/namespaces/{finding.namespace}/services/{finding.name}"


def events_path(finding: Finding) -> str:
    """Return the API path that creates Events about that Service."""
    return f"/api/v1/namespaces/{finding.namespace}/events"


def message_of(finding: Finding) -> str:
    """Return what the Event about a finding says."""
    message = f"{finding.field}: {finding.message}"
    if finding.expected:
        message = f"{message}, expected {finding.expected}"
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"


def event_of(finding: Finding, uid: str, *, instance: str, timestamp: str) -> dict[str, Any]:
    """Return the Event that reports a finding on the Service with this *uid*.

    *instance* is the reporting replica, *timestamp* the time (RFC 3339, whole seconds). The name depends on neither.
    """
    identity = "\0".join((uid, REASON, finding.field, finding.message))
    digest = hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:_DIGITS]
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
        "message": message_of(finding),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
