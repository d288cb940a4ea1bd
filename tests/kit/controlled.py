# SPDX-License-Identifier: Apache-2.0

"""A controller's reconciler, and the API server that it writes to, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from locator.api.decoding import Resource, decode_untrusted
from locator.api.deltas import Drop, Put, Replace
from locator.control.reconciler import Reconciler, Rules
from locator.control.writes import DELETE, Write
from tests.kit.api_objects import Item


def record(resources: Mapping[type[Any], Resource], item: Item) -> Any:
    """Return an object of the API as the record that *resources* have for its kind, None if it cannot be read."""
    resource = next(resource for resource in resources.values() if resource.name == item["kind"])
    return decode_untrusted(resource, json.dumps(item).encode()).built


def merged(target: Any, patch: Any) -> Any:
    """Return the result of a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


class Controlled:
    """A reconciler that has listed the kind that it writes.

    ``stored`` are the objects of that kind by key, as the API server has them, and ``records`` as the reconciler does.
    """

    def __init__(self, rules: Rules, stored: Iterable[Item] = ()) -> None:
        self.reconciler = Reconciler(rules)
        self.stored: dict[str, Item] = {}
        self.records: dict[str, Any] = {}
        self._resources, self._writes = rules.resources, rules.writes
        self._version = 100
        for item in stored:
            self._store(item)
            self._version = max(self._version, int(item["metadata"]["resourceVersion"]))
        self.reconciler.apply(Replace(self._writes, list(self.records.values())))

    def put(self, item: Item) -> None:
        """Change or create an object; the reconciler hears of it."""
        if item["kind"] == self._resources[self._writes].name:
            self._version += 1
            version = {"metadata": {"resourceVersion": str(self._version)}}
            self.reconciler.apply(Put(self._store(merged(item, version))))
        else:
            self.reconciler.apply(Put(record(self._resources, item)))

    def drop(self, kind: type[Any], key: str) -> None:
        """Delete an object; the reconciler hears of it."""
        if kind is self._writes:
            del self.stored[key], self.records[key]
        self.reconciler.apply(Drop(kind, key))

    def write(self, now: float = 0.0) -> list[Write]:
        """Carry out all writes that are due; return them."""
        done = []
        while (write := self.reconciler.next_write(now)) is not None:
            done.append(write)
            assert len(done) < 100, "it writes for ever"
            assert self.reconciler.written(write, self._carried_out(write), began=now)
            self.reconciler.queue.done(write.key)
        return done

    def _carried_out(self, write: Write) -> Any:
        """Return what the API server makes of a write, which must be for the version that it has."""
        before = self.stored.get(write.key, {"metadata": {"resourceVersion": ""}})
        assert write.version == before["metadata"]["resourceVersion"]
        if write.verb == DELETE:
            del self.stored[write.key], self.records[write.key]
            return None
        self._version += 1
        return self._store(merged(merged(before, write.body), {"metadata": {"resourceVersion": str(self._version)}}))

    def _store(self, item: Item) -> Any:
        found = record(self._resources, item)
        self.stored[found.key], self.records[found.key] = item, found
        return found
