# SPDX-License-Identifier: Apache-2.0

"""Compares what should be with what is, and returns the write that is due: the one machine of all controllers.

A controller brings ``Rules``: which objects it reads, in which cluster, and what follows from them. It computes every
write from the present state and never from an event: events may be late, duplicated or lost. Each write requires the
version that the controller saw, so it never overwrites a change that it has not seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from locator.api.decoding import Resource
from locator.api.deltas import Delta, Drop, Put, Replace, precedes
from locator.control.work_queue import WorkQueue, namespace_of
from locator.control.writes import DELETE, Write
from locator.model import OWN

# Keys compared before other tasks get a turn. One takes 10 ms for a policy in a namespace with 10,000 Services.
MAX_KEYS = 10


class Later(NamedTuple):
    """An object needs no write before a moment; it is then compared again, as *urgent* before most others."""

    moment: float
    urgent: bool = False


class ObjectChange(NamedTuple):
    """What has changed in a cluster. Without ``before`` the object is new, and without ``after`` it is gone."""

    kind: type[Any]
    key: str
    before: Any
    after: Any
    cluster: str


class KnownObjects:
    """The objects that a controller reads, by cluster and kind.

    *kinds* are those of the cluster that it writes to, and *others* those of each other cluster, by its name. *keep*
    returns what is to be known of an object, None if nothing is.
    """

    def __init__(
        self,
        kinds: Iterable[type[Any]],
        others: Mapping[str, Iterable[type[Any]]] | None = None,
        *,
        keep: Callable[[Any], Any] = lambda known: known,
    ) -> None:
        self.kinds: dict[str, tuple[type[Any], ...]] = {}
        """The kinds by cluster, the own one first."""
        self._keep = keep
        self._objects: dict[tuple[str, type[Any]], dict[str, Any]] = {}
        self._incomplete: set[tuple[str, type[Any]]] = set()  # not listed yet
        self._awaited: set[tuple[str, type[Any]]] = set()  # those of them that are waited for
        self._waits = True
        self.add(OWN, kinds)
        for cluster, of_cluster in (others or {}).items():
            self.add(cluster, of_cluster)

    def add(self, cluster: str, kinds: Iterable[type[Any]]) -> None:
        """Know *kinds* of another cluster, too. It is not waited for once all others have been listed."""
        new = {(cluster, kind): dict[str, Any]() for kind in kinds}
        self.kinds[cluster] = tuple(kind for _, kind in new)
        self._objects |= new
        self._incomplete |= new.keys()
        if cluster == OWN or (self._waits and not self.has_synced):
            self._awaited |= new.keys()

    def remove(self, cluster: str) -> Iterator[ObjectChange]:
        """Forget another cluster; yield each of its objects right after it was forgotten."""
        tables = [(cluster, kind) for kind in self.kinds[cluster]]
        for table in tables:
            objects = self._objects[table]
            for key in list(objects):
                yield ObjectChange(table[1], key, objects.pop(key), None, cluster)
        for table in tables:
            del self._objects[table]
        self._incomplete.difference_update(tables)
        self._awaited.difference_update(tables)
        del self.kinds[cluster]

    @property
    def has_synced(self) -> bool:
        """Whether everything that is waited for has been listed. Until then, no write is due."""
        return not self._awaited

    @property
    def is_complete(self) -> bool:
        """Whether everything has been listed, also what is not waited for."""
        return not self._incomplete

    @property
    def counts(self) -> dict[type[Any], int]:
        """The number of objects of each kind; one that several clusters have counts once."""
        known: dict[type[Any], list[dict[str, Any]]] = {}
        for (_, kind), objects in self._objects.items():
            known.setdefault(kind, []).append(objects)
        return {kind: len(found[0] if len(found) == 1 else set().union(*found)) for kind, found in known.items()}

    def of_kind(self, kind: type[Any], cluster: str = OWN) -> Mapping[str, Any]:
        """Return the objects of a kind in a cluster, by their keys."""
        return self._objects[cluster, kind]

    def get(self, kind: type[Any], key: str, cluster: str = OWN) -> Any:
        """Return an object, None if there is none."""
        return self._objects.get((cluster, kind), {}).get(key)

    def is_listed(self, cluster: str) -> bool:
        """Whether everything of a cluster has been listed."""
        return not any(known == cluster for known, _ in self._incomplete)

    def stop_waiting(self) -> None:
        """Go on without the other clusters that could not be listed yet, or are added later."""
        self._waits = False
        self._awaited = {(cluster, kind) for cluster, kind in self._awaited if cluster == OWN}

    def apply(self, delta: Delta, cluster: str) -> Iterator[ObjectChange]:
        """Take in a delta; yield each change right after it was made. Deltas may come late, twice or not at all.

        Those of a cluster that has been removed change nothing: a write may end later.
        """
        if cluster not in self.kinds:
            return
        for kind, key, found in self._found(delta, cluster):
            objects = self._objects[cluster, kind]
            before, after = objects.get(key), None if found is None else self._keep(found)
            if before != after:
                if after is None:
                    del objects[key]
                else:
                    objects[key] = after
                yield ObjectChange(kind, key, before, after, cluster)
        if isinstance(delta, Replace):
            self._incomplete.discard((cluster, delta.kind))
            self._awaited.discard((cluster, delta.kind))

    def _found(self, delta: Delta, cluster: str) -> Iterator[tuple[type[Any], str, Any]]:
        """Yield kind and key of what a delta is about, with what it brings, None for an object that is gone."""
        match delta:
            case Replace(kind=kind, objects=objects):
                gone = dict.fromkeys(self._objects[cluster, kind])
                for listed in objects:
                    gone.pop(listed.key, None)
                    yield kind, listed.key, listed
                for key in gone:
                    yield kind, key, None
            case Put(object=put):
                known = self.get(type(put), put.key, cluster)
                if not precedes(getattr(put, "version", ""), getattr(known, "version", "")):
                    yield type(put), put.key, put
            case Drop(kind=kind, key=key):
                yield kind, key, None


class WriteRules(Protocol):
    """What is to be written to the API server of one cluster. A key of the work queue stands for one object there."""

    resources: Mapping[type[Any], Resource]
    """How each kind is read."""
    objects: KnownObjects
    cluster: str = OWN
    """The cluster that it writes to."""
    deletions_linger: bool = False
    """Whether finalizers may hold an object that was deleted, so that its watch alone tells when it is gone."""

    @property
    def has_synced(self) -> bool:
        """Whether everything that is waited for has been listed. Until then, no write is due."""
        return self.objects.has_synced

    def namespace_of(self, key: str) -> str:
        """Return the namespace of a key: each gets its turn."""
        return namespace_of(key)

    def written_object(self, key: str) -> tuple[type[Any], str]:
        """Return the kind of the object that a key stands for, and its own key.

        The kind's records have the field ``version``, by which an event that comes late is known.
        """

    def write_for(self, key: str, now: float) -> Write | Later | None:
        """Return the write that an object needs *now*, None if it is as it should be."""

    def written(self, write: Write, found: Any, began: float) -> bool:
        """Learn of a write that succeeded and *began* then; return whether *found*, what it has left, is right.

        Without *found*, the object was deleted, or what is left cannot be read. By default it is right: if it is not,
        the next comparison finds so.
        """
        return True

    def failed(self, write: Write, result: str, words: str) -> None:
        """Learn of a write that failed, with one of ``writes.RESULTS`` and in what *words*. It is tried again."""
        return


class Rules(WriteRules, Protocol):
    """What one controller wants; the rules of each derive from this.

    It writes one kind.
    """

    writes: type[Any]
    """That kind."""
    elsewhere: Collection[type[Any]] = ()
    """The kinds that it reads in each other cluster."""
    urgent: Collection[type[Any]]
    """The kinds whose single changes are compared before what follows from lists and from other kinds."""

    def written_object(self, key: str) -> tuple[type[Any], str]:
        """Return the kind that it writes, and the key."""
        return self.writes, key

    def changed(self, change: ObjectChange) -> Iterable[str]:
        """Return the keys of what may need a write after a change, or is gone with it."""

    def exists(self, key: str) -> bool:
        """Whether there is anything to compare."""


class Destination(ABC):
    """Where one controller writes: the work queue of *rules*."""

    def __init__(self, rules: WriteRules) -> None:
        self.rules = rules
        self.queue = WorkQueue(rules.namespace_of)

    @property
    def has_synced(self) -> bool:
        """Whether everything that is waited for has been listed. Until then, no write is due."""
        return self.rules.has_synced

    @abstractmethod
    def apply(self, delta: Delta, cluster: str = OWN) -> None:
        """Take in a delta from a list, a watch or the response to a write."""

    def next_write(self, now: float) -> Write | None:
        """Return the next write. None if no key is due, or if the next MAX_KEYS keys need no write.

        The caller must call ``queue.done`` or ``queue.retry`` for the write's key.
        """
        if not self.has_synced:
            return None
        for _ in range(MAX_KEYS):
            key = self.queue.get(now)
            if key is None:
                return None
            needed = self.rules.write_for(key, now)
            if isinstance(needed, Write):
                return replace(needed, key=key)
            if needed is None:
                self.queue.done(key)
            else:
                self.queue.defer(key, needed.moment, urgent=needed.urgent)
        return None

    def written(self, write: Write, found: Any, *, began: float) -> bool:
        """Record that a write has succeeded, which *began* when ``next_write`` returned it; return whether it counts.

        *found* is the object as the API server returned it, None if it was deleted, or cannot be read. If that is not
        what was to be written, something at admission has undone it, and perhaps no event will come.
        """
        if write.verb == DELETE:
            if not self.rules.deletions_linger:
                self.gone(write)
        elif write.version and self._known(write.key) is None:
            return True  # it has been deleted since, and no event would tell so again
        elif found is not None:
            self.apply(Put(found), self.rules.cluster)
        return self.rules.written(write, found, began)

    def gone(self, write: Write) -> None:
        """Record that the object of a write does not exist, unless a newer version is known."""
        known = self._known(write.key)
        if known is not None and known.version == write.version:
            self.apply(Drop(*self.rules.written_object(write.key)), self.rules.cluster)

    def _known(self, key: str) -> Any:
        kind, found = self.rules.written_object(key)
        return self.rules.objects.get(kind, found, self.rules.cluster)


class Reconciler(Destination):
    """The work queue of *rules*, which is filled by what they read."""

    rules: Rules

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)

    def apply(self, delta: Delta, cluster: str = OWN) -> None:
        """Take in a delta from a list, a watch or the response to a write."""
        self._take_in(self.rules.objects.apply(delta, cluster), may_be_urgent=not isinstance(delta, Replace))

    def add_cluster(self, cluster: str) -> None:
        """Know the objects of another cluster, too."""
        self.rules.objects.add(cluster, self.rules.elsewhere)

    def remove_cluster(self, cluster: str) -> None:
        """Forget another cluster with its objects."""
        self._take_in(self.rules.objects.remove(cluster), may_be_urgent=False)

    def _take_in(self, changes: Iterable[ObjectChange], *, may_be_urgent: bool) -> None:
        rules = self.rules
        lacked_a_list = rules.objects.has_synced and not rules.objects.is_complete
        for change in changes:
            urgent = may_be_urgent and change.kind in rules.urgent
            for key in rules.changed(change):
                if rules.exists(key):
                    self.queue.add(key, urgent=urgent)
                else:
                    self.queue.discard(key)  # a follower, which takes no key out, must forget it, too
        if lacked_a_list and rules.objects.is_complete:  # this may be all that a write lacked
            for key in filter(rules.exists, rules.objects.of_kind(rules.writes)):
                self.queue.add(key)
