# SPDX-License-Identifier: Apache-2.0

"""What of topodns is installed: its Deployment, Service, rights and custom resources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dnsserver.tools.doctor.custom_resources import CUSTOM_RESOURCES, VERSION, fields_of
from dnsserver.tools.doctor.facts import Facts, Installed, Right
from dnsserver.tools.doctor.objects import Crd, Deployment, ReplicaPod
from dnsserver.tools.doctor.providers import applied
from dnsserver.tools.doctor.steps import FAILED, PASSED, UNKNOWN, DoctorStep, StepCode, Unread, unknown
from locator.api.decoding import RESOURCES
from locator.model import Object
from locator.printable import shell_words

MANIFESTS = "manifests/overlays/coredns-stub"
RESTART = (
    "If its Corefile has a cross, fix that first. If it has none, the forwarder has not read it again: it does with"
    " the plugin `reload`, or when its pod starts again."
)
NOT_INSTALLED = Unread("topodns is not installed")
_OF_THE_DEPLOYMENT = (
    StepCode.DeploymentExists, StepCode.SettingsValid, StepCode.ImageVersion, StepCode.PodsCreated,
    StepCode.ReplicasReady,
)  # fmt: skip
_RBAC = "rbac.authorization.k8s.io"


def needed_rights(kinds: Iterable[type[Object]]) -> list[Right]:
    """Return what ``serve`` needs to read these kinds, and to post Events about invalid constraints."""
    rights = []
    for kind in kinds:
        path = RESOURCES[kind].path
        rights += [Right(RESOURCES[kind].group, path.rpartition("/")[2], verb) for verb in ("list", "watch")]
    return [*rights, Right("", "services", "get"), Right("", "events", "create")] if rights else []


def installation_steps(facts: Facts) -> Iterator[DoctorStep]:
    """Yield the steps about the Deployment, and about what it needs."""
    installed = facts.installed
    deployment = installed.deployment
    if isinstance(deployment, Unread):
        for code in _OF_THE_DEPLOYMENT:
            yield unknown(code, deployment)
    elif deployment is None:
        message = f"no Deployment of topodns in namespace {installed.namespace}"
        yield DoctorStep(
            StepCode.DeploymentExists, FAILED, message, commands=(f"{facts.kubectl} apply -k {MANIFESTS}",)
        )
    else:
        name = f"{installed.namespace}/{deployment.metadata.name}"
        yield DoctorStep(StepCode.DeploymentExists, PASSED, f"Deployment {name}")
        yield _settings_step(facts, deployment)
        yield _image_step(facts, deployment)
        for found in (deployment, *installed.others):
            subject = "" if found is deployment else f"{installed.namespace}/{found.metadata.name}"
            yield _created_step(facts, found, subject)
            yield _replicas_step(facts, found, subject)
    if installed.pods_unread is not None:
        known = len(installed.pods) if not isinstance(installed.pods, Unread) else 0
        message = f"{known} found by EndpointSlices; its pods cannot be listed: {installed.pods_unread.why}"
        yield DoctorStep(StepCode.ReplicasReady, UNKNOWN, message, "its pods")
    if deployment is None and installed.service is None:
        for code in (StepCode.ServiceLeadsHere, StepCode.RightsGranted, StepCode.ResourcesCurrent):
            yield unknown(code, NOT_INSTALLED)
        return
    yield _service_step(facts)
    yield _rights_step(facts)
    for name in CUSTOM_RESOURCES:
        if name in installed.crds:
            yield _crd_step(facts, name, installed.crds[name])


def deployment_name(installed: Installed) -> str:
    """Return the name of the Deployment, that of the manifests if it is not known."""
    deployment = installed.deployment
    return deployment.metadata.name or "" if isinstance(deployment, Deployment) else "topodns"


def rolled_out(facts: Facts) -> str:
    """Return the command that replaces all replicas."""
    name = deployment_name(facts.installed)
    return _in_namespace(facts, "rollout", "restart", "deployment", name)


def _arguments_at(deployment: Deployment) -> str:
    """Return where a JSON patch finds the arguments of topodns."""
    container = deployment.container
    position = deployment.spec.template.spec.containers.index(container)
    field = "command" if container.args is None and container.command else "args"
    return f"/spec/template/spec/containers/{position}/{field}"


def added_argument(facts: Facts, argument: str) -> tuple[str, ...]:
    """Return the command that gives the Deployment another flag; none if there is no Deployment."""
    deployment = facts.installed.deployment
    if not isinstance(deployment, Deployment):
        return ()
    path = _arguments_at(deployment)
    had = bool(deployment.container.words)
    return (_patched(facts, deployment, {"op": "add", "path": f"{path}/-" if had else path,
                                         "value": argument if had else [argument]}),)  # fmt: skip


def restarted(facts: Facts, pod: str) -> tuple[str, ...]:
    """Return the command that lets a pod (``namespace/name``) of the cluster's DNS start again; none for an address."""
    namespace, slash, name = pod.partition("/")
    words = shell_words("-n", namespace, "delete", "pod", name, "--wait=false")
    return (f"{facts.kubectl} {words}",) if slash else ()


