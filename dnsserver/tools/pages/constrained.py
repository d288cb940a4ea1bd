# SPDX-License-Identifier: Apache-2.0

"""Lists the Services that ask for something, a page at a time."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TypedDict

from dnsserver.tools.explain.explain import constraint_explained
from dnsserver.tools.explain.explanation import ConstraintExplained
from dnsserver.tools.pages.steps import STEP, Steps
from locator.state.snapshot import CompiledService, Snapshot


class ConstrainedService(TypedDict):
    """A Service, what it asks for, and whether that is valid."""

    namespace: str
    name: str
    constraint: ConstraintExplained


ConstrainedServices = TypedDict(
    "ConstrainedServices", {"items": list[ConstrainedService], "total": int, "continue": str | None}
)
ConstrainedServices.__doc__ = """Some of the ``total`` constrained Services; ``continue`` asks for those after them."""


def constrained_services(snapshot: Snapshot, *, after: str, limit: int) -> Steps[ConstrainedServices]:
    """Return at most *limit* constrained Services, those whose ``namespace/name`` comes *after* in the alphabet."""
    constrained, services = list[str](), iter(snapshot.services.items())
    while part := list(islice(services, STEP)):
        constrained += sorted(key for key, service in part if service.declaration is not None)
        yield
    constrained.sort()  # parts in order, which takes little
    keys = constrained[bisect_right(constrained, after) :][: limit + 1]
    yield
    return {
        "items": [_item(snapshot.services[key]) for key in keys[:limit]],
        "total": len(constrained),
        "continue": keys[limit - 1] if len(keys) > limit else None,
    }


def _item(compiled: CompiledService) -> ConstrainedService:
    assert compiled.declaration is not None
    service = compiled.service
    return {
        "namespace": service.namespace,
        "name": service.name,
        "constraint": constraint_explained(compiled.declaration),
    }
