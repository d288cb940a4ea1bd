# SPDX-License-Identifier: Apache-2.0

"""What a server says in its log: what it has read, that it is ready, or why not, and whom it cannot serve well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from dnsserver.metrics.counters import Counts
from dnsserver.net.sockets import log_alone
from dnsserver.text import counted
from locator.cluster.publisher import Publisher, Subscriber
from locator.ip import Network
from locator.model import ZONE, Finding, Node, Object, Pod, PodLocator
from locator.places.prefix_table import PrefixTable
from locator.state.snapshot import Snapshot, book_of

if TYPE_CHECKING:
    from locator.api.dump import ReadCounts  # a live cluster needs no module that reads dumps

log = logging.getLogger("topodns")

NOUNS: dict[type[Object], str] = {Node: "node", Pod: "pod", PodLocator: "PodLocator"}  # what locates clients
LOWER = {"Namespace": "namespace", "Node": "node", "Pod": "pod"}  # the kinds that people write so
DELAY_SECONDS = 5.0  # after which a person asks why nothing is answered; a small cluster takes one or two


def ready_line() -> Subscriber:
    """Return a subscriber that logs the line ``ready`` at the first snapshot, for programs that wait for it."""
    logged = False

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        nonlocal logged
        if not logged:
            log_alone("ready")
        logged = True

    return subscriber


async def log_delay(publisher: Publisher, problems: Callable[[], Collection[str]], advice: str) -> None:
    """Warn once if the first snapshot does not come, with the *problems* of the moment; then return."""
    await trio.sleep(DELAY_SECONDS)
    if publisher.snapshot is None and (found := sorted(filter(None, problems()))):
        log.warning(
            "not ready after %d s: %s; topodns goes on trying, and answers SERVFAIL until then%s",
            DELAY_SECONDS, "; ".join(found), advice,
        )  # fmt: skip


def warn_about_forwarders(counts: Counts, now: float) -> None:
    """Log the forwarders that do not name their clients, or name clients without being trusted."""
    for forwarder in counts.unnamed_clients.due(now):
        from dnsserver.tools.corefile.stub_blocks import ECS_RULE

        log.warning(
            "forwarder %s names no client, so topodns cannot locate its clients: put '%s' into the stub block of its "
            "Corefile; for forwarders other than CoreDNS, 'topodns corefile' prints the configuration",
            forwarder,
            ECS_RULE,
            extra={"fields": {"source": forwarder}},
        )
    for source in counts.ignored_clients.due(now):
        log.warning(
            "%s names clients but is no trusted forwarder, so topodns locates its clients by its own address: if it "
            "forwards their queries, start topodns with --trusted-forwarder %s/%d",
            source,
            source,
            128 if ":" in source else 32,
            extra={"fields": {"source": source}},
        )


def warn_about_lookups(counts: Counts, now: float) -> None:
    """Log the namespaces whose look-ups at the upstream were refused."""
    for namespace in counts.refused_lookups.due(now):
        if namespace:  # explanations tell whoever asks for them
            log.warning(
                "queries about ExternalName Services of namespace %s were refused: its look-ups at the upstream use up "
                "the share of a namespace; other namespaces are answered. Fix or delete those of its Services whose "
                "externalName is never answered, or only slowly",
                namespace,
                extra={"fields": {"namespace": namespace}},
            )


class Loaded(NamedTuple):
    """How many objects of each kind that locates clients there are, by its noun, and what the others come to.

    ``zones`` are those of nodes with an address. ``services`` are served, ``constrained`` are those of them whose
    constraint changes answers. ``forwarders`` are the addresses of discovered forwarders outside of
    ``networks``, the configured ones.
    """

    objects: Mapping[str, int]
    zones: int
    services: int
    constrained: int
    forwarders: int
    networks: int

    def fields(self) -> dict[str, int]:
        """Return the numbers for a line of JSON."""
        others = self._asdict()
        return {f"{noun.lower()}s": number for noun, number in others.pop("objects").items()} | others

    def __str__(self) -> str:
        objects = [counted(number, noun) for noun, number in self.objects.items()]
        if NOUNS[Node] in self.objects:
            objects[0] += f" in {counted(self.zones, 'zone')}"
        services = f"{counted(self.services, 'Service')} ({self.constrained} constrained)"
        trusted = [counted(self.forwarders, "trusted forwarder")]
        trusted += [counted(self.networks, "trusted network")] if self.networks else []
        return f"loaded {', '.join((*objects, services, *trusted))}"


def loaded(snapshot: Snapshot, kinds: Collection[type[Object]], networks: Collection[Network]) -> Loaded:
    """Count what is in the *snapshot* of one cluster, made from objects of these *kinds*."""
    zones, forwarders, configured = set[str](), 0, PrefixTable(dict.fromkeys(networks, True))
    for address, place in book_of(snapshot).places.items():
        forwarders += place.forwarder and not configured.find(address)
        if place.location.node is not None and (zone := place.location.value(ZONE)) is not None:
            zones.add(zone)
    declarations = [service.declaration for service in snapshot.services.values()]
    return Loaded(
        {noun: snapshot.object_counts[kind.__name__] for kind, noun in NOUNS.items() if kind in kinds},
        len(zones),
        len(snapshot.services),
        sum(declaration is not None and declaration.effective for declaration in declarations),
        forwarders,
        len(set(networks)),
    )


def read_text(read: ReadCounts, about: str = "") -> str:
    """Say how much was read, and of what if *about* does."""
    objects = [counted(number, LOWER.get(kind, kind)) for kind, number in read.objects.items() if number]
    passed = [counted(number, LOWER.get(kind, kind)) for kind, number in sorted(read.unread.items())]
    passed += [counted(read.passed_over, "file")] if read.passed_over else []
    parts = [f"read {counted(read.files, 'file')}: {', '.join(objects) or 'no object that topodns reads'}"]
    parts += [f"passed over: {', '.join(passed)}"] if passed else []
    if read.large_yaml:
        parts.append(f"{read.large_yaml // 1_000_000} MB are YAML: as JSON (kubectl's -o json) they are read faster")
    return f"{about and f'{about}: '}{'; '.join(parts)}"


async def log_loaded(publisher: Publisher, networks: Collection[Network], about: str = "") -> None:
    """Log what was loaded, once every kind is known from the cluster itself, not from a state file; then return.

    Only once: ``/metrics`` shows what becomes of it. *networks* are the configured ones of trusted forwarders.
    """
    listed = trio.Event()

    def subscriber(snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        if publisher.has_synced():
            listed.set()

    publisher.subscribe(subscriber)
    await listed.wait()
    snapshot = publisher.snapshot
    assert snapshot is not None
    found = await trio.to_thread.run_sync(loaded, snapshot, publisher.kinds, networks)  # it looks at every address
    log.info("%s%s", about, found, extra={"fields": found.fields()})
