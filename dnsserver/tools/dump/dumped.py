# SPDX-License-Identifier: Apache-2.0

"""What ``topodns dump`` writes: of each object what topodns reads, of the installation what a bug report needs.

Whatever is not a field of a struct here or in ``schema`` is not in a dump: no value of a variable, no Secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import field
from msgspec.json import Decoder
from msgspec.structs import replace

from dnsserver.metrics.tables import TABLES
from dnsserver.settings.settings import FLAGS
from dnsserver.tools.doctor.steps import DoctorStep
from dnsserver.tools.dump.hashed_names import HashedNames
from locator.api import schema
from locator.api.conversion import ADDRESS_ANNOTATIONS, CIDR_ANNOTATIONS, read_annotations
from locator.api.decoding import Resource
from locator.topology.constraints import SERVICE_ANNOTATIONS

T = TypeVar("T")

READ_ANNOTATIONS = frozenset((*ADDRESS_ANNOTATIONS, *(key for keys in CIDR_ANNOTATIONS.values() for key in keys)))
READ_ANNOTATIONS |= SERVICE_ANNOTATIONS
# Directives of a Corefile that may hold a password: of the plugins route53, etcd, azure, clouddns, tsig, nomad and
# others. They begin a line, also one of a difference, or of a text in JSON, where a backslash and an n end it.
_DIRECTIVE = (
    r"(?:[ \t+-]|\\t)*[\"\\]*[\w-]*(?:secret|passw|token|credential|access_?key|api_?key|auth_?key)[\w-]*[\"\\]*[ \t]+"
)
_SECRET = re.compile(rf"(^{_DIRECTIVE})[^\n]+|(\\n{_DIRECTIVE})(?:[^\n\\]|\\[^\nn])+", re.MULTILINE | re.IGNORECASE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_CHECK = re.compile(r"^\[[+-]\][\w-]+", re.MULTILINE)
NUMBERS = ("NUMBER", "SECONDS", "CODE")  # how --help calls values of flags that are numbers
PLAIN_LABELS = frozenset(("le", "kind", "version", "python")).union(
    label for table in TABLES.values() for family in table for label, values in family.labels.items() if values
)


class Named(schema.Struct):
    """A variable of a container: its name alone."""

    name: str


class Container(schema.Struct):
    """A container of a pod template."""

    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Named] | None = None
    resources: dict[str, Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it runs topodns."""
        return self.name == "topodns" or "/topodns" in f"/{self.image}"


class TemplateSpec(schema.Struct, rename="camel"):
    """The spec of a pod template."""

    containers: list[Container]
    service_account_name: str | None = None
    termination_grace_period_seconds: int | None = None


class Template(schema.Struct):
    """A pod template."""

    spec: TemplateSpec


class WorkloadSpec(schema.Struct):
    """The spec of a Deployment or a DaemonSet."""

    template: Template
    selector: schema.LabelSelector
    replicas: int | None = None


class Condition(schema.Struct, rename="camel"):
    """A condition of an object."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class WorkloadStatus(schema.Struct, rename="camel"):
    """The status of a Deployment or a DaemonSet."""

    replicas: int | None = None
    updated_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    desired_number_scheduled: int | None = None
    number_ready: int | None = None
    conditions: list[Condition] | None = None


class Workload(schema.Struct):
    """A Deployment or a DaemonSet."""

    metadata: schema.LabelledMeta
    spec: WorkloadSpec
    status: WorkloadStatus | None = None

    @property
    def is_ours(self) -> bool:
        """Whether its pods run topodns."""
        return any(container.is_ours for container in self.spec.template.spec.containers)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is its own."""
        wanted = self.spec.selector.match_labels or {}
        return bool(wanted) and wanted.items() <= labels.items()


class State(schema.Struct, rename="camel"):
    """Why a container waits, since when it runs, or how it ended."""

    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    started_at: str | None = None
    finished_at: str | None = None


class ContainerStatus(schema.Struct, rename="camel"):
    """The status of a container."""

    name: str
    image: str | None = None
    image_id: str | None = field(name="imageID", default=None)
    ready: bool | None = None
    restart_count: int | None = None
    state: dict[str, State] | None = None
    last_state: dict[str, State] | None = None


class PodStatus(schema.PodStatus, rename="camel"):
    """The status of a Pod, with that of its containers."""

    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodSpec(schema.PodSpec, rename="camel"):
    """The spec of a Pod, with the names of its containers."""

    containers: list[Named] | None = None


