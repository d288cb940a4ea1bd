# SPDX-License-Identifier: Apache-2.0

"""What of topodns is installed: its Deployment, Service, rights and custom resources."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dnsserver.tools.doctor.custom_resources import CUSTOM_RESOURCES, VERSION, fields_of
from dnsserver.tools.doctor.facts import (
    Facts,
    Installed,
    Right,
    V1CustomResourceDefinition,
    V1Deployment,
    V1Pod,
    condition_of,
    container_of,
    is_ready,
    status_of,
    words_of,
)
from dnsserver.tools.doctor.providers import applied
from dnsserver.tools.doctor.steps import DoctorStep, StepCode, Unread, read_or
from locator.api.decoding import RESOURCES
from locator.model import Object

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
            yield code.unread(deployment)
    elif deployment is None:
        message = f"no Deployment of topodns in namespace {installed.namespace}"
        yield StepCode.DeploymentExists.failed(message, commands=(f"{facts.kubectl} apply -k {MANIFESTS}",))
    else:
        name = f"{installed.namespace}/{deployment.metadata.name}"
        yield StepCode.DeploymentExists.passed(f"Deployment {name}")
        yield _settings_step(facts, deployment)
        yield _image_step(facts, deployment)
        for found in (deployment, *installed.others):
            subject = "" if found is deployment else f"{installed.namespace}/{found.metadata.name}"
            yield _created_step(facts, found, subject)
            yield _replicas_step(facts, found, subject)
    if installed.pods_unread is not None:
        number = len(read_or(installed.pods, ()))
        message = f"{number} found by EndpointSlices; its pods cannot be listed: {installed.pods_unread.why}"
        yield StepCode.ReplicasReady.unknown(message, "its pods")
    if deployment is None and installed.service is None:
        for code in (StepCode.ServiceLeadsHere, StepCode.RightsGranted, StepCode.ResourcesCurrent):
            yield code.unread(NOT_INSTALLED)
        return
    yield _service_step(facts)
    yield _rights_step(facts)
    for name in CUSTOM_RESOURCES:
        if name in installed.crds:
            yield _crd_step(facts, name, installed.crds[name])


def deployment_name(installed: Installed) -> str:
    """Return the name of the Deployment, that of the manifests if it is not known."""
    deployment = read_or(installed.deployment, None)
    return "topodns" if deployment is None else str(deployment.metadata.name)


def rolled_out(facts: Facts) -> str:
    """Return the command that replaces all replicas."""
    return facts.command_here("rollout restart deployment NAME", NAME=deployment_name(facts.installed))


def _arguments_at(deployment: V1Deployment) -> str:
    """Return where a JSON patch finds the arguments of topodns."""
    container = container_of(deployment)
    position = deployment.spec.template.spec.containers.index(container)
    field = "command" if container.args is None and container.command else "args"
    return f"/spec/template/spec/containers/{position}/{field}"


def added_argument(facts: Facts, argument: str) -> tuple[str, ...]:
    """Return the command that gives the Deployment another flag; none if there is no Deployment."""
    deployment = read_or(facts.installed.deployment, None)
    if deployment is None:
        return ()
    path = _arguments_at(deployment)
    had = bool(words_of(container_of(deployment)))
    return (_patched(facts, deployment, {"op": "add", "path": f"{path}/-" if had else path,
                                         "value": argument if had else [argument]}),)  # fmt: skip


def restarted(facts: Facts, pod: str) -> tuple[str, ...]:
    """Return the command that lets a pod (``namespace/name``) of the cluster's DNS start again; none for an address."""
    namespace, slash, name = pod.partition("/")
    command = facts.command("-n NAMESPACE delete pod NAME --wait=false", NAMESPACE=namespace, NAME=name)
    return (command,) if slash else ()


def _patched(facts: Facts, deployment: V1Deployment, *operations: Mapping[str, object]) -> str:
    patch = json.dumps(operations)
    return facts.command_here("patch deployment NAME --type json -p PATCH", NAME=deployment.metadata.name, PATCH=patch)


def _edited(facts: Facts, deployment: V1Deployment) -> str:
    return facts.command_here("edit deployment NAME", NAME=deployment.metadata.name)


def _settings_step(facts: Facts, deployment: V1Deployment) -> DoctorStep:
    error, container = facts.installed.settings_error, container_of(deployment)
    if not error:
        flags = " ".join(words_of(container))
        return StepCode.SettingsValid.passed(flags or "no flags")
    flag, words = error.partition(":")[0], words_of(container) if container.args is None else container.args
    wrong = [(number, text) for number, text in enumerate(words) if text.partition("=")[0] == flag]
    command = _edited(facts, deployment)
    if len(wrong) == 1 and "=" in wrong[0][1]:  # else nobody knows which it is, or the value is another argument
        ((number, text),) = wrong
        path = f"{_arguments_at(deployment)}/{number}"
        unchanged = {"op": "test", "path": path, "value": text}
        command = _patched(facts, deployment, unchanged, {"op": "remove", "path": path})
    return StepCode.SettingsValid.failed(error, commands=(command,))


