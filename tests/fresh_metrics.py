"""``topodns`` that does not keep its metrics for a second: ``python -m tests.fresh_metrics serve ...``.

For tests that look at them many times.
"""

from __future__ import annotations

import sys

from dnsserver.cli.main import main
from dnsserver.http import application

COMMAND = (sys.executable, "-m", "tests.fresh_metrics")

if __name__ == "__main__":
    application.METRICS_SECONDS = 0.0
    raise SystemExit(main())
