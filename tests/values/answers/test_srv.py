# SPDX-License-Identifier: Apache-2.0

"""SRV replies: each record with its target, and as many addresses as fit."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice

import dns.flags
import dns.name
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import address_text, parse_address
from tests.kit import api_objects
from tests.kit.api_objects import Item
from tests.kit.dns_queries import opt, query
from tests.kit.in_memory import responder_of
from tests.kit.random_queries import Asked
from tests.kit.replies import additional_of, after_name, assert_sound, parsed, parts_of
from tests.kit.unshrunk import unshrunk

SERVICE = "web.shop.svc.cluster.local"
PORTS = (("http", 80, "TCP"), ("admin", 8080, "TCP"))
OPT = 41
POINTER = 2  # octets of an owner
OCTETS = {4: POINTER + 10 + 4, 16: POINTER + 10 + 16}  # of an address record, by its address


class Headless:
    """A responder for a headless Service with these host names and addresses."""

    def __init__(self, endpoints: Sequence[tuple[str, str]], *, ports: int = 1, port: str | None = None) -> None:
        self.asked = SERVICE if port is None else f"_{port}._tcp.{SERVICE}"
        named = PORTS[:ports]
        slices: list[Item] = [api_objects.namespace("shop"), api_objects.service("web", ports=named)]
        for family, size in (("IPv4", 4), ("IPv6", 16)):
            rows = [
                api_objects.endpoint(address, hostname=host) for host, address in endpoints if octets(address) == size
            ]
            slices.append(api_objects.endpoint_slice("web", size, rows, family=family, ports=named))
        self._responder = responder_of(api_objects.listed(slices))
        self.addresses = {(f"{host}.{SERVICE}.", address_text(parse_address(text))) for host, text in endpoints}

    def reply(self, size: int | None = None, *, proto: str = "udp") -> bytes:
        """Return the reply within *size* octets; None is a query without EDNS."""
        asked = Asked(query(self.asked, "SRV", edns=b"" if size is None else opt(size=size)), "192.0.2.1", proto)
        source = parse_address(asked.source)
        reply = self._responder.reply(asked.wire, source, self._responder.channel(source, proto))
        assert isinstance(reply, bytes)
        assert_sound(asked, reply, limit=(size or 512) if proto == "udp" else None)
        return reply

    def turns(self, size: int | None = None, *, proto: str = "udp") -> Iterator[bytes]:
        """Yield replies until each of the records that they hold has come first."""
        firsts = set()
        for _ in range(1500):
            reply = self.reply(size, proto=proto)
            firsts.add(parsed(reply, one_rr_per_rrset=True).answer[0][0])
            yield reply
            if len(firsts) == whole_count(reply):
                return
        raise AssertionError(f"{len(firsts)} of {whole_count(reply)} records came first")


def octets(address: str) -> int:
    return len(parse_address(address))


def whole_count(reply: bytes) -> int:
    """Return the number of answer records."""
    return int.from_bytes(reply[6:8])


def assert_additional(cluster: Headless, reply: bytes, whole: bytes, limit: int) -> None:
    """The reply has all SRV records and every address that fits in turn; or, with TC, some SRV records alone."""
    found, every = additional_of(reply), additional_of(whole)
    assert {(name.to_text(), text) for name, text in every.addresses} == cluster.addresses
    if reply[2] << 8 & dns.flags.TC:
        assert whole_count(reply) < whole_count(whole) and not found.addresses
        return
    assert sorted(found.targets) == sorted(every.targets)
    left_out = found.left_out(every.addresses)
    free = limit - len(reply)
    assert not left_out or free < min(OCTETS[octets(address)] for _, address in left_out)
    places = {target: number for number, target in reversed(list(enumerate(found.targets)))}
    for name, address in left_out:  # only shorter addresses were taken after one that did not fit
        later = [text for owner, text in found.addresses if places[owner] > places[name]]
        assert all(octets(text) < octets(address) for text in later)


HOSTS = st.text("abcdefgh0123456789", min_size=1, max_size=20)
ADDRESSES = st.one_of(
    st.integers(1, 0xFFFF).map(lambda number: f"10.1.{number >> 8 & 255}.{number & 255}"),
    st.integers(1, 0xFFFF).map(lambda number: f"fd00::{number:x}"),
)


@settings(unshrunk, max_examples=40)
@given(
    endpoints=st.lists(st.tuples(HOSTS, ADDRESSES), min_size=1, max_size=24, unique_by=lambda row: row[1]),
    again=st.lists(ADDRESSES, max_size=6, unique=True),
    ports=st.integers(1, 2),
    port=st.sampled_from((None, "http")),
    size=st.one_of(st.none(), st.integers(512, 1232)),
    proto=st.sampled_from(("udp", "udp", "udp", "tcp")),
)
def test_as_many_addresses_as_fit_go_along(
    endpoints: list[tuple[str, str]],
    again: list[str],
    ports: int,
    port: str | None,
    size: int | None,
    proto: str,
) -> None:
    """The addresses of the first records come first, without TC, and none that is left out would have fitted."""
    taken = {address for _, address in endpoints}
    more = [
        (host, address) for (host, _), address in zip(endpoints, again, strict=False) if address not in taken
    ]  # several of one name
    cluster = Headless([*endpoints, *more], ports=ports, port=port)
    whole = cluster.reply(proto="tcp")
    for reply in islice(cluster.turns(size, proto=proto), 12):
        assert_additional(cluster, reply, whole, (size or 512) if proto == "udp" else 65535)


REACH = 0x4000  # octets from the start of a message that a pointer reaches


@pytest.mark.parametrize(("count", "ports"), [(100, 1), (220, 1), (160, 2), (900, 1)])
def test_no_address_begins_where_no_pointer_reaches(count: int, ports: int) -> None:
    """RFC 1035, 4.1.4: a pointer has 14 bits. Addresses go along while all begin before octet 16,384, OPT aside.

    So it is, too, after a program has written the message again with each owner whole where it first occurs, as c-ares
    does; the addresses of the next target would begin behind that.
    """
    rows = [(f"web-{number:03}", f"10.1.{number // 250}.{number % 250 + 1}") for number in range(count)]
    cluster = Headless([*rows, *((host, f"fd00::{number:x}") for number, (host, _) in enumerate(rows))], ports=ports)
    addresses = sorted(cluster.addresses, key=lambda row: ":" not in row[1])  # the order of the slices' names
    every = [(dns.name.from_text(name), address) for name, address in addresses]
    of_target = len(f"web-000.{SERVICE}") + 2 + POINTER + 10 + 4 + 10 + 16
    for size in (None, 1232):
        reply = cluster.reply(size, proto="tcp")
        assert not reply[2] << 8 & dns.flags.TC and whole_count(reply) == count * ports
        begins = [begin for rtype, begin in additional(reply) if rtype != OPT]
        assert max(begins, default=0) < REACH
        left_out = additional_of(reply).left_out(every)
        end_of_answers = len(reply) - sum(map(len, parts_of(reply).rest))
        targets = len(begins) / 2
        assert end_of_answers + targets * of_target <= REACH or not targets
        assert not left_out or end_of_answers + (targets + 1) * of_target > REACH


def additional(reply: bytes) -> Iterator[tuple[int, int]]:
    """Yield the type of each additional record, and where it begins."""
    parts = parts_of(reply)
    begin = len(reply) - sum(map(len, parts.rest))
    for record in parts.rest:
        at = after_name(record, 0)
        yield int.from_bytes(record[at : at + 2]), begin
        begin += len(record)


def test_corednss_own_case_fits_512_octets() -> None:
    """CoreDNS's table (plugin/kubernetes/handler_test.go): 5 SRV records and 6 addresses, without EDNS."""
    cluster = Headless(
        [
            ("172-0-0-2", "172.0.0.2"),
            ("172-0-0-3", "172.0.0.3"),
            ("dup-name", "172.0.0.4"),
            ("dup-name", "172.0.0.5"),
            ("5678-abcd--1", "5678:abcd::1"),
            ("5678-abcd--2", "5678:abcd::2"),
        ],
        port="http",
    )
    for reply in cluster.turns():
        assert len(reply) <= 512
        assert struct.unpack("!HHH", reply[6:12]) == (5, 0, 6)
        assert {(name.to_text(), text) for name, text in additional_of(reply).addresses} == cluster.addresses
        assert not parsed(reply).flags & dns.flags.TC


