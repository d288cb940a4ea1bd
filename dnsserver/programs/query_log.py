# SPDX-License-Identifier: Apache-2.0

"""Logs a sample of all decisions, each as a line of JSON (--log-queries)."""

from __future__ import annotations

import logging
import random
from collections import deque

import msgspec
import trio

from dnsserver.answers.decision import Authority
from dnsserver.tools.tap.lines import line_of, summary
from dnsserver.tools.tap.listeners import Sample
from dnsserver.tools.tap.tap import Tap, TapEvent
from locator.printable import json_text

log = logging.getLogger("topodns.queries")
log.setLevel(logging.INFO)  # whatever the level of the log is: somebody has asked for these lines

SECOND = 1.0


async def write(tap: Tap, authority: Authority, limit: int) -> None:
    """Write at most *limit* decisions of each second until cancelled, and then those of the last one."""
    sample, drawn = Sample(limit, random.random), deque[TapEvent]()
    tap.listen(sample)
    try:
        while True:
            await trio.sleep(SECOND)
            drawn.extend(sample.take())
            while drawn:
                _write(drawn.popleft(), tap, authority)
                await trio.lowlevel.checkpoint()  # queries wait for one line, not for all of a second
    finally:
        tap.leave(sample)
        for event in (*drawn, *sample.take()):
            _write(event, tap, authority)


def _write(event: TapEvent, tap: Tap, authority: Authority) -> None:
    try:
        line = line_of(event, authority)
        log.info("%s", summary(line), extra={"alone": json_text(line), "fields": msgspec.to_builtins(line)})
    except Exception as error:  # boundary: one line
        tap.failed(error)
