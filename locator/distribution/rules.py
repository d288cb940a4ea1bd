# SPDX-License-Identifier: Apache-2.0

"""What the controller of a federation writes: copies into each cluster, and into its API what became of them.

Each cluster has a work queue of its own, and so has the federation API: one that is slow holds up no other one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from locator.api.decoding import Resource
from locator.control.reconciler import Later, WriteRules
from locator.control.writes import (
    BEHIND,
    Existing,
    Write,
    application,
    creation,
    deletion,
    merge_patch,
    object_path,
)
from locator.control.writes import REFUSED as WRITE_REFUSED
from locator.distribution.distribution import Distribution, Plan, Refusal
from locator.distribution.federation_status import (
    NOT_OURS,
    REFUSED,
    SYNCED,
    UNREACHABLE,
    WAITING,
    ClusterStatus,
    decode_statuses,
    encode_statuses,
)
from locator.distribution.findings import invalid, not_distributed, refusals, unknown_annotations
from locator.distribution.instructions import Problem
from locator.distribution.manifests import LABEL, digest_of, label_value, status_of, wanted_manifest
from locator.distribution.records import (
    FINALIZER,
    KINDS,
    NAMESPACE,
    OTHER_WORKLOADS,
    ClusterNamespace,
    Copy,
    Key,
    Original,
    Replicas,
    namespace_key,
)
from locator.model import OWN, Finding
from locator.printable import MAX_TEXT, cut
from locator.topology.annotations import FEDERATION_STATUS, ORPHAN, field_of

SETTLING_SECONDS = 2.0  # for which a copy may be on its way before that is told: most arrive sooner
LOOK_AGAIN_SECONDS = 1.0

Report = Callable[[Finding], None]


class DistributionRules(WriteRules):
    """What the rules of all destinations have in common; *distribution* is shared by them."""

    def __init__(self, distribution: Distribution, cluster: str) -> None:
        self.resources: Mapping[type[Any], Resource] = distribution.resources
        self.objects = distribution.objects
        self.cluster = cluster
        self._distribution = distribution

    def namespace_of(self, key: str) -> str:
        """Return the namespace of an object."""
        return Key.parse(key).namespace


class CopyRules(DistributionRules):
    """Compares the copies in one cluster with what is wanted there."""

    deletions_linger = True

    def __init__(self, distribution: Distribution, cluster: str, on_answer: Callable[[Key], None]) -> None:
        """Call *on_answer* with each object about which the cluster's API server has said something."""
        super().__init__(distribution, cluster)
        self._on_answer = on_answer
        self._sent: dict[str, bytes] = {}  # by key: the digest of what is being applied
        # By key: the digest of what was applied, and that of what the cluster made of it. If admission changes a copy,
        # or an older API server does not know a field, to apply it again would change nothing.
        self._accepted: dict[str, tuple[bytes, bytes]] = {}

    @property
    def has_synced(self) -> bool:
        """Whether the federation API and the cluster have been read completely, and the cluster can be read."""
        contact = self._distribution.contacts.get(self.cluster)
        can_be_read = contact is not None and not contact.unreachable
        return can_be_read and self.objects.is_listed(OWN) and self.objects.is_listed(self.cluster)

    def written_object(self, key: str) -> tuple[type[Any], str]:
        """Return the type of the copy that a key stands for, and its ``NAMESPACE/NAME``."""
        kind, found = Key.parse(key)
        return ClusterNamespace if kind == NAMESPACE else KINDS[kind].copy, found

    def write_for(self, key: str, now: float) -> Write | Later | None:
        """Return the write that a copy, or a namespace, needs; None if it is as it should be."""
        self._sent.pop(key, None)  # none of it is on its way
        parsed = Key.parse(key)
        if parsed.kind == NAMESPACE:
            return self._namespace(parsed)
        original, copy = self._distribution.original(parsed), self._distribution.copy(parsed, self.cluster)
        if original is None and copy is None:
            self._accepted.pop(key, None)
            self._distribution.refusals.pop((self.cluster, parsed), None)
            return None
        if original is not None and copy is not None and original.uid == copy.uid:
            return None  # by mistake, or since a kubeconfig has changed, the cluster is the federation API itself
        if original is None or original.deleting or not original.distributed:
            return self._end(parsed, original, copy)
        plan = self._distribution.plan(parsed, original)
        if not original.is_held or not isinstance(plan, Plan):
            return None
        if self.cluster not in plan.shares:
            return self._deletion(parsed, copy)
        if copy is not None and copy.deleting:
            return None
        namespace = self._distribution.namespace(parsed.namespace, self.cluster)
        if namespace is None or namespace.deleting:
            return None
        wanted = self._wanted(parsed, original, copy, plan)
        digest = digest_of(wanted)
        if copy is not None and self._is_as(key, copy, digest):
            self._distribution.refusals.pop((self.cluster, parsed), None)  # what was refused is not wanted any more
            return None
        self._sent[key] = digest
        return self._application(parsed, original, copy, wanted)

    def is_writing(self, key: Key) -> bool:
        """Whether something that topodns applies may be on its way to the cluster."""
        return str(key) in self._sent

    def is_synced(self, key: Key, original: Original, plan: Plan) -> bool:
        """Whether the copy is as it should be, as far as topodns can tell or do."""
        copy = self._distribution.copy(key, self.cluster)
        if copy is None or copy.deleting:
            return False
        return self._is_as(str(key), copy, digest_of(self._wanted(key, original, copy, plan)))

    def written(self, write: Write, found: Any, began: float) -> bool:
        """Note that nothing refuses the object any more, and what the cluster made of what was applied."""
        self._distribution.refusals.pop((self.cluster, Key.parse(write.key)), None)
        sent = self._sent.pop(write.key, None)
        self._accepted.pop(write.key, None)
        if isinstance(found, Copy) and sent is not None and found.digest != sent:
            self._accepted[write.key] = sent, found.digest
        self._on_answer(Key.parse(write.key))
        return True

    def failed(self, write: Write, result: str, words: str) -> None:
        """Note what the API server said to a write, or that the object is somebody else's."""
        self._sent.pop(write.key, None)
        key = Key.parse(write.key)
        if result == BEHIND:
            message = f"there is a {key.kind} of this name, and it is not of this federation"
            self._distribution.refusals[self.cluster, key] = Refusal(message, not_ours=True)
        elif result == WRITE_REFUSED:
            self._distribution.refusals[self.cluster, key] = Refusal(cut(words, MAX_TEXT))
        self._on_answer(key)

    def _is_as(self, key: str, copy: Copy, digest: bytes) -> bool:
        return copy.digest == digest or self._accepted.get(key) == (digest, copy.digest)

    def _application(self, key: Key, original: Original, copy: Copy | None, wanted: Mapping[str, Any]) -> Write:
        resource = self.resources[KINDS[key.kind].copy]
        path, version, adopts = object_path(resource, key.object), "", original.instructions.adopt
        if copy is not None:
            version, unless = copy.version, None
        elif adopts:
            unless = Existing(path, uid=original.uid)  # in the federation API itself
        else:
            # With the label, it is a copy that was made when the answer of the API server got lost.
            unless = Existing(path, without=(LABEL, label_value(self._distribution.name)))
        force = copy is not None or adopts
        return application(resource, key.object, version, wanted, force=force, unless=unless)

    def _wanted(self, key: Key, original: Original, copy: Copy | None, plan: Plan) -> dict[str, Any]:
        replicas = plan.shares[self.cluster]
        scales_itself = self._distribution.scales_itself(key, original, self.cluster)
        if copy is not None and (scales_itself or self.cluster in plan.migrated):
            # To leave out a field that nobody else owns would reset it to its default.
            replicas = copy.replicas if copy.owns_replicas else None
        return wanted_manifest(original, replicas)

    def _end(self, key: Key, original: Original | None, copy: Copy | None) -> Write | None:
        """Return the write that ends a copy whose original ends, or is gone."""
        if copy is None:
            return None
        if (original is None or not original.deleting) and not self._distribution.absence_counts:
            return None
        if original is None and not copy.applied:
            return None  # somebody's object that has the label of a copy from which it was made
        if original is not None:
            if any(_orphan_problems(original)):
                return None
            if original.instructions.orphan:
                resource, fields = self.resources[KINDS[key.kind].copy], {"metadata": {"labels": {LABEL: None}}}
                return merge_patch(resource, key.object, copy.version, fields)
        return self._deletion(key, copy)

    def _deletion(self, key: Key, copy: Copy | None) -> Write | None:
        if copy is None or copy.deleting:
            return None
        resource = self.resources[KINDS[key.kind].copy]
        return deletion(resource, key.object, copy.version, uid=copy.uid)

    def _namespace(self, key: Key) -> Write | None:
        """Return the write that creates a namespace, None if it exists, or nothing needs it."""
        distribution, name = self._distribution, key.object
        if distribution.namespace(name, self.cluster) is not None:
            return None  # if it is being deleted, its watch tells when it is gone
        if not distribution.wants_namespace(name, self.cluster):
            return None
        return creation(self.resources[ClusterNamespace], name, {})


