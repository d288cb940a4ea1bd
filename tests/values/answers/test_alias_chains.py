# SPDX-License-Identifier: Apache-2.0

"""Chains of CNAMEs that lead out of the zones, and back: what an upstream brings is followed for the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.answers.decision import UPSTREAM_TYPES, UpstreamAnswer
from dnsserver.answers.resolution import MAX_ALIASES
from dnsserver.message.records import Opaque, Record, Soa, type_name, type_number
from dnsserver.message.wire import EDE_NETWORK_ERROR, NXDOMAIN, SERVFAIL, SOA, A
from dnsserver.responder.replies import AnsweredQuery
from locator.ip import parse_address
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, external, listed, namespace, node, service
from tests.kit.dns_queries import ecs, opt, query
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import CountedResponder, responder_of, snapshot_of
from tests.kit.outside import FAILED, alias, said
from tests.kit.tapped import Everything, tap_of

FORWARDER, IN_A, IN_B, NOWHERE = "10.9.9.9", "10.0.0.1", "10.0.0.2", "203.0.113.7"
FLAGS: dict[str, Any] = {
    "trusted-forwarder": f"{FORWARDER}/32", "upstream": "192.0.2.1", "zone": ["cluster.local", "in-addr.arpa"],
    "federation": ["fed.example"], "multicluster": ["clusterset.local"],
}  # fmt: skip
SHOP = "shop.svc.cluster.local"
# ``deep0`` is an alias of ``deep1``, and so on; the last leads to ``web``.
DEEP = 10
ITEMS = [
    *map(namespace, ("default", "shop")),
    node("a1", {ZONE: "a"}, addresses=[IN_A]),
    node("b1", {ZONE: "b"}, addresses=[IN_B]),
    service("web", keys=f"{ZONE},*", annotations={"topodns.io/federated": "true"}),
    endpoint_slice("web", 1, [endpoint("10.1.0.1", nodeName="a1"), endpoint("10.1.0.2", nodeName="b1")]),
    service("hard", keys=ZONE),
    endpoint_slice("hard", 1, [endpoint("10.1.0.3", nodeName="a1")]),
    service("virtual", cluster_ips=["10.96.2.1"]),
    external("out", "out.example.net"),
    external("in", f"web.{SHOP}"),
    *(external(f"deep{number}", f"deep{number + 1}.{SHOP}") for number in range(DEEP)),
    external(f"deep{DEEP}", f"web.{SHOP}"),
]
Outside = Mapping[str, UpstreamAnswer]


def address(name: str, text: str = "192.0.2.9", ttl: int = 60) -> Record:
    return Record(name, A, ttl, Opaque(parse_address(text), text))


def soa_of(zone: str, ttl: int = 300) -> Record:
    data = Soa(f"ns.{zone}", f"h.{zone}", 1, ttl)
    octets = b"".join(bytes([len(part)]) + part.encode() for part in data.mname.split(".")) + b"\0"
    octets += b"".join(bytes([len(part)]) + part.encode() for part in data.rname.split(".")) + b"\0"
    return Record(zone, SOA, ttl, Opaque(octets + b"".join(number.to_bytes(4) for number in (1, 2, 3, 4, ttl))))


def leads_to(*targets: str, name: str = "out.example.net") -> UpstreamAnswer:
    """Return that a name is an alias of the first target, that of the next, and so on."""
    return said([alias(owner, target) for owner, target in zip((name, *targets), targets, strict=False)])


class Reply(NamedTuple):
    """What a client sees: the rcode, targets of CNAMEs, other data, owner and TTL of an SOA, extended errors."""

    rcode: str
    aliases: list[str]
    answers: set[str]
    soa: tuple[str, int] | None
    errors: list[int]
    message: dns.message.Message


def ask(
    responder: CountedResponder, name: str, outside: Outside, *, client: str = IN_A, qtype: str = "A",
    proto: str = "udp", asked: list[str] | None = None,
) -> Reply:  # fmt: skip
    """Ask for a client behind the forwarder; *outside* is what the upstream says, and *asked* what it is asked."""
    source = parse_address(FORWARDER)
    wire = query(name, type_number(qtype), edns=opt(ecs(client)))
    reply = responder.reply(wire, source, responder.channel(source, proto))
    while isinstance(reply, AnsweredQuery):
        assert reply.query.qtype == type_number(qtype)
        if asked is not None:
            asked.append(reply.target)
        reply = responder.finished(reply, outside.get(reply.target, FAILED))
    assert reply is not None
    message = dns.message.from_wire(reply)
    records = [(rrset, rdata) for rrset in message.answer for rdata in rrset]
    cnames = [str(rdata).rstrip(".") for rrset, rdata in records if rrset.rdtype == dns.rdatatype.CNAME]
    chain = [name, *cnames]
    assert [str(rrset.name).rstrip(".") for rrset in message.answer] == chain[: len(message.answer)]
    soa = [(str(rrset.name).rstrip("."), rrset.ttl) for rrset in message.authority]
    return Reply(
        dns.rcode.to_text(message.rcode()),
        cnames,
        {str(rdata) for rrset, rdata in records if rrset.rdtype != dns.rdatatype.CNAME},
        soa[0] if soa else None,
        [int(option.code) for option in message.options if option.otype == dns.edns.OptionType.EDE],  # type: ignore[attr-defined]
        message,
    )


REFUSED = UpstreamAnswer(SERVFAIL, extended_error=(EDE_NETWORK_ERROR, "too many look-ups"))
OUT = f"out.{SHOP}"
WEB, HARD, VIRTUAL, FED = f"web.{SHOP}", f"hard.{SHOP}", f"virtual.{SHOP}", "web.shop.fed.example"
OWN, THEIRS = ("cluster.local", 5), ("example.net", 300)
CHAINS: dict[str, tuple[Outside, str, list[str], Any, tuple[str, int] | None, list[int]]] = {
    # what the upstream says -> rcode, CNAMEs, other data, SOA, extended errors
    "to an address outside": (
        {"out.example.net": said([address("out.example.net")])},
        "NOERROR", ["out.example.net"], {"192.0.2.9"}, None, []),
    "over aliases outside": (
        {"out.example.net": said([*leads_to("cdn.example.org").aliases, address("cdn.example.org")])},
        "NOERROR", ["out.example.net", "cdn.example.org"], {"192.0.2.9"}, None, []),
    "back to the nearest endpoint": (
        {"out.example.net": leads_to(WEB)}, "NOERROR", ["out.example.net", WEB], {"10.1.0.1"}, None, []),
    "back over an alias outside": (
        {"out.example.net": leads_to("cdn.example.org", WEB)},
        "NOERROR", ["out.example.net", "cdn.example.org", WEB], {"10.1.0.1"}, None, []),
    "back to an alias in the zone": (
        {"out.example.net": leads_to(f"in.{SHOP}")},
        "NOERROR", ["out.example.net", f"in.{SHOP}", WEB], {"10.1.0.1"}, None, []),
    "back to a federated name": (
        {"out.example.net": leads_to(FED)}, "NOERROR", ["out.example.net", FED], {"10.1.0.1", "10.1.0.2"}, None, []),
    "what the upstream says of our names does not count": (
        {"out.example.net": said([alias("out.example.net", WEB), address(WEB, "192.0.2.66")])},
        "NOERROR", ["out.example.net", WEB], {"10.1.0.1"}, None, []),
    "nor does it count that our name is an alias to it": (
        {"out.example.net": said([*leads_to(WEB, "evil.example").aliases, address("evil.example", "192.0.2.66")])},
        "NOERROR", ["out.example.net", WEB], {"10.1.0.1"}, None, []),
    "nor that our name does not exist": (
        {"out.example.net": said(leads_to(WEB).aliases, rcode=NXDOMAIN, soa=[soa_of("local")])},
        "NOERROR", ["out.example.net", WEB], {"10.1.0.1"}, None, []),
    "back to what does not exist": (
        {"out.example.net": leads_to(f"none.{SHOP}")},
        "NXDOMAIN", ["out.example.net", f"none.{SHOP}"], set(), OWN, []),
    "back, out, and back again": (
        {"out.example.net": leads_to(f"again.{SHOP}"), "again.example.net": leads_to(WEB, name="again.example.net")},
        "NOERROR", ["out.example.net", f"again.{SHOP}", "again.example.net", WEB], {"10.1.0.1"}, None, []),
    "back, and out to what fails": (
        {"out.example.net": leads_to(f"again.{SHOP}")}, "SERVFAIL", [], set(), None, [22]),
    "a loop through the outside": (
        {"out.example.net": leads_to(OUT)}, "NOERROR", ["out.example.net", OUT], set(), None, []),
    "a longer loop": (
        {"out.example.net": leads_to("cdn.example.org", f"again.{SHOP}"),
         "again.example.net": leads_to("cdn.example.org", name="again.example.net")},
        "NOERROR", ["out.example.net", "cdn.example.org", f"again.{SHOP}", "again.example.net", "cdn.example.org"],
        set(), None, []),
    "as many aliases as are followed": (
        {"out.example.net": leads_to(f"deep{DEEP - 5}.{SHOP}")},
        "NOERROR", ["out.example.net", *(f"deep{n}.{SHOP}" for n in range(DEEP - 5, DEEP + 1)), WEB], {"10.1.0.1"},
        None, []),
    "one more": (
        {"out.example.net": leads_to(f"deep{DEEP - 6}.{SHOP}")},
        "NOERROR", ["out.example.net", *(f"deep{n}.{SHOP}" for n in range(DEEP - 6, DEEP + 1)), WEB], set(), None, []),
    "many aliases outside that the upstream has followed": (
        {"out.example.net": said([
            *leads_to(*(f"n{n}.example.net" for n in range(12))).aliases, address("n11.example.net")])},
        "NOERROR", ["out.example.net", *(f"n{n}.example.net" for n in range(12))], {"192.0.2.9"}, None, []),
    "too many aliases outside, without their end": (
        {"out.example.net": leads_to(*(f"n{n}.example.net" for n in range(12)))},
        "NOERROR", ["out.example.net", *(f"n{n}.example.net" for n in range(MAX_ALIASES))], set(), None, []),
    "too many aliases outside, and back": (
        {"out.example.net": leads_to(*(f"n{n}.example.net" for n in range(12)), WEB)},
        "NOERROR", ["out.example.net", *(f"n{n}.example.net" for n in range(MAX_ALIASES))], set(), None, []),
    "an upstream that leaves the end to others": (
        {"out.example.net": leads_to("cdn.example.org"), "cdn.example.org": said([address("cdn.example.org")])},
        "NOERROR", ["out.example.net", "cdn.example.org"], {"192.0.2.9"}, None, []),
    "NXDOMAIN outside": (
        {"out.example.net": said([], rcode=NXDOMAIN, soa=[soa_of("example.net")])},
        "NXDOMAIN", ["out.example.net"], set(), THEIRS, []),
    "NXDOMAIN of the root": (
        {"out.example.net": said([], rcode=NXDOMAIN, soa=[Record("", SOA, 60, soa_of("example.net").data)])},
        "NXDOMAIN", ["out.example.net"], set(), ("", 60), []),
    "NXDOMAIN without an SOA": (
        {"out.example.net": said([], rcode=NXDOMAIN)}, "NXDOMAIN", ["out.example.net"], set(), None, []),
    "NODATA outside": (
        {"out.example.net": said([], soa=[soa_of("example.net")])}, "NOERROR", ["out.example.net"], set(), THEIRS, []),
    "a look-up that fails": ({}, "SERVFAIL", [], set(), None, [22]),
    "over an alias outside, to a look-up that is refused": (
        {"out.example.net": leads_to("cdn.example.org"), "cdn.example.org": REFUSED},
        "SERVFAIL", [], set(), None, [23]),
}  # fmt: skip
CLUSTER = listed([*ITEMS, external("again", "again.example.net")])
SNAPSHOT = snapshot_of(CLUSTER, FLAGS)


def responding(**flags: Any) -> CountedResponder:
    return responder_of(CLUSTER, {**FLAGS, **flags})


@pytest.mark.parametrize("case", CHAINS)
def test_where_a_chain_ends(case: str) -> None:
    """Every CNAME counts, whoever brings it (RFC 1034, 3.6.2; RFC 6604, 3); asked again, the same."""
    outside, *expected = CHAINS[case]
    responder = responding()
    for proto in ("udp", "udp", "tcp"):
        reply = ask(responder, OUT, outside, proto=proto)
        assert list(reply[:-1]) == expected
        assert bool(reply.message.flags & dns.flags.AA) == (reply.rcode != "SERVFAIL")
        assert not reply.message.flags & dns.flags.TC


@pytest.mark.parametrize("case", CHAINS)
def test_it_is_explained(case: str) -> None:
    """``explain`` gives the answer that is sent, and a reason."""
    outside, rcode, aliases, answers, _, errors = CHAINS[case]
    explained = explanation_of(
        SNAPSHOT, OUT, IN_A, flags=FLAGS, candidates=True, outside=lambda target: outside.get(target, FAILED)
    )
    data = [answer.data.rstrip(".") for answer in explained.answers]
    assert (explained.rcode, data) == (rcode, [*aliases, *sorted(answers)])
    error = explained.extended_error
    assert ([error.code] if error else []) == errors
    assert explained.reason


def test_it_is_told() -> None:
    """``tail`` has a line for a reply that waited, with what was sent, once."""
    responder, everything = responding(), Everything(FLAGS)
    tap_of(responder).listen(everything)
    ask(responder, OUT, {"out.example.net": leads_to(WEB)})
    (line,) = everything.lines
    assert line.rcode == "NOERROR"
    assert [answer.data for answer in line.answers] == ["out.example.net.", f"{WEB}.", "10.1.0.1"]


def test_each_client_gets_what_is_nearest_to_it() -> None:
    """What the upstream says is the same for all; what lies in the zones is not."""
    responder, back = responding(), {"out.example.net": leads_to(WEB)}
    for _ in range(2):
        for client, expected in ((IN_A, {"10.1.0.1"}), (IN_B, {"10.1.0.2"}), (NOWHERE, {"10.1.0.1", "10.1.0.2"})):
            assert ask(responder, OUT, back, client=client).answers == expected


def test_the_scope_says_for_whom_it_is() -> None:
    """RFC 7871, 7.2.1: only an answer that depends on the client is for its address alone."""
    responder = responding()
    for targets, scope in (((WEB,), 32), ((VIRTUAL,), 0), (("cdn.example.org",), 0)):
        outside = {"out.example.net": leads_to(*targets), "cdn.example.org": said([address("cdn.example.org")])}
        reply = ask(responder, OUT, outside)
        (subnet,) = [option for option in reply.message.options if option.otype == dns.edns.OptionType.ECS]
        assert subnet.scopelen == scope  # type: ignore[attr-defined]


def test_a_hard_constraint_at_the_end_of_a_chain() -> None:
    """NODATA that must not be cached, and the reason (RFC 7871, 7.4)."""
    responder, back = responding(), {"out.example.net": leads_to(HARD)}
    assert ask(responder, OUT, back).answers == {"10.1.0.3"}
    reply = ask(responder, OUT, back, client=IN_B)
    assert reply[:-1] == ("NOERROR", ["out.example.net", HARD], set(), ("cluster.local", 0), [0])
    assert reply.message.authority[0][0].minimum == 0


def test_what_lies_in_the_zones_is_answered_from_the_present_cluster() -> None:
    """The upstream's answer may be an old one: ours is not."""
    responder, back = responding(), {"out.example.net": leads_to(WEB)}
    assert ask(responder, OUT, back).answers == {"10.1.0.1"}
    other = [item for item in ITEMS if item["metadata"]["name"] != "web-1"]
    moved = [*other, endpoint_slice("web", 1, [endpoint("10.1.0.8", nodeName="a1")])]
    responder.publish(snapshot_of(listed(moved), FLAGS))
    assert ask(responder, OUT, back).answers == {"10.1.0.8"}


