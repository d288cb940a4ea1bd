"""What keeps a store like a cluster, whether that is files or a live one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from locator.model import Finding
from locator.snapshot import Snapshot

# Called with a snapshot whenever something visible changed, and with all that is wrong in the cluster.
Published = Callable[[Snapshot, Sequence[Finding]], None]


T = TypeVar("T")


def uncollected(work: Callable[[], T]) -> T:
    """Do some work, in a thread, with collection off: a collection would stop the answering, too."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return work()
    finally:
        if collecting:
            gc.enable()


class Health(NamedTuple):
    """Whether something is well enough to answer, and what there is to say of it."""

    ok: bool
    text: str = "ok"


class Source(Protocol):
    """A cluster that is followed: its snapshots go to whoever it was made with."""

    def health(self) -> Mapping[str, Health]:
        """Return what must be well before queries can be answered, by name."""

    def stale(self, after: float) -> bool:
        """Whether what is known may be old: contact with the cluster has been lost for *after* seconds."""

    def read_again(self) -> None:
        """Look at everything again, if there is anything that would not be noticed by itself."""

    async def run(self) -> None:
        """Follow for ever."""
