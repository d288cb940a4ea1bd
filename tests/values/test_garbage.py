# SPDX-License-Identifier: Apache-2.0

"""Garbage does not pile up in a server that runs for months."""

from __future__ import annotations

import gc
import weakref

import trio
import trio.testing

from dnsserver.programs import server


class Ring:
    """Garbage that only a collection frees, as soon as nobody refers to it."""

    def __init__(self) -> None:
        self.ring = self


def test_old_garbage_is_collected_by_the_clock() -> None:
    """Old objects are left out of the collections that answers start, and of those at a publication."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.collect_garbage)
            ring = Ring()
            gc.collect()  # what is alive counts as old from here on
            gone = weakref.ref(ring)
            del ring
            gc.collect(1)
            assert gone() is not None
            await trio.sleep(server.COLLECT_SECONDS + 1)
            assert gone() is None
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
