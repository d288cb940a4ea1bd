"""Explains a Decision, the same that ``serve`` answers from, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnsserver import names
from dnsserver.answers.decision import Authority, Decision
from dnsserver.answers.resolution import MAX_ALIASES, resolve
from dnsserver.message.records import type_name
from dnsserver.message.wire import ANY, CNAME, NOERROR, NXDOMAIN, REFUSED
from dnsserver.names import meaning_of
from locator.ip import Network, network_text
from locator.model import SUCCESSORS
from locator.places.address_book import Place
from locator.state.snapshot import Snapshot
from locator.topology.constraints import ZONAL_NAME
from locator.topology.selection import ALL, NEAREST, UNCONSTRAINED, UNMET, FirstMatch, Narrowing, Selection, Step

RCODES = {NOERROR: "NOERROR", NXDOMAIN: "NXDOMAIN", REFUSED: "REFUSED"}
SHOWN_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "kubernetes.io/hostname")

BOLD, DIM, GREEN, YELLOW, RED, PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m", "\033[0m"
OUTCOMES = {
    NEAREST: "the endpoints nearest to the client",
    ALL: "every ready endpoint: none is nearer, and the constraint allows any",
    UNMET: "no ready endpoint is as near as the constraint demands",
}
ZONAL_OUTCOMES = {
    NEAREST: "the endpoints in the zone that the name gives",
    ALL: "every ready endpoint: none is in the zone that the name gives",
    UNMET: "no ready endpoint is in the zone that the name gives",
}
COLOURS = {"nearest": GREEN, "all": YELLOW, "unconstrained": DIM, "unmet": RED}


def explain(
    name: Sequence[bytes], qtype: int, client: Network, snapshot: Snapshot, authority: Authority
) -> dict[str, Any]:
    """Return the answer for a final client, and the reasons, as types that JSON has.

    *client* is a prefix; a prefix of full length is a single address.
    """
    place = snapshot.addresses.locate_network(client)
    decision = resolve(meaning_of(name, authority.zones), qtype, snapshot, place.location, authority)
    host = client.length == 8 * len(client.address)
    text = network_text(client).partition("/")[0] if host else network_text(client)
    return {
        "question": {"name": b".".join(name).decode() + ".", "type": type_name(qtype)},
        "client": _client(text, place),
        "service": _service(decision),
        "constraint": _constraint(decision),
        "steps": [_step(step) for step in (decision.selection.steps if decision.selection else ())],
        "outcome": decision.outcome,
        "reason": _reason(decision, authority),
        "rcode": RCODES[decision.rcode],
        "extended_error": _error(decision),
        "answers": [
            {"name": f"{record.name}.", "type": type_name(record.rtype), "ttl": record.ttl, "data": str(record.data)}
            for record in (*decision.aliases, *decision.answers)
        ],
    }


def _reason(decision: Decision, authority: Authority) -> str:
    """Return in one phrase why the answer is what it is."""
    meaning, compiled, exists = decision.meaning, decision.service, decision.rcode != NXDOMAIN
    if decision.selection is not None and decision.outcome != UNCONSTRAINED:
        return _outcome(decision, decision.selection)
    if meaning is None:
        return "the name is outside the served zones"
    if decision.rcode == REFUSED:
        return "zone transfers are not served"
    if decision.aliases and decision.qtype in (CNAME, ANY):
        return "the Service is an alias"
    if decision.outside_target is not None:
        asked = ", which an upstream resolves" if authority.asks_upstream_for(decision.qtype) else ""
        return f"an alias of a name outside the served zones{asked}"
    if decision.aliases and not decision.answers and not decision.authority_records:
        return f"the aliases form a loop, or are more than {MAX_ALIASES}"
    if decision.aliases and not exists:
        return "an alias of a name that does not exist"
    if meaning.shape == names.REVERSE and exists:
        return "a reverse name is never narrowed"
    if compiled is None:
        return "the name belongs to no Service" if exists else "the name does not exist"
    if compiled.service.alias == "":
        return "the Service's externalName is not a domain name"
    if not exists:
        empty = meaning.shape == names.SERVICE and compiled.empty
        return "the Service has no ready endpoint" if empty else "no endpoint or port of the Service has this name"
    if meaning.shape == names.ENDPOINT:
        return "an endpoint's own name is never narrowed"
    if not compiled.service.headless:
        return "the Service is not headless"
    if decision.declaration is None:
        return "the Service has no constraint"
    if not decision.declaration.valid:
        return "the constraint is invalid"
    return decision.declaration.without_effect or "no endpoint is chosen for this name and type"


def _outcome(decision: Decision, selection: Selection) -> str:
    if decision.declaration is not None and decision.declaration.source == ZONAL_NAME:
        return ZONAL_OUTCOMES[selection.outcome]
    if selection.outcome == ALL and selection.key is None:
        return "every ready endpoint: the client is unknown, and --unknown-client is all"
    return OUTCOMES[selection.outcome]


def _client(text: str, place: Place) -> dict[str, Any]:
    location = place.location
    return {
        "address": text,
        "located_by": place.located_by,
        "holder": place.holder or None,
        "node": location.node,
        "labels": dict(location.labels),
    }


def _service(decision: Decision) -> dict[str, str] | None:
    if decision.service is None:
        return None
    service = decision.service.service
    return {"namespace": service.namespace, "name": service.name}


def _constraint(decision: Decision) -> dict[str, Any] | None:
    declaration = decision.declaration
    if declaration is None:
        return None
    constraint = declaration.constraint
    return {
        "source": declaration.source,
        "keys": list(constraint.keys),
        "valid": declaration.valid,
        "error": declaration.error,
        "effective": declaration.effective,
        "without_effect": declaration.without_effect,
        "min_endpoints": constraint.at_least if isinstance(constraint, FirstMatch | Narrowing) else 1,
        "required": list(constraint.required) if isinstance(constraint, Narrowing) else None,
        "policies": list(declaration.policies),
    }


def _step(step: Step) -> dict[str, Any]:
    return {"key": step.key, "value": step.value, "matched": step.matched}


def _error(decision: Decision) -> dict[str, Any] | None:
    if decision.extended_error is None:
        return None
    code, text = decision.extended_error
    return {"code": code, "text": text}


def as_text(explained: dict[str, Any], *, colour: bool = False) -> str:
    """Return the explanation as aligned text, with ANSI colours if *colour*."""

    def paint(text: str, code: str) -> str:
        return f"{code}{text}{PLAIN}" if colour else text

    rows: list[tuple[str, str]] = []
    question, outcome = explained["question"], explained["outcome"]
    rows.append(("question", f"{question['name']} {question['type']}"))
    rows += _client_rows(explained["client"], explained["constraint"])
    service = explained["service"]
    rows.append(("service", f"{service['namespace']}/{service['name']}" if service else "none"))
    if service:
        rows += [("constraint", text) for text in _constraint_text(explained["constraint"])]
    rows += [("step", text) for text in _steps_text(explained["steps"])]
    rows.append(("outcome", f"{paint(outcome, COLOURS[outcome])}: {explained['reason']}"))
    error = explained["extended_error"]
    rcode = explained["rcode"] if explained["answers"] or explained["rcode"] != "NOERROR" else "NOERROR, no records"
    rows.append(("answer", rcode + (f" (extended error {error['code']}: {error['text']})" if error else "")))
    lines = [f"{paint(f'{title:<10}', BOLD) if title else ' ' * 10}  {text}" for title, text in _titled_once(rows)]
    return "\n".join(lines + [f"{'':10}  {line}" for line in _aligned_answers(explained["answers"])]) + "\n"


def _titled_once(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(title if not n or rows[n - 1][0] != title else "", text) for n, (title, text) in enumerate(rows)]


def _client_rows(client: dict[str, Any], constraint: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return the rows on the client. Of its labels, only the usual ones and those of the constraint: JSON has all."""
    holder = f" ({client['holder']})" if client["holder"] else ""
    rows = [("client", f"{client['address']}, located by {client['located_by']}{holder}")]
    if client["node"]:
        rows.append(("client", f"on node {client['node']}"))
    labels = client["labels"]
    wanted = dict.fromkeys((*SHOWN_LABELS, *(SUCCESSORS.get(key, key) for key in (constraint or {}).get("keys", ()))))
    return rows + [("labels", f"{key}={labels[key]}") for key in wanted if key in labels]


