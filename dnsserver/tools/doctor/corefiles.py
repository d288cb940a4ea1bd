# SPDX-License-Identifier: Apache-2.0

"""Whether what pods ask forwards to topodns: judged by ``checks.check``, and fixed where the owner allows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import DecodeError, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from dnsserver.settings.values import DNS_PORT, ListenAddress
from dnsserver.tools.corefile.caddyfile import Unparsable, parse
from dnsserver.tools.corefile.checks import check, fixed
from dnsserver.tools.corefile.codes import NO_FALLBACK, NOT_FORWARDED, CorefileCode
from dnsserver.tools.corefile.stub_blocks import COREDNS, NODELOCAL, stub_block
from dnsserver.tools.corefile.stub_zones import Corefile, read, server_of
from dnsserver.tools.doctor.facts import Facts, NameServer
from dnsserver.tools.doctor.installation import NOT_INSTALLED
from dnsserver.tools.doctor.providers import (
    COREFILE,
    CUSTOM_CONFIG,
    CUSTOM_KEY,
    NODELOCAL_CONFIG,
    ConfigMapEdit,
    Provider,
    imported,
    marks_of,
    merged,
    recognised,
)
from dnsserver.tools.doctor.steps import DoctorStep, StepCode, Unread, read_or
from locator.ip import address_text, is_address, parse_address
from locator.model import ERROR, Finding
from locator.printable import shell_words

_STUB_DOMAINS = Decoder(dict[str, list[str]])  # of kube-dns

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
    """What ``checks.check`` says of a Corefile: its findings, and the zones that it forwards to topodns."""

    findings: tuple[Finding, ...] = ()
    zones: tuple[str, ...] = ()
    unparsable: str = ""

    @property
    def faults(self) -> list[Finding]:
        """The findings that make answers wrong, or lose them while topodns does not answer."""
        return [finding for finding in self.findings if finding.severity == ERROR or finding.code in NO_FALLBACK]

    @property
    def good(self) -> bool:
        """Whether nothing of that kind was found."""
        return not self.faults and not self.unparsable


def target_of(facts: Facts, *, below: bool = False) -> Target:
    """Return where queries should go; with *below*, only what is below ``svc`` of a cluster's domain."""
    settings = facts.installed.settings
    addresses = [text for text in facts.installed.cluster_ips if text != "None"]
    to = tuple(ListenAddress(parse_address(text), DNS_PORT) for text in addresses)
    zones = [zone.name for zone in settings.zone if not zone.reverse]
    if settings.serve_namespace:
        zones = [f"{namespace}.svc.{zone}" for namespace in settings.serve_namespace for zone in zones]
    elif below:
        zones = [f"svc.{zone}" for zone in zones]
    federation, multicluster = (tuple(zone.name for zone in of) for of in (settings.federation, settings.multicluster))
    aliases = {service.key: service.alias for service in read_or(facts.services, ()) if service.alias}
    return Target(to, tuple(zones), federation, multicluster, aliases)


def providers_of(facts: Facts) -> list[Provider]:
    """Return the providers of the cluster's DNS; none if the ConfigMaps cannot be read."""
    if isinstance(facts.config_maps, Unread):
        return []
    labels = [node.labels for node in read_or(facts.nodes, ())]
    answered = bool(facts.forwarders) or isinstance(facts.view, Unread)  # then nobody knows
    return recognised(marks_of(facts.config_maps, labels, dns_endpoints=answered))


def forwarded_zones(facts: Facts) -> list[str]:
    """Return the zones that the cluster's DNS forwards to topodns."""
    owned = [provider for provider in providers_of(facts) if provider.config_map]
    return list(dict.fromkeys(zone for provider in owned for zone in _judged(facts, provider).zones))


def node_cache(facts: Facts) -> NameServer | None:
    """Return the NodeLocal DNSCache of the node where this runs, None if the cluster has none."""
    try:
        blocks = parse(_data(facts, NODELOCAL_CONFIG).get(COREFILE, ""))
    except Unparsable:
        return None
    for address in (address for block in blocks for address in server_of(block).bound):
        if is_address(address):
            return NameServer("NodeLocal DNSCache of this node", parse_address(address), DNS_PORT)
    return None


def forwarded_by_cache(facts: Facts) -> list[str]:
    """Return the zones that NodeLocal DNSCache forwards to topodns by itself."""
    return list(judged(_data(facts, NODELOCAL_CONFIG).get(COREFILE, ""), NODELOCAL, target_of(facts)).zones)


def corefile_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield a step for NodeLocal DNSCache, if the cluster has it, and one for each server of the cluster's DNS."""
    config_maps = facts.config_maps
    if isinstance(config_maps, Unread):
        yield StepCode.NodeLocalForwards.unread(config_maps)
        yield StepCode.ForwarderForwards.unread(config_maps)
        return
    asks_itself = False
    if NODELOCAL_CONFIG in config_maps:
        asks_itself = bool(forwarded_by_cache(facts))
        yield _nodelocal_step(facts)
    providers = providers_of(facts)
    if not providers:
        command = f"{facts.kubectl} -n kube-system get configmaps"
        yield StepCode.ForwarderForwards.unknown("no ConfigMap of a known DNS server found", commands=(command,))
    for provider in providers:
        yield _forwarder_step(facts, provider, asks_itself=asks_itself)