@pytest.mark.parametrize(("rtype", "expected"), [("A", ["10.1.0.5"]), ("SRV", ["0 50 80", "0 50 8080"])])
def test_endpoints_of_one_name_and_address_have_one_record(rtype: str, expected: list[str]) -> None:
    """Two pods of a Service have the address of their node, and ports of their own: an RRset has no record twice."""
    slices = [
        api_objects.endpoint_slice(
            "web",
            number,
            [api_objects.endpoint("10.1.0.5", targetRef={"kind": "Pod", "name": f"p{number}"})],
            ports=[port],
        )
        for number, port in enumerate(PORTS)
    ]
    cluster = [api_objects.namespace("shop"), api_objects.service("web", ports=PORTS), *slices]
    source, responder = parse_address("192.0.2.1"), responder_of(api_objects.listed(cluster))
    reply = responder.reply(query(f"10-1-0-5.{SERVICE}", rtype), source, responder.channel(source, "udp"))
    assert isinstance(reply, bytes)
    answer = parsed(reply, one_rr_per_rrset=True).answer
    assert sorted(record[0].to_text().removesuffix(f" 10-1-0-5.{SERVICE}.") for record in answer) == expected
    assert len(parsed(reply, one_rr_per_rrset=True).additional) == (rtype == "SRV")
