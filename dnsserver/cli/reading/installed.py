# SPDX-License-Identifier: Apache-2.0

"""Reads what of topodns is installed: its Deployment with the settings, its Service, rights and custom resources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path

from msgspec.json import Decoder

from dnsserver.cli.errors import WrongInput
from dnsserver.cli.parser import CommandParser
from dnsserver.cli.reading.requests import SILENCE, get, read
from dnsserver.cli.settings_flags import add_settings, file_content, given_settings
from dnsserver.net.sockets import in_pod
from dnsserver.programs.from_settings import store_of
from dnsserver.settings.fields import Settings
from dnsserver.settings.values import DNS_PORT
from dnsserver.tools.doctor import objects
from dnsserver.tools.doctor.custom_resources import CUSTOM_RESOURCES
from dnsserver.tools.doctor.facts import Installed, Right
from dnsserver.tools.doctor.installation import account_of, needed_rights
from dnsserver.tools.doctor.objects import (
    Condition,
    ConfigMap,
    Crd,
    Deployment,
    Items,
    PlainService,
    PodMeta,
    PodSpec,
    PodStatus,
    ReplicaPod,
    decoded,
)
from dnsserver.tools.doctor.steps import Unread
from locator.cluster.api_client import ApiClient
from locator.cluster.responses import Refused
from locator.model import Object

DEFAULT_NAMESPACE = "topodns"  # of the manifests, where the Deployment and the Service are called the same
FIRST_PROCESS = Path("/proc/1/cmdline")
NAME_LABEL = "app.kubernetes.io/name"
LABEL = f"{NAME_LABEL}={DEFAULT_NAMESPACE}"
_REVIEWS = "/apis/authorization.k8s.io/v1"


async def read_installed(client: ApiClient, namespace: str | None) -> Installed:
    """Read what is in *namespace*, or in that of the Deployment with the usual label, or in the usual one."""
    where, labels = (f"/namespaces/{namespace}", "") if namespace else ("", LABEL)
    deployments = await _items(client, f"/apis/apps/v1{where}/deployments", objects.DEPLOYMENTS, labels)
    if isinstance(deployments, Unread) and namespace is None:  # some may look at this namespace alone
        usual = await _items(client, f"/apis/apps/v1/namespaces/{DEFAULT_NAMESPACE}/deployments", objects.DEPLOYMENTS)
        deployments = deployments if isinstance(usual, Unread) or _serving(usual) is None else usual
    deployment = deployments if isinstance(deployments, Unread) else _serving(deployments)
    if namespace is None and isinstance(deployment, Deployment):
        namespace = deployment.metadata.namespace
    namespace = namespace or DEFAULT_NAMESPACE
    core = f"/api/v1/namespaces/{namespace}"
    services = await _items(client, f"{core}/services", objects.SERVICES)
    pods: Sequence[ReplicaPod] | Unread = ()
    own = own_settings()
    settings, error = Settings(), ""
    if isinstance(deployment, Deployment):
        selector = ",".join(f"{key}={text}" for key, text in deployment.spec.selector.match_labels.items())
        pods = await _items(client, f"{core}/pods", objects.PODS, selector)
        config_maps = await _items(client, f"{core}/configmaps", objects.CONFIG_MAPS)
        try:
            settings = settings_in(deployment, () if isinstance(config_maps, Unread) else config_maps)
        except WrongInput as wrong:
            error = str(wrong)
    elif isinstance(deployment, Unread):
        settings = own or settings
        pods = await _items(client, f"{core}/pods", objects.PODS, f"{LABEL},app.kubernetes.io/component=dns")
    service = services if isinstance(services, Unread) else _service(services, deployment)
    pods_unread = pods if isinstance(pods, Unread) else None
    if pods_unread is not None and isinstance(service, PlainService):
        pods = await _endpoints(client, namespace, service.metadata.name or "")
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
        settings_known=isinstance(deployment, Deployment) or own is not None,
        rights=await read(partial(_rights, client, namespace, account, kinds)),
        crds={name: await read(partial(_crd, client, name)) for name in needed},
        others=() if isinstance(deployments, Unread) else _others(deployments, namespace),
        pods_unread=pods_unread,
    )


async def _items(
    client: ApiClient, path: str, decoder: Decoder[Items[objects.T]], labels: str = ""
) -> Sequence[objects.T] | Unread:
    found = await read(partial(get, client, path, decoder, labels=labels))
    return found if isinstance(found, Unread) else found.items


def _serving(deployments: Sequence[Deployment]) -> Deployment | None:
    """Return the Deployment that runs ``serve``, that of the usual namespace first."""
    serving = [found for found in deployments if "serve" in found.container.words]
    usual = [found for found in serving if found.metadata.namespace == DEFAULT_NAMESPACE]
    return next(iter((*usual, *serving)), None)


def _others(deployments: Sequence[Deployment], namespace: str) -> list[Deployment]:
    """Return the Deployments of a namespace that run the controller or the webhook."""
    return [
        found
        for found in deployments
        if found.metadata.namespace == namespace
        and (found.metadata.labels or {}).get(NAME_LABEL) == DEFAULT_NAMESPACE
        and not {"controller", "webhook"}.isdisjoint(found.container.words)
    ]


async def _endpoints(client: ApiClient, namespace: str, service: str) -> Sequence[ReplicaPod] | Unread:
    """Return the pods behind a Service, as its EndpointSlices have them, for whoever may not list pods."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    slices = await _items(client, path, objects.SLICES, f"kubernetes.io/service-name={service}")
    if isinstance(slices, Unread):
        return slices
    found = dict[str, ReplicaPod]()
    for endpoint in (endpoint for part in slices for endpoint in part.endpoints or ()):
        target = endpoint.target_ref
        if target is not None and target.kind == "Pod":
            ready = Condition("Ready", "False" if endpoint.conditions.ready is False else "True")
            status = PodStatus("Running", endpoint.addresses[0], [ready])
            found.setdefault(
                target.name, ReplicaPod(PodMeta(target.name, namespace), PodSpec(endpoint.node_name or ""), status)
            )
    return list(found.values())


