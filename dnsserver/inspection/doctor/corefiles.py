"""Whether what pods ask forwards to topodns: judged by ``corefile_check``, and mended where the owner allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.forwarders import corefile_check
from dnsserver.forwarders.caddyfile import Block, Unparsable, parse, words_of
from dnsserver.forwarders.corefile_codes import CorefileCode
from dnsserver.forwarders.stub_blocks import COREDNS, NODELOCAL, NODELOCAL_BIND, stub_block
from dnsserver.forwarders.stub_zones import server_of, stubs_of
from dnsserver.inspection.doctor.facts import Facts, NameServer
from dnsserver.inspection.doctor.installation import NOT_INSTALLED
from dnsserver.inspection.doctor.objects import STUB_DOMAINS, ConfigMap, NotUnderstood, PlainService, decoded
from dnsserver.inspection.doctor.providers import (
    COREFILE,
    CUSTOM_CONFIG,
    CUSTOM_KEY,
    NODELOCAL_CONFIG,
    Edit,
    Provider,
    imported,
    marks_of,
    merged,
    recognised,
)
from dnsserver.inspection.doctor.steps import FAILED, PASSED, UNKNOWN, Step, StepCode, Unread, unknown
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import DNS_PORT, ListenAddress
from locator.ip import address_text, is_address, parse_address
from locator.model import ERROR, Finding
from locator.printable import shell_words

_NOT_FORWARDED = {CorefileCode.ZoneNotForwarded.name, CorefileCode.NoStubZone.name}

TRY_FIRST = (
    "The command forwards all names that topodns serves. To try one namespace first, forward"
    " `NAMESPACE.svc.cluster.local` alone."
)


class Target(Struct, frozen=True):
    """Where queries should go: the addresses of topodns, and the zones that it serves for them.

    ``external_names`` are the ExternalName Services, ``namespace/name``, with their targets.
    """

    to: tuple[ListenAddress, ...]
    zones: tuple[str, ...]
    federation: tuple[str, ...]
    multicluster: tuple[str, ...]
    external_names: Mapping[str, str] = {}

    @property
    def names(self) -> list[str]:
        """All zones."""
        return [*self.zones, *self.multicluster, *self.federation]


class Judged(Struct, frozen=True):
    """What ``corefile_check`` says of a Corefile: its findings, and the zones that it forwards to topodns."""

    findings: tuple[Finding, ...] = ()
    zones: tuple[str, ...] = ()
    unparsable: str = ""

    @property
    def errors(self) -> list[Finding]:
        """The findings that make answers wrong."""
        return [finding for finding in self.findings if finding.severity == ERROR]


def target_of(facts: Facts, *, below: bool = False) -> Target:
    """Return where queries should go; with *below*, only what is below ``svc`` of a cluster's domain."""
    settings, service = facts.installed.settings, facts.installed.service
    addresses = service.spec.cluster_ips if isinstance(service, PlainService) else []
    to = tuple(ListenAddress(parse_address(text), DNS_PORT) for text in addresses if text != "None")
    zones = [zone.name for zone in settings.zone if not zone.reverse]
    if settings.serve_namespace:
        zones = [f"{namespace}.svc.{zone}" for namespace in settings.serve_namespace for zone in zones]
    elif below:
        zones = [f"svc.{zone}" for zone in zones]
    services = () if isinstance(facts.services, Unread) else facts.services
    aliases = {service.key: service.alias for service in services if service.alias}
    return Target(to, tuple(zones), _names(settings, "federation"), _names(settings, "multicluster"), aliases)


def _names(settings: Settings, field: str) -> tuple[str, ...]:
    return tuple(zone.name for zone in getattr(settings, field))


def providers_of(facts: Facts) -> list[Provider]:
    """Return the providers of the cluster's DNS; none if the ConfigMaps cannot be read."""
    if isinstance(facts.config_maps, Unread):
        return []
    nodes = () if isinstance(facts.nodes, Unread) else facts.nodes
    answered = bool(facts.forwarders) or isinstance(facts.view, Unread)  # then nobody knows
    return recognised(marks_of(facts.config_maps, [node.labels for node in nodes], dns_endpoints=answered))


