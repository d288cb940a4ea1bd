# SPDX-License-Identifier: Apache-2.0

"""What a server notes of its replies for those who look on: all of it, or nothing where no DNS is answered."""

from __future__ import annotations

import trio

from dnsserver.answers.decision import Authority
from dnsserver.metrics.counters import Counts
from dnsserver.tools.api.clients import ClientsByService
from dnsserver.tools.live.kept import KeptDecisions
from dnsserver.tools.tap.lines import line_of
from dnsserver.tools.tap.tap import Tap


class Live:
    """The ``counts`` of a server by Service, the decisions that are ``kept``, and the ``clients`` that asked.

    *name* is what the server calls itself, *since* the time when it began (RFC 3339).
    """

    def __init__(self, counts: Counts, tap: Tap, *, name: str, since: str) -> None:
        """Have all of that noted from now on."""
        counts.counts_services, counts.askers = True, set()
        self.counts, self.tap, self.name, self.since = counts, tap, name, since
        self.kept, self.clients = KeptDecisions(), ClientsByService(counts)
        tap.listen_for_outcomes(self.kept.pending)

    async def keep(self, authority: Authority) -> None:
        """Keep lines of replies since the last call; other tasks run after each of them."""
        for event in self.kept.due():
            client = event.answered.client
            self.kept.keep(line_of(event, authority), None if client is None else client.network)
            await trio.lowlevel.checkpoint()
