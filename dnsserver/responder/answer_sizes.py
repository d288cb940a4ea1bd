# SPDX-License-Identifier: Apache-2.0

"""Finds the Services whose answers no message can hold: 64 KiB (RFC 1035, section 4.2.2).

Only the records tell how large an answer is. So the answers of the few Services with very many endpoints are made, for
the clients that may get the most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dnsserver.answers.decision import Authority
from dnsserver.answers.resolution import resolve
from dnsserver.answers.services import named_ports
from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY
from dnsserver.message.packing import Packer
from dnsserver.names import MAX_LABEL, MULTICLUSTER, SERVICES, Zone, labels_of, query_name_of
from locator.findings import ClusterCode
from locator.model import MAX_NAME, SUCCESSORS, UNKNOWN_LOCATION, EndpointSlice, Finding, Location
from locator.state.snapshot import CompiledService, Snapshot
from locator.topology.constraints import in_effect
from locator.topology.selection import Constraint, LocatedEndpoint, Narrowing

ASKED_TYPES = {"A": wire.A, "AAAA": wire.AAAA, "SRV": wire.SRV}
SRV_FIXED = 2 + 10 + 6  # octets of an SRV record, the largest of these, without its target
LABELS = 2 * (1 + MAX_LABEL)  # octets of a target before the Service's name: the endpoint's label, and its cluster's


class TooLarge(NamedTuple):
    """An answer of so many *records*; a message has room for about *fit* of them."""

    records: int
    fit: int


def too_large(snapshot: Snapshot, authority: Authority) -> Iterator[Finding]:
    """Yield a finding for each headless Service of which some client gets a truncated answer even over TCP."""
    for about, kind, known in (
        (SERVICES, "Service", snapshot.services),
        (MULTICLUSTER, "ServiceImport", snapshot.imported),
    ):
        zones = [zone for zone in authority.zones if zone.about == about and not zone.reverse]
        for _, compiled in sorted(known.items()):
            found: dict[str, TooLarge] = {}
            for zone in zones if compiled.service.headless else ():
                found |= _answers(compiled, zone, snapshot, authority)
            if found:
                yield _finding(compiled, kind, found)


def _finding(compiled: CompiledService, kind: str, found: Mapping[str, TooLarge]) -> Finding:
    counts = "; ".join(
        f"{answer.records} {rtype} records, of which a reply holds about {answer.fit}"
        for rtype, answer in found.items()
    )
    return ClusterCode.AnswerTooLarge.finding(
        kind,
        compiled.service.namespace,
        compiled.service.name,
        message=f"more endpoints than 64 KiB hold: {counts}",
        expected="fewer ready endpoints, or several Services",
    )


def _answers(compiled: CompiledService, zone: Zone, snapshot: Snapshot, authority: Authority) -> dict[str, TooLarge]:
    """Return the largest answer of each type that is too large, by the name of the type."""
    base = f"{compiled.service.name}.{compiled.service.namespace}.svc.{zone.name}"
    always_fit = (MAX_TCP_REPLY - wire.HEADER - MAX_NAME - 6) // (SRV_FIXED + LABELS + len(base) + 2)
    if sum(map(_records, compiled.slices)) <= always_fit:
        return {}
    asked = [(base, rtype) for rtype in ASKED_TYPES]
    ports = named_ports(compiled.endpoints)
    if len(ports) == 1:  # the answer of one of several has fewer records than that of the Service's own name
        asked += [(f"_{name}._{protocol}.{base}", "SRV") for name, protocol in ports]
    found: dict[str, TooLarge] = {}
    for client in _clients(in_effect(authority.declaration(zone, compiled)), compiled.endpoints, always_fit):
        for name, rtype in asked:
            answer = _measured(name, ASKED_TYPES[rtype], client, snapshot, authority)
            if answer is not None:
                found[rtype] = max(found.get(rtype, answer), answer)
    return found


def _records(endpoint_slice: EndpointSlice) -> int:
    """Return how many records the endpoints of a slice have at most, without reading each of them."""
    endpoints = endpoint_slice.endpoints
    addresses = sum(endpoints.counts) or len(endpoints)
    return addresses * max(1, *map(len, endpoints.ports), 0)


def _clients(constraint: Constraint, endpoints: Sequence[LocatedEndpoint], always_fit: int) -> Iterator[Location]:
    """Yield locations whose clients get the most endpoints: all of them, or of a hard constraint one large tier.

    The records of other tiers are no more than *always_fit*.
    """
    yield UNKNOWN_LOCATION
    if constraint.soft:
        return
    most = max((len(row.endpoint.addresses) * max(1, len(row.endpoint.ports)) for row in endpoints), default=1)
    tiers = [constraint.required] if isinstance(constraint, Narrowing) else [(key,) for key in constraint.keys]
    for keys in tiers:
        domains = Counter(tuple(located.location.value(key) for key in keys) for located in endpoints)
        for values, number in domains.items():
            labels = {SUCCESSORS.get(key, key): value for key, value in zip(keys, values, strict=True) if value}
            if number * most > always_fit and len(labels) == len(keys):
                yield Location(None, labels)


def _measured(name: str, qtype: int, client: Location, snapshot: Snapshot, authority: Authority) -> TooLarge | None:
    """Return the answer to a client without EDNS if it does not fit into a message."""
    if len(name) > MAX_NAME:
        return None  # nobody can ask for it
    labels = labels_of(name)
    decision = resolve(query_name_of(labels, authority.zones), qtype, snapshot, client, authority)
    octets = sum(map(len, Packer(labels).records(decision.answers)))
    room = MAX_TCP_REPLY - wire.HEADER - len(name) - 6  # the question's name has two octets more, and type and class
    records = len(decision.answers)
    return TooLarge(records, records * room // octets) if octets > room else None
