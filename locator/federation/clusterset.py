# SPDX-License-Identifier: Apache-2.0

"""Several clusters read as one: takes each cluster's snapshots in, gives one snapshot of all out.

The own cluster's Services have their plain names, as ever. The others add where their addresses are, and what federated
and multi-cluster names mean. Whatever a change does not concern stays the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from locator.federation.checks import export_advice, export_findings, imported_overlaps, overlaps
from locator.federation.federating import Joining, ResolvedHost, Verdict, federated_service, is_host_name
from locator.federation.importing import imported, imported_unready, is_on
from locator.health.votes import Votes
from locator.model import Finding
from locator.places.book import AddressBook, Book
from locator.places.joined_book import JoinedBook
from locator.state.derived import mapping_after
from locator.state.snapshot import (
    ExportedService,
    FederatedService,
    ImportedService,
    Snapshot,
    Vote,
    answers_differ,
    book_of,
)
from locator.topology.selection import LocatedEndpoint

_NOTHING = Snapshot({}, frozenset(), AddressBook(), 0)


class ClusterSet:
    """The latest snapshot of each cluster, and of all of them together.

    *own* is the name of the own cluster. *joining* says what federated Services are made with, besides the clusters.
    *honor_kubernetes* is that of ``Store``.
    """

    def __init__(self, own: str, joining: Joining, *, honor_kubernetes: bool = True) -> None:
        self._own = own
        self._places: list[str] = []  # the other clusters, "" where one has gone: the books of those behind it stay
        self._joining = joining
        self._honor_kubernetes = honor_kubernetes
        self._snapshots: dict[str, Snapshot] = {}
        self._before: dict[str, Snapshot] = {}  # as of the last publication
        self._resolved_anew: set[str] = set()  # host names
        self._unready: dict[str, tuple[LocatedEndpoint, ...]] = {}  # of multi-cluster Services, by their cache_key
        self._votes = Votes((own,))
        self._voted_anew: set[str] = set()  # Services
        self._joined_anew = False  # whether clusters have come or gone since the last publication
        self._of_service: dict[str, tuple[Finding, ...]] = {}
        self._findings: Sequence[Finding] | None = None  # all of these; None: something changed
        self._snapshot: Snapshot | None = None
        self._hosts_of: dict[str, frozenset[str]] = {}  # by Service
        self._hosts_changed = False
        self.hosts: Mapping[str, str] = {}
        """The host names of load balancers that have to be resolved, each with a namespace of Services that have it: of
        several, the one with the fewest names, since look-ups are shared among namespaces."""

    @property
    def names(self) -> list[str]:
        """The names of all clusters, known or not, the own one first."""
        return [self._own, *filter(None, self._places)]

    @property
    def complete(self) -> bool:
        """Whether the own cluster is known, so that there is something to publish."""
        return self._own in self._snapshots

    def add(self, cluster: str) -> None:
        """Read another cluster, too, whose snapshot is to come. It is one of those that make a majority."""
        self._votes.add(cluster)
        self._joined_anew = True
        if "" in self._places:
            self._places[self._places.index("")] = cluster
        else:
            self._places.append(cluster)

    def remove(self, cluster: str) -> None:
        """Forget another cluster."""
        self._votes.remove(cluster)
        self._joined_anew = True
        self._places[self._places.index(cluster)] = ""
        self._snapshots.pop(cluster, None)

    def update_own(self, snapshot: Snapshot) -> None:
        """Take in the own cluster's new snapshot."""
        self._snapshots[self._own] = snapshot

    def update(self, cluster: str, snapshot: Snapshot | None) -> None:
        """Take in another cluster's new snapshot; None if it was lost for so long that it does not count any more."""
        if snapshot is None:
            self._snapshots.pop(cluster, None)
        else:
            self._snapshots[cluster] = snapshot

    def resolve(self, hosts: Mapping[str, ResolvedHost]) -> None:
        """Take in the addresses of all host names that are resolved."""
        before = self._joining.hosts
        self._resolved_anew |= {name for name in before.keys() | hosts.keys() if before.get(name) != hosts.get(name)}
        self._joining = replace(self._joining, hosts=hosts)

    @property
    def due(self) -> float | None:
        """When to publish even without a change, on the clock of *moment*: a vote gets too old. None for never."""
        return self._votes.due

    @property
    def votes(self) -> Mapping[str, int]:
        """The number of addresses on which each cluster has a vote that counts."""
        return self._votes.numbers

    def publish(self, now: float, *, moment: float = 0.0) -> Snapshot:
        """Return the snapshot of all clusters at *now* (seconds since 1970), with a new serial if an answer differs.

        *moment* is the time on a monotonic clock, by which votes age. The own cluster must be known.
        """
        self._count_votes(now, moment)
        own, before = self._snapshots[self._own], self._snapshot or _NOTHING
        federated, namespaces = self._federated(before)
        after = replace(
            own,
            addresses=self._addresses(before.addresses),
            federated=federated,
            federated_namespaces=namespaces,
            imported=self._imported(before.imported),
            serial=int(now),
        )
        if self._unready:
            after = replace(after, unready={**own.unready, **self._unready})
        if self._snapshot is not None and not answers_differ(before, after):
            after = replace(after, serial=before.serial)
        self._before = dict(self._snapshots)
        self._resolved_anew, self._voted_anew, self._joined_anew = set(), set(), False
        self._snapshot = after
        return after

    def findings(self) -> Sequence[Finding]:
        """Return what is wrong between the clusters, as of the last publication."""
        if self._findings is None:
            self._findings = [found for key in sorted(self._of_service) for found in self._of_service[key]]
        return self._findings

    def advice(self) -> Iterator[Finding]:
        """Yield what is worth knowing between the clusters; computed on each call.

        While a cluster is not known, nobody can tell what it exports.
        """
        names = self.names
        if self._snapshots.keys() >= set(names):
            for key in sorted({key for snapshot in self._snapshots.values() for key in snapshot.exported}):
                yield from export_advice(self._exported(key), names, self._own)
        books = {name: book_of(snapshot) for name, snapshot in self._snapshots.items()}
        yield from overlaps(books, self._joining.flat)
        own = self._snapshots.get(self._own, _NOTHING)
        yield from imported_overlaps(own.imports[key] for key in sorted(own.imports))

    def _addresses(self, before: Book) -> Book:
        """Return the address book of all clusters; *before* itself if none of theirs differs."""
        books = [book_of(self._snapshots.get(name, _NOTHING)) for name in (self._own, *self._places)]
        known = before.books if self._snapshot is not None else ()
        same = len(books) == len(known) and all(one is other for one, other in zip(books, known, strict=True))
        return before if same else JoinedBook(books[0], books[1:])

    def _known(self) -> Sequence[Mapping[str, Snapshot]]:
        """Return the snapshots of now, and those of the last publication."""
        return self._snapshots, self._before

    def _now_or_before(self) -> Iterable[str]:
        """Return the clusters of now, and those of the last publication."""
        return dict.fromkeys((*self.names, *self._before))

    def _federated(self, last: Snapshot) -> tuple[Mapping[str, FederatedService], frozenset[str]]:
        """Return the federated Services, and their namespaces; those of the *last* snapshot if nothing differs."""
        before = last.federated
        changed = set[str]()
        for name in self._now_or_before():
            now, then = (known.get(name, _NOTHING).exported for known in self._known())
            if now is not then:
                changed.update(key for key, _ in now.items() ^ then.items())
            if self._joined_anew:  # what is a majority, and what all clusters should export
                changed |= now.keys()
        anew = self._resolved_anew
        changed.update(key for key, names in self._hosts_of.items() if anew and not anew.isdisjoint(names))
        changed |= self._voted_anew
        changes: dict[str, FederatedService | None] = {}
        for key in changed:
            known, exported = before.get(key), self._exported(key)
            self._note_hosts(key, exported)
            self._note_findings(key, exported)
            after = federated_service(key, exported, self._joining, partial(self._verdict, key), known)
            if after is not known:
                changes[key] = after
        if self._hosts_changed:
            self.hosts, self._hosts_changed = self._all_hosts(), False
        services = mapping_after(before, changes)
        if any(after is None or key not in before for key, after in changes.items()):
            return services, frozenset(service.namespace for service in services.values())
        return services, last.federated_namespaces

    def _note_hosts(self, key: str, exported: Mapping[str, ExportedService]) -> None:
        """Note the host names of load balancers of a Service that may have changed."""
        ingress = (text for service in exported.values() for text in service.compiled.service.ingress)
        names = frozenset(filter(is_host_name, ingress))
        before = self._hosts_of.pop(key, frozenset())
        if names:
            self._hosts_of[key] = names
        self._hosts_changed |= names != before

    def _all_hosts(self) -> dict[str, str]:
        """Return ``hosts``."""
        of_namespace: dict[str, set[str]] = {}
        for key, names in self._hosts_of.items():
            of_namespace.setdefault(key.partition("/")[0], set()).update(names)
        by_number = sorted(of_namespace, key=lambda namespace: (-len(of_namespace[namespace]), namespace))
        return {name: namespace for namespace in by_number for name in of_namespace[namespace]}

    def _note_findings(self, key: str, exported: Mapping[str, ExportedService]) -> None:
        found = tuple(export_findings(exported, self.names, self._joining, self._own))
        if found != self._of_service.get(key, ()):
            self._findings = None
            self._of_service[key] = found
            if not found:
                del self._of_service[key]

    def _exported(self, key: str) -> dict[str, ExportedService]:
        """Return the exported Service of a name in each cluster that has one."""
        found = ((name, snapshot.exported.get(key)) for name, snapshot in self._snapshots.items())
        return {name: exported for name, exported in found if exported is not None}

    def _count_votes(self, now: float, moment: float) -> None:
        self._voted_anew |= self._votes.expire(moment)
        for name in self.names:
            healths, before = (known.get(name, _NOTHING).healths for known in self._known())
            if healths is not before:
                self._voted_anew |= self._votes.observe(name, healths.values(), now=moment, unix_time=now)

    def _verdict(self, service: str, balancer: str) -> Verdict:
        """Return whether a load balancer's address is voted out, and the votes."""
        votes = self._votes.of_address(service, balancer)
        return balancer in self._votes.voted_out(service), tuple(Vote(cluster, word) for cluster, word in votes.items())

    def _imported(self, before: Mapping[str, ImportedService]) -> Mapping[str, ImportedService]:
        own, old = (known.get(self._own, _NOTHING) for known in self._known())
        changed = (
            {key for key, _ in own.imports.items() ^ old.imports.items()} if own.imports is not old.imports else set()
        )
        if own.services is not old.services:
            changed.update(key for key in own.imports if own.services.get(key) is not old.services.get(key))
        nodes, old_nodes = (
            {name: known.get(name, _NOTHING).nodes for name in self._now_or_before()} for known in self._known()
        )
        moved = {
            node
            for name, of_cluster in nodes.items()
            if of_cluster is not old_nodes[name]
            for node, _ in of_cluster.items() ^ old_nodes[name].items()
        }
        if moved:
            changed.update(key for key, objects in own.imports.items() if key not in changed and is_on(objects, moved))
        changes: dict[str, ImportedService | None] = {}
        for key in changed:
            known, objects = before.get(key), own.imports.get(key)
            after = None
            if objects is not None:
                after = imported(
                    objects,
                    nodes,
                    namesake=own.services.get(key),
                    before=known,
                    honor_kubernetes=self._honor_kubernetes,
                )
            if after is not known:
                changes[key] = after
            for service in (known, after):
                if service is not None:
                    self._unready.pop(service.cache_key, None)
            if objects is not None and after is not None and (unready := imported_unready(objects, nodes)):
                self._unready[after.cache_key] = unready
        return mapping_after(before, changes)
