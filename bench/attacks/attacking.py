# SPDX-License-Identifier: Apache-2.0

"""Attacks one server from a process of its own, until told to stop."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe

from bench.attacks.table import LOADS
from bench.attacks.targets import AttackedServer

RATE = 3_500  # datagrams a second: with 1,472 octets, 41 Mbit/s
PATIENCE = 60.0  # seconds until the packets are prepared


@contextmanager
def attacked(target: AttackedServer, attack: str, *, rate: float | None = RATE) -> Iterator[None]:
    """Attack until the block ends; when it begins, the attack has begun. *attack* is a key of ``LOADS``.

    Datagrams come at a *rate* in a second, or as fast as the machine sends them.
    """
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_attack, args=(target, attack, rate, its), daemon=True)
    process.start()
    its.close()
    try:
        if not mine.poll(PATIENCE):
            raise TimeoutError(f"the attack {attack} did not begin")
        mine.recv()
        yield
        if not process.is_alive():
            raise ChildProcessError(f"the attack {attack} ended by itself")
    finally:
        mine.close()
        process.join(PATIENCE)
        process.kill()


def _attack(target: AttackedServer, attack: str, rate: float | None, pipe: Pipe) -> None:
    # Who waits for replies on the same core goes first.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number, _ in enumerate(LOADS[attack].how.run(target, rate)):
        if number == 0:
            pipe.send(None)
        if pipe.poll():  # it is closed, or its other end has died
            return
