# SPDX-License-Identifier: Apache-2.0

"""Renders an explanation, as ``explain`` returns it, as text for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from dnsserver.text import BOLD, DIM, GREEN, RED, YELLOW, counted, painter, table
from dnsserver.tools.explain.explanation import (
    AnswerExplained,
    CandidateExplained,
    ClientExplained,
    ConstraintExplained,
    Explanation,
    SourceExplained,
    StepExplained,
)
from locator.health.votes import NO_VOTE
from locator.model import CLUSTER, HOSTNAME, REGION, SUCCESSORS, ZONE
from locator.printable import printable, printable_values

INDENT = 12  # columns of a title and the space after it
WIDTH = 100 - INDENT  # columns at which sentences and lists of keys are wrapped

SHOWN_LABELS = (CLUSTER, REGION, ZONE, HOSTNAME)

OUTCOME_COLOURS = {"nearest": GREEN, "all": YELLOW, "unconstrained": DIM, "unmet": RED}

Row = tuple[str, str]  # a title and a text; a title that is repeated is printed once


def as_text(explained: Explanation, *, colour: bool = False) -> str:
    """Return the explanation as aligned text, with ANSI colours if *colour*."""

    paint, explained = painter(colour=colour), printable_values(explained)
    question, service, outcome = explained["question"], explained["service"], explained["outcome"]
    rows: list[Row] = [("question", f"{question['name']} {question['type']}")]
    rows += _client_rows(explained["client"], explained["constraint"])
    rows.append(("service", f"{service['namespace']}/{service['name']}" if service else "none"))
    if service:
        rows += _constraint_rows(explained["constraint"], explained["sources"])
    rows += [("step", text) for text in _steps(explained["steps"], explained["constraint"])]
    first, *others = _wrapped(f"{outcome}: {explained['reason']}")
    rows += [
        ("outcome", line) for line in (first.replace(outcome, paint(outcome, OUTCOME_COLOURS[outcome]), 1), *others)
    ]
    rows += [("answer", line) for line in _wrapped(_rcode(explained))]
    rows += [("answer", line) for line in table([_answer(answer) for answer in explained["answers"]])]
    for finding in explained.get("findings", ()):
        text = f"{finding.severity}: {finding.message}, expected {finding.expected} [{finding.code}]"
        rows += [("finding", line) for line in _wrapped(printable(text))]
    if explained["candidates"]:
        header, *lines = table(_candidates(explained["candidates"]))
        chosen = [candidate["chosen"] for candidate in explained["candidates"]]
        rows.append(("candidates", paint(header, BOLD)))
        rows += [("candidates", paint(line, GREEN if row else DIM)) for line, row in zip(lines, chosen, strict=True)]
        rows += _vote_rows(explained["candidates"])
    return "".join(
        f"{paint(f'{title:<{INDENT - 2}}', BOLD) if title else ' ' * (INDENT - 2)}  {text}\n"
        for title, text in _titled_once(rows)
    )


def _titled_once(rows: Sequence[Row]) -> list[Row]:
    return [(title if not n or rows[n - 1][0] != title else "", text) for n, (title, text) in enumerate(rows)]


def _client_rows(client: ClientExplained, constraint: ConstraintExplained | None) -> list[Row]:
    """Return the rows on the client. Of its labels, only the usual ones and those of the constraint: JSON has all."""
    holder = f" ({client['holder']})" if client["holder"] else ""
    rows = [("client", f"{client['address']}, located by {client['located_by']}{holder}")]
    if "=" in client["address"]:  # labels
        rows = [("client", f"on any node with {client['address']}")]
    if client["overlooked"]:
        rows.append(("client", client["overlooked"]))
    if client["node"]:
        rows.append(("client", f"on node {client['node']}"))
    labels = client["labels"]
    keys = constraint["keys"] if constraint else ()
    wanted = dict.fromkeys((*SHOWN_LABELS, *(SUCCESSORS.get(key, key) for key in keys)))
    return rows + [("labels", f"{key}={labels[key]}") for key in wanted if key in labels]


def _constraint_rows(constraint: ConstraintExplained | None, sources: Sequence[SourceExplained]) -> Iterator[Row]:
    """Yield the rows on the constraint that counts, and on the sources that do not."""
    if constraint is None or not any(source["heard"] for source in sources):
        yield "constraint", "none"
    else:
        texts = [f"{', '.join(constraint['keys'])}  (by {constraint['source']})"]
        if constraint["policies"]:
            texts.append(f"required: {', '.join(constraint['required'] or ()) or 'none'}")
            texts.append(f"policies: {', '.join(constraint['policies'])}")
        if constraint["min_endpoints"] > 1:
            texts.append(f"at least {counted(constraint['min_endpoints'], 'endpoint')}")
        if constraint["error"]:
            texts.append(f"invalid, and so ignored: {constraint['error']}")
        elif constraint["without_effect"]:
            texts.append(f"without effect: {constraint['without_effect']}")
        yield from (("constraint", line) for text in texts for line in _wrapped(text))
    for source in sources:
        if not source["heard"]:
            of_cluster = [f"of {source['cluster']}"] if "cluster" in source else []
            name = " ".join([source["source"], *source["policies"], *of_cluster])
            text = f"{name} ({source['why']}): {', '.join(source['keys'])}"
            yield from (("declared", line) for line in _wrapped(text))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _steps(steps: Sequence[StepExplained], constraint: ConstraintExplained | None) -> list[str]:
    return table(
        [
            (
                step["key"] if step["key"] == "*" else f"{step['key']}={step['value'] or '(none)'}",
                counted(step["matched"], "endpoint"),
                _demand(constraint, step["key"]),
            )
            for step in steps
        ]
    )


def _demand(constraint: ConstraintExplained | None, key: str) -> str:
    """Return which ServicePolicies ask for a key, "" if none does."""
    if constraint is None:
        return ""
    policies = zip(constraint["policies"], constraint["policy_keys"], strict=True)
    names = [name for name, named in policies if named == key]
    if not names:
        return ""
    return f"{'required' if key in (constraint['required'] or ()) else 'preferred'} by {', '.join(names)}"


def _rcode(explained: Explanation) -> str:
    error = explained["extended_error"]
    rcode = explained["rcode"]
    if rcode == "NOERROR" and not explained["answers"]:
        rcode = "NOERROR, no records"
    return rcode + (f" (extended error {error['code']}: {error['text']})" if error else "")


def _answer(answer: AnswerExplained) -> tuple[str, ...]:
    return answer["name"], f"{answer['ttl']:>4}", answer["type"], answer["data"]


def _candidates(candidates: Sequence[CandidateExplained]) -> list[tuple[str, ...]]:
    """Return a table with a header: a row for each endpoint, a column for each key."""
    short = _short(list(candidates[0]["values"]))
    keys = [key for key in short if key != HOSTNAME or any(row["values"][key] != row["node"] for row in candidates)]
    federated = "kind" in candidates[0]
    shown = [key for key in keys if key != CLUSTER] if federated else keys  # the cluster has a column of its own
    return [
        ("CHOSEN", *(("CLUSTER", "KIND") if federated else ()), "POD", "ADDRESS", "NODE",
         *(short[key].upper() for key in shown), "WHY"),
        *(
            (
                "yes" if row["chosen"] else "no",
                *((row["cluster"] or "-", row["kind"]) if federated else ()),
                row["pod"] or "-",
                ",".join(row["addresses"]) or "-",
                row["node"] or "-",
                *(row["values"][key] or "-" for key in shown),
                _shortened(row["why"], short),
            )
            for row in candidates
        ),
    ]  # fmt: skip


def _vote_rows(candidates: Sequence[CandidateExplained]) -> Iterator[Row]:
    """Yield the votes of clusters on each address of a load balancer that somebody votes on."""
    for row in candidates:
        votes = [f"{vote['cluster']}: {vote['vote']}" for vote in row.get("votes", ()) if vote["vote"] != NO_VOTE]
        if votes:
            yield "votes", f"{','.join(row['addresses'])}  {', '.join(votes)}"


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Return the part of each key after its prefix, or the whole key where several have the same."""
    names = [key.rpartition("/")[2] for key in keys]
    return {key: name if names.count(name) == 1 else key for key, name in zip(keys, names, strict=True)}


def _shortened(text: str, short: Mapping[str, str]) -> str:
    for key, name in short.items():
        text = text.replace(key, name)
    return text
