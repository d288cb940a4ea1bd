# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --federate`` as a process, with a short Lease: ``python -m tests.kit.federator_process``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dnsserver.cli.main import main
from dnsserver.http import application
from tests.kit.prober_process import Probing, shorten_lease
from tests.kit.waiting import PATIENCE

COMMAND = (sys.executable, "-m", "tests.kit.federator_process")


class Federating(Probing):
    """A running ``topodns controller --federate``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(arguments, flags=(), command=COMMAND)

    def until_leading(self) -> Federating:
        self.wait_for("became leader: ", within=3 * PATIENCE)
        return self


if __name__ == "__main__":
    application.METRICS_SECONDS = 0.0
    shorten_lease()
    raise SystemExit(main())