def _image_step(facts: Facts, deployment: V1Deployment) -> DoctorStep:
    code, container = StepCode.ImageVersion, container_of(deployment)
    image = container.image or ""
    repository, colon, tag = image.partition("@")[0].rpartition(":")
    if not colon or "/" in tag or tag == "latest":
        return code.unknown(f"{image}: the tag names no version; the replicas tell theirs below")
    if tag.removeprefix("v") == facts.version:
        return code.passed(image)
    current = f"{container.name}={repository}:{facts.version}"
    command = facts.command_here("set image deployment/NAME IMAGE", NAME=deployment.metadata.name, IMAGE=current)
    return code.failed(f"{image}, but this is version {facts.version}", commands=(command,))


def _created_step(facts: Facts, deployment: V1Deployment, subject: str) -> DoctorStep:
    """Return what keeps a Deployment from creating pods, in the words of who refuses them, and what fixes it."""
    code, failed = StepCode.PodsCreated, condition_of(deployment, "ReplicaFailure")
    if failed is None or failed.status != "True":
        return code.passed("nothing refuses them", subject)
    failure = f"{failed.reason or ''}: {failed.message or ''}"
    for pattern, words, advice in _REFUSALS:
        if (found := re.search(pattern, failure)) is not None:
            command = words(facts, deployment, found)
            return code.failed(failure, subject, (command,), advice)
    return code.failed(failure, subject, (_described(facts, deployment),))


def _described(facts: Facts, deployment: V1Deployment) -> str:
    return facts.command_here("describe replicasets -l SELECTOR", SELECTOR=selector_of(deployment))


def selector_of(deployment: V1Deployment) -> str:
    """Return the selector of the pods of a Deployment, as a query has it."""
    return ",".join(f"{key}={text}" for key, text in (deployment.spec.selector.match_labels or {}).items())


def _without_users(facts: Facts, deployment: V1Deployment, _: re.Match[str]) -> str:
    users = {"spec": {"template": {"spec": {"securityContext": dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))}}}}
    template = "patch deployment NAME --type merge -p PATCH"
    return facts.command_here(template, NAME=deployment.metadata.name, PATCH=json.dumps(users))


def _without_priority(facts: Facts, deployment: V1Deployment, _: re.Match[str]) -> str:
    return _patched(facts, deployment, {"op": "remove", "path": "/spec/template/spec/priorityClassName"})


def _quota(facts: Facts, _: V1Deployment, refusal: re.Match[str]) -> str:
    scopes = [{"scopeName": "PriorityClass", "operator": "In", "values": refusal[1].split()}]
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota",
        "metadata": {"name": "critical-pods", "namespace": facts.installed.namespace},
        "spec": {"hard": {"pods": "100"}, "scopeSelector": {"matchExpressions": scopes}},
    }  # fmt: skip
    return applied(facts.kubectl, quota)


def _account(facts: Facts, deployment: V1Deployment, _: re.Match[str]) -> str:
    return facts.command_here("create serviceaccount NAME", NAME=account_of(deployment))


# What refuses pods, by its words -> the command that fixes it, and what else to say.
_REFUSALS: tuple[tuple[str, Callable[[Facts, V1Deployment, re.Match[str]], str], str], ...] = (
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
        lambda facts, _, found: facts.command_here("edit resourcequota NAME", NAME=found[1]),
        "The message has what was requested, used and allowed. Raise the limit, or request less.",
    ),
    (
        r"(?:maximum|minimum) \S+ usage per |max limit to request ratio",
        lambda facts, *_: facts.command_here("edit limitranges"),
        "A LimitRange of the namespace refuses what the containers request. Change either of them.",
    ),
    ("no PriorityClass with name", _without_priority, "Or create that PriorityClass."),
    ("error looking up service account", _account, "If other objects of the manifests lack, too, apply them again."),
    (
        "violates PodSecurity|admission webhook|ValidatingAdmissionPolicy",
        lambda facts, deployment, _: _edited(facts, deployment),
        "Change what the message names, or let its owner allow it.",
    ),
)


