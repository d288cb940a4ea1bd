# SPDX-License-Identifier: Apache-2.0

"""From what was read to the steps, in the order of the walk: from the pods to the API server's objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from dnsserver.tools.doctor.answers import answer_steps
from dnsserver.tools.doctor.clients import client_steps
from dnsserver.tools.doctor.corefiles import corefile_steps
from dnsserver.tools.doctor.facts import Facts
from dnsserver.tools.doctor.installation import installation_steps
from dnsserver.tools.doctor.replicas import replica_steps
from dnsserver.tools.doctor.steps import FAILED, PASSED, UNKNOWN, DoctorStep, StepCode, Unread, unknown
from locator.findings import ClusterCode
from locator.model import ERROR, ZONE, listed
from locator.printable import cut, shell_words

MAX_NAMED = 10  # nodes in a message
# Whether these are right depends on the flags of the Deployment.
_BY_FLAGS = {
    StepCode.RightsGranted, StepCode.ForwardersTrusted, StepCode.ClientsLocated,
    StepCode.ReplicaAnswers, StepCode.ForwarderAnswers,
}  # fmt: skip


def diagnose(facts: Facts) -> list[DoctorStep]:
    """Return all steps in the order of their codes. If the API server cannot be reached, that is the only one."""
    if facts.unreachable:
        command = f"{facts.kubectl} cluster-info"
        return [DoctorStep(StepCode.ApiServerReachable, FAILED, facts.unreachable, commands=(command,))]
    steps = [
        DoctorStep(StepCode.ApiServerReachable, PASSED, "it answers"),
        _readiness_step(facts),
        *_zone_steps(facts),
        *corefile_steps(facts),
        *installation_steps(facts),
        *replica_steps(facts),
        *client_steps(facts),
        *_finding_steps(facts),
        *answer_steps(facts),
    ]
    if not facts.installed.settings_known and facts.installed.deployment is not None:
        steps = list(map(_by_default, steps))
    order = list(StepCode)
    return sorted(steps, key=lambda step: order.index(step.code))


def _by_default(step: DoctorStep) -> DoctorStep:
    """Return what is known of a step if nobody knows the flags: what fails with the defaults may be right with them."""
    if step.status != FAILED or step.code not in _BY_FLAGS:
        return step
    return replace(
        step, status=UNKNOWN, message=f"nobody knows its flags; with the defaults: {step.message}", commands=()
    )


def _readiness_step(facts: Facts) -> DoctorStep:
    """Return which nodes are not ready. It is a fault where a pod of topodns or of the cluster's DNS stands on one."""
    code, troubles, pods = StepCode.NodesReady, facts.troubles, facts.installed.pods
    if isinstance(troubles, Unread):
        return unknown(code, troubles)
    standing = dict[str, list[str]]()
    for pod in () if isinstance(pods, Unread) else pods:
        standing.setdefault(pod.spec.node_name, []).append(f"{facts.installed.namespace}/{pod.metadata.name}")
    for forwarder in facts.forwarders:
        standing.setdefault(forwarder.node, []).append(forwarder.name)
    concerned = sorted(troubles.keys() & standing.keys())
    named = [f"{node} ({cut(troubles[node])}): {listed(list(dict.fromkeys(standing[node])), MAX_NAMED)}"
             for node in concerned[:MAX_NAMED]]  # fmt: skip
    others = sorted(troubles.keys() - standing.keys())
    rest = f"not ready: {listed(others, MAX_NAMED)}, without a pod of topodns or of the cluster's DNS" if others else ""
    if concerned:
        commands = tuple(f"{facts.kubectl} {shell_words('describe', 'node', node)}" for node in concerned[:MAX_NAMED])
        return DoctorStep(code, FAILED, "; ".join(filter(None, (*named, rest))), commands=commands)
    return DoctorStep(code, PASSED, rest or "all are")


def _zone_steps(facts: Facts) -> Iterator[DoctorStep]:
    code, nodes = StepCode.NodesHaveZones, facts.nodes
    if isinstance(nodes, Unread):
        yield unknown(code, nodes)
        return
    zones = Counter(node.labels.get(ZONE, "") for node in nodes)
    without = [node.name for node in nodes if not node.labels.get(ZONE)]
    if without and len(without) < len(nodes):
        others = ", ".join(f"{zone} {number}" for zone, number in sorted(zones.items()) if zone)
        commands = tuple(f"{facts.kubectl} label node {shell_words(name)} {ZONE}=ZONE" for name in without[:MAX_NAMED])
        named = listed(without, MAX_NAMED)
        message = f"{len(without)} of {len(nodes)} nodes have none: {named} (others: {others})"
        yield DoctorStep(code, FAILED, message, commands=commands)
    elif without:
        yield DoctorStep(code, PASSED, f"no node has one ({len(nodes)} nodes): a constraint by zone chooses nothing")
    else:
        yield DoctorStep(
            code, PASSED, ", ".join(f"{zone}: {number}" for zone, number in sorted(zones.items())) or "no nodes"
        )


def _finding_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield a step for each code with an error, or one with a summary of the others."""
    code, view = StepCode.NoErrorsFound, facts.view
    if isinstance(view, Unread):
        yield unknown(code, view)
        return
    errors = [finding for finding in view.findings if finding.severity == ERROR]
    for name, number in sorted(Counter(finding.code for finding in errors).items()):
        first = next(finding for finding in errors if finding.code == name)
        more = f"; {number - 1} more" if number > 1 else ""
        cause = ClusterCode[name]
        yield DoctorStep(
            code, FAILED, f"{first}{more}", name, (_on_cluster(cause.command_for(first), facts.flags),), cause.fix
        )
    if not errors:
        codes = Counter(finding.code for finding in view.findings)
        yield DoctorStep(
            code, PASSED, ", ".join(f"{number} {name}" for name, number in sorted(codes.items())) or "none"
        )


def _on_cluster(command: str, flags: str) -> str:
    """Return a command with the flags that lead to this cluster."""
    return command.replace("kubectl ", f"kubectl{flags} ", 1)
