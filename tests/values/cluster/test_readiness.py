# SPDX-License-Identifier: Apache-2.0

"""While somebody waits for an API server, one cheap request notices its return, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

from locator.backoff import BETWEEN_RETURNS, POLL, REFUSING
from locator.cluster.api_client import ApiServerReadiness, Readiness

AWAY, RESPONDS, READY = Readiness
KINDS = 8
A_WHILE = 600.0  # seconds


class Server:
    """An API server whose readiness is a function of the time; ``asked`` are the times when somebody asked."""

    def __init__(self, readiness: Callable[[float], Readiness], *, takes: float = 0.0) -> None:
        self.asked: list[float] = []
        self._readiness, self._takes = readiness, takes

    async def ask(self) -> Readiness:
        self.asked.append(trio.current_time())
        await trio.sleep(self._takes)
        return self._readiness(trio.current_time())


def returns_of(server: Server, until: float, *, pause: float = A_WHILE, waiting: int = KINDS) -> list[float]:
    """Let reflectors fail all the time, with a *pause* after each failure; return when each noticed a return."""
    noticed: list[float] = []

    async def reflector(readiness: ApiServerReadiness) -> None:
        while True:
            back = readiness.next
            with trio.move_on_after(pause):
                await readiness.wait(back)
                noticed.append(trio.current_time())

    async def main() -> None:
        readiness = ApiServerReadiness(server.ask)
        with trio.move_on_at(until):
            async with trio.open_nursery() as nursery:
                for _ in range(waiting):
                    nursery.start_soon(reflector, readiness)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return noticed


def test_all_who_wait_are_told_at_once() -> None:
    """At most two pauses between requests after the return, however long it was away."""
    noticed = returns_of(Server(lambda now: READY if now > 1_000 else AWAY), 1_000 + 3 * POLL)
    assert len(noticed) == KINDS
    assert len(set(noticed)) == 1
    assert 1_000 < noticed[0] <= 1_000 + 2 * POLL


@pytest.mark.parametrize("waiting", [1, KINDS])
@pytest.mark.parametrize("pause", [1.0, 30.0, A_WHILE], ids=str)
def test_an_outage_costs_one_small_request_a_second(waiting: int, pause: float) -> None:
    """However many reflectors wait, and however often they try."""
    server = Server(lambda now: AWAY)
    assert not returns_of(server, A_WHILE, pause=pause, waiting=waiting)
    assert A_WHILE / (2.1 * POLL) < len(server.asked) <= A_WHILE / POLL + 1


def test_one_request_at_a_time() -> None:
    """An API server that accepts connections, and says nothing, gets one."""
    server = Server(lambda now: AWAY, takes=10.0)
    returns_of(server, A_WHILE)
    assert len(server.asked) <= A_WHILE / (10.0 + POLL) + 1


def test_an_api_server_that_is_ready_is_asked_once_for_each_failure() -> None:
    """What it refuses although it is ready is tried as seldom as ever."""
    server = Server(lambda now: READY)
    assert not returns_of(server, A_WHILE, pause=30.0, waiting=1)
    assert len(server.asked) == A_WHILE / 30.0


def test_an_api_server_that_goes_on_to_refuse_is_asked_once_for_each_failure() -> None:
    """As with expired credentials. At first it may be that it just has not read its roles yet."""
    server = Server(lambda now: RESPONDS)
    assert not returns_of(server, A_WHILE, pause=30.0, waiting=1)
    assert len(server.asked) <= REFUSING / POLL + A_WHILE / 30.0


def test_an_outage_that_begins_later_is_noticed_by_those_who_wait_already() -> None:
    """Somebody who fails then asks for all."""

    async def main() -> None:
        server = Server(lambda now: AWAY if 100 < now < 200 else READY)
        readiness = ApiServerReadiness(server.ask)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.wait, readiness.next)
            await trio.sleep(150)
            nursery.start_soon(readiness.wait, readiness.next)
        assert trio.current_time() <= 200 + 2 * POLL

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_what_an_api_server_allows_once_it_has_its_roles() -> None:
    """After a cluster was built anew, it first refuses every request; the moment of the roles is a return, too."""
    noticed = returns_of(Server(lambda now: READY if now > 103 else RESPONDS if now > 100 else AWAY), 200, waiting=1)
    assert len(noticed) == 2
    assert 100 < noticed[0] <= 100 + 2 * POLL
    assert 103 < noticed[1] <= 103 + 2 * POLL


def test_an_api_server_that_is_ready_by_turns_causes_no_storm() -> None:
    """As when it is overloaded, or when a load balancer has one server that works, and one that does not."""
    server = Server(lambda now: READY if now % 2 < 1 else AWAY)
    noticed = returns_of(server, A_WHILE, pause=1.0, waiting=1)
    assert 10 < len(noticed) <= A_WHILE / BETWEEN_RETURNS
