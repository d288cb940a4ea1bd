# SPDX-License-Identifier: Apache-2.0

"""Puts together what ``topodns doctor`` reads: the cluster, the replicas, and answers to compare."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_settings
from functools import partial
from http import HTTPStatus
from typing import Any

import trio
from kubernetes.client import V1ConfigMapList, V1Node, V1NodeList
from msgspec.structs import replace

from dnsserver import __version__
from dnsserver.cli.reading.asking import ask, source_towards
from dnsserver.cli.reading.installed import read_installed
from dnsserver.cli.reading.replicas import Replicas
from dnsserver.cli.reading.requests import SILENCE, get, get_items, read, whole
from dnsserver.programs.from_settings import DEFAULT_PORT, authority_of, store_of
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import DNS_PORT
from dnsserver.tools.doctor.answers import MAX_ASKED, clients_by_zone, compared, question_of, service_zones
from dnsserver.tools.doctor.corefiles import forwarded_by_cache, forwarded_zones, node_cache
from dnsserver.tools.doctor.facts import (
    Comparison,
    Facts,
    Installed,
    NameServer,
    Question,
    V1ConfigMap,
    V1Pod,
    View,
    condition_of,
)
from dnsserver.tools.doctor.providers import OPENSHIFT, SYSTEM, marks_of, recognised
from dnsserver.tools.doctor.steps import Unread, read_or
from locator.api.deltas import DeltaBatch, Replace
from locator.cluster import api_client
from locator.cluster.api_client import ApiClient
from locator.cluster.publisher import Publisher
from locator.cluster.responses import Refused
from locator.ip import address_text, parse_address
from locator.model import EndpointSlice, Node, Object, Pod, Service
from locator.places.forwarders import DnsServices

NODES_AT_ONCE = 500  # in a page of the list
TRIES = 3  # at a comparison: the cluster may change between the reading and the asking
PAUSE = 0.5  # seconds between them: several times as long as a change takes to reach the answers
UDP, TCP = "UDP", "TCP"
FAILURES = ("SERVFAIL", "REFUSED")  # no change of the cluster explains these

Listed = Mapping[type[Object], DeltaBatch | Unread]


async def observe(client: ApiClient, namespace: str | None, kubectl: str) -> Facts:
    """Return everything that can be read. Takes as long as the slowest reads, each of which has a deadline.

    *kubectl* is the command that reaches the same cluster.
    """
    nothing = Installed(namespace or "", None, None, (), Settings(), "", False, {}, {})
    reached = await read(partial(_reached, client))
    if isinstance(reached, Unread):
        return Facts(__version__, kubectl, nothing, unreachable=reached.why)
    installed = await read_installed(client, namespace)
    settings = with_settings(installed.settings, snapshot=(), cluster=())
    config_maps = await read(partial(_config_maps, client))
    listed, wrong = await _list(client, settings), installed.settings_error
    facts = Facts(
        __version__,
        kubectl,
        installed,
        nodes=_objects(listed, Node),
        troubles=await read(partial(_troubles, client)),
        pods=_objects(listed, Pod),
        services=_objects(listed, Service),
        view=Unread(f"its flags are wrong: {wrong}") if wrong else _view(settings, listed),
        config_maps=config_maps,
        forwarders=_forwarders(settings, listed),
    )
    replicas = Replicas(client, installed, kubectl)
    pods = [] if isinstance(installed.pods, Unread) else list(filter(_runs, installed.pods))
    known = await replicas.read(pods)
    facts = await _compare(client, settings, replace(facts, replicas=known), pods)
    return replace(facts, replicas=await replicas.again(known))


def _reached(client: ApiClient) -> bytes:
    """Raise Refused or Unreachable if the API server cannot be reached, does not work, or does not know who asks.

    It asks for an object: an API server that has lost etcd still tells its version, and is slow to refuse the rest.
    """
    try:
        return client.request("GET", f"/api/v1/namespaces/{SYSTEM}", timeout=SILENCE)
    except Refused as error:
        if error.status == HTTPStatus.UNAUTHORIZED or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        return b""


def _runs(pod: V1Pod) -> bool:
    """Whether a pod runs, and was not told to end."""
    return bool(pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None)


def _troubles(client: ApiClient) -> dict[str, str]:
    """Return the nodes that are not ready, and why."""
    found, query = dict[str, str](), {"limit": str(NODES_AT_ONCE)}
    while True:
        page = get(client, "/api/v1/nodes", V1NodeList, query)
        found |= {node.metadata.name: trouble for node in map(whole, page.items) if (trouble := _trouble(node))}
        if page.metadata is None or not page.metadata._continue:
            return found
        query["continue"] = page.metadata._continue


def _trouble(node: V1Node) -> str:
    """Return why a node is not ready, in the words of Kubernetes; empty if it is."""
    ready = condition_of(node, "Ready")
    if ready is None or ready.status == "True":
        return ""
    return ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"


def _config_maps(client: ApiClient) -> dict[str, V1ConfigMap]:
    """Return the ConfigMaps of the namespaces where the cluster's DNS runs.

    Few clusters have the second namespace, so its refusal counts only where the first has no DNS server.
    """
    found = _config_maps_in(client, SYSTEM)
    try:
        found |= _config_maps_in(client, OPENSHIFT)
    except Refused:
        if not recognised(marks_of(found, (), dns_endpoints=True)):
            raise
    return found


def _config_maps_in(client: ApiClient, namespace: str) -> dict[str, V1ConfigMap]:
    items = get_items(client, f"/api/v1/namespaces/{namespace}/configmaps", V1ConfigMapList)
    return {f"{namespace}/{found.metadata.name}": found for found in items}


async def _list(client: ApiClient, settings: Settings) -> Listed:
    """Return each kind that a server with these settings reads, and those that ``doctor`` needs beside them."""
    kinds = dict.fromkeys((*store_of(settings).kinds, Node, Pod, Service, EndpointSlice))
    found: dict[type[Object], DeltaBatch | Unread] = {}

    async def one(kind: type[Object]) -> None:
        found[kind] = await read(partial(api_client.list_once, client, [kind], silence=SILENCE))

    async with trio.open_nursery() as nursery:
        for kind in kinds:
            nursery.start_soon(one, kind)
    return found


def _objects(listed: Listed, kind: type[Any]) -> Sequence[Any] | Unread:
    batch = listed[kind]
    if isinstance(batch, Unread):
        return batch
    return [found for delta in batch.deltas if isinstance(delta, Replace) for found in delta.objects]


def _view(settings: Settings, listed: Listed) -> View | Unread:
    """Return the cluster as a server with these settings would see it."""
    store, batches = store_of(settings), list[DeltaBatch]()
    for kind in store.kinds:
        batch = listed[kind]
        if isinstance(batch, Unread):
            return batch
        batches.append(batch)
    publisher = Publisher(store)
    for batch in batches:
        publisher.apply(_copied(batch))
    publication = publisher.publication(int(time.time()))
    return View(publication.snapshot, publication.findings, authority_of(settings))


def _copied(batch: DeltaBatch) -> DeltaBatch:
    """Return a batch whose lists belong to the store, which may empty them."""
    deltas = [Replace(delta.kind, [*delta.objects]) for delta in batch.deltas if isinstance(delta, Replace)]
    return replace(batch, deltas=deltas)


def _forwarders(settings: Settings, listed: Listed) -> list[NameServer]:
    """Return the endpoints of the cluster's DNS Services, ready or not, but for those that end: these answer nobody."""
    services, slices = _objects(listed, Service), _objects(listed, EndpointSlice)
    if isinstance(slices, Unread):
        return []
    known = DnsServices(settings.forwarder_service)
    for service in read_or(services, ()):
        known.update_service(service.key, service)
    found: dict[bytes, NameServer] = {}
    for part in slices:
        for endpoint in part.endpoints if part.service_key in known.keys else ():
            port = next((port.number for port in endpoint.ports if port.protocol == "udp"), DNS_PORT)
            for address in () if endpoint.terminating else endpoint.addresses:
                name = f"{part.namespace}/{endpoint.pod}" if endpoint.pod else address_text(address)
                found.setdefault(address, NameServer(name, address, port, endpoint.node or ""))
    return list(found.values())


