"""Finds the Services whose answers no message can hold: 64 KiB (RFC 1035, section 4.2.2), with any number of octets over.

Only the records tell how large an answer is. So the answers of Services with many endpoints are made, for the clients
that may get the most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dnsserver import names
from dnsserver.answers.decision import Authority, Decision
from dnsserver.answers.resolution import resolve
from dnsserver.message import wire
from dnsserver.message.edns import MAX_TCP_REPLY
from dnsserver.message.packing import FIXED, SRV_NUMBERS, Packer
from dnsserver.names import MAX_LABEL, Zone, labels_of, meaning_of
from locator.finding_codes import ClusterCode
from locator.model import CLUSTER, MAX_NAME, SUCCESSORS, UNKNOWN, Finding, Location
from locator.state.snapshot import CompiledService, FederatedService, Snapshot
from locator.topology.constraints import in_effect
from locator.topology.selection import ANY, LocatedEndpoint, Narrowing

TYPES = {"A": wire.A, "AAAA": wire.AAAA, "SRV": wire.SRV}


def too_large(snapshot: Snapshot, authority: Authority) -> Iterator[Finding]:
    """Yield a finding for each Service of which some client gets a truncated answer even over TCP."""
    for key, kind in _services(snapshot, authority):
        found: dict[str, tuple[int, int]] = {}
        for zone in authority.zones:
            found |= _of_zone(zone, key, snapshot, authority)
        if found:
            message = " and ".join(
                f"{records} {name} records, of which a reply holds about {fit}" for name, (records, fit) in found.items()
            )
            namespace, _, name = key.partition("/")
            yield ClusterCode.AnswerTooLarge.finding(
                kind,
                namespace,
                name,
                field="",
                message=f"more endpoints than 64 KiB hold: {message}",
                expected="fewer ready endpoints, or several Services",
            )
