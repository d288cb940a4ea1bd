# SPDX-License-Identifier: Apache-2.0

"""The Kubernetes Event that warns an object's owner of a finding: of a Service that its constraint is invalid.

Every replica finds the same and posts the Event. Its name is a hash of its content, so the API stores it once; for the
other replicas a 409 (Conflict) means success.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from locator.findings import ClusterCode
from locator.model import MAX_NAME, Finding

COMPONENT = "topodns"
REASON = "InvalidTopology"
# Findings whose codes are the reasons of their Events.
OF_FEDERATIONS = frozenset(
    code.name
    for code in (
        ClusterCode.InvalidFederation, ClusterCode.NotDistributed, ClusterCode.NotOurs, ClusterCode.Refused
    )
)  # fmt: skip
SERVICES = {"Service": "/api/v1/services"}  # by kind, the API path of all objects of those that Events are about
MAX_MESSAGE = 1024  # characters; the limit of events.k8s.io/v1
_DIGITS = 16  # of the name's hash: 64 bits, for the few Events of one Service


def object_path(finding: Finding, paths: Mapping[str, str]) -> str:
    """Return the API path of the object that a finding is about; *paths* is as ``SERVICES``."""
    group, _, plural = paths[finding.kind].rpartition("/")
    return f"{group}/namespaces/{finding.namespace}/{plural}/{finding.name}"


def events_path(finding: Finding) -> str:
    """Return the API path that creates Events about that object."""
    return f"/api/v1/namespaces/{finding.namespace}/events"


def message_of(finding: Finding) -> str:
    """Return what the Event about a finding says."""
    message = f"{finding.field}: {finding.message}" if finding.field else finding.message
    if finding.expected:
        message = f"{message}, expected {finding.expected}"
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"


def event_of(
    finding: Finding, uid: str, *, instance: str, timestamp: str, paths: Mapping[str, str] = SERVICES
) -> dict[str, Any]:
    """Return the Event that reports a finding on the object with this *uid*.

    *instance* is the reporting replica, *timestamp* the time (RFC 3339, whole seconds). The name depends on neither.
    """
    reason = finding.code if finding.code in OF_FEDERATIONS else REASON
    identity = "\0".join((uid, reason, finding.field, finding.message))
    digest = hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:_DIGITS]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "namespace": finding.namespace,
            "name": f"{finding.name[: MAX_NAME - _DIGITS - 1]}.{digest}",
        },
        "involvedObject": {
            "apiVersion": paths[finding.kind].removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0],
            "kind": finding.kind,
            "namespace": finding.namespace,
            "name": finding.name,
            "uid": uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message_of(finding),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": instance,
        "firstTimestamp": timestamp,
        "lastTimestamp": timestamp,
        "count": 1,
    }