# --- Answers ----------------------------------------------------------------------------------------------------------


async def _compare(client: ApiClient, settings: Settings, facts: Facts, pods: Sequence[V1Pod]) -> Facts:
    """Return the facts with answers of replicas and forwarders; what differs is read and asked again."""
    if isinstance(facts.view, Unread):
        return replace(facts, replica_answers=facts.view, forwarder_answers=facts.view)
    if facts.installed.settings.snapshot:
        unread = Unread("topodns answers from a dump (--snapshot), not from this cluster")
        return replace(facts, replica_answers=unread, forwarder_answers=unread)
    view, facts = facts.view, await _asked(facts, facts.view, pods)
    for _ in range(TRIES - 1):
        if all(asked.right or asked.reply.error or asked.reply.rcode in FAILURES for asked in _answers(facts)):
            break
        await trio.sleep(PAUSE)
        again = _view(settings, await _list(client, settings))
        view = read_or(again, view)
        facts = await _asked(facts, view, pods)
    return facts


def _answers(facts: Facts) -> Iterable[Comparison]:
    for answers in (facts.replica_answers, facts.forwarder_answers):
        yield from read_or(answers, ())


async def _asked(facts: Facts, view: View, pods: Sequence[V1Pod]) -> Facts:
    """Ask each replica and each forwarder, and compare with *view*."""
    facts = replace(facts, view=view)
    listen = facts.installed.settings.listen
    port = listen[0].port if listen else DEFAULT_PORT
    zones = service_zones(view)
    to_replicas = [
        NameServer(pod.metadata.name, parse_address(pod.status.pod_ip), port) for pod in pods if pod.status.pod_ip
    ]
    answers = await _ask_all(facts, view, to_replicas, zones, every_zone=True)
    forwarded = zones if isinstance(facts.config_maps, Unread) else forwarded_zones(facts)
    through: Sequence[Comparison] | Unread = Unread("the cluster's DNS forwards nothing to topodns")
    if not facts.forwarders:
        through = Unread("no endpoint of the cluster's DNS Service is known")
    elif forwarded:
        through = await _ask_all(facts, view, facts.forwarders[:MAX_ASKED], forwarded, every_zone=False)
    through = await _through_cache(facts, view, forwarded, through)
    known = [asked for found in (answers, through) if not isinstance(found, Unread) for asked in found]
    sources = frozenset(asked.reply.source for asked in known if asked.reply.source)
    return replace(
        facts, replica_answers=answers, forwarder_answers=through, own_addresses=facts.own_addresses | sources
    )