def _patched(facts: Facts, deployment: Deployment, *operations: Mapping[str, object]) -> str:
    patch = json.dumps(operations)
    return _in_namespace(facts, "patch", "deployment", deployment.metadata.name or "", "--type", "json", "-p", patch)


def _in_namespace(facts: Facts, *words: str) -> str:
    """Return a command of kubectl in topodns' namespace. Anybody may have created what is named there."""
    return f"{facts.kubectl} {shell_words('-n', facts.installed.namespace, *words)}"


def _settings_step(facts: Facts, deployment: Deployment) -> DoctorStep:
    error, container = facts.installed.settings_error, deployment.container
    if not error:
        flags = " ".join(container.words)
        return DoctorStep(StepCode.SettingsValid, PASSED, flags or "no flags")
    flag, words = error.partition(":")[0], container.words if container.args is None else container.args
    wrong = [(number, text) for number, text in enumerate(words) if text.partition("=")[0] == flag]
    command = _in_namespace(facts, "edit", "deployment", deployment.metadata.name or "")
    if len(wrong) == 1 and "=" in wrong[0][1]:  # else nobody knows which it is, or the value is another argument
        ((number, text),) = wrong
        path = f"{_arguments_at(deployment)}/{number}"
        unchanged = {"op": "test", "path": path, "value": text}
        command = _patched(facts, deployment, unchanged, {"op": "remove", "path": path})
    return DoctorStep(StepCode.SettingsValid, FAILED, error, commands=(command,))


def _image_step(facts: Facts, deployment: Deployment) -> DoctorStep:
    code, container = StepCode.ImageVersion, deployment.container
    repository, colon, tag = container.image.partition("@")[0].rpartition(":")
    if not colon or "/" in tag or tag == "latest":
        return DoctorStep(code, UNKNOWN, f"{container.image}: the tag names no version; the replicas tell theirs below")
    if tag.removeprefix("v") == facts.version:
        return DoctorStep(code, PASSED, container.image)
    image = f"{container.name}={repository}:{facts.version}"
    command = _in_namespace(facts, "set", "image", f"deployment/{deployment.metadata.name}", image)
    return DoctorStep(code, FAILED, f"{container.image}, but this is version {facts.version}", commands=(command,))


def _created_step(facts: Facts, deployment: Deployment, subject: str) -> DoctorStep:
    """Return what keeps a Deployment from creating pods, with its words, and the command that fixes it."""
    code, failure = StepCode.PodsCreated, deployment.failure
    if not failure:
        return DoctorStep(code, PASSED, "nothing refuses them", subject)
    for pattern, words, advice in _REFUSALS:
        if (found := re.search(pattern, failure)) is not None:
            command = words(facts, deployment, found)
            return DoctorStep(code, FAILED, failure, subject, (command,), advice)
    return DoctorStep(code, FAILED, failure, subject, (_described(facts, deployment),))


def _described(facts: Facts, deployment: Deployment) -> str:
    return _in_namespace(facts, "describe", "replicasets", "-l", _selector(deployment))


def _selector(deployment: Deployment) -> str:
    return ",".join(f"{key}={text}" for key, text in deployment.spec.selector.match_labels.items())


def _without_users(facts: Facts, deployment: Deployment, _: re.Match[str]) -> str:
    users = {"spec": {"template": {"spec": {"securityContext": dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))}}}}
    words = ("patch", "deployment", deployment.metadata.name or "", "--type", "merge", "-p", json.dumps(users))
    return _in_namespace(facts, *words)


def _without_priority(facts: Facts, deployment: Deployment, _: re.Match[str]) -> str:
    return _patched(facts, deployment, {"op": "remove", "path": "/spec/template/spec/priorityClassName"})


