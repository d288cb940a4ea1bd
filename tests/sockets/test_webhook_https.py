# SPDX-License-Identifier: Apache-2.0

"""The HTTPS listener of the webhook: whoever sends whatever, reviews are answered, and everything is counted."""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from dnsserver.http import connections, webhook
from dnsserver.metrics.webhook import ALL_OUTCOMES, WebhookCounts
from dnsserver.net import bounds
from dnsserver.programs.webhook import metrics_of
from locator.cluster.certificates.secret import CertificateSecret
from locator.cluster.certificates.serving import ServingCertificate
from locator.cluster.leading.controller import Controller
from locator.cluster.leading.elector import LeaderElector, boot_seconds
from locator.control.lease import LeaderElection, Lease
from locator.hints.admission import ReviewReply, reply_to_untrusted
from locator.hints.rules import HintRules
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, node, service
from tests.kit.certificates import issued
from tests.kit.hint_worlds import HINTED, review, rules_of
from tests.kit.waiting import PATIENCE, until_in_trio
from tests.kit.webhook_listener import Listener, listening

SLICE = endpoint_slice("web", 0, [endpoint("10.0.0.1", nodeName="a1", zone="a")], labels=HINTED)
RULES = rules_of([node("a1", {ZONE: "a"}), service("web", cluster_ips=("10.96.0.9",))])
REVIEW = review(SLICE)
AUTHORITY, PAIR = issued(["127.0.0.1"], time.time(), 86400.0)
TIMES = ((webhook, "BODY_SECONDS"), (webhook, "IDLE_SECONDS"), (connections, "HANDSHAKE_SECONDS"))
LENGTH = b"Content-Length: %d\r\n"


class Clients:
    """Clients of a running listener."""

    def __init__(self, listener: Listener) -> None:
        self.port, self.counts, self.ending = listener.port, listener.counts, listener.ending

    async def plain(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def tls(
        self, context: ssl.SSLContext | None = None, plain: trio.SocketStream | None = None
    ) -> trio.SSLStream[trio.SocketStream]:
        context = context or ssl.create_default_context(cadata=AUTHORITY.decode())
        plain = plain or await self.plain()
        stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
        await stream.do_handshake()
        return stream

    async def said(self, sent: bytes, *, tls: bool = True) -> bytes:
        """Return all that comes back, until the listener closes the connection."""
        stream: trio.abc.Stream = await self.tls() if tls else await self.plain()
        received = b""
        try:
            await stream.send_all(sent)
            async for part in stream:
                received += part
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)
        return received

    async def reviewed(self) -> bool:
        """Whether a review is answered."""
        return b'"patchType":"JSONPatch"' in await self.said(request(REVIEW, b"Connection: close\r\n"))


async def response(stream: trio.SSLStream[trio.SocketStream]) -> bytes:
    """Return one response with its body, which says its length."""
    received = b""
    while True:
        received += await stream.receive_some()
        head, blank, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if blank and length and len(body) >= int(length[1]):
            return received


def request(body: bytes, headers: bytes = b"", *, start: bytes = b"POST /mutate/endpointslices HTTP/1.1") -> bytes:
    return start + b"\r\nHost: x\r\n" + headers + LENGTH % len(body) + b"\r\n" + body


def with_clients(
    test: Callable[[Clients], Awaitable[None]], *, reply: Callable[[bytes], ReviewReply] | None = None
) -> WebhookCounts:
    """Run *test* with clients of a listener; return what that has counted."""
    serving = ServingCertificate()
    serving.use(PAIR)

    async def main() -> Listener:
        with trio.fail_after(PATIENCE):
            async with listening(reply or partial(reply_to_untrusted, rules=RULES), serving) as listener:
                await test(Clients(listener))
        return listener

    listener = trio.run(main)
    assert not listener.failures["http"]
    return listener.counts


def test_a_review_is_answered() -> None:
    """And several over one connection."""

    async def test(clients: Clients) -> None:
        stream = await clients.tls()
        for _ in range(3):
            await stream.send_all(request(REVIEW))
            answer = await response(stream)
            assert answer.startswith(b"HTTP/1.1 200") and b"application/json" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["response"]["allowed"] is True
        await trio.aclose_forcefully(stream)

    counts = with_clients(test)
    assert counts.requests["patched"] == sum(counts.requests.values()) == sum(counts.durations.numbers) == 3


