"""Lists the Services that ask for something, a page at a time."""

from __future__ import annotations

from heapq import nsmallest
from typing import TypedDict

from dnsserver.answers.explain import constraint_explained
from dnsserver.answers.explanation import ConstraintExplained
from locator.state.snapshot import Snapshot


class ConstrainedService(TypedDict):
    """A Service, what it asks for, and whether that is valid."""

    namespace: str
    name: str
    constraint: ConstraintExplained


ConstrainedServices = TypedDict(
    "ConstrainedServices", {"items": list[ConstrainedService], "total": int, "continue": str | None}
)
ConstrainedServices.__doc__ = """Some of the ``total`` constrained Services; ``continue`` asks for those after them."""


def constrained_services(snapshot: Snapshot, *, after: str, limit: int) -> ConstrainedServices:
    """Return at most *limit* constrained Services, those whose ``namespace/name`` comes *after* in the alphabet."""
    constrained = {
        key: declaration
        for key, service in snapshot.services.items()
        if (declaration := service.declaration) is not None
    }
    keys = nsmallest(limit + 1, (key for key in constrained if key > after))
    return {
        "items": [
            {
                "namespace": snapshot.services[key].service.namespace,
                "name": snapshot.services[key].service.name,
                "constraint": constraint_explained(constrained[key]),
            }
            for key in keys[:limit]
        ],
        "total": len(constrained),
        "continue": keys[limit - 1] if len(keys) > limit else None,
    }