class PodMeta(schema.AnnotatedMeta):
    """The metadata of a Pod, with the time at which it was told to end."""

    deleted: str | None = field(name="deletionTimestamp", default=None)


class Pod(schema.Struct):
    """A Pod of topodns."""

    metadata: PodMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None


class Event(schema.Struct, rename="camel"):
    """An Event."""

    metadata: schema.Meta
    involved_object: schema.Reference
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class Items(schema.Struct, Generic[T]):
    """A list of objects."""

    items: list[T]


WORKLOADS, PODS, EVENTS = Decoder(Items[Workload]), Decoder(Items[Pod]), Decoder(Items[Event])


def trimmed(raw: Any, names: HashedNames | None) -> bytes:
    """Return the JSON of what topodns reads of an object, a struct of ``schema``; *names* hash it."""
    annotations = getattr(raw.metadata, "annotations", None)
    if isinstance(annotations, dict):
        read = read_annotations(annotations, READ_ANNOTATIONS)
        raw = replace(raw, metadata=replace(raw.metadata, annotations=read or None))
    return msgspec.json.encode(raw if names is None else names.struct(raw))


def installed(raw: Workload | Pod | Event, names: HashedNames | None) -> bytes:
    """Return the JSON of an object of the installation. Of containers that are not topodns, no flag is in it."""
    if not isinstance(raw, Workload):
        return trimmed(raw, names)
    template = raw.spec.template
    containers = [_container(container, names) for container in template.spec.containers]
    template = replace(template, spec=replace(template.spec, containers=containers))
    return trimmed(replace(raw, spec=replace(raw.spec, template=template)), names)


def _container(raw: Container, names: HashedNames | None) -> Container:
    if not raw.is_ours:
        return replace(raw, command=None, args=None, env=None)
    if names is None:
        return raw
    return replace(raw, command=_hashed(raw.command, names), args=_hashed(raw.args, names))


def _hashed(words: Sequence[str] | None, names: HashedNames) -> list[str] | None:
    """Return words of a command line with hashed values of flags; numbers, and words that topodns knows, stay."""

    def value(flag: str, text: str) -> str:
        known = FLAGS.get(flag.removeprefix("--").replace("-", "_"))
        if known is not None and (
            set(text.split(",")) <= {*known.syntax.words} or (known.syntax.metavar in NUMBERS and text.isdigit())
        ):
            return text
        return names.text(text)

    def each() -> Iterator[str]:
        flag = ""
        for word in words or ():
            if word.startswith("--"):
                flag, equals, text = word.partition("=")
                yield f"{flag}{equals}{value(flag, text)}" if equals else flag
            else:
                yield value(flag, word)
                flag = ""

    return None if words is None else [*each()]


def metrics_page(page: str, names: HashedNames | None) -> str:
    """Return an exposition, in which *names* hash all values of labels that are not known beforehand."""
    if names is None:
        return page
    hashed = names.text
    return _LABEL.sub(lambda found: found[0] if found[1] in PLAIN_LABELS else f'{found[1]}="{hashed(found[2])}"', page)


def checks_page(page: str, names: HashedNames | None) -> str:
    """Return what ``/readyz?verbose`` says; with *names*, only which checks pass."""
    return page if names is None else "".join(f"{check}\n" for check in _CHECK.findall(page))


def without_secrets(text: str) -> str:
    """Return a text in which directives of Corefiles name no password: some plugins take one there.

    In JSON, a Corefile is a string of the text, not a string in such a string.
    """
    return _SECRET.sub(r"\1\2(left out)", text)


def step_without_secrets(step: DoctorStep) -> DoctorStep:
    """Return a step of ``doctor`` whose texts have no password of a Corefile, be it shown or in a command."""
    return replace(
        step,
        message=without_secrets(step.message),
        commands=tuple(map(without_secrets, step.commands)),
        advice=without_secrets(step.advice),
        difference=without_secrets(step.difference),
    )


def list_of(kind: str, version: str, items: Iterable[bytes]) -> bytes:
    """Return a list of objects as kubectl prints it, an object a line."""
    head = f'{{"apiVersion": "{version}", "kind": "{kind}List", "items": [\n'
    return b"".join((head.encode(), b",\n".join(items), b"\n]}\n"))


def version_of(resource: Resource) -> str:
    """Return the apiVersion of a resource."""
    return "/".join(resource.path.split("/")[2:-1])
