# SPDX-License-Identifier: Apache-2.0

"""The objects that only ``topodns doctor`` reads, as typed structs."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder

from locator.api.schema import AnnotatedMeta

T = TypeVar("T")


class ConfigMap(Struct):
    """A ConfigMap."""

    metadata: AnnotatedMeta
    data: dict[str, str] | None = None


class EnvironmentVariable(Struct):
    """A variable of a container; its value is None if it comes from elsewhere."""

    name: str
    value: str | None = None


class VolumeMount(Struct, rename="camel"):
    """Where a container sees a volume."""

    name: str
    mount_path: str


class Container(Struct, rename="camel"):
    """A container of a pod template."""

    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[EnvironmentVariable] | None = None
    volume_mounts: list[VolumeMount] | None = None

    @property
    def words(self) -> list[str]:
        """The command line, as far as the image does not give it."""
        return [*(self.command or ()), *(self.args or ())]


class NamedReference(Struct):
    """A reference to an object of the same namespace."""

    name: str | None = None


class Volume(Struct, rename="camel"):
    """A volume of a pod; ``config_map`` is None for other kinds."""

    name: str
    config_map: NamedReference | None = None


class TemplateSpec(Struct, rename="camel"):
    """The spec of a pod template."""

    containers: list[Container]
    service_account_name: str = "default"
    volumes: list[Volume] | None = None


class Template(Struct):
    """A pod template."""

    metadata: AnnotatedMeta
    spec: TemplateSpec


class LabelSelector(Struct, rename="camel"):
    """A selector by labels."""

    match_labels: dict[str, str] = {}


class DeploymentSpec(Struct):
    """The spec of a Deployment."""

    template: Template
    selector: LabelSelector
    replicas: int = 1


class Condition(Struct):
    """A condition of an object."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class DeploymentStatus(Struct, rename="camel"):
    """The status of a Deployment."""

    ready_replicas: int = 0
    conditions: list[Condition] | None = None


class Deployment(Struct):
    """A Deployment."""

    metadata: AnnotatedMeta
    spec: DeploymentSpec
    status: DeploymentStatus = field(default_factory=DeploymentStatus)

    @property
    def container(self) -> Container:
        """The container of topodns: that of this name, else the first one that runs ``serve``, else the first."""
        containers = self.spec.template.spec.containers
        named = [container for container in containers if container.name == "topodns"]
        serving = [container for container in containers if "serve" in container.words]
        return [*named, *serving, *containers][0]

    @property
    def failure(self) -> str:
        """Why it cannot create pods, in the words of who refuses them; empty if nobody does."""
        failed = [found for found in self.status.conditions or () if found.type == "ReplicaFailure"]
        return next((f"{found.reason}: {found.message}" for found in failed if found.status == "True"), "")


class Waiting(Struct):
    """Why a container does not run."""

    reason: str = ""


class ContainerState(Struct):
    """The state of a container."""

    waiting: Waiting | None = None


class ContainerStatus(Struct):
    """The status of a container."""

    state: ContainerState = field(default_factory=ContainerState)


class PodStatus(Struct, rename="camel"):
    """The status of a Pod."""

    phase: str = ""
    pod_ip: str = field(name="podIP", default="")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodSpec(Struct, rename="camel"):
    """The spec of a Pod."""

    node_name: str = ""


class PodMeta(AnnotatedMeta):
    """The metadata of a Pod, with the time at which it was told to end."""

    deleted: str | None = field(name="deletionTimestamp", default=None)


class ReplicaPod(Struct):
    """A Pod of topodns."""

    metadata: PodMeta
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def runs(self) -> bool:
        """Whether it runs, and was not told to end."""
        return self.status.phase == "Running" and self.metadata.deleted is None

    @property
    def ready(self) -> bool:
        """Whether it gets queries."""
        return any(
            condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions or ()
        )

    @property
    def waiting(self) -> str:
        """Why a container of it does not run, empty if they do."""
        states = [status.state.waiting for status in self.status.container_statuses or ()]
        return next((state.reason for state in states if state is not None), "")


