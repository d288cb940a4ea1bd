# SPDX-License-Identifier: Apache-2.0

"""Whether the endpoints in an answer are in the client's zone: what is counted, and what is simulated. Pure."""

from __future__ import annotations

# All are, some are, none is; or it is not known.
SAME, SOME, ELSEWHERE, UNKNOWN = RELATIONS = "same", "some", "other", "unknown"


def relation(zone: str, answered: frozenset[str]) -> str:
    """Return whether the zones of the endpoints in an answer are the client's; "" stands for an unknown zone."""
    if not zone:
        return UNKNOWN
    if zone in answered:
        return SAME if len(answered) == 1 else SOME
    return UNKNOWN if "" in answered else ELSEWHERE
