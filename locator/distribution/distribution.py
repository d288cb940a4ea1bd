# SPDX-License-Identifier: Apache-2.0

"""What is known of a federation API and its clusters, and what follows from it for each object.

All is computed from the present state of the federation API and the clusters. Only two things depend on what was
before: since when a cluster is out of reach, and which clusters have lost their share (``migrated``). After a restart,
the second one is read from the annotation ``topodns.io/federation-status``, where the leader before has written it.

Moments are seconds on a monotonic clock, which callers pass in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from locator.api.decoding import Resource
from locator.control.reconciler import KnownObjects, ObjectChange
from locator.distribution.federation_status import decode_statuses
from locator.distribution.instructions import Problem, unknown_clusters
from locator.distribution.manifests import copy_resources, original_resources
from locator.distribution.records import (
    KIND_OF,
    KINDS,
    Autoscaler,
    ClusterNamespace,
    Copy,
    Key,
    Original,
    namespace_key,
)
from locator.distribution.split import MAX_REPLICAS, split
from locator.index import Index
from locator.labels import Selector
from locator.printable import MAX_TEXT, cut
from locator.topology.annotations import OVERPROVISION, field_of

# For which a watch may be without contact before its cluster counts as unreachable: an API server that restarts, or a
# watch that begins anew, is no reason to write into the status of every object.
UNREACHABLE_SECONDS = 10.0
CLUSTER_ID = "kube-system"  # the namespace whose uid is the identity of a cluster
BACK_SECONDS = 60.0  # for which a cluster must have been read before it gets its share back
DOUBT_SECONDS = 60.0  # for which other kinds are waited for when a list lacks objects: the longest pause is 30 s


class Contact(Struct):
    """Whether a cluster can be read: since when it cannot, or since when it can, and why not."""

    lost_since: float | None
    read_since: float | None = None
    problem: str = ""
    unreachable: bool = False
    """Whether it has been without contact for so long that this counts."""


class Refusal(NamedTuple):
    """What the API server of a cluster said to a write, or that an object of that name is somebody else's."""

    words: str
    not_ours: bool = False


class Plan(NamedTuple):
    """In which clusters an object is to be, each with its replicas (None of a kind that has none).

    ``migrated`` are those of them whose share the others have, since they cannot be read.
    """

    shares: Mapping[str, int | None]
    migrated: frozenset[str]


