# SPDX-License-Identifier: Apache-2.0

"""What the status of a ServicePolicy says: whether topodns accepts it, and whether it can change an answer.

Both follow from the rules and findings of ``topology``, so that the status and ``topodns check`` agree. Unlike those
of a server, they look at no endpoints, and at all namespaces: a key counts as carried if a Node has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from locator.findings import ClusterCode
from locator.model import ERROR, Finding, Service, ServicePolicy
from locator.topology.constraints import (
    IGNORED,
    OF_PEERS,
    POLICY,
    REQUIRED,
    Declaration,
    deciding,
    declarations_of,
    silence_of,
)
from locator.topology.service_checks import (
    CarriedKeys,
    may_choose,
    policy_chooses,
    policy_findings,
    policy_key_findings,
)

ACCEPTED, EFFECTIVE = "Accepted", "Effective"

# The reasons of a condition. A policy that is not accepted has the code of the finding, as an invalid constraint has.
CONSTRAINS = "Constrains"
NOT_ACCEPTED = "NotAccepted"
MODE_IGNORED = "Ignored"
WITHOUT_KEY = "WithoutKey"
SELECTS_NOTHING = "SelectsNothing"
NONE_HEADLESS = "NotHeadless"
PUBLISH_NOT_READY = "PublishNotReady"
KEY_ON_NO_NODE = "KeyOnNoNode"
REASON_OF_CODE = {
    ClusterCode.PolicySelectsNothing.name: SELECTS_NOTHING,
    ClusterCode.ConstraintWithoutEffect.name: NONE_HEADLESS,
}


class PolicyCondition(Struct, frozen=True):
    """A condition as Kubernetes defines it (``metav1.Condition``): its type, whether it holds, and why."""

    type: str
    holds: bool
    reason: str
    message: str


def conditions_of(
    policy: ServicePolicy | None,
    findings: Iterable[Finding],
    selected: Sequence[Service],
    policies: Sequence[ServicePolicy],
    carried: CarriedKeys,
) -> tuple[PolicyCondition, PolicyCondition]:
    """Return whether a policy is accepted, and whether it is effective.

    *policy* is None if its selector is invalid, and *findings* say what is wrong in it. *selected* are the Services
    that it selects, and *policies* all of its namespace. *carried* are the label keys that nodes carry.
    """
    findings = tuple(findings)
    wrong = next((finding for finding in findings if finding.severity == ERROR), None)
    if policy is None or wrong is not None:
        code, message = (wrong.code, _text(wrong)) if wrong else (ClusterCode.InvalidServicePolicy.name, "")
        return (
            PolicyCondition(ACCEPTED, False, code, message),
            PolicyCondition(EFFECTIVE, False, NOT_ACCEPTED, "topodns does not accept the policy"),
        )
    accepted = PolicyCondition(ACCEPTED, True, ACCEPTED, "the policy is valid")
    if (silence := silence_of(policy)) is not None:
        reason = MODE_IGNORED if policy.mode == IGNORED else WITHOUT_KEY
        return accepted, PolicyCondition(EFFECTIVE, False, reason, next(map(_text, findings), silence))
    obstacle = next(_obstacles(policy, selected, policies, carried), None)
    if obstacle is not None:
        return accepted, PolicyCondition(EFFECTIVE, False, *obstacle)
    return accepted, PolicyCondition(EFFECTIVE, True, CONSTRAINS, "it constrains at least one Service that it selects")


def _obstacles(
    policy: ServicePolicy, selected: Sequence[Service], policies: Sequence[ServicePolicy], carried: CarriedKeys
) -> Iterator[tuple[str, str]]:
    """Yield reason and message of what keeps a valid policy from changing an answer."""
    for finding in policy_findings(policy, selected):
        yield REASON_OF_CODE.get(finding.code, finding.code), _text(finding)
    if not any(policy_chooses(service, deciding(declared)) for service, declared in _declared(selected, policies)):
        yield from _why_overridden(selected, policies)
    for finding in policy_key_findings(policy, (), carried):
        message = _text(finding)
        yield KEY_ON_NO_NODE, f"{message}; clients get no endpoint" if policy.mode == REQUIRED else message


def _declared(
    selected: Iterable[Service], policies: Sequence[ServicePolicy]
) -> Iterator[tuple[Service, tuple[Declaration, ...]]]:
    """Yield the Services on which a constraint counts, each with what is declared for it."""
    for service in selected:
        if may_choose(service):
            yield service, declarations_of(service, policies, honor_kubernetes=False)


def _why_overridden(selected: Sequence[Service], policies: Sequence[ServicePolicy]) -> Iterator[tuple[str, str]]:
    """Yield why what policies declare together decides about no Service: first an error, which somebody can fix."""
    errors = {
        declaration.error
        for _, declared in _declared(selected, policies)
        for declaration in declared
        if declaration.source == POLICY and declaration.error is not None
    }
    for error in sorted(errors):
        yield ClusterCode.InvalidServicePolicy.name, f"invalid constraint: {error}"
    yield PUBLISH_NOT_READY, OF_PEERS  # on all others, policies come first


def _text(finding: Finding) -> str:
    """Return a finding without the name of the object, which is the policy itself."""
    message = f"{finding.field}: {finding.message}"
    return f"{message}, expected {finding.expected}" if finding.expected else message
