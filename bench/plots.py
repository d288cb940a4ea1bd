# SPDX-License-Identifier: Apache-2.0

"""The figures of docs/performance.md, as SVG that reads on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
GREY = "#808080"
COLOURS = ("#1f8a70", "#d1495b", "#3d7ebd", "#b8860b", "#8a63b0", "#808080", "#c46a2f", "#4aa3a3")
MISSING = "matplotlib is not installed, so there is no plot: pip install -r constraints.txt."


def draw_flat(panels: Mapping[str, Mapping[str, Mapping[int, float]]], folder: Path) -> str:
    """Draw what a remembered query costs by the number of Services and of clients; return where, or why not.

    *panels* has the lines of each panel, by what the numbers count.
    """
    plt = _matplotlib()
    if plt is None:
        return MISSING
    figure, axes = plt.subplots(1, len(panels), figsize=(8, 2.8), sharey=True)
    for panel, (name, series) in zip(axes, panels.items(), strict=True):
        for (title, costs), colour in zip(series.items(), COLOURS, strict=False):
            panel.plot(list(costs), list(costs.values()), marker="o", color=colour, label=title)
            _logarithmic(plt, panel.xaxis, costs)
        panel.set_xlabel(name)
        panel.legend(frameon=False, labelcolor=GREY, fontsize=8)
    most = max(cost for series in panels.values() for costs in series.values() for cost in costs.values())
    axes[0].set_ylim(0, 1.15 * most)
    axes[0].set_ylabel("CPU µs/query")
    return _saved(figure, folder / "performance-flat.svg")


def draw_offered(servers: Mapping[str, Mapping[int, float]], folder: Path) -> str:
    """Draw what a query costs each server by the queries offered in a second; return where, or why not."""
    plt = _matplotlib()
    if plt is None:
        return MISSING
    figure, panel = plt.subplots(figsize=(8, 3.6))
    for (name, costs), colour in zip(servers.items(), COLOURS, strict=False):
        width = 2.4 if name == "topodns" else 1.2
        panel.plot(list(costs), list(costs.values()), marker="o", markersize=3, label=name, color=colour, lw=width)
    _logarithmic(plt, panel.xaxis, next(iter(servers.values())))
    _logarithmic(plt, panel.yaxis)
    panel.set_xlabel("queries/s offered")
    panel.set_ylabel("CPU µs/query")
    panel.legend(frameon=False, labelcolor=GREY, fontsize=8)
    return _saved(figure, folder / "performance-offered.svg")


def _matplotlib() -> Any:
    """Return matplotlib's pyplot, or None where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
        **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GREY},
        **{"grid.alpha": 0.25, "grid.linewidth": 0.5, "font.size": 9, "svg.fonttype": "none"},
        "svg.hashsalt": "topodns",  # the same figures make the same file
    }
    return plt


def _logarithmic(plt: Any, axis: Any, ticks: Iterable[float] | None = None) -> None:
    """Make an axis logarithmic, with marks at *ticks*, or where they read well."""
    (axis.axes.set_xscale if axis.axis_name == "x" else axis.axes.set_yscale)("log")
    axis.set_major_locator(plt.FixedLocator(list(ticks)) if ticks is not None else plt.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,.0f}")
    axis.set_minor_locator(plt.NullLocator())


def _saved(figure: Any, path: Path) -> str:
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    return f"Plot: {path.name}."
