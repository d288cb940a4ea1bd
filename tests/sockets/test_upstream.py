# SPDX-License-Identifier: Apache-2.0

"""Names outside the zones: which servers are asked, what they may answer, and what is no answer."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import pytest
import trio
from msgspec.structs import replace

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.message.records import Opaque, Record
from dnsserver.metrics.counters import Counts
from dnsserver.net.upstream import NoServers, Upstream, servers_in
from dnsserver.programs import from_settings
from dnsserver.settings.values import ListenAddress
from tests.kit.elsewhere import (
    HERE,
    LOCALHOST,
    Behaviour,
    Elsewhere,
    Message,
    after,
    asking,
    reply_to,
    run,
    says,
    silent,
)
from tests.kit.in_memory import settings_of
from tests.kit.outside import alias
from tests.kit.this_machine import free_port

A, CNAME, SOA, MX, TXT, AAAA, ANY = 1, 5, 6, 15, 16, 28, 255
NXDOMAIN, SERVFAIL = dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL
TARGET = "example.org"
SHOP = "shop"  # a namespace
ALIAS, ALIAS_2 = "example.org. 50 IN CNAME a.example.net.", "a.example.net. 40 IN CNAME b.example.net."


def sends(make: Callable[[Message], bytes | list[bytes]], *, tcp: Behaviour | None = None) -> Behaviour:
    """Answer with octets; over TCP with *tcp* if given."""

    async def behave(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
        if tcp is not None and proto == "tcp":
            return await tcp(server, asked, proto)
        made = make(asked)
        return [made] if isinstance(made, bytes) else made

    return behave


def changed(asked: Message, **fields: Any) -> bytes:
    """Return a good reply with some fields changed."""
    reply = reply_to(asked, [HERE])
    for name, value in fields.items():
        setattr(reply, name, value)
    return reply.to_wire()


def truncated(asked: Message) -> bytes:
    return reply_to(asked, flags=dns.flags.TC).to_wire()


def other_question(asked: Message) -> bytes:
    reply = dns.message.make_query("example.net", "A", id=asked.id)
    return reply_to(reply, ["example.net. 60 IN A 192.0.2.66"]).to_wire()


def address(text: str, name: str = TARGET, ttl: int = 60) -> Record:
    return Record(name, A, ttl, Opaque(socket.inet_aton(text)))


def spread(number: int, size: int) -> Behaviour:
    """Answer over TCP with this many TXT records of this size."""
    rows = [f'example.org. 60 IN TXT "{each:0{size}d}"' for each in range(number)]
    return sends(truncated, tcp=says(*rows))


def records_of(said: UpstreamAnswer) -> tuple[Record, ...] | None:
    """Return the records of an answer, None if the look-up failed."""
    if said.rcode == SERVFAIL:
        assert said.extended_error is not None and not said.aliases and not said.records
        return None
    plain = [replace(record, data=Opaque(record.data.octets)) for record in said.records if record.data.octets]  # type: ignore[union-attr]
    return (*said.aliases, *plain)


async def find(elsewhere: Upstream, target: str, qtype: int, namespace: str = SHOP) -> tuple[Record, ...] | None:
    return records_of(await elsewhere.find(target, qtype, namespace))


def found_from(*behaviours: Behaviour, qtype: int = A) -> tuple[tuple[Record, ...] | None, float, Counts]:
    """Look up example.org; return what was found, after how many seconds, and the counts."""
    result: list[Any] = []

    @asking(*behaviours)
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        began = trio.current_time()
        found = await find(elsewhere, TARGET, qtype)
        result.extend((found, trio.current_time() - began, counts))

    return result[0], result[1], result[2]


CHAIN = (alias(TARGET, "a.example.net", 50), alias("a.example.net", "b.example.net", 40))
ONE = (address("192.0.2.1"),)
ANSWERS: dict[str, tuple[Behaviour, int, tuple[Record, ...]]] = {
    "address": (says(HERE), A, ONE),
    "several addresses": (says(HERE, "example.org. 60 IN A 192.0.2.2"), A, (*ONE, address("192.0.2.2"))),
    "CNAMEs on the way": (
        says(ALIAS, ALIAS_2, "b.example.net. 30 IN A 192.0.2.3"), A,
        (*CHAIN, address("192.0.2.3", "b.example.net", 30)),
    ),
    "CNAMEs in another order": (
        says("b.example.net. 30 IN A 192.0.2.3", ALIAS_2, ALIAS), A,
        (*CHAIN, address("192.0.2.3", "b.example.net", 30)),
    ),
    "CNAMEs that lead to nothing": (says(ALIAS, ALIAS_2), A, CHAIN),
    "CNAMEs that lead to NXDOMAIN": (says(ALIAS, ALIAS_2, rcode=NXDOMAIN), A, CHAIN),
    "names in capitals": (
        says("EXAMPLE.org. 60 IN CNAME B.Example.NET.", "b.EXAMPLE.net. 60 IN A 192.0.2.3"), A,
        (alias(TARGET, "b.example.net", 60), address("192.0.2.3", "b.example.net")),
    ),
    "NXDOMAIN": (says(rcode=NXDOMAIN), A, ()),
    "NODATA": (says(), A, ()),
    "NODATA without SOA": (says(soa=None), A, ()),
    "what others have, too": (says("example.net. 60 IN A 192.0.2.9", HERE), A, ONE),
    "names in the data are not compressed": (
        says("example.org. 60 IN MX 10 mail.example.org."), MX,
        (Record(TARGET, MX, 60, Opaque(b"\0\x0a\4mail\7example\3org\0")),),
    ),
    "a type that nobody knows": (
        says("example.org. 60 IN TYPE65280 \\# 3 010203"), 65280, (Record(TARGET, 65280, 60, Opaque(b"\1\2\3")),),
    ),
    "cut off, then by TCP": (sends(truncated, tcp=says(HERE)), A, ONE),
    "a wrong id before the right one": (
        sends(lambda asked: [changed(asked, id=asked.id ^ 1), changed(asked)]), A, ONE,
    ),
    "garbage before the reply": (
        sends(lambda asked: [b"", b"\0", asked.to_wire()[:2] + b"\xff" * 40, changed(asked)]), A, ONE,
    ),
    "half a second late": (after(0.5, says(HERE)), A, ONE),
}  # fmt: skip


@pytest.mark.parametrize(("behaviour", "qtype", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_the_aliases_in_order_and_the_records(
    behaviour: Behaviour, qtype: int, expected: tuple[Record, ...]
) -> None:
    """RFC 1034, 3.6.2: each CNAME comes before its target; a name without records is an answer."""
    found, seconds, counts = found_from(behaviour, qtype=qtype)
    assert found == expected
    assert seconds < 1 and counts.upstream == {"answered": 1}


@pytest.mark.parametrize(("number", "size"), [(256, 3), (80, 200)], ids=["256 records", "16 KiB"])
def test_a_large_answer_is_passed_on_whole(number: int, size: int) -> None:
    """Up to 256 records and 16 KiB of data."""
    found, _, _ = found_from(spread(number, size), qtype=TXT)
    assert found is not None and len(found) == number


# What cannot be used, and the extended error of the failure (RFC 8914, 4.23 and 4.24).
FAILURES: dict[str, tuple[Behaviour, int]] = {
    "silence": (silent, 22),
    "too late": (after(2.5, says(HERE)), 22),
    "SERVFAIL": (says(rcode=SERVFAIL), 22),
    "REFUSED": (says(rcode=dns.rcode.REFUSED), 22),
    "an rcode of its own": (says(rcode=11), 22),
    "YXDOMAIN": (says(rcode=dns.rcode.YXDOMAIN), 23),
    "another id": (sends(lambda asked: changed(asked, id=asked.id ^ 1)), 22),
    "another question": (sends(other_question), 22),
    "a query": (sends(lambda asked: changed(asked, flags=0)), 22),
    "another name": (says("example.net. 60 IN A 192.0.2.66"), 23),
    "NXDOMAIN and yet an address": (says(HERE, rcode=NXDOMAIN), 23),
    "a CNAME to itself": (says("example.org. 60 IN CNAME example.org."), 23),
    "CNAMEs in a circle": (says(ALIAS, ALIAS_2, "b.example.net. 60 IN CNAME example.org."), 23),
    "too many CNAMEs": (says(
        "example.org. 9 IN CNAME n0.",
        *(f"n{number}. 9 IN CNAME n{number + 1}." for number in range(20)),
        "n20. 9 IN A 192.0.2.1",
    ), 23),
    "a CNAME to the root": (says("example.org. 60 IN CNAME ."), 23),
    "a CNAME with a dot in a label": (says("example.org. 60 IN CNAME a\\.b.example.net."), 23),
    "a CNAME with odd octets": (says("example.org. 60 IN CNAME \\200\\255.example.net."), 23),
    "garbage": (sends(lambda asked: asked.to_wire()[:2] + b"\x81\x80" + b"\xff" * 100), 22),
    "garbage by TCP": (sends(truncated, tcp=sends(lambda asked: asked.to_wire()[:2] + b"\xff" * 100)), 23),
    "half a message by TCP": (sends(truncated, tcp=sends(lambda asked: changed(asked)[:-2])), 23),
    "nothing": (sends(lambda _: b""), 22),
    "cut off by TCP, too": (sends(truncated), 23),
    "silence by TCP": (sends(truncated, tcp=silent), 23),
    "data that is too short": (sends(lambda asked: changed(asked)[:-1]), 22),
    "257 records": (spread(257, 3), 23),
    "more than 16 KiB": (spread(90, 200), 23),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
def test_what_cannot_be_used_is_a_failure(case: str) -> None:
    """If the upstream is dead, slow, wrong or too large, nothing is found within 2 s, and nothing raised.

    The error is 22 if no server answers or all refuse, 23 if what they send cannot be used; its text names the name.
    """
    behaviour, code = FAILURES[case]
    qtype = TXT if case in ("257 records", "more than 16 KiB") else A

    @asking(behaviour)
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        began = trio.current_time()
        for _ in range(2):
            answer = await elsewhere.find(TARGET, qtype, SHOP)
            assert records_of(answer) is None
            assert answer.extended_error is not None and answer.extended_error[0] == code
            assert TARGET in answer.extended_error[1]
        assert trio.current_time() - began < 2
        assert counts.upstream == {"failed": 1, "remembered": 1} and not counts.failures


@pytest.mark.parametrize("first", ["silence", "SERVFAIL", "REFUSED", "CNAMEs in a circle", "garbage by TCP"])
def test_the_next_server_is_asked_when_one_fails(first: str) -> None:
    """All servers are asked before the time is over."""
    found, seconds, _ = found_from(FAILURES[first][0], says(HERE))
    assert found == ONE and seconds < 1.5


def test_a_lost_datagram_is_sent_again() -> None:
    """A single server is asked twice."""
    lost: list[Message] = []

    async def loses_the_first(server: Elsewhere, asked: Message, proto: str) -> list[bytes]:
        lost.append(asked)
        return [] if len(lost) == 1 else await says(HERE)(server, asked, proto)

    found, seconds, _ = found_from(loses_the_first)
    assert found == ONE and seconds < 1.5


def test_closed_ports_are_failures() -> None:
    """A server that does not run is counted as a failure."""

    async def main() -> None:
        dead = ListenAddress(LOCALHOST, free_port())
        began = trio.current_time()
        assert await find(Upstream([dead, dead], Counts()), TARGET, A) is None
        assert trio.current_time() - began < 2

    run(main)


def test_what_cannot_be_asked_is_a_failure() -> None:
    """For a name that is too long, or a type for queries only, nothing is raised."""

    @asking(says(HERE))
    async def _(elsewhere: Upstream, _: Elsewhere, counts: Counts) -> None:
        for target in (TARGET, "a" * 64 + ".org", "é.org", "", "a..b", ".".join(["a" * 63] * 4)):
            for qtype in (0, 41, 249, ANY):
                assert await find(elsewhere, target, qtype) in (None, ())
        assert not counts.failures


def test_an_answer_from_another_address_is_none() -> None:
    """RFC 5452, 9.1: only a reply from the asked address counts."""

    @asking(silent)
    async def _(elsewhere: Upstream, server: Elsewhere, _: Counts) -> None:
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:

            async def forge(asked: Message, client: Any) -> None:
                await forger.sendto(changed(asked), client)

            server.by_udp = forge  # type: ignore[method-assign]
            assert await find(elsewhere, TARGET, A) is None
        assert server.asked == []


def test_a_fault_of_our_own_is_stopped(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a look-up is counted and logged, and is a failure."""

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(dns.asyncresolver.Resolver, "resolve", broken)
    with caplog.at_level(logging.ERROR):
        found, _, counts = found_from(says(HERE))
    assert found is None and counts.failures == {"upstream": 1}
    assert "example.org" in caplog.text and "a fault" in caplog.text


