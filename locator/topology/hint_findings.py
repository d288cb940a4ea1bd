# SPDX-License-Identifier: Apache-2.0

"""The findings about hints: those that count for nobody, those that are missing, those that lead elsewhere.

Whoever asks Kubernetes for near endpoints gets them through hints, and learns here why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from locator.findings import ClusterCode
from locator.ip import address_text
from locator.model import HOSTNAME, ZONE, Finding, Service, listed
from locator.topology.constraints import HINTS, SOURCE_FIELDS, TOPOLOGY_KEYS, TOPOLOGY_MODE, Declaration
from locator.topology.hints import names_for
from locator.topology.selection import LocatedEndpoint

NAMED = 5  # endpoints that a message names


def incomplete_hints(
    service: Service, declarations: Sequence[Declaration], endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    """Yield a finding if hints count for nobody because some of the ready *endpoints* have none."""
    hints = _in_turn(declarations)
    if hints is None or not hints.in_vain or not _any_hints(endpoints):
        return
    key = ZONE if any(names_for(ZONE, located) for located in endpoints) else HOSTNAME
    lacking = [located for located in endpoints if not names_for(key, located)]
    word = "zone" if key == ZONE else "node"
    message = (
        f"hints count for nobody: {len(lacking)} of {len(endpoints)} ready endpoints have none for a {word}: "
        f"{listed([_described(located) for located in lacking], NAMED)}"
    )
    is_zoneless = key == ZONE and any(located.location.value(ZONE) is None for located in lacking)
    why = "which needs a node with a zone" if is_zoneless else "not at some alone"
    code, expected = ClusterCode.HintsIncomplete, f"hints at each ready endpoint, {why}"
    yield code.about(service, SOURCE_FIELDS[HINTS], message, expected)


def hint_advice(
    service: Service, declarations: Sequence[Declaration], endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    """Yield a finding if Kubernetes was asked for hints and gave none, or gave hints that lead to other zones."""
    hints = _in_turn(declarations)
    if hints is None or not endpoints:
        return
    if hints.in_vain and not _any_hints(endpoints):
        message = "topology mode Auto without effect: Kubernetes has given no ready endpoint a hint"
        field, expected = f"metadata.annotations[{TOPOLOGY_MODE}]", "spec.trafficDistribution, or the annotation "
        yield ClusterCode.AutoWithoutHints.about(service, field, message, f"{expected}{TOPOLOGY_KEYS}")
    elif hints.effective and hints.unheard is None:
        yield from _elsewhere(service, endpoints)


def _elsewhere(service: Service, endpoints: Sequence[LocatedEndpoint]) -> Iterator[Finding]:
    zones = [(located, located.location.value(ZONE), names_for(ZONE, located)) for located in endpoints]
    elsewhere = [
        f"{_described(located)} in {zone} is for {', '.join(named)}"
        for located, zone, named in zones
        if zone is not None and named and zone not in named
    ]
    if elsewhere:
        message = f"hints of {len(elsewhere)} of {len(endpoints)} ready endpoints name other zones"
        message, expected = f"{message}: {listed(elsewhere, NAMED)}", "hints for the zones of their nodes"
        yield ClusterCode.HintsElsewhere.about(service, SOURCE_FIELDS[HINTS], message, expected)


def _in_turn(declarations: Sequence[Declaration]) -> Declaration | None:
    """Return what is said by hints, None if a source speaks before."""
    for declaration in declarations:
        if declaration.source == HINTS:
            return declaration
        if declaration.unheard is None:
            return None
    return None


def _any_hints(endpoints: Sequence[LocatedEndpoint]) -> bool:
    return any(located.endpoint.hints is not None for located in endpoints)


def _described(located: LocatedEndpoint) -> str:
    endpoint = located.endpoint
    name = endpoint.pod or address_text(endpoint.addresses[0])
    return f"{name} on node {endpoint.node}" if endpoint.node else name
