# SPDX-License-Identifier: Apache-2.0

"""Requests of ``topodns doctor``: each has a deadline, and a failure is a value that says why.

Objects are the models of the official client. To import those takes seconds, so only ``run`` of a command does.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

import kubernetes.client
import trio
import urllib3
from kubernetes.client.rest import RESTResponse

from dnsserver.tools.doctor.steps import Unread
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable, one_line

T = TypeVar("T")

READ_SECONDS = 30.0  # for one read as a whole: a list of 150,000 pods takes several
SILENCE = 10.0  # seconds without a byte after which a read is given up


class NotUnderstood(Exception):
    """The API server, or a replica, sent something else than expected; the text says what."""


class ModelClient(kubernetes.client.ApiClient):
    """What API classes of the official client, such as ``CoreV1Api``, send their requests with.

    The requests go the way of all others of topodns, with the same credentials, deadlines and errors: methods of the
    API classes raise Refused, Unreachable, and NotUnderstood if the response is no object of the API.
    """

    def __init__(self, client: ApiClient) -> None:
        super().__init__(kubernetes.client.Configuration(host=client.host))
        self._client = client

    def call_api(
        self,
        method: str,
        url: str,
        header_params: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> RESTResponse:
        """Send a request; its headers and its deadline are those of ``ApiClient``."""
        del header_params, post_params, _request_timeout
        path, _, query = url.removeprefix(self._client.host).partition("?")
        parameters = dict(urllib.parse.parse_qsl(query))
        content = self._client.request(method, path, query=parameters, body=body, timeout=SILENCE)
        return RESTResponse(urllib3.HTTPResponse(content, {"Content-Type": "application/json"}, HTTPStatus.OK))

    def response_deserialize(self, response_data: RESTResponse, response_types_map: Any = None) -> Any:
        """Return the response with its model. Raises NotUnderstood."""
        try:
            return super().response_deserialize(response_data, response_types_map)
        except (
            kubernetes.client.ApiException,
            AttributeError,
            TypeError,
            ValueError,
        ) as error:  # as the models meet it
            raise NotUnderstood(_why(error)) from None


def _why(error: Any) -> str:
    """Return what the models met, without the value, which may be confidential, and which pydantic's own text has."""
    if not hasattr(error, "errors"):
        return one_line(error)
    return "; ".join(f"{'.'.join(map(str, (error.title, *one['loc'])))}: {one['msg']}" for one in error.errors())


async def read(work: Callable[[], T]) -> T | Unread:
    """Return ``work()``, run in a thread, or why it could not be read within ``READ_SECONDS``."""
    with trio.move_on_after(READ_SECONDS):
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except (NotUnderstood, Refused, Unreachable) as error:
            return Unread(str(error))
    return Unread(f"not read within {READ_SECONDS:g} s")


async def read_items(method: Callable[..., Any], *arguments: str, labels: str = "") -> list[Any] | Unread:
    """Return the objects that a method of an API class lists, those with *labels*; each is ``whole``."""
    selected = {"label_selector": labels} if labels else {}
    return await read(lambda: items(method(*arguments, **selected)))


def items(found: Any) -> list[Any]:
    """Return the objects of a list; each is ``whole``. Raises NotUnderstood."""
    return list(map(whole, found.items))


def whole(model: Any) -> Any:
    """Return a model that has metadata, a spec and a status, as far as its kind does, and so does its template.

    The API server sends these, but models may lack them. Raises NotUnderstood if metadata or a spec is missing.
    """
    fields = type(model).openapi_types
    for field in ("metadata", "spec"):
        if field in fields and getattr(model, field) is None:
            raise NotUnderstood(f"{type(model).__name__}: no {field} found")
    if "status" in fields and model.status is None:
        model.status = getattr(kubernetes.client, fields["status"])()
    template = getattr(getattr(model, "spec", None), "template", None)
    if template is not None:
        whole(template)
    return model
