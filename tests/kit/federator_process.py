# SPDX-License-Identifier: Apache-2.0

"""``topodns controller --federate`` as a process, with a short Lease: ``python -m tests.kit.federator_process``.

It imports nothing that topodns does not, so that its memory is that of topodns.
"""

from __future__ import annotations

from dnsserver.cli.main import main
from tests.kit.short_lease import shorten_lease

if __name__ == "__main__":
    shorten_lease()
    raise SystemExit(main())
