# SPDX-License-Identifier: Apache-2.0

"""What an explanation consists of: what ``explain`` prints, and what the HTTP API returns and describes (OpenAPI).

The order of the fields is that in JSON. A field that is UNSET has no key there.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from locator.model import Finding
from locator.state.snapshot import Vote
from locator.topology.selection import Step


class QuestionExplained(Struct, frozen=True):
    """A name with its final dot, and a type such as A."""

    name: str
    type: str


class ClientExplained(Struct, frozen=True):
    """Who asks: an address, a network or labels; how it was located; the object that says so; its node and labels.

    ``overlooked`` names an endpoint that has the address and does not count, and what would make it count.
    """

    address: str
    located_by: str
    holder: str | None
    overlooked: str | None
    node: str | None
    labels: dict[str, str]


class ServiceExplained(Struct, frozen=True):
    """The Service that a name belongs to."""

    namespace: str
    name: str


class ConstraintExplained(Struct, frozen=True):
    """A constraint, the source that declares it, and whether it is valid and has an effect."""

    source: str
    keys: tuple[str, ...]
    valid: bool
    error: str | None
    effective: bool
    without_effect: str | None
    min_endpoints: int
    required: tuple[str, ...] | None
    policies: tuple[str, ...]
    policy_keys: tuple[str, ...]


class SourceExplained(Struct, frozen=True):
    """A source that declares a constraint, and why it decides (``heard``) or not; ``cluster`` for federated names."""

    source: str
    keys: tuple[str, ...]
    policies: tuple[str, ...]
    decides: bool = field(name="heard")
    why: str
    cluster: str | UnsetType = UNSET


class CandidateExplained(Struct, frozen=True):
    """An endpoint, its values of the keys, and why it was chosen or not; the last two for federated names alone."""

    addresses: tuple[str, ...]
    pod: str | None
    node: str | None
    cluster: str | None
    ready: bool
    values: dict[str, str | None]
    chosen: bool
    why: str
    kind: str | UnsetType = UNSET
    votes: tuple[Vote, ...] | UnsetType = UNSET


class ErrorExplained(Struct, frozen=True):
    """An extended DNS error (RFC 8914)."""

    code: int
    text: str


class AnswerExplained(Struct, frozen=True):
    """A record: its name with a final dot, its type, its TTL in seconds, its data as in a zone file."""

    name: str
    type: str
    ttl: int
    data: str


class Explanation(Struct, frozen=True):
    """A Decision, and the reasons for it."""

    question: QuestionExplained
    client: ClientExplained
    service: ServiceExplained | None
    constraint: ConstraintExplained | None
    sources: tuple[SourceExplained, ...]
    steps: tuple[Step, ...]
    candidates: tuple[CandidateExplained, ...]
    outcome: str
    reason: str
    rcode: str
    extended_error: ErrorExplained | None
    answers: tuple[AnswerExplained, ...]
    findings: tuple[Finding, ...] | UnsetType = UNSET  # as of ``topodns check``; older servers send none


DECODER: msgspec.json.Decoder[Explanation] = msgspec.json.Decoder(Explanation)