def test_while_a_reply_waits_the_cluster_changes() -> None:
    """It is answered from the cluster as it is when it is sent."""
    responder = responding()
    source = parse_address(FORWARDER)
    wire = query(OUT, edns=opt(ecs(IN_A)))
    pending = responder.reply(wire, source, responder.channel(source, "udp"))
    assert isinstance(pending, AnsweredQuery)
    responder.publish(snapshot_of(listed([item for item in ITEMS if item["kind"] != "EndpointSlice"]), FLAGS))
    reply = responder.finished(pending, leads_to(WEB))
    assert isinstance(reply, bytes)
    assert dns.rcode.to_text(dns.message.from_wire(reply).rcode()) == "NXDOMAIN"


def test_ttls_are_each_records_own() -> None:
    """The rest of the upstream's TTL for what it brought, ours for our own."""
    responder = responding(ttl=7)
    reply = ask(responder, OUT, {"out.example.net": said([alias("out.example.net", WEB, 33)])})
    assert [rrset.ttl for rrset in reply.message.answer] == [7, 33, 7]


TYPES = sorted(UPSTREAM_TYPES - {A})


@pytest.mark.parametrize("qtype", [type_name(number) for number in TYPES])
def test_every_type_that_is_asked_for_is_followed(qtype: str) -> None:
    """NODATA at its end is our own."""
    responder = responding()
    reply = ask(responder, OUT, {"out.example.net": leads_to(WEB)}, qtype=qtype)
    assert (reply.rcode, reply.aliases) == ("NOERROR", ["out.example.net", WEB])
    assert (reply.soa is None) == bool(reply.answers) == (qtype == "SRV")