class Distribution:
    """The federation *name*: the objects of its API, and those of the *clusters*, by their names."""

    def __init__(self, name: str, clusters: Iterable[str], *, selector: Selector | None = None, now: float) -> None:
        self.name = name
        originals, copies = original_resources(name, selector), copy_resources(name)
        self.resources: Mapping[type[Any], Resource] = {**originals, **copies}
        """How each kind is read, in the federation API and in clusters."""
        self.originals, self.copies = tuple(originals), tuple(copies)
        self.objects = KnownObjects(self.originals, dict.fromkeys(clusters, self.copies))
        self.contacts: dict[str, Contact] = {cluster: Contact(now) for cluster in clusters}
        self.refusals: dict[tuple[str, Key], Refusal] = {}
        """By cluster and object, until a write succeeds."""
        self._migrated: dict[Key, frozenset[str]] = {}
        self._in_namespace: Index[Key, Original] = Index(namespace=lambda original: (original.namespace,))
        self._autoscaled: dict[str, Index[str, Autoscaler]] = {}
        self._selected = 0
        self._blind_until = now
        # Kinds of the federation API that have not been listed since objects vanished from the list of another one. If
        # the whole API has lost its objects, that of one kind comes first, and the others still look as before.
        self._doubted: set[type[Any]] = set()
        self._doubted_since: float | None = None

    # --- What is known ------------------------------------------------------------------------------------------------

    @property
    def clusters(self) -> list[str]:
        """The names of all clusters, in order."""
        return sorted(self.contacts)

    @property
    def is_empty(self) -> bool:
        """Whether the federation API has no object to distribute."""
        return not self._selected

    @property
    def absence_counts(self) -> bool:
        """Whether copies go of what the federation API does not have, or no longer distributes, undeleted."""
        return not self.is_empty and not self._doubted

    def original(self, key: Key) -> Original | None:
        """Return an object of the federation API."""
        kind = KINDS.get(key.kind)
        return None if kind is None else self.objects.get(kind.original, key.object)

    def copy(self, key: Key, cluster: str) -> Copy | None:
        """Return its copy in a cluster."""
        found: Copy | None = self.objects.get(KINDS[key.kind].copy, key.object, cluster)
        return found

    def namespace(self, name: str, cluster: str) -> ClusterNamespace | None:
        """Return a namespace of a cluster."""
        found: ClusterNamespace | None = self.objects.get(ClusterNamespace, name, cluster)
        return found

    def twin(self, cluster: str, others: Iterable[str]) -> str | None:
        """Return which of some *others* that can be read is this cluster, too, at another address (KEP-2149)."""
        own = self.namespace(CLUSTER_ID, cluster)
        if own is None:
            return None
        for other in others:
            found = self.namespace(CLUSTER_ID, other)
            if found is not None and found.uid == own.uid and not self.contacts[other].unreachable:
                return other
        return None

    def is_autoscaled(self, key: Key, cluster: str) -> bool:
        """Whether a HorizontalPodAutoscaler of a cluster names a workload."""
        index = self._autoscaled.get(cluster)
        return index is not None and bool(index.keys("target", key))

    def scales_itself(self, key: Key, original: Original, cluster: str) -> bool:
        """Whether the replicas of a copy that exists are its cluster's own business."""
        return original.instructions.local or self.is_autoscaled(key, cluster)

    def all_originals(self) -> Iterator[tuple[Key, Original]]:
        """Yield each object of the federation API that topodns distributes, or has distributed."""
        for name, kind in KINDS.items():
            for object_key, original in self.objects.of_kind(kind.original).items():
                yield Key(name, object_key), original

    # --- What changes -------------------------------------------------------------------------------------------------

    def note(self, change: ObjectChange) -> Collection[Key]:
        """Take a change in; return the objects whose writes may change with it, a Namespace as one of them.

        A change in a cluster concerns that cluster and the federation API, any other one all of them.
        """
        name = KIND_OF.get(change.kind, "")
        if isinstance(change.before or change.after, Original):
            key = Key(name, change.key)
            was_empty = self.is_empty
            self._in_namespace.move(key, change.before, change.after)
            self._selected += sum(sign * _counts(one) for sign, one in ((-1, change.before), (1, change.after)))
            if change.before is None:
                self._migrated[key] = self._migrated_before(key, change.after)
            if change.after is None:
                self._forget(key)
            return self.all_keys() if was_empty and not self.is_empty else (namespace_key(key.namespace), key)
        if isinstance(change.before or change.after, Copy):
            return (Key(name, change.key),)
        if change.kind is Autoscaler:
            index = self._autoscaled.setdefault(change.cluster, Index(target=lambda found: (found.target,)))
            index.move(change.key, change.before, change.after)
            return {found.target for found in (change.before, change.after) if found and found.target.kind in KINDS}
        if change.kind is ClusterNamespace:
            key = namespace_key(change.key)
            self.refusals.pop((change.cluster, key), None)
            return (key, *self.keys_in(change.key))
        return (Key(name, change.key),)

    def note_list(self, kind: type[Any], *, vanished: bool) -> bool:
        """Note a list of the federation API, and whether objects *vanished* with it; return whether doubts end."""
        if vanished and not self._doubted:
            self._doubted = {other.original for other in KINDS.values()}
            self._doubted_since = None
        before = len(self._doubted)
        self._doubted.discard(kind)
        return before == 1 and not self._doubted

    def end_doubts(self, now: float) -> bool:
        """Stop waiting for other lists after a while: it was one kind's watch alone; return whether doubts end."""
        if not self._doubted:
            return False
        if self._doubted_since is None:
            self._doubted_since = now
        if now - self._doubted_since >= DOUBT_SECONDS:
            self._doubted.clear()
        return not self._doubted

    def all_keys(self) -> set[Key]:
        """Return every object that is known, in the federation API or in a cluster."""
        found = {key for key, _ in self.all_originals()}
        found |= {namespace_key(key.namespace) for key in found}
        for name, kind in KINDS.items():
            found.update(
                Key(name, key) for cluster in self.contacts for key in self.objects.of_kind(kind.copy, cluster)
            )
        return found

    def add_cluster(self, cluster: str, now: float) -> None:
        """Begin to distribute to one more cluster."""
        self.objects.add(cluster, self.copies)
        self.contacts[cluster] = Contact(now)

    def remove_cluster(self, cluster: str) -> None:
        """Forget a cluster, and leave what is there."""
        for _ in self.objects.remove(cluster):
            pass  # all is compared anyway
        del self.contacts[cluster]
        self._autoscaled.pop(cluster, None)
        for key in [known for known in self.refusals if known[0] == cluster]:
            del self.refusals[key]
        self._migrated = {key: names - {cluster} for key, names in self._migrated.items()}

    def observe(self, cluster: str, lost_since: float | None, problem: str, now: float) -> bool:
        """Note whether a cluster can be read, and why not; return whether its objects' state changes with it.

        What is told of a cluster that is out of reach stays: not every error is worth a write to each object.
        """
        contact = self.contacts[cluster]
        unreachable = lost_since is not None and now - lost_since >= UNREACHABLE_SECONDS
        if lost_since is None and contact.lost_since is not None:
            contact.read_since = now
        if not (unreachable and contact.unreachable):
            contact.problem = cut(problem, MAX_TEXT)
        before, contact.lost_since, contact.unreachable = contact.unreachable, lost_since, unreachable
        return before != unreachable

    def migrate(self, now: float) -> set[Key]:
        """Move the shares of clusters that are out of reach, and back; return the objects of which one moves.

        While no cluster can be read, the fault is nearer, and that time does not count.
        """
        if all(contact.lost_since is not None for contact in self.contacts.values()):
            self._blind_until = now
        moved: set[Key] = set()
        for key, original in self.all_originals():
            after = self._migrated_now(key, original, now)
            if after != self._migrated.get(key, frozenset()):
                self._migrated[key] = after
                moved.add(key)
        return moved

    def _migrated_now(self, key: Key, original: Original, now: float) -> frozenset[str]:
        seconds = original.instructions.migrate_after
        if seconds is None or original.replicas is None:
            return frozenset()
        before = self._migrated.get(key, frozenset())
        found: set[str] = set()
        for cluster, contact in self.contacts.items():
            if contact.lost_since is not None:
                moves = cluster in before or now - max(contact.lost_since, self._blind_until) >= seconds
            else:
                read_since = now if contact.read_since is None else contact.read_since
                moves = cluster in before and now - read_since < BACK_SECONDS
            if moves:
                found.add(cluster)
        return frozenset(found)

    def _migrated_before(self, key: Key, original: Original) -> frozenset[str]:
        """Return which clusters have no share of what would be theirs, as the leader before has written."""
        plan = self.plan(key, original)
        if original.instructions.migrate_after is None or not isinstance(plan, Plan):
            return frozenset()
        statuses = decode_statuses(original.federation_status)
        return frozenset(name for name, status in statuses.items() if status.wanted == 0 and plan.shares.get(name))

    def _forget(self, key: Key) -> None:
        self._migrated.pop(key, None)
        for known in [known for known in self.refusals if known[1] == key]:
            del self.refusals[known]

    # --- What follows -------------------------------------------------------------------------------------------------

    def keys_in(self, namespace: str) -> Collection[Key]:
        """Return the objects of a namespace of the federation API."""
        return self._in_namespace.keys("namespace", namespace)

    def wants_namespace(self, name: str, cluster: str) -> bool:
        """Whether an object of a namespace is to be in a cluster."""
        for key in self.keys_in(name):
            original = self.original(key)
            if original is not None and original.is_held and original.distributed and not original.deleting:
                plan = self.plan(key, original)
                if isinstance(plan, Plan) and cluster in plan.shares:
                    return True
        return False

    def plan(self, key: Key, original: Original) -> Plan | list[Problem]:
        """Return where an object is to be, or what is wrong with it: then nothing changes anywhere."""
        instructions = original.instructions
        problems = [*original.problems, *unknown_clusters(instructions, self.contacts)]
        if original.replicas is not None and original.replicas > MAX_REPLICAS:
            problems.append(Problem("spec.replicas", f"{original.replicas} found", f"at most {MAX_REPLICAS}"))
        if problems:
            return problems
        where = self.clusters if instructions.clusters is None else sorted(instructions.clusters)
        if original.replicas is None:
            return Plan(dict.fromkeys(where), frozenset())
        weights = {name: 1 if instructions.weights is None else instructions.weights.get(name, 0) for name in where}
        migrated = self._migrated.get(key, frozenset()) & weights.keys()
        try:
            shares = split(original.replicas, weights, spare=instructions.overprovision, lost=migrated)
        except ValueError as error:
            expected = f"fewer than the {sum(map(bool, weights.values()))} clusters that get replicas"
            expected = f"{expected}, and at most {MAX_REPLICAS} replicas in each"
            return [Problem(field_of(OVERPROVISION), str(error), expected)]
        return Plan(shares, migrated)


def _counts(original: Original | None) -> bool:
    return original is not None and original.distributed
