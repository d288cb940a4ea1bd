# SPDX-License-Identifier: Apache-2.0

"""What is wrong in live traffic: answers that were empty, forwarders, clients that nothing locates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlencode

from msgspec.structs import replace

from dnsserver.text import duration, grouped
from dnsserver.tools.console.recent import RecentAnswers
from dnsserver.tools.console.troubles.services import service_link, slices_command
from dnsserver.tools.console.troubles.trouble import (
    FORWARDER,
    NAMED,
    UNLOCATED,
    UNMET,
    UNMET_ANSWERS,
    WARN,
    Trouble,
)
from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from locator.ip import is_address, is_within, parse_client
from locator.model import ZONE, listed
from locator.state.snapshot import CompiledService


def live_unmet(
    troubles: Sequence[Trouble], asked: RecentAnswers | None, services: Mapping[str, CompiledService]
) -> Iterator[Trouble]:
    """Yield the *troubles* of Services with what was answered in the last minutes, and what they do not explain.

    These are about *services* that are simulated no more than others, or have no such trouble any more.
    """
    if asked is None:
        yield from troubles
        return
    of_services = {service: number for service, one in asked.services.items() if (number := round(one.unmet))}
    left, lasting = dict(of_services), duration(asked.service_seconds)
    for trouble in troubles:
        if trouble.kind != UNMET:
            yield trouble
            continue
        empty = left.pop(trouble.service, 0)
        cause = f"{trouble.cause} {_answers(empty)} in the last {lasting}." if empty else trouble.cause
        yield replace(trouble, cause=cause, links=(*trouble.links, _tail_link(trouble.service)))
    for service, empty in sorted(left.items(), key=lambda pair: (-pair[1], pair[0])):
        is_empty = service in services and services[service].empty
        yield _unmet_answers(empty, f"of {service} ", lasting, service, is_empty=is_empty)
    if asked.unmet and not of_services:
        yield _unmet_answers(asked.unmet, "", duration(asked.seconds), "", is_empty=False)


def _unmet_answers(empty: int, what: str, lasting: str, service: str, *, is_empty: bool) -> Trouble:
    """Return the trouble that some answers were empty, although no running pod is known that would get such a one.

    *is_empty* is whether the Service has no ready endpoint.
    """
    cause = "No endpoint was ready, or none near enough for a hard constraint. Each running pod would get one now."
    fix, command, links = "Nothing, if it is over. See who got them:", "", [_tail_link(service)]
    if is_empty:
        cause = "It has no ready endpoint, so its name does not exist."
        fix, command = "If it is meant to have none, look at who asks for it. Otherwise:", slices_command(service)
        links = [service_link(service), *links]
    title = f"{grouped(empty, 'answer')} {what}{'was' if empty == 1 else 'were'} empty in the last {lasting}"
    return Trouble(UNMET_ANSWERS, service, WARN, title, cause, fix, command, (*links,), service=service)


def _tail_link(service: str) -> tuple[str, str]:
    return "Who got nothing", f"/tail?{urlencode({**({'service': service} if service else {}), 'outcome': 'unmet'})}"


def asked_troubles(asked: RecentAnswers) -> Iterator[Trouble]:
    """Yield what is wrong with who asks: forwarders that name nobody or lack trust, clients that nothing locates."""
    lasting = duration(asked.seconds)
    if asked.unnamed:
        names, times = _sources(asked.unnamed)
        yield Trouble(
            FORWARDER, "unnamed", WARN, f"A forwarder names no clients: {names}",
            f"{grouped(times, 'query')} in the last {lasting} came without one, so topodns cannot say who is near.",
            "Put this line into the stub block of the Corefile:", ECS_RULE, (("Forwarders", "#unnamed"),),
        )  # fmt: skip
    if asked.untrusted:
        names, times = _sources(asked.untrusted)
        flags = [flag for source, _, _ in asked.untrusted[:NAMED] if (flag := trusting_flag(source))]
        yield Trouble(
            FORWARDER, "untrusted", WARN, f"Clients are named by a forwarder that nobody trusts: {names}",
            f"topodns answered {grouped(times, 'query')} in the last {lasting} for the forwarder's own place.",
            "If it forwards for others, start topodns with:", " ".join(flags), (("Forwarders", "#untrusted"),),
        )  # fmt: skip
    if unlocated := [row for row in asked.unlocated if not _has_forwarder(row[0], asked)]:
        names, times = _sources(unlocated)
        example = f"--subnet {unlocated[0][0]}={ZONE}=ZONE" if "/" in unlocated[0][0] else ""
        yield Trouble(
            UNLOCATED, "unlocated", WARN, f"Nothing locates clients in {names}",
            f"{grouped(times, 'query')} in the last {lasting} came from there. Such a client gets every endpoint, or "
            "nothing where a constraint is hard.",
            "Say where they are:", example, (("Clients that nothing locates", "#unlocated"),),
        )  # fmt: skip


def _has_forwarder(around: str, asked: RecentAnswers) -> bool:
    """Whether a forwarder asks from a network: to say where it is would put all of its clients there."""
    forwarders = (source for source, _, _ in (*asked.unnamed, *asked.untrusted) if is_address(source))
    return "/" in around and any(is_within(parse_client(source), parse_client(around)) for source in forwarders)


def trusting_flag(source: str) -> str:
    """Return the flag that trusts a source; "" for sources that are counted together."""
    if "." not in source and ":" not in source:
        return ""
    return f"--trusted-forwarder {source}/{128 if ':' in source else 32}"


def _sources(found: Sequence[tuple[str, str, int]]) -> tuple[str, int]:
    return listed([source for source, _, _ in found], NAMED), sum(times for _, _, times in found)


def _answers(unmet: int) -> str:
    return f"{grouped(unmet, 'answer')} {'was' if unmet == 1 else 'were'} empty"
