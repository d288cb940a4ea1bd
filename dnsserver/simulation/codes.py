# SPDX-License-Identifier: Apache-2.0

"""The findings of a simulation: one code for each cause, with its severity and its cure.

``docs/findings.md`` is made from this table by ``make docs``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import unique

from dnsserver.names import FEDERATION
from dnsserver.simulation.service import SLACK, Simulated, exceeds
from locator.finding_codes import FindingCode
from locator.ip import address_text
from locator.model import INFO, WARNING, ZONE, Finding, listed
from locator.topology.selection import LocatedEndpoint

OVERLOAD, IDLE, UNMET = "overload", "idle", "unmet"  # what ``--fail-on`` takes
NAMED = 3  # endpoints that a message names


@unique
class SimulationCode(FindingCode):
    """The codes of ``topodns simulate``."""

    OverloadedEndpoint = (
        WARNING,
        "The constraint sends much more load to one endpoint than it would get if all endpoints got the same, by more"
        " than the factor of `--max-overload`. Its topology domain has few endpoints and many clients.",
        "Run more endpoints in that domain, or let its clients use others, too: by `topodns.io/min-endpoints`, or by a"
        " wider key. `topodns simulate` proposes what stays under the threshold, and `--with` tries a constraint:",
        "topodns simulate --service NAMESPACE/NAME --with 'NAMESPACE/NAME=topology.kubernetes.io/region,*'",
    )
    IdleEndpoint = (
        WARNING,
        "Endpoints are ready, and the constraint sends no client to them: their topology domain has no clients.",
        "Run them where clients are, or use a wider key.",
        "topodns explain svc/NAME -n NAMESPACE --client pod/POD --candidates",
    )
    UnmetClient = (
        WARNING,
        "Clients get no address, because no ready endpoint shares their topology domain and the keys do not end with"
        " `*`, or because no endpoint is ready at all.",
        "Run an endpoint in each domain that has clients, or write `*` as the last key:",
        "kubectl -n NAMESPACE annotate service NAME --overwrite topodns.io/topology-keys='kubernetes.io/hostname,*'",
    )
    ChoosesNothing = (
        INFO,
        "A constraint is in effect, and yet every client gets every endpoint that it would get without: no client"
        " shares a topology domain with some endpoints and not with others.",
        "Compare the keys of the constraint with the labels of the nodes of clients and endpoints:",
        "topodns explain svc/NAME -n NAMESPACE --client pod/POD --candidates",
    )
    SavesNothing = (
        INFO,
        "A constraint by zone is in effect, and no less of the load crosses zones than without it. Mostly, hints send"
        " clients to other zones, or clients and endpoints are in different zones.",
        "Run endpoints where clients are. In the place of hints, ask for the zone with `topodns.io/topology-keys`:",
        "topodns simulate --service NAMESPACE/NAME --with 'NAMESPACE/NAME=topology.kubernetes.io/zone,*'",
    )
    UnlocatedClient = (
        INFO,
        "Clients carry no label: nothing says on which node they are, or the node has no labels of topology. They get"
        " every endpoint, or none if the constraint is hard.",
        "Label the nodes. For clients outside of the cluster, say where they are with `--subnet`.",
        "kubectl get nodes --show-labels",
    )
    UncountedService = (
        INFO,
        "The server of `--clients-from` counts each Service by itself, and has counted no answers with endpoints for"
        " this one. The simulation has no clients for it.",
        "Simulate it without `--clients-from`, or wait until clients have asked.",
    )


FAILS = {
    SimulationCode.OverloadedEndpoint: OVERLOAD,
    SimulationCode.IdleEndpoint: IDLE,
    SimulationCode.UnmetClient: UNMET,
}
# What is found only because a dump has no Nodes: then all clients are alike.
WITHOUT_NODES = frozenset(
    code.name
    for code in (*FAILS, SimulationCode.ChoosesNothing, SimulationCode.SavesNothing, SimulationCode.UnlocatedClient)
)
BY_CODE = {code.name: word for code, word in FAILS.items()}


def findings_of(simulated: Simulated, max_overload: float) -> Iterator[Finding]:
    """Yield what is worth a warning in what became of a Service."""
    if exceeds(simulated, max_overload):
        load, located = max(zip(simulated.shares, simulated.endpoints, strict=True), key=lambda pair: pair[0])
        message = f"{described(located)} gets {load * len(simulated.endpoints):.1f} times an even share of the load"
        expected = f"at most {max_overload:g} times (--max-overload)"
        yield _finding(SimulationCode.OverloadedEndpoint, simulated, message, expected)
    if simulated.starved:
        idle = simulated.idle
        named = listed(list(map(described, idle)), NAMED)
        message = f"{len(idle)} of {len(simulated.endpoints)} ready endpoints get no load: {named}"
        yield _finding(SimulationCode.IdleEndpoint, simulated, message, "clients in their domain")
    if simulated.unmet:
        message = f"{simulated.unmet:,} of {simulated.clients:,} clients get no address"
        yield _finding(SimulationCode.UnmetClient, simulated, message, "an endpoint for each")
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
    if declaration is None or not declaration.effective or simulated.subject.zone.about == FEDERATION:
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


def described(located: LocatedEndpoint) -> str:
    """Return an endpoint as a message names it: its pod, or else its address."""
    endpoint = located.endpoint
    return endpoint.pod or (address_text(endpoint.addresses[0]) if endpoint.addresses else "an endpoint")


def _finding(code: SimulationCode, simulated: Simulated, message: str, expected: str) -> Finding:
    namespace, _, name = simulated.subject.key.partition("/")
    return code.finding("Service", namespace, name, message=message, expected=expected)
