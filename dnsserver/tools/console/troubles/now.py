# SPDX-License-Identifier: Apache-2.0

"""All that is wrong now, in the order in which a page shows it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dnsserver.text import grouped
from dnsserver.tools.console.causes import Cause, cluster_code, counted_causes, fixing_command
from dnsserver.tools.console.page import IN_BACKGROUND, PageContext
from dnsserver.tools.console.troubles.expected import Expected, expected_if_read
from dnsserver.tools.console.troubles.services import worse_if_new, worst_trouble_first
from dnsserver.tools.console.troubles.sources import DUMP, source_troubles
from dnsserver.tools.console.troubles.traffic import asked_troubles, live_unmet
from dnsserver.tools.console.troubles.trouble import BAD, FINDING, WARN, Now, Trouble, dated, dated_as_seen, in_short
from dnsserver.tools.simulation import MAX_OVERLOAD
from locator.model import ERROR, WARNING, Finding, object_key


async def look_at_troubles(context: PageContext) -> tuple[object, ...]:
    """Look at what is wrong although nobody else does, so that it is known since when; return what tells it apart."""

    async def look() -> Now:
        expected = await expected_if_read(context, one_part_in=IN_BACKGROUND)
        _, causes = await counted_causes(context)
        return what_is_wrong(context, expected, causes)

    return (await context.turns.take("troubles", look)).identities


def what_is_wrong(context: PageContext, expected: Expected | None, causes: Sequence[Cause]) -> Now:
    """Return what is wrong now."""
    at, health = time.time(), context.health()
    asked = None if context.recent is None else context.recent.asked()
    snapshot = context.inspected.snapshot()
    services = {} if snapshot is None else snapshot.services
    troubles = [
        *live_unmet(() if expected is None else expected.troubles, asked, services),
        *source_troubles(health, context.ages(), at),
        *(() if asked is None else asked_troubles(asked)),
        *_finding_troubles(causes),
    ]
    found = dated(troubles, context.first_seen, at, settled=expected is not None)
    shown, more = in_short(sorted(map(worse_if_new, found), key=worst_trouble_first))
    shown = list(_with_each_command_once(shown))
    simulated = expected is not None and expected.note is None
    peace = _peace_text(0 if expected is None else expected.services, simulated=simulated)
    return Now(shown, more, at, _began(context, at), peace)


def what_is_wrong_with(context: PageContext, troubles: Sequence[Trouble]) -> Now:
    """Return *troubles* of one Service as ``what_is_wrong`` does: those that no look has found are new."""
    at, began = time.time(), context.first_seen.began
    found = dated_as_seen(troubles, context.first_seen, None if began is None else at)
    return Now([*_with_each_command_once(map(worse_if_new, found))], {}, at, _began(context, at), "")


def _began(context: PageContext, at: float) -> float | None:
    """Return when the first look was, or that of a page before it; None of a dump that nobody serves."""
    of_dump = context.recent is None and DUMP in context.health()
    return None if of_dump else context.first_seen.began or at


def _peace_text(services: int, *, simulated: bool) -> str:
    """Return what was looked at and found in order; *simulated* is whether it is known what clients would get."""
    if services and simulated:
        who = f"every client gets an endpoint of {grouped(services, 'constrained Service')}, and none of their "
        who += f"endpoints more than {MAX_OVERLOAD:g} times an even share"
    elif services:
        who = "topodns knows no Pods, so it cannot say what clients get"
    else:
        who = "no headless Service has a constraint"
    return f"{who}; all clusters are read and up to date, and there are no errors and no warnings"


def _with_each_command_once(troubles: Iterable[Trouble]) -> Iterator[Trouble]:
    """Yield the *troubles*; one whose command stands with another one of its Service above refers to that."""
    above = set[tuple[str, str]]()
    for trouble in troubles:
        command = trouble.service, trouble.command
        if trouble.service and trouble.command and command in above:
            yield replace(trouble, fix=f"{trouble.fix.rstrip(':.')}: the command above is for that, too.", command="")
        else:
            yield trouble
        above.add(command)


def _finding_troubles(causes: Iterable[Cause]) -> Iterator[Trouble]:
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


def _first_finding(finding: Finding) -> str:
    about = f"{finding.kind} {object_key(finding.namespace, finding.name)}".strip()
    text = f"{about}: {finding.message}" if about else finding.message
    return f"{text}, expected {finding.expected}." if finding.expected else f"{text}."