@pytest.mark.parametrize(
    ("sent", "tls", "status", "outcome"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False, b"", "", id="plain-http"),
        pytest.param(b"\x16\x03\x01\xff\xff" + bytes(500), False, b"", "", id="no-handshake"),
        pytest.param(request(b"", b"Connection: close\r\n", start=b"GET / HTTP/1.1"), True, b"404", "", id="path"),
        pytest.param(request(b"", b"Connection: close\r\n"), True, b"400", "unreadable", id="empty"),
        pytest.param(request(b"no JSON", b"Connection: close\r\n"), True, b"400", "unreadable", id="no-review"),
        pytest.param(request(b"x" * ((8 << 20) + 1)), True, None, "too_large", id="too-large"),
        pytest.param(request(REVIEW)[:-10], True, b"408", "slow", id="slow-body"),
        pytest.param(b"", False, b"", "", id="slow-handshake"),
    ],
)  # fmt: skip
def test_nothing_harms(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, tls: bool, status: bytes | None, outcome: str
) -> None:
    """The connection ends with the right status, and reviews are answered before, meanwhile and after.

    Without *status*, the client may be cut off before it has read one. What is no HTTP is tried in
    ``test_http_connections``.
    """
    for module, name in TIMES if outcome != "too_large" else ():  # on a busy machine, so large a body takes longer
        monkeypatch.setattr(module, name, 0.5)

    async def test(clients: Clients) -> None:
        received: list[bytes] = []

        async def send() -> None:
            received.append(await clients.said(sent, tls=tls))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            assert await clients.reviewed()
        assert await clients.reviewed()
        if status is not None:
            assert received[0].startswith(b"HTTP/1.1 " + status) if status else b"HTTP" not in received[0]
        if outcome:
            await until_in_trio(lambda: clients.counts.requests[outcome])

    counts = with_clients(test)
    assert {name: number for name, number in counts.requests.items() if number} == {
        "patched": 2,
        **({outcome: 1} if outcome else {}),
    }


def test_a_client_that_leaves() -> None:
    """In the middle of its request, or before the response."""

    async def test(clients: Clients) -> None:
        for sent in (request(REVIEW)[:-10], request(REVIEW), b""):
            stream = await clients.tls()
            await stream.send_all(sent or b"P")
            await trio.aclose_forcefully(stream)
        await until_in_trio(lambda: sum(clients.counts.requests.values()) >= 2)
        assert await clients.reviewed()

    counts = with_clients(test)
    assert counts.requests["slow"] == 1


def test_an_error_of_our_own() -> None:
    """The API server is told, and goes on by its failure policy."""

    def broken(body: bytes) -> ReviewReply:
        raise ZeroDivisionError

    async def test(clients: Clients) -> None:
        assert (await clients.said(request(REVIEW))).startswith(b"HTTP/1.1 500")

    assert with_clients(test, reply=broken).requests["failed"] == 1


def test_many_large_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all connections hold is bounded; the memory is free again when they have ended."""
    monkeypatch.setattr(bounds, "MAX_HELD", 4 << 20)
    large = request(b"x" * (3 << 20))

    async def test(clients: Clients) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(clients.said, large[:-1])
            await until_in_trio(lambda: clients.counts.requests["busy"] == 1)
            nursery.cancel_scope.cancel()
        await until_in_trio(lambda: clients.counts.requests["slow"] == 1)
        assert (await clients.said(large.replace(b"Host: x", b"Host: x\r\nConnection: close"))).startswith(
            b"HTTP/1.1 400"
        )
        assert await clients.reviewed()

    with_clients(test)


def test_handshakes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound, the one that began first ends, so nobody keeps others out by handshakes that do not end."""
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(connections, "QUEUE_SECONDS", 0.1)
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", PATIENCE)

    async def test(clients: Clients) -> None:
        begun = [await clients.plain() for _ in range(9)]
        assert await begun[0].receive_some() == b""
        assert await clients.reviewed()
        for stream in begun:
            await stream.aclose()

    with_clients(test)


def test_many_handshakes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """API servers begin one for each review. Beyond the bound they wait for each other, and none of them fails."""
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(connections, "QUEUE_SECONDS", PATIENCE)

    async def test(clients: Clients) -> None:
        begun = [await clients.plain() for _ in range(20)]
        await trio.testing.wait_all_tasks_blocked(0.05)

        async def review(plain: trio.SocketStream) -> None:
            stream = await clients.tls(plain=plain)
            await stream.send_all(request(REVIEW))
            assert (await response(stream)).startswith(b"HTTP/1.1 200")
            await trio.aclose_forcefully(stream)

        async with trio.open_nursery() as nursery:
            for plain in begun:
                nursery.start_soon(review, plain)

    assert with_clients(test).requests["patched"] == 20


