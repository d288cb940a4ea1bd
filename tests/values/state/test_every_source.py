# SPDX-License-Identifier: Apache-2.0

"""All sources of constraints at once, in random clusters: clients get what the rules say when read from kubectl's JSON.

``tests/oracle/twin.py`` reads the rules a second time. Each Service is asked for in two zones; one has default keys.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import dns.message
import dns.name
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.message.wire import NXDOMAIN
from dnsserver.programs.from_settings import store_of
from locator.api.decoding import RESOURCES, decode_untrusted
from locator.api.deltas import DeltaBuilder
from locator.cluster import dump_files
from locator.cluster.dumps.reading import Input
from locator.ip import address_text, parse_address
from locator.state.snapshot import Snapshot
from locator.state.store import Store
from tests.kit import api_objects, random_cluster
from tests.kit.api_objects import HOSTNAME, RACK, REGION, ZONE, Item
from tests.kit.dns_queries import opt, query
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, CountedResponder, settings_of, take_in
from tests.kit.random_cluster import SUBNETS, UNKNOWN_CLIENT
from tests.kit.replies import addresses_of_targets, parsed, parts_of
from tests.kit.unshrunk import unshrunk
from tests.oracle.twin import Modes, Twin
from tests.oracle.twin_map import of_kind

steady = settings(unshrunk, max_examples=25)
SEEDS = st.integers(0, 100_000)
CLIENT_SOURCES = ("pods,nodes", "pods,nodes", "nodes", "podlocators", "podlocators", "pods,podlocators,nodes")
PLAIN, OPTED_IN = "cluster.local", "topo.local"
DEFAULTS = (f"{HOSTNAME},{ZONE},*", f"{ZONE},*", f"{RACK},{REGION}", ZONE)


class Case(NamedTuple):
    """A cluster, the settings of its server, and some clients."""

    items: list[Item]
    modes: Modes
    clients: list[str]

    @property
    def flags(self) -> dict[str, Any]:
        return {"zone": [PLAIN, OPTED_IN], **self.modes.flags()}


def case_of(seed: int) -> Case:
    world, rng = random_cluster.world(seed), random.Random(seed)
    modes = Modes(
        default_keys={OPTED_IN: rng.choice(DEFAULTS)},
        traffic_distribution=rng.choice(("honor", "honor", "honor", "honor", "ignore")),
        unknown_client=rng.choice(("strict", "strict", "all")),
        client_source=rng.choice(CLIENT_SOURCES),
        subnets=SUBNETS,
    )
    clients = [address for address in world.addresses if address != random_cluster.FORWARDER]
    return Case(world.items, modes, rng.sample(clients, min(6, len(clients))))


def store_with(case: Case) -> Store:
    """Return a store that has read the cluster from a dump."""
    store = store_of(settings_of(case.flags))
    take_in(store, dump_files.read_here([Input("cluster.json", api_objects.listed(case.items).encode())]).objects)
    return store


def responder_for(case: Case, snapshot: Snapshot) -> CountedResponder:
    responder = CountedResponder(case.flags)
    responder.publish(snapshot)
    return responder


class Row(NamedTuple):
    """A client that asks for a headless Service in one DNS zone."""

    key: tuple[str, str]
    zone: str
    client: str

    @property
    def name(self) -> str:
        return f"{self.key[1]}.{self.key[0]}.svc.{self.zone}"


def rows_of(case: Case, most: int = 40) -> list[Row]:
    keys = Twin(case.items, case.modes).headless()
    rows = [Row(key, zone, client) for key in keys for zone in (PLAIN, OPTED_IN) for client in case.clients]
    return random.Random(len(case.items)).sample(rows, min(most, len(rows)))


class Answer(NamedTuple):
    """What A and AAAA say together: the addresses; NXDOMAIN; or NODATA that no cache keeps."""

    addresses: set[str]
    nothing_ready: bool = False
    unmet: bool = False


def ask(responder: CountedResponder, name: str, client: str, qtype: str) -> bytes:
    source = parse_address(client)
    reply = responder.reply(query(name, qtype, edns=opt()), source, responder.channel(source, "tcp"))
    assert isinstance(reply, bytes)
    return reply


def answer(responder: CountedResponder, name: str, client: str) -> Answer:
    addresses, nothing_ready, unmet = set(), True, True
    for qtype, size in (("A", 4), ("AAAA", 16)):
        reply = ask(responder, name, client, qtype)
        parts = parts_of(reply)
        addresses |= {address_text(record[-size:]) for record in parts.answers}
        nothing_ready &= reply[3] & 0x0F == NXDOMAIN
        unmet &= not parts.answers and int.from_bytes(parts.rest[0][-4:]) == 0  # the SOA's minimum
    return Answer(addresses, nothing_ready, unmet)


def expected(twin: Twin, row: Row) -> Answer:
    given = twin.given(row.key, twin.map.locate(row.client), row.zone)
    return Answer(given.addresses, not twin.ready(row.key), given.unmet)


def assert_as_expected(twin: Twin, responder: CountedResponder, rows: Sequence[Row]) -> None:
    for row in rows:
        assert (row, answer(responder, row.name, row.client)) == (row, expected(twin, row))


@settings(steady, max_examples=60)
@given(seed=SEEDS)
def test_every_client_gets_what_the_first_source_asks_for(seed: int) -> None:
    """A and AAAA hold the endpoints that the twin chooses: computed, and remembered among all others' answers.

    If an endpoint is ready, only a required policy or keys without ``*`` leave a client without one.
    """
    case = case_of(seed)
    twin, responder, rows = (
        Twin(case.items, case.modes),
        responder_for(case, store_with(case).publish(NOW)),
        rows_of(case),
    )
    assert_as_expected(twin, responder, rows)
    assert_as_expected(twin, responder, rows[::-1])
    for row in rows:
        if twin.ready(row.key) and not twin.asked(row.key, row.zone).hard:
            assert answer(responder, row.name, row.client).addresses, row


@steady
@given(seed=SEEDS)
def test_explained_by_the_source_that_was_heard(seed: int) -> None:
    """``explain`` shows the same answer, and names the source that decides, even if that is invalid."""
    case = case_of(seed)
    twin, snapshot = Twin(case.items, case.modes), store_with(case).publish(NOW)
    for row in rows_of(case):
        found = explanation_of(snapshot, row.name, row.client, flags=case.flags)
        given = twin.given(row.key, twin.map.locate(row.client), row.zone)
        source = found.constraint and found.constraint.source
        assert (row, source, found.outcome == "unmet") == (row, given.source, given.unmet)
        assert {record.data for record in found.answers} == {each for each in given.addresses if ":" not in each}


@settings(steady, max_examples=12)
@given(seed=SEEDS)
def test_srv_agrees_with_a_and_aaaa(seed: int) -> None:
    """SRV of a Service's name, and of its ports' names, leads to the same endpoints, whichever source decides."""
    case = case_of(seed)
    twin, responder = Twin(case.items, case.modes), responder_for(case, store_with(case).publish(NOW))
    for row in rows_of(case, 12):
        ports = [port for port in twin.services[row.key]["spec"]["ports"] if port["name"]]
        names = [f"_{port['name']}._{port['protocol'].lower()}.{row.name}" for port in ports]
        for name in (row.name, *names):
            reply = parsed(ask(responder, name, row.client, "SRV"))

            def of_target(target: dns.name.Name, qtype: str, client: str = row.client) -> dns.message.Message:
                return parsed(ask(responder, target.to_text(), client, qtype))

            targets = addresses_of_targets(reply, of_target)
            given = twin.given(row.key, twin.map.locate(row.client), row.zone)
            assert (name, set().union(*targets.values())) == (name, given.chosen)
            assert all(targets.values())


@settings(steady, max_examples=12)
@given(seed=SEEDS)
def test_zonal_names_stand_above_every_source(seed: int) -> None:
    """Whoever asks, and whatever the Service asks for: the endpoints in the zone of the name; ``prefer``: else all."""
    case = case_of(seed)
    twin, responder = Twin(case.items, case.modes), responder_for(case, store_with(case).publish(NOW))
    for key in twin.headless():
        for value, word in (("a", "pin"), ("b", "prefer"), ("z", "pin"), ("z", "prefer")):
            name = f"{value}.{word}._zone.{key[1]}.{key[0]}.svc.{OPTED_IN}"
            for client in case.clients[:2]:
                addresses = twin.in_zone(key, value, word)
                assert (name, answer(responder, name, client)) == (name, Answer(addresses, not twin.ready(key)))


@steady
@given(seed=SEEDS)
def test_policies_that_compete_narrow_in_their_order(seed: int) -> None:
    """Required keys first; of the preferred ones, the older policy's goes first, then by name.

    No label of these nodes follows from another one, and few have an endpoint: so the order decides what is left.
    """
    rng = random.Random(seed)
    places = list(product("ab", "12", ("r1", "r2")))
    items = [
        api_objects.node(f"node-{n}", {ZONE: zone, RACK: rack, REGION: region}, addresses=[f"192.168.0.{n}"])
        for n, (zone, rack, region) in enumerate(places)
    ]
    rows = [
        api_objects.endpoint(f"10.250.0.{n}", nodeName=f"node-{n}") for n in rng.sample(range(8), rng.randint(2, 4))
    ]
    least = rng.choice((None, None, "2"))
    items += [
        api_objects.service("web", labels={"app": "web"}, least=least),
        api_objects.endpoint_slice("web", 0, rows),
    ]
    for number in range(rng.randint(2, 4)):
        policy = random_cluster.policy(rng, f"policy-{number}", invalid=False)
        policy["spec"]["serviceSelector"], policy["metadata"]["namespace"] = {"matchLabels": {"app": "web"}}, "shop"
        items.append(policy)
    case = Case(items, Modes(), [f"192.168.0.{n}" for n in range(8)])
    assert_as_expected(Twin(items, case.modes), responder_for(case, store_with(case).publish(NOW)), rows_of(case))


# While the cluster changes


def identity(item: Item) -> tuple[str, str, str, str]:
    group = item["apiVersion"].rpartition("/")[0]
    return group, item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def edits(before: Sequence[Item], after: Sequence[Item], rng: random.Random) -> Iterator[list[Item]]:
    """Yield the states between two, and the last: each differs from the one before it in one object."""
    state, last = {identity(item): item for item in before}, {identity(item): item for item in after}
    keys = sorted({**state, **last})
    for key in rng.sample(keys, len(keys)):
        old, new = state.get(key), last.get(key)
        if new is None:
            del state[key]
        elif old is None:
            state[key] = new
        elif {**new["metadata"], "resourceVersion": ""} == {**old["metadata"], "resourceVersion": ""} and {
            **new, "metadata": old["metadata"]} == old:  # fmt: skip
            continue
        else:
            state[key] = new
        yield list(state.values())


def apply(store: Store, before: Sequence[Item], after: Sequence[Item]) -> None:
    """Tell a store of the objects that differ, as a watch does."""
    old, new = ({identity(item): item for item in items} for items in (before, after))
    for kind, resource in RESOURCES.items():
        builder = DeltaBuilder(kind, resource)
        for key in {**old, **new}:
            if key[:2] == (resource.group, resource.name) and old.get(key) != new.get(key):
                decoded = decode_untrusted(resource, json.dumps(new.get(key, old.get(key))).encode())
                builder.change_object(decoded, gone=key not in new)
        for delta in builder.pop_batch().deltas:
            store.apply(delta)


@settings(steady, max_examples=15)
@given(seed=SEEDS, changes=st.lists(SEEDS, min_size=1, max_size=3))
def test_every_edit_counts_at_once(seed: int, changes: Sequence[int]) -> None:
    """After each change of one object, clients get what the rules say of the objects now, whatever is remembered."""
    case = case_of(seed)
    store, rng, rows = store_with(case), random.Random(seed), rows_of(case, 16)
    responder = responder_for(case, store.publish(NOW))
    assert_as_expected(Twin(case.items, case.modes), responder, rows)
    items = case.items
    for change in changes:
        for state in edits(items, random_cluster.changed(items, change), rng):
            apply(store, items, state)
            items = state
            responder.publish(store.publish(NOW))
            twin = Twin(items, case.modes)
            assert_as_expected(twin, responder, [row for row in rows if row.key in twin.services])


SOFT = (
    {"trafficDistribution": "PreferSameNode"},
    {"trafficDistribution": "PreferClose", "annotations": {random_cluster.MODE: "Auto"}},
    {"keys": f"{HOSTNAME},{ZONE},*"},
    {"field": [ZONE, "*"], "least": "3"},
    {},
)


@steady
@given(seed=SEEDS, percents=st.lists(st.sampled_from(random_cluster.HINTED), min_size=2, max_size=4))
def test_hints_come_and_go_and_nobody_is_left_without_an_endpoint(
    seed: int, percents: Sequence[tuple[int, int]]
) -> None:
    """Hints change one slice at a time, as controllers write them; before, between and after, every client gets some.

    Meanwhile the source that decides changes, too: ``trafficDistribution`` decides while no endpoint has a hint.
    """
    rng = random.Random(seed)
    nodes = of_kind(random_cluster.world(seed).items, "Node")
    items = [*nodes, api_objects.service("web", **rng.choice(SOFT))]
    for number in range(3):
        rows = [(f"10.250.{number}.{row}", f"node-{rng.randrange(len(nodes))}") for row in range(rng.randint(1, 3))]
        items.append(
            api_objects.endpoint_slice("web", number, [api_objects.endpoint(at, nodeName=on) for at, on in rows])
        )
    case = Case(items, Modes(), ["192.168.0.1", "192.168.0.2", UNKNOWN_CLIENT])
    store, rows = store_with(case), rows_of(case)
    responder = responder_for(case, store.publish(NOW))
    for hinted in percents:
        later = json.loads(json.dumps(items))
        for entry in (entry for each in of_kind(later, "EndpointSlice") for entry in each["endpoints"]):
            random_cluster.set_hints(rng, entry, hinted, len(nodes))
        for state in edits(items, later, rng):
            apply(store, items, state)
            items = state
            responder.publish(store.publish(NOW))
            assert_as_expected(Twin(items, case.modes), responder, rows)
            assert all(answer(responder, row.name, row.client).addresses for row in rows)
