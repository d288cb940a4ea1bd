# SPDX-License-Identifier: Apache-2.0

"""The intended differences between topodns and CoreDNS, which ``differences.toml`` describes.

A row changes CoreDNS's reply into the one that topodns must give, or leaves it unchanged. So a row cannot hide any
other difference: after all rows both replies must be equal, record by record.
"""

from __future__ import annotations

import ipaddress
import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import dns.rdatatype

from dnsserver.answers.decision import UPSTREAM_TYPES
from tests.peers.comparison.asking import (
    CLUSTERSET,
    DOMAIN,
    DOMAINS,
    NEVER,
    Asked,
    Question,
    Record,
    Reply,
    dashed,
    in_small_letters,
    reply_of,
    zone_of,
)
from tests.peers.comparison.settings import Pair

NOERROR, NXDOMAIN, SERVFAIL = "NOERROR", "NXDOMAIN", "SERVFAIL"
EXISTENCE = f"TYPE{NEVER}"
MAPPED = f"0.f.f.f.f.{'0.' * 20}ip6.arpa"  # beneath the network of all IPv4 addresses as IPv6
CNAMES = 9  # at most in an answer: topodns follows 8 of them


class Difference(NamedTuple):
    """A row of the table: what is asked, what each server answers, and why."""

    name: str
    about: str
    coredns: str
    topodns: str
    why: str


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
# In their order: each changes the reply that the ones before it have made.
DIFFERENCES = tuple(Difference(name, **texts) for name, texts in TABLE.items())

Change = Callable[[Question, Reply, "CorednsBook"], Reply | None]
_CHANGES: dict[str, Change] = {}


def changes(name: str) -> Callable[[Change], Change]:
    """Have a function make the difference of that name: it changes CoreDNS's reply into that of topodns."""

    def register(change: Change) -> Change:
        _CHANGES[name] = change
        return change

    return register


class Facts(NamedTuple):
    """Facts about a cluster that CoreDNS does not use.

    ``second_addresses``: names of pods by an address that is not their first, with that address. ``zones``: addresses
    of endpoints with the zone of their Node, in lower case, empty if there is none. ``services``: names of Services
    other than ExternalName. ``named``: those whose endpoints are host names (``addressType: FQDN``). ``dotted``: names
    of endpoints made of a pod's name with a dot, with their names made of the address. ``portless``: the IPs of
    ServiceImports without ports, by their names.
    """

    second_addresses: Mapping[str, str]
    zones: Mapping[str, str]
    services: frozenset[str]
    named: frozenset[str]
    dotted: Mapping[str, str]
    portless: Mapping[str, Sequence[str]]