def _replicas_step(facts: Facts, deployment: V1Deployment, subject: str) -> DoctorStep:
    code, wanted, ready = StepCode.ReplicasReady, deployment.spec.replicas, deployment.status.ready_replicas or 0
    wanted = 1 if wanted is None else wanted
    if wanted == 0:
        command = facts.command_here("scale deployment NAME --replicas=2", NAME=deployment.metadata.name)
        return code.failed("the Deployment wants no replica", subject, (command,))
    message = f"{ready} of {wanted} are ready"
    if ready >= wanted:
        return code.passed(message, subject)
    if deployment is not facts.installed.deployment or isinstance(facts.installed.pods, Unread):
        selector = selector_of(deployment)
        commands = (facts.command_here("describe pods -l SELECTOR", SELECTOR=selector),
                    facts.command_here("logs -l SELECTOR --tail=20 --prefix", SELECTOR=selector))  # fmt: skip
        return code.failed(message, subject, commands)
    unready = [pod for pod in facts.installed.pods if not is_ready(pod)]
    if not unready:
        return code.failed(f"{message}, and there is no other pod", subject, (_described(facts, deployment),))
    named = [f"{pod.metadata.name}: {status_of(pod)}" for pod in unready]
    return code.failed("; ".join([message, *named]), subject, tuple(_looked_at(facts, unready)))


def _looked_at(facts: Facts, pods: Iterable[V1Pod]) -> Iterator[str]:
    """Yield the commands that show why pods are not ready: their events, and their logs if they have ever run."""
    for pod in pods:
        yield facts.command_here("describe pod NAME", NAME=pod.metadata.name)
        if pod.status.phase == "Running":
            again = " --previous" if status_of(pod) == "CrashLoopBackOff" else ""
            yield facts.command_here(f"logs NAME --tail=20{again}", NAME=pod.metadata.name)


def _service_step(facts: Facts) -> DoctorStep:
    code, installed = StepCode.ServiceLeadsHere, facts.installed
    service, deployment = installed.service, installed.deployment
    if isinstance(service, Unread):
        return code.unread(service)
    labels, selector = dict[str, str](), {"app.kubernetes.io/name": "topodns", "app.kubernetes.io/component": "dns"}
    if isinstance(deployment, Unread):
        if service is None:
            return code.unread(deployment)
    elif deployment is not None:
        labels = deployment.spec.template.metadata.labels or {}
        selector = deployment.spec.selector.match_labels or {}
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
        return code.failed(message, commands=(applied(facts.kubectl, made),))
    name = f"{installed.namespace}/{service.metadata.name}"
    wanted = service.spec.selector or {}
    if labels and not wanted.items() <= labels.items():
        patch = json.dumps([{"op": "replace", "path": "/spec/selector", "value": selector}])
        template = "patch service NAME --type json -p PATCH"
        command = facts.command_here(template, NAME=service.metadata.name, PATCH=patch)
        message = f"Service {name} selects {_pairs(wanted)}, the replicas have {_pairs(labels)}"
        return code.failed(message, commands=(command,))
    return code.passed(f"Service {name}: {', '.join(service.spec.cluster_ips or ())}")


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={text}" for key, text in sorted(labels.items())) or "nothing"


def _rights_step(facts: Facts) -> DoctorStep:
    code, installed = StepCode.RightsGranted, facts.installed
    if isinstance(installed.rights, Unread):
        return code.unread(installed.rights)
    account = account_of(installed.deployment)
    missing = [right for right, allowed in installed.rights.items() if not allowed]
    if not missing:
        rights = f"{len(installed.rights)} rights of ServiceAccount {installed.namespace}/{account}"
        return code.passed(rights if installed.rights else "it reads a dump, and needs none")
    named = ", ".join(f"{right.verb} {'.'.join(filter(None, (right.resource, right.group)))}" for right in missing)
    message = f"ServiceAccount {installed.namespace}/{account} may not {named}"
    return code.failed(message, commands=(applied(facts.kubectl, *_roles(installed, account, missing)),))


def account_of(deployment: V1Deployment | Unread | None) -> str:
    """Return the name of the ServiceAccount that topodns runs with."""
    found = read_or(deployment, None)
    return "topodns" if found is None else found.spec.template.spec.service_account_name or "default"


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


def _crd_step(facts: Facts, name: str, crd: V1CustomResourceDefinition | Unread | None) -> DoctorStep:
    code, ours = StepCode.ResourcesCurrent, CUSTOM_RESOURCES[name]
    if isinstance(crd, Unread):
        return code.unread(crd, name)
    commands = (f"{facts.kubectl} apply --server-side --force-conflicts -f {ours.manifest}",)
    if crd is None:
        return code.failed("the CRD is not installed", name, commands)
    served = next((version for version in crd.spec.versions if version.name == VERSION and version.served), None)
    if served is None:
        versions = ", ".join(version.name for version in crd.spec.versions) or "none"
        return code.failed(f"versions {versions} found, expected {VERSION} to be served", name, commands)
    schema = None if served.schema is None else served.schema.open_apiv3_schema
    fields = frozenset[str]() if schema is None else fields_of(schema.model_dump(by_alias=True))
    if missing := sorted(ours.fields - fields):
        return code.failed(f"the CRD is older: it has no {', '.join(missing)}", name, commands)
    newer = f"; newer than this program: {', '.join(sorted(fields - ours.fields))}" if fields > ours.fields else ""
    return code.passed(f"{VERSION} with all fields{newer}", name)
