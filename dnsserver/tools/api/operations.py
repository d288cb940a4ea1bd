# SPDX-License-Identifier: Apache-2.0

"""The operations of the HTTP API: path, parameters, what is returned. The routes, the reading of parameters and the
OpenAPI description are all made from these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import msgspec

from dnsserver import __version__
from dnsserver.http.problems import PROBLEM_JSON, Problem
from dnsserver.message.records import type_number
from dnsserver.settings import values
from dnsserver.tools.explain import naming
from dnsserver.tools.explain.explanation import ConstraintExplained, Explanation
from dnsserver.tools.live.kept import MAX_KEPT
from dnsserver.tools.tap.lines import TailLine
from locator.ip import parse_client
from locator.model import SUCCESSORS
from locator.topology.selection import ANY_ENDPOINT, OUTCOMES, UNWANTED_OUTCOMES

API = "/api/v1"
OPENAPI = "3.1.0"
JSON, EVENT_STREAM = "application/json", "text/event-stream"
MAX_PAGE = 1000  # Services: some 400 kB of JSON
PAGE_SIZE = 500  # as kubectl asks for
MAX_PARAMETER = 1024  # characters of a parameter: a name has 253, and a key with its value 380

Schema = Mapping[str, Any]


class BadParameter(Exception):
    """A parameter is wrong. The text says what was found, and what was expected."""

    def __init__(self, parameter: str, text: str) -> None:
        super().__init__(text)
        self.parameter = parameter


class Parameter(NamedTuple):
    """A parameter in the query string. ``read`` and ``expected`` are those of ``values.Syntax``.

    ``default`` is what is read if it is not given; without one, None is its value, unless it is ``required``.
    """

    name: str
    description: str
    read: Callable[[str], Any]
    expected: str
    schema: Schema = {"type": "string"}
    required: bool = False
    default: str | None = None
    example: str | None = None


class Operation(NamedTuple):
    """What can be got at a path. ``returns`` is the type of the JSON, or of each event of a stream."""

    path: str
    summary: str
    parameters: tuple[Parameter, ...]
    returns: Any
    media_type: str = JSON


class DomainCounts(TypedDict):
    """A topology domain and what is in it. The value is null for what has no such label.

    ``endpoints`` and ``clients`` are those of ``Located``.
    """

    key: str
    value: str | None
    nodes: int
    endpoints: int
    clients: int


class Domains(TypedDict):
    """The domains of some topology keys."""

    domains: list[DomainCounts]


class ConstrainedService(TypedDict):
    """A Service, what it asks for, and whether that is valid."""

    namespace: str
    name: str
    constraint: ConstraintExplained


class OtherWorkload(TypedDict):
    """The pods of one owner in one namespace. The kind ``Pod`` is a pod without an owner."""

    namespace: str
    kind: str
    name: str
    pods: int


class WorkloadAsking(TypedDict):
    """Clients that asked for a Service: pods of one owner, and when the last one did.

    Clients that are no pods have no namespace; ``kind`` is how they were located, and ``name`` what has the address.
    """

    namespace: str | None
    kind: str
    name: str
    pods: int
    last_seen: str


class Clients(TypedDict):
    """Who asked a server for a Service in the last ``seconds``, at most an hour.

    ``complete`` is false if there were more clients of all Services than the server can remember. ``proposal`` is the
    annotation that covers the namespaces of those pods, null if there are none; ``others`` are workloads in these
    namespaces that did not ask, the largest, of all ``other_workloads``.
    """

    service: str
    seconds: int
    complete: bool
    workloads: list[WorkloadAsking]
    proposal: str | None
    others: list[OtherWorkload]
    other_workloads: int


class LastDecisions(TypedDict):
    """The last decisions that were unmet or spilled, the newest last, of those that a server keeps ``since`` a time."""

    since: str
    items: list[TailLine]


ConstrainedServices = TypedDict(
    "ConstrainedServices", {"items": list[ConstrainedService], "total": int, "continue": str | None}
)
ConstrainedServices.__doc__ = """Some of the ``total`` constrained Services; ``continue`` asks for those after them."""


CLIENTS_DECODER: msgspec.json.Decoder[Clients] = msgspec.json.Decoder(Clients)
LAST_DECISIONS_DECODER: msgspec.json.Decoder[LastDecisions] = msgspec.json.Decoder(LastDecisions)


def _parameter(name: str, syntax: values.Syntax[Any], description: str, **more: Any) -> Parameter:
    return Parameter(name, description, syntax.read, syntax.expected, **more)


def _outcome(words: Collection[str]) -> Parameter:
    return _parameter(
        "outcome", values.choice("WORD", *words),
        "Only those with this outcome. unmet also finds NXDOMAIN where no endpoint of the Service is ready.",
        schema={"type": "string", "enum": list(words)},
    )  # fmt: skip


def _keys(text: str) -> tuple[str, ...]:
    """Parse topology keys, under their current names."""
    keys = values.TOPOLOGY_KEYS.read(text)
    if ANY_ENDPOINT in keys:
        raise ValueError(repr(text))
    return tuple(dict.fromkeys(SUCCESSORS.get(key, key) for key in keys))


EXPLAIN = Operation(
    f"{API}/explain",
    "The answer that a client would get, and why",
    (
        Parameter(
            "name", "Name to query, whole or partial, svc/NAME or NAMESPACE/NAME.",
            naming.parse_name, naming.EXPECTED_NAME, required=True, example="svc/memcached",
        ),
        Parameter(
            "client", "Who asks: an address, a prefix, pod/NAME, node/NAME, or labels of nodes separated by commas.",
            naming.parse_asker, naming.EXPECTED_CLIENT, required=True, example="10.244.2.16",
        ),
        Parameter("type", "Record type.", type_number, naming.EXPECTED_TYPE, default="A", example="A"),
        _parameter(
            "namespace", values.NAMESPACE,
            "Namespace of svc/NAME and pod/NAME, and of a partial name without one. By default the only one that the "
            "server serves, else default.", example="shop",
        ),
        Parameter(
            "candidates", "List every endpoint, and why it was chosen or not.", values.SWITCH.read, "true or false",
            {"type": "boolean"}, default="false",
        ),
    ),
    Explanation,
)  # fmt: skip
TOPOLOGY = Operation(
    f"{API}/topology",
    "The topology domains, and what is in each",
    (
        Parameter(
            "keys",
            "Topology keys, separated by commas. By default region, zone and those that constraints name, without the "
            "hostname.", _keys, "label keys, separated by commas", example="topology.kubernetes.io/zone",
        ),
    ),
    Domains,
)  # fmt: skip
SERVICES = Operation(
    f"{API}/services",
    "The Services that ask for something, and whether that is valid",
    (
        _parameter(
            "limit", values.whole_number(1, MAX_PAGE), "The most Services to return.",
            schema={"type": "integer", "minimum": 1, "maximum": MAX_PAGE}, default=str(PAGE_SIZE),
        ),
        _parameter("continue", values.KEY, "What the page before has as continue.", example="shop/memcached"),
    ),
    ConstrainedServices,
)  # fmt: skip
_SERVICE = _parameter(
    "service", values.SERVICE_KEY, "Only those about names of this Service.", example="shop/memcached"
)
_CLIENT = Parameter("client", "Only those for this address or network.", parse_client, "an address or a CIDR")
TAIL = Operation(
    f"{API}/tail",
    "Decisions as they are made",
    (
        _SERVICE,
        _CLIENT,
        _outcome(OUTCOMES),
    ),
    TailLine,
    EVENT_STREAM,
)  # fmt: skip
DECISIONS = Operation(
    f"{API}/decisions",
    "The last decisions that were unmet or spilled",
    (
        _SERVICE,
        _CLIENT,
        _outcome(UNWANTED_OUTCOMES),
        _parameter(
            "limit", values.whole_number(1, MAX_KEPT), "The most decisions to return.",
            schema={"type": "integer", "minimum": 1, "maximum": MAX_KEPT}, default="100",
        ),
    ),
    LastDecisions,
)  # fmt: skip
CLIENTS = Operation(
    f"{API}/clients",
    "Who asked for a Service in the last hour",
    (
        _parameter("service", values.SERVICE_KEY, "The Service.", required=True, example="shop/memcached"),
    ),
    Clients,
)  # fmt: skip
OPERATIONS = (EXPLAIN, TOPOLOGY, SERVICES, TAIL, DECISIONS, CLIENTS)
DESCRIPTION = f"{API}/openapi.json"
PROBLEMS = {
    "400": "A parameter is wrong",
    "403": "A page of another site asks, or the host in the request could be that of such a page",
    "503": "The server has not read the cluster yet, or has enough such requests already",
}


def read_parameters(parameters: Iterable[Parameter], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of all *parameters*, read from the texts that are *given*. Raises BadParameter."""
    known = {parameter.name: parameter for parameter in parameters}
    texts: dict[str, str] = {}
    for name, text in given:
        if name not in known:
            expected = ", ".join(known) or "none"
            raise BadParameter(name[:MAX_PARAMETER], f"unknown parameter, expected one of {expected}")
        if name in texts:
            raise BadParameter(name, "given twice, expected once")
        if len(text) > MAX_PARAMETER:
            raise BadParameter(name, f"{len(text)} characters found, expected {known[name].expected}")
        texts[name] = text
    return {name: _read(parameter, texts.get(name, parameter.default)) for name, parameter in known.items()}