def _constraint_text(constraint: dict[str, Any] | None) -> list[str]:
    if constraint is None:
        return ["none"]
    lines = [f"{', '.join(constraint['keys'])}  (by {constraint['source']})"]
    if constraint["policies"]:
        lines.append(f"required: {', '.join(constraint['required']) or 'none'}")
        lines.append(f"policies: {', '.join(constraint['policies'])}")
    if constraint["min_endpoints"] > 1:
        lines.append(f"at least {counted(constraint['min_endpoints'], 'endpoint')}")
    if constraint["error"]:
        lines.append(f"invalid, and so ignored: {constraint['error']}")
    elif constraint["without_effect"]:
        lines.append(f"without effect: {constraint['without_effect']}")
    return lines


def _steps_text(steps: Sequence[dict[str, Any]]) -> list[str]:
    if not steps:
        return []
    labels = [step["key"] if step["key"] == "*" else f"{step['key']}={step['value'] or '(none)'}" for step in steps]
    width = max(map(len, labels))
    return [
        f"{label:<{width}}  {counted(step['matched'], 'endpoint')}" for label, step in zip(labels, steps, strict=True)
    ]


def counted(number: int, noun: str) -> str:
    """Return for example ``1 endpoint`` or ``2 endpoints``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _aligned_answers(answers: Sequence[dict[str, Any]]) -> list[str]:
    if not answers:
        return []
    name, rtype = (max(len(answer[field]) for answer in answers) for field in ("name", "type"))
    return [
        f"{answer['name']:<{name}}  {answer['ttl']:>4}  {answer['type']:<{rtype}}  {answer['data']}"
        for answer in answers
    ]
