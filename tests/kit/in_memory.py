# SPDX-License-Identifier: Apache-2.0

"""A cluster in memory and a responder for it, which tests ask without sockets."""

from __future__ import annotations

import importlib.util
import io
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import dns.message
import dns.name
import pytest
from msgspec.structs import replace

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.metrics.counters import Channel, Counts
from dnsserver.programs.from_settings import authority_of, cluster_set_of, other_store_of, reply_options_of, store_of
from dnsserver.programs.server import native_code
from dnsserver.responder.answer_sizes import too_large
from dnsserver.responder.native_feed import AnswerTable
from dnsserver.responder.replies import AnsweredQuery
from dnsserver.responder.responder import Responder
from dnsserver.settings.reading import read_settings
from dnsserver.settings.settings import Settings
from locator.api.deltas import Delta, DeltaBatch, Replace, replacements
from locator.cluster import dump_files
from locator.cluster.dumps.reading import Dump, Input
from locator.cluster.publisher import Publisher
from locator.federation.federating import ResolvedHost
from locator.ip import parse_address
from locator.model import Finding, Object, Service
from locator.places.address_map import KeysByAddress
from locator.state import saved_view
from locator.state.saved_view import SavedIdentity
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from locator.topology.annotations import labels_asked_for
from tests.kit.api_objects import listed
from tests.kit.outside import FAILED
from tests.kit.this_machine import lacking

HAS_NATIVE = importlib.util.find_spec("dnsserver.net.native") is not None
with_and_without_native = pytest.mark.parametrize("native", [False, True], ids=["python", "native"])

NOW = 1_700_000_000  # the serial of snapshots made in memory

Cluster = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
Flags = Mapping[str, Any]


def cluster_text(cluster: Cluster) -> str:
    """Return a cluster as text: a string unchanged, an object or a list of objects as JSON, which is read faster."""
    if isinstance(cluster, str):
        return cluster
    return json.dumps(cluster) if isinstance(cluster, Mapping) else listed(cluster)


def settings_of(flags: Flags | None = None) -> Settings:
    """Return the settings of a configuration file that holds *flags*, such as ``{"ttl": 30}``."""
    return read_settings(flags={}, environment={}, file=("flags", dict(flags or {})))[0]


def dump_of(cluster: Cluster) -> Dump:
    """Read a cluster as ``--snapshot`` reads a file."""
    return _dump_of(cluster_text(cluster))


@lru_cache(maxsize=64)  # a Dump is immutable, and many tests read the same text
def _dump_of(text: str) -> Dump:
    return dump_files.read_here([Input("cluster.yaml", text.encode())])


def take_in(store: Store, objects: Iterable[Object]) -> None:
    """Replace everything in a store by *objects*."""
    for delta in replaced(objects):
        store.apply(delta)


def replaced(objects: Iterable[Object]) -> list[Delta]:
    """Return one Replace for every kind, with those labels of Pods that a dump of these *objects* is read for."""
    known = list(objects)
    labels = labels_asked_for((one for one in known if isinstance(one, Service)), not_balanced_too=True)
    return [replace(delta, labels=labels) if isinstance(delta, Replace) else delta for delta in replacements(known)]


def snapshot_of(cluster: Cluster, flags: Flags | None = None, *, now: int = NOW) -> Snapshot:
    """Return the snapshot that a server with *flags* would publish for a cluster."""
    settings = settings_of(flags)
    if cluster_set_of(settings) is not None:
        others = {other.name: Path(other.path).read_text() for other in settings.cluster}
        return ClustersInMemory(cluster, others, flags).snapshot(now=now)
    store = store_of(settings)
    take_in(store, dump_of(cluster).objects)
    return store.publish(now)


