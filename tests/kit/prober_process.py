# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --health`` as a process, with short times: ``python -m tests.kit.prober_process``."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Sequence

from dnsserver.cli.main import main
from dnsserver.http import application
from locator.cluster.leading import probe, prober
from tests.kit.short_lease import shorten_lease
from tests.kit.topodns_process import Process
from tests.kit.waiting import PATIENCE

COMMAND = (sys.executable, "-m", "tests.kit.prober_process")

# Seconds. An address that changes is written within a second, and a leader that is killed is followed after 4.
INTERVAL, ANSWER, WAIT = 0.2, 0.5, 1.0


class Probing(Process):
    """A running ``topodns controller --health``. ``topodns_process.COMMAND`` must be ``COMMAND``."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(["controller", "--health", "--http=127.0.0.1:0", *arguments])
        self.http = self.wait_for(r"^listening http (\S+)$")[1]

    def until_leading(self) -> Probing:
        self.wait_for("became leader: this replica writes PodLocators, ServiceHealths and the", within=3 * PATIENCE)
        return self

    def metrics(self) -> dict[str, float]:
        """Return the samples by name and labels, as they are written."""
        lines = [line for line in self._lines_of("/metrics") if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def clusters(self) -> dict[str, str]:
        """Return what ``/readyz?verbose``, which must be 200, tells of each other cluster."""
        lines = [line for line in self._lines_of("/readyz?verbose") if line.startswith("[+]cluster ")]
        return {words[1]: " ".join(words[2:]) for words in map(str.split, lines)}

    def _lines_of(self, path: str) -> list[str]:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE) as response:
            return list(response.read().decode().splitlines())


if __name__ == "__main__":
    application.METRICS_SECONDS = 0.0
    prober.INTERVAL_SECONDS, probe.ANSWER_SECONDS, prober.WAIT_SECONDS = INTERVAL, ANSWER, WAIT
    shorten_lease()
    raise SystemExit(main())
