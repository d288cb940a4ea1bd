# SPDX-License-Identifier: Apache-2.0

"""Says which sources declare a constraint for an answer's Service, which of them decides, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from dnsserver.tools.explain.explanation import SourceExplained
from dnsserver.tools.explain.reasons import (
    AUTO_MODE,
    OWN_NAME,
    SAME_FOR_ALL,
    ExplainedDecision,
    is_own_name,
    left_to_kubernetes,
)
from locator.state.snapshot import FederatedService
from locator.topology.constraints import SOURCE, ZONAL_NAME, ZONE_DEFAULT, Declaration


def sources_of(explained: ExplainedDecision) -> Iterator[SourceExplained]:
    """Yield what all sources declare, in their order of precedence."""
    decision = explained.decision
    if decision.federated is not None:
        yield from _federated_sources(explained, decision.federated)
        return
    own_name = is_own_name(explained)
    for declaration in _declarations(explained):
        decides = declaration is decision.declaration and not own_name
        why = _why(explained, declaration) if decides else _why_not(explained, declaration, own_name=own_name)
        yield _source(declaration, why, decides=decides)


def _source(declaration: Declaration, why: str, *, decides: bool, cluster: str = "") -> SourceExplained:
    """Return what a source declares; *cluster* is that of a federated Service that declares it."""
    keys, policies = declaration.constraint.keys, declaration.policies
    return SourceExplained(declaration.source, keys, policies, decides, why, cluster or UNSET)


def _declarations(explained: ExplainedDecision) -> Sequence[Declaration]:
    """Return what the name declares that was asked, what the Service's sources do, and what the DNS zone does."""
    service, query_name = explained.decision.service, explained.query_name
    if service is None:
        return ()
    default = None if query_name is None else explained.authority.zone_default(query_name.zone, service)
    of_name = {one.source: one for one in (default, explained.decision.declaration) if one is not None}
    # What a ServiceImport declares comes before all that the Service of its name does, so these are not sorted again.
    declared = (of_name.get(ZONAL_NAME), *service.declarations, of_name.get(ZONE_DEFAULT))
    return [one for one in declared if one is not None]


def _why(explained: ExplainedDecision, declaration: Declaration) -> str:
    if declaration.error is not None:
        return f"invalid, so that nothing is narrowed: {declaration.error}"
    if declaration.without_effect is not None:
        return f"without effect: {declaration.without_effect}"
    return AUTO_MODE if left_to_kubernetes(explained) else SOURCE[declaration.source].decides


def _why_not(explained: ExplainedDecision, declaration: Declaration, *, own_name: bool) -> str:
    first = explained.decision.declaration
    if declaration.ignored is not None:
        return declaration.ignored
    if own_name:
        return OWN_NAME
    if first is None:
        return declaration.without_effect or "the Service is an alias"
    return SOURCE[first.source].overrides or f"overridden by {first.source}"


def _federated_sources(explained: ExplainedDecision, found: FederatedService) -> Iterator[SourceExplained]:
    """Yield what the Service of each cluster declares, then the default."""
    viewer, decision = found.viewer(explained.location), explained.decision
    decided = False
    for member in found.by_precedence(viewer):
        declaration = member.exported.constraint
        if declaration is None:
            continue
        decides = decision.declaration is not None and declaration.valid and not decided
        decided |= decides
        if decision.declaration is None:
            why = SAME_FOR_ALL
        elif not decides:
            why = "that of another cluster counts" if declaration.valid else f"invalid: {declaration.error}"
        elif member.cluster == viewer:
            why = "the Service in the client's cluster"
        else:
            why = "the oldest that declares a valid one"
        yield _source(declaration, why, decides=decides, cluster=member.cluster)
    if decision.declaration is not None:
        why = "a Service declares one" if decided else "no Service declares a valid one"
        yield _source(found.default, why, decides=not decided)