def _quota(facts: Facts, deployment: Deployment, refusal: re.Match[str]) -> str:
    scopes = [{"scopeName": "PriorityClass", "operator": "In", "values": refusal[1].split()}]
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "critical-pods", "namespace": facts.installed.namespace},
        "spec": {"hard": {"pods": "100"}, "scopeSelector": {"matchExpressions": scopes}},
    }  # fmt: skip
    return applied(facts.kubectl, quota)


def _account(facts: Facts, deployment: Deployment, _: re.Match[str]) -> str:
    return _in_namespace(facts, "create", "serviceaccount", account_of(deployment))


# What refuses pods, by its words -> the command that fixes it, and what else to say.
_REFUSALS: tuple[tuple[str, Callable[[Facts, Deployment, re.Match[str]], str], str], ...] = (
    (
        "security context constraint",
        _without_users,
        "OpenShift chooses users itself. So that the next installation does the same, add the component `openshift` to"
        " the manifests, or set `openshift: true` for the chart.",
    ),
    (
        r"insufficient quota to match these scopes: \[\{PriorityClass In \[([\w. -]+)\]",
        _quota,
        "Here, pods may have such a priority only where a ResourceQuota allows it. It counts the pods of all in this"
        " namespace. The component `quota` of the manifests, and `quota.enabled: true` of the chart, create it, too.",
    ),
    (
        r"exceeded quota: ([\w.-]+)",
        lambda facts, _, found: _in_namespace(facts, "edit", "resourcequota", found[1]),
        "The message has what was requested, used and allowed. Raise the limit, or request less.",
    ),
    (
        r"(?:maximum|minimum) \S+ usage per |max limit to request ratio",
        lambda facts, *_: _in_namespace(facts, "edit", "limitranges"),
        "A LimitRange of the namespace refuses what the containers request. Change either of them.",
    ),
    ("no PriorityClass with name", _without_priority, "Or create that PriorityClass."),
    ("error looking up service account", _account, "If other objects of the manifests lack, too, apply them again."),
    (
        "violates PodSecurity|admission webhook|ValidatingAdmissionPolicy",
        lambda facts, deployment, _: _in_namespace(facts, "edit", "deployment", deployment.metadata.name or ""),
        "Change what the message names, or let its owner allow it.",
    ),
)


def _replicas_step(facts: Facts, deployment: Deployment, subject: str) -> DoctorStep:
    code, wanted, ready = StepCode.ReplicasReady, deployment.spec.replicas, deployment.status.ready_replicas
    if wanted == 0:
        command = _in_namespace(facts, "scale", "deployment", deployment.metadata.name or "", "--replicas=2")
        return DoctorStep(code, FAILED, "the Deployment wants no replica", subject, (command,))
    if ready >= wanted:
        return DoctorStep(code, PASSED, f"{ready} of {wanted} are ready", subject)
    message = f"{ready} of {wanted} are ready"
    if deployment is not facts.installed.deployment or isinstance(facts.installed.pods, Unread):
        selector = ("-l", _selector(deployment))
        commands = (_in_namespace(facts, "describe", "pods", *selector),
                    _in_namespace(facts, "logs", *selector, "--tail=20", "--prefix"))  # fmt: skip
        return DoctorStep(code, FAILED, message, subject, commands)
    unready = [pod for pod in facts.installed.pods if not pod.ready]
    if not unready:
        return DoctorStep(
            code, FAILED, f"{message}, and there is no other pod", subject, (_described(facts, deployment),)
        )
    named = [f"{pod.metadata.name}: {pod.waiting or pod.status.phase}" for pod in unready]
    return DoctorStep(code, FAILED, "; ".join([message, *named]), subject, tuple(_looked_at(facts, unready)))


def _looked_at(facts: Facts, pods: Iterable[ReplicaPod]) -> Iterator[str]:
    """Yield the commands that show why pods are not ready: their events, and their logs if they have ever run."""
    for pod in pods:
        name = pod.metadata.name or ""
        yield _in_namespace(facts, "describe", "pod", name)
        if pod.status.phase == "Running":
            again = ("--previous",) if pod.waiting == "CrashLoopBackOff" else ()
            yield _in_namespace(facts, "logs", name, "--tail=20", *again)