class CorednsBook:
    """CoreDNS's replies with one pair of settings; the book asks when it does not know a reply yet."""

    def __init__(
        self,
        pair: Pair,
        ask: Callable[[Sequence[Asked]], Sequence[bytes]],
        *,
        facts: Facts,
        upstream: Callable[[Sequence[Asked]], Sequence[bytes]],
        zonal: CorednsBook | None = None,
    ) -> None:
        self.pair = pair
        self.zonal = zonal or self
        self.facts = facts
        self.used: set[str] = set()
        self._ask, self._upstream = ask, upstream
        self._replies: dict[Question, Reply] = {}
        self._plain: dict[Question, Reply] = {}
        self._before: dict[tuple[str, Question], Reply] = {}
        self._expected: dict[Question, Reply] = {}
        self._outside: dict[Question, Reply] = {}

    def learn(self, all_asked: Sequence[Asked]) -> list[Reply]:
        """Ask all questions; return the replies in their order."""
        replies = [reply_of(wire) for wire in self._ask(all_asked)]
        self._replies.update(zip([asked.question for asked in all_asked], replies, strict=True))
        if self.zonal is not self:
            self.zonal.look_up(asked.question for asked in all_asked if is_zonal(asked.question.name))
        return replies

    def look_up(self, questions: Iterable[Question]) -> None:
        """Ask the questions whose reply is not known yet."""
        if unknown := [question for question in questions if question not in self._replies]:
            self.learn([in_small_letters(question) for question in unknown])

    def plain(self, question: Question) -> Reply:
        """Return CoreDNS's reply to a question in lower case."""
        if question not in self._plain:
            (wire,) = self._ask([in_small_letters(question)])
            self._plain[question] = reply_of(wire)
        return self._plain[question]

    def reply(self, question: Question) -> Reply:
        """Return CoreDNS's reply."""
        self.look_up([question])
        return self._replies[question]

    def expected(self, question: Question) -> Reply:
        """Return the reply that topodns must give, except for the header's flags."""
        if question not in self._expected:
            self._expected[question] = self.changed(question, self.reply(question), DIFFERENCES)
        return self._expected[question]

    def changed(self, question: Question, reply: Reply, rows: Iterable[Difference]) -> Reply:
        """Return *reply* with the changes of *rows*."""
        for row in rows:
            after = _CHANGES[row.name](question, reply, self)
            if after is not None and after != reply:
                self.used.add(row.name)
                reply = after
        return reply

    def before(self, row: str, question: Question) -> Reply:
        """Return CoreDNS's reply with the changes of the rows above *row*."""
        if (row, question) not in self._before:
            above = itertools.takewhile(lambda other: other.name != row, DIFFERENCES)
            self._before[row, question] = self.changed(question, self.reply(question), above)
        return self._before[row, question]

    def outside(self, name: str, qtype: str) -> tuple[Reply, str]:
        """Return what the upstream says about a name, SERVFAIL if it fails, and the target of the last CNAME."""
        question = Question(name, qtype)
        if question not in self._outside:
            (wire,) = self._upstream([in_small_letters(question)])
            self._outside[question] = reply_of(wire)
        said = self._outside[question]
        targets = {record.name: record.data for record in said.answer if record.type == "CNAME"}
        while name in targets:
            name = targets[name]
        if said.answer and len(targets) == len(said.answer) and not zone_of(name):  # to be asked for by itself
            rest, name = self.outside(name, qtype)
            said = rest._replace(answer=(*said.answer, *rest.answer))
        return said if said.rcode in (NOERROR, NXDOMAIN) else said._replace(rcode=SERVFAIL), name

    def exists(self, name: str) -> bool:
        """Whether a name exists for CoreDNS, by the type ``NEVER``; other types may tell otherwise."""
        return self.reply(Question(name, EXISTENCE)).rcode == NOERROR

    def soa(self, name: str) -> tuple[Record, ...]:
        """Return the SOA record of the zone of *name*, as negative answers carry it."""
        return self.reply(Question(zone_of(name), EXISTENCE)).authority

    def cname(self, name: str) -> Record | None:
        """Return the CNAME record of *name*."""
        if zone_of(name) != DOMAIN or _service_of(name) in self.facts.named:
            return None
        return next(iter(self.reply(Question(name, "CNAME")).answer), None)

    @cached_property
    def non_terminals(self) -> set[str]:
        """The names above any name that exists and was asked for."""
        names: set[str] = set()
        for question in list(self._replies):
            if question.type == EXISTENCE and self.before("empty-non-terminals", question).rcode == NOERROR:
                names.update(_above(question.name))
        return names | {*_above(MAPPED)} if any(name.endswith(".in-addr.arpa") for name in names) else names


def _above(name: str) -> Iterator[str]:
    """Yield the names above a name."""
    while name := name.partition(".")[2]:
        yield name


def is_zonal(name: str) -> bool:
    """Whether a name has the shape of a zonal name."""
    labels = beneath(name, f"svc.{DOMAIN}")
    return len(labels) >= 5 and labels[-3] == "_zone" and labels[-4] in ("pin", "prefer")


def beneath(name: str, ancestor: str) -> list[str]:
    """Return the labels of *name* left of *ancestor*; empty if *name* is not beneath it."""
    return name.removesuffix(f".{ancestor}").split(".") if name.endswith(f".{ancestor}") else []


def _nodata(question: Question, reply: Reply, book: CorednsBook) -> Reply:
    return reply._replace(rcode=NOERROR, answer=(), authority=book.soa(question.name), additional=())


def _nxdomain(question: Question, reply: Reply, book: CorednsBook) -> Reply:
    return _nodata(question, reply, book)._replace(rcode=NXDOMAIN)


# The changes


def _replaced(reply: Reply, other: Reply) -> Reply:
    """Return *other* with the flags of *reply*, which are those of the question."""
    return other._replace(flags=reply.flags, edns=reply.edns)


def knowing(name: str) -> list[Question]:
    """Return the questions that together tell whether a name exists: CoreDNS may deny it for some types."""
    return [Question(name, qtype) for qtype in (EXISTENCE, "TXT", *(("PTR",) if zone_of(name) not in DOMAINS else ()))]