def read_again(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot as another process reads it from a state file."""
    file, origin = io.BytesIO(), SavedIdentity("", (), "")
    saved_view.write(file, snapshot, [], origin)
    read = saved_view.read(file.getvalue(), origin).snapshot
    assert read is not None
    return read


def resolved(hosts: Mapping[str, Sequence[str]], *, ttl: int = 60) -> dict[str, ResolvedHost]:
    """Return what a resolver says about the host names of load balancers."""
    found = {name: tuple(map(parse_address, addresses)) for name, addresses in hosts.items()}
    return {name: ResolvedHost(packed, {len(address): ttl for address in packed}) for name, packed in found.items()}


class ClustersInMemory:
    """Several clusters in memory, as a server with *flags* reads them; *others* are the other ones by name.

    *hosts* has the addresses of the host names of load balancers. *read_as* changes the settings.
    """

    def __init__(
        self,
        own: Cluster,
        others: Mapping[str, Cluster],
        flags: Flags | None = None,
        *,
        hosts: Mapping[str, ResolvedHost] | None = None,
        read_as: Callable[[Settings], Settings] = lambda settings: settings,
    ) -> None:
        self.flags = {**(flags or {}), "cluster": [f"{name}={name}.yaml" for name in others]}
        self._settings = read_as(settings_of(self.flags))
        clusters = cluster_set_of(self._settings)
        assert clusters is not None
        self.clusters = clusters
        for name in others:
            self.clusters.add(name)
        stores = {"": store_of(self._settings)} | {name: other_store_of(self._settings, name) for name in others}
        self._publishers = {name: Publisher(store) for name, store in stores.items()}
        self.clusters.resolve(hosts or {})
        self.take_in(own)
        for name, cluster in others.items():
            self.take_in(cluster, name)

    def take_in(self, cluster: Cluster, name: str = "", *, now: float = NOW) -> None:
        """Replace everything in the own cluster, or in the one called *name*."""
        publisher = self._publishers[name]
        publisher.apply(DeltaBatch(replaced(dump_of(cluster).objects), {"dump": dump_of(cluster).findings}))
        if name:
            self.clusters.update(name, publisher.publication(now).snapshot)
        else:
            self.clusters.update_own(publisher.publication(now).snapshot)

    def snapshot(self, *, now: float = NOW) -> Snapshot:
        """Return what a server would answer from."""
        return self.clusters.publish(now)

    def checked(self) -> list[Finding]:
        """Return what ``check`` finds."""
        self.snapshot()
        findings: list[Finding] = []
        for name, publisher in self._publishers.items():
            findings += [
                finding.in_cluster(name) for finding in (*publisher.publication(NOW).findings, *publisher.advice())
            ]
        return [*findings, *self.clusters.findings(), *self.clusters.advice()]

    def responder(self) -> CountedResponder:
        """Return a responder that has published that."""
        responder = CountedResponder(self.flags)
        responder.publish(self.snapshot())
        return responder


def checked(cluster: Cluster, flags: Flags | None = None, *, as_dump: bool = False) -> list[Finding]:
    """Return what ``check`` finds in a cluster: of a kind that is not in it, there are no objects.

    With *as_dump*, it is a dump: of such a kind, there may be some.
    """
    settings = settings_of(flags)
    publisher, dump = Publisher(store_of(settings)), dump_of(cluster)
    batch = dump.batch()
    publisher.apply(batch if as_dump else DeltaBatch(replaced(dump.objects), batch.findings, files=batch.files))
    published = publisher.publication(NOW)
    return [*published.findings, *publisher.advice(), *too_large(published.snapshot, authority_of(settings))]


class CountedResponder(Responder):
    """The responder of a server with *flags*, before its first snapshot; ``counts`` are its counters.

    If *native*, native code repeats answers over UDP, as in a server. *native* is None for whatever is installed; or
    what stands in for it.
    """

    def __init__(
        self, flags: Flags | None = None, *, counts: Counts | None = None, native: bool | AnswerTable | None = None
    ) -> None:
        settings = settings_of(flags)
        self.counts = counts or Counts()
        if native is None or native is True:
            self.native = native_code(settings, seed=0)
        else:
            self.native = native or None
        if native and self.native is None:
            lacking("the native code is not built")
        self._made_of = authority_of(settings), self.counts
        self._options = reply_options_of(settings)._replace(nsid=settings.nsid or b"")  # not this machine's name
        super().__init__(*self._made_of, draw=random.Random(0).getrandbits, options=self._options, native=self.native)

    def reply(
        self, query: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> bytes | AnsweredQuery | None:
        """Return what a server replies: from the native code, if that knows the answer; the query if that waits."""
        if self.native is not None and channel.is_udp and header_client is None:
            reply = self.native.reply(query, source)
            if reply is not None:
                self.counts.catch_up()
                return reply
        answered = self.answer(query, source, channel, header_client=header_client)
        if answered is None:
            return None
        if channel.is_udp and header_client is None:
            self.feed(answered)
        return answered.reply or answered

    def computed(
        self, query: bytes, source: bytes, channel: Channel, *, header_client: bytes | None = None
    ) -> bytes | AnsweredQuery | None:
        """Return what a responder replies that remembers nothing; ``counts`` count that, too."""
        fresh = Responder(*self._made_of, draw=random.Random(0).getrandbits, options=self._options)
        if self.snapshot is not None:
            fresh.publish(self.snapshot)
        answered = fresh.answer(query, source, channel, header_client=header_client)
        return None if answered is None else answered.reply or answered

    def finished(self, pending: AnsweredQuery, said: UpstreamAnswer) -> bytes | AnsweredQuery:
        """Return the reply to a query that waited; the query if it waits again."""
        answered = self.finish(pending, said)
        return answered.reply or answered

    def channel(self, source: bytes, proto: str) -> Channel:
        """Return the channel by which queries from *source* (a packed address) arrive."""
        return self.counts.channels[proto, 1 if len(source) == 4 else 2]


def responder_of(
    cluster: Cluster,
    flags: Flags | None = None,
    *,
    counts: Counts | None = None,
    native: bool | AnswerTable | None = None,
) -> CountedResponder:
    """Return a responder with *flags* that has published a cluster's snapshot."""
    responder = CountedResponder(flags, counts=counts, native=native)
    responder.publish(snapshot_of(cluster, flags))
    return responder


def ask_in_memory(
    responder: CountedResponder, query: dns.message.Message, client: str, *, proto: str = "udp", compute: bool = False
) -> dns.message.Message | None:
    """Pass a query to a responder as if it came from *client*; return the reply as dnspython reads it.

    If *compute*, it is what a responder replies that remembers nothing. The upstream, if there is one, does not answer.
    """
    source = parse_address(client)
    reply = responder.computed if compute else responder.reply
    replied = reply(query.to_wire(), source, responder.channel(source, proto))
    if isinstance(replied, AnsweredQuery):
        replied = responder.finished(replied, FAILED)
    assert not isinstance(replied, AnsweredQuery)
    return None if replied is None else dns.message.from_wire(replied)


def ask(
    responder: CountedResponder, name: str | dns.name.Name, rtype: str, client: str = "127.1.0.1", **more: Any
) -> dns.message.Message:
    """Ask for a name as a stub resolver does; return the reply. *more* is as ``make_query`` has it."""
    query = dns.message.make_query(name, rtype, use_edns=0, payload=1232, **more)
    reply = ask_in_memory(responder, query, client)
    assert reply is not None
    return reply


def addresses_in(keys: KeysByAddress) -> set[bytes]:
    """Return every address that an object has."""
    return {address for address, _ in keys.items()}
