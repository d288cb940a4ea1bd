"""From a name, a type, a snapshot and a location to a Decision: what is answered, and why.

``RESOLVERS`` has one row a shape of name. Nothing here knows bytes; nothing else decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dnsserver import names, wire
from dnsserver.names import Meaning, Zone, endpoint_label
from dnsserver.records import Address, Host, HostInfo, Record, Soa, Srv
from locator.model import Location
from locator.selection import ALL, UNCONSTRAINED, UNMET, LocatedEndpoint, Selection, select, unconstrained
from locator.snapshot import CompiledService, Snapshot

ADDRESS_SIZES = {wire.A: 4, wire.AAAA: 16}


class Authority(Struct, frozen=True):
    """What is answered from: zones, TTL in seconds, the name servers' addresses (packed).

    ``unknown_gets_all`` gives clients that cannot be located what a hard constraint denies.
    """

    zones: tuple[Zone, ...]
    ttl: int
    addresses: tuple[bytes, ...] = ()
    unknown_gets_all: bool = False


class Decision(Struct, frozen=True, eq=False):
    """What one client is answered, and why.

    ``negative_ttl`` is the TTL of the SOA record in the authority section, None where no SOA
    stands there. ``service`` is the Service that the answer was made from alone, None for
    answers that hang on the whole snapshot. ``selection`` is None where nothing was chosen.
    ``dependent`` says that another client might be answered otherwise.
    """

    meaning: Meaning | None
    qtype: int
    rcode: int
    answers: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()
    negative_ttl: int | None = None
    service: CompiledService | None = None
    selection: Selection | None = None
    dependent: bool = False
    extended_error: tuple[int, str] | None = None

    @property
    def outcome(self) -> str:
        """How the endpoints were chosen, in a word."""
        return self.selection.outcome if self.selection is not None else UNCONSTRAINED


class _Asked(Struct, frozen=True):
    """Everything that a resolver may look at."""

    meaning: Meaning
    qtype: int
    snapshot: Snapshot
    location: Location
    authority: Authority

    @property
    def service(self) -> CompiledService | None:
        return self.snapshot.services.get(self.meaning.service_key)

    def decision(self, rcode: int = wire.NOERROR, answers: Sequence[Record] = (), **more: object) -> Decision:
        """Return a decision; without records it carries the SOA."""
        if not answers:
            more.setdefault("negative_ttl", self.authority.ttl)
        return Decision(self.meaning, self.qtype, rcode, tuple(answers), **more)  # type: ignore[arg-type]

    def record(self, rtype: int, data: Address | Srv | Soa | Host, name: str | None = None) -> Record:
        return Record(name or self.meaning.name, rtype, self.authority.ttl, data)

    def addresses(self, packed: Sequence[bytes], name: str | None = None) -> list[Record]:
        """Return the records of the addresses that the question's type asks for."""
        return [
            self.record(self.qtype, Address(each), name)
            for each in packed
            if len(each) == ADDRESS_SIZES.get(self.qtype)
        ]


def resolve(
    meaning: Meaning | None, qtype: int, snapshot: Snapshot, location: Location, authority: Authority
) -> Decision:
    """Decide what a client at *location* is answered; *meaning* is None for a name outside the zones."""
    if meaning is None or qtype in (wire.AXFR, wire.IXFR):
        return Decision(meaning, qtype, wire.REFUSED)
    decision = RESOLVERS[meaning.shape](_Asked(meaning, qtype, snapshot, location, authority))
    if qtype == wire.ANY and decision.rcode == wire.NOERROR:
        # RFC 8482, section 4.2: ANY gets one small record that says why.
        answer = Record(meaning.name, wire.HINFO, authority.ttl, HostInfo("RFC8482", ""))
        return replace(decision, answers=(answer,), additional=(), negative_ttl=None,
                       selection=None, dependent=False, extended_error=None)  # fmt: skip
    return decision


def soa_record(authority: Authority, zone: Zone, *, serial: int, ttl: int) -> Record:
    """Return a zone's SOA; *ttl* is that of the record and of negative answers (RFC 2308)."""
    data = Soa(f"ns.dns.{zone.name}", f"hostmaster.{zone.name}", serial & 0xFFFFFFFF, ttl)
    return Record(zone.name, wire.SOA, ttl, data)