class OriginalRules(DistributionRules):
    """Compares what stands in the objects of the federation API with what became of them in all *clusters*.

    Calls *report* with each new finding about one of them.
    """

    def __init__(self, distribution: Distribution, clusters: Mapping[str, CopyRules], report: Report) -> None:
        super().__init__(distribution, OWN)
        self._clusters, self._report = clusters, report
        self._reported: dict[str, tuple[Finding, ...]] = {}
        self._settled: dict[str, float] = {}  # by key: from when on it is told that something is on its way

    @property
    def has_synced(self) -> bool:
        """Whether the federation API has been read completely."""
        return self.objects.is_listed(OWN)

    def written_object(self, key: str) -> tuple[type[Any], str]:
        """Return the type of the object that a key stands for, and its ``NAMESPACE/NAME``."""
        kind, found = Key.parse(key)
        return KINDS[kind].original, found

    def write_for(self, key: str, now: float) -> Write | Later | None:
        """Return the write that an object of the federation API needs."""
        parsed = Key.parse(key)
        if parsed.kind in OTHER_WORKLOADS:
            is_there = self.objects.get(OTHER_WORKLOADS[parsed.kind][1], parsed.object) is not None
            self._tell(key, [not_distributed(parsed)] if is_there else ())
            return None
        original = self._distribution.original(parsed)
        if original is None:
            self._tell(key, ())
            self._settled.pop(key, None)
            return None
        if original.deleting or not original.distributed:
            return self._end(parsed, original, now)
        plan, unknown = self._distribution.plan(parsed, original), unknown_annotations(parsed, original)
        if not isinstance(plan, Plan):
            self._tell(key, [*unknown, *(invalid(parsed, problem) for problem in plan)])
            return None
        if not original.is_held:
            return self._patch(parsed, original, {"metadata": {"finalizers": [*original.finalizers, FINALIZER]}})
        if self._is_early(plan.shares):
            return Later(now + LOOK_AGAIN_SECONDS)
        statuses = self._statuses(parsed, original, plan)
        self._tell(key, [*unknown, *refusals(parsed, statuses)])
        if any(found.state == WAITING for found in statuses.values()):
            if now < (moment := self._settled.setdefault(key, now + SETTLING_SECONDS)):
                return Later(moment)
        else:
            self._settled.pop(key, None)
        if write := self._annotation(parsed, original, statuses):
            return write
        status = self._status(parsed, original, statuses)
        if status and any(original.status.get(name) != value for name, value in status.items()):
            return self._patch(parsed, original, {"status": status}, subresource="/status")
        return None

    def _is_early(self, clusters: Collection[str]) -> bool:
        """Whether one of the clusters is neither read yet nor out of reach."""
        contacts = self._distribution.contacts
        return any(not contacts[name].unreachable and not self.objects.is_listed(name) for name in clusters)

    def _statuses(self, key: Key, original: Original, plan: Plan) -> dict[str, ClusterStatus]:
        found = {}
        for cluster in self._distribution.contacts:
            copy = self._distribution.copy(key, cluster)
            if cluster not in plan.shares and copy is None:
                continue
            state, message = self._state(key, original, plan, cluster)
            wanted, replicas, ready = plan.shares.get(cluster), None, None
            if original.replicas is not None:
                if copy is not None and self._distribution.scales_itself(key, original, cluster):
                    wanted = None
                replicas, ready = (copy.status.replicas, copy.status.ready) if copy is not None else (0, 0)
                if not self.objects.is_listed(cluster) and (
                    before := decode_statuses(original.federation_status).get(cluster)
                ):
                    replicas, ready = before.replicas, before.ready  # as another leader has read it last
            found[cluster] = ClusterStatus(wanted, replicas, ready, state, message)
        return found

    def _state(self, key: Key, original: Original, plan: Plan, cluster: str) -> tuple[str, str]:
        distribution = self._distribution
        contact = distribution.contacts[cluster]
        if contact.unreachable:
            return UNREACHABLE, contact.problem
        if cluster in plan.shares and self._clusters[cluster].is_synced(key, original, plan):
            return SYNCED, ""
        namespace = distribution.namespace(key.namespace, cluster)
        message = "its namespace is being deleted" if namespace is not None and namespace.deleting else ""
        return self._obstacle(key, cluster) or (WAITING, message)

    def _obstacle(self, key: Key, cluster: str) -> tuple[str, str] | None:
        """Return the state, and why, if the API server of a cluster has refused what is to become of an object."""
        for refused in (namespace_key(key.namespace), key):
            refusal = self._distribution.refusals.get((cluster, refused))
            if refusal is not None:
                return NOT_OURS if refusal.not_ours else REFUSED, refusal.words
        return None

    def _status(self, key: Key, original: Original, statuses: Mapping[str, ClusterStatus]) -> dict[str, Any]:
        """Return what the status of an object must say."""
        kind, distribution = KINDS[key.kind], self._distribution
        if original.balanced:
            name = f"{original.name}.{original.namespace}.{distribution.name}"
            return {"loadBalancer": {"ingress": [{"hostname": name}]}}
        if not kind.has_replicas:
            return {}
        counted = [self._counted(key, cluster, found) for cluster, found in statuses.items()]
        members = Replicas.__struct_fields__
        numbers = Replicas(**{member: sum(getattr(one, member) for one in counted) for member in members})
        reachable = [cluster for cluster, found in statuses.items() if found.state != UNREACHABLE]
        observed = all(statuses[cluster].state == SYNCED and self._observes(key, cluster) for cluster in reachable)
        return status_of(kind, numbers, original.generation if observed else 0)

    def _counted(self, key: Key, cluster: str, found: ClusterStatus) -> Replicas:
        """Return the numbers of a cluster as they were read last."""
        copy = self._distribution.copy(key, cluster)
        if copy is not None:
            return copy.status
        # This leader has not read the cluster yet, and the one before has told less than all.
        replicas, ready = found.replicas or 0, found.ready or 0
        return Replicas(replicas, ready, available=ready, updated=replicas, unavailable=max(0, replicas - ready))

    def _observes(self, key: Key, cluster: str) -> bool:
        copy = self._distribution.copy(key, cluster)
        return copy is not None and copy.observed

    def _end(self, key: Key, original: Original, now: float) -> Write | Later | None:
        """Return the write that lets an object go, if no cluster has a copy of it."""
        if not original.is_held:
            return None
        contacts = self._distribution.contacts
        if self._is_early(contacts):
            return Later(now + LOOK_AGAIN_SECONDS)
        if any(rules.is_writing(key) for rules in self._clusters.values()):
            return Later(now + LOOK_AGAIN_SECONDS)  # a copy may come into being
        unknown = [name for name in contacts if contacts[name].unreachable or not self.objects.is_listed(name)]
        left = [name for name in contacts if self._distribution.copy(key, name) is not None]
        if not unknown and not left:
            others = [name for name in original.finalizers if name != FINALIZER]
            return self._patch(key, original, {"metadata": {"finalizers": others}})
        goes = original.deleting or self._distribution.absence_counts
        message = "being deleted" if goes else "kept while there is nothing else to distribute"
        found = {name: self._obstacle(key, name) or (WAITING, message) for name in left}
        found |= {name: (UNREACHABLE, contacts[name].problem) for name in unknown}
        statuses = {name: ClusterStatus(0, None, None, *state) for name, state in found.items()}
        problems = [invalid(key, problem) for problem in _orphan_problems(original)]
        self._tell(str(key), [*problems, *refusals(key, statuses)])
        if now < (moment := self._settled.setdefault(str(key), now + SETTLING_SECONDS)):
            return Later(moment)
        return self._annotation(key, original, statuses)

    def _annotation(self, key: Key, original: Original, statuses: Mapping[str, ClusterStatus]) -> Write | None:
        """Return the write that lets the annotation say *statuses*, None if it does."""
        text = encode_statuses(statuses)
        if text == original.federation_status:
            return None
        return self._patch(key, original, {"metadata": {"annotations": {FEDERATION_STATUS: text}}})

    def _patch(self, key: Key, original: Original, fields: Mapping[str, Any], *, subresource: str = "") -> Write:
        resource = self.resources[KINDS[key.kind].original]
        return merge_patch(resource, key.object, original.version, fields, subresource=subresource)

    def _tell(self, key: str, findings: Iterable[Finding]) -> None:
        """Report those of the findings about an object that are new."""
        after, before = tuple(findings), self._reported.pop(key, ())
        if after:
            self._reported[key] = after
        for finding in after:
            if finding not in before:
                self._report(finding)


def _orphan_problems(original: Original) -> Iterator[Problem]:
    """Yield what is wrong with the answer to whether copies stay: until it is right, they do."""
    return (problem for problem in original.problems if problem.field == field_of(ORPHAN))
