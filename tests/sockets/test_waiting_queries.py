# SPDX-License-Identifier: Apache-2.0

"""Queries that wait for an upstream: they hold up nobody, and each gets its reply, even if the server ends."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.flags
import dns.message
import dns.rcode
import pytest
import trio
import trio.testing

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.names import labels_of
from dnsserver.net import udp
from dnsserver.net.upstream import Upstream
from dnsserver.programs import from_settings
from dnsserver.responder.responder import Responder
from dnsserver.tools.explain.explain import explain
from dnsserver.tools.explain.explanation import Explanation
from locator.ip import parse_network
from tests.kit import topodns_process
from tests.kit.dns_queries import query
from tests.kit.elsewhere import (
    HERE,
    Behaviour,
    Elsewhere,
    Message,
    after,
    asking,
    says,
    silent,
)
from tests.kit.in_memory import responder_of, settings_of, snapshot_of
from tests.kit.small_cluster import OUT, OUT_2, WEB, WITH_ALIASES
from tests.kit.this_machine import has_ipv6, lacking
from tests.kit.topodns_process import serving
from tests.kit.waiting import PATIENCE

SERVFAIL = dns.rcode.SERVFAIL
A, AAAA = 1, 28


Client = trio.socket.SocketType


class Listening(NamedTuple):
    """A UDP server in this process, and its parts."""

    port: int
    upstream: Elsewhere
    counts: Counts
    responder: Responder
    scope: trio.CancelScope

    @asynccontextmanager
    async def client(self, to: str = "127.0.0.1") -> AsyncIterator[Client]:
        """Return a connected socket, which accepts replies from the asked address alone."""
        with trio.socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            await sock.connect((to, self.port))
            yield sock


def waiting(behaviour: Behaviour, *, at: str = "127.0.0.1") -> Callable[[Callable[..., Awaitable[None]]], None]:
    """Run a test with a UDP server whose upstream behaves so, and a client of it, in virtual time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> None:
        @asking(behaviour)
        async def _(elsewhere: Upstream, its_server: Elsewhere, counts: Counts) -> None:
            responder = responder_of(WITH_ALIASES, {"upstream": "127.0.0.1"}, counts=counts)
            with socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET, socket.SOCK_DGRAM) as sock:
                udp.prepare(sock, wildcard=at in ("0.0.0.0", "::"))
                sock.bind((at, 0))
                async with trio.open_nursery() as nursery:
                    await nursery.start(udp.serve, sock, responder, counts, elsewhere)
                    server = Listening(sock.getsockname()[1], its_server, counts, responder, nursery.cancel_scope)
                    async with server.client("::1" if ":" in at else "127.0.0.1") as client:
                        await test(server, client)
                    nursery.cancel_scope.cancel()

    return decorate


def rows(reply: bytes) -> list[str]:
    return [row for rrset in dns.message.from_wire(reply).answer for row in rrset.to_text().splitlines()]


CNAME_ROW, ADDRESS_ROW = f"{OUT}. 5 IN CNAME example.org.", "example.org. 60 IN A 192.0.2.1"


def test_others_are_answered_while_one_waits() -> None:
    """Over UDP, a query that waits does not delay others, before or after it in a batch."""

    @waiting(after(0.5, says(HERE)))
    async def _(server: Listening, client: Client) -> None:
        began = trio.current_time()
        for number, name in enumerate((WEB, OUT, WEB, OUT, WEB)):
            await client.send(query(name, number=number))
        first = {(await client.recv(2048))[1] for _ in range(3)}
        assert first == {0, 2, 4} and trio.current_time() == began
        late = [await client.recv(2048) for _ in range(2)]
        assert {reply[1] for reply in late} == {1, 3} and trio.current_time() - began == pytest.approx(0.5, abs=0.05)
        assert [rows(reply) for reply in late] == [[CNAME_ROW, ADDRESS_ROW]] * 2
        await trio.testing.wait_all_tasks_blocked()
        assert sum(server.counts.durations.numbers) == 5
        await client.send(query(OUT, number=5))
        assert rows(await client.recv(2048)) == [CNAME_ROW, ADDRESS_ROW]
        assert server.counts.upstream == {"answered": 2, "remembered": 1} and sum(server.counts.durations.numbers) == 6