def _nodelocal_step(facts: Facts) -> DoctorStep:
    code, subject, target = StepCode.NodeLocalForwards, NODELOCAL_CONFIG, target_of(facts)
    text = _data(facts, NODELOCAL_CONFIG).get(COREFILE, "")
    found = judged(text, NODELOCAL, target)
    if found.good:
        forwards = f"{_listed(found.zones)} go to topodns" if found.zones else "all names go to the cluster's own DNS"
        return code.passed(f"{forwards}{_remarks(found)}", subject)
    after = _fixed(text, NODELOCAL, target)
    edit = None if after is None else _edit(facts, NODELOCAL_CONFIG, COREFILE, text, after)
    commands = _edited(facts, NODELOCAL_CONFIG) if edit is None else merged(edit)
    return code.failed(_what_is_wrong(found), subject, commands, _cures(found), edit.difference if edit else "")


def _forwarder_step(facts: Facts, provider: Provider, *, asks_itself: bool) -> DoctorStep:
    code, target = StepCode.ForwarderForwards, target_of(facts, below=provider.below)
    subject = f"{provider.config_map}, {provider.name}" if provider.config_map else provider.name
    if not provider.config_map:
        return code.unknown(provider.owner, subject, (_printing(target),), provider.advice)
    if facts.installed.service is None and facts.installed.deployment is None:
        return code.unread(NOT_INSTALLED, subject)
    found = _judged(facts, provider)
    if not found.good or not (found.zones or asks_itself):
        message = _what_is_wrong(found) or f"nothing forwards {_listed(target.names)} to topodns"
        edit = _correction(facts, provider, target) if target.to else None
        config_map = CUSTOM_CONFIG if provider.own_part else provider.config_map
        commands = _edited(facts, config_map) if edit is None else provider.edit(edit)
        if not target.to:  # nobody knows yet where topodns answers
            commands = (_printing(target),)
        advice = _cures(found) or f"{provider.advice} {TRY_FIRST}"
        difference = edit.difference if edit else ""
        return code.failed(f"{message}; {provider.owner}", subject, commands, advice, difference)
    forwards = f"{_listed(found.zones)} go to topodns" if found.zones else "NodeLocal DNSCache asks topodns by itself"
    return code.passed(f"{forwards}{_remarks(found)}", subject)


def _data(facts: Facts, config_map: str) -> Mapping[str, str]:
    """Return what a ConfigMap has; nothing if there is none."""
    found = read_or(facts.config_maps, {}).get(config_map)
    return {} if found is None else found.data or {}


def _text(facts: Facts, provider: Provider) -> str:
    """Return the Corefile of a provider with its imports."""
    corefile = _data(facts, provider.config_map).get(provider.key, "")
    return "".join(text for _, text in imported(corefile, _data(facts, CUSTOM_CONFIG)))


def judged(text: str, forwarder: str, target: Target) -> Judged:
    """Judge a Corefile as *forwarder*, one of ``stub_blocks.CHECKED``."""
    try:
        return _judge(_corefile(text, forwarder, target))
    except Unparsable as error:
        return Judged(unparsable=f"the Corefile cannot be read: {error}")


def _corefile(text: str, forwarder: str, target: Target) -> Corefile:
    zones = () if target.to else target.names
    return read(text, forwarder=forwarder, to=target.to, zones=zones, external_names=target.external_names)


def _judge(corefile: Corefile) -> Judged:
    kept = tuple(finding for finding in check(corefile) if finding.code not in NOT_FORWARDED)
    return Judged(kept, tuple(corefile.forwarded))


def _judged(facts: Facts, provider: Provider) -> Judged:
    """Judge what a provider's ConfigMap has: a Corefile, or the stub domains of kube-dns, JSON with servers of each."""
    text, target = _text(facts, provider), target_of(facts)
    if provider.key == COREFILE:
        return judged(text, provider.checked_as, target)
    try:
        domains = _stub_domains(text)
        to = {text for address in target.to for text in (str(address), address_text(address.address))}
        zones = tuple(zone for zone, servers in domains.items() if to & set(servers))
    except DecodeError:
        return Judged(unparsable=f"{provider.key}: no JSON object of lists found, expected one")
    return Judged((), zones)


def _stub_domains(text: str) -> dict[str, list[str]]:
    """Return the servers of each stub domain. Raises DecodeError."""
    return _STUB_DOMAINS.decode(text.strip().encode() or b"{}")


# --- What fixes it ----------------------------------------------------------------------------------------------------


