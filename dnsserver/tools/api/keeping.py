# SPDX-License-Identifier: Apache-2.0

"""Makes the lines of replies that are kept: every few seconds, and when somebody asks for them."""

from __future__ import annotations

import trio

from dnsserver.answers.decision import Authority
from dnsserver.tools.live.kept import KeptDecisions
from dnsserver.tools.tap.lines import line_of


async def keep_due(kept: KeptDecisions, authority: Authority) -> None:
    """Keep lines of replies since the last call; other tasks run after each of them."""
    for event in kept.due():
        client = event.answered.client
        kept.keep(line_of(event, authority), None if client is None else client.network)
        await trio.lowlevel.checkpoint()