def forwarded_zones(facts: Facts) -> list[str]:
    """Return the zones that the cluster's DNS forwards to topodns."""
    owned = [provider for provider in providers_of(facts) if provider.config_map]
    return list(dict.fromkeys(zone for provider in owned for zone in _judged(facts, provider).zones))


def node_cache(facts: Facts) -> NameServer | None:
    """Return the NodeLocal DNSCache of the node where this runs, None if the cluster has none."""
    config_maps = facts.config_maps
    cache = None if isinstance(config_maps, Unread) else config_maps.get(NODELOCAL_CONFIG)
    try:
        blocks = [] if cache is None else parse((cache.data or {}).get(COREFILE, ""))
    except Unparsable:
        return None
    for address in (address for block in blocks for address in server_of(block).bound):
        if is_address(address):
            return NameServer("NodeLocal DNSCache of this node", parse_address(address), DNS_PORT)
    return None


def forwarded_by_cache(facts: Facts) -> list[str]:
    """Return the zones that NodeLocal DNSCache forwards to topodns by itself."""
    cache = {} if isinstance(facts.config_maps, Unread) else facts.config_maps
    text = (cache[NODELOCAL_CONFIG].data or {}).get(COREFILE, "") if NODELOCAL_CONFIG in cache else ""
    return list(judged(text, NODELOCAL, target_of(facts)).zones)


def corefile_steps(facts: Facts) -> Iterator[Step]:
    """Yield a step for NodeLocal DNSCache, if the cluster has it, and one for each server of the cluster's DNS."""
    config_maps = facts.config_maps
    if isinstance(config_maps, Unread):
        yield unknown(StepCode.NodeLocalForwards, config_maps)
        yield unknown(StepCode.ForwarderForwards, config_maps)
        return
    asks_itself = False
    if (cache := config_maps.get(NODELOCAL_CONFIG)) is not None:
        found = judged((cache.data or {}).get(COREFILE, ""), NODELOCAL, target_of(facts))
        asks_itself = bool(found.zones) and not found.errors
        yield _nodelocal_step(facts, cache, found)
    providers = providers_of(facts)
    if not providers:
        command = f"{facts.kubectl} -n kube-system get configmaps"
        yield Step(StepCode.ForwarderForwards, UNKNOWN, "no ConfigMap of a known DNS server found", commands=(command,))
    for provider in providers:
        yield _forwarder_step(facts, provider, asks_itself=asks_itself)


def _nodelocal_step(facts: Facts, cache: ConfigMap, found: Judged) -> Step:
    code, subject = StepCode.NodeLocalForwards, NODELOCAL_CONFIG
    if not found.errors and not found.unparsable:
        forwards = f"{_listed(found.zones)} go to topodns" if found.zones else "all names go to the cluster's own DNS"
        return Step(code, PASSED, f"{forwards}{_remarks(found)}", subject)
    text = (cache.data or {}).get(COREFILE, "")
    edit = _corrected(facts, text, NODELOCAL_CONFIG, NODELOCAL, target_of(facts))
    commands = _edited(facts, NODELOCAL_CONFIG) if edit is None else (merged(edit, COREFILE),)
    return Step(code, FAILED, _what_is_wrong(found), subject, commands, _cures(found))


