# SPDX-License-Identifier: Apache-2.0

"""Says of a balanced Service what each endpoint expects, and why a client is passed on from the nearest ones.

It reads the plan that the answer was made from (``locator.topology.balance``); it never plans itself.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from dnsserver.answers.decision import Decision
from dnsserver.text import number_text
from dnsserver.tools.explain.explanation import BalanceExplained, EndpointBalanced
from locator.ip import address_text
from locator.model import HOSTNAME, ZONE, Location, Pod, PodLocator
from locator.state.snapshot import ImportedService, Snapshot
from locator.topology.annotations import asking
from locator.topology.balance import Balance, Balanced
from locator.topology.cells import SLOTS, slot
from locator.topology.constraints import in_effect
from locator.topology.selection import (
    ANY_ENDPOINT,
    Constraint,
    Hinted,
    LocatedEndpoint,
    Selection,
    TieredConstraint,
)

HINTED = {HOSTNAME: "node", ZONE: "zone"}  # what hints name -> the word for it
IN_VAIN = "no key has room for the client's node, so the last one counts as if it had"


def balance_of(decision: Decision, snapshot: Snapshot) -> Balance | None:
    """Return what becomes of the clients by the constraint that decided, None if nothing bounds what comes."""
    service = decision.service
    if decision.selection is None or service is None or isinstance(service, ImportedService):
        return None
    constraint = in_effect(decision.declaration)
    return next((one for one in snapshot.balances.get(service.service.key, ()) if one.constraint == constraint), None)


def balance_explained(decision: Decision, snapshot: Snapshot, client: Location) -> BalanceExplained | None:
    """Return what an explanation tells of it, None if nothing bounds what comes."""
    service, balance = decision.service, balance_of(decision, snapshot)
    if service is None or balance is None:
        return None
    endpoints = zip(service.endpoints, balance.expected, strict=True)
    return BalanceExplained(
        max_overload=balance.max_overload,
        clients=balance.clients,
        cap=balance.cap,
        slot=None if client.slot is None else (client.slot - slot(service.service.key)) % SLOTS,
        endpoints=tuple(
            EndpointBalanced(address_text(located.endpoint.addresses[0]), expected, position in balance.full)
            for position, (located, expected) in enumerate(endpoints)
        ),
    )


def clients_of(decision: Decision, snapshot: Snapshot) -> str | UnsetType:
    """Return who asks, where ``topodns.io/clients`` says so and counts: not where each Node counts as a client."""
    counts, service = snapshot.object_counts, decision.service
    if service is None or balance_of(decision, snapshot) is None:
        return UNSET
    clients = asking(service.service) if counts.get(Pod.__name__) or counts.get(PodLocator.__name__) else None
    return UNSET if clients is None else "; ".join(one.text for one in clients)


class Room(Struct, frozen=True, eq=False):
    """What a client would get by one key after the other if all endpoints had room, and what became of that.

    ``tiers`` are what it would get, the one that decided last; ``balance`` is what becomes of all clients, if that is
    known. ``positions`` are those of the Service's endpoints, by their identity.
    """

    constraint: TieredConstraint
    selection: Selection
    tiers: tuple[Selection, ...]
    balance: Balance | None
    positions: dict[int, int]

    @property
    def in_vain(self) -> bool:
        """Whether no key had room, so that the client gets all endpoints of the last one."""
        return self._is_full(self.tiers[-1])

    @property
    def exception(self) -> str:
        """What else is to be said of the endpoints that the client gets by the key that decided; "" for nothing."""
        if self.in_vain:
            return IN_VAIN
        has_all = len(self.selection.endpoints) == len(self.tiers[-1].endpoints)
        return "" if has_all else "of these, the ones that have room for the client's node"

    @property
    def why_passed_on(self) -> str:
        """Why the client does not get the nearest endpoints."""
        texts = []
        for tier in self.tiers[:-1]:
            lack = "have no room for its node" if self._is_full(tier) else f"are too few {self._least}"
            texts.append(f"those {common(self.constraint, tier)} {lack}")
        return ", and ".join(texts)

    def why_not(self, located: LocatedEndpoint) -> str:
        """Say why the client does not get an endpoint although some key allows it; "" if none does."""
        tier = next((one for one in self.tiers if any(located is allowed for allowed in one.endpoints)), None)
        if tier is None:
            return ""
        has = f"{common(self.constraint, tier, one=True)}, but " if tier.narrowed else ""
        passed_on = "" if tier is self.tiers[-1] else ", which is passed on"
        position, balance = self.positions[id(located)], self.balance
        if balance is not None and position in balance.full:
            expected, cap = number_text(balance.expected[position]), number_text(balance.cap)
            return f"full: {has}no room for its node{passed_on}: it expects {expected} of at most {cap} clients"
        few = "too few with it have room" if self._is_full(tier) else f"{len(tier.endpoints)} with it are too few"
        return f"{has}{few} {self._least}"

    @property
    def _least(self) -> str:
        return f"(min-endpoints is {self.constraint.at_least})"

    def _is_full(self, tier: Selection) -> bool:
        return (tier.key or ANY_ENDPOINT) in self.selection.full


def room_for(client: Location, decision: Decision, snapshot: Snapshot) -> Room | None:
    """Return what a client would get if all endpoints had room, None if there is no plan that says otherwise."""
    selection, service = decision.selection, decision.service
    if selection is None or service is None or client.slot is None:
        return None
    plan = service.constraint(decision.declaration)
    if not isinstance(plan, Balanced) or not selection.endpoints or selection.octets is not None:
        return None
    tiers: list[Selection] = []
    for _, tier in plan.constraint.tiers(client, service.endpoints):
        tiers.append(tier)
        if tier.key == selection.key:
            break
    positions = {id(located): position for position, located in enumerate(service.endpoints)}
    return Room(plan.constraint, selection, tuple(tiers), balance_of(decision, snapshot), positions)


def common(constraint: Constraint | None, selection: Selection, *, one: bool = False) -> str:
    """Return what some endpoints, or *one* of them, have in common with a client by the keys that narrowed."""
    if isinstance(constraint, Hinted):
        word = HINTED[selection.narrowed[0]]
        return f"its hints name the client's {word}" if one else f"whose hints name the client's {word}"
    return f"{'has' if one else 'with'} the client's {' and '.join(selection.narrowed)}"