CHAIN_OUT_AGAIN = {  # from OUT
    "example.org.": "example.org. 60 IN CNAME a.example.org.",
    "a.example.org.": f"a.example.org. 60 IN CNAME {OUT_2}.",
    "example.net.": "example.net. 60 IN A 192.0.2.1",
}


async def slow_chain(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
    row = CHAIN_OUT_AGAIN[asked.question[0].name.to_text()]
    return await after(0.8, says(row, soa=None))(server, asked, proto)


def test_all_look_ups_of_a_query_take_less_than_two_seconds() -> None:
    """A chain that leads out again: the last look-up has the rest of the time, and no failure is remembered of it."""

    @waiting(slow_chain)
    async def _(server: Listening, client: Client) -> None:
        taken = []
        for number in range(2):
            began = trio.current_time()
            await client.send(query(OUT, number=number))
            reply = dns.message.from_wire(await client.recv(2048))
            taken.append((reply.rcode(), trio.current_time() - began))
        assert taken == [(SERVFAIL, pytest.approx(1.8, abs=0.05)), (0, pytest.approx(0.8, abs=0.05))]
        assert [rrset[0].to_text() for rrset in reply.answer] == [
            "example.org.", "a.example.org.", f"{OUT_2}.", "example.net.", "192.0.2.1",
        ]  # fmt: skip
        assert server.counts.upstream == {"answered": 3, "failed": 1, "remembered": 2}


def test_those_of_an_explanation_take_as_long() -> None:
    """It says what the server would answer, however long it waits for its turn."""
    snapshot, authority = snapshot_of(WITH_ALIASES), from_settings.authority_of(settings_of({"upstream": "127.0.0.1"}))
    turn = 2.0  # seconds

    @asking(slow_chain)
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        async def compute(outside: Callable[[str], UpstreamAnswer | None]) -> Explanation:
            await trio.sleep(turn)
            return explain(labels_of(OUT), A, parse_network("127.1.0.1/32"), snapshot, authority, outside=outside)

        taken = []
        for _ in range(2):
            began = trio.current_time()
            explained = await elsewhere.find_all(compute, A)
            taken.append((explained.rcode, trio.current_time() - began - 4 * turn))
        assert taken == [("SERVFAIL", pytest.approx(1.8, abs=0.05)), ("NOERROR", pytest.approx(0.8, abs=0.05))]
        assert explained.answers[-1].data == "192.0.2.1"
        assert counts.upstream == {"answered": 3, "failed": 1, "remembered": 2}


@pytest.mark.parametrize("to", ["::1", "127.0.0.5"])
def test_a_late_reply_leaves_from_the_address_that_was_asked(to: str) -> None:
    """On a wildcard listener of both families, with other queries in between."""
    if not has_ipv6():
        lacking("there is no IPv6 here")

    @waiting(after(0.5, says(HERE)), at="::")
    async def _(server: Listening, other: Client) -> None:
        async with server.client(to) as client:
            await client.send(query(OUT, number=1))
            await trio.testing.wait_all_tasks_blocked(0.02)
            for number in (2, 3):
                await other.send(query(WEB, number=number))
                assert (await other.recv(2048))[1] == number
            reply = await client.recv(2048)
            assert reply[1] == 1 and rows(reply) == [CNAME_ROW, ADDRESS_ROW]


def test_each_late_reply_goes_to_whoever_asked() -> None:
    """Two hundred clients wait, in batches with others that do not, each for a reply from the address that it asked."""

    @waiting(after(0.5, says(HERE)), at="0.0.0.0")
    async def _(server: Listening, _: Client) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(server.client(f"127.0.0.{n + 1}")) for n in range(200)]
            for number, client in enumerate(clients):
                await client.send(query(OUT if number % 3 else WEB, number=number))
            for number, client in enumerate(clients):
                assert int.from_bytes((await client.recv(2048))[:2]) == number
            assert len(server.upstream.asked) == 1


@pytest.mark.parametrize("meanwhile", ["another query", "another alias"])
def test_when_the_server_ends_those_that_wait_are_told(meanwhile: str) -> None:
    """Queries that wait, or have just arrived, get SERVFAIL at once, and ask another server.

    So do those whose alias has changed: what is looked up in the end is not what the query waited for.
    """

    waits = [1, 2] if meanwhile == "another query" else [1]

    @waiting(silent)
    async def _(server: Listening, client: Client) -> None:
        await client.send(query(OUT, number=1))
        await trio.testing.wait_all_tasks_blocked(0.02)
        if meanwhile == "another query":
            await client.send(query(OUT_2, number=2))
        else:
            server.responder.publish(snapshot_of(WITH_ALIASES.replace("example.org", "example.edu")))
        server.scope.cancel()
        with trio.fail_after(10_000, shield=True):
            replies = [dns.message.from_wire(await client.recv(2048)) for _ in waits]
        found = sorted((reply.id, reply.rcode(), reply.answer) for reply in replies)
        assert found == [(number, SERVFAIL, []) for number in waits]