def test_srv_at_the_end_has_its_additional_records() -> None:
    """As if it had been asked for itself."""
    reply = ask(responding(), OUT, {"out.example.net": leads_to(WEB)}, qtype="SRV")
    assert reply.answers == {f"0 100 80 10-1-0-1.{WEB}."}
    assert [str(rdata) for rrset in reply.message.additional for rdata in rrset] == ["10.1.0.1"]


def test_a_reverse_name_at_the_end() -> None:
    """A CNAME of the upstream can lead to any zone that is served."""
    reply = ask(responding(), OUT, {"out.example.net": leads_to("1.0.1.10.in-addr.arpa")}, qtype="PTR")
    assert reply.answers == {f"10-1-0-1.{WEB}."}


@pytest.mark.parametrize("qtype", ["CNAME", "ANY", "TYPE65280", "HINFO"])
def test_other_types_ask_nobody(qtype: str) -> None:
    """The CNAME alone, as without an upstream."""
    asked: list[str] = []
    reply = ask(responding(), OUT, {}, qtype=qtype, asked=asked)
    assert (reply.rcode, reply.aliases, asked) == ("NOERROR", ["out.example.net"], [])


def test_without_an_upstream_the_cname_stands_alone() -> None:
    """NOERROR: whoever can may look up the rest."""
    reply = ask(responding(upstream="off"), OUT, {})
    assert reply[:-1] == ("NOERROR", ["out.example.net"], set(), None, [])


