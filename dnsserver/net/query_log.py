"""Writes a sample of all decisions to standard error, each as a line of JSON (--log-queries)."""

from __future__ import annotations

import random
import sys

import msgspec
import trio

from dnsserver.answers.decision import Authority
from dnsserver.inspection.tap.lines import line_of
from dnsserver.inspection.tap.listeners import Sample
from dnsserver.inspection.tap.tap import Tap

SECOND = 1.0


async def write(tap: Tap, authority: Authority, limit: int) -> None:
    """Write at most *limit* decisions of each second until cancelled, and then those of the last one."""
    sample = Sample(limit, random.random)
    tap.listen(sample)
    try:
        while True:
            await trio.sleep(SECOND)
            _write(sample, tap, authority)
    finally:
        tap.leave(sample)
        _write(sample, tap, authority)


def _write(sample: Sample, tap: Tap, authority: Authority) -> None:
    for told in sample.take():
        try:
            print(msgspec.json.encode(line_of(told, authority)).decode(), file=sys.stderr)
        except Exception as error:  # boundary: one line
            tap.failed(error)
