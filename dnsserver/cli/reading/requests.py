# SPDX-License-Identifier: Apache-2.0

"""Requests of ``topodns doctor``: each has a deadline, and a failure is a value that says why.

Objects are the models of the official client. To import those takes long, so only ``run`` of a command does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import kubernetes.client
import msgspec
import trio

from dnsserver.tools.doctor.steps import Unread
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused, Unreachable, one_line

T = TypeVar("T")

READ_SECONDS = 30.0  # for one read as a whole: a list of 150,000 pods takes several
SILENCE = 10.0  # seconds without a byte after which a read is given up
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class NotUnderstood(Exception):
    """The API server, or a replica, sent something else than expected; the text says what."""


async def read(work: Callable[[], T]) -> T | Unread:
    """Return ``work()``, run in a thread, or why it could not be read within ``READ_SECONDS``."""
    with trio.move_on_after(READ_SECONDS):
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except (NotUnderstood, Refused, Unreachable) as error:
            return Unread(str(error))
    return Unread(f"not read within {READ_SECONDS:g} s")


def get(client: ApiClient, path: str, kind: Any, query: Mapping[str, str] | None = None) -> Any:
    """Return the model *kind* of what is at a path of the API server. Raises NotUnderstood, Refused, Unreachable."""
    return _model(kind, client.request("GET", path, query=query, timeout=SILENCE))


def create(client: ApiClient, path: str, body: Mapping[str, object], kind: Any) -> Any:
    """Return the model *kind* of the response to a POST. Raises NotUnderstood, Refused, Unreachable."""
    return _model(kind, client.request("POST", path, body=body, timeout=SILENCE))


def get_items(client: ApiClient, path: str, kind: Any, labels: str = "") -> list[Any]:
    """Return the objects in the list *kind*, each ``whole``; with *labels*, those that a label selector selects.

    Raises NotUnderstood, Refused, Unreachable.
    """
    return list(map(whole, get(client, path, kind, {"labelSelector": labels} if labels else None).items))


async def read_items(client: ApiClient, path: str, kind: Any, labels: str = "") -> list[Any] | Unread:
    """Return what ``get_items`` returns, or why it could not be read."""
    return await read(partial(get_items, client, path, kind, labels))


def _model(kind: Any, content: bytes) -> Any:
    try:
        return kind.from_dict(_OBJECT.decode(content))
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError) as error:  # as the models meet what is wrong
        raise NotUnderstood(_why(error)) from None


def _why(error: Any) -> str:
    """Return what the models met, without the value, which may be confidential, and which pydantic's own text has."""
    if not hasattr(error, "errors"):
        return one_line(error)
    return "; ".join(f"{'.'.join(map(str, (error.title, *one['loc'])))}: {one['msg']}" for one in error.errors())


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
