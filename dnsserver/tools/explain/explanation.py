# SPDX-License-Identifier: Apache-2.0

"""What an explanation consists of. The HTTP API's description is made from these types."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from locator.model import Finding


class QuestionExplained(TypedDict):
    """A name with its final dot, and a type such as A."""

    name: str
    type: str


class ClientExplained(TypedDict):
    """Who asks: an address, a network or labels; how it was located; the object that says so; its node and labels.

    ``overlooked`` names an endpoint that has the address and does not count, and what would make it count.
    """

    address: str
    located_by: str
    holder: str | None
    overlooked: str | None
    node: str | None
    labels: dict[str, str]


class ServiceExplained(TypedDict):
    """The Service that a name belongs to."""

    namespace: str
    name: str


class ConstraintExplained(TypedDict):
    """A constraint, the source that declares it, and whether it is valid and has an effect."""

    source: str
    keys: list[str]
    valid: bool
    error: str | None
    effective: bool
    without_effect: str | None
    min_endpoints: int
    required: list[str] | None
    policies: list[str]
    policy_keys: list[str]


class SourceExplained(TypedDict):
    """A source that declares a constraint, and why it is heard or not; ``cluster`` for federated names alone."""

    source: str
    keys: list[str]
    policies: list[str]
    heard: bool
    why: str
    cluster: NotRequired[str]


class StepExplained(TypedDict):
    """A key that was tried, the client's value, and how many endpoints have it."""

    key: str
    value: str | None
    matched: int


class VoteExplained(TypedDict):
    """What a cluster's prober says of an address."""

    cluster: str
    vote: str


class CandidateExplained(TypedDict):
    """An endpoint, its values of the keys, and why it was chosen or not; the last two for federated names alone."""

    addresses: list[str]
    pod: str | None
    node: str | None
    cluster: str | None
    ready: bool
    values: dict[str, str | None]
    chosen: bool
    why: str
    kind: NotRequired[str]
    votes: NotRequired[list[VoteExplained]]


class ErrorExplained(TypedDict):
    """An extended DNS error (RFC 8914)."""

    code: int
    text: str


class AnswerExplained(TypedDict):
    """A record: its name with a final dot, its type, its TTL in seconds, its data as in a zone file."""

    name: str
    type: str
    ttl: int
    data: str


class Explanation(TypedDict):
    """A Decision, and the reasons for it."""

    question: QuestionExplained
    client: ClientExplained
    service: ServiceExplained | None
    constraint: ConstraintExplained | None
    sources: list[SourceExplained]
    steps: list[StepExplained]
    candidates: list[CandidateExplained]
    outcome: str
    reason: str
    rcode: str
    extended_error: ErrorExplained | None
    answers: list[AnswerExplained]
    findings: NotRequired[list[Finding]]  # as of ``topodns check``; older servers send none


DECODER: msgspec.json.Decoder[Explanation] = msgspec.json.Decoder(Explanation)