class TargetReference(Struct):
    """The object that an endpoint is."""

    kind: str = ""
    name: str = ""


class EndpointConditions(Struct):
    """What is known of an endpoint; what is not said of ``ready`` is true."""

    ready: bool | None = None


class SliceEndpoint(Struct, rename="camel"):
    """An endpoint of an EndpointSlice."""

    addresses: list[str]
    conditions: EndpointConditions = field(default_factory=EndpointConditions)
    node_name: str | None = None
    target_ref: TargetReference | None = None


class ServiceSlice(Struct):
    """An EndpointSlice."""

    endpoints: list[SliceEndpoint] | None = None


class NodeStatus(Struct):
    """The status of a Node."""

    conditions: list[Condition] | None = None


class NodeHealth(Struct):
    """A Node, with its conditions."""

    metadata: AnnotatedMeta
    status: NodeStatus = field(default_factory=NodeStatus)

    @property
    def trouble(self) -> str:
        """Why it is not ready, in the words of Kubernetes; empty if it is."""
        ready = next((found for found in self.status.conditions or () if found.type == "Ready"), None)
        if ready is None or ready.status == "True":
            return ""
        return ": ".join(filter(None, (ready.reason, ready.message))) or f"Ready is {ready.status}"


class ServicePort(Struct):
    """A port of a Service."""

    port: int


class ServiceSpec(Struct, rename="camel"):
    """The spec of a Service."""

    cluster_ips: list[str] = field(name="clusterIPs", default=[])
    selector: dict[str, str] | None = None
    ports: list[ServicePort] | None = None


class PlainService(Struct):
    """A Service, with its selector."""

    metadata: AnnotatedMeta
    spec: ServiceSpec = field(default_factory=ServiceSpec)


class CrdSchema(Struct):
    """The schema of a version."""

    schema: dict[str, Any] = field(name="openAPIV3Schema", default={})


class CrdVersion(Struct):
    """A version of a custom resource."""

    name: str
    served: bool
    schema: CrdSchema = field(default_factory=CrdSchema)


class CrdSpec(Struct):
    """The spec of a CustomResourceDefinition."""

    versions: list[CrdVersion]


class Crd(Struct):
    """A CustomResourceDefinition."""

    metadata: AnnotatedMeta
    spec: CrdSpec


class ReviewStatus(Struct):
    """Whether an access is allowed."""

    allowed: bool = False


class AccessReview(Struct):
    """The response to a SubjectAccessReview or a SelfSubjectAccessReview."""

    status: ReviewStatus


class UserInfo(Struct):
    """Who asks."""

    username: str = ""


class SelfStatus(Struct, rename="camel"):
    """The status of a SelfSubjectReview."""

    user_info: UserInfo


class SelfReview(Struct):
    """The response to a SelfSubjectReview."""

    status: SelfStatus


class ListMeta(Struct):
    """The metadata of a list; ``next`` leads to its next page, empty after the last."""

    next: str = field(name="continue", default="")


class Items(Struct, Generic[T]):
    """A list of objects."""

    items: list[T]
    metadata: ListMeta = field(default_factory=ListMeta)


class NotUnderstood(Exception):
    """The API server sent something else than the API defines; the text says what."""


CONFIG_MAPS = Decoder(Items[ConfigMap])
CRD = Decoder(Crd)
DEPLOYMENTS = Decoder(Items[Deployment])
PODS = Decoder(Items[ReplicaPod])
SERVICES = Decoder(Items[PlainService])
SLICES = Decoder(Items[ServiceSlice])
NODES = Decoder(Items[NodeHealth])
ACCESS = Decoder(AccessReview)
SELF = Decoder(SelfReview)
STUB_DOMAINS = Decoder(dict[str, list[str]])  # in the ConfigMap of kube-dns


def decoded(decoder: Decoder[T], data: bytes) -> T:
    """Return what the API server sent. Raises NotUnderstood."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotUnderstood(str(error)) from None
