# SPDX-License-Identifier: Apache-2.0

"""ServicePolicies: how they are read, which Services they apply to, and which endpoints they choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locator.api.dump import entries
from locator.labels import IN, Requirement, Selector
from locator.model import Endpoint, Finding, Location, Service, ServicePolicy
from locator.topology.annotations import MIN_ENDPOINTS, TOPOLOGY_KEYS
from locator.topology.constraints import MAX_KEYS, POLICY, Declaration, deciding, declarations_of, keys_of
from locator.topology.selection import LocatedEndpoint, Narrowing, select
from tests.kit.api_objects import item
from tests.kit.label_selectors import NO_OBJECTS, OBJECTS

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"
REQUIRED_ZONE = {"key": ZONE, "mode": "required"}
WEB = {"app": "web"}
IS_WEB = Selector((Requirement("app", IN, frozenset(("web",))),))


def policy(
    key: str | None, mode: str, *, name: str = "p", created: str = "", selector: Selector = IS_WEB
) -> ServicePolicy:
    return ServicePolicy("shop", name, created, selector, key, mode)


def service(**fields: Any) -> Service:
    return Service("shop", "web", labels=WEB, **{"headless": True, **fields})


def declaration_of(asked: Service, policies: Sequence[ServicePolicy] = ()) -> Declaration | None:
    """Return the declaration that counts."""
    return deciding(declarations_of(asked, policies))


def read(selector: object, topology: object = REQUIRED_ZONE) -> tuple[ServicePolicy | None, list[Finding]]:
    """Return a policy as it is read, and its findings."""
    made = item("ServicePolicy", "p", "shop", spec={"serviceSelector": selector, "topology": topology})
    made["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    found = [item for _, item in entries(json.dumps(made).encode())]
    built = [result for result in found if isinstance(result, ServicePolicy)]
    return (built[0] if built else None), [result for result in found if isinstance(result, Finding)]


@pytest.mark.parametrize(("selector", "selected", "other"), [row[1:] for row in OBJECTS], ids=[r[0] for r in OBJECTS])
def test_selects(selector: dict[str, Any], selected: dict[str, str], other: dict[str, str]) -> None:
    """``matchLabels`` and ``matchExpressions`` must all hold, as everywhere in Kubernetes."""
    found, wrong = read(selector)
    assert found is not None and not wrong
    assert found.selector.matches(selected) and not found.selector.matches(other)


EMPTY: list[tuple[str, object]] = [
    ("empty", {}), ("empty-parts", {"matchLabels": {}, "matchExpressions": []}), ("null", None),
]  # fmt: skip


@pytest.mark.parametrize(
    "selector", [row[1] for row in (*NO_OBJECTS, *EMPTY)], ids=[row[0] for row in (*NO_OBJECTS, *EMPTY)]
)
def test_selects_nothing(selector: object) -> None:
    """An empty or unreadable selector selects nothing, rather than too much, and is a finding."""
    found, wrong = read(selector)
    assert found is None
    assert [(finding.code, finding.kind, finding.namespace, finding.name) for finding in wrong] == [
        ("InvalidServicePolicy", "ServicePolicy", "shop", "p")
    ]
    assert wrong[0].field.startswith("spec.serviceSelector") and wrong[0].expected


@pytest.mark.parametrize(
    ("topology", "mode", "wrong"),
    [
        ({"key": ZONE, "mode": "Required"}, "Required", {}),
        ({"key": ZONE, "mode": "Preferred"}, "Preferred", {}),
        ({"key": ZONE, "mode": "Ignored"}, "Ignored", {}),
        ({"key": ZONE, "mode": "required"}, "Required", {}),
        ({"key": ZONE, "mode": "preferred"}, "Preferred", {}),
        ({"key": ZONE, "mode": "ignored"}, "Ignored", {}),
        ({"key": ZONE}, "Ignored", {"mode": "policy without a mode"}),
        ({"key": ZONE, "mode": None}, "Ignored", {"mode": "policy without a mode"}),
        ({"key": ZONE, "mode": "REQUIRED"}, "REQUIRED", {"mode": "'REQUIRED' is no mode"}),
        ({"key": ZONE, "mode": ""}, "", {"mode": "'' is no mode"}),
        ({"key": "*", "mode": "Preferred"}, "Preferred", {"key": "label key"}),
        ({"key": "a b", "mode": "Required"}, "Required", {"key": "label key"}),
        ({"key": "", "mode": "Required"}, "Required", {"key": "label key"}),
        ({"mode": "Required"}, "Required", {"key": "policy without a key"}),
        ({"key": None, "mode": "preferred"}, "Preferred", {"key": "policy without a key"}),
        ({"mode": "Ignored"}, "Ignored", {}),
        ({"mode": "strict"}, "strict", {"mode": "'strict' is no mode"}),
        ({}, "Ignored", {"mode": "policy without a mode"}),
        (None, "Ignored", {"mode": "policy without a mode"}),
    ],
    ids=["required", "preferred", "ignored", "required-alias", "preferred-alias", "ignored-alias", "default", "null",
         "capitals", "empty-mode", "any", "key", "empty-key", "no-key", "null-key", "ignored-without-key",
         "mode-without-key", "empty", "no-topology"],
)  # fmt: skip
def test_topology(topology: dict[str, Any] | None, mode: str, wrong: dict[str, str]) -> None:
    """One label key and one of three modes, in lower case, too; any other value stays as written and is a finding.

    So is no mode, and a mode without a key.
    """
    found, findings = read({"matchLabels": WEB}, topology)
    key = (topology or {}).get("key")
    assert found == ServicePolicy("shop", "p", "2026-01-02T03:04:05Z", IS_WEB, key, mode)
    assert [finding.field for finding in findings] == [f"spec.topology.{field}" for field in wrong]
    for finding, words in zip(findings, wrong.values(), strict=True):
        assert words in finding.message and finding.expected
        codes = {"policy without a mode": "PolicyWithoutMode", "policy without a key": "EmptyTopologyKeys"}
        assert finding.code == codes.get(words, "InvalidServicePolicy")


REQUIRES, PREFERS, IGNORES = policy(ZONE, "Required"), policy(RACK, "Preferred"), policy(RACK, "Ignored")
MANY = [policy(f"example.com/k{n}", "Preferred", name=f"p{n:02}") for n in range(MAX_KEYS + 1)]
MANY_KEYS = keys_of(MANY)
FOR_OTHERS = policy(RACK, "Required", selector=Selector((Requirement("app", IN, frozenset(("db",))),)))


@pytest.mark.parametrize(
    ("asked", "policies", "keys", "required", "error"),
    [
        (service(), [PREFERS, REQUIRES, IGNORES, FOR_OTHERS], (ZONE, RACK), (ZONE,), None),
        (service(), [REQUIRES, policy(ZONE, "Preferred", created="1")], (ZONE,), (ZONE,), None),
        (service(), [policy("a", "Preferred", created="3"), policy("b", "Preferred")], ("b", "a"), (), None),
        (service(annotations={TOPOLOGY_KEYS: "*,a"}, topology_keys=("b",)), [REQUIRES], (ZONE,), (ZONE,), None),
        (service(), [REQUIRES, policy("a b", "Preferred")], (ZONE, "a b"), (ZONE,), "ServicePolicy p: 'a b'"),
        (service(), [policy(ZONE, "strict", name="bad")], (ZONE,), (), "ServicePolicy bad: 'strict' is no mode"),
        (service(), [policy("a b", "Ignored")], None, (), None),
        (service(), [policy(None, "Required"), policy(None, "Preferred")], None, (), None),
        (service(), [policy(None, "Required"), PREFERS], (RACK,), (), None),
        (service(), [policy(None, "strict"), PREFERS], (RACK,), (), "ServicePolicy p: 'strict' is no mode"),
        (service(), MANY[:MAX_KEYS], MANY_KEYS[:MAX_KEYS], (), None),
        (service(), MANY, MANY_KEYS, (), "17 keys, at most 16"),
        (service(external_traffic_policy="Local"), [REQUIRES], (ZONE,), (ZONE,), "externalTrafficPolicy"),
        (service(external_traffic_policy="Local", headless=False), [REQUIRES], (ZONE,), (ZONE,), None),
    ],
    ids=["both", "required-and-preferred", "by-age", "before-all-else", "key", "mode", "ignored-though-invalid",
         "without-keys", "without-a-key", "mode-without-key", "sixteen", "seventeen", "local", "local-of-many"],
)  # fmt: skip
def test_constraint(
    asked: Service,
    policies: Sequence[ServicePolicy],
    keys: tuple[str, ...] | None,
    required: tuple[str, ...],
    error: str | None,
) -> None:
    """Each policy that is not ignored applies to the Services it selects; an invalid one makes all invalid."""
    declaration = declaration_of(asked, policies)
    if keys is None:
        assert declaration is None
        return
    assert declaration is not None
    assert (declaration.source, declaration.constraint) == (POLICY, Narrowing(keys, required))
    assert declaration.error is None if error is None else error in str(declaration.error)
    assert declaration.effective == (error is None and asked.headless)


KEYS = st.sampled_from(("a", "b", "c"))
LABELS = st.dictionaries(KEYS, st.sampled_from("xy"))
POLICIES = st.lists(
    st.builds(
        ServicePolicy,
        namespace=st.just("shop"),
        name=st.uuids().map(str),
        created=st.sampled_from(("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")),
        selector=st.sampled_from((IS_WEB, FOR_OTHERS.selector)),
        topology_key=KEYS | st.none(),
        mode=st.sampled_from(("Required", "Preferred", "Ignored")),
    ),
    max_size=5,
)


@given(
    policies=POLICIES,
    here=LABELS,
    rows=st.lists(LABELS, min_size=1, max_size=6),
    least=st.integers(1, 3),
    order=st.randoms(use_true_random=False),
)
def test_policies_equal_the_rule_read_word_by_word(
    policies: list[ServicePolicy], here: dict[str, str], rows: list[dict[str, str]], least: int, order: Any
) -> None:
    """All required keys hold; each preferred key narrows if enough endpoints stay; order does not matter.

    A policy without a key is as none.
    """
    asked = service(annotations={MIN_ENDPOINTS: str(least)})
    speaking = [policy for policy in policies if policy.mode != "Ignored" and policy.topology_key is not None]
    selecting = [policy for policy in speaking if policy.selector is IS_WEB]
    required = {policy.topology_key for policy in selecting if policy.mode == "Required"}
    left = {n for n, row in enumerate(rows) if all(key in here and row.get(key) == here[key] for key in required)}
    narrowed = bool(required)
    for policy in sorted(selecting, key=lambda policy: (policy.created, policy.name)):
        key = policy.topology_key
        near = {n for n in left if key in here and rows[n].get(key) == here[key]}
        if policy.mode == "Preferred" and len(near) >= least:
            left, narrowed = near, True

    declaration = declaration_of(asked, policies)

    order.shuffle(policies)
    assert declaration_of(asked, policies) == declaration
    assert (declaration is None) == (not selecting)
    if declaration is None:
        return
    constraint = declaration.constraint
    endpoints = [LocatedEndpoint(Endpoint((bytes((10, 0, 0, n)),)), Location(None, row)) for n, row in enumerate(rows)]
    location = Location("n", here)
    selection = select(constraint, location, endpoints)
    assert [endpoints.index(endpoint) for endpoint in selection.endpoints] == sorted(left)
    assert selection.outcome == ("unmet" if not left else "nearest" if narrowed else "all")
    assert constraint.soft == (not required) and (left or not constraint.soft)
    assert [step.key for step in selection.steps] == list(constraint.keys)[: len(selection.steps)]
    assert selection.steps[-1].matched == 0 if not left else len(selection.steps) == len(constraint.keys)
