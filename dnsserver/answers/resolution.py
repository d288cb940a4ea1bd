"""From a name, a type, a snapshot and a location to a Decision: what is answered, and why.

``RESOLVERS`` has one row a shape of name. Nothing here knows bytes; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers import services
from dnsserver.answers.decision import Authority, Decision, EndpointNames, Request
from dnsserver.message import wire
from dnsserver.message.records import Host, HostInfo, Record, Text
from dnsserver.names import DISABLED, VERIFIED, Meaning, labels_of, meaning_of, pod_address
from locator.model import Location
from locator.state.snapshot import CompiledService, Snapshot

SCHEMA_VERSION = Text("1.1.0")
VERSION_TTL = 28800  # seconds; as CoreDNS has it: it changes with the server only
MAX_ALIASES = 8  # followed in one answer; who needs more has a loop or bad luck


def resolve(
    meaning: Meaning | None,
    qtype: int,
    snapshot: Snapshot,
    location: Location,
    authority: Authority,
    *,
    names_of: Callable[[CompiledService], EndpointNames] | None = None,
) -> Decision:
    """Decide what a client at *location* is answered; *meaning* is None for a name outside the zones.

    *names_of* returns what ``services.endpoint_names`` makes of a Service; without it they are worked out anew.
    """
    if meaning is None or qtype in (wire.AXFR, wire.IXFR):
        return Decision(meaning, qtype, wire.REFUSED)
    if names_of is None:
        names_of = partial(services.endpoint_names, pod_names=authority.endpoint_pod_names)
    request = Request(meaning, qtype, snapshot, location, authority, names_of)
    decision = _decided(request)
    if decision.aliases:
        return decision if qtype in (wire.CNAME, wire.ANY) else _followed(request, decision)
    if qtype == wire.ANY and decision.rcode == wire.NOERROR:
        # RFC 8482, section 4.2: ANY gets one small record that says why.
        answer = request.record(wire.HINFO, HostInfo("RFC8482", ""))
        return replace(decision, answers=(answer,), authority=(), additional=())
    return decision


def _decided(request: Request) -> Decision:
    """Return what the name itself has; one between two zones exists, whatever is beneath the outer one (RFC 8020)."""
    decision, name = RESOLVERS[request.meaning.shape](request), f".{request.meaning.name}"
    if decision.rcode == wire.NXDOMAIN and any(zone.name.endswith(name) for zone in request.authority.zones):
        return request.decision()
    return decision


def _followed(request: Request, decision: Decision) -> Decision:
    """Return what stands at the end of the aliases, with the aliases in front (RFC 1034, section 4.3.2)."""
    aliases = list(decision.aliases)
    for _ in range(MAX_ALIASES):
        target = _target(aliases[-1])
        if target in {record.name for record in aliases}:
            break
        meaning = meaning_of(labels_of(target), request.authority.zones)
        if meaning is None:
            hangs_on = decision.hangs_on if len(aliases) == 1 else request.snapshot
            return replace(decision, aliases=tuple(aliases), elsewhere=target, hangs_on=hangs_on)
        found = _decided(replace(request, meaning=meaning))
        if not found.aliases:
            service = found.service or decision.service
            return replace(
                found, meaning=request.meaning, aliases=tuple(aliases), service=service, hangs_on=request.snapshot
            )
        aliases += found.aliases
    return replace(decision, aliases=tuple(aliases), hangs_on=request.snapshot)


def _target(alias: Record) -> str:
    assert isinstance(alias.data, Host)
    return alias.data.name


def _apex(request: Request) -> Decision:
    authority = request.authority
    if request.qtype == wire.SOA:
        return request.decision(answers=[request.soa()])
    if request.qtype == wire.NS:
        host = f"ns.dns.{request.meaning.zone.name}"
        glue = request.glue([(host, address) for address in authority.addresses])
        return request.decision(answers=[request.record(wire.NS, Host(host))], additional=glue)
    return request.decision()


def _name_server(request: Request) -> Decision:
    return request.decision(answers=request.addresses(request.authority.addresses))


def _version(request: Request) -> Decision:
    record = Record(request.meaning.name, wire.TXT, VERSION_TTL, SCHEMA_VERSION)
    return request.decision(answers=[record] if request.qtype == wire.TXT else ())


def _between(request: Request) -> Decision:
    return request.decision()


def _impossible(request: Request) -> Decision:
    return request.decision(wire.NXDOMAIN)


def _namespace(request: Request) -> Decision:
    return request.decision(wire.NOERROR if request.meaning.namespace in request.snapshot.namespaces else wire.NXDOMAIN)


def _pod_namespace(request: Request) -> Decision:
    return request.decision(wire.NXDOMAIN) if request.authority.pods == DISABLED else _namespace(request)


def _pod(request: Request) -> Decision:
    """A name that is made from an address; verified, it exists while a pod of the namespace has that address."""
    namespace, address = request.meaning.namespace, pod_address(request.meaning.pod)
    mode, snapshot = request.authority.pods, request.snapshot
    if address is None or mode == DISABLED or namespace not in snapshot.namespaces:
        return request.decision(wire.NXDOMAIN)
    if mode == VERIFIED:
        exists = namespace in (snapshot.pods.get(address) or ())
        return request.decision(answers=request.addresses((address,))) if exists else request.decision(wire.NXDOMAIN)
    # Of addresses there is no end.
    return replace(request.decision(answers=request.addresses((address,))), hangs_on=None)


def _reverse(request: Request) -> Decision:
    """The names of an address; parts of an address are names between (RFC 8020)."""
    network, zone = request.meaning.network, next((zone for zone in request.authority.zones if not zone.reverse), None)
    if network is None or zone is None:
        return request.decision(wire.NXDOMAIN)
    if network.length < 8 * len(network.address):
        return request.decision(wire.NOERROR if request.snapshot.holders.any_within(network) else wire.NXDOMAIN)
    found = dict.fromkeys(_names_of(request, network.address, zone))
    if not found:
        return request.decision(wire.NXDOMAIN)
    answers = [request.record(wire.PTR, Host(name)) for name in found] if request.qtype == wire.PTR else ()
    return request.decision(answers=answers)


def _names_of(request: Request, address: bytes, zone: names.Zone) -> Iterator[str]:
    """Yield the name of the Service whose own address it is, else those of the endpoints that have it."""
    holders = [request.snapshot.services[key] for key in request.snapshot.holders.of(address)]
    for compiled in holders:
        if address in compiled.service.cluster_ips:
            yield from services.names_of_service(compiled, zone)
            return
    for compiled in holders:
        yield from services.names_of_address(request, compiled, address, zone)


def _of_service(resolver: Callable[[Request, CompiledService], Decision]) -> Callable[[Request], Decision]:
    """Return a resolver of names under a Service, which do not exist without it."""

    def resolve(request: Request) -> Decision:
        compiled = request.snapshot.services.get(request.meaning.service_key)
        if compiled is None:
            return request.decision(wire.NXDOMAIN)
        if request.authority.ignore_empty_service and compiled.service.virtual and compiled.empty:
            return request.decision(wire.NXDOMAIN, service=compiled)
        return resolver(request, compiled)

    return resolve


# Shape of name -> what answers it.
RESOLVERS: dict[str, Callable[[Request], Decision]] = {
    names.APEX: _apex,
    names.EMPTY_NON_TERMINAL: _between,
    names.NAME_SERVER: _name_server,
    names.VERSION: _version,
    names.POD_NAMESPACE: _pod_namespace,
    names.POD: _pod,
    names.NAMESPACE: _namespace,
    names.SERVICE: _of_service(services.service),
    names.ZONAL: _of_service(services.zonal),
    names.PINNED: _of_service(services.zonal),
    names.PREFERRED: _of_service(services.zonal),
    names.PROTOCOL: _of_service(services.protocol),
    names.PORT: _of_service(services.port),
    names.ENDPOINT: _of_service(services.endpoint),
    names.REVERSE: _reverse,
    names.IMPOSSIBLE: _impossible,
}
