# SPDX-License-Identifier: Apache-2.0

"""``topodns`` that gives up a silent API server after seconds: ``python -m tests.kit.short_timeouts serve ...``."""

from __future__ import annotations

from dnsserver.cli.main import main
from locator import backoff
from locator.cluster.reflector import Reflector

SILENCE = 2.0  # seconds
# Seconds between tries, at most. In a quiet cluster each watch times out again and again; with the usual pauses, all
# kinds would hardly ever be in contact at the same time.
PAUSE = 0.2

if __name__ == "__main__":
    defaults = Reflector.__init__.__kwdefaults__
    assert defaults is not None and "silence" in defaults
    defaults["silence"] = SILENCE
    backoff.CAP = PAUSE
    raise SystemExit(main())
