# SPDX-License-Identifier: Apache-2.0

"""Records from outside the zones, which an upstream brings for an alias: compressed, rendered once, kept apart."""

from __future__ import annotations

from unittest import mock

import dns.flags
import dns.message
import dns.rdatatype
import pytest

from dnsserver.message.records import Host, Opaque, Record
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.responder import rendered as rendering
from dnsserver.responder.replies import AnsweredQuery
from tests.kit.in_memory import CountedResponder, responder_of
from tests.kit.outside import said
from tests.kit.replies import data

LONG = "mydb-instance-1.abcdefghijkl.eu-central-1.rds.amazonaws.example"
OUT = f"apiVersion: v1\nkind: Service\nmetadata: {{name: out, namespace: lab}}\nspec: {{type: ExternalName, externalName: {LONG}}}\n"  # noqa: E501


def waiting_for(responder: CountedResponder, rtype: str) -> bytes | AnsweredQuery | None:
    query = dns.message.make_query("out.lab.svc.cluster.local", rtype)
    return responder.reply(query.to_wire(), bytes(4), responder.channel(bytes(4), "udp"))


@pytest.mark.parametrize("first", ["HTTPS", "TYPE97"])
def test_an_alias_waits_for_https_whatever_was_asked_before(first: str) -> None:
    """Types 65 and 97 differ like the case of a letter, which the answer cache folds: neither hides the other."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    for rtype in (first, "HTTPS", "TYPE97", "HTTPS"):
        waiting = waiting_for(responder, rtype)
        assert isinstance(waiting, AnsweredQuery) and waiting.query.qtype == dns.rdatatype.from_text(rtype)


def test_names_behind_an_alias_are_compressed() -> None:
    """Records of the alias' target point to it: eight addresses fit 512 octets (RFC 1035, 4.1.4)."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    waiting = waiting_for(responder, "A")
    assert isinstance(waiting, AnsweredQuery)
    assert (waiting.target, waiting.query.qtype) == (LONG, 1)
    far = f"far.{LONG.partition('.')[2]}"
    found = [Record(LONG, 5, 60, Host(far)), *(Record(far, 1, 60, Opaque(bytes((192, 0, 2, n)))) for n in range(8))]
    octets = responder.finished(waiting, said(found))
    assert isinstance(octets, bytes)
    reply = dns.message.from_wire(octets)
    assert not reply.flags & dns.flags.TC and len(octets) < 300
    assert data(reply.answer) == sorted([f"CNAME {LONG}.", f"CNAME {far}.", *(f"A 192.0.2.{n}" for n in range(8))])


def test_what_was_found_elsewhere_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same upstream records give the same answer, except for the rotation."""
    responder = responder_of(OUT, {"upstream": "192.0.2.1"})
    found = said([Record(LONG, 1, 60, Opaque(bytes((192, 0, 2, n)))) for n in range(3)])
    firsts, rendered = set(), mock.Mock(wraps=RenderedAnswer)
    monkeypatch.setattr(rendering, "RenderedAnswer", rendered)
    for _ in range(30):  # each begins with any of them, at random
        waiting = waiting_for(responder, "A")
        assert isinstance(waiting, AnsweredQuery)
        octets = responder.finished(waiting, found)
        assert isinstance(octets, bytes)
        firsts.add(str(dns.message.from_wire(octets).answer[1][0]))
    assert len(firsts) == 3
    assert rendered.call_count == 2  # the CNAME, and what it leads to
