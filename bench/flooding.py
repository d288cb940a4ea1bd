# SPDX-License-Identifier: Apache-2.0

"""What a flood of random client subnets costs the other clients, and whether the server's memory grows.

Beside load (b), a fifth of all queries name random subnets of any length: around a pod, elsewhere in IPv4, or in IPv6;
few of them occur twice in a round. A pod that asks directly, 200 times a second, shows how long replies then take.
"""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.cluster import FORWARDED, SERVICES, dump
from bench.loads import EDNS, FORWARDER, WARM, by_address, direct, nearby, relayed
from bench.probing import Prober
from bench.queries import Load, Query
from bench.replay import Run, run
from bench.rounds import Pace
from bench.servers import on_load_core, start_topodns
from locator.ip import Network

SOCKETS = 5  # all send at the same rate: the server answers queries in the order in which they arrive
FLOOD = 32_768  # random queries of a round: several times what topodns remembers, and as many as have an id
WINDOW = 64 * SOCKETS  # some milliseconds of work, so that the prober's queries do not wait in a long queue
ELSEWHERE = range(176, 224)  # first octets of addresses that are unknown to the server


class Flooded(NamedTuple):
    """Runs without and with the flood, one of each in a round, and the server's resident memory in MB.

    ``resident`` begins with the memory before any flood; then follows that after the flood of each round.
    """

    calm: Sequence[Run]
    flooded: Sequence[Run]
    resident: Sequence[float]


def measure(folder: Path, pace: Pace) -> Flooded:
    """Start topodns, run the loads on it in turn, stop it. Raises CannotStart and BadReply."""
    calm: list[Run] = []
    flooded: list[Run] = []
    resident: list[float] = []
    quiet, asked, snapshot = _calm(), direct(), folder / "cluster.json"
    others = relayed(FORWARDED, by_address, sockets=SOCKETS - 1)
    dump(snapshot, pod_cidrs=False)  # to locate a subnet costs more without them
    with on_load_core():
        server = start_topodns(["--snapshot", str(snapshot), "--trusted-forwarder", FORWARDER], folder)
        try:
            for number in range(pace.rounds):
                for load, runs in ((quiet, calm), (_flooded(others, number), flooded)):
                    print(f"round {number + 1} of {pace.rounds}: {server.name}, {load.title}", file=sys.stderr)
                    with closing(Prober(asked, port=server.port)) as prober:
                        runs.append(run(server, load, warmup=pace.warmup, seconds=pace.seconds, prober=prober))
                    if load is not quiet or not resident:
                        resident.append(server.resident())
        finally:
            server.stop()
    return Flooded(calm, flooded, resident)


def _calm() -> Load:
    queries = relayed(FORWARDED, by_address, sockets=SOCKETS)
    return Load("(b) forwarded", EDNS, (FORWARDER,) * SOCKETS, queries, WINDOW, WARM)


def _flooded(others: Sequence[Sequence[Query]], number: int) -> Load:
    """Return load (d) of round *number*: the queries of the other sockets, and one socket that names random subnets."""
    pick = random.Random(number)
    flood = [pick.choice((_of_pods, _elsewhere, _ipv6))(query_id, pick) for query_id in range(FLOOD)]
    return Load("(d) a fifth random", EDNS, (FORWARDER,) * SOCKETS, [*others, flood], WINDOW, SOCKETS * FLOOD)


def _of_pods(number: int, pick: random.Random) -> Query:
    client, length = pick.choice(FORWARDED), pick.randint(8, 32)
    zone = client.zone if length >= 24 else None  # a shorter prefix takes in nodes of other zones
    return _naming(number, socket.inet_aton(client.address), length, zone, pick)


def _elsewhere(number: int, pick: random.Random) -> Query:
    return _naming(number, bytes((pick.choice(ELSEWHERE), *pick.randbytes(3))), pick.randint(8, 32), None, pick)


def _ipv6(number: int, pick: random.Random) -> Query:
    return _naming(number, pick.randbytes(16), pick.randint(0, 128), None, pick)


def _naming(number: int, address: bytes, length: int, zone: int | None, pick: random.Random) -> Query:
    host_bits = 8 * len(address) - length
    block = Network((int.from_bytes(address) >> host_bits << host_bits).to_bytes(len(address)), length)
    return nearby(number, pick.randrange(SERVICES), zone, EDNS, named=block)
