# SPDX-License-Identifier: Apache-2.0

"""Host names of load balancers: resolved ahead of queries, and kept while their name server is away."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.wire import AAAA, CNAME, NOERROR, NXDOMAIN, A
from dnsserver.net import ingress_hosts
from dnsserver.net.ingress_hosts import IngressHosts
from dnsserver.net.upstream import LOOKUP_SECONDS
from locator.federation.federating import ResolvedHost
from locator.ip import parse_address
from tests.kit.outside import FAILED, said

NAME = "lb.example.com"
STALE_SECONDS = 200.0  # instead of an hour


class Servers:
    """Name servers that say what ``records`` holds by name and type, with ``rcode``; None: they do not answer.

    ``remembers``: the upstream knows all that already. Names that begin with "slow" are never answered.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], tuple[Record, ...] | None] = {}
        self.asked, self.remembers, self.rcode = 0, False, NOERROR

    def answer_at_once(self, target: str, qtype: int, _: str) -> UpstreamAnswer | None:
        return self._said(target, qtype) if self.remembers else None

    async def find(self, target: str, qtype: int, _: str) -> UpstreamAnswer:
        self.asked += 1
        await trio.sleep(LOOKUP_SECONDS if target.startswith("slow") else 0)
        return self._said(target, qtype)

    def _said(self, target: str, qtype: int) -> UpstreamAnswer:
        records = None if target.startswith("slow") else self.records.get((target, qtype), ())
        return FAILED if records is None else said(records, rcode=self.rcode)


def address(text: str, ttl: int = 60) -> Record:
    return Record(NAME, A if "." in text else AAAA, ttl, Opaque(parse_address(text)))


def resolved(*texts: str, **ttls: int) -> ResolvedHost:
    return ResolvedHost(
        tuple(sorted(map(parse_address, texts))), {4 if key == "v4" else 16: ttl for key, ttl in ttls.items()}
    )


@pytest.fixture(autouse=True)
def _soon_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an hour pass in minutes."""
    monkeypatch.setattr(ingress_hosts, "STALE_SECONDS", STALE_SECONDS)


Seen = list[Mapping[str, ResolvedHost]]


def run(main: Any) -> None:
    """Run ``main(servers, hosts, seen)`` beside the task that resolves; time passes when all wait."""
    servers, seen = Servers(), Seen()
    hosts = IngressHosts(servers, seen.append)  # type: ignore[arg-type]

    async def beside() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hosts.run)
            await main(servers, hosts, seen)
            nursery.cancel_scope.cancel()

    trio.run(beside, clock=MockClock(autojump_threshold=0))


def test_both_families_and_the_lowest_ttl_on_the_way() -> None:
    """Aliases on the way count for the TTL, as in every answer; each family has its own."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        alias = Record(NAME, CNAME, 20, Host("real.example.com"))
        servers.records = {(NAME, A): (alias, address("192.0.2.1")), (NAME, AAAA): (address("2001:db8::1", 90),)}
        hosts.want({NAME: "shop"})
        await trio.sleep(0.5)
        assert seen == [{NAME: resolved("192.0.2.1", "2001:db8::1", v4=20, v6=90)}]

    run(main)


def test_what_is_remembered_is_taken_in_at_once() -> None:
    """Without a look-up, as each second until its TTL is over."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        servers.records, servers.remembers = {(NAME, A): (address("192.0.2.1"),)}, True
        hosts.want({NAME: "shop"})
        await trio.sleep(5)
        assert (seen, servers.asked) == ([{NAME: resolved("192.0.2.1", v4=60)}], 0)
        servers.records, servers.remembers = {(NAME, A): (address("192.0.2.2"),)}, False
        await trio.sleep(2)
        assert seen[1:] == [{NAME: resolved("192.0.2.2", v4=60)}] and servers.asked

    run(main)


def test_nobody_is_asked_without_names() -> None:
    """And no longer once the last name is gone."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        await trio.sleep(100)
        assert (servers.asked, seen) == (0, [])
        hosts.want({NAME: "shop"})
        await trio.sleep(5)
        hosts.want({})
        await trio.sleep(2)
        asked = servers.asked
        await trio.sleep(100)
        assert (servers.asked, seen[-1]) == (asked, {})

    run(main)


