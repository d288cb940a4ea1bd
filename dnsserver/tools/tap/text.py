# SPDX-License-Identifier: Apache-2.0

"""A line about a Decision, for people."""

from __future__ import annotations

from dnsserver.tools.explain.explanation_text import COLOURS, PLAIN
from dnsserver.tools.tap.lines import TailLine
from locator.printable import printable_values

MAX_SHOWN = 4  # records


def as_text(line: TailLine, *, colour: bool = False) -> str:
    """Return when it was, who asked for what, how the endpoints were chosen and what was answered."""
    return f"{line['time'].partition('T')[2].rstrip('Z')}  {summary(printable_values(line), colour=colour)}\n"


def summary(line: TailLine, *, colour: bool = False) -> str:
    """Return all of that but the time. What others wrote is not made printable."""
    question, outcome = line["question"], line["outcome"]
    painted = f"{COLOURS[outcome]}{outcome}{PLAIN}" if colour else outcome
    parts = (_client(line), f"{question['name']} {question['type']}", painted + _decisive(line), _answer(line))
    return "  ".join(parts)


def _client(line: TailLine) -> str:
    client = line["client"]
    if not client["address"]:
        return f"unnamed by {line['source']}"
    return f"{client['address']} ({client['holder'] or client['located_by']})"


def _decisive(line: TailLine) -> str:
    """Return the key that decided and the client's value, "" if none did."""
    steps = line["steps"]
    if line["outcome"] != "nearest" or not steps or steps[-1]["value"] is None:
        return ""
    return f" {steps[-1]['key'].rpartition('/')[2]}={steps[-1]['value']}"


def _answer(line: TailLine) -> str:
    if line["rcode"] != "NOERROR":
        return line["rcode"]
    shown = [answer["data"] for answer in line["answers"]]
    more = [f"and {len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
    cut = ["truncated"] if line["truncated"] else []
    return ", ".join([*shown[:MAX_SHOWN], *more, *cut]) or "no records"
