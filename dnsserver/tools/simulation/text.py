# SPDX-License-Identifier: Apache-2.0

"""A simulation as text for people, and as Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from dnsserver.text import BOLD, DIM, GREEN, RED, YELLOW, Paint, grouped, painter, percent, table
from dnsserver.tools.simulation.as_if import Annotations, annotating_command
from dnsserver.tools.simulation.comparing import Compared
from dnsserver.tools.simulation.gains import Gain
from dnsserver.tools.simulation.gains_text import PRICE_HINT, gain_commands, gain_heading, gain_rows, nothing_lines
from dnsserver.tools.simulation.results import Simulation
from dnsserver.tools.simulation.service import DomainOutcome, Simulated, domain_at, exceeds, first_address
from locator.model import listed
from locator.printable import printable
from locator.topology.annotations import LEAST_OVERLOAD, MAX_OVERLOAD, MOST_OVERLOAD
from locator.topology.balance import Balance
from locator.topology.constraints import Declaration
from locator.topology.selection import LocatedEndpoint

MAX_DETAILED = 10  # Services that are shown in detail
MAX_ROWS = 20  # of a table
MAX_LISTED = 50  # Services in the table of many

Row = tuple[str, ...]


def as_text(simulation: Simulation, *, colour: bool = False) -> str:
    """Return the text: each Service in detail if they are few, else a table of them; then the totals."""

    paint = painter(colour=colour)
    lines: list[str] = []
    if simulation.gains is not None:
        lines += _gain_lines(simulation, simulation.gains, paint)
    elif len(simulation.services) <= MAX_DETAILED:
        for simulated, compared in simulation.each():
            lines += [*_detailed(simulated, simulation, paint), *_part(_choices(compared), paint), ""]
    else:
        header, *rows = table(list(_summary(worst_first(simulation.services)[:MAX_LISTED])))
        lines += [paint(header, BOLD), *rows]
        if (more := len(simulation.services) - MAX_LISTED) > 0:
            lines.append(f"{more:,} more; -o json has all, --service NS/NAME shows one in detail")
        lines.append("")
        for simulated, compared in _worst_compared(simulation):
            lines += [paint(simulated.subject.name, BOLD), *_part(_choices(compared), paint), ""]
        if proposals := _proposals(simulation):
            lines += [*(f"{paint('proposal', GREEN)}  {command}" for command in proposals), ""]
    lines += totals_lines(simulation)
    if simulation.price is None and any(gain.annotations for gain in simulation.gains or ()):
        lines.append(PRICE_HINT)
    return "".join(f"{line}\n" for line in lines)


def _gain_lines(simulation: Simulation, gains: Sequence[Gain], paint: Paint) -> Iterator[str]:
    """Yield what Services without a constraint would gain, the commands for that, and how many would gain nothing."""
    gaining = [gain for gain in gains if gain.annotations]
    first, more = gaining[:MAX_LISTED], len(gaining) - MAX_LISTED
    if gaining:
        header, *rows = table(gain_rows(first, simulation.price, simulation.max_overload))
        yield from (paint(header, BOLD), *rows)
        if more > 0:
            yield f"{more:,} more; -o json has all"
        yield ""
        yield paint(gain_heading(first, simulation.max_overload), BOLD)
        yield from (f"  {command}" for command in gain_commands(first))
        yield ""
    for simulated, compared in _worst_compared(simulation):
        yield from (paint(simulated.subject.name, BOLD), *_part(_choices(compared), paint), "")
    yield from nothing_lines(gains)


def worst_first(services: Iterable[Simulated]) -> list[Simulated]:
    """Return Services in the order in which people look at them: by unmet clients, then overload, then idleness."""
    return sorted(services, key=lambda one: (-one.unmet, -one.max_overload, -len(one.idle), one.subject.name))


def totals_lines(simulation: Simulation) -> list[str]:
    """Return what all Services have together."""
    totals = simulation.totals()
    cross, cost = totals.cross_zone, totals.cost
    without, them = ("without constraints", "them") if simulation.gains is None else ("now", "the commands")
    services, clients = grouped(len(simulation.services), "Service"), grouped(totals.clients, "client")
    lines = [f"{services}, {clients}, cross-zone {percent(cross.before)} of the load {without}"]
    if cost is not None:
        lines.append(f"traffic between zones costs {cost.before:,.2f} a month {without}")
    if simulation.gains is not None and not any(gain.annotations for gain in simulation.gains):
        return lines  # there are no commands
    lines[0] += f", {percent(cross.after)} with {them}"
    if cost is not None:
        saved = cost.before - cost.after
        more = "less" if saved >= 0 else "more"
        lines[1] += f", {cost.after:,.2f} with {them}: {abs(saved):,.2f} {more}"
    return lines


def balancing_command(simulated: Simulated, max_overload: float, tried: Annotations) -> str:
    """Return the command that bounds each endpoint to *max_overload* even shares, and sets what was *tried*.

    "" if no endpoint has more, or the annotation would change nothing.
    """
    if not exceeds(simulated, max_overload) or not simulated.may_be_balanced:
        return ""
    bound = min(max(max_overload, LEAST_OVERLOAD), MOST_OVERLOAD)
    return annotating_command(simulated.subject.key, {**tried, MAX_OVERLOAD: f"{bound:g}"})


def _proposals(simulation: Simulation) -> list[str]:
    """Return the commands that bound the load of what is overloaded, for the worst Services."""
    commands = (
        balancing_command(simulated, simulation.max_overload, simulation.tried.get(simulated.subject.key, {}))
        for simulated in worst_first(simulation.services)
    )
    return list(islice(filter(None, commands), MAX_ROWS))


def constraint_text(simulated: Simulated) -> str:
    """Return what a Service asks for, and which source says so."""
    if simulated.declaration is None and simulated.unmatched:
        return f"no constraint in effect: {simulated.unmatched}"
    bound = "" if simulated.balance is None else f", max-overload {simulated.balance.max_overload:g}"
    return f"{_declaration_text(simulated.declaration)}{bound}"


def balance_text(balance: Balance) -> str:
    """Return how many clients an endpoint may expect, and whether that is enough."""
    full = f"{grouped(len(balance.full), 'endpoint')} had no more room" if balance.full else "all have room"
    return f"each endpoint may expect {balance.cap:.1f} of {grouped(balance.clients, 'client')}; {full}"


def _declaration_text(declaration: Declaration | None) -> str:
    if declaration is None:
        return "no constraint"
    flaw = declaration.error or declaration.without_effect
    reason = f" (not in effect: {flaw})" if flaw else ""
    return f"{declaration.source}: {','.join(declaration.constraint.keys)}{reason}"


def _detailed(simulated: Simulated, simulation: Simulation, paint: Paint) -> Iterator[str]:
    max_overload = simulation.max_overload
    yield f"{paint(simulated.subject.name, BOLD)}  {printable(constraint_text(simulated))}"
    yield (
        f"  {grouped(simulated.clients, 'client')}, {grouped(len(simulated.endpoints), 'ready endpoint')}, cross-zone "
        f"{percent(simulated.crossing_before)} without the constraint, {percent(simulated.crossing)} with it"
    )
    if simulated.balance is not None:
        yield f"  {balance_text(simulated.balance)}"
    domains = map(_domain_row, largest_domains(simulated))
    yield from _part([("clients in", "clients", "outcome", "get"), *domains], paint)
    endpoints = (_endpoint_row(simulated, *pair, max_overload) for pair in greatest_shares(simulated))
    yield from _part([("endpoint", "pod", "node", "in", "load", "of an even share", ""), *endpoints], paint)
    if command := balancing_command(simulated, max_overload, simulation.tried.get(simulated.subject.key, {})):
        yield f"  {paint('proposal', GREEN)}  {command}"


def _part(rows: Sequence[Row], paint: Paint) -> Iterator[str]:
    """Yield a table with a header, indented, unless it is empty."""
    if len(rows) == 1:
        return
    header, *lines = table([tuple(map(printable, row)) for row in rows[: MAX_ROWS + 1]])
    yield f"  {paint(header, DIM)}"
    for line in lines:
        yield f"  {paint(line, RED if line.endswith('overloaded') else YELLOW if line.endswith('idle') else '')}"
    if (more := len(rows) - 1 - MAX_ROWS) > 0:
        yield f"  {more:,} more; -o json has all"


def _domain_row(row: DomainOutcome) -> Row:
    gets = named(list(map(first_address, row.choice.endpoints)))
    return domain_text(row.domain), f"{row.clients:,}", row.choice.outcome, gets


def named(names: Sequence[str]) -> str:
    """Return what clients get: the first few names, and how many more there are."""
    return listed(names, 3) or "nothing"


def largest_domains(simulated: Simulated) -> list[DomainOutcome]:
    """Return the domains of clients, those with the most first."""
    return sorted(simulated.domains(), key=lambda row: (-row.clients, domain_text(row.domain)))


def greatest_shares(simulated: Simulated) -> list[tuple[float, LocatedEndpoint]]:
    """Return the endpoints with their shares, the greatest first."""
    return sorted(
        zip(simulated.shares, simulated.endpoints, strict=True),
        key=lambda pair: (-round(pair[0], 6), first_address(pair[1])),
    )


def domain_text(domain: Mapping[str, str]) -> str:
    """Return a topology domain, without the prefixes of its keys."""
    return ", ".join(f"{key.rpartition('/')[2]}={value}" for key, value in domain.items()) or "anywhere"


def _endpoint_row(simulated: Simulated, share: float, located: LocatedEndpoint, max_overload: float) -> Row:
    times, domain = share * len(simulated.endpoints), domain_at(located.location, simulated.declaration)
    return (
        first_address(located), located.endpoint.pod or "", located.location.node or "",
        domain_text(domain) if domain else "", percent(share), f"{times:.2f} x", simulated.rating(share, max_overload),
    )  # fmt: skip


def _summary(services: Iterable[Simulated]) -> Iterator[Row]:
    yield ("service", "clients", "endpoints", "overload", "idle", "unmet", "cross-zone before", "after", "constraint")
    for one in services:
        yield (
            one.subject.name, f"{one.clients:,}", f"{len(one.endpoints):,}", f"{one.max_overload:.2f} x",
            f"{one.starved:,}", f"{one.unmet:,}", percent(one.crossing_before),
            percent(one.crossing), printable(constraint_text(one)),
        )  # fmt: skip


def _choices(compared: Sequence[Compared]) -> Sequence[Row]:
    """Return a table of what a Service may choose."""
    rows = [
        (one.name, percent(one.cross_zone), f"{one.max_overload:.2f} x", f"{one.overloaded:,}",
         f"{one.unmet_clients:,}", _declaration_text(one.declaration))
        for one in compared
    ]  # fmt: skip
    return [("compared", "cross-zone", "overload", "overloaded", "unmet", "constraint"), *rows]


def _worst_compared(simulation: Simulation) -> list[tuple[Simulated, Sequence[Compared]]]:
    """Return the worst Services with their choices, none if nobody wants to compare them."""
    if not simulation.compared:
        return []
    choices = dict(simulation.each())
    return [(simulated, choices[simulated]) for simulated in worst_first(simulation.services)[:MAX_DETAILED]]


def as_markdown(simulation: Simulation) -> str:
    """Return the simulation as Markdown: a table of the Services, what to look at, proposals, totals."""
    gains = simulation.gains
    lines = _markdown_summary(simulation) if gains is None else _markdown_gains(simulation, gains)
    if simulation.findings:
        lines += [
            f"- **{finding.code}** {_escaped(f'{finding.namespace}/{finding.name}: {finding.message}')}"
            for finding in simulation.findings[:MAX_LISTED]
        ]
        if (left := len(simulation.findings) - MAX_LISTED) > 0:
            lines.append(f"- {grouped(left, 'more finding')}")
        lines.append("")
    for simulated, compared in _worst_compared(simulation):
        header, *rows = _choices(compared)
        lines += [f"#### {_escaped(simulated.subject.name)}", "", *_markdown_table(header, rows), ""]
    if simulation.gains is None and (proposals := _proposals(simulation)):
        lines += _markdown_commands(proposals)
    lines += [f"{line[0].upper()}{line[1:]}." for line in totals_lines(simulation)]
    most = f"{simulation.max_overload:g} times an even share"
    lines.append(f"An endpoint is overloaded from more than {most} of the load on.")
    return "".join(f"{line}\n" for line in lines)


def _markdown_summary(simulation: Simulation) -> list[str]:
    worst = worst_first(simulation.services)
    header, *rows = _summary(worst[:MAX_LISTED])
    lines = ["### Who would get what", "", *_markdown_table(header, rows), ""]
    if (more := len(worst) - MAX_LISTED) > 0:
        lines += [f"{grouped(more, 'more Service')}.", ""]
    return lines


def _markdown_gains(simulation: Simulation, gains: Sequence[Gain]) -> list[str]:
    gaining, lines = [gain for gain in gains if gain.annotations], ["### What each Service would gain", ""]
    if first := gaining[:MAX_LISTED]:
        header, *rows = gain_rows(first, simulation.price, simulation.max_overload)
        lines += [*_markdown_table(header, rows), ""]
        if (more := len(gaining) - MAX_LISTED) > 0:
            lines += [f"{grouped(more, 'more Service')}.", ""]
        lines += [gain_heading(first, simulation.max_overload), "", *_markdown_commands(gain_commands(first))]
    for line in nothing_lines(gains):
        lines += [f"{line}.", ""]
    return lines


def _markdown_commands(commands: Iterable[str]) -> list[str]:
    return ["```console", *(f"$ {command}" for command in commands), "```", ""]


def _markdown_table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    for row in (header, ("---",) * len(header), *rows):
        yield f"| {' | '.join(map(_escaped, row))} |"


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is: names of a cluster are no markup, mention nobody and link nowhere."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", printable(text).replace("&", "&amp;"))
    return escaped.replace("@", "&#64;").replace("://", "&#58;//")
