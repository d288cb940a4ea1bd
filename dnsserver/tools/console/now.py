# SPDX-License-Identifier: Apache-2.0

"""What is wrong now with the sources, with those who ask, and by checks; ``service_troubles`` has the Services.

Each trouble has its cause, how many clients it concerns, and what fixes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from msgspec.structs import replace

from dnsserver.text import grouped
from dnsserver.tools.console.findings import Cause, cluster_code, fixing_command
from dnsserver.tools.console.recent import RecentAnswers
from dnsserver.tools.console.troubles import (
    BAD,
    FINDING,
    FORWARDER,
    SOURCE,
    UNLOCATED,
    UNMET,
    UNMET_ANSWERS,
    WARN,
    Trouble,
    duration,
)
from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from dnsserver.tools.simulation import MAX_OVERLOAD
from locator.ip import is_address, is_within, parse_client
from locator.model import ERROR, WARNING, ZONE, Finding, Health, listed, object_key

OTHER_CLUSTER = "cluster "  # how the check of another one begins, before its name
DUMP = "snapshot"  # the check of a cluster that is read from files
NAMED = 3  # names in a sentence


def peace_text(services: int, *, simulated: bool) -> str:
    """Return what was looked at and found in order; *simulated* is whether it is known what clients would get."""
    if services and simulated:
        who = f"every client gets an endpoint of {grouped(services, 'constrained Service')}, and none of their "
        who += f"endpoints more than {MAX_OVERLOAD:g} times an even share"
    elif services:
        who = "topodns knows no Pods, so it cannot say what clients get"
    else:
        who = "no headless Service has a constraint"
    return f"{who}; all clusters are read and up to date, and there are no errors and no warnings"


def live_unmet(troubles: Sequence[Trouble], asked: RecentAnswers | None) -> Iterator[Trouble]:
    """Yield the *troubles* of Services with what was answered in the last minutes, and what they do not explain.

    These are answers that would be others now: their Service has no such trouble any more.
    """
    if asked is None:
        yield from troubles
        return
    of_services = {service: number for service, one in asked.services.items() if (number := round(one.unmet))}
    left, lasting = dict(of_services), duration(round(asked.service_seconds))
    for trouble in troubles:
        if trouble.kind != UNMET:
            yield trouble
            continue
        empty = left.pop(trouble.service, 0)
        cause = f"{trouble.cause} {_answers(empty)} in the last {lasting}." if empty else trouble.cause
        kept = empty or trouble.parts  # where a Service has no endpoint at all, no decision is unmet
        links = (*trouble.links, _tail_link(trouble.service)) if kept else trouble.links
        yield replace(trouble, cause=cause, links=links)
    for service, empty in sorted(left.items(), key=lambda pair: (-pair[1], pair[0])):
        yield _unmet_answers(empty, f"of {service} ", lasting, service)
    if asked.unmet and not of_services:
        yield _unmet_answers(asked.unmet, "", duration(asked.seconds), "")


def _unmet_answers(empty: int, what: str, lasting: str, service: str) -> Trouble:
    """Return the trouble that some answers were empty, although they would not be now."""
    title = f"{grouped(empty, 'answer')} {what}{'was' if empty == 1 else 'were'} empty in the last {lasting}"
    return Trouble(
        UNMET_ANSWERS, service, WARN, title,
        "A hard constraint left the clients no endpoint near enough. Each running pod would get one now.",
        "Nothing, if it is over. See who got them:", links=(_tail_link(service),), service=service,
    )  # fmt: skip


def _tail_link(service: str) -> tuple[str, str]:
    return "Who got nothing", f"/tail?{urlencode({**({'service': service} if service else {}), 'outcome': 'unmet'})}"


def source_troubles(health: Mapping[str, Health], ages: Mapping[str, float], now: float) -> Iterator[Trouble]:
    """Yield each cluster whose source is broken, or out of contact. The own one is the first of *ages*."""
    own = next(iter(ages), "")
    since = now - ages[own] if ages.get(own) else None
    links = (("Clusters", "#clusters"),)
    waiting: dict[str, str] = {}
    for name, check in health.items():
        problem = check.problem or ("" if check.ok else check.text)
        if not problem:
            continue
        if name.startswith(OTHER_CLUSTER):
            other = name.removeprefix(OTHER_CLUSTER)
            age = ages.get(other, 0.0)
            yield Trouble(
                SOURCE, name, BAD, f"Cluster {other} is {'out of contact' if age else 'not read as it is now'}",
                f"{_sentence(problem)} Clients get its endpoints as topodns read them last, or none of them.",
                "Look at its API server, and at the address and the credentials that --cluster names.",
                links=links, since=now - age if age else None,
            )  # fmt: skip
        elif name == DUMP:
            yield Trouble(
                SOURCE, name, BAD, "The dump cannot be read" if check.ok else "The dump has not been read",
                _sentence(problem) + (" topodns answers from what it read before." if check.ok else ""),
                "Correct the file: topodns reads it again once it changes.", links=links,
            )  # fmt: skip
        else:
            waiting[name] = problem
    if waiting:
        lost = bool(since) and all(health[name].ok for name in waiting)
        title = f"No contact with the API server of {own}" if lost else f"Cluster {own} has not been read"
        cause = _sentence(f"{listed(list(waiting), NAMED)}: {next(iter(waiting.values()))}")
        yield Trouble(
            SOURCE, own, BAD, title, cause + (" topodns answers from what it read last." if lost else ""),
            "Is the API server up, and does topodns reach it? topodns catches up by itself.",
            "kubectl get --raw '/readyz?verbose'", links=links, since=since,
        )  # fmt: skip


def broken_clusters(health: Mapping[str, Health], ages: Mapping[str, float]) -> frozenset[str]:
    """Return the clusters of which topodns knows what they were before, not what they are. The own one is the first."""
    own, problems = next(iter(ages), ""), [name for name, check in health.items() if check.problem]
    return frozenset(name.removeprefix(OTHER_CLUSTER) if name.startswith(OTHER_CLUSTER) else own for name in problems)


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


def finding_troubles(causes: Iterable[Cause]) -> Iterator[Trouble]:
    """Yield the errors and warnings among the findings, one for each code."""
    for cause in causes:
        if cause.severity not in (ERROR, WARNING) or not cause.findings.rows:
            continue
        known, first, total = cluster_code(cause.code), cause.findings.rows[0], cause.findings.total
        yield Trouble(
            FINDING, cause.code, BAD if cause.severity == ERROR else WARN,
            f"{cause.code}: {grouped(total, cause.severity)}",
            _first_finding(first) + (f" And {total - 1:,} more." if total > 1 else ""),
            known.fix if known else "", fixing_command(first) if total == 1 else "",
            (("What it means", f"#cause-{cause.code}"),),
        )  # fmt: skip


def trusting_flag(source: str) -> str:
    """Return the flag that trusts a source; "" for sources that are counted together."""
    if "." not in source and ":" not in source:
        return ""
    return f"--trusted-forwarder {source}/{128 if ':' in source else 32}"


def _first_finding(finding: Finding) -> str:
    about = f"{finding.kind} {object_key(finding.namespace, finding.name)}".strip()
    text = f"{about}: {finding.message}" if about else finding.message
    return f"{text}, expected {finding.expected}." if finding.expected else f"{text}."


def _sentence(text: str) -> str:
    return text if text.endswith(("?", ".")) else f"{text}."


def _sources(found: Sequence[tuple[str, str, int]]) -> tuple[str, int]:
    return listed([source for source, _, _ in found], NAMED), sum(times for _, _, times in found)


def _answers(unmet: int) -> str:
    return f"{grouped(unmet, 'answer')} {'was' if unmet == 1 else 'were'} empty"
