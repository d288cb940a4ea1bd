# SPDX-License-Identifier: Apache-2.0

"""Renders an explanation, as ``explain`` returns it, as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from dnsserver.text import BOLD, DIM, GREEN, MAGENTA, RED, YELLOW, counted, grouped, number_text, painter, table
from dnsserver.tools.explain.explanation import (
    BalanceExplained,
    CandidateExplained,
    ClientExplained,
    ConstraintExplained,
    Explanation,
    SourceExplained,
)
from locator.health.votes import NO_VOTE
from locator.model import CLUSTER, HOSTNAME, REGION, SUCCESSORS, ZONE
from locator.printable import printable_values
from locator.topology.selection import Step

INDENT = 12  # columns of a title and the space after it
WIDTH = 100 - INDENT  # columns at which sentences and lists of keys are wrapped

SHOWN_LABELS = (CLUSTER, REGION, ZONE, HOSTNAME)

OUTCOME_COLOURS = {"nearest": GREEN, "all": YELLOW, "spilled": MAGENTA, "unconstrained": DIM, "unmet": RED}


def as_text(explained: Explanation, *, colour: bool = False) -> str:
    """Return the explanation as aligned text, with ANSI colours if *colour*."""

    paint = painter(colour=colour)
    explained = printable_values(explained)
    question, service, constraint = explained.question, explained.service, explained.constraint
    first, *others = _wrapped(f"{explained.outcome}: {explained.reason}")
    outcome = paint(explained.outcome, OUTCOME_COLOURS[explained.outcome])
    header, *rows = (
        table(_candidates(explained.candidates, explained.balance or None)) if explained.candidates else [""]
    )
    lines_by_title = {  # a title without lines is not printed
        "question": [f"{question.name} {question.type}"],
        "client": _client(explained.client),
        "labels": _labels(explained.client, constraint),
        "service": [f"{service.namespace}/{service.name}" if service else "none"],
        "constraint": _constraint(constraint, explained.sources) if service else [],
        "declared": _overridden(explained.sources) if service else [],
        "balance": [line for text in balance_lines(explained) for line in _wrapped(text)],
        "step": _steps(explained.steps, constraint),
        "outcome": [first.replace(explained.outcome, outcome, 1), *others],
        "answer": [
            *_wrapped(_rcode(explained)),
            *table([(one.name, f"{one.ttl:>4}", one.type, one.data) for one in explained.answers]),
        ],
        "finding": [
            line
            for found in explained.findings or ()
            for line in _wrapped(f"{found.severity}: {found.message}, expected {found.expected} [{found.code}]")
        ],
        "candidates": [
            *([paint(header, BOLD)] if rows else []),
            *(paint(row, GREEN if of.chosen else DIM) for row, of in zip(rows, explained.candidates, strict=True)),
        ],
        "votes": _votes(explained.candidates),
    }
    return "".join(
        f"{paint(f'{title:<{INDENT - 2}}', BOLD) if number == 0 else ' ' * (INDENT - 2)}  {line}\n"
        for title, lines in lines_by_title.items()
        for number, line in enumerate(lines)
    )


def balance_lines(explained: Explanation) -> list[str]:
    """Return how many clients an endpoint expects at most, who they are, and when the client's node comes in turn.

    Return nothing if nothing bounds the load.
    """
    balance, constraint = explained.balance, explained.constraint
    if not balance:
        return []
    if not balance.clients:
        return ["nobody is counted, so nobody is passed on"]
    shares = f"at most {number_text(balance.max_overload)} even shares of {grouped(balance.clients, 'client')}"
    rounded = balance.cap * len(balance.endpoints) / balance.max_overload
    if balance.cap > 1 and rounded < balance.clients - 0.5:
        shares += f", which count as {number_text(rounded)}"
    full = sum(endpoint.full for endpoint in balance.endpoints)
    return [
        f"{shares}: {number_text(balance.cap)} for each endpoint",
        f"asked by {constraint.clients if constraint and constraint.clients else 'everybody but its own endpoints'}",
        f"full: {full} of {counted(len(balance.endpoints), 'endpoint')}" if full else "full: none",
        "the client is on no known node, so it is never passed on"
        if balance.slot is None
        else f"nodes come in turn, and the client's is number {balance.slot + 1} of 256",
    ]


def _client(client: ClientExplained) -> list[str]:
    holder = f" ({client.holder})" if client.holder else ""
    located = f"{client.address}, located by {client.located_by}{holder}"
    on_labels = "=" in client.address
    return [
        f"on any node with {client.address}" if on_labels else located,
        *([client.overlooked] if client.overlooked else []),
        *([f"on node {client.node}"] if client.node else []),
    ]


def _labels(client: ClientExplained, constraint: ConstraintExplained | None) -> list[str]:
    """Return the usual labels of the client, and those that the constraint names: JSON has all."""
    keys = constraint.keys if constraint else ()
    shown = dict.fromkeys((*SHOWN_LABELS, *(SUCCESSORS.get(key, key) for key in keys)))
    return [f"{key}={client.labels[key]}" for key in shown if key in client.labels]


def _constraint(constraint: ConstraintExplained | None, sources: Sequence[SourceExplained]) -> list[str]:
    """Return what is known of the constraint that counts."""
    if constraint is None or not any(source.decides for source in sources):
        return ["none"]
    texts = [f"{', '.join(constraint.keys)}  (by {constraint.source})"]
    if constraint.policies:
        texts.append(f"required: {', '.join(constraint.required or ()) or 'none'}")
        texts.append(f"policies: {', '.join(constraint.policies)}")
    if constraint.min_endpoints > 1:
        texts.append(f"at least {counted(constraint.min_endpoints, 'endpoint')}")
    if constraint.error:
        texts.append(f"invalid, and so ignored: {constraint.error}")
    elif constraint.without_effect:
        texts.append(f"without effect: {constraint.without_effect}")
    return [line for text in texts for line in _wrapped(text)]


def _overridden(sources: Sequence[SourceExplained]) -> list[str]:
    """Return what the sources declare that do not decide, and why they do not."""
    lines: list[str] = []
    for source in sources:
        if not source.decides:
            of_cluster = [f"of {source.cluster}"] if source.cluster else []
            name = " ".join([source.source, *source.policies, *of_cluster])
            keys = f": {', '.join(source.keys)}" if source.keys else ""
            lines += _wrapped(f"{name} ({source.why}){keys}")
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _steps(steps: Sequence[Step], constraint: ConstraintExplained | None) -> list[str]:
    rows = []
    for step in steps:
        tried = step.key if step.key == "*" else f"{step.key}={step.value or '(none)'}"
        rows.append((tried, counted(step.matched, "endpoint"), _demand(constraint, step.key)))
    return table(rows)


def _demand(constraint: ConstraintExplained | None, key: str) -> str:
    """Return which ServicePolicies ask for a key, "" if none does."""
    if constraint is None:
        return ""
    policies = zip(constraint.policies, constraint.policy_keys, strict=True)
    names = [name for name, named in policies if named == key]
    if not names:
        return ""
    return f"{'required' if key in (constraint.required or ()) else 'preferred'} by {', '.join(names)}"


def _rcode(explained: Explanation) -> str:
    error = explained.extended_error
    rcode = explained.rcode
    if rcode == "NOERROR" and not explained.answers:
        rcode = "NOERROR, no records"
    return rcode + (f" (extended error {error.code}: {error.text})" if error else "")


def _candidates(candidates: Sequence[CandidateExplained], balance: BalanceExplained | None) -> list[tuple[str, ...]]:
    """Return a table with a header: a row for each endpoint, a column for each key."""
    expected = {row.address: number_text(row.expected) for row in balance.endpoints} if balance else {}
    short = _short(list(candidates[0].values))
    keys = [key for key in short if key != HOSTNAME or any(row.values[key] != row.node for row in candidates)]
    federated = bool(candidates[0].kind)
    shown = [key for key in keys if key != CLUSTER] if federated else keys  # the cluster has a column of its own
    return [
        ("CHOSEN", *(("CLUSTER", "KIND") if federated else ()), "POD", "ADDRESS", "NODE",
         *(short[key].upper() for key in shown), *(("CLIENTS",) if balance else ()), "WHY"),
        *(
            (
                "yes" if row.chosen else "no",
                *((row.cluster or "-", row.kind or "-") if federated else ()),
                row.pod or "-",
                ",".join(row.addresses) or "-",
                row.node or "-",
                *(row.values[key] or "-" for key in shown),
                *((expected.get(row.addresses[0], "-"),) if balance else ()),
                _shortened(row.why, short),
            )
            for row in candidates
        ),
    ]  # fmt: skip


def _votes(candidates: Sequence[CandidateExplained]) -> list[str]:
    """Return the votes of clusters on each address of a load balancer that somebody votes on."""
    lines = []
    for row in candidates:
        votes = [f"{vote.cluster}: {vote.word}" for vote in row.votes or () if vote.word != NO_VOTE]
        if votes:
            lines.append(f"{','.join(row.addresses)}  {', '.join(votes)}")
    return lines


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Return the part of each key after its prefix, or the whole key where several have the same."""
    names = [key.rpartition("/")[2] for key in keys]
    return {key: name if names.count(name) == 1 else key for key, name in zip(keys, names, strict=True)}


def _shortened(text: str, short: Mapping[str, str]) -> str:
    for key, name in short.items():
        text = text.replace(key, name)
    return text