def test_a_fault_in_a_late_reply_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a late reply is counted and logged, and costs that reply alone."""

    @waiting(after(0.5, says(HERE)))
    async def _(server: Listening, client: Client) -> None:

        def broken(*_: object) -> bytes:
            raise RuntimeError("a fault")

        kept, server.responder.finish = server.responder.finish, broken  # type: ignore[method-assign]
        await client.send(query(OUT, number=1))
        await trio.sleep(2)
        await client.send(query(OUT, number=2))  # remembered by now
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert server.counts.failures == {"packet": 2}
        server.responder.finish = kept  # type: ignore[method-assign]
        await client.send(query(OUT, number=3))
        assert (await client.recv(2048))[1] == 3

    assert "a fault" in caplog.text


# A real process


@contextmanager
def in_a_thread(behaviour: Behaviour) -> Iterator[str]:
    """Run an upstream in real time; yield its address."""
    begun, where, scopes = threading.Event(), [], []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            where.append(await nursery.start(Elsewhere(behaviour).serve))
            scopes.append((trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            begun.set()

    thread = threading.Thread(target=trio.run, args=[main])
    thread.start()
    assert begun.wait(PATIENCE)
    try:
        yield str(where[0])
    finally:
        token, scope = scopes[0]
        token.run_sync_soon(scope.cancel)
        thread.join(PATIENCE)


def test_a_target_elsewhere_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--upstream: the reply has the CNAME and the target's records, as clients of a stub zone do not look it up.

    Nothing looks like the whole answer if the look-up fails, others do not wait for it, and after SIGTERM a query in
    flight is answered.
    """
    # It waits longer for the upstream, whose answer may take a while on a busy machine, but less than the 5 s for which
    # open connections are served after SIGTERM.
    code = "from dnsserver.cli.main import main; from dnsserver.net import upstream; "
    code += "upstream.LOOKUP_SECONDS = 3.0; raise SystemExit(main())"
    monkeypatch.setattr(topodns_process, "SERVER_COMMAND", (sys.executable, "-c", code))
    asked = threading.Event()

    async def one_of_two(server: Elsewhere, message: Message, proto: str) -> list[bytes]:
        if message.question[0].name.to_text() == "example.net.":
            asked.set()
            return []
        chain = ("example.org. 50 IN CNAME a.example.net.", "a.example.net. 30 IN A 192.0.2.3")
        return await says(*chain)(server, message, proto)

    expected = [(f"{OUT}.", "example.org."), ("example.org.", "a.example.net."), ("a.example.net.", "192.0.2.3")]
    with in_a_thread(one_of_two) as where, serving(tmp_path, WITH_ALIASES, flags={"upstream": where}) as server:
        for by_tcp in (False, True) * 2:
            reply = server.ask(dns.message.make_query(OUT, "A", flags=0), tcp=by_tcp)
            assert [(row.split()[0], row.split()[-1]) for row in rows(reply.to_wire())] == expected
            assert reply.rcode() == 0 and reply.flags & dns.flags.AA
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect((server.host, server.port))
            server.send(signal.SIGSTOP)  # until both are there: whatever holds us up, they are taken together
            sock.send(query(OUT_2, number=1))
            sock.send(query(WEB, number=2))
            server.send(signal.SIGCONT)
            first, second = (dns.message.from_wire(sock.recv(2048)) for _ in range(2))
        assert first.id == 2 and len(first.answer[0]) == 2
        assert (second.id, second.rcode(), second.answer, second.flags & dns.flags.AA) == (1, SERVFAIL, [], 0)
        asked.clear()
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(server.ask, dns.message.make_query(OUT_2, "AAAA"), tcp=True)
            assert asked.wait(PATIENCE)
            server.process.terminate()
            assert pending.result().rcode() == SERVFAIL and not pending.result().answer
        assert server.wait() == 0
