# SPDX-License-Identifier: Apache-2.0

"""Says which sources declare a constraint for an answer's Service, which of them counts, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from dnsserver import names
from dnsserver.answers.reasons import AUTO_MODE, OWN_NAME, Case, left_to_kubernetes
from locator.topology.constraints import ZONAL_NAME, ZONE_DEFAULT, Declaration


class Source(Struct, frozen=True):
    """A declaration, whether it counts for the name that was asked, and why or why not.

    ``cluster`` is that of the Service that declares it, for federated names; empty for others.
    """

    declaration: Declaration
    heard: bool
    why: str
    cluster: str = ""


def sources_of(case: Case) -> list[Source]:
    """Return all sources that speak, in their order of precedence."""
    return [
        Source(declaration, heard, _why_heard(case, declaration) if heard else _why_not(case, declaration))
        for declaration in _speaking(case)
        for heard in [_is_heard(case, declaration)]
    ]


def _speaking(case: Case) -> Iterator[Declaration]:
    counts, service, query_name = case.decision.declaration, case.decision.service, case.query_name
    if counts is not None and counts.source == ZONAL_NAME:
        yield counts
    if service is None:
        return
    yield from service.declarations
    default = None if query_name is None else case.authority.zone_default(query_name.zone, service)
    if default is not None:
        yield counts if counts is not None and counts.source == ZONE_DEFAULT else default


def _is_heard(case: Case, declaration: Declaration) -> bool:
    return declaration is case.decision.declaration and not _is_own_name(case)


def _is_own_name(case: Case) -> bool:
    return case.query_name is not None and case.query_name.name_type == names.ENDPOINT


def _why_heard(case: Case, declaration: Declaration) -> str:
    if declaration.error is not None:
        return f"invalid, so that nothing is narrowed: {declaration.error}"
    if declaration.without_effect is not None:
        return f"without effect: {declaration.without_effect}"
    if left_to_kubernetes(case):
        return AUTO_MODE
    if declaration.source == ZONAL_NAME:
        return "the name states it"
    return "no other source speaks" if declaration.source == ZONE_DEFAULT else "the first source that speaks"


def _why_not(case: Case, declaration: Declaration) -> str:
    counts = case.decision.declaration
    if declaration.unheard is not None:
        return declaration.unheard
    if _is_own_name(case):
        return OWN_NAME
    if counts is None:
        return declaration.without_effect or "the Service is an alias"
    if counts.source == ZONAL_NAME:
        return "the name states a constraint of its own"
    return f"outranked by {counts.source}"
