# SPDX-License-Identifier: Apache-2.0

"""What is worth knowing about a Service's constraint, given its endpoints. Most of it is of severity info.

Endpoints come and go, and with them this advice. So it is computed when somebody asks, not at each change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from locator.findings import ClusterCode
from locator.model import CLUSTER, Finding, Service
from locator.topology.constraint_findings import counts, decides
from locator.topology.constraints import (
    ANNOTATION,
    MEANT,
    POLICY,
    SOURCE_FIELDS,
    TOPOLOGY_KEYS,
    Declaration,
    heard,
    is_federated,
)
from locator.topology.hint_findings import hint_advice
from locator.topology.key_findings import CarriedKeys
from locator.topology.selection import ANY, Constraint, LocatedEndpoint, Narrowing


def advice(
    service: Service,
    declarations: Sequence[Declaration],
    endpoints: Sequence[LocatedEndpoint],
    carried: CarriedKeys,
) -> Iterator[Finding]:
    """Yield what is worth knowing about the constraint of *service*, which has these ready *endpoints*.

    *carried* are the keys that nodes carry; other keys have findings of their own.
    """
    yield from hint_advice(service, declarations, endpoints)
    declaration = heard(declarations)
    if declaration is None or not counts(service):
        return
    yield from _not_heard(service, declaration, declarations)
    if not decides(service, declaration):
        return
    keys = [key for key in _in_vain(declaration.constraint, endpoints) if carried.keys and carried.nearest(key) is None]
    for key in keys:
        message = f"no ready endpoint has the label {key}: nobody gets any"
        expected = "endpoints on nodes with this label"
        yield ClusterCode.KeyOnNoEndpoint.about(service, SOURCE_FIELDS[declaration.source], message, expected)
    if not keys and not is_federated(service):  # else there are endpoints in other clusters, too
        yield from _nothing_to_choose(service, declaration, endpoints)


def _in_vain(constraint: Constraint, endpoints: Sequence[LocatedEndpoint]) -> list[str]:
    """Return the keys for which no client gets any of *endpoints*; none if a client somewhere does."""
    if constraint.soft or not endpoints:
        return []
    demanded = constraint.required if isinstance(constraint, Narrowing) else constraint.keys
    absent = [key for key in demanded if all(located.location.value(key) is None for located in endpoints)]
    return absent if isinstance(constraint, Narrowing) or len(absent) == len(demanded) else []


def _not_heard(service: Service, declaration: Declaration, declarations: Sequence[Declaration]) -> Iterator[Finding]:
    """Yield a finding for each source that somebody wrote although *declaration* comes first."""
    for later in declarations:
        if later is not declaration and later.source in MEANT and later.unheard is None:
            invalid = "" if later.error is None else f" (it is invalid, too: {later.error})"
            message = f"not heard: {source_text(declaration)} comes first{invalid}"
            yield ClusterCode.SourceNotHeard.about(service, SOURCE_FIELDS[later.source], message, "one source")


def _nothing_to_choose(
    service: Service, declaration: Declaration, endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    key, field = next(iter(declaration.constraint.keys), ANY), SOURCE_FIELDS[declaration.source]
    if key in (ANY, CLUSTER) or not endpoints:  # a plain name has the endpoints of one cluster anyway
        return
    if len(endpoints) == 1:
        message = "nothing to choose: only one endpoint is ready"
        yield ClusterCode.SingleEndpoint.about(service, field, message, "several endpoints")
        return
    value = endpoints[0].location.value(key)
    if value is not None and all(located.location.value(key) == value for located in endpoints):
        message = f"nothing to choose: all {len(endpoints)} ready endpoints have {key}={value}"
        yield ClusterCode.EndpointsInOneDomain.about(service, field, message, "endpoints in several domains")


def source_text(declaration: Declaration) -> str:
    """Return what declares a constraint, as a message names it."""
    if declaration.source == POLICY:
        return f"ServicePolicy {', '.join(declaration.policies)}"
    return f"the annotation {TOPOLOGY_KEYS}" if declaration.source == ANNOTATION else SOURCE_FIELDS[declaration.source]
