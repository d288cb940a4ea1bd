# SPDX-License-Identifier: Apache-2.0

"""Every scenario, on every path of an answer: computed, remembered, by UDP, by TCP, and explained.

Each file in ``scenarios/`` is one scenario. Its first document holds the queries and the expected replies, the others
are the cluster as kubectl prints it. So the file is also a snapshot:
``topodns explain NAME --client ADDR --snapshot tests/scenarios/FILE``. A query has

- ``case``: what it shows; ``name`` (default: the scenario's) and ``type`` (default: A);
- ``client``: the client's address or subnet, or ``nobody`` if the forwarder names none;
- ``through``: the forwarder that the client asked, which names it by EDNS client subnet;
- ``subnet``, ``option``: the client subnet, and the EDNS option 65001, of the query; ``ignored`` if the reply has the
  extended error of an untrusted source;
- ``rcode`` (default: NOERROR), ``answers``: the records' data as a set (of PTR in order), ``error``: a part of the
  extended error's text;
- ``spares``: the data of the records after the ``answers``, in order;
- ``aliases``: the targets of the CNAME records before the answers, in order; ``elsewhere`` if the last is outside the
  zones;
- ``ttl`` of the answers, if it is not the scenario's;
- ``outcome``, and if given ``located_by``, ``source`` of the constraint, ``steps`` (endpoints left by each key), in the
  words of ``explain``;
- ``sources``: the sources that do not decide, and ``candidates``: the endpoints that are not chosen, by their first
  addresses, each with a part of the reason that ``explain`` gives;
- ``scope`` of the client subnet, and ``soa_ttl``, if they do not follow from the outcome.

The field ``clusters`` of a scenario has the dumps of other clusters, by the name of the cluster.
"""

from __future__ import annotations

import ipaddress
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
import yaml

from dnsserver.tools.explain.explanation import DECODER, Explanation
from tests.kit.commands_in_process import Run
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import CountedResponder, ask_in_memory, responder_of
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import serving

FOLDER = ROOT / "tests" / "scenarios"
CLIENT_OPTION = 65001
FIELDS = {
    *("case", "name", "type", "client", "through", "subnet", "option", "ignored", "rcode", "answers"),
    *("error", "outcome", "located_by", "source", "steps", "scope", "soa_ttl", "aliases", "elsewhere", "ttl"),
    *("sources", "candidates", "spares"),
}


class Scenario(NamedTuple):
    """One file: its settings, its queries, and the cluster as text."""

    path: Path
    flags: dict[str, Any]
    ttl: int
    queries: list[dict[str, Any]]

    @property
    def cluster(self) -> str:
        return self.path.read_text()

    def __repr__(self) -> str:
        return self.path.stem


def _load(path: Path) -> Scenario:
    head = next(iter(yaml.load_all(path.read_text(), yaml.CSafeLoader)))
    assert head["kind"] == "Scenario" and head["title"] and head["rule"], path
    flags = head.get("flags", {})
    if "clusters" in head:
        flags["cluster"] = [f"{name}={path.parent / other}" for name, other in head["clusters"].items()]
    defaults = {"name": head.get("name"), "type": "A", "aliases": [], "answers": [], "spares": [], "rcode": "NOERROR"}
    queries = [{**defaults, **query} for query in head["queries"]]
    assert not {field for query in queries for field in query} - FIELDS, path
    return Scenario(path, flags, flags.get("ttl", 5), queries)


SCENARIOS = [_load(path) for path in sorted(FOLDER.glob("*.yaml"))]
ROWS = [
    pytest.param(scenario, query, id=f"{scenario.path.stem}-{re.sub(r'[^A-Za-z0-9]+', '-', query['case'])}")
    for scenario in SCENARIOS
    for query in scenario.queries
]
EXPLAINED = [row for row in ROWS if row.values[1]["client"] != "nobody"]
SERVED = [scenario for number, scenario in enumerate(SCENARIOS) if number % 7 == 0 or "cluster" in scenario.flags]
BY_COMMAND = [rows[0] for s in SERVED if (rows := [row for row in EXPLAINED if row.values[0] is s])]


@cache
def responder_about(path: Path) -> CountedResponder:
    """Return the responder of a scenario's file; what was asked before is remembered."""
    scenario = _load(path)
    return responder_of(scenario.cluster, scenario.flags)


