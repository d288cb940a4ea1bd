# SPDX-License-Identifier: Apache-2.0

"""The annotation ``topodns.io/federation-status`` of an object in the federation API: what became of its copies."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

SYNCED, WAITING, NOT_OURS, REFUSED, UNREACHABLE = "synced", "waiting", "not-ours", "refused", "unreachable"


class ClusterStatus(Struct, frozen=True):
    """The state of a copy in a cluster, and why.

    Of a workload also how many replicas it should have, has, and are ready. Numbers are None of what has no replicas,
    ``wanted`` also where they are the cluster's own business.
    """

    wanted: int | None
    replicas: int | None
    ready: int | None
    state: str
    message: str = ""


_DECODER = Decoder(dict[str, ClusterStatus])


def encode_statuses(statuses: Mapping[str, ClusterStatus]) -> str:
    """Return the value of the annotation for the status of each cluster."""
    return msgspec.json.encode(dict(sorted(statuses.items()))).decode()


def decode_statuses(text: str) -> Mapping[str, ClusterStatus]:
    """Return the status of each cluster; nothing if the annotation is absent, or nothing that topodns wrote."""
    try:
        return _DECODER.decode(text) if text else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