# Which servers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ("# kubelet's\nsearch shop.svc.cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", ["10.96.0.10:53"]),
        ("nameserver 192.0.2.1\nnameserver 2001:db8::1\n", ["192.0.2.1:53", "[2001:db8::1]:53"]),
        ("nameserver fe80::1%eth0\nnameserver 192.0.2.1\n", ["192.0.2.1:53"]),
        ("", "no nameservers"),
        ("search example.org\n", "no nameservers"),
        ("nameserver fe80::1%eth0\n", "only link-local"),
        ("nameserver localhost\n", "localhost"),
        (b"nameserver \xff\n", "decode"),
        (None, "cannot open"),
    ],
)  # fmt: skip
def test_a_pods_resolv_conf_names_its_servers(
    tmp_path: Path, text: str | bytes | None, expected: list[str] | str
) -> None:
    """resolv.conf(5), as kubelet and dockerd write it; an error names file and reason."""
    path = tmp_path / "resolv.conf"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if isinstance(expected, list):
        assert [str(server) for server in servers_in(str(path))] == expected
        return
    with pytest.raises(NoServers) as raised:
        servers_in(str(path))
    assert str(path) in str(raised.value) and expected in str(raised.value)


@pytest.mark.parametrize(
    ("flags", "pod", "text", "expected"),
    [
        ({}, False, "nameserver 10.96.0.10\n", []),
        ({}, True, "nameserver 10.96.0.10\n", ["10.96.0.10:53"]),
        ({}, True, "", []),
        ({"upstream": False}, True, "nameserver 10.96.0.10\n", []),
        ({"upstream": ["192.0.2.1", "[2001:db8::1]:5353"]}, True, "", ["192.0.2.1:53", "[2001:db8::1]:5353"]),
    ],
    ids=["no pod", "pod", "pod without servers", "off", "given"],
)
def test_who_is_asked(
    flags: dict[str, Any], pod: bool, text: str, expected: list[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """--upstream; otherwise, in a pod, the servers of its resolv.conf, or none with a warning; else none."""
    (tmp_path / "resolv.conf").write_text(text)
    monkeypatch.setattr(from_settings, "RESOLV_CONF", str(tmp_path / "resolv.conf"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    settings = settings_of(flags)
    assert [str(server) for server in from_settings.upstream_of(settings)] == expected
    assert from_settings.authority_of(settings).has_upstream == bool(expected)
    assert ("--upstream" in caplog.text) == (pod and not flags and not expected)
