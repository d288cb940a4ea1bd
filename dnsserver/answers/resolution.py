"""From a name, a type, a snapshot and a location to a Decision: what is answered, and why.

``RESOLVERS`` has one row a shape of name. Nothing here knows bytes; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from dnsserver import names
from dnsserver.answers import services
from dnsserver.answers.decision import Asked, Authority, Decision
from dnsserver.message import wire
from dnsserver.message.records import Host, HostInfo, Record, Text
from dnsserver.names import DISABLED, VERIFIED, Meaning, labels_of, meaning_of, pod_address
from locator.model import Location
from locator.state.snapshot import CompiledService, Snapshot

SCHEMA_VERSION = Text("1.1.0")
VERSION_TTL = 28800  # seconds; as CoreDNS has it: it changes with the server only
MAX_ALIASES = 8  # followed in one answer; who needs more has a loop or bad luck


def resolve(
    meaning: Meaning | None, qtype: int, snapshot: Snapshot, location: Location, authority: Authority
) -> Decision:
    """Decide what a client at *location* is answered; *meaning* is None for a name outside the zones."""
    if meaning is None or qtype in (wire.AXFR, wire.IXFR):
        return Decision(meaning, qtype, wire.REFUSED)
    asked = Asked(meaning, qtype, snapshot, location, authority)
    decision = _decided(asked)
    if decision.aliases:
        return decision if qtype in (wire.CNAME, wire.ANY) else _followed(asked, decision)
    if qtype == wire.ANY and decision.rcode == wire.NOERROR:
        # RFC 8482, section 4.2: ANY gets one small record that says why.
        answer = asked.record(wire.HINFO, HostInfo("RFC8482", ""))
        return replace(decision, answers=(answer,), authority=(), additional=())
    return decision


def _decided(asked: Asked) -> Decision:
    """Return what the name itself has; one between two zones exists, whatever is beneath the outer one (RFC 8020)."""
    decision, name = RESOLVERS[asked.meaning.shape](asked), f".{asked.meaning.name}"
    if decision.rcode == wire.NXDOMAIN and any(zone.name.endswith(name) for zone in asked.authority.zones):
        return asked.decision()
    return decision


def _followed(asked: Asked, decision: Decision) -> Decision:
    """Return what stands at the end of the aliases, with the aliases in front (RFC 1034, section 4.3.2)."""
    aliases = list(decision.aliases)
    for _ in range(MAX_ALIASES):
        target = _target(aliases[-1])
        if target in {record.name for record in aliases}:
            break
        meaning = meaning_of(labels_of(target), asked.authority.zones)
        if meaning is None:
            hangs_on = decision.hangs_on if len(aliases) == 1 else asked.snapshot
            return replace(decision, aliases=tuple(aliases), elsewhere=target, hangs_on=hangs_on)
        found = _decided(replace(asked, meaning=meaning))
        if not found.aliases:
            service = found.service or decision.service
            return replace(
                found, meaning=asked.meaning, aliases=tuple(aliases), service=service, hangs_on=asked.snapshot
            )
        aliases += found.aliases
    return replace(decision, aliases=tuple(aliases), hangs_on=asked.snapshot)


def _target(alias: Record) -> str:
    assert isinstance(alias.data, Host)
    return alias.data.name


def _apex(asked: Asked) -> Decision:
    authority = asked.authority
    if asked.qtype == wire.SOA:
        return asked.decision(answers=[asked.soa()])
    if asked.qtype == wire.NS:
        host = f"ns.dns.{asked.meaning.zone.name}"
        glue = asked.glue([(host, address) for address in authority.addresses])
        return asked.decision(answers=[asked.record(wire.NS, Host(host))], additional=glue)
    return asked.decision()


def _name_server(asked: Asked) -> Decision:
    return asked.decision(answers=asked.addresses(asked.authority.addresses))


def _version(asked: Asked) -> Decision:
    record = Record(asked.meaning.name, wire.TXT, VERSION_TTL, SCHEMA_VERSION)
    return asked.decision(answers=[record] if asked.qtype == wire.TXT else ())


def _between(asked: Asked) -> Decision:
    return asked.decision()


def _impossible(asked: Asked) -> Decision:
    return asked.decision(wire.NXDOMAIN)


def _namespace(asked: Asked) -> Decision:
    return asked.decision(wire.NOERROR if asked.meaning.namespace in asked.snapshot.namespaces else wire.NXDOMAIN)


def _pod_namespace(asked: Asked) -> Decision:
    return asked.decision(wire.NXDOMAIN) if asked.authority.pods == DISABLED else _namespace(asked)


def _pod(asked: Asked) -> Decision:
    """A name that is made from an address; verified, it exists while a pod of the namespace has that address."""
    namespace, address = asked.meaning.namespace, pod_address(asked.meaning.pod)
    mode, snapshot = asked.authority.pods, asked.snapshot
    if address is None or mode == DISABLED or namespace not in snapshot.namespaces:
        return asked.decision(wire.NXDOMAIN)
    if mode == VERIFIED:
        exists = namespace in (snapshot.pods.get(address) or ())
        return asked.decision(answers=asked.addresses((address,))) if exists else asked.decision(wire.NXDOMAIN)
    # Of addresses there is no end.
    return replace(asked.decision(answers=asked.addresses((address,))), hangs_on=None)


def _reverse(asked: Asked) -> Decision:
    """The names of an address; parts of an address are names between (RFC 8020)."""
    network, zone = asked.meaning.network, next((zone for zone in asked.authority.zones if not zone.reverse), None)
    if network is None or zone is None:
        return asked.decision(wire.NXDOMAIN)
    if network.length < 8 * len(network.address):
        return asked.decision(wire.NOERROR if asked.snapshot.holders.any_within(network) else wire.NXDOMAIN)
    found = dict.fromkeys(_names_of(asked, network.address, zone))
    if not found:
        return asked.decision(wire.NXDOMAIN)
    answers = [asked.record(wire.PTR, Host(name)) for name in found] if asked.qtype == wire.PTR else ()
    return asked.decision(answers=answers)


def _names_of(asked: Asked, address: bytes, zone: names.Zone) -> Iterator[str]:
    """Yield the name of the Service whose own address it is, else those of the endpoints that have it."""
    holders = [asked.snapshot.services[key] for key in asked.snapshot.holders.of(address)]
    for compiled in holders:
        if address in compiled.service.cluster_ips:
            yield from services.names_of_service(compiled, zone)
            return
    for compiled in holders:
        yield from services.endpoint_names(asked, compiled, address, zone)


def _of_service(resolver: Callable[[Asked, CompiledService], Decision]) -> Callable[[Asked], Decision]:
    """Return a resolver of names under a Service, which do not exist without it."""

    def resolve(asked: Asked) -> Decision:
        compiled = asked.snapshot.services.get(asked.meaning.service_key)
        if compiled is None:
            return asked.decision(wire.NXDOMAIN)
        if asked.authority.ignore_empty_service and compiled.service.virtual and compiled.empty:
            return asked.decision(wire.NXDOMAIN, service=compiled)
        return resolver(asked, compiled)

    return resolve


# Shape of name -> what answers it.
RESOLVERS: dict[str, Callable[[Asked], Decision]] = {
    names.APEX: _apex,
    names.BETWEEN: _between,
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
