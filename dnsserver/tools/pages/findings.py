# SPDX-License-Identifier: Apache-2.0

"""What is wrong in the clusters, by its cause, with the commands that mend it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from dnsserver.tools.pages.paging import Part, part_of
from locator.finding_codes import ClusterCode
from locator.model import SEVERITIES, Finding, object_key

SHOWN = 5  # findings of one cause on the first page
PAGE = 50
KEY_DIGITS = 16


class FindingRow(Struct, frozen=True, gc=False):
    """A finding: ``about`` is the kind and the key of its object, ``command`` mends it, if any command does.

    ``service`` is the namespace and name of the Service that it is about, None if it is about something else.
    """

    key: str
    about: str
    service: tuple[str, str] | None
    where: str
    text: str
    expected: str
    command: str


class Cause(Struct, frozen=True, gc=False):
    """All findings with one code. ``cause`` and ``cure`` are what ``ClusterCode`` says, in Markdown."""

    code: str
    severity: str
    cause: str
    cure: str
    findings: Part[FindingRow]


def causes_of(findings: Sequence[Finding], *, code: str | None = None, number: int = 1) -> tuple[Cause, ...]:
    """Return some findings of each cause, the most severe first; with *code* those of one cause, part *number*."""
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        if code in (None, finding.code):
            by_code.setdefault(finding.code, []).append(finding)
    groups = sorted(by_code.items(), key=lambda group: (_rank(group[1]), group[0]))
    size = SHOWN if code is None else PAGE
    return tuple(_cause(name, found, number, size) for name, found in groups)


def rows_of(findings: Sequence[Finding]) -> tuple[FindingRow, ...]:
    """Return findings as rows."""
    return tuple(map(_row, findings))


def mending(finding: Finding) -> str:
    """Return the command that mends a finding, for a shell, with its object's names; "" if no command does."""
    cause = _code(finding.code)
    return "" if cause is None else cause.command_for(finding)


def _code(name: str) -> ClusterCode | None:
    return ClusterCode[name] if name in ClusterCode.__members__ else None


def _rank(findings: Sequence[Finding]) -> int:
    return min(SEVERITIES.index(finding.severity) for finding in findings)


def _cause(name: str, findings: Sequence[Finding], number: int, size: int) -> Cause:
    known, part = _code(name), part_of(findings, number, size)
    severity = SEVERITIES[_rank(findings)]
    return Cause(name, severity, known.cause if known else "", known.cure if known else "", part.of(rows_of(part.rows)))


def _row(finding: Finding) -> FindingRow:
    about = f"{finding.kind} {object_key(finding.namespace, finding.name)}".strip()
    line = "" if finding.line is None else f"line {finding.line}"
    cluster = finding.cluster and f"cluster {finding.cluster}"
    text = f"{finding.field}: {finding.message}" if finding.field else finding.message
    own = finding.kind == "Service" and not finding.cluster
    return FindingRow(
        key=hashlib.sha256(str(finding).encode(errors="replace")).hexdigest()[:KEY_DIGITS],
        about=about,
        service=(finding.namespace, finding.name) if own else None,
        where=", ".join(part for part in (cluster, finding.file, line) if part),
        text=text,
        expected=finding.expected,
        command=mending(finding),
    )
