# SPDX-License-Identifier: Apache-2.0

"""One Service: what is wrong with it, what it asks for, and each endpoint with why a client gets it or not.

The answers stand side by side, a column for each: so the answer of today can be compared with that by another
constraint. All of them are explanations, as ``explain`` gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request

from dnsserver.answers.decision import Authority
from dnsserver.message.wire import A
from dnsserver.settings.values import ServiceName
from dnsserver.spelling import nearest_key
from dnsserver.tools.api.operations import BadParameter, Parameter, read_parameters
from dnsserver.tools.console.page import (
    NAMESPACE,
    PAGE,
    Page,
    PageContext,
    PageMissing,
    Part,
    field_errors,
    form_of,
    part_of,
    read,
    wrong_fields,
)
from dnsserver.tools.console.pages.gains import PARAMETERS as MONEY
from dnsserver.tools.console.pages.gains import price_of
from dnsserver.tools.console.simulations import (
    PROPOSALS,
    annotations_of,
    as_tried,
    asking_pods,
    differences_of,
    title_of,
    tries,
    wrong_annotations,
)
from dnsserver.tools.console.traffic import service_traffic
from dnsserver.tools.console.troubles.now import what_is_wrong_with
from dnsserver.tools.console.troubles.services import service_troubles
from dnsserver.tools.console.troubles.trouble import WORDS
from dnsserver.tools.explain import naming
from dnsserver.tools.explain.explain import Asker, explain
from dnsserver.tools.explain.explanation import CandidateExplained, ConstraintExplained, Explanation
from dnsserver.tools.simulation.selecting import BadSelection
from locator.api.events import REASON, message_of
from locator.ip import address_text
from locator.model import HOSTNAME, REGION, ZONE, EndpointSlice, Finding, Service, object_key
from locator.places.book import UNKNOWN_PLACE
from locator.state.snapshot import CompiledService, Snapshot, lacking
from locator.topology.annotations import CLIENTS, MAX_OVERLOAD, MIN_ENDPOINTS, TOPOLOGY_KEYS
from locator.topology.selection import ANY_ENDPOINT, LocatedEndpoint
from locator.topology.service_checks import is_told_by_event

ROWS, MAX_COLUMNS = 50, 4
TABLE_ROWS = 20  # of the tables beside a picture
PARAMETERS = (
    Parameter("client", "Who asks.", naming.parse_asker, naming.EXPECTED_CLIENT),
    NAMESPACE,
    Parameter("keys", "Topology keys to try.", str, "label keys, separated by commas", default=""),
    Parameter("least", "A value of min-endpoints to try.", str, "a whole number", default=""),
    Parameter("overload", "A value of max-overload to try.", str, "a decimal number", default=""),
    Parameter("clients", "A value of clients to try.", str, "NAMESPACE[/SELECTOR], several by ';'", default=""),
    *MONEY,
    PAGE,
)
FIELDS = {
    TOPOLOGY_KEYS: "keys",
    MIN_ENDPOINTS: "least",
    MAX_OVERLOAD: "overload",
    CLIENTS: "clients",
}  # in which annotations are tried
MONEY_FIELDS = [parameter.name for parameter in MONEY]

EndpointRow = tuple[LocatedEndpoint, Sequence[CandidateExplained | None]]


async def service_page(context: PageContext, request: Request) -> Page:
    """Return a Service, with the answer to a client if one is given, and with another constraint if one is tried."""
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    form, errors = form_of(request, "client", "namespace", *FIELDS.values(), *MONEY_FIELDS), dict[str, str]()
    try:
        given = read(request, *PARAMETERS)
        shown = await _shown(context, namespace, name, given)
    except (BadParameter, naming.UnknownName) as error:
        errors = field_errors(error, form)
    except BadSelection as error:
        errors = {FIELDS.get(error.annotation, "keys"): str(error)}
    if errors:
        tried = annotations_of({annotation: form[field] for annotation, field in FIELDS.items()})
        wrong = await wrong_annotations(context, object_key(namespace, name), tried or {})
        errors |= wrong_fields(form, PARAMETERS) | {FIELDS[annotation]: text for annotation, text in wrong.items()}
        asks = [(field, form[field]) for field in ("client", "namespace") if form[field] and field not in errors]
        try:
            shown = await _shown(context, namespace, name, read_parameters(PARAMETERS, asks))
        except naming.UnknownName as error:
            errors |= field_errors(error, form)
            shown = await _shown(context, namespace, name, read_parameters(PARAMETERS, ()))
    shown |= {"live": await service_traffic(context, object_key(namespace, name)), "counted_by": context.live}
    shown |= {
        "form": form,
        "fields": FIELDS.values(),
        "money_fields": MONEY_FIELDS,
        "errors": errors,
        "most": TABLE_ROWS,
    }
    return Page("service.html", f"{namespace}/{name}", shown, status=400 if errors else 200)


async def _shown(context: PageContext, namespace: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a page shows of a Service. Raises PageMissing, UnknownName, BadSelection."""
    key, inspected = object_key(namespace, name), context.inspected
    if key not in inspected.current().services:
        raise PageMissing(await _no_service(context, namespace, name))
    client, findings = given["client"], context.changes.findings
    known = await inspected.known(client, given["namespace"] or namespace)
    compiled = known.snapshot.services.get(key)
    if compiled is None:  # it went meanwhile
        raise PageMissing(await _no_service(context, namespace, name))
    pods, price = await asking_pods(context, known.snapshot), price_of(given)
    tried = annotations_of({annotation: given[field] for annotation, field in FIELDS.items()})
    snapshots = {"now": known.snapshot}
    if tried is not None:
        snapshots[title_of(tried)] = await as_tried(context, key, known.snapshot, tried)

    def compute() -> dict[str, Any]:
        nobody, *answers = _answers(compiled.service, known, client, inspected.authority, snapshots.values())
        about = findings_about(compiled.service, findings, nobody.findings or ())
        shown_tries = list(tries(inspected, key, snapshots, pods))
        return {
            "service": compiled.service,
            "explanation": nobody,
            "findings": about,
            "events": [f"{REASON}: {message_of(finding)}" for finding in about if is_told_by_event(finding)],
            "keys": keys_of(nobody.constraint),
            "ready": len(compiled.endpoints),
            "endpoints": endpoints_part(compiled, known.snapshot, answers, given["page"]),
            "answers": list(zip(snapshots, answers, strict=False)),
            "tried": tried or {},
            "tries": shown_tries,
            "now": what_is_wrong_with(
                context, list(service_troubles(shown_tries[0].simulated, known.snapshot)) if shown_tries else []
            ),
            "words": WORDS,
            "differences": differences_of(shown_tries, price),
            "proposals": PROPOSALS,
            "missing": lacking(known.snapshot, EndpointSlice),
        }

    return await context.turns.in_thread(compute)