def message_of(query: dict[str, Any]) -> dns.message.Message:
    """Return the query with the options that name its client."""
    subnet, options = query.get("subnet"), []
    if subnet is None and query.get("through") and query["client"] != "nobody" and "option" not in query:
        subnet = query["client"]
    if subnet is not None:
        block = ipaddress.ip_network(subnet)
        options.append(dns.edns.ECSOption(str(block.network_address), block.prefixlen))
    if "option" in query:
        options.append(dns.edns.GenericOption(CLIENT_OPTION, ipaddress.ip_address(query["option"]).packed))
    return dns.message.make_query(query["name"], query["type"], use_edns=0, options=options, payload=1232)


def asked_from(query: dict[str, Any]) -> str:
    return str(query.get("through", query["client"]))


def seen(reply: dns.message.Message) -> dict[str, Any]:
    """Return the parts of a reply that rotation does not change."""
    options = {option.otype: option for option in reply.options}
    errors = [option for option in reply.options if option.otype == dns.edns.OptionType.EDE]
    subnet = options.get(dns.edns.OptionType.ECS)
    asked = reply.question[0].rdtype
    records = [(rrset, rdata) for rrset in reply.answer for rdata in rrset]
    answers = [(rrset, rdata) for rrset, rdata in records if rrset.rdtype in (asked, dns.rdatatype.HINFO)]
    return {
        "rcode": dns.rcode.to_text(reply.rcode()),
        "flags": dns.flags.to_text(reply.flags),
        "aliases": [str(rdata).rstrip(".") for rrset, rdata in records if (rrset, rdata) not in answers],
        "answers": [str(rdata) for _, rdata in answers],
        "owners": {(str(rrset.name).rstrip("."), dns.rdatatype.to_text(rrset.rdtype)) for rrset, _ in answers},
        "chain": [str(rrset.name).rstrip(".") for rrset in reply.answer],
        "ttls": {rrset.ttl for rrset in (*reply.answer, *reply.authority)},
        "authority": [str(rdata) for rrset in reply.authority for rdata in rrset],
        "additional": sorted(f"{rrset.name} {rdata}" for rrset in reply.additional for rdata in rrset),
        "errors": [(int(error.code), error.text) for error in errors],
        "scope": subnet.scopelen if subnet is not None else None,
    }


