# SPDX-License-Identifier: Apache-2.0

"""The writes that controllers send: each is one record, and requires the version of the object that was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from locator.api.decoding import Resource
from locator.api.list_watch import JSON

CREATE, APPLY, PATCH, DELETE = "create", "apply", "patch", "delete"
METHODS = {CREATE: "POST", APPLY: "PATCH", PATCH: "PATCH", DELETE: "DELETE"}

JSON_PATCH = "application/json-patch+json"  # RFC 6902
APPLY_PATCH = "application/apply-patch+yaml"  # server-side apply (KEP-555); JSON is YAML
MERGE_PATCH = "application/merge-patch+json"  # RFC 7396: a list is replaced, a field that is null is removed

# What becomes of a write, as the metrics count it. LATE and BEHIND are not sent: this replica does not lead any more,
# or an object exists whose watch event is on the way.
DONE, CONFLICT, REFUSED, UNREACHABLE, FAILED = "done", "conflict", "refused", "unreachable", "failed"
LATE, BEHIND = "late", "behind"
RESULTS = (DONE, CONFLICT, REFUSED, UNREACHABLE, FAILED, LATE, BEHIND)


class Existing(NamedTuple):
    """An object at an API path, with that uid unless it is empty, and ``without`` that label and value, if any."""

    path: str
    uid: str = ""
    without: tuple[str, str] | None = None

    def is_found(self, uid: str, labels: Mapping[str, str]) -> bool:
        """Whether it exists, if the object at its path has that *uid*, empty if there is none, and these *labels*."""
        lacks_it = self.without is None or self.without not in labels.items()
        return uid != "" and self.uid in ("", uid) and lacks_it


class Write(Struct, frozen=True):
    """One write of one object.

    ``key`` is that of the object, and once the write is due that of the work queue. ``version`` is the resourceVersion
    of the object that the write replaces, empty for a new one. The write is not sent while the object ``unless``
    exists.
    """

    verb: str
    path: str
    body: Any
    key: str
    version: str = ""
    media: str = JSON
    unless: Existing | None = None
    force: bool = False
    """Whether to take the fields of a server-side apply from their other owners."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        return METHODS[self.verb]


def object_path(resource: Resource, key: str) -> str:
    """Return the API path of an object; *key* is ``NAMESPACE/NAME``, or the name of one without a namespace."""
    group, plural = _group_and_plural(resource)
    namespace, _, name = key.rpartition("/")
    return f"{group}/namespaces/{namespace}/{plural}/{name}" if namespace else f"{resource.path}/{name}"


def _group_and_plural(resource: Resource) -> tuple[str, str]:
    """Return the path of a resource's API group, and its name in the plural, also if it is read in one namespace."""
    path, _, plural = resource.path.rpartition("/")
    return path.partition("/namespaces/")[0], plural


def creation(resource: Resource, key: str, fields: Mapping[str, Any]) -> Write:
    """Return the write that creates an object with these *fields*."""
    return Write(CREATE, object_path(resource, key).rpartition("/")[0], _whole(resource, key, fields), key)


def application(
    resource: Resource,
    key: str,
    version: str,
    fields: Mapping[str, Any],
    *,
    force: bool,
    unless: Existing | None = None,
) -> Write:
    """Return the write that applies these *fields*, which the writer then owns, to this version of an object.

    Without a *version* it creates the object. With *force* it takes fields from other owners.
    """
    body = _whole(resource, key, fields)
    if version:
        body["metadata"]["resourceVersion"] = version
    return Write(APPLY, object_path(resource, key), body, key, version, APPLY_PATCH, unless, force)


def _whole(resource: Resource, key: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with these *fields*, its name and its kind."""
    namespace, _, name = key.rpartition("/")
    meta = {**({"namespace": namespace} if namespace else {}), "name": name, **fields.get("metadata", {})}
    api_version = _group_and_plural(resource)[0].removeprefix("/apis/").removeprefix("/api/")
    return {"apiVersion": api_version, "kind": resource.name, **fields, "metadata": meta}


def merge_patch(
    resource: Resource,
    key: str,
    version: str,
    fields: Mapping[str, Any],
    *,
    subresource: str = "",
    unless: Existing | None = None,
) -> Write:
    """Return the write that gives *fields* to this version of an object, and no other."""
    body = {**fields, "metadata": {"resourceVersion": version, **fields.get("metadata", {})}}
    return Write(PATCH, object_path(resource, key) + subresource, body, key, version, MERGE_PATCH, unless)


def json_patch(resource: Resource, key: str, version: str, operations: Sequence[Mapping[str, Any]]) -> Write:
    """Return the write that applies *operations* to this version of an object, and no other."""
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return Write(PATCH, object_path(resource, key), [test, *operations], key, version, JSON_PATCH)


def deletion(
    resource: Resource, key: str, version: str, *, unless: Existing | None = None, **preconditions: str
) -> Write:
    """Return the write that deletes this version of an object, and no other, and what it owns after it."""
    required = {**preconditions, "resourceVersion": version}
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": required}
    body["propagationPolicy"] = "Background"  # as kubectl asks; by default a ReplicationController leaves its pods
    return Write(DELETE, object_path(resource, key), body, key, version, unless=unless)
