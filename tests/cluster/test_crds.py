# SPDX-License-Identifier: Apache-2.0

"""Our CRDs in the real API server: what kubectl explains and shows, and what the schema refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.labels import valid_label_key
from locator.model import PodLocator, ServiceHealth, ServicePolicy
from tests.kit import kustomize
from tests.kit.api_objects import ZONE, item, namespace
from tests.kit.kube import ApiError, ControlPlane, Item
from tests.kit.kustomize import EVERYTHING, object_of, objects_of
from tests.kit.waiting import until

WHERE = "crds"
OURS = "topodns.io"
GROUP = f"{OURS}/v1alpha1"
PLURALS = {"ServicePolicy": "servicepolicies", "PodLocator": "podlocators", "ServiceHealth": "servicehealths"}
READ_AS = {
    "ServicePolicy": RESOURCES[ServicePolicy],
    "PodLocator": RESOURCES[PodLocator],
    "ServiceHealth": RESOURCES[ServiceHealth],
}
CLUSTER_WIDE = ("ServiceHealth",)
SELECTOR = {"matchLabels": {"app": "cache"}}
TOPOLOGY = {"key": ZONE, "mode": "Required"}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with all CRDs and a namespace."""
    with kustomize.installed(control_plane, objects_of(EVERYTHING, "CustomResourceDefinition")):
        control_plane.api.create(namespace(WHERE))
        yield control_plane
        control_plane.api.delete(namespace(WHERE))


def policy(name: str = "near", **spec: Any) -> Item:
    spec = {"serviceSelector": SELECTOR, "topology": TOPOLOGY} | spec
    return item("ServicePolicy", name, spec=spec)


def locator(name: str = "cache-0", **fields: Any) -> Item:
    return item("PodLocator", name, **fields)


LOCATOR = locator(
    ips=[{"ip": "10.244.1.7"}, {"ip": "fd00:244:1::7"}], nodeName="node-a", nodeLabels={ZONE: "a", "empty": ""}
)


def condition(kind: str, status: str) -> Item:
    since = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": "Why", "message": "", "lastTransitionTime": since}


STATUS = {"services": 2, "conditions": [condition("Accepted", "True"), condition("Effective", "False")]}


def health(name: str = "web.shop", *entries: Item, **status: Any) -> Item:
    service = {"namespace": "shop", "name": "web"}
    return item("ServiceHealth", name, status={"service": service, "entries": list(entries), **status})


WELL = {"address": "192.0.2.1", "healthy": True, "since": "2026-01-01T00:00:00.000000Z"}
SICK = {"address": "lb.example.com", "healthy": False, "since": "2026-01-01T00:00:00.000000Z", "message": "refused"}


def create(plane: ControlPlane, item: Item, *, query: str = "") -> Item:
    """Create an object with strict validation; return it as stored."""
    where = "" if item["kind"] in CLUSTER_WIDE else f"/namespaces/{WHERE}"
    path = f"/apis/{GROUP}{where}/{PLURALS[item['kind']]}?fieldValidation=Strict{query}"
    stored: Item = plane.api.request("POST", path, item)
    return stored


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("podlocator.ips.ip", "An IPv4 or IPv6 address."),
        ("servicehealth.status.renewTime", "has not been renewed for 30 s counts no more"),
        ("servicepolicy.spec.serviceSelector.matchExpressions.values", "The values for In and NotIn."),
        ("servicepolicy.spec.topology.mode", "ENUM: Required Preferred Ignored required preferred ignored"),
    ],
)
def test_kubectl_explains(cluster: ControlPlane, field: str, text: str) -> None:
    """``kubectl explain`` shows the descriptions of the schema."""

    def explained() -> bool:
        try:
            return text in " ".join(cluster.kubectl("explain", field).split())
        except AssertionError:
            return False

    until(explained, f"{field}: {text}")


def test_every_field_is_explained() -> None:
    """Each of our fields, at any depth, has a description."""

    def fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, field in schema.get("properties", {}).items():
            yield f"{path}.{name}", field
            yield from fields(field.get("items", field), f"{path}.{name}")

    for plural in PLURALS.values():
        crd = object_of(EVERYTHING, "CustomResourceDefinition", f"{plural}.topodns.io")
        for path, field in fields(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], plural):
            if path.rpartition(".")[2] not in ("apiVersion", "kind", "metadata"):
                assert field.get("description"), path