def _correction(facts: Facts, provider: Provider, target: Target) -> ConfigMapEdit | None:
    """Return what is to be changed so that ``check`` finds no fault; None if that is not known."""
    text, addresses = _text(facts, provider), [address_text(address.address) for address in target.to]
    if provider.key != COREFILE:
        try:
            domains = _stub_domains(text) | dict.fromkeys(target.names, addresses)
        except DecodeError:
            return None
        before = _data(facts, provider.config_map).get(provider.key, "")
        return _edit(facts, provider.config_map, provider.key, before, json.dumps(domains))
    if provider.below:
        edit = _edit(facts, provider.config_map, provider.key, "", "")
        return replace(edit, blocks=parse(text), zones=target.names, to=addresses)
    if provider.own_part:
        return _own_part(facts, provider, target)
    text = _data(facts, provider.config_map).get(provider.key, "")
    after = _fixed(text, provider.checked_as, target, _stub(target))
    if after is None:
        return None
    return replace(_edit(facts, provider.config_map, provider.key, text, after), blocks=parse(after))


def _fixed(text: str, forwarder: str, target: Target, stub: str = "") -> str | None:
    """Return a Corefile without faults, with *stub* if nothing forwards to topodns; None if one would be left."""
    try:
        corefile = _corefile(text, forwarder, target)
    except Unparsable:
        return None
    found = _judge(corefile)
    codes = {finding.code for finding in found.faults} | NOT_FORWARDED
    if CorefileCode.FallbackUnused.name in codes:  # whoever has that block wanted all that belongs to it
        codes |= {CorefileCode.FallbackNotSequential.name, CorefileCode.FailoverMissing.name}
    after = fixed(corefile, stub="" if found.zones else stub, wanted=lambda finding: finding.code in codes)
    found = _judge(after)
    return after.text if found.good and found.zones else None


def _own_part(facts: Facts, provider: Provider, target: Target) -> ConfigMapEdit | None:
    """Return the change of the one key of coredns-custom that is at fault, or of ours with the block that lacks."""
    corefile, custom = _data(facts, provider.config_map).get(provider.key, ""), dict(_data(facts, CUSTOM_CONFIG))
    ways = [custom]
    if not _judged(facts, provider).zones:  # our block in our key, or else the block of another changed
        ours = custom.get(CUSTOM_KEY, "").rstrip("\n")
        ways.insert(0, {**custom, CUSTOM_KEY: f"{ours}\n{_stub(target)}".lstrip("\n")})
    for data in ways:
        parts = imported(corefile, data)
        after = _fixed("".join(text for _, text in parts), provider.checked_as, target, _stub(target))
        for number, (key, text) in enumerate(parts if after is not None else ()):
            head = "".join(text for _, text in parts[:number])
            tail = "".join(text for _, text in parts[number + 1 :])
            if key and after and after.startswith(head) and after.removeprefix(head).endswith(tail):
                changed = after.removeprefix(head).removesuffix(tail)
                if changed != text or (key == CUSTOM_KEY and data is not custom):
                    ends = data[key][len(data[key].rstrip("\n")) :]
                    return _edit(facts, CUSTOM_CONFIG, key, custom.get(key, ""), changed.removesuffix("\n") + ends)
    return None


def _edit(facts: Facts, config_map: str, key: str, before: str, text: str) -> ConfigMapEdit:
    known = read_or(facts.config_maps, {}).get(config_map)
    version = None if known is None else known.metadata.resource_version
    return ConfigMapEdit(facts.kubectl, config_map, version, key, before, text)


def _stub(target: Target) -> str:
    return stub_block(COREDNS, target.to, target.zones, federation=target.federation, multicluster=target.multicluster)


def _printing(target: Target) -> str:
    return block_command(",".join(map(str, target.to)), target.zones)


def block_command(to: str, zones: Iterable[str] = ()) -> str:
    """Return the command that prints the block for a forwarder of the user's own, which asks the addresses *to*."""
    flags = [word for zone in zones for word in ("--zone", zone)]
    return shell_words("topodns", "corefile", "--for", "coredns", "--to", to or "ADDRESS", *flags)


def _edited(facts: Facts, config_map: str) -> tuple[str, ...]:
    namespace, _, name = config_map.partition("/")
    return (facts.command("-n NAMESPACE edit configmap NAME", NAMESPACE=namespace, NAME=name),)


# --- What is said -----------------------------------------------------------------------------------------------------


def _listed(zones: Sequence[str]) -> str:
    return ", ".join(zones) or "no zone"


def _what_is_wrong(found: Judged) -> str:
    return found.unparsable or "; ".join(map(str, found.faults))


def _remarks(found: Judged) -> str:
    """Return the warnings, as the end of a message."""
    return "".join(f"; {finding.severity}: {finding}" for finding in found.findings)


def _cures(found: Judged) -> str:
    return " ".join(dict.fromkeys(CorefileCode[finding.code].fix for finding in found.faults))
