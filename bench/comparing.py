# SPDX-License-Identifier: Apache-2.0

"""The speed of topodns, CoreDNS and unbound, where all of them give the same records."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench import dual_stack
from bench.loads import ALIKE, alike
from bench.rounds import Pace, Runs, in_turns
from bench.servers import CannotStart, Server, on_load_core, start_coredns, start_topodns, start_unbound
from tests.kit import go_programs, waiting
from tests.kit.kube import running_control_plane

ROUNDS = 3  # at most: there are many loads, and the ratios lie far from their targets


def measure(folder: Path, pace: Pace) -> Runs:
    """Start a cluster and the servers, run every load on each in turn, stop them. Raises CannotStart and BadReply."""
    print("CoreDNS and a control plane: building them takes some minutes, the first time only", file=sys.stderr)
    with needed():
        coredns = go_programs.coredns()
        go_programs.control_plane()
    with on_load_core(), ExitStack() as stack:
        servers = _start(coredns, folder, stack)
        plan = [(server, load) for load in map(alike, ALIKE) for server in servers]
        return in_turns(plan, pace._replace(rounds=min(pace.rounds, ROUNDS)))


def _start(coredns: Path, folder: Path, stack: ExitStack) -> Sequence[Server]:
    """Start the servers on one cluster. *stack* stops them.

    CoreDNS and topodns watch the control plane, so it runs on, idle, on the load generator's core.
    """

    def started(server: Server) -> Server:
        stack.callback(server.stop)
        return server

    with needed():
        plane = stack.enter_context(running_control_plane(folder))
    plane.api.create(*dual_stack.objects())
    options = [f"kubeconfig {plane.kubeconfig}"]
    name = dual_stack.service_name(dual_stack.SIZES[-1], dual_stack.SERVICES - 1)
    return [
        started(start_coredns(coredns, folder, options, name=name)),
        started(start_coredns(coredns, folder, options, name=name, title="CoreDNS with cache", caching=True)),
        started(start_unbound(folder, dual_stack.static_records(), name=name)),
        started(start_topodns(["--kubeconfig", str(plane.kubeconfig)], folder)),
    ]


@contextmanager
def needed() -> Iterator[None]:
    """Raise CannotStart if the block cannot build or start a program."""
    try:
        yield
    except (go_programs.BuildError, waiting.NotReadyError, pytest.skip.Exception, pytest.fail.Exception) as error:
        raise CannotStart(f"CoreDNS or its control plane is not available: {error}") from None