SHOWN: list[tuple[Item, list[str], list[str]]] = [
    (policy("shown"), ["NAME", "KEY", "MODE", "SERVICES", "ACCEPTED", "EFFECTIVE", "AGE"],
     ["shown", ZONE, "Required", "2", "True", "False"]),
    (LOCATOR | {"metadata": {"name": "shown"}}, ["NAME", "IP", "NODE", "ZONE", "AGE"],
     ["shown", "10.244.1.7", "node-a", "a"]),
    (health("shown", WELL, SICK, cluster="east", renewTime="2026-01-01T00:00:00.000000Z"),
     ["NAME", "CLUSTER", "UNHEALTHY", "MESSAGE", "SINCE", "RENEWED"], ["shown", "east", "lb.example.com", "refused"]),
]  # fmt: skip


@pytest.mark.parametrize(("item", "columns", "row"), SHOWN, ids=[row[0]["kind"] for row in SHOWN])
def test_kubectl_shows_columns(cluster: ControlPlane, item: Item, columns: list[str], row: list[str]) -> None:
    """``kubectl get`` shows where a Pod is, and what a policy asks for."""
    create(cluster, item)
    if item["kind"] == "ServicePolicy":
        cluster.api.patch({**item, "metadata": {"name": "shown", "namespace": WHERE}}, {"status": STATUS}, sub="status")
    head, shown = cluster.kubectl("-n", WHERE, "get", PLURALS[item["kind"]], "shown").splitlines()
    assert head.split() == columns and shown.split()[: len(row)] == row


def test_short_names_and_the_category(cluster: ControlPlane) -> None:
    """``kubectl get topodns`` shows all that is topodns', and each kind has a short name."""
    named = [policy("called"), locator("called"), health("called")]
    for short, made in zip(("svcpol", "podloc", "svchealth"), named, strict=True):
        create(cluster, made)
        shown = cluster.kubectl("-n", WHERE, "get", short, "called", "-o", "name").strip()
        assert shown == f"{made['kind'].lower()}.{OURS}/called"
    of_all = cluster.kubectl("get", "topodns", "-A", "-o", "name").split()
    assert {f"{kind.lower()}.{OURS}/called" for kind in PLURALS} <= set(of_all)


def test_the_status_is_a_subresource(cluster: ControlPlane) -> None:
    """Whoever may write a policy cannot write its status, and a change of the status is none of the policy."""
    stored = create(cluster, policy("claiming") | {"status": STATUS})
    assert "status" not in stored
    claiming = {**stored, "kind": "ServicePolicy"}
    patched = cluster.api.patch(claiming, {"status": STATUS})
    assert "status" not in patched and patched["metadata"]["generation"] == 1
    written = cluster.api.patch(claiming, {"status": STATUS, "spec": {"topology": {"key": "rack"}}}, sub="status")
    assert (written["status"], written["spec"], written["metadata"]["generation"]) == (STATUS, stored["spec"], 1)
    of_servers = [decode_untrusted(READ_AS["ServicePolicy"], json.dumps(raw).encode()) for raw in (stored, written)]
    assert of_servers[0].built == of_servers[1].built  # so they publish nothing new


def test_the_locators_of_one_node_can_be_asked_for(cluster: ControlPlane) -> None:
    """A field selector finds a node's PodLocators, as spec.nodeName finds Pods."""
    create(cluster, locator("here", nodeName="node-here"))
    create(cluster, locator("there", nodeName="node-there"))
    asked = ("get", "podlocators", "--field-selector", "nodeName=node-here", "-o", "name")
    assert cluster.kubectl("-n", WHERE, *asked).split() == ["podlocator.topodns.io/here"]


EXPRESSIONS = [
    {"key": "app", "operator": "In", "values": ["a", "b"]}, {"key": "here", "operator": "Exists"},
    {"key": "example.com/tier", "operator": "NotIn", "values": [""]},
    {"key": "not-here", "operator": "DoesNotExist", "values": []},
]  # fmt: skip
MODES = ("Required", "Preferred", "Ignored", "required", "preferred", "ignored")
TAKEN = [
    *(policy(f"mode-{number}", topology={"key": "rack", "mode": mode}) for number, mode in enumerate(MODES)),
    policy("expressions", serviceSelector={"matchExpressions": EXPRESSIONS}),
    LOCATOR,
    locator("finished", ips=[], nodeName="node-a", nodeLabels={ZONE: "a"}),
    locator("node-gone", ips=[{"ip": "10.244.1.8"}], nodeName="", nodeLabels={}),
    locator("nothing"),
    health("web.shop", WELL, SICK, {"address": "192.0.2.9", "healthy": True}, cluster="east", renewTime=WELL["since"]),
    {**health("no.status"), "status": {}},
]


