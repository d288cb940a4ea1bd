# SPDX-License-Identifier: Apache-2.0

"""What each replica says of itself."""

from __future__ import annotations

from collections.abc import Iterator

from dnsserver.tools.doctor.facts import Facts, Replica
from dnsserver.tools.doctor.installation import rolled_out
from dnsserver.tools.doctor.steps import FAILED, PASSED, DoctorStep, StepCode, Unread, unknown
from locator.printable import shell_words

CODES = (StepCode.ReplicaSynced, StepCode.ReplicaFresh, StepCode.ReplicaVersion)
_BUILD, _AGE = "topodns_build_info", "topodns_cluster_view_age_seconds"
LOST_SECONDS = 10.0  # without contact; a watch that ends by itself has contact again at once
_KIND_ABSENT = "none:"  # how a check begins whose kind the API server does not have


def replica_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield three steps for each replica, or one each if none can be looked at."""
    pods = facts.installed.pods
    if isinstance(pods, Unread) or not facts.replicas:
        unread = pods if isinstance(pods, Unread) else Unread("there is no replica to look at")
        yield from (unknown(code, unread) for code in CODES)
    for replica in facts.replicas:
        yield from _health_steps(facts, replica)
        yield _version_step(facts, replica)


def _health_steps(facts: Facts, replica: Replica) -> Iterator[DoctorStep]:
    checks = replica.checks
    if isinstance(checks, Unread):
        yield unknown(StepCode.ReplicaSynced, checks, replica.name)
        yield unknown(StepCode.ReplicaFresh, checks, replica.name)
        return
    command = f"{facts.kubectl} {shell_words('-n', facts.installed.namespace, 'logs', replica.name, '--tail=20')}"
    missing = [f"{name}: {text}" for name, (good, text) in checks.items() if not good]
    age = _age(facts, replica)
    old = [f"{name}: {text}" for name, (good, text) in checks.items() if good and not _in_contact(text)]
    old = [f"no contact for {age:.0f} s", *old] if age > LOST_SECONDS else []
    if missing:
        yield DoctorStep(StepCode.ReplicaSynced, FAILED, "; ".join(missing), replica.name, (command,))
    else:
        yield DoctorStep(StepCode.ReplicaSynced, PASSED, f"{', '.join(checks)}", replica.name)
    if old:
        yield DoctorStep(StepCode.ReplicaFresh, FAILED, "; ".join(old), replica.name, (command,))
    elif not missing:
        yield DoctorStep(StepCode.ReplicaFresh, PASSED, "in contact", replica.name)


def _age(facts: Facts, replica: Replica) -> float:
    """Return for how many seconds a replica has been without contact to its own cluster."""
    ages = {} if isinstance(replica.before, Unread) else replica.before.get(_AGE, {})
    return ages.get((facts.installed.settings.cluster_name,), 0.0)


def _in_contact(text: str) -> bool:
    return text == "ok" or text.startswith(_KIND_ABSENT)


def _version_step(facts: Facts, replica: Replica) -> DoctorStep:
    code, samples = StepCode.ReplicaVersion, replica.before
    if isinstance(samples, Unread):
        return unknown(code, samples, replica.name)
    version = next((labels[-1] for labels in samples.get(_BUILD, ()) if labels), "")
    if version == facts.version:
        return DoctorStep(code, PASSED, version, replica.name)
    message = f"{version or 'none'} found, but this is {facts.version}"
    return DoctorStep(code, FAILED, message, replica.name, (rolled_out(facts),))