def _service_step(facts: Facts) -> DoctorStep:
    code, installed = StepCode.ServiceLeadsHere, facts.installed
    service, deployment = installed.service, installed.deployment
    if isinstance(service, Unread):
        return unknown(code, service)
    labels, selector = dict[str, str](), {"app.kubernetes.io/name": "topodns", "app.kubernetes.io/component": "dns"}
    if isinstance(deployment, Deployment):
        labels = deployment.spec.template.metadata.labels or {}
        selector = deployment.spec.selector.match_labels
    if service is None and isinstance(deployment, Unread):
        return unknown(code, deployment)
    if service is None:
        ports = [{"name": name, "port": 53, "targetPort": name, "protocol": protocol}
                 for name, protocol in (("dns", "UDP"), ("dns-tcp", "TCP"))]  # fmt: skip
        made = {
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "topodns", "namespace": installed.namespace,
                         "labels": {"app.kubernetes.io/name": "topodns"}},
            "spec": {"selector": selector, "ports": ports},
        }  # fmt: skip
        message = f"no Service of topodns in namespace {installed.namespace}"
        return DoctorStep(code, FAILED, message, commands=(applied(facts.kubectl, made),))
    name = f"{installed.namespace}/{service.metadata.name}"
    wanted = service.spec.selector or {}
    if labels and not wanted.items() <= labels.items():
        patch = json.dumps([{"op": "replace", "path": "/spec/selector", "value": selector}])
        command = _in_namespace(facts, "patch", "service", service.metadata.name or "", "--type", "json", "-p", patch)
        message = f"Service {name} selects {_pairs(wanted)}, the replicas have {_pairs(labels)}"
        return DoctorStep(code, FAILED, message, commands=(command,))
    return DoctorStep(code, PASSED, f"Service {name}: {', '.join(service.spec.cluster_ips)}")


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={text}" for key, text in sorted(labels.items())) or "nothing"


def _rights_step(facts: Facts) -> DoctorStep:
    code, installed = StepCode.RightsGranted, facts.installed
    if isinstance(installed.rights, Unread):
        return unknown(code, installed.rights)
    account = account_of(installed.deployment)
    missing = [right for right, allowed in installed.rights.items() if not allowed]
    if not missing:
        rights = f"{len(installed.rights)} rights of ServiceAccount {installed.namespace}/{account}"
        return DoctorStep(code, PASSED, rights if installed.rights else "it reads a dump, and needs none")
    named = ", ".join(f"{right.verb} {'.'.join(filter(None, (right.resource, right.group)))}" for right in missing)
    message = f"ServiceAccount {installed.namespace}/{account} may not {named}"
    return DoctorStep(code, FAILED, message, commands=(applied(facts.kubectl, *_roles(installed, account, missing)),))


def account_of(deployment: Deployment | Unread | None) -> str:
    """Return the name of the ServiceAccount that topodns runs with."""
    return deployment.spec.template.spec.service_account_name if isinstance(deployment, Deployment) else "topodns"


def _roles(installed: Installed, account: str, rights: Iterable[Right]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a ClusterRole with rights, and its binding to the account."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [{"apiGroups": [group], "resources": [name], "verbs": given} for (group, name), given in verbs.items()]
    made = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": f"{installed.namespace}-{account}-added"}}
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": f"{installed.namespace}-{account}-added"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": installed.namespace}
    binding = {**made, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    return {**made, "kind": "ClusterRole", "rules": rules}, binding


def _crd_step(facts: Facts, name: str, crd: Crd | Unread | None) -> DoctorStep:
    code, ours = StepCode.ResourcesCurrent, CUSTOM_RESOURCES[name]
    if isinstance(crd, Unread):
        return unknown(code, crd, name)
    commands = (f"{facts.kubectl} apply --server-side --force-conflicts -f {ours.manifest}",)
    if crd is None:
        return DoctorStep(code, FAILED, "the CRD is not installed", name, commands)
    served = next((version for version in crd.spec.versions if version.name == VERSION and version.served), None)
    if served is None:
        versions = ", ".join(version.name for version in crd.spec.versions) or "none"
        return DoctorStep(code, FAILED, f"versions {versions} found, expected {VERSION} to be served", name, commands)
    fields = fields_of(served.schema.schema)
    if missing := sorted(ours.fields - fields):
        return DoctorStep(code, FAILED, f"the CRD is older: it has no {', '.join(missing)}", name, commands)
    newer = f"; newer than this program: {', '.join(sorted(fields - ours.fields))}" if fields > ours.fields else ""
    return DoctorStep(code, PASSED, f"{VERSION} with all fields{newer}", name)