@changes("capitals")
def _capitals(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    zone = zone_of(question.name)
    if question.name not in (zone, f"ns.dns.{zone}"):
        return None
    return _replaced(reply, book.plain(question))


@changes("zonal-names")
def _zonal_by_default(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if "zonal" in book.pair.coredns or "off" in book.pair.topodns or not is_zonal(question.name):
        return None
    return _replaced(reply, book.zonal.reply(question))


@changes("zone-of-node")
def _zone_of_node(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if reply.rcode != NOERROR or question.type not in ("A", "AAAA", "SRV") or not is_zonal(question.name):
        return None
    *value, way, _, name, where = beneath(question.name, f"svc.{DOMAIN}")
    every = book.reply(Question(f"{name}.{where}.svc.{DOMAIN}", question.type))
    records = every.additional if question.type == "SRV" else every.answer
    near = tuple(record for record in records if book.facts.zones.get(record.data) == ".".join(value))
    if question.type != "SRV":
        chosen, additional = near, ()
    else:
        targets = {record.name for record in near}
        chosen, additional = tuple(record for record in every.answer if record.data.split()[-1] in targets), near
    if not near and way == "prefer":
        chosen, additional = every.answer, every.additional
    if not chosen:
        return _nodata(question, reply, book)
    answer = tuple(sorted(record._replace(name=question.name) for record in chosen))
    return reply._replace(answer=answer, authority=(), additional=additional)


@changes("zonal-names-of-nobody")
def _nobody_in_a_zone(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if reply.rcode != NOERROR or not is_zonal(question.name):
        return None
    nobody = not book.exists(_service_of(question.name))
    return _nxdomain(question, reply, book) if nobody else None


def _service_of(name: str) -> str:
    return ".".join(name.split(".")[-5:])


@changes("names-as-addresses")
def _names_as_addresses(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    found = _service_of(question.name) in book.facts.named and reply.rcode == NOERROR
    return _nxdomain(question, reply, book) if found else None


@changes("dotted-pods")
def _dotted_pods(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if "endpoint_pod_names" not in book.pair.coredns:
        return None
    if question.name in book.facts.dotted.values() and reply.rcode == NXDOMAIN:
        return _replaced(reply, book.zonal.reply(question))

    def renamed(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(sorted(map(by_address, records)))

    def by_address(record: Record) -> Record:
        *others, last = record.data.split(" ")
        data = " ".join((*others, book.facts.dotted.get(last, last)))
        return record._replace(name=book.facts.dotted.get(record.name, record.name), data=data)

    return reply._replace(answer=renamed(reply.answer), additional=renamed(reply.additional))


@changes("pod-spellings")
def _pod_spellings(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    zone = zone_of(question.name)
    labels = beneath(question.name, f"pod.{zone}")
    if reply.rcode != NXDOMAIN or "pods verified" not in book.pair.coredns or len(labels) != 2:
        return None
    try:
        address = ipaddress.IPv6Address(labels[0].replace("-", ":"))
    except ValueError:
        return None
    shortest = f"{dashed(str(address))}.{labels[1]}.pod.{zone}"
    if shortest == question.name:
        return None
    other = book.before("pod-spellings", Question(shortest, question.type))
    return _replaced(reply, other)._replace(
        answer=tuple(record._replace(name=question.name) for record in other.answer)
    )


def _is_served(name: str, book: CorednsBook) -> bool:
    service = _service_of(name)
    return service in book.facts.services and book.exists(service.partition(".")[2])


@changes("dangling-ptr")
def _dangling(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if question.type != "PTR" or not reply.answer:
        return None
    sound = tuple(record for record in reply.answer if _is_served(record.data, book))
    return reply._replace(answer=sound) if sound else _nxdomain(question, reply, book)


@changes("import-without-ports")
def _no_ports(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    addresses = book.facts.portless.get(question.name)
    if addresses is None or reply.rcode != NXDOMAIN or "ignore empty_service" in book.pair.coredns:
        return None
    found = [address for address in addresses if question.type == ("AAAA" if ":" in address else "A")]
    answer = tuple(Record(question.name, question.type, book.pair.ttl, address) for address in found)
    return reply._replace(rcode=NOERROR, answer=answer, authority=()) if answer else _nodata(question, reply, book)


@changes("soa-of-missing-names")
def _soa_anywhere(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    missing = reply.rcode == NOERROR and not reply.answer and not book.exists(question.name)
    return _nxdomain(question, reply, book) if question.type == "SOA" and missing else None


@changes("every-type")
def _every_type(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if reply.rcode != NXDOMAIN:
        return None
    others = knowing(question.name)
    exists = any(book.before("every-type", other).rcode == NOERROR for other in others)
    return _nodata(question, reply, book) if exists else None


def _port(name: str) -> tuple[str, str] | None:
    zone = zone_of(name)
    labels = beneath(name, f"svc.{zone}")
    if len(labels) != 4 or (zone == CLUSTERSET and not (labels[0] + labels[1]).count("_")):  # an endpoint's name
        return None
    return labels[0], labels[1]


@changes("port-underscores")
def _underscores(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    port = _port(question.name)
    if port is None or reply.rcode != NOERROR or all(label.startswith("_") and label != "_" for label in port):
        return None
    return _nxdomain(question, reply, book)


@changes("ports-without-number")
def _no_number(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    found = _port(question.name) is not None and reply.rcode == NOERROR and not is_zonal(question.name)
    if not found or book.reply(Question(question.name, "SRV")).answer:
        return None
    has_addresses = any(book.reply(Question(question.name, qtype)).answer for qtype in ("A", "AAAA"))
    return _nxdomain(question, reply, book) if has_addresses else None  # else its ServiceImport has no IP yet


@changes("port-addresses")
def _srv_alone(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    addresses = question.type in ("A", "AAAA") and bool(reply.answer) and _port(question.name) is not None
    return _nodata(question, reply, book) if addresses else None


@changes("labels-before-pods")
def _labels_before_pods(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    longer = len(beneath(question.name, f"pod.{zone_of(question.name)}")) > 2 and reply.rcode == NOERROR
    return _nxdomain(question, reply, book) if longer else None


@changes("pod-srv")
def _pod_srv(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    of_pod = bool(beneath(question.name, f"pod.{zone_of(question.name)}"))
    return _nodata(question, reply, book) if of_pod and question.type == "SRV" and reply.answer else None


@changes("second-addresses")
def _second_address(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    address = book.facts.second_addresses.get(question.name)
    if address is None or "pods verified" not in book.pair.coredns or reply.rcode != NXDOMAIN:
        return None
    if question.type != ("AAAA" if ":" in address else "A"):
        return _nodata(question, reply, book)
    record = Record(question.name, question.type, book.pair.ttl, address)
    return reply._replace(rcode=NOERROR, answer=(record,), authority=())


@changes("labels-before-reverse")
def _labels_before_reverse(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    longer = len(beneath(question.name, "ip6.arpa")) > 32 and reply.rcode == NOERROR
    return _nxdomain(question, reply, book) if longer else None


@changes("empty-non-terminals")
def _non_terminals(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    found = reply.rcode == NXDOMAIN and question.name in book.non_terminals
    return _nodata(question, reply, book) if found else None


def _chain(name: str, book: CorednsBook) -> tuple[list[Record], str]:
    """Return the CNAMEs from *name* on, as far as topodns follows them, and the last target."""
    found: list[Record] = []
    seen = {name}
    while len(found) < CNAMES and (record := book.cname(name)) is not None:
        found.append(record)
        name = record.data
        if name in seen:
            break
        seen.add(name)
    return found, name


def _is_left_open(chain: Sequence[Record], end: str, book: CorednsBook) -> bool:
    """Whether the chain is a loop, or longer than topodns follows."""
    return len(chain) == CNAMES or (zone_of(end) != "" and book.cname(end) is not None)


def _followed(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    """Return a reply with the CNAMEs, and with the records of the last target."""
    chain, end = _chain(question.name, book)
    if not chain:
        return None
    if _is_left_open(chain, end, book):
        return reply._replace(rcode=NOERROR, answer=tuple(sorted(chain)), authority=(), additional=())
    if zone_of(end):
        rest = book.expected(Question(end, question.type))
    elif book.pair.upstream and dns.rdatatype.from_text(question.type) in UPSTREAM_TYPES:
        rest, end = book.outside(end, question.type)
        if rest.rcode == SERVFAIL:
            flags = " ".join(flag for flag in reply.flags.split() if flag != "AA")
            return reply._replace(rcode=SERVFAIL, flags=flags, answer=(), authority=(), additional=())
        if zone_of(end):
            aliases = [record for record in rest.answer if record.type == "CNAME"]
            rest = book.expected(Question(end, question.type))
            rest = rest._replace(answer=(*aliases, *rest.answer))
    else:
        rest = reply._replace(rcode=NOERROR, answer=(), authority=(), additional=())
    return reply._replace(
        rcode=rest.rcode,
        answer=tuple(sorted((*chain, *rest.answer))),
        authority=rest.authority,
        additional=rest.additional,
    )


@changes("cname-every-type")
def _cname_every_type(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    return None if question.type in ("A", "AAAA", "CNAME", "ANY", "AXFR", "IXFR") else _followed(question, reply, book)


@changes("cname-without-address")
def _cname_without_address(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    chain, end = _chain(question.name, book)
    if question.type not in ("A", "AAAA") or any(record.type != "CNAME" for record in reply.answer):
        return None
    outside = book.pair.upstream and not zone_of(end)
    return None if outside or _is_left_open(chain, end, book) else _followed(question, reply, book)


def _cname_outside(
    question: Question, reply: Reply, book: CorednsBook, wanted: Callable[[Reply, str], bool]
) -> Reply | None:
    """Return the reply with what the upstream says at the end of a chain, if that and its last name are *wanted*."""
    chain, end = _chain(question.name, book)
    if not chain or zone_of(end) or not book.pair.upstream or question.type not in ("A", "AAAA"):
        return None
    return _followed(question, reply, book) if wanted(*book.outside(end, question.type)) else None


@changes("cname-nothing-outside")
def _cname_nothing_outside(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    return _cname_outside(
        question, reply, book, lambda said, end: said.rcode != SERVFAIL and bool(said.authority) and not zone_of(end)
    )


@changes("cname-fails-outside")
def _cname_fails_outside(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    return _cname_outside(question, reply, book, lambda said, _: said.rcode == SERVFAIL)


@changes("cname-back")
def _cname_back(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    return _cname_outside(question, reply, book, lambda _, end: bool(zone_of(end)))


@changes("colons-first")
def _colons_first(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    """Rename the endpoints that CoreDNS gives a name with a hyphen in front."""
    if beneath(question.name, f"pod.{zone_of(question.name)}"):
        return None
    if question.name.startswith("--") and reply.rcode == NOERROR:
        return _nxdomain(question, reply, book)
    if question.name.startswith("0--") and reply.rcode == NXDOMAIN:
        other = book.reply(Question(question.name[1:], question.type))
        if other.rcode != NOERROR:
            return None
        reply = _replaced(reply, other)

    def renamed(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(sorted(map(with_digit, records)))

    def with_digit(record: Record) -> Record:
        *others, last = record.data.split(" ")
        name = f"0{record.name}" if record.name.startswith("--") else record.name
        return record._replace(name=name, data=" ".join((*others, f"0{last}" if last.startswith("--") else last)))

    return reply._replace(answer=renamed(reply.answer), additional=renamed(reply.additional))


@changes("cname-loop")
def _cname_loop(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if question.type not in ("A", "AAAA"):
        return None
    return _followed(question, reply, book) if _is_left_open(*_chain(question.name, book), book) else None


@changes("any")
def _any(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    if question.type != "ANY":
        return None
    cname = book.cname(question.name)
    if cname is not None:
        return reply._replace(rcode=NOERROR, answer=(cname,), authority=(), additional=())
    if book.expected(Question(question.name, EXISTENCE)).rcode == NXDOMAIN:
        return _nxdomain(question, reply, book)
    record = Record(question.name, "HINFO", book.pair.ttl, '"rfc8482" ""')
    return reply._replace(rcode=NOERROR, answer=(record,), authority=(), additional=())


@changes("srv-weights")
def _weights(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    count = sum(record.type == "SRV" for record in reply.answer)
    if not count:
        return None
    weight = str(max(1, 100 // count))

    def weighed(record: Record) -> Record:
        if record.type != "SRV":
            return record
        priority, _, rest = record.data.split(" ", 2)
        return record._replace(data=f"{priority} {weight} {rest}")

    return reply._replace(answer=tuple(sorted(map(weighed, reply.answer))))


@changes("soa-ttl")
def _soa_ttl(question: Question, reply: Reply, book: CorednsBook) -> Reply | None:
    def lasting(records: tuple[Record, ...]) -> tuple[Record, ...]:
        return tuple(
            record._replace(ttl=book.pair.ttl) if record.type == "SOA" and record.ttl == 300 else record
            for record in records
        )

    return reply._replace(answer=lasting(reply.answer), authority=lasting(reply.authority))
