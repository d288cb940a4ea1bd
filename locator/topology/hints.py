# SPDX-License-Identifier: Apache-2.0

"""The hints of EndpointSlices: who asks for them, what they say together, and what is wrong with them.

kube-proxy heeds hints for virtual IPs, where it knows the node that it runs on (KEP-2433, KEP-3015). topodns heeds them
for the names of headless Services, where it knows the node of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from locator.findings import ClusterCode
from locator.ip import address_text
from locator.model import HOSTNAME, ZONE, Endpoint, Finding, Hints, Service, listed
from locator.topology.annotations import TOPOLOGY_KEYS, TOPOLOGY_MODE, field_of
from locator.topology.constraints import HINTS, SOURCE, Declaration
from locator.topology.selection import (
    ANY_ENDPOINT,
    Constraint,
    FirstMatch,
    Hinted,
    LocatedEndpoint,
    Narrowing,
    names_for,
)

# With one of these labels and the value "true", a Service, or a slice, asks the webhook for hints by its constraint.
# The EndpointSlice controller copies the labels of a Service to its slices. The second label is of Gardener's webhook.
OPT_IN_LABELS = ("topodns.io/hints", "endpoint-slice-hints.resources.gardener.cloud/consider")
OPTED_IN = "true"
# What makes kube-proxy choose near endpoints behind a cluster IP.
FOR_KUBE_PROXY = f'the label {OPT_IN_LABELS[0]}: "{OPTED_IN}" (topodns webhook) or spec.trafficDistribution'
NAMED = 5  # endpoints, or zones, that a message names
SAYABLE = f"keys of which all nodes of a zone have one value, or {HOSTNAME} first and others after it"

_NO_HINTS = Hints()


def asks_for_hints(labels: Mapping[str, str]) -> bool:
    """Whether a Service or an EndpointSlice with these labels asks for hints by its constraint."""
    return any(labels.get(label) == OPTED_IN for label in OPT_IN_LABELS)


def beyond_own_node(constraint: Constraint) -> FirstMatch | Narrowing | None:
    """Return what chooses for clients on whose node no endpoint is, if hints can say the rest, too.

    That is so if the host name is the first key, and others follow or it is only preferred. Otherwise the result is
    None. Hints for nodes then say the host name, and those for zones what follows, as Kubernetes does it (KEP-3015).
    """
    if not isinstance(constraint, FirstMatch | Narrowing) or constraint.keys[:1] != (HOSTNAME,):
        return None
    goes_on = len(constraint.keys) > 1 if isinstance(constraint, FirstMatch) else constraint.soft
    return replace(constraint, keys=constraint.keys[1:]) if goes_on else None


def hinted(endpoints: Iterable[Endpoint]) -> Hinted | None:
    """Return the constraint by the hints of a Service's *endpoints*, None if no ready one has hints.

    A pod that is in several slices, such as one of each address family, is one endpoint. Hints are complete if all
    endpoints of one family have them: kube-proxy judges each family by itself, too.
    """
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if not any(endpoint.hints for endpoint in ready):
        return None
    families: dict[int, list[Hints]] = {}  # by octets in an address
    for endpoint in ready:
        for octets in {len(address) for address in endpoint.addresses}:
            families.setdefault(octets, []).append(endpoint.hints or _NO_HINTS)
    return Hinted(
        for_nodes=tuple(sorted(octets for octets, hints in families.items() if all(hint.nodes for hint in hints))),
        for_zones=tuple(sorted(octets for octets, hints in families.items() if all(hint.zones for hint in hints))),
    )


def incomplete_hints(
    service: Service, declarations: Sequence[Declaration], endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    """Yield a finding if hints count for nobody because some of the ready *endpoints* have none."""
    hints = _hints_in_turn(declarations)
    if hints is None or not hints.unmatched or not _any_hints(endpoints):
        return
    key = ZONE if any(names_for(ZONE, located) for located in endpoints) else HOSTNAME
    lacking = [located for located in endpoints if not names_for(key, located)]
    message = (
        f"hints count for nobody: {len(lacking)} of {len(endpoints)} ready endpoints have none "
        f"for a {'zone' if key == ZONE else 'node'}: {listed([_described(located) for located in lacking], NAMED)}"
    )
    is_zoneless = key == ZONE and any(located.location.value(ZONE) is None for located in lacking)
    why = "which needs a node with a zone" if is_zoneless else "not at some alone"
    expected = f"hints at each ready endpoint, {why}"
    yield ClusterCode.HintsIncomplete.about(service, SOURCE[HINTS].field, message, expected)


def said_by_hints(service: Service, declaration: Declaration) -> bool:
    """Whether hints are to say to kube-proxy what *declaration*, the valid one that decides, asks for."""
    is_virtual = not service.headless and service.alias is None
    counts = SOURCE[declaration.source].own or not service.publishes_unready
    return is_virtual and counts and asks_for_hints(service.labels)


def hints_cannot_say(
    service: Service, declaration: Declaration, split_by: Callable[[str], Sequence[str]]
) -> Iterator[Finding]:
    """Yield a finding for each key of *declaration* that hints cannot say, with what kube-proxy does instead.

    ``said_by_hints`` is true of both. *split_by* returns the zones whose nodes do not all have one value of a key.
    """
    constraint = declaration.constraint
    required = constraint.required if isinstance(constraint, Narrowing) else ()
    farther = beyond_own_node(constraint)
    keys = [key for key in (farther or constraint).keys if key != ANY_ENDPOINT]
    hard_host = {HOSTNAME} & {*required, *(keys if len(keys) == 1 and not constraint.soft else ())}
    unsaid = {key: zones for key in keys if (zones := split_by(key)) or key in hard_host}
    said = [HOSTNAME] if farther is not None else []
    said += [key for key in keys if key not in unsaid]
    if said and unsaid.keys().isdisjoint(required):
        instead = f"goes by {', '.join(said)} alone"
        instead += "" if constraint.soft else ", and uses all endpoints where that gives none"
    else:
        instead = "uses all endpoints"
    for key, zones in unsaid.items():
        why = "a hard host name" if key in hard_host else "which tells nodes of one zone apart"
        where = f"in zone {listed(zones, NAMED)}" if zones else "where a node has no endpoint"
        message = f"hints cannot say {key}, {why}: {where} kube-proxy {instead}"
        yield ClusterCode.HintsCannotSay.about(service, SOURCE[declaration.source].field, message, SAYABLE)


def hint_advice(
    service: Service, declarations: Sequence[Declaration], endpoints: Sequence[LocatedEndpoint]
) -> Iterator[Finding]:
    """Yield a finding if Kubernetes was asked for hints and gave none, or gave hints that lead to other zones."""
    hints = _hints_in_turn(declarations)
    if hints is None or not endpoints:
        return
    if hints.unmatched and not _any_hints(endpoints):
        message = "topology mode Auto without effect: Kubernetes has given no ready endpoint a hint"
        expected = f"spec.trafficDistribution, or the annotation {TOPOLOGY_KEYS}"
        yield ClusterCode.AutoWithoutHints.about(service, field_of(TOPOLOGY_MODE), message, expected)
    elif hints.effective and hints.ignored is None:
        yield from _hints_elsewhere(service, endpoints)


def _hints_elsewhere(service: Service, endpoints: Sequence[LocatedEndpoint]) -> Iterator[Finding]:
    zones = [(located, located.location.value(ZONE), names_for(ZONE, located)) for located in endpoints]
    elsewhere = [
        f"{_described(located)} in {zone} is for {', '.join(named)}"
        for located, zone, named in zones
        if zone is not None and named and zone not in named
    ]
    if elsewhere:
        message = f"hints of {len(elsewhere)} of {len(endpoints)} ready endpoints name other zones"
        message, expected = f"{message}: {listed(elsewhere, NAMED)}", "hints for the zones of their nodes"
        yield ClusterCode.HintsElsewhere.about(service, SOURCE[HINTS].field, message, expected)


def _hints_in_turn(declarations: Sequence[Declaration]) -> Declaration | None:
    """Return what hints declare, None if another source overrides them."""
    for declaration in declarations:
        if declaration.source == HINTS:
            return declaration
        if declaration.ignored is None:
            return None
    return None


def _any_hints(endpoints: Sequence[LocatedEndpoint]) -> bool:
    return any(located.endpoint.hints is not None for located in endpoints)


def _described(located: LocatedEndpoint) -> str:
    endpoint = located.endpoint
    name = endpoint.pod or address_text(endpoint.addresses[0])
    return f"{name} on node {endpoint.node}" if endpoint.node else name
