# SPDX-License-Identifier: Apache-2.0

"""The steps of ``topodns doctor``: one code for each, why it matters and what to do, and what was found.

Codes are stable, so that scripts need not parse messages. ``make docs`` generates ``docs/doctor.md`` from this table.
"""

from __future__ import annotations

from enum import Enum, unique

from msgspec import Struct

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"


@unique
class StepCode(Enum):
    """A step: what it looks at, why that matters, and what to do if it fails, in Markdown. In the order of the walk."""

    ApiServerReachable = (
        "the API server answers",
        "topodns, its forwarders and `doctor` itself know the cluster from there.",
        "Look at the address and the credentials in the kubeconfig. The other steps are left out.",
    )
    NodesReady = (
        "nodes are ready",
        "A pod on a node that is not ready gets no queries, or does not answer them, until Kubernetes replaces it after"
        " some minutes.",
        "Repair the node, or drain it so that its pods start elsewhere.",
    )
    NodesHaveZones = (
        "nodes have a zone",
        "A client on a node without the label `topology.kubernetes.io/zone` is in no zone, so nothing is near it.",
        "Label the node, if your cloud provider does not.",
    )
    NodeLocalForwards = (
        "NodeLocal DNSCache's Corefile",
        "Where it runs, pods ask it first. What it does not forward to topodns goes to the cluster's own DNS.",
        "Correct its Corefile. `topodns corefile --for nodelocal --check` judges it in the same words.",
    )
    ForwarderForwards = (
        "the forwarder's Corefile",
        "Pods ask the cluster's own DNS. What it does not forward never reaches topodns, and it must say which client"
        " asks.",
        "Correct it where its owner lets you: the step names the object. `topodns corefile --check` judges it in the"
        " same words.",
    )
    DeploymentExists = (
        "the Deployment",
        "Without it, there is no topodns to ask.",
        "Install topodns, or name its namespace with `-n`.",
    )
    SettingsValid = (
        "its flags",
        "`topodns serve` ends at once if a flag, a variable or its configuration file is wrong.",
        "Correct the setting that the step names.",
    )
    ImageVersion = (
        "its image",
        "This `doctor` knows the rules of its own version. Another version may need other rights, or mean other things"
        " by its flags.",
        "Upgrade the older of the two.",
    )
    PodsCreated = (
        "its pods can be created",
        "Where a quota, an admission or OpenShift refuses its pods, the Deployment has no pod that could say why.",
        "Change what the step names. Kubernetes tries again by itself, after some minutes at the latest.",
    )
    ReplicasReady = (
        "its replicas are ready",
        "Only replicas that are ready get queries. With fewer than wanted, the loss of one more may be felt.",
        "Scale the Deployment, or see why a pod is not ready.",
    )
    ServiceLeadsHere = (
        "its Service",
        "Forwarders ask the cluster IP of this Service. If its selector matches no replica, nobody answers there.",
        "Create it again from the manifests. Corefiles name its address, which must stay the same.",
    )
    RightsGranted = (
        "its rights",
        "topodns is not ready before it has listed every kind that its settings ask for.",
        "Grant the ServiceAccount what the step names.",
    )
    ResourcesCurrent = (
        "its custom resources",
        "Without a CRD, nobody can create its objects. An older CRD drops the fields that it does not know.",
        "Apply the CRD of this version.",
    )
    ReplicaSynced = (
        "it has read the cluster",
        "Until then, a replica answers nothing, or from a view that was saved earlier.",
        "The step has the replica's own words.",
    )
    ReplicaFresh = (
        "it is in contact with the API server",
        "Without contact, a replica answers from its last view. New pods are not in its answers, and ended ones are.",
        "Look at the network and the rights between the replica and the API server.",
    )
    ReplicaVersion = (
        "its version",
        "Replicas of several versions may answer the same client differently.",
        "Let the roll-out end, or set the same image again.",
    )
    ForwardersTrusted = (
        "whoever names clients is trusted",
        "topodns ignores the client that an untrusted forwarder names. All its clients get what is near the forwarder.",
        "If it is a forwarder of yours, trust it. If it is not, let it send no client subnet.",
    )
    ForwardersNameClients = (
        "forwarders name their clients",
        "The clients of a trusted forwarder that names nobody are unknown. A Service that insists on nearness has"
        " nothing for them.",
        "Let its configuration name the client. `topodns corefile` prints it.",
    )
    ClientsLocated = (
        "clients can be located",
        "An unknown client has no label. It gets every endpoint of a Service, or none if the Service insists on"
        " nearness.",
        "Say where these addresses are with `--subnet`, or let topodns watch what locates them (`--client-source`).",
    )
    AnswersNear = (
        "answers stay in the zone",
        "Endpoints of other zones lead to traffic between zones. This counts the answers of all replicas since they"
        " started, and is never a fault.",
        "`topodns simulate` says what a Service would gain by a constraint, and `topodns explain` why a client gets"
        " what it gets.",
    )
    NoErrorsFound = (
        "findings of check",
        "topodns ignores what is wrong, and clients may get wrong answers or none.",
        "`topodns check` names the objects, and [Findings](findings.md) says what to do about each code.",
    )
    ReplicaAnswers = (
        "it answers as explain says",
        "A replica that answers anything else has another view of the cluster, other settings, or is not reached.",
        "Ask again: the cluster may have changed. If it stays so, restart the replica, and report it.",
    )
    ForwarderAnswers = (
        "pods get the same answer",
        "This is what pods get. If it differs from what topodns would answer, the forwarder answers by itself, caches,"
        " or names another client.",
        "Look at the forwarder's Corefile, and whether it has read it again (plugin `reload`, or a restart).",
    )

    def __init__(self, title: str, why: str, cure: str) -> None:
        self.title = title
        self.why = why
        self.cure = cure


class Step(Struct, frozen=True):
    """What was found at one step. ``subject`` is the object that it is about, where a step has several.

    ``status`` is PASSED, FAILED, or UNKNOWN if it could not be looked at; ``message`` then says why. ``commands`` mend
    a step that failed, in this order; ``advice`` says more than the cure of its code, if it is not empty.
    ``difference`` is what the commands change in a text, as ``diff -u`` shows it.
    """

    code: StepCode
    status: str
    message: str
    subject: str = ""
    commands: tuple[str, ...] = ()
    advice: str = ""
    difference: str = ""


class Unread(Struct, frozen=True):
    """Something that could not be read, and why: it names the permission that lacks, if one does."""

    why: str
    commands: tuple[str, ...] = ()


def unknown(code: StepCode, unread: Unread, subject: str = "") -> Step:
    """Return a step that could not be looked at."""
    return Step(code, UNKNOWN, unread.why, subject, unread.commands)


def as_json(step: Step) -> dict[str, object]:
    """Return a step as ``doctor -o json`` prints it; what mends it is left out of a step that passed."""
    mended = step.status == PASSED
    return {
        "code": step.code.name,
        "title": step.code.title,
        "subject": step.subject,
        "status": step.status,
        "message": step.message,
        "why": step.code.why,
        "cure": "" if mended else step.advice or step.code.cure,
        "difference": "" if mended else step.difference,
        "commands": [] if mended else list(step.commands),
    }
