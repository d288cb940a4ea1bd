# SPDX-License-Identifier: Apache-2.0

"""The findings of a simulation: one code for each cause, with its severity.

What a code means and how to fix it stands in ``codes.toml``, of which ``make docs`` makes ``docs/findings.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from dnsserver.tools.simulation import IDLE, OVERLOAD, UNMET
from dnsserver.tools.simulation.service import SLACK, Simulated, described, exceeds
from dnsserver.tools.simulation.unmet import unmet_message
from locator.findings import ClusterCode, FindingCode
from locator.model import INFO, WARNING, ZONE, Finding, listed

NAMED = 3  # endpoints that a message names


class SimulationCode(FindingCode):
    """The codes of ``topodns simulate``."""

    OverloadedEndpoint = WARNING
    IdleEndpoint = WARNING
    ChoosesNothing = INFO
    SavesNothing = INFO
    UnlocatedClient = INFO
    UncountedService = INFO


# What ``--fail-on`` calls them.
FAILS_ON = {
    SimulationCode.OverloadedEndpoint.name: OVERLOAD,
    SimulationCode.IdleEndpoint.name: IDLE,
    ClusterCode.UnmetClients.name: UNMET,
}
# What is found only because a dump has no Nodes: then all clients are alike.
WITHOUT_NODES = frozenset(code.name for code in SimulationCode if code is not SimulationCode.UncountedService) | {
    ClusterCode.UnmetClients.name
}


def findings_of(simulated: Simulated, max_overload: float) -> Iterator[Finding]:
    """Yield what is worth a warning in what became of a Service."""
    if exceeds(simulated, max_overload):
        load, located = simulated.busiest
        message = f"{described(located)} gets {load * len(simulated.endpoints):.1f} times an even share of the load"
        expected = f"at most {max_overload:g} times (--max-overload)"
        yield _finding(SimulationCode.OverloadedEndpoint, simulated, message, expected)
    if simulated.starved:
        idle = simulated.idle
        named = listed(list(map(described, idle)), NAMED)
        message = f"{len(idle)} of {len(simulated.endpoints)} ready endpoints get no load: {named}"
        yield _finding(SimulationCode.IdleEndpoint, simulated, message, "clients in their domain")
    if simulated.unmet:
        yield _finding(ClusterCode.UnmetClients, simulated, unmet_message(simulated), "an endpoint for each")
    yield from _without_gain(simulated)
    if simulated.counted_nothing:
        message = "the server has counted no answers for it, so nobody asks here"
        yield _finding(SimulationCode.UncountedService, simulated, message, "some answers with endpoints")
    if simulated.unknown:
        message = f"{simulated.unknown:,} of {simulated.clients:,} clients carry no label"
        yield _finding(SimulationCode.UnlocatedClient, simulated, message, "a node with labels")


def _without_gain(simulated: Simulated) -> Iterator[Finding]:
    """Yield a finding if the constraint changes nothing, or nothing of what crosses zones."""
    declaration, before, after = simulated.declaration, simulated.crossing_before, simulated.crossing
    if declaration is None or not declaration.effective or simulated.subject.federated:
        return
    if not simulated.load or len(simulated.endpoints) < 2:
        return
    if not simulated.narrowed:
        message = "the constraint chooses nothing: every client gets what it would get without"
        yield _finding(SimulationCode.ChoosesNothing, simulated, message, "clients with an endpoint that is nearer")
    elif ZONE in declaration.constraint.client_keys and before and after >= before - SLACK:
        message = f"the constraint saves nothing: {100 * after:.1f} % of the load crosses zones, "
        message += f"{100 * before:.1f} % without it"
        yield _finding(SimulationCode.SavesNothing, simulated, message, "endpoints in the zones of the clients")


def _finding(code: FindingCode, simulated: Simulated, message: str, expected: str) -> Finding:
    namespace, _, name = simulated.subject.key.partition("/")
    return code.finding("Service", namespace, name, message=message, expected=expected)
