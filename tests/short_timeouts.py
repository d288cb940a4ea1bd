"""``topodns`` for which an API server is silent after seconds: ``python -m tests.short_timeouts serve ...``."""

from __future__ import annotations

from dnsserver.cli.main import main
from locator import backoff
from locator.cluster.reflector import Reflector

SILENCE = 2.0  # seconds
# Seconds between tries at most: where nothing happens all kinds are silent again and again, and with the usual pauses
# they would hardly ever be in contact at the same time.
PAUSE = 0.2

if __name__ == "__main__":
    defaults = Reflector.__init__.__kwdefaults__
    assert defaults is not None and "silence" in defaults
    defaults["silence"] = SILENCE
    backoff.CAP = PAUSE
    raise SystemExit(main())