async def _through_cache(
    facts: Facts, view: View, forwarded: Sequence[str], answers: Sequence[Comparison] | Unread
) -> Sequence[Comparison] | Unread:
    """Return *answers* with those of the NodeLocal DNSCache of this node, if this is a node or a pod of the cluster."""
    cache, zones = node_cache(facts), forwarded_by_cache(facts) or forwarded
    source = None if cache is None else source_towards(cache.address)
    if cache is None or source is None or not zones or not view.snapshot.addresses.locate(source).location.known:
        return answers
    more = await _ask_all(facts, view, [cache], zones, every_zone=False)
    if isinstance(more, Unread):
        return answers
    return more if isinstance(answers, Unread) else [*answers, *more]


async def _ask_all(
    facts: Facts, view: View, servers: Sequence[NameServer], zones: Sequence[str], *, every_zone: bool
) -> Sequence[Comparison] | Unread:
    """Ask all servers at once, over UDP and over TCP.

    With *every_zone*, ask for a client in each zone, as far as the servers trust the place that asks.
    """
    question = question_of(view, zones)
    if question is None:
        return Unread(f"no Service in {', '.join(zones)} has an address to ask for")
    if not servers:
        return Unread("there is nobody to ask")
    nodes = read_or(facts.nodes, ())
    clients = clients_by_zone(nodes, read_or(facts.pods, ()))
    answers: list[Comparison] = []

    async def one(server: NameServer, question: Question, transport: str) -> None:
        reply = await ask(server.address, server.port, question, tcp=transport == TCP)
        answers.append(compared(server.name, transport, question, reply, view, clients))

    async with trio.open_nursery() as nursery:
        for server in servers:
            source = source_towards(server.address)
            trusted = every_zone and source is not None and view.snapshot.addresses.source(source).forwarder
            questions = [question]
            if trusted and source is not None:  # whoever is trusted must name a client: without zones, itself
                named = clients or {"": address_text(source)}
                questions = [replace(question, client=client, zone=zone) for zone, client in named.items()]
            for each in questions:
                for transport in (UDP, TCP):
                    nursery.start_soon(one, server, each, transport)
    return sorted(answers, key=lambda asked: (asked.server, asked.question.zone, asked.transport))
