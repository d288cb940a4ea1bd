# SPDX-License-Identifier: Apache-2.0

"""Requests of ``topodns doctor``: each has a deadline, and a failure is a value that says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
from msgspec.json import Decoder

from dnsserver.tools.doctor.objects import NotUnderstood, decoded
from dnsserver.tools.doctor.steps import Unread
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable

T = TypeVar("T")

READ_SECONDS = 30.0  # for one read as a whole: a list of 150,000 pods takes several
SILENCE = 10.0  # seconds without a byte after which a read is given up


async def read(work: Callable[[], T]) -> T | Unread:
    """Return ``work()``, run in a thread, or why it could not be read within ``READ_SECONDS``."""
    with trio.move_on_after(READ_SECONDS):
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except (NotUnderstood, Refused, Unreachable) as error:
            return Unread(str(error))
    return Unread(f"not read within {READ_SECONDS:g} s")


def get(client: ApiClient, path: str, decoder: Decoder[T], *, labels: str = "") -> T:
    """Return what is at a path of the API server. Raises NotUnderstood, Refused, Unreachable."""
    query = {"labelSelector": labels} if labels else {}
    return decoded(decoder, client.request("GET", path, query=query, timeout=SILENCE))