def _apex(asked: _Asked) -> Decision:
    authority, zone = asked.authority, asked.meaning.zone
    if asked.qtype == wire.SOA:
        return asked.decision(answers=[soa_record(authority, zone, serial=asked.snapshot.serial, ttl=authority.ttl)])
    if asked.qtype == wire.NS:
        host = f"ns.dns.{zone.name}"
        glue = _glue(asked, [(host, address) for address in authority.addresses])
        return asked.decision(answers=[asked.record(wire.NS, Host(host))], additional=glue)
    return asked.decision()


def _name_server(asked: _Asked) -> Decision:
    return asked.decision(answers=asked.addresses(asked.authority.addresses))


def _between(asked: _Asked) -> Decision:
    return asked.decision()


def _impossible(asked: _Asked) -> Decision:
    return asked.decision(wire.NXDOMAIN)


def _namespace(asked: _Asked) -> Decision:
    return asked.decision(wire.NOERROR if asked.meaning.namespace in asked.snapshot.namespaces else wire.NXDOMAIN)


def _service(asked: _Asked) -> Decision:
    compiled = asked.service
    if compiled is None:
        return asked.decision(wire.NXDOMAIN)
    if not compiled.service.headless:
        return _virtual_address(asked, compiled)
    return _headless(asked, compiled, lambda port: True)


def _port(asked: _Asked) -> Decision:
    compiled, meaning = asked.service, asked.meaning
    if compiled is None:
        return asked.decision(wire.NXDOMAIN)

    def wanted(port: tuple[str, str]) -> bool:
        return port == (meaning.port, meaning.protocol)

    if not any(map(wanted, _named_ports(compiled))):
        return asked.decision(wire.NXDOMAIN, service=compiled)
    if asked.qtype not in (wire.SRV, wire.ANY):
        return asked.decision(service=compiled)
    if not compiled.service.headless:
        return _virtual_ports(asked, compiled, wanted)
    return _headless(asked, compiled, wanted)


def _protocol(asked: _Asked) -> Decision:
    """No record stands here; the name exists if a port's name stands beneath it (RFC 8020)."""
    compiled = asked.service
    if compiled is None:
        return asked.decision(wire.NXDOMAIN)
    exists = any(protocol == asked.meaning.protocol for _, protocol in _named_ports(compiled))
    return asked.decision(wire.NOERROR if exists else wire.NXDOMAIN, service=compiled)


def _endpoint(asked: _Asked) -> Decision:
    """An endpoint's own name is never narrowed: who uses it wants that very one."""
    compiled = asked.service
    if compiled is None:
        return asked.decision(wire.NXDOMAIN)
    rows = [
        (located, address)
        for located in compiled.endpoints
        for address in located.endpoint.addresses
        if endpoint_label(located.endpoint, address) == asked.meaning.endpoint
    ]
    if not rows:
        return asked.decision(wire.NXDOMAIN, service=compiled)
    if asked.qtype == wire.SRV:
        ports = dict.fromkeys(port.number for located, _ in rows for port in located.endpoint.ports)
        return _srv(asked, compiled, [(asked.meaning.name, number) for number in ports],
                    [(asked.meaning.name, address) for _, address in rows])  # fmt: skip
    return asked.decision(answers=asked.addresses([address for _, address in rows]), service=compiled)


# Shape of name -> what answers it.
RESOLVERS: dict[str, Callable[[_Asked], Decision]] = {
    names.APEX: _apex,
    names.BETWEEN: _between,
    names.NAME_SERVER: _name_server,
    names.NAMESPACE: _namespace,
    names.SERVICE: _service,
    names.PROTOCOL: _protocol,
    names.PORT: _port,
    names.ENDPOINT: _endpoint,
    names.IMPOSSIBLE: _impossible,
}


def _named_ports(compiled: CompiledService) -> set[tuple[str, str]]:
    """Return name and protocol of the ports that have names of their own."""
    if compiled.service.headless:
        ports = {port for located in compiled.endpoints for port in located.endpoint.ports}
    else:
        ports = set(compiled.service.ports)
    return {(port.name, port.protocol) for port in ports if port.name}


def _virtual_address(asked: _Asked, compiled: CompiledService) -> Decision:
    if asked.qtype == wire.SRV:
        return _virtual_ports(asked, compiled, lambda port: True)
    return asked.decision(answers=asked.addresses(compiled.service.cluster_ips), service=compiled)


