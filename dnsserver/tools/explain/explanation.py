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
    """A constraint, the source that declares it, and whether it is valid and has an effect.

    ``clients`` are those who count where the load is balanced, if the Service says who.
    """

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
    clients: str | UnsetType = UNSET


class EndpointBalanced(Struct, frozen=True):
    """How many clients a ready endpoint expects, and whether some that are near it are passed on; its first address."""

    address: str
    expected: float
    full: bool


class BalanceExplained(Struct, frozen=True):
    """How ``max_overload`` bounds the clients that an endpoint expects: to ``cap``, of so many ``clients``.

    ``slot`` says how many of the 256 groups of nodes come before that of the client's node, None without one.
    """

    max_overload: float
    clients: int
    cap: float
    slot: int | None
    endpoints: tuple[EndpointBalanced, ...]


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
    balance: BalanceExplained | UnsetType | None = UNSET  # None if nothing bounds the load; older servers send none


DECODER: msgspec.json.Decoder[Explanation] = msgspec.json.Decoder(Explanation)