@pytest.mark.parametrize("item", TAKEN, ids=lambda item: f"{item['kind']} {item['metadata']['name']}")
def test_what_the_schema_takes_is_read(cluster: ControlPlane, item: Item) -> None:
    """topodns reads all that the schema allows, without findings."""
    stored = create(cluster, item)
    assert all(stored[field] == item[field] for field in ("ips", "nodeName", "nodeLabels") if field in item)
    assert not decode_untrusted(READ_AS[item["kind"]], json.dumps(stored).encode(), "the API server").findings


def test_a_policy_without_a_mode_is_found(cluster: ControlPlane) -> None:
    """It does nothing. A default in the schema would hide that nobody wrote a mode."""
    stored = create(cluster, policy("no-mode", topology={"key": ZONE}))
    decoded = decode_untrusted(RESOURCES[ServicePolicy], json.dumps(stored).encode())
    assert [finding.code for finding in decoded.findings] == ["PolicyWithoutMode"]
    assert decoded.built.mode == "Ignored"


WITHOUT: list[tuple[str, Item, list[str]]] = [
    ("without-a-key", policy("no-key", topology={"mode": "Required"}), ["EmptyTopologyKeys"]),
    ("ignored-without-a-key", policy("no-key-ignored", topology={"mode": "Ignored"}), []),
    ("empty-topology", policy("empty-topology", topology={}), ["PolicyWithoutMode"]),
    ("without-topology", item("ServicePolicy", "no-topology", spec={"serviceSelector": SELECTOR}),
     ["PolicyWithoutMode"]),
]  # fmt: skip


@pytest.mark.parametrize(("item", "codes"), [row[1:] for row in WITHOUT], ids=[row[0] for row in WITHOUT])
def test_a_policy_may_have_no_key(cluster: ControlPlane, item: Item, codes: list[str]) -> None:
    """It says nothing. No label stands in for the key, in the schema neither."""
    stored = create(cluster, item)
    assert stored["spec"] == item["spec"]
    decoded = decode_untrusted(RESOURCES[ServicePolicy], json.dumps(stored).encode())
    assert [finding.code for finding in decoded.findings] == codes
    assert decoded.built.topology_key is None


EXPRESSION_VALUES = "In and NotIn need values, Exists and DoesNotExist take none"


