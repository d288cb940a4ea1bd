# SPDX-License-Identifier: Apache-2.0

"""The part ``balancing``: what a plan costs, how plans follow a changing cluster, and what a server pays for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.balancing import churning, following, planning
from bench.sending import Pace

MAX_OVERLOAD = "1.5"


class Measured(NamedTuple):
    """The figures of all tables."""

    costs: Sequence[planning.Planned]
    followed: following.Followed
    rows: Sequence[churning.Row]


def measure(folder: Path, pace: Pace) -> Measured:
    """Plan alone, plan in a store, and serve. Raises CannotStart and BadReply."""
    rows = churning.measure(folder, pace, MAX_OVERLOAD)  # first: nothing must make this process large before it
    return Measured([*planning.measure()], following.measure(MAX_OVERLOAD), rows)


def report(measured: Measured) -> str:
    """Return the tables."""
    tables = (
        churning.report(measured.rows),
        following.report(measured.followed),
        planning.report(measured.costs),
    )
    return "\n".join(tables)