def _forwarder_step(facts: Facts, provider: Provider, *, asks_itself: bool) -> Step:
    code, target = StepCode.ForwarderForwards, target_of(facts, below=provider.below)
    subject = f"{provider.config_map}, {provider.name}" if provider.config_map else provider.name
    if not provider.config_map:
        return Step(code, UNKNOWN, provider.owner, subject, (_printing(target),), provider.advice)
    if facts.installed.service is None and facts.installed.deployment is None:
        return unknown(code, NOT_INSTALLED, subject)
    found = _judged(facts, provider)
    if found.unparsable or found.errors or not (found.zones or asks_itself):
        message = _what_is_wrong(found) or f"nothing forwards {_listed(target.names)} to topodns"
        commands = _commands(facts, provider, target)
        advice = _cures(found) or f"{provider.advice} {TRY_FIRST}"
        return Step(code, FAILED, f"{message}; {provider.owner}", subject, commands, advice)
    forwards = f"{_listed(found.zones)} go to topodns" if found.zones else "NodeLocal DNSCache asks topodns by itself"
    return Step(code, PASSED, f"{forwards}{_remarks(found)}", subject)


def _text(facts: Facts, provider: Provider, stub: str = "") -> str:
    """Return the Corefile of a provider with its imports; with *stub*, as if that were our part of coredns-custom."""
    config_maps: Mapping[str, ConfigMap] = {} if isinstance(facts.config_maps, Unread) else facts.config_maps
    text = (config_maps[provider.config_map].data or {}).get(provider.key, "")
    custom = config_maps.get(CUSTOM_CONFIG)
    if stub:
        data = {} if custom is None else custom.data or {}
        custom = ConfigMap(config_maps[provider.config_map].metadata, {**data, CUSTOM_KEY: stub})
    return imported(text, custom)


def judged(text: str, forwarder: str, target: Target) -> Judged:
    """Judge a Corefile as *forwarder*, one of ``stub_blocks.CHECKED``."""
    zones = () if target.to else target.names
    try:
        findings = corefile_check.check(
            text, forwarder=forwarder, to=target.to, zones=zones, external_names=target.external_names
        )
        servers = [server_of(block) for block in parse(text) if block.keys]
        stubs = stubs_of(servers, to=target.to, zones=zones)
        forwarded = dict.fromkeys(zone for stub in stubs for zone in stub.zones)
    except Unparsable as error:
        return Judged(unparsable=f"the Corefile cannot be read: {error}")
    kept = tuple(finding for finding in findings if finding.code not in _NOT_FORWARDED)
    return Judged(kept, tuple(forwarded))


def _judged(facts: Facts, provider: Provider) -> Judged:
    """Judge what a provider's ConfigMap has: a Corefile, or the stub domains of kube-dns, JSON with servers of each."""
    text, target = _text(facts, provider), target_of(facts)
    if provider.key == COREFILE:
        return judged(text, provider.checked_as, target)
    try:
        domains = _stub_domains(text)
        to = {text for address in target.to for text in (str(address), address_text(address.address))}
        zones = tuple(zone for zone, servers in domains.items() if to & set(servers))
    except NotUnderstood:
        return Judged(unparsable=f"{provider.key}: no JSON object of lists found, expected one")
    return Judged((), zones)


def _stub_domains(text: str) -> dict[str, list[str]]:
    """Return the servers of each stub domain. Raises NotUnderstood."""
    return decoded(STUB_DOMAINS, text.strip().encode() or b"{}")


# --- What mends it ----------------------------------------------------------------------------------------------------


def _commands(facts: Facts, provider: Provider, target: Target) -> tuple[str, ...]:
    if not target.to:  # nobody knows yet where topodns answers
        return (_printing(target),)
    edit = _correction(facts, provider, target)
    config_map = CUSTOM_CONFIG if provider.own_part else provider.config_map
    return _edited(facts, config_map) if edit is None else provider.edit(edit)


def _correction(facts: Facts, provider: Provider, target: Target) -> Edit | None:
    """Return what is to be changed so that ``corefile_check`` finds no error; None if that is not known."""
    addresses = [address_text(address.address) for address in target.to]
    if provider.key != COREFILE:
        try:
            domains = _stub_domains(_text(facts, provider)) | dict.fromkeys(target.names, addresses)
        except NotUnderstood:
            return None
        return _edit(facts, provider.config_map, json.dumps(domains))
    if provider.below:
        return replace(_edit(facts, provider.config_map, ""), zones=target.names, to=addresses)
    if provider.own_part:
        stub = _stub(COREDNS, target)
        found = judged(_text(facts, provider, stub), provider.checked_as, target)
        good = not found.errors and not found.unparsable and bool(found.zones)
        return _edit(facts, CUSTOM_CONFIG, "", stub) if good else None
    return _corrected(facts, _text(facts, provider), provider.config_map, provider.checked_as, target)


