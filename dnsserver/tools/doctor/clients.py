# SPDX-License-Identifier: Apache-2.0

"""Who asks: forwarders that nobody trusts or that name nobody, clients that nothing locates, and how near answers are.

Counters start with a replica, so an old number may tell of something that has long been fixed. ``doctor`` reads them
before and after it asks by itself: what has grown meanwhile, is so now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from dnsserver.metrics.counters import ADDRESS, BLOCK, OTHER
from dnsserver.metrics.reading import Samples
from dnsserver.tools.doctor.corefiles import block_command
from dnsserver.tools.doctor.facts import Facts, View
from dnsserver.tools.doctor.installation import RESTART, added_argument, restarted
from dnsserver.tools.doctor.steps import DoctorStep, StepCode, Unread, read_or
from locator.ip import address_text, host_network, is_within, network_end, network_text, parse_address, parse_network
from locator.model import ZONE
from locator.places.subnet_proposals import proposed_subnets
from locator.state.snapshot import book_of

SUSPECTS, IGNORED = "topodns_untrusted_forwarders", "topodns_client_subnets_ignored_total"
UNNAMED, LOCATED = "topodns_forwarded_without_client_total", "topodns_clients_total"
UNLOCATED, NEAR = "topodns_unlocated_clients_total", "topodns_answer_zones_total"
CODES = (StepCode.ForwardersTrusted, StepCode.ForwardersNameClients, StepCode.ClientsLocated, StepCode.AnswersNear)
MAX_NAMED = 10  # ranges in a message
REASONS = {ADDRESS: "no object, pod CIDR or subnet has it", BLOCK: "its addresses have no label in common"}

Numbers = Counter[tuple[str, ...]]


def _or_other(read: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: text == OTHER or read(text)


# By family what reads the values of its labels, which raises ValueError.
_LABELS: Mapping[str, Sequence[Callable[[str], object]]] = {
    SUSPECTS: (parse_address,),
    IGNORED: (_or_other(parse_address),),
    UNNAMED: (_or_other(parse_address),),
    LOCATED: (str,),
    UNLOCATED: (_or_other(parse_network), str),
}


def client_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield the steps about who asks the replicas."""
    readable = [replica for replica in facts.replicas if not isinstance(replica.before, Unread)]
    if not readable:
        unread = next((replica.before for replica in facts.replicas if isinstance(replica.before, Unread)), None)
        for code in CODES:
            yield code.unread(unread or Unread("there is no replica to look at"))
        return
    yield from _trust_steps(facts)
    yield from _naming_steps(facts)
    yield _unknown_step(facts)
    yield _near_step(facts)


def _sum(facts: Facts, name: str) -> tuple[Numbers, Numbers]:
    """Return the values of all replicas, and by how much they have grown while ``doctor`` asked."""
    total, grown = Numbers(), Numbers()
    for replica in facts.replicas:
        if not isinstance(replica.before, Unread):
            before = _values(replica.before, name)
            total.update(before)
            if not isinstance(replica.after, Unread):
                grown.update(_values(replica.after, name) - before)
    return total, grown


def _values(samples: Samples, name: str) -> Numbers:
    """Return the values of a family, without those that no topodns of this version writes."""
    found = Numbers()
    for labels, value in samples.get(name, {}).items():
        with suppress(ValueError, OverflowError):
            if len(labels) == len(_LABELS[name]):
                for read, text in zip(_LABELS[name], labels, strict=True):
                    read(text)
                found[labels] = int(value)
    return found


# --- Forwarders -------------------------------------------------------------------------------------------------------