def _virtual_ports(asked: _Asked, compiled: CompiledService, wanted: Callable[[tuple[str, str]], bool]) -> Decision:
    service = compiled.service
    name = f"{service.name}.{service.namespace}.svc.{asked.meaning.zone.name}"
    ports = [port.number for port in service.ports if wanted((port.name, port.protocol))] if service.cluster_ips else []
    glue = [(name, address) for address in service.cluster_ips]
    return _srv(asked, compiled, [(name, number) for number in dict.fromkeys(ports)], glue)


def _headless(asked: _Asked, compiled: CompiledService, wanted: Callable[[tuple[str, str]], bool]) -> Decision:
    if not compiled.endpoints:
        return asked.decision(wire.NXDOMAIN, service=compiled)  # schema 1.1.0: no ready endpoint, no name
    if asked.qtype != wire.SRV and asked.qtype not in ADDRESS_SIZES:
        return asked.decision(service=compiled)  # nobody has records of this type, wherever they are
    selection = _select(asked, compiled)
    if selection.outcome == UNMET:
        # Caches share negative answers among clients (RFC 7871, section 7.4), so this one must not stay.
        error = (wire.EDE_OTHER, _unmet_text(selection))
        return asked.decision(
            service=compiled, selection=selection, dependent=True, negative_ttl=0, extended_error=error
        )
    decision = _endpoint_records(asked, compiled, selection.endpoints, wanted)
    dependent = bool(compiled.terms)
    if dependent and not decision.answers:
        if _endpoint_records(asked, compiled, compiled.endpoints, wanted).answers:
            decision = replace(decision, negative_ttl=0)  # others do get records of this type
        elif compiled.constraint is not None and compiled.constraint.soft:
            dependent = False  # nobody does, wherever they are
    return replace(decision, selection=selection, dependent=dependent)


def _select(asked: _Asked, compiled: CompiledService) -> Selection:
    constraint, here = compiled.constraint, asked.location
    if constraint is None or not constraint.effective:
        return unconstrained(compiled.endpoints)
    selection = select(constraint.keys, here, compiled.endpoints, at_least=constraint.min_endpoints)
    if selection.outcome == UNMET and asked.authority.unknown_gets_all and not here.known:
        return Selection(compiled.endpoints, ALL, selection.steps)
    return selection


def _unmet_text(selection: Selection) -> str:
    wanted = ", ".join(
        f"{step.key}={step.value}" if step.value is not None else f"{step.key} (which the client lacks)"
        for step in selection.steps
    )
    return f"no ready endpoint has the client's {wanted}"


def _endpoint_records(
    asked: _Asked,
    compiled: CompiledService,
    endpoints: Sequence[LocatedEndpoint],
    wanted: Callable[[tuple[str, str]], bool],
) -> Decision:
    if asked.qtype != wire.SRV:
        packed = dict.fromkeys(address for located in endpoints for address in located.endpoint.addresses)
        return asked.decision(answers=asked.addresses(list(packed)), service=compiled)
    base = f"{compiled.service.name}.{compiled.service.namespace}.svc.{asked.meaning.zone.name}"
    targets: dict[tuple[str, int], None] = {}
    glue: dict[tuple[str, bytes], None] = {}
    for located in endpoints:
        ports = [port.number for port in located.endpoint.ports if wanted((port.name, port.protocol))]
        for address in located.endpoint.addresses if ports else ():
            name = f"{endpoint_label(located.endpoint, address)}.{base}"
            if len(name) > names.MAX_NAME:  # in a zone with a very long name: it cannot be asked for either
                continue
            glue[name, address] = None
            targets.update(dict.fromkeys((name, number) for number in ports))
    return _srv(asked, compiled, list(targets), list(glue))


def _srv(
    asked: _Asked, compiled: CompiledService, targets: Sequence[tuple[str, int]], glue: Sequence[tuple[str, bytes]]
) -> Decision:
    """Answer with an SRV record for each target and port, all of one weight, and their addresses."""
    weight = max(1, 100 // (len(targets) or 1))
    answers = [asked.record(wire.SRV, Srv(weight, port, target)) for target, port in targets]
    return asked.decision(answers=answers, additional=_glue(asked, glue) if answers else (), service=compiled)


def _glue(asked: _Asked, rows: Sequence[tuple[str, bytes]]) -> tuple[Record, ...]:
    types = {size: rtype for rtype, size in ADDRESS_SIZES.items()}
    return tuple(asked.record(types[len(address)], Address(address), name) for name, address in rows)
