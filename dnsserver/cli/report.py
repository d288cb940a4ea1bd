# SPDX-License-Identifier: Apache-2.0

"""Prints the findings of ``check`` and ``corefile --check`` as text, JSON or YAML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED
from dnsserver.cli.output import coloured, write, write_result
from dnsserver.text import PLAIN, RED, YELLOW, counted, painter, table
from locator.findings import documentation
from locator.model import ERROR, INFO, SEVERITIES, WARNING, Finding
from locator.printable import printable

_COLOURS = {ERROR: RED, WARNING: YELLOW, INFO: PLAIN}


def report(findings: Sequence[Finding], output: str, *, fail_on: str = ERROR, remarks: Sequence[str] = ()) -> int:
    """Print findings, the most severe first; return exit status 1 if one is as severe as *fail_on*, else 0.

    *output* is "text", "json" or "yaml". Text has *remarks*, too: lines between the findings and their numbers. After
    the findings, it says where each code is explained.
    """
    findings = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    if output == "text":
        *lines, numbers = as_lines(findings, colour=coloured())
        explained = explanations(finding.code for finding in findings)
        write("".join(f"{line}\n" for line in [*lines, *explained, *map(printable, remarks), numbers]))
    else:
        write_result([*map(as_json, findings)], output)
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return EXIT_FAILED if any(finding.severity in failing for finding in findings) else EXIT_DONE


def as_json(finding: Finding) -> dict[str, Any]:
    """Return a finding by its fields, and the address that explains its code; that of another cluster names it."""
    fields: dict[str, Any] = msgspec.to_builtins(finding)
    if not finding.cluster:
        del fields["cluster"]
    return {**fields, "documentation": documentation(finding.code)}


def explanations(codes: Iterable[str], page: str = "findings") -> list[str]:
    """Return lines that say where each of the *codes* is explained, nothing for none."""
    addresses = [(f"  {code}", documentation(code, page)) for code in dict.fromkeys(codes)]
    return ["What each code means:", *table(addresses)] if addresses else []


def as_lines(findings: Sequence[Finding], *, colour: bool) -> list[str]:
    """Return one line per finding, with ANSI colours if *colour*, and a last line with the count of each severity.

    The last line leaves out infos if there are none.
    """
    paint = painter(colour=colour)
    lines = [f"{paint(f'{finding.severity:<8}', _COLOURS[finding.severity])} {finding}" for finding in findings]
    numbers = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    counts = [counted(number, severity) for severity, number in numbers.items() if number or severity != INFO]
    return [*lines, ", ".join(counts)]