hosts = st.sampled_from([*(f"n{n}.example.net" for n in range(6)), "again.example.net", "out.example.net"])
served = st.sampled_from([WEB, HARD, VIRTUAL, FED, OUT, f"again.{SHOP}", f"in.{SHOP}", f"deep3.{SHOP}", f"none.{SHOP}"])


@st.composite
def answers(draw: st.DrawFn, name: str) -> UpstreamAnswer:
    targets = draw(st.lists(st.one_of(hosts, served), max_size=4, unique=True))
    brought = leads_to(*targets, name=name).aliases if name not in targets else ()
    end = draw(st.sampled_from(["address", "nothing", "nxdomain", "fails"]))
    if end == "fails":
        return FAILED
    records = [address(brought[-1].data.name if brought else name)] if end == "address" else []  # type: ignore[union-attr]
    negative = {"soa": [soa_of("example.net")], "rcode": NXDOMAIN} if end == "nxdomain" else {}
    return said([*brought, *records], **negative)


@settings(max_examples=50)
@given(st.data())
def test_any_upstream_ends(data: st.DataObject) -> None:
    """Whatever it says: at most 9 CNAMEs before what it says in the end, 9 look-ups, and the same answer for ever."""
    outside = {f"{name}.example.net": data.draw(answers(f"{name}.example.net"))
               for name in ("out", "again", *(f"n{n}" for n in range(6)))}  # fmt: skip
    for name in (OUT, f"again.{SHOP}", f"deep{DEEP - 3}.{SHOP}"):
        asked: list[str] = []
        first = ask(RESPONDER, name, outside, asked=asked)
        last = len(outside[asked[-1]].aliases) if asked and asked[-1] in outside else 0
        assert len(asked) == len(set(asked)) <= MAX_ALIASES and len(first.aliases) <= MAX_ALIASES + last
        assert ask(RESPONDER, name, outside, proto="tcp")[:-1] == first[:-1]
        if first.rcode == "SERVFAIL":
            assert not first.aliases and not first.answers
        if first.answers:
            assert first.soa is None and first.rcode == "NOERROR"


RESPONDER = responding()