def _corrected(facts: Facts, text: str, config_map: str, forwarder: str, target: Target) -> Edit | None:
    """Return the Corefile with new blocks in place of those that forward to topodns, None if that is not enough."""
    try:
        blocks = parse(text)
    except Unparsable:
        return None
    stubs = list(stubs_of([server_of(block) for block in blocks if block.keys], to=target.to, zones=()))
    replaced = [stub.server.block for stub in stubs if all(key.zone for key in stub.server.keys)]
    zones = dict.fromkeys(key.zone for block in replaced for key in server_of(block).keys)
    own = Target(target.to, tuple(zones), (), ()) if zones else target
    stub = _stub(forwarder, own)
    if forwarder == NODELOCAL:
        bound = next((bound for block in blocks if (bound := server_of(block).bound)), ())
        stub = stub.replace(f"{' '.join(NODELOCAL_BIND)}  # like the other blocks", " ".join(bound or NODELOCAL_BIND))
    corefile = f"{_without(text, replaced).rstrip()}\n{stub}"
    found = judged(corefile, forwarder, target)
    if found.errors or found.unparsable or not found.zones:
        return None
    return replace(_edit(facts, config_map, corefile, stub), blocks=parse(corefile))


def _edit(facts: Facts, config_map: str, text: str, stub: str = "") -> Edit:
    known: Mapping[str, ConfigMap] = {} if isinstance(facts.config_maps, Unread) else facts.config_maps
    version = known[config_map].metadata.version if config_map in known else None
    return Edit(facts.kubectl, config_map, version, text, stub)


def _stub(forwarder: str, target: Target) -> str:
    return stub_block(
        forwarder, target.to, target.zones, federation=target.federation, multicluster=target.multicluster
    )


def _without(text: str, blocks: Sequence[Block]) -> str:
    """Return a Corefile without some of its blocks."""
    lines, words = text.splitlines(), list(words_of(text))
    for block in sorted(blocks, key=lambda block: block.line, reverse=True):  # the numbers of earlier lines stay right
        depth, last = 0, len(lines)
        for word in (word for word in words if word.line >= block.line):
            depth += (word.text == "{") - (word.text == "}")
            if word.text == "}" and not depth:
                last = word.line
                break
        del lines[block.line - 1 : last]
    return "\n".join(lines)


def _printing(target: Target) -> str:
    """Return the command that prints the block for a forwarder of the user's own."""
    to = ",".join(map(str, target.to)) or "ADDRESS"
    zones = [word for zone in target.zones for word in ("--zone", zone)]
    return shell_words("topodns", "corefile", "--for", "coredns", "--to", to, *zones)


def _edited(facts: Facts, config_map: str) -> tuple[str, ...]:
    namespace, _, name = config_map.partition("/")
    return (f"{facts.kubectl} {shell_words('-n', namespace, 'edit', 'configmap', name)}",)


# --- What is said -----------------------------------------------------------------------------------------------------


def _listed(zones: Sequence[str]) -> str:
    return ", ".join(zones) or "no zone"


def _what_is_wrong(found: Judged) -> str:
    return found.unparsable or "; ".join(map(str, found.errors))


def _remarks(found: Judged) -> str:
    """Return the warnings, as the end of a message."""
    return "".join(f"; {finding.severity}: {finding}" for finding in found.findings)


def _cures(found: Judged) -> str:
    return " ".join(dict.fromkeys(CorefileCode[finding.code].cure for finding in found.errors))
