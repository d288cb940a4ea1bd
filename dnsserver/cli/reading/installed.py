# SPDX-License-Identifier: Apache-2.0

"""Reads what of topodns is installed: its Deployment with the settings, its Service, rights and custom resources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from kubernetes.client import (
    V1ConfigMapList,
    V1CustomResourceDefinition,
    V1DeploymentList,
    V1EndpointSliceList,
    V1ObjectMeta,
    V1Pod,
    V1PodCondition,
    V1PodList,
    V1PodSpec,
    V1PodStatus,
    V1SelfSubjectAccessReview,
    V1SelfSubjectReview,
    V1ServiceList,
    V1SubjectAccessReview,
)

from dnsserver.cli.errors import WrongInput
from dnsserver.cli.parser import CommandParser
from dnsserver.cli.reading.requests import NotUnderstood, create, get, read, read_items
from dnsserver.cli.settings_flags import add_settings, file_content, given_settings
from dnsserver.net.sockets import in_pod
from dnsserver.programs.from_settings import store_of
from dnsserver.settings.settings import Settings
from dnsserver.settings.values import DNS_PORT
from dnsserver.tools.doctor.custom_resources import CUSTOM_RESOURCES
from dnsserver.tools.doctor.facts import Installed, Right, V1ConfigMap, V1Deployment, V1Service, container_of, words_of
from dnsserver.tools.doctor.installation import account_of, needed_rights, selector_of
from dnsserver.tools.doctor.steps import Unread, read_or
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused
from locator.model import Object

DEFAULT_NAMESPACE = "topodns"  # of the manifests, where the Deployment and the Service are called the same
FIRST_PROCESS = Path("/proc/1/cmdline")
NAME_LABEL = "app.kubernetes.io/name"
LABEL = f"{NAME_LABEL}={DEFAULT_NAMESPACE}"


async def read_installed(client: ApiClient, namespace: str | None) -> Installed:
    """Read what is in *namespace*, or in that of the Deployment with the usual label, or in the usual one."""
    deployments = await _deployments(client, namespace)
    deployment = deployments if isinstance(deployments, Unread) else _serving(deployments)
    serving = read_or(deployment, None)
    namespace = namespace or (serving and serving.metadata.namespace) or DEFAULT_NAMESPACE
    core = f"/api/v1/namespaces/{namespace}"
    services = await read_items(client, f"{core}/services", V1ServiceList)
    pods: Sequence[V1Pod] | Unread = ()
    own = own_settings()
    settings, error = Settings(), ""
    if serving is not None:
        pods = await read_items(client, f"{core}/pods", V1PodList, selector_of(serving))
        config_maps = await read_items(client, f"{core}/configmaps", V1ConfigMapList)
        try:
            settings = settings_in(serving, read_or(config_maps, ()))
        except WrongInput as wrong:
            error = str(wrong)
    elif isinstance(deployment, Unread):
        settings = own or settings
        pods = await read_items(client, f"{core}/pods", V1PodList, f"{LABEL},app.kubernetes.io/component=dns")
    service = services if isinstance(services, Unread) else _service(services, deployment)
    pods_unread = pods if isinstance(pods, Unread) else None
    if pods_unread is not None and (leading := read_or(service, None)) is not None:
        pods = await _endpoints(client, namespace, leading.metadata.name)
        pods_unread = None if isinstance(pods, Unread) else pods_unread
    kinds = () if settings.snapshot else tuple(store_of(settings).kinds)
    account = account_of(deployment)
    needed = [name for name, ours in CUSTOM_RESOURCES.items() if ours.kind in kinds]
    return Installed(
        namespace=namespace,
        deployment=deployment,
        service=service,
        pods=pods,
        settings=settings,
        settings_error=error,
        settings_known=serving is not None or own is not None,
        rights=await read(partial(_rights, client, f"system:serviceaccount:{namespace}:{account}", kinds)),
        crds={name: await read(partial(_crd, client, name)) for name in needed},
        others=() if isinstance(deployments, Unread) else _others(deployments, namespace),
        pods_unread=pods_unread,
    )


async def _deployments(client: ApiClient, namespace: str | None) -> Sequence[V1Deployment] | Unread:
    """Return the Deployments in *namespace*, or those with the usual label; some may read those of one namespace."""
    path = f"/apis/apps/v1/namespaces/{namespace or DEFAULT_NAMESPACE}/deployments"
    if namespace is not None:
        return await read_items(client, path, V1DeploymentList)
    found = await read_items(client, "/apis/apps/v1/deployments", V1DeploymentList, LABEL)
    if isinstance(found, Unread):
        usual = await read_items(client, path, V1DeploymentList)
        return found if isinstance(usual, Unread) or _serving(usual) is None else usual
    return found


def _serving(deployments: Sequence[V1Deployment]) -> V1Deployment | None:
    """Return the Deployment that runs ``serve``, that of the usual namespace first."""
    serving = [found for found in deployments if "serve" in words_of(container_of(found))]
    usual = [found for found in serving if found.metadata.namespace == DEFAULT_NAMESPACE]
    return next(iter((*usual, *serving)), None)


def _others(deployments: Sequence[V1Deployment], namespace: str) -> list[V1Deployment]:
    """Return the Deployments of a namespace that run the controller or the webhook."""
    return [
        found
        for found in deployments
        if found.metadata.namespace == namespace
        and (found.metadata.labels or {}).get(NAME_LABEL) == DEFAULT_NAMESPACE
        and not {"controller", "webhook"}.isdisjoint(words_of(container_of(found)))
    ]


async def _endpoints(client: ApiClient, namespace: str, service: str) -> Sequence[V1Pod] | Unread:
    """Return the pods behind a Service, as its EndpointSlices have them, for whoever may not list pods."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slices = await read_items(client, path, V1EndpointSliceList, f"kubernetes.io/service-name={service}")
    if isinstance(slices, Unread):
        return slices
    found = dict[str, V1Pod]()
    for endpoint in (endpoint for part in slices for endpoint in part.endpoints or ()):
        target, conditions = endpoint.target_ref, endpoint.conditions
        if target is not None and target.kind == "Pod":
            ready = "False" if conditions is not None and conditions.ready is False else "True"
            pod = V1Pod(
                metadata=V1ObjectMeta(name=target.name or "", namespace=namespace),
                spec=V1PodSpec(node_name=endpoint.node_name, containers=[]),
                status=V1PodStatus(
                    phase="Running",
                    pod_ip=endpoint.addresses[0],
                    conditions=[V1PodCondition(type="Ready", status=ready)],
                ),
            )
            found.setdefault(target.name or "", pod)
    return list(found.values())