def test_a_ttl_that_runs_down_is_told_now_and_then() -> None:
    """Not each second, but often enough that nobody keeps an address for much longer than its TTL."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        hosts.want({NAME: "shop"})
        for left in range(60, 0, -1):
            servers.records = {(NAME, A): (address("192.0.2.1", left),)}
            await trio.sleep(1)
        told = [each[NAME].ttls[4] for each in seen if each]
        assert told == sorted(told, reverse=True) and 8 <= len(told) <= 13
        servers.records = {(NAME, A): (address("192.0.2.1", 60),)}
        await trio.sleep(2)
        assert seen[-1][NAME].ttls == {4: 60}

    run(main)


def test_the_last_addresses_stay_while_nobody_answers(caplog: pytest.LogCaptureFixture) -> None:
    """For some time, with a short TTL; it is logged once, and once more when there is an answer again."""
    caplog.set_level(logging.INFO)

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        servers.records = {(NAME, A): (address("192.0.2.1"),)}
        hosts.want({NAME: "shop"})
        await trio.sleep(3)
        servers.records = {(NAME, A): None, (NAME, AAAA): None}
        await trio.sleep(60)
        assert seen[-1] == {NAME: resolved("192.0.2.1", v4=30)}
        servers.records = {(NAME, A): (address("192.0.2.2"),)}
        await trio.sleep(3)
        assert seen[-1] == {NAME: resolved("192.0.2.2", v4=60)}
        servers.records = {(NAME, A): None, (NAME, AAAA): None}
        await trio.sleep(STALE_SECONDS + 5)
        assert seen[-1] == {}

    run(main)
    assert [record.message for record in caplog.records] == [
        f"load balancer {NAME}: the upstream does not answer for A and AAAA; the addresses that are known stay",
        f"load balancer {NAME}: resolved",
        f"load balancer {NAME}: the upstream does not answer for A and AAAA; the addresses that are known stay",
        f"load balancer {NAME}: the upstream does not answer for A and AAAA; it is in no answer until it is resolved",
    ]


def test_one_family_that_fails_does_not_freeze_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """Some name servers never answer for AAAA: the IPv4 addresses are followed all the same."""
    caplog.set_level(logging.INFO)

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        for text in ("192.0.2.1", "192.0.2.2"):
            servers.records = {(NAME, A): (address(text),), (NAME, AAAA): None}
            hosts.want({NAME: "shop"})
            await trio.sleep(3)
            assert seen[-1] == {NAME: resolved(text, v4=60)}
        servers.records = {(NAME, A): (address("192.0.2.2"),), (NAME, AAAA): (address("2001:db8::1"),)}
        await trio.sleep(3)
        servers.records = {(NAME, A): (address("192.0.2.3"),), (NAME, AAAA): None}
        await trio.sleep(3)
        assert seen[-1] == {NAME: resolved("192.0.2.3", "2001:db8::1", v4=60, v6=30)}
        await trio.sleep(STALE_SECONDS)
        assert seen[-1] == {NAME: resolved("192.0.2.3", v4=60)}
        servers.records = {(NAME, AAAA): None}
        await trio.sleep(3)
        assert seen[-1] == {}

    run(main)
    assert caplog.messages[:2] == [
        f"load balancer {NAME}: the upstream does not answer for AAAA; the addresses that are known stay",
        f"load balancer {NAME}: resolved",
    ]


def test_names_that_are_never_answered_hold_up_no_others() -> None:
    """Hundreds of them in one namespace take a minute; what others have is followed all the while."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        servers.records = {(NAME, A): (address("192.0.2.1"),)}
        hosts.want({NAME: "shop"} | {f"slow{number}.example.com": "evil" for number in range(300)})
        await trio.sleep(2.5)
        assert seen[-1] == {NAME: resolved("192.0.2.1", v4=60)}
        for number in range(2, 6):
            servers.records = {(NAME, A): (address(f"192.0.2.{number}"),)}
            await trio.sleep(5)
            assert seen[-1] == {NAME: resolved(f"192.0.2.{number}", v4=60)}

    run(main)


@pytest.mark.parametrize("rcode", [NOERROR, NXDOMAIN], ids=["NODATA", "NXDOMAIN"])
def test_a_name_that_is_gone(rcode: int) -> None:
    """An answer without addresses is an answer: they go at once."""

    async def main(servers: Servers, hosts: IngressHosts, seen: Seen) -> None:
        servers.records = {(NAME, A): (address("192.0.2.1"),)}
        hosts.want({NAME: "shop"})
        await trio.sleep(3)
        servers.records, servers.rcode = {}, rcode
        await trio.sleep(3)
        assert seen == [{NAME: resolved("192.0.2.1", v4=60)}, {}]

    run(main)
