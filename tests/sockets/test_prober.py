# SPDX-License-Identifier: Apache-2.0

"""Probes of load balancers: what one finds on a real socket, and when each address is probed, in virtual time."""

from __future__ import annotations

import errno
import itertools
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing

from locator.cluster.leading import probe, prober
from locator.cluster.leading.prober import FAILURE, SUCCESS, UNKNOWN, Prober
from locator.health.targets import ProbeTarget
from tests.kit.probed_servers import Handler, hangs, listening, request_of, says, status
from tests.kit.waiting import PATIENCE

SHORT = 0.3  # seconds, in the place of ANSWER_SECONDS where a test waits for their end
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


async def closes(stream: trio.abc.Stream) -> None:
    pass


async def resets(stream: trio.abc.Stream) -> None:
    assert isinstance(stream, trio.SocketStream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    stream.socket.close()


def repeats(part: bytes) -> Handler:
    async def handler(stream: trio.abc.Stream) -> None:
        while True:
            await stream.send_all(part * 1000)

    return handler


def probed(target: ProbeTarget) -> str | None:
    async def main() -> str | None:
        return await probe.failure_of(target, probe.Lookups())

    return trio.run(main)


OK = b"HTTP/1.1 200 OK\r\n"
SILENT = f"no answer within {SHORT} s"
CLOSED = "the connection was closed without an answer"
ANSWERS: Sequence[tuple[str, Handler, str | None, str]] = [
    ("tcp-accepts", hangs, None, ""),
    ("tcp-closes", closes, None, ""),
    ("tcp-resets", resets, None, ""),
    *((f"http-{code}", status(f"{code} x"), "/", "") for code in (200, 301, 399)),
    *((f"http-{code}", status(f"{code} x"), "/", f"HTTP status {code}") for code in (400, 503, 999)),
    ("no-reason", status("200"), "/", ""),
    ("http-1.0", says(b"HTTP/1.0 200 OK\r\n\r\n"), "/", ""),
    ("byte-by-byte", says(*(bytes([octet]) for octet in OK + b"\r\n")), "/", ""),
    ("continues-first", says(b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\n"), "/", ""),
    ("endless-body", says(OK + b"\r\n", then=repeats(b"x")), "/", ""),
    ("closes", says(), "/", CLOSED),
    ("closes-in-the-header", says(OK + b"A: b\r\n"), "/", CLOSED),
    ("resets", says(then=resets), "/", "Connection reset by peer"),
    ("silent-after-the-request", says(then=hangs), "/", SILENT),
    ("silent-in-the-status", says(b"HTTP/1.1 20", then=hangs), "/", SILENT),
    ("garbage", says(b"\x00\xff" * 100 + b"\r\n\r\n"), "/", "the answer is no HTTP"),
    ("upgrades", says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "/", "the answer is no HTTP"),
    ("endless-header", says(OK, then=repeats(b"X-A: b\r\n")), "/", "the answer is no HTTP"),
    ("endless-continues", says(then=repeats(b"HTTP/1.1 100 Continue\r\n\r\n")), "/", "no answer within 64 KiB"),
]


@pytest.mark.parametrize(("handler", "path", "expected"), [pytest.param(*row, id=name) for name, *row in ANSWERS])
def test_what_a_probe_finds(monkeypatch: pytest.MonkeyPatch, handler: Handler, path: str | None, expected: str) -> None:
    """A TCP connection is enough, or HTTP must answer with 200 to 399; whatever else comes, comes to an end."""
    if expected == SILENT:
        monkeypatch.setattr(probe, "ANSWER_SECONDS", SHORT)

    async def main() -> str | None:
        async with listening(handler) as port:
            return await probe.failure_of(ProbeTarget("shop/web", "127.0.0.1", port, path), probe.Lookups())

    assert trio.run(main) == expected


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        assert probed(ProbeTarget("shop/web", "127.0.0.1", bound.getsockname()[1])) == "Connection refused"


def test_a_connection_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's queue is full, so it answers no further connection."""
    monkeypatch.setattr(probe, "ANSWER_SECONDS", SHORT)
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert probed(ProbeTarget("shop/web", "127.0.0.1", full.getsockname()[1])) == SILENT


@pytest.mark.parametrize(
    ("address", "host"), [("127.0.0.1", b"127.0.0.1"), ("::1", b"[::1]"), ("localhost", b"localhost")]
)
def test_what_is_asked(address: str, host: bytes) -> None:
    """A GET of the path as it is written, with the address and the port as Host."""
    requests, ports = [], []

    async def handler(stream: trio.abc.Stream) -> None:
        requests.append(await request_of(stream))
        await stream.send_all(OK + b"\r\n")

    async def main() -> str | None:
        async with listening(handler, "::1" if address == "::1" else "127.0.0.1") as port:
            ports.append(b"%d" % port)
            return await probe.failure_of(ProbeTarget("a/b", address, port, "/healthz?deep=1"), probe.Lookups())

    assert trio.run(main) == ""
    first, *headers = requests[0].split(b"\r\n")
    assert first == b"GET /healthz?deep=1 HTTP/1.1"
    assert {line.lower() for line in headers} >= {b"host: " + host + b":" + ports[0], b"connection: close"}


def resolves_to(monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str] | None) -> None:
    """Let every host name have these IPv4 addresses, or let it not exist."""

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if addresses is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


NOT_PROBED = "the host name has no address that is probed"


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [(["127.0.0.1", "127.0.0.2", "127.0.0.3"], ""), (["127.0.0.1", "127.0.0.3"], "Connection refused"),
     ([], NOT_PROBED), (["169.254.169.254", "fe80::1"], NOT_PROBED), (None, "the host name cannot be resolved")],
    ids=["one-of-them-answers", "none-answers", "no-address", "metadata-service", "no-such-name"],
)  # fmt: skip
def test_a_host_name_with_several_addresses(
    monkeypatch: pytest.MonkeyPatch, addresses: Sequence[str] | None, expected: str
) -> None:
    """It is healthy if one of them is: clients try one after another.

    Whoever owns the name chooses its addresses: the prober does not ask a metadata service.
    """

    async def main() -> str | None:
        async with listening(closes, "127.0.0.2") as port:
            resolves_to(monkeypatch, addresses)
            return await probe.failure_of(ProbeTarget("a/b", "lb.example", port), probe.Lookups())

    assert trio.run(main) == expected


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the look-up of names that begin with ``hangs`` hang until this is set; all others are this machine."""
    monkeypatch.setattr(probe, "ANSWER_SECONDS", SHORT)
    over, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **more: Any) -> Any:
        if host.startswith("hangs"):
            over.wait(PATIENCE)
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return over


def test_a_look_up_that_hangs_delays_no_other(over: threading.Event) -> None:
    """It holds one thread, however often its address is probed."""

    async def main() -> list[str | None]:
        async with listening(closes) as port:
            lookups = probe.Lookups()
            targets = [ProbeTarget("a/b", host, port) for host in ("hangs.example", "hangs.example", "works.example")]
            found = [await probe.failure_of(target, lookups) for target in targets]
            over.set()
            return found

    assert trio.run(main) == [SILENT, "the look-up of the host name hangs", ""]


def test_look_ups_that_hang_leave_threads_to_other_namespaces(over: threading.Event) -> None:
    """Without a thread for its name, nobody says that an address is unhealthy."""

    async def main() -> list[str | None]:
        found: list[str | None] = []
        async with listening(closes) as port:
            lookups = probe.Lookups()
            async with trio.open_nursery() as nursery:
                for number in range(probe.LOOKUPS_EACH):
                    nursery.start_soon(probe.failure_of, ProbeTarget("evil/b", f"hangs{number}.example", port), lookups)
            for service in ("evil/b", "good/b"):
                found.append(await probe.failure_of(ProbeTarget(service, "works.example", port), lookups))
            over.set()
        return found

    assert trio.run(main) == [None, ""]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EMFILE, None),
        (errno.ENOBUFS, None),
        (errno.EADDRNOTAVAIL, None),
        (errno.ENETUNREACH, "Network is unreachable"),
    ],
)
def test_problems_of_this_machine_say_nothing_of_the_address(
    monkeypatch: pytest.MonkeyPatch, number: int, expected: str | None
) -> None:
    """Too few descriptors or ports are no failure of a load balancer."""

    def no_socket(*_: Any) -> None:
        raise OSError(number, "why")

    monkeypatch.setattr(trio.socket, "socket", no_socket)
    assert probed(ProbeTarget("a/b", "127.0.0.1", 80)) == expected


# -- when, in virtual time


class Found:
    """What probes found, instead of real ones: ``hanging`` addresses take ANSWER_SECONDS, others no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: dict[str, list[float]] = {}
        self.hanging: set[str] = set()
        self.of_evil: set[str] = set()
        self.fails: Callable[[str], str | None] = lambda address: ""
        self.results: Counter[str] = Counter()
        self.reported: list[tuple[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        monkeypatch.setattr(probe, "failure_of", self.failure_of)

    async def failure_of(self, target: ProbeTarget, _: object) -> str | None:
        self.times.setdefault(target.address, []).append(trio.current_time())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if target.address in self.hanging:
                await trio.sleep(probe.ANSWER_SECONDS)
                return "no answer"
            return self.fails(target.address)
        finally:
            self.in_flight -= 1

    def target(self, address: str) -> ProbeTarget:
        return ProbeTarget("evil/web" if address in self.of_evil else "shop/web", address, 80)

    def over(self, seconds: float, *steps: Sequence[str]) -> None:
        """Probe the addresses of each step for so long."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                one = Prober(nursery, lambda t, why: self.reported.append((t.address, why)), results=self.results)
                for addresses in steps:
                    one.follow(frozenset(map(self.target, addresses)))
                    await trio.sleep(seconds)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Found:
    """Return what probes find, with a tenth of the places."""
    monkeypatch.setattr(prober, "IN_FLIGHT", prober.IN_FLIGHT // 10)
    monkeypatch.setattr(prober, "IN_FLIGHT_EACH", prober.IN_FLIGHT_EACH // 10)
    return Found(monkeypatch)


def pauses(times: Sequence[float]) -> set[float]:
    return {round(second - first, 6) for first, second in pairwise(times)}


MANY = [f"10.0.0.{number}" for number in range(200)]


def test_addresses_are_spread_over_the_interval(found: Found) -> None:
    """They are not probed in the same instant, and each keeps its moment."""
    found.over(30, MANY)
    assert len(found.times) == len(MANY)
    for times in found.times.values():
        assert len(times) == 6
        assert pauses(times) == {5.0}
    by_tenth = Counter(int(times[0] * 10) for times in found.times.values())
    assert len(by_tenth) > 40 and max(by_tenth.values()) < 15


def test_one_that_hangs_delays_no_other(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """With twice as many that hang as places, all are probed every 5 s if they begin at different moments."""
    moments = itertools.count()  # evenly: at random, once in a few runs more begin together than there are places
    monkeypatch.setattr(random, "random", lambda: next(moments) * 0.618 % 1.0)
    found.hanging = set(MANY[:50])
    found.over(60, MANY[:100])
    assert all(len(times) == 12 for times in found.times.values())


def test_what_is_in_flight_is_bounded(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """One namespace has at most half; beyond that its interval grows, for all its addresses alike."""
    monkeypatch.setattr(prober, "IN_FLIGHT", 20)
    found.hanging = set(MANY[:100])  # 10 in 2 s: 20 s for all
    found.over(200, MANY[:100])
    assert found.most_in_flight == 10
    assert {len(times) for times in found.times.values()} <= {9, 10, 11}


def test_no_namespace_delays_another(found: Found) -> None:
    """Though most of its addresses hang, those of others are probed every 5 s."""
    found.hanging = found.of_evil = set(MANY[5:])
    found.over(60, MANY)
    assert {len(found.times[address]) for address in MANY[:5]} == {12}


def test_what_is_followed(found: Found) -> None:
    """An address that stays keeps its moment, one that goes is probed no more."""
    found.over(20, ["a", "b"], ["b", "c"], [])
    assert {address: len(times) for address, times in found.times.items()} == {"a": 4, "b": 8, "c": 4}
    assert pauses(found.times["b"]) == {5.0}


def test_results_are_reported_and_counted(found: Found, caplog: pytest.LogCaptureFixture) -> None:
    """What this machine could not find out is counted only; an error of topodns' own ends no other probe."""

    def fails(address: str) -> str | None:
        if address == "broken":
            raise RuntimeError("a bug")
        return {"up": "", "down": "refused"}.get(address)

    found.fails = fails
    found.over(10, ["up", "down", "nobody-knows", "broken"])
    assert sorted(found.reported) == [("down", "refused")] * 2 + [("up", "")] * 2
    assert found.results == {SUCCESS: 2, FAILURE: 2, UNKNOWN: 4}
    assert caplog.text.count("shop/web: internal error while probing broken") == 2
