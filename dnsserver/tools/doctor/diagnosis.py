# SPDX-License-Identifier: Apache-2.0

"""From what was read to the steps, in the order of the walk: from the pods to the API server's objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from dnsserver.tools.doctor.answers import answer_steps
from dnsserver.tools.doctor.clients import client_steps
from dnsserver.tools.doctor.corefiles import corefile_steps
from dnsserver.tools.doctor.facts import Facts, Replica
from dnsserver.tools.doctor.installation import installation_steps, rolled_out
from dnsserver.tools.doctor.steps import FAILED, UNKNOWN, DoctorStep, StepCode, Unread, read_or
from locator.findings import ClusterCode
from locator.model import ERROR, ZONE, listed
from locator.printable import cut

MAX_NAMED = 10  # nodes in a message
_REPLICA_CODES = (StepCode.ReplicaSynced, StepCode.ReplicaFresh, StepCode.ReplicaVersion)
_BUILD, _AGE = "topodns_build_info", "topodns_cluster_view_age_seconds"
LOST_SECONDS = 10.0  # without contact; a watch that ends by itself has contact again at once
_KIND_ABSENT = "none:"  # how a check begins whose kind the API server does not have
# Whether these are right depends on the flags of the Deployment.
_BY_FLAGS = {
    StepCode.RightsGranted, StepCode.ForwardersTrusted, StepCode.ClientsLocated,
    StepCode.ReplicaAnswers, StepCode.ForwarderAnswers,
}  # fmt: skip


def diagnose(facts: Facts) -> list[DoctorStep]:
    """Return all steps in the order of their codes. If the API server cannot be reached, that is the only one."""
    if facts.unreachable:
        command = f"{facts.kubectl} cluster-info"
        return [StepCode.ApiServerReachable.failed(facts.unreachable, commands=(command,))]
    steps = [
        StepCode.ApiServerReachable.passed("it answers"),
        _readiness_step(facts),
        *_zone_steps(facts),
        *corefile_steps(facts),
        *installation_steps(facts),
        *_replica_steps(facts),
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
        return code.unread(troubles)
    standing = dict[str, list[str]]()
    for pod in read_or(pods, ()):
        standing.setdefault(pod.spec.node_name or "", []).append(f"{facts.installed.namespace}/{pod.metadata.name}")
    for forwarder in facts.forwarders:
        standing.setdefault(forwarder.node, []).append(forwarder.name)
    concerned = sorted(troubles.keys() & standing.keys())
    named = [f"{node} ({cut(troubles[node])}): {listed(list(dict.fromkeys(standing[node])), MAX_NAMED)}"
             for node in concerned[:MAX_NAMED]]  # fmt: skip
    others = sorted(troubles.keys() - standing.keys())
    rest = f"not ready: {listed(others, MAX_NAMED)}, without a pod of topodns or of the cluster's DNS" if others else ""
    if concerned:
        commands = tuple(facts.command("describe node NAME", NAME=node) for node in concerned[:MAX_NAMED])
        return code.failed("; ".join(filter(None, (*named, rest))), commands=commands)
    return code.passed(rest or "all are")


def _zone_steps(facts: Facts) -> Iterator[DoctorStep]:
    code, nodes = StepCode.NodesHaveZones, facts.nodes
    if isinstance(nodes, Unread):
        yield code.unread(nodes)
        return
    zones = Counter(node.labels.get(ZONE, "") for node in nodes)
    without = [node.name for node in nodes if not node.labels.get(ZONE)]
    if without and len(without) < len(nodes):
        others = ", ".join(f"{zone} {number}" for zone, number in sorted(zones.items()) if zone)
        commands = tuple(facts.command(f"label node NAME {ZONE}=ZONE", NAME=name) for name in without[:MAX_NAMED])
        named = listed(without, MAX_NAMED)
        message = f"{len(without)} of {len(nodes)} nodes have none: {named} (others: {others})"
        yield code.failed(message, commands=commands)
    elif without:
        yield code.passed(f"no node has one ({len(nodes)} nodes): a constraint by zone chooses nothing")
    else:
        yield code.passed(", ".join(f"{zone}: {number}" for zone, number in sorted(zones.items())) or "no nodes")


def _replica_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield three steps for each replica, or one each if none can be looked at."""
    pods = facts.installed.pods
    if isinstance(pods, Unread) or not facts.replicas:
        unread = pods if isinstance(pods, Unread) else Unread("there is no replica to look at")
        yield from (code.unread(unread) for code in _REPLICA_CODES)
    for replica in facts.replicas:
        yield from _health_steps(facts, replica)
        yield _version_step(facts, replica)


def _health_steps(facts: Facts, replica: Replica) -> Iterator[DoctorStep]:
    checks = replica.checks
    if isinstance(checks, Unread):
        yield StepCode.ReplicaSynced.unread(checks, replica.name)
        yield StepCode.ReplicaFresh.unread(checks, replica.name)
        return
    command = facts.command_here("logs NAME --tail=20", NAME=replica.name)
    missing = [f"{name}: {text}" for name, (good, text) in checks.items() if not good]
    age = _age(facts, replica)
    old = [f"{name}: {text}" for name, (good, text) in checks.items() if good and not _in_contact(text)]
    old = [f"no contact for {age:.0f} s", *old] if age > LOST_SECONDS else []
    if missing:
        yield StepCode.ReplicaSynced.failed("; ".join(missing), replica.name, (command,))
    else:
        yield StepCode.ReplicaSynced.passed(f"{', '.join(checks)}", replica.name)
    if old:
        yield StepCode.ReplicaFresh.failed("; ".join(old), replica.name, (command,))
    elif not missing:
        yield StepCode.ReplicaFresh.passed("in contact", replica.name)


def _age(facts: Facts, replica: Replica) -> float:
    """Return for how many seconds a replica has been without contact to its own cluster."""
    ages = read_or(replica.before, {}).get(_AGE, {})
    return ages.get((facts.installed.settings.cluster_name,), 0.0)


def _in_contact(text: str) -> bool:
    return text == "ok" or text.startswith(_KIND_ABSENT)


def _version_step(facts: Facts, replica: Replica) -> DoctorStep:
    code, samples = StepCode.ReplicaVersion, replica.before
    if isinstance(samples, Unread):
        return code.unread(samples, replica.name)
    version = next((labels[-1] for labels in samples.get(_BUILD, ()) if labels), "")
    if version == facts.version:
        return code.passed(version, replica.name)
    message = f"{version or 'none'} found, but this is {facts.version}"
    return code.failed(message, replica.name, (rolled_out(facts),))


def _finding_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield a step for each code with an error, or one with a summary of the others."""
    code, view = StepCode.NoErrorsFound, facts.view
    if isinstance(view, Unread):
        yield code.unread(view)
        return
    errors = [finding for finding in view.findings if finding.severity == ERROR]
    for name, number in sorted(Counter(finding.code for finding in errors).items()):
        first = next(finding for finding in errors if finding.code == name)
        more = f"; {number - 1} more" if number > 1 else ""
        cause = ClusterCode[name]
        yield code.failed(f"{first}{more}", name, (_on_cluster(cause.command_for(first), facts.kubectl),), cause.fix)
    if not errors:
        codes = Counter(finding.code for finding in view.findings)
        yield code.passed(", ".join(f"{number} {name}" for name, number in sorted(codes.items())) or "none")


def _on_cluster(command: str, kubectl: str) -> str:
    """Return a command with the flags that lead to this cluster."""
    return command.replace("kubectl", kubectl, 1)
