# SPDX-License-Identifier: Apache-2.0

"""Markdown tables and verdicts on targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text) + "\n"


def verdict(figure: float, bound: float | None, form: str, reserve: str = "") -> str:
    """Return the target and whether *figure* meets it, or "" without a bound; *form* begins with ≤ or ≥."""
    if bound is None:
        return ""
    met = figure <= bound if form.startswith("≤") else figure >= bound
    return f"{form.format(bound)}: {'met' if met else 'missed'}{reserve}"