def test_who_waits_for_a_handshake_ends_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when somebody who has just come was faster."""
    monkeypatch.setattr(connections, "MAX_HANDSHAKES", 8)
    monkeypatch.setattr(connections, "QUEUE_SECONDS", PATIENCE)

    async def test(clients: Clients) -> None:
        begun = [await clients.plain() for _ in range(9)]  # one waits
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.01)
            begun.pop(4).socket.close()  # the listener notices that, and the next client, at the same time
            came = socket.create_connection(("127.0.0.1", clients.port))
            begun.append(trio.SocketStream(trio.socket.from_stdlib_socket(came)))
        async with trio.open_nursery() as nursery:
            for plain in begun:
                nursery.start_soon(clients.tls, None, plain)
        for plain in begun:
            await trio.aclose_forcefully(plain)

    with_clients(test)


def test_tls_is_not_renegotiated() -> None:
    """A client could let the server compute without end."""
    assert ServingCertificate().context.options & ssl.OP_NO_RENEGOTIATION


def test_http2_is_not_offered() -> None:
    """A client that would speak it gets HTTP/1.1, or nothing agreed upon."""

    async def test(clients: Clients) -> None:
        for offered, agreed in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None)):
            context = ssl.create_default_context(cadata=AUTHORITY.decode())
            context.set_alpn_protocols(offered)
            stream = await clients.tls(context)
            assert stream.selected_alpn_protocol() == agreed
            await trio.aclose_forcefully(stream)

    with_clients(test)


def test_reviews_that_have_begun_are_answered_at_the_end() -> None:
    """Idle connections are closed at once."""

    async def test(clients: Clients) -> None:
        idle, begun = await clients.tls(), await clients.tls()
        await idle.send_all(request(REVIEW))
        await response(idle)
        whole = request(REVIEW)
        await begun.send_all(whole[:-10])
        await trio.testing.wait_all_tasks_blocked(0.05)
        clients.ending.set()
        assert await idle.receive_some() == b""
        await begun.send_all(whole[-10:])
        assert (await response(begun)).startswith(b"HTTP/1.1 200")
        for stream in (idle, begun):
            await trio.aclose_forcefully(stream)

    assert with_clients(test).requests["patched"] == 2


def test_metrics() -> None:
    """Every outcome and result stands at 0 from the start."""
    client: Any = None  # nothing is sent
    election = LeaderElection("me", "ns", "lease")
    election.observed(Lease("1", holder="me"), began=boot_seconds(), now=boot_seconds(), written=True)
    elector = LeaderElector(client, election, writes="")
    controller = Controller(client, elector, HintRules(), field_manager="tests")
    controller.writer.writes["patch", "done"] = 2
    for key in ("ns/a", "ns/b", "ns/c"):
        controller.reconciler.queue.add(key)
    serving = ServingCertificate()
    certificate = CertificateSecret(client, ("ns", "secret"), "configuration", serving)
    serving.ends, certificate.ca_ends = 7.0, 8.0
    counts = WebhookCounts()
    counts.note("patched", 0.003)
    registry = metrics_of(elector, controller, counts, serving, certificate).registry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    for outcome in ALL_OUTCOMES:
        assert value("topodns_webhook_requests_total", outcome=outcome) == float(outcome == "patched")
    for result in ("done", "conflict", "refused", "unreachable", "failed", "late"):
        assert value("topodns_webhook_slices_rewritten_total", result=result) == 2.0 * (result == "done")
    assert value("topodns_webhook_request_duration_seconds_bucket", le="0.0025") == 0.0
    assert value("topodns_loop_delay_seconds_count") == 0.0
    assert value("topodns_webhook_request_duration_seconds_bucket", le="0.005") == 1.0
    assert value("topodns_webhook_certificate_expiry_timestamp_seconds") == 7.0
    assert value("topodns_webhook_ca_expiry_timestamp_seconds") == 8.0
    assert value("topodns_objects", kind="Node") == 0.0
    assert (value("topodns_leading", lease="ns/lease"), value("topodns_webhook_slices_waiting")) == (1.0, 3.0)