def in_order(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen of a reply, without the order of its answers, which ``check`` looks at."""
    return {**found, "answers": sorted(found["answers"])}


def check(scenario: Scenario, query: dict[str, Any], reply: dns.message.Message | None) -> None:
    """Compare a reply with what its scenario expects."""
    assert reply is not None
    found = seen(reply)
    assert (found["rcode"], found["aliases"]) == (query["rcode"], query["aliases"])
    count = len(query["answers"])
    assert (sorted(found["answers"][:count]), found["answers"][count:]) == (sorted(query["answers"]), query["spares"])
    assert query["type"] != "PTR" or found["answers"] == query["answers"]
    # Each alias stands before what it leads to (RFC 1034, section 3.6.2), and nothing stands twice.
    assert found["chain"] == [query["name"], *query["aliases"]][: len(found["chain"])]
    assert len(reply.answer) == len(query["aliases"]) + bool(query["answers"])
    soa_ttl = query.get("soa_ttl", 0 if "error" in query else scenario.ttl)
    if query["answers"]:
        assert found["owners"] == {([query["name"], *query["aliases"]][-1], query["type"])}
        assert (found["ttls"], found["authority"]) == ({query.get("ttl", scenario.ttl)}, [])
    elif query.get("elsewhere"):
        assert (found["ttls"], found["authority"]) == ({scenario.ttl}, [])
    else:
        assert reply.authority[0].ttl == soa_ttl
        assert found["authority"][0].split()[-1] == str(soa_ttl)
    expected = [query["error"]] if "error" in query else []
    if query.get("ignored"):
        expected.append(f"client subnet ignored: {asked_from(query)} is no trusted forwarder")
    assert len(found["errors"]) == len(expected)
    for (code, text), words in zip(found["errors"], expected, strict=True):
        assert code == 0 and words in text
    subnets = [option for option in message_of(query).options if isinstance(option, dns.edns.ECSOption)]
    if subnets:
        depends = query["outcome"] in ("nearest", "spilled", "unmet")
        assert found["scope"] == query.get("scope", subnets[0].srclen if depends else 0)


def check_explained(query: dict[str, Any], explained: Explanation) -> None:
    """Compare an explanation with what its scenario expects."""
    if "located_by" in query:
        assert explained.client.located_by == query["located_by"]
    assert (explained.rcode, explained.outcome) == (query["rcode"], query["outcome"])
    shown = [answer.data.rstrip(".") for answer in explained.answers]
    expected = (*query["aliases"], *query["answers"], *query["spares"])
    assert sorted(shown) == sorted(each.rstrip(".") for each in expected)
    assert shown[: len(query["aliases"])] == query["aliases"]
    assert query["type"] != "PTR" or shown == [name.rstrip(".") for name in query["answers"]]
    if "source" in query:
        assert (explained.constraint and explained.constraint.source) == query["source"]
    if "steps" in query:
        assert [step.matched for step in explained.steps] == query["steps"]
    error = explained.extended_error
    assert query.get("error", "") in (error.text if error else "")
    assert (error is None) == ("error" not in query)
    check_reasons(query, explained)


def check_reasons(query: dict[str, Any], explained: Explanation) -> None:
    """Compare the sources and candidates of an explanation with what its scenario expects, and with the answer."""
    constraint, candidates = explained.constraint, explained.candidates
    deciding = [(row.source, row.keys) for row in explained.sources if row.decides]
    assert not deciding or (constraint and deciding == [(constraint.source, constraint.keys)])
    if explained.steps and query["type"] == "A":
        chosen = {text for row in candidates if row.chosen for text in row.addresses if ":" not in text}
        assert chosen == {row.data for row in explained.answers if row.type == "A"}
    for field, whys in (
        ("sources", [(row.source, row.why) for row in explained.sources if not row.decides]),
        ("candidates", [(row.addresses[0], row.why) for row in candidates if not row.chosen]),
    ):
        if field in query:
            assert list(dict(whys)) == list(query[field])
            assert [why for name, why in whys if query[field][name] not in why] == []


@pytest.mark.parametrize("proto", ["udp", "tcp"])
@pytest.mark.parametrize(("scenario", "query"), ROWS)
def test_answered(scenario: Scenario, query: dict[str, Any], proto: str) -> None:
    """As the scenario says: computed; and remembered, by Python or native code, the same but for the rotation."""
    responder, source = responder_about(scenario.path), asked_from(query)
    computed = ask_in_memory(responder, message_of(query), source, proto=proto, compute=True)
    check(scenario, query, computed)
    for _ in range(3):
        remembered = ask_in_memory(responder, message_of(query), source, proto=proto)
        check(scenario, query, remembered)
        assert remembered is not None and computed is not None
        assert in_order(seen(remembered)) == in_order(seen(computed))


@pytest.mark.parametrize("scenario", SERVED, ids=repr)
def test_served(scenario: Scenario, tmp_path: Path) -> None:
    """A real server of the scenario's file, asked from the scenario's addresses, gives the same answers, twice."""
    with serving(tmp_path, scenario.path, flags=scenario.flags) as server:
        for query, tcp in product(scenario.queries, (False, True, False, True)):
            check(scenario, query, server.ask(message_of(query), source=asked_from(query), tcp=tcp))


@pytest.mark.parametrize(("scenario", "query"), EXPLAINED)
def test_explained(scenario: Scenario, query: dict[str, Any]) -> None:
    """``explain`` gives the same answer, and the reason."""
    snapshot, asked = responder_about(scenario.path).snapshot, (query["name"], query["client"], query["type"])
    assert snapshot is not None
    check_explained(query, explanation_of(snapshot, *asked, flags=scenario.flags, candidates=True))


@pytest.mark.parametrize(("scenario", "query"), BY_COMMAND)
def test_explained_by_the_command(scenario: Scenario, query: dict[str, Any], tmp_path: Path, topodns: Run) -> None:
    """``topodns explain -o json`` reads the scenario's file and prints the same."""
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(scenario.flags))
    ran = topodns("explain", query["name"], query["type"], "--client", query["client"], "-o", "json", "--candidates",
                  "--config", str(config), "--snapshot", str(scenario.path))  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    check_explained(query, DECODER.decode(ran.out))
