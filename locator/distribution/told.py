# SPDX-License-Identifier: Apache-2.0

"""What an object in the federation API tells of its copies: the annotation ``topodns.io/federation-status``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

SYNCED, WAITING, NOT_OURS, REFUSED, UNREACHABLE = "synced", "waiting", "not-ours", "refused", "unreachable"


class InCluster(Struct, frozen=True):
    """The state of a copy in a cluster, and why.

    Of a workload also how many replicas it should have, has, and are ready. Numbers are None of what has no replicas,
    ``wanted`` also where they are the cluster's own business.
    """

    wanted: int | None
    replicas: int | None
    ready: int | None
    state: str
    message: str = ""


_DECODER = Decoder(dict[str, InCluster])


def told_text(states: Mapping[str, InCluster]) -> str:
    """Return the value of the annotation."""
    return msgspec.json.encode(dict(sorted(states.items()))).decode()


def read_told(text: str) -> Mapping[str, InCluster]:
    """Return what an annotation tells; nothing if it is absent, or nothing that topodns wrote."""
    try:
        return _DECODER.decode(text) if text else {}
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}


def told_without_share(text: str) -> Iterator[str]:
    """Yield the clusters that the annotation tells to have no share."""
    return (name for name, told in read_told(text).items() if told.wanted == 0)
