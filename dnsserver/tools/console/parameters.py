# SPDX-License-Identifier: Apache-2.0

"""The parameters of the pages, as operations have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from dnsserver.settings import values
from dnsserver.tools.api.operations import EXPLAIN, MAX_PARAMETER, Operation, Parameter, read_parameters
from dnsserver.tools.explain import naming
from dnsserver.tools.pages.completion import FIELDS

HTML = "text/html"
MAX_WITHIN = 16  # domains that one is within: constraints have as many keys

_PAGE = Parameter("page", "Which part of a long list.", values.whole_number(1, 1_000_000).read, "a number", default="1")
_CODE = Parameter("code", "The code of findings.", str, "a code")
_TEXT = Parameter("text", "Part of a name.", str, "a text", default="")
_CLIENT = Parameter("client", "Who asks.", naming.parse_asker, naming.EXPECTED_CLIENT)
_NAMESPACE = Parameter("namespace", "Of the client.", values.NAMESPACE.read, values.NAMESPACE.expected)
_KEYS = Parameter("keys", "Topology keys to try.", str, "label keys, separated by commas", default="")
_LEAST = Parameter("least", "A value of min-endpoints to try.", str, "a whole number", default="")
_PROPOSE = Parameter("propose", "Propose milder constraints.", values.SWITCH.read, "true or false", default="false")
_FOR = Parameter("for", "Which field.", values.choice("FIELD", *FIELDS).read, " or ".join(FIELDS), required=True)
_KEY = Parameter("key", "The only topology key.", str, "a label key")


def _page(path: str, *parameters: Parameter) -> Operation:
    return Operation(path, "", parameters, None, HTML)


OVERVIEW = _page("/")
FINDINGS = _page("/findings", _CODE, _PAGE)
MAP = _page("/map", _KEY, _PAGE)
NODE = _page("/nodes/{cluster}/{name}", _PAGE)
SERVICES = _page("/services", _TEXT, _PAGE)
SERVICE = _page("/services/{namespace}/{name}", _CLIENT, _NAMESPACE, _KEYS, _LEAST, _PROPOSE, _PAGE)
EXPLAINED = _page("/explain", *EXPLAIN.parameters)
COMPLETE = _page("/complete", _FOR, _TEXT, _NAMESPACE)


def read(operation: Operation, request: Request, **more: str) -> dict[str, Any]:
    """Return the values of the parameters of a page; a field that is left empty is not given. Raises BadParameter.

    *more* are values of parameters that the request does not give.
    """
    given = [(name, text) for name, text in request.query_params.multi_items() if text and name != "within"]
    names = {name for name, _ in given}
    return read_parameters(operation, [*given, *((name, text) for name, text in more.items() if name not in names)])


def within_of(request: Request) -> list[str]:
    """Return the domains that a page is within, as they stand in the request."""
    return [text[:MAX_PARAMETER] for text in request.query_params.getlist("within")[:MAX_WITHIN]]


def form_of(operation: Operation, request: Request) -> Mapping[str, str]:
    """Return what stands in the fields of a form."""
    return {
        parameter.name: request.query_params.get(parameter.name, "")[:MAX_PARAMETER]
        for parameter in operation.parameters
    }
