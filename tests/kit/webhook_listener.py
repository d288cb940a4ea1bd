# SPDX-License-Identifier: Apache-2.0

"""The HTTPS listener of the webhook, in the process of a test."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio

from dnsserver.http import connections, webhook
from dnsserver.http.conversation import Limits
from dnsserver.metrics.webhook import WebhookCounts
from dnsserver.net.bounds import HeldOctets
from locator.cluster.certificates.serving import ServingCertificate
from locator.hints.admission import ReviewReply


class Listener(NamedTuple):
    """A running listener, which ends when ``ending`` is set; ``failures`` are the errors that were counted."""

    port: int
    counts: WebhookCounts
    ending: trio.Event
    failures: Counter[str]


@asynccontextmanager
async def listening(reply: Callable[[bytes], ReviewReply], serving: ServingCertificate) -> AsyncIterator[Listener]:
    """Answer reviews by *reply* at a port of this machine; when the block ends, end as the program does."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    listener = Listener(sock.getsockname()[1], WebhookCounts(), trio.Event(), Counter())
    app = webhook.application(reply, listener.counts)
    limits = Limits(HeldOctets(listener.failures), webhook.IDLE_SECONDS, webhook.GRACE_SECONDS)
    async with trio.open_nursery() as nursery:
        serve = partial(connections.serve, sock, app, listener.failures, limits)
        await nursery.start(partial(serve, tls=serving.context, until=listener.ending.wait))
        yield listener
        listener.ending.set()
