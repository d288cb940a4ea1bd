# SPDX-License-Identifier: Apache-2.0

"""The figure of docs/performance.md, as SVG that reads on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GREY = "#808080"
COLOURS = ("#1f8a70", "#d1495b", "#3d7ebd", "#b8860b", "#8a63b0", "#808080", "#c46a2f", "#4aa3a3")


def draw(servers: Mapping[str, Mapping[int, float]], folder: Path) -> str:
    """Draw what a query costs each server by the queries offered in a second; return where, or why not."""
    try:
        import matplotlib as mpl
    except ImportError:
        return "matplotlib is not installed, so there is no plot: pip install -r constraints.txt."
    mpl.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {
        **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
        **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GREY},
        **{"grid.alpha": 0.25, "grid.linewidth": 0.5, "font.size": 9, "svg.fonttype": "none"},
        "svg.hashsalt": "topodns",  # the same figures make the same file
    }
    figure, panel = plt.subplots(figsize=(8, 3.6))
    for (name, costs), colour in zip(servers.items(), COLOURS, strict=False):
        width = 2.4 if name == "topodns" else 1.2
        panel.plot(list(costs), list(costs.values()), marker="o", markersize=3, label=name, color=colour, lw=width)
    panel.set(xscale="log", yscale="log", xlabel="queries/s offered", ylabel="CPU µs/query")
    panel.xaxis.set_major_locator(plt.FixedLocator(list(next(iter(servers.values())))))
    panel.yaxis.set_major_locator(plt.LogLocator(subs=(1, 2, 5)))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_locator(plt.NullLocator())
    panel.legend(frameon=False, labelcolor=GREY, fontsize=8)
    figure.tight_layout()
    path = folder / "performance-offered.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    return f"Plot: {path.name}."