def _read(parameter: Parameter, text: str | None) -> Any:
    if text is None:
        if parameter.required:
            raise BadParameter(parameter.name, f"missing, expected {parameter.expected}")
        return None
    try:
        return parameter.read(text)
    except ValueError as error:
        raise BadParameter(parameter.name, f"{values.refused(text, error)}, expected {parameter.expected}") from None


def description(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """Return the description of the API with some *operations* (OpenAPI)."""
    types = [*(operation.returns for operation in operations), Problem]
    references, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    *returned, problem = references
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "topodns",
            "version": __version__,
            "description": "What a running server answers, and why. All operations only read.",
        },
        "paths": {
            operation.path: {"get": _described(operation, reference, problem)}
            for operation, reference in zip(operations, returned, strict=True)
        },
        "components": {"schemas": schemas},
    }


def _described(operation: Operation, returned: Schema, problem: Schema) -> dict[str, Any]:
    schema = returned
    if operation.media_type == EVENT_STREAM:  # of the data of each event
        schema = {"type": "string", "contentMediaType": JSON, "contentSchema": returned}
    return {
        "operationId": operation.path.rpartition("/")[2],
        "summary": operation.summary,
        "parameters": list(map(_described_parameter, operation.parameters)),
        "responses": {
            "200": {"description": operation.summary, "content": {operation.media_type: {"schema": schema}}},
            **{
                status: {"description": text, "content": {PROBLEM_JSON: {"schema": problem}}}
                for status, text in PROBLEMS.items()
            },
        },
    }


def _described_parameter(parameter: Parameter) -> dict[str, Any]:
    default = {} if parameter.default is None else {"default": _as_json(parameter)}
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "required": parameter.required,
        "schema": {**parameter.schema, **default},
        **({"example": parameter.example} if parameter.example is not None else {}),
    }


def _as_json(parameter: Parameter) -> Any:
    return parameter.default if parameter.schema["type"] == "string" else parameter.read(str(parameter.default))


def overview(paths: Sequence[tuple[str, str]]) -> str:
    """Return a page of text with all operations; *paths* are further ones, each with what it is."""
    rows = [*((operation.path, operation.summary) for operation in OPERATIONS), *paths]
    return "".join(f"{path:<24} {text}\n" for path, text in rows)