def _trust_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield a step for each source that names clients, and that neither the cluster nor a flag vouches for."""
    code = StepCode.ForwardersTrusted
    suspects, (ignored, grown) = _sum(facts, SUSPECTS)[0], _sum(facts, IGNORED)
    found = False
    for (source,) in sorted(suspects):
        address = parse_address(source)
        holder = "" if isinstance(facts.view, Unread) else _holder(facts.view, address)
        trusted = not isinstance(facts.view, Unread) and facts.view.snapshot.addresses.source(address).forwarder
        if (
            trusted
            or address in facts.own_addresses
            or not (holder or grown[source,] or isinstance(facts.view, Unread))
        ):
            continue
        found = True
        message = f"{holder or 'no object of the cluster'} has this address; {ignored[source,]} queries named a client"
        commands = added_argument(facts, f"--trusted-forwarder={network_text(host_network(address))}")
        yield code.failed(message, source, commands)
    if not found:
        yield code.passed("nobody else names clients")


def _holder(view: View, address: bytes) -> str:
    return view.snapshot.addresses.holder(host_network(address))


def _naming_steps(facts: Facts) -> Iterator[DoctorStep]:
    code, (total, grown) = StepCode.ForwardersNameClients, _sum(facts, UNNAMED)
    names = {address_text(forwarder.address): forwarder.name for forwarder in facts.forwarders}
    answers = read_or(facts.forwarder_answers, ())
    right = {asked.server for asked in answers if asked.right}
    found = False
    for (source,) in sorted(total | grown):
        if source != OTHER and parse_address(source) in facts.own_addresses:
            continue
        name = names.get(source) or source
        subject = source if name == source else f"{source} ({name})"
        if grown[source,]:
            found, message = True, f"{grown[source,]} queries without a client while doctor looked"
            if commands := restarted(facts, name):
                yield code.failed(message, subject, commands, RESTART)
            else:
                yield code.failed(message, subject, (block_command(",".join(facts.installed.cluster_ips)),))
        elif name not in right:
            found, message = True, f"{total[source,]} queries without a client since the replicas started; none now"
            yield code.unknown(message, subject)
    if not found:
        yield code.passed("all name their clients")


# --- Unknown clients --------------------------------------------------------------------------------------------------


def _unknown_step(facts: Facts) -> DoctorStep:
    code, (located, _), (ranges, grown) = StepCode.ClientsLocated, _sum(facts, LOCATED), _sum(facts, UNLOCATED)
    unknown_clients, every = located["unknown",], located.total()
    share = f"{unknown_clients} of {every} queries came from unknown clients"
    now = [
        (text, reason, number)
        for (text, reason), number in sorted((ranges | grown).items())
        if text != OTHER and not _is_ours(facts, text) and not _located_now(facts, text)
    ]
    if not now:
        return code.passed(f"{share}, and no range of them is unknown now" if unknown_clients else share)
    named = [f"{text} ({REASONS.get(reason, reason)}, {number} queries)" for text, reason, number in now[:MAX_NAMED]]
    commands = [
        command
        for text in dict.fromkeys(text for text, _, _ in now[:MAX_NAMED])
        for command in added_argument(facts, f"--subnet={text}={ZONE}={_zone_of(facts, text)}")
    ]
    return code.failed(f"{share}: {'; '.join(named)}", commands=tuple(commands))


def _near_step(facts: Facts) -> DoctorStep:
    """Say how many answers of all replicas hold endpoints of their client's zone; that is never a fault."""
    answers, replicas = Counter[str](), 0
    for replica in facts.replicas:
        if not isinstance(replica.before, Unread):
            replicas += 1
            for labels, value in replica.before.get(NEAR, {}).items():
                with suppress(ValueError, OverflowError):
                    answers[labels[0] if labels else ""] += int(value)
    same, some, other = (answers[word] for word in ("same", "some", "other"))
    if not same + some + other:
        return StepCode.AnswersNear.passed("no client in a zone has got endpoints yet")
    message = (
        f"of {same + some + other} answers, {same} held endpoints of the client's zone alone, {some} others, too, "
        f"{other} only others (replicas: {replicas})"
    )
    return StepCode.AnswersNear.passed(message)


def _is_ours(facts: Facts, text: str) -> bool:
    network = parse_network(text)
    return any(is_within(host_network(own), network) for own in facts.own_addresses)


def _located_now(facts: Facts, text: str) -> bool:
    """Whether every address of a range is located by a pod CIDR or a subnet, as far as its ends tell."""
    if isinstance(facts.view, Unread):
        return False
    network, book = parse_network(text), book_of(facts.view.snapshot)
    return all(book.locate_by_block(end).location.known for end in (network.address, network_end(network)))


def _zone_of(facts: Facts, text: str) -> str:
    """Return the zone of what else is in a range, else the word ZONE."""
    if isinstance(facts.view, Unread):
        return "ZONE"
    network, snapshot = parse_network(text), facts.view.snapshot
    proposed = proposed_subnets(book_of(snapshot)).get(network)
    zone = snapshot.addresses.locate_network(network).location.value(ZONE) if proposed is None else proposed.zone
    return zone or "ZONE"