def _service(services: Sequence[PlainService], deployment: Deployment | Unread | None) -> PlainService | None:
    """Return the Service that leads to the Deployment, else the one that is called like it.

    If the Deployment is not known, that is the Service with the usual label.
    """
    dns = [found for found in services if any(port.port == DNS_PORT for port in found.spec.ports or ())]
    if not isinstance(deployment, Deployment):
        return next(
            (found for found in dns if (found.metadata.labels or {}).get(NAME_LABEL) == DEFAULT_NAMESPACE), None
        )
    labels = deployment.spec.template.metadata.labels or {}
    leading = [found for found in dns if found.spec.selector and found.spec.selector.items() <= labels.items()]
    named = [found for found in dns if found.metadata.name == deployment.metadata.name]
    return next(iter((*leading, *named)), None)


def settings_in(deployment: Deployment, config_maps: Sequence[ConfigMap]) -> Settings:
    """Return the settings with which a Deployment runs ``serve``. Raises WrongInput.

    A configuration file is read from the ConfigMap that is mounted there.
    """
    container = deployment.container
    environment = {variable.name: variable.value for variable in container.env or () if variable.value is not None}

    def content(path: str) -> bytes:
        volumes = {volume.name: volume.config_map for volume in deployment.spec.template.spec.volumes or ()}
        for mount in container.volume_mounts or ():
            reference = volumes.get(mount.name)
            if reference is not None and path.startswith(f"{mount.mount_path.rstrip('/')}/"):
                key = path[len(mount.mount_path.rstrip("/")) + 1 :]
                data = next((found.data for found in config_maps if found.metadata.name == reference.name), None) or {}
                if key in data:
                    return data[key].encode()
        raise WrongInput(f"{path}: no ConfigMap with this file is mounted there, expected a configuration file")

    return _serve_settings(container.words, environment, content)


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


def _rights(client: ApiClient, namespace: str, account: str, kinds: Sequence[type[Object]]) -> dict[Right, bool]:
    """Return which rights topodns has, as the API server says. Raises Refused, Unreachable, NotUnderstood.

    Whoever may not ask about others may ask about itself.
    """
    user, found = f"system:serviceaccount:{namespace}:{account}", dict[Right, bool]()
    for right in needed_rights(kinds):
        attributes = {"group": right.group, "resource": right.resource, "verb": right.verb}
        try:
            found[right] = _review(client, "SubjectAccessReview", {"user": user, "resourceAttributes": attributes})
        except Refused:
            if _own_name(client) != user:
                raise
            found[right] = _review(client, "SelfSubjectAccessReview", {"resourceAttributes": attributes})
    return found


def _review(client: ApiClient, kind: str, spec: dict[str, object]) -> bool:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
    answer = client.request("POST", f"{_REVIEWS}/{kind.lower()}s", body=body, timeout=SILENCE)
    return decoded(objects.ACCESS, answer).status.allowed


def _own_name(client: ApiClient) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body, timeout=SILENCE)
    return decoded(objects.SELF, answer).status.user_info.username


def _crd(client: ApiClient, name: str) -> Crd | None:
    try:
        return get(client, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", objects.CRD)
    except Refused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
