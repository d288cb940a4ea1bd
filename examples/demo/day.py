# SPDX-License-Identifier: Apache-2.0

"""The day as a table: what happens when, how much is asked, and by whom.

Clients are the pods that run in ``shop``. What varies is drawn by the moment's name, so every day is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

ZONES = ("eu-west-a", "eu-west-b", "eu-west-c")
FORWARDER = "127.0.0.2"  # is trusted, and names the client of each query, as CoreDNS with one line of its Corefile does
UNNAMING = "127.0.0.3"  # is trusted, and names nobody
STRANGER = "127.0.0.66"  # names clients, and nobody trusts it
TRUSTED = "127.0.0.0/29"  # the first two, and 127.0.0.1, from which people ask

# What clients ask for, and how often. kafak is a typing error, which every cluster has somewhere.
QUESTIONS = {
    ("memcached.shop.svc.cluster.local", "A"): 10,
    ("memcached.shop.svc.cluster.local", "AAAA"): 3,
    ("_memcache._tcp.memcached.shop.svc.cluster.local", "SRV"): 2,
    ("ratings.shop.svc.cluster.local", "A"): 6,
    ("ratings.shop.svc.cluster.local", "AAAA"): 2,
    ("kafka.shop.svc.cluster.local", "A"): 3,
    ("kafak.shop.svc.cluster.local", "A"): 1,
    ("storefront.shop.svc.cluster.local", "A"): 1,
    ("catalog.shop.svc.cluster.local", "A"): 5,
    ("sessions.shop.svc.cluster.local", "A"): 5,
}
ORDERS = ("orders-db.shop.svc.cluster.local", "A")  # must stay in the client's zone
ORDERS_SHARE = 0.2  # of the queries from zones whose clients ask for it


class Client(NamedTuple):
    """A pod that asks, and its zone, None if its node has none."""

    address: str
    zone: str | None


class Query(NamedTuple):
    """A query: who sends it, which client it names, None if it names nobody, and what it asks for."""

    source: str
    client: str | None
    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A part of the day: what happens in it, and how much is asked, in queries a second from its begin to its end."""

    name: str
    time: str
    says: str
    seconds: float
    rate: tuple[float, float]
    lost: frozenset[str] = frozenset()
    """Zones in which no endpoint is ready."""
    ready: frozenset[str] = frozenset()
    """Pods that are ready although they are not in the example."""
    orders: frozenset[str] = frozenset(ZONES[:2])
    """Zones whose clients ask for the orders, too."""
    others: str | None = None
    """Who else sends queries, a third of them, beside the forwarder that names clients."""


REPAIRED = frozenset({"memcached-4"})

DAY: Sequence[Moment] = (
    Moment(
        name="night",
        time="02:00",
        says="Few clients ask. Each gets the endpoints nearest to it.",
        seconds=8,
        rate=(20, 20),
    ),
    Moment(
        name="morning",
        time="07:00",
        says="The shop opens. Storefronts in all zones ask, through a forwarder that names them.",
        seconds=20,
        rate=(20, 120),
    ),
    Moment(
        name="report",
        time="10:00",
        says="A report in eu-west-c asks for orders-db, which must stay in its zone and has no pod there: unmet.",
        seconds=16,
        rate=(120, 140),
        orders=frozenset(ZONES),
    ),
    Moment(
        name="noon",
        time="12:00",
        says="The busiest hour. memcached-4 in eu-west-c becomes ready, and its zone has one more to choose.",
        seconds=14,
        rate=(140, 200),
        ready=REPAIRED,
    ),
    Moment(
        name="zone b lost",
        time="14:00",
        says="eu-west-b loses all endpoints. Its clients are sent to other zones, but not for orders-db: unmet.",
        seconds=20,
        rate=(180, 150),
        ready=REPAIRED,
        lost=frozenset({"eu-west-b"}),
    ),
    Moment(
        name="zone b back",
        time="16:00",
        says="The endpoints of eu-west-b are ready again, and its clients stay at home.",
        seconds=12,
        rate=(150, 120),
        ready=REPAIRED,
    ),
    Moment(
        name="unnamed clients",
        time="18:00",
        says=f"Another forwarder, {UNNAMING}, is trusted but names nobody: its clients are unknown.",
        seconds=11,
        rate=(120, 90),
        ready=REPAIRED,
        others=UNNAMING,
    ),
    Moment(
        name="stranger",
        time="20:00",
        says=f"{STRANGER} names clients, but nobody trusts it: topodns answers it as what it is itself.",
        seconds=11,
        rate=(90, 60),
        ready=REPAIRED,
        others=STRANGER,
    ),
    Moment(
        name="evening",
        time="22:00",
        says="The shop closes.",
        seconds=8,
        rate=(60, 20),
        ready=REPAIRED,
    ),
)


def queries(moment: Moment, clients: Sequence[Client]) -> Iterator[tuple[float, Query]]:
    """Yield each query of a moment, with the seconds after its begin at which to send it."""
    random = Random(moment.name)
    questions, weights = list(QUESTIONS), list(QUESTIONS.values())
    begin, end = moment.rate
    due = 0.0
    while due < moment.seconds:
        asking = random.choice(clients)
        name, rtype = random.choices(questions, weights)[0]
        if asking.zone in moment.orders and random.random() < ORDERS_SHARE:
            name, rtype = ORDERS
        source = moment.others if moment.others and random.random() < 1 / 3 else FORWARDER
        yield due, Query(source, None if source == UNNAMING else asking.address, name, rtype)
        due += 1 / (begin + (end - begin) * due / moment.seconds)