def expressed(**expression: Any) -> Item:
    return policy(serviceSelector={"matchExpressions": [expression]})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        pytest.param(policy(serviceSelector={}), "must not be empty, which would select every Service", id="empty"),
        pytest.param(policy(serviceSelector={"matchLabels": {}}), "must not be empty", id="no labels"),
        pytest.param(policy(serviceSelector={"matchExpressions": []}), "must not be empty", id="no expressions"),
        pytest.param(policy(serviceSelector=None), "spec.serviceSelector: Required value", id="no selector"),
        pytest.param(policy(serviceSelector={"app": "cache"}), 'unknown field "spec.serviceSelector.app"', id="bare"),
        pytest.param(
            policy(serviceSelector={"matchLabels": {"app": "no value"}}), "matchLabels.app in body", id="label value"
        ),
        pytest.param(expressed(key="app", operator="In"), EXPRESSION_VALUES, id="In without values"),
        pytest.param(expressed(key="app", operator="NotIn", values=[]), EXPRESSION_VALUES, id="NotIn without values"),
        pytest.param(expressed(key="app", operator="Exists", values=["a"]), EXPRESSION_VALUES, id="Exists with one"),
        pytest.param(expressed(key="app", operator="Gt", values=["1"]), 'Unsupported value: "Gt"', id="operator"),
        pytest.param(expressed(key="a b", operator="Exists"), r"matchExpressions\[0\].key in body", id="key of one"),
        pytest.param(policy(topology={"key": ""}), "spec.topology.key", id="key of nothing"),
        pytest.param(policy(topology={"key": "*"}), "spec.topology.key in body should match", id="any"),
        pytest.param(policy(topology={"key": f"{ZONE},*"}), "spec.topology.key in body should match", id="several"),
        pytest.param(policy(topology={"key": f"{'a' * 254}/b"}), "at most 253 characters before its /", id="prefix"),
        pytest.param(policy(topology={"key": ZONE, "mode": "soft"}), 'Unsupported value: "soft"', id="mode"),
        pytest.param(policy(topology={"key": ZONE, "mode": "REQUIRED"}), 'Unsupported value: "REQUIRED"', id="case"),
        pytest.param(policy(topologyKeys=[ZONE]), 'unknown field "spec.topologyKeys"', id="unknown field"),
        pytest.param(
            {key: value for key, value in policy().items() if key != "spec"}, "spec: Required value", id="no spec"
        ),
        pytest.param(locator(ips=["10.244.1.7"]), r"ips\[0\].*must be of type object", id="addresses as texts"),
        pytest.param(locator(ips=[{"ip": "10.244.1"}]), "must be an IPv4 or IPv6 address", id="no address"),
        pytest.param(locator(ips=[{"ip": "10.244.1.7/32"}]), "must be an IPv4 or IPv6 address", id="address block"),
        pytest.param(locator(ips=[{}]), r"ips\[0\].ip: Required value", id="empty address"),
        pytest.param(locator(ips=[{"ip": "10.1.1.1"}] * 2), r"ips\[1\]: Duplicate value", id="address twice"),
        pytest.param(locator(nodeName=7), "nodeName.*must be of type string", id="node as a number"),
        pytest.param(locator(nodeName="Node A"), "nodeName in body should match", id="node's name"),
        pytest.param(locator(nodeLabels={"rack": 7}), "nodeLabels.rack.*must be of type string", id="label"),
        pytest.param(locator(nodeLabels=["rack"]), "nodeLabels.*must be of type object", id="labels as a list"),
        pytest.param(locator(spec={"nodeName": "a"}), 'unknown field "spec"', id="locator with a spec"),
        pytest.param(health("web.shop", WELL, WELL), r"entries\[1\]: Duplicate value", id="vote twice"),
        pytest.param(health("web.shop", {"healthy": True}), r"entries\[0\].address: Required", id="vote on nothing"),
        pytest.param(health("web.shop", {"address": "a"}), r"entries\[0\].healthy: Required", id="no vote"),
        pytest.param(health("web.shop", renewTime="yesterday"), "status.renewTime.*date-time", id="no time"),
        pytest.param(health("web.shop", spec=1), 'unknown field "status.spec"', id="unknown in the status"),
    ],
)
def test_what_cannot_be_meant_is_refused(cluster: ControlPlane, item: Item, message: str) -> None:
    """The API server refuses a wrong value, with a message that names the field."""
    with pytest.raises(ApiError) as refused:
        create(cluster, item, query="&dryRun=All")
    assert refused.value.status in (400, 422)
    assert re.search(message, str(refused.value).replace('\\"', '"')), refused.value


KEYS = {
    "spec.topology.key": ("topology", "key"),
    "spec.serviceSelector.matchExpressions.key": ("serviceSelector", "matchExpressions", "items", "key"),
}


@lru_cache
def schema_of(field: str) -> Mapping[str, Any]:
    """Return the schema of a field of a ServicePolicy."""
    crd = object_of(EVERYTHING, "CustomResourceDefinition", "servicepolicies.topodns.io")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for part in KEYS[field]:
        schema = schema[part] if part == "items" else schema["properties"][part]
    return dict(schema)


@pytest.mark.parametrize("field", KEYS)
@given(text=st.from_regex(r"[-a-zA-Z0-9_./]{0,70}", fullmatch=True) | st.text(max_size=5))
@example(text=f"{'a' * 253}/{'b' * 63}")
@example(text=f"{'a' * 253}/{'b' * 64}")
@example(text="example.com/a/b")
@example(text="a\n")
def test_a_label_key_is_one_for_the_schema_and_for_us(field: str, text: str) -> None:
    """The schema allows the label keys that a constraint may hold, and no others."""
    schema = schema_of(field)
    # A pattern stands between ^ and $, which in Python would allow a line's end.
    taken = schema["minLength"] <= len(text) <= schema["maxLength"] and re.fullmatch(schema["pattern"][1:-1], text)
    assert bool(taken) == valid_label_key(text)