def _answers(
    service: Service, known: naming.NameContext, client: Any, authority: Authority, snapshots: Iterable[Snapshot]
) -> Iterator[Explanation]:
    """Yield what anybody gets, and if there is a *client*, what that gets by each of some *snapshots*."""
    own = known._replace(namespace=service.namespace)
    name = naming.question_name(ServiceName(None, service.name), own, authority)
    yield explain(name, A, Asker("", UNKNOWN_PLACE), known.snapshot, authority)
    if client is not None:
        asker = naming.asker_named(client, known)
        yield from (explain(name, A, asker, snapshot, authority, candidates=True) for snapshot in snapshots)


def findings_about(service: Service, findings: Sequence[Finding], more: Sequence[Finding]) -> list[Finding]:
    """Return the *findings* that are about a Service, and those *more* that say something else."""
    key = Service.__name__, service.namespace, service.name, ""
    about = [one for one in findings if (one.kind, one.namespace, one.name, one.cluster) == key]
    known = {(finding.code, finding.field) for finding in about}
    return about + [finding for finding in more if (finding.code, finding.field) not in known]


def keys_of(constraint: ConstraintExplained | None) -> list[str]:
    """Return the keys whose values are shown: those of the constraint, else where things usually are."""
    asked = [] if constraint is None else [key for key in constraint.keys if key not in (ANY_ENDPOINT, HOSTNAME)]
    return list(dict.fromkeys((*asked[:MAX_COLUMNS], REGION, ZONE)))


def endpoints_part(
    compiled: CompiledService, snapshot: Snapshot, answers: Sequence[Explanation], number: int
) -> Part[EndpointRow]:
    """Return a part of the endpoints: those first that a client gets, then the other ready ones.

    Each stands with what every answer says of it, None if the answer has no such endpoint.
    """
    verdicts = [{one.addresses: one for one in answer.candidates} for answer in answers]
    rows: list[tuple[bool, bool, str, tuple[str, ...], EndpointRow]] = []
    for located in (*compiled.endpoints, *snapshot.unready.get(compiled.cache_key, ())):
        endpoint, addresses = located.endpoint, tuple(map(address_text, located.endpoint.addresses))
        found = [by_addresses.get(addresses) for by_addresses in verdicts]
        chosen = any(one is not None and one.chosen for one in found)
        rows.append((not chosen, not endpoint.ready, endpoint.pod or "", addresses, (located, found)))
    rows.sort(key=lambda row: row[:4])
    return part_of([row for *_, row in rows], number, ROWS)


async def _no_service(context: PageContext, namespace: str, name: str) -> str:
    keys = context.inspected.current().services
    closest = await context.turns.in_thread(partial(nearest_key, namespace, name, keys))
    return f"topodns serves no Service {namespace}/{name}{f', did you mean {closest}?' if closest else ''}"
