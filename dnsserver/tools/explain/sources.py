# SPDX-License-Identifier: Apache-2.0

"""Says which sources declare a constraint for an answer's Service, which of them decides, and why the others do not."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dnsserver.tools.explain.reasons import AUTO_MODE, OWN_NAME, Case, is_own_name, left_to_kubernetes
from locator.topology.constraints import SOURCE, ZONAL_NAME, ZONE_DEFAULT, Declaration


class ExplainedDeclaration(Struct, frozen=True):
    """A declaration, whether it decides for the name that was asked, and why or why not.

    ``cluster`` is that of the Service that declares it, for federated names; empty for others.
    """

    declaration: Declaration
    decides: bool
    why: str
    cluster: str = ""


def sources_of(case: Case) -> list[ExplainedDeclaration]:
    """Return what all sources declare, in their order of precedence."""
    explained, own_name = [], is_own_name(case)
    for declaration in _declarations(case):
        decides = declaration is case.decision.declaration and not own_name
        why = _why(case, declaration) if decides else _why_not(case, declaration, own_name=own_name)
        explained.append(ExplainedDeclaration(declaration, decides, why))
    return explained


def _declarations(case: Case) -> Sequence[Declaration]:
    """Return what the name declares that was asked, what the Service's sources do, and what the DNS zone does."""
    service, query_name = case.decision.service, case.query_name
    if service is None:
        return ()
    default = None if query_name is None else case.authority.zone_default(query_name.zone, service)
    of_name = {one.source: one for one in (default, case.decision.declaration) if one is not None}
    # What a ServiceImport declares comes before all that the Service of its name does, so these are not sorted again.
    declared = (of_name.get(ZONAL_NAME), *service.declarations, of_name.get(ZONE_DEFAULT))
    return [one for one in declared if one is not None]


def _why(case: Case, declaration: Declaration) -> str:
    if declaration.error is not None:
        return f"invalid, so that nothing is narrowed: {declaration.error}"
    if declaration.without_effect is not None:
        return f"without effect: {declaration.without_effect}"
    return AUTO_MODE if left_to_kubernetes(case) else SOURCE[declaration.source].decides


def _why_not(case: Case, declaration: Declaration, *, own_name: bool) -> str:
    first = case.decision.declaration
    if declaration.ignored is not None:
        return declaration.ignored
    if own_name:
        return OWN_NAME
    if first is None:
        return declaration.without_effect or "the Service is an alias"
    return SOURCE[first.source].overrides or f"overridden by {first.source}"
