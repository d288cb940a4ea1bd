# SPDX-License-Identifier: Apache-2.0

"""What must be the same in every process, although Python hashes texts with another seed in each."""

from __future__ import annotations

import os
import subprocess
import sys


def test_equal_settings_are_equal_in_every_process() -> None:
    """A set has another order after each restart."""
    program = (
        "from locator.labels import parse_selector; from locator.state.store import Store, StoreOptions; "
        "from locator.topology.scope import Scope; teams = parse_selector('team in (a, b, c, d, e, f)'); "
        "print(Store(StoreOptions(scope=Scope(frozenset('abcdef'), teams, teams))).settings)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1
