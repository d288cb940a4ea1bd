"""Writes a sample of all decisions to standard error, each as a line of JSON (--log-queries)."""

from __future__ import annotations

import random
import sys
from collections import deque

import trio

from dnsserver.answers.decision import Authority
from dnsserver.inspection.tap.lines import line_of
from dnsserver.inspection.tap.listeners import Sample
from dnsserver.inspection.tap.tap import Tap, Told
from locator.printable import json_text

SECOND = 1.0


async def write(tap: Tap, authority: Authority, limit: int) -> None:
    """Write at most *limit* decisions of each second until cancelled, and then those of the last one."""
    sample, drawn = Sample(limit, random.random), deque[Told]()
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
        for told in (*drawn, *sample.take()):
            _write(told, tap, authority)


def _write(told: Told, tap: Tap, authority: Authority) -> None:
    try:
        print(json_text(line_of(told, authority)), file=sys.stderr)
    except Exception as error:  # boundary: one line
        tap.failed(error)