def _service(services: Sequence[V1Service], deployment: V1Deployment | Unread | None) -> V1Service | None:
    """Return the Service that leads to the Deployment, else the one that is called like it.

    If the Deployment is not known, that is the Service with the usual label.
    """
    dns = [found for found in services if any(port.port == DNS_PORT for port in found.spec.ports or ())]
    known = read_or(deployment, None)
    if known is None:
        return next(
            (found for found in dns if (found.metadata.labels or {}).get(NAME_LABEL) == DEFAULT_NAMESPACE), None
        )
    labels = known.spec.template.metadata.labels or {}
    leading = [found for found in dns if found.spec.selector and found.spec.selector.items() <= labels.items()]
    named = [found for found in dns if found.metadata.name == known.metadata.name]
    return next(iter((*leading, *named)), None)


def settings_in(deployment: V1Deployment, config_maps: Sequence[V1ConfigMap]) -> Settings:
    """Return the settings with which a Deployment runs ``serve``. Raises WrongInput.

    A configuration file is read from the ConfigMap that is mounted there.
    """
    container = container_of(deployment)
    environment = {variable.name: variable.value for variable in container.env or () if variable.value is not None}

    def content(path: str) -> bytes:
        volumes = {volume.name: volume.config_map for volume in deployment.spec.template.spec.volumes or ()}
        for mount in container.volume_mounts or ():
            reference = volumes.get(mount.name)
            if reference is not None and path.startswith(f"{mount.mount_path.rstrip('/')}/"):
                key = path[len(mount.mount_path.rstrip("/")) + 1 :]
                data = next((found.data for found in config_maps if found.metadata.name == reference.name), None) or {}
                if key in data:
                    return str(data[key]).encode()
        raise WrongInput(f"{path}: no ConfigMap with this file is mounted there, expected a configuration file")

    return _serve_settings(words_of(container), environment, content)


def own_settings() -> Settings | None:
    """Return the settings of the server in whose container this runs, as ``kubectl exec`` does; None elsewhere."""
    try:
        words = FIRST_PROCESS.read_bytes().decode(errors="replace").removesuffix("\0").split("\0") if in_pod() else []
        return _serve_settings(words, os.environ, file_content) if "serve" in words else None
    except (OSError, WrongInput):
        return None


def _serve_settings(words: list[str], environment: Mapping[str, str], read: Callable[[str], bytes]) -> Settings:
    """Return the settings of a command line of ``topodns serve``. Raises WrongInput."""
    parser = CommandParser(prog="topodns serve", description="")
    add_settings(parser, "serve")
    given, unknown = parser.parse(words[words.index("serve") + 1 :] if "serve" in words else words)
    if unknown:
        raise WrongInput(f"{unknown[0].partition('=')[0]}: unknown flag of serve")
    return given_settings(given, environment, read)[0]


def _rights(client: ApiClient, user: str, kinds: Sequence[type[Object]]) -> dict[Right, bool]:
    """Return which rights *user* has, as the API server says. Raises Refused, Unreachable, NotUnderstood.

    Whoever may not ask about others may ask about itself.
    """
    found = dict[Right, bool]()
    for right in needed_rights(kinds):
        spec = {"resourceAttributes": right._asdict()}
        try:
            found[right] = _review(client, V1SubjectAccessReview, {"user": user, **spec})
        except Refused:
            if _own_name(client) != user:
                raise
            found[right] = _review(client, V1SelfSubjectAccessReview, spec)
    return found


def _review(client: ApiClient, kind: type[Any], spec: Mapping[str, object]) -> bool:
    name = kind.__name__.removeprefix("V1")
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": name, "spec": spec}
    status = create(client, f"/apis/authorization.k8s.io/v1/{name.lower()}s", body, kind).status
    if status is None:
        raise NotUnderstood(f"{kind.__name__}: no status found")
    return bool(status.allowed)


def _own_name(client: ApiClient) -> str | None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    status = create(client, path, body, V1SelfSubjectReview).status
    return status.user_info.username if status and status.user_info else None


def _crd(client: ApiClient, name: str) -> Any:
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    try:
        return get(client, path, V1CustomResourceDefinition)
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
