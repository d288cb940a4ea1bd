# SPDX-License-Identifier: Apache-2.0

"""Chooses what a client gets of a Service: ready endpoints, or of a federated Service its entries.

An entry is an endpoint, the cluster IPs of the Service in the client's cluster, or an address or host name of a load
balancer. Which entries there are depends on where the client is; of these, the constraint selects. Spares follow them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from dnsserver.answers.decision import ADDRESS_SIZES, AddressedEndpoint, EndpointChoice, Request
from dnsserver.message import wire
from locator.state.snapshot import AnyService, Entry, FederatedService
from locator.topology.constraints import in_effect
from locator.topology.selection import LocatedEndpoint, Narrowing, select, tiers_after

# Of a member whose ``ports_differ``, for a client in a flat network that asks for addresses.
IN_SRV_ALONE = "pods listen at other ports than the Service, so only SRV records name them"


def choose(request: Request, found: AnyService) -> EndpointChoice:
    """Choose endpoints or entries for the client."""
    if isinstance(found, FederatedService):
        return _choose_entries(request, found)
    declaration = request.authority.declaration(request.query_name.zone, found)
    constraint, size = in_effect(declaration), ADDRESS_SIZES.get(request.qtype)
    client, unknown_gets_all, plan = request.location, request.authority.unknown_gets_all, found.constraint(declaration)
    selection = select(constraint, client, found.endpoints, plan=plan, unknown_gets_all=unknown_gets_all, octets=size)
    return EndpointChoice(declaration, constraint, selection, plan.client_keys)


def _choose_entries(request: Request, found: FederatedService) -> EndpointChoice:
    """Choose entries for the client, and after them as many addresses of each family as ``--federation-spares`` says.

    Entries that most clusters vote against do not count, unless the client would get nothing without them.
    """
    client, unknown_gets_all = request.location, request.authority.unknown_gets_all
    viewer = found.viewer(client)
    declaration = found.declaration(viewer)
    entries = found.entries(viewer, with_ports=request.qtype == wire.SRV)
    constraint = declaration.constraint
    healthy = [entry for entry in entries if not (isinstance(entry, Entry) and entry.down)]
    selection = select(constraint, client, healthy, unknown_gets_all=unknown_gets_all)
    if not selection.endpoints and len(healthy) < len(entries):
        healthy = list(entries)
        selection = select(constraint, client, healthy, unknown_gets_all=unknown_gets_all)
    tiers = tiers_after(constraint, client, healthy, selection) if selection.endpoints else ()
    given = {address for located in selection.endpoints for address in located.endpoint.addresses}
    spares = tuple(_spares(tiers, given, request.authority.spares))
    ttls = ttls_of([*selection.endpoints, *(located for located, _ in spares)])
    return EndpointChoice(declaration, constraint, selection, found.client_keys, spares, ttls)


def _spares(tiers: Iterable[Sequence[LocatedEndpoint]], given: set[bytes], most: int) -> Iterator[AddressedEndpoint]:
    """Yield the addresses in some tiers that are not *given*, each with its entry, *most* of each family."""
    left = dict.fromkeys(ADDRESS_SIZES.values(), most)
    for tier in tiers:
        rows = [
            (located.location.cluster, address, located) for located in tier for address in located.endpoint.addresses
        ]
        for _, address, located in sorted(rows, key=itemgetter(0, 1)):
            if left[len(address)] and address not in given:
                left[len(address)] -= 1
                given.add(address)
                yield located, address
        if not any(left.values()):
            return


def ttls_of(endpoints: Iterable[LocatedEndpoint]) -> dict[bytes, int]:
    """Return the TTLs of those addresses that have their own: of the host names of load balancers.

    If several of these have one address, it has the lowest of their TTLs.
    """
    ttls: dict[bytes, int] = {}
    for entry in endpoints:
        own = entry.ttls if isinstance(entry, Entry) else {}
        for address in entry.endpoint.addresses if own else ():
            if (ttl := own.get(len(address))) is not None:
                ttls[address] = min(ttl, ttls.get(address, ttl))
    return ttls


def why_none(request: Request, found: AnyService, choice: EndpointChoice) -> str:
    """Say why a client gets no endpoint, although others do.

    Name the keys and values that no ready endpoint matches: ``Narrowing`` demands all, other types one of them.
    """
    client = request.location
    if isinstance(found, FederatedService):
        viewer = found.viewer(client)
        if not found.entries(viewer, with_ports=request.qtype == wire.SRV):
            if found.entries(viewer, with_ports=True):
                return IN_SRV_ALONE
            return "no address of the Service can be reached from where the client is"
    steps, joint = choice.selection.steps, " and " if isinstance(choice.constraint, Narrowing) else " or "
    absent = " or ".join(step.key for step in steps if step.value is None)
    if not client.known:
        return f"the client cannot be located, so it has no label {absent}"
    present = joint.join(f"{step.key}={step.value}" for step in steps if step.value is not None)
    texts = [f"no ready endpoint has the client's {present}"] if present else []
    return "; ".join(texts + ([f"the client has no label {absent}"] if absent else []))
