"""What a flood of random client subnets costs others, and whether the server grows by it.

Beside load (b), a fifth of all queries name random blocks of any length: around a pod, elsewhere, or of IPv6; few
come twice in a round. A pod that asks for itself, now and then, shows how long anybody waits meanwhile.
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

SOCKETS = 5  # each sends as much as any other, since the server answers in the order in which queries came
FLOOD = 32_768  # random queries of a round: several times what a server would remember, and each has an id
WINDOW = 64 * SOCKETS  # some milliseconds of work: the prober shall wait for the work, not for a long queue
ELSEWHERE = range(176, 224)  # first octets of addresses of which nothing is known


class Flooded(NamedTuple):
    """Runs without and with the flood, a pair for each round; ``resident`` is the MB that the server holds.

    First before any flood, then after that of each round.
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
    dump(snapshot, pod_cidrs=False)  # blocks are dearer there
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
    """Return load (d): beside *others*, a socket that names random blocks, new ones in each round."""
    pick = random.Random(number)
    flood = [pick.choice((_of_pods, _elsewhere, _ipv6))(each, pick) for each in range(FLOOD)]
    return Load("(d) a fifth random", EDNS, (FORWARDER,) * SOCKETS, [*others, flood], WINDOW, SOCKETS * FLOOD)


def _of_pods(number: int, pick: random.Random) -> Query:
    client, length = pick.choice(FORWARDED), pick.randint(8, 32)
    zone = client.zone if length >= 24 else None  # a shorter block reaches nodes of other zones
    return _naming(number, socket.inet_aton(client.address), length, zone, pick)


def _elsewhere(number: int, pick: random.Random) -> Query:
    return _naming(number, bytes((pick.choice(ELSEWHERE), *pick.randbytes(3))), pick.randint(8, 32), None, pick)


def _ipv6(number: int, pick: random.Random) -> Query:
    return _naming(number, pick.randbytes(16), pick.randint(0, 128), None, pick)


def _naming(number: int, address: bytes, length: int, zone: int | None, pick: random.Random) -> Query:
    host_bits = 8 * len(address) - length
    block = Network((int.from_bytes(address) >> host_bits << host_bits).to_bytes(len(address)), length)
    return nearby(number, pick.randrange(SERVICES), zone, EDNS, named=block)
