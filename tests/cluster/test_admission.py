# SPDX-License-Identifier: Apache-2.0

"""The admission policy in the real API server: it refuses what ``check`` reports, in the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from locator.api.decoding import RESOURCES, decode_untrusted
from locator.endpoints import Port
from locator.model import Finding, Service
from locator.topology.annotations import CLIENTS, HEALTH, MAX_OVERLOAD, MIN_ENDPOINTS, TOPOLOGY_KEYS, health_check
from locator.topology.constraints import declarations_of
from locator.topology.service_checks import service_findings
from tests.kit import annotation_values, kustomize
from tests.kit.api_objects import ZONE, item, namespace, service
from tests.kit.kube import THREADS, ApiError, ControlPlane, Item
from tests.kit.kustomize import object_of, objects_of
from tests.kit.waiting import until

WHERE = "admission"
VARIANT = "base with admission"
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS, MAX_OVERLOAD, CLIENTS, HEALTH)
# Codes of check.
REFUSED = ("InvalidTopologyKeys", "InvalidMinEndpoints", "InvalidMaxOverload", "InvalidClients", "InvalidHealth")

LIMIT = 262_144 - 200  # the API server allows 256 KiB for all annotations with their names

BAD, BAD_LEAST, BAD_HEALTH = {TOPOLOGY_KEYS: "*,a"}, {MIN_ENDPOINTS: "two"}, {HEALTH: "udp"}
BAD_BALANCE = {MAX_OVERLOAD: "1", CLIENTS: "shop;"}
GOOD = {TOPOLOGY_KEYS: f"{ZONE},*"}
OPEN = {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}
LOCAL = {"externalTrafficPolicy": "Local"}
FEDERATED = {"topodns.io/federated": "true"}


def asking(annotations: Mapping[str, str], **spec: Any) -> Item:
    """Return a Service with annotations: a headless one, unless *spec* has a type."""
    addresses = () if "type" in spec else ("None",)
    return service("tried", where=WHERE, annotations=annotations, cluster_ips=addresses, **spec)


def refusal(plane: ControlPlane, method: str, path: str, body: Item, *, media: str = "application/json") -> str | None:
    """Return why the policy refuses a request, None if it does not."""
    try:
        plane.api.request(method, path, body, media=media)
    except ApiError as error:
        if error.status != 422 or "denied request: " not in str(error):
            raise  # something else is wrong
        text = str(error)
        return str(json.loads(text[text.index("{") :])["message"])
    return None


def refusal_of_new(plane: ControlPlane, new: Item) -> str | None:
    """Return why the policy would not let an object be created, None if it would."""
    return refusal(plane, "POST", plane.api.path(new["kind"], WHERE) + "?dryRun=All", new)


def reported(new: Item) -> Finding | None:
    """Return the first finding of ``check`` that the policy refuses, too.

    The policy does not look at the ports of a Service, which may be added later: it is judged as if it had what it asks
    to be probed.
    """
    decoded = decode_untrusted(RESOURCES[Service], json.dumps(new).encode()).built
    assert isinstance(decoded, Service)
    check = health_check(decoded.annotations.get(HEALTH, ""))
    decoded = replace(decoded, ports=(Port("", (check and check.port) or 80),))
    found = service_findings(decoded, declarations_of(decoded))
    return next((finding for finding in found if finding.code in REFUSED), None)


def assert_same(new: Item, refused: str | None) -> None:
    """Check that the policy refuses a Service if and only if it has a finding, in the words of that finding."""
    finding = reported(new)
    if finding is None or refused is None:
        assert (finding, refused) == (None, None), new["metadata"]["annotations"]
        return
    expected = f"{finding.field}: {finding.message}, expected {finding.expected}"
    # The policy has shorter words for what is too long for the API server, and escapes rare characters differently.
    # ``check`` cuts long values, as the dots in its message tell.
    if "…" not in finding.message and re.fullmatch(r"([^\"\\]|\\[nrt\\])*", finding.message):
        assert refused.endswith(f"denied request: {expected}")
    else:
        assert f"denied request: {finding.field}: " in refused and refused.endswith(f"expected {finding.expected}")


class Update(NamedTuple):
    """A Service as it is before the policy, a merge patch, and words of the refusal, None if the change is admitted."""

    before: Item
    change: Item
    words: str | None
    sub: str = ""


def annotated(**annotations: str | None) -> Item:
    """Return the patch of some annotations: ``keys``, ``least``, ``most``, ``health`` or others; None removes one."""
    names = {"keys": TOPOLOGY_KEYS, "least": MIN_ENDPOINTS, "most": MAX_OVERLOAD, "health": HEALTH}
    return {"metadata": {"annotations": {names.get(key, key): text for key, text in annotations.items()}}}


PUBLISHED = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}

UPDATES: Mapping[str, Update] = {
    "label": Update(asking(BAD), {"metadata": {"labels": {"a": "b"}}}, None),
    "other-annotation": Update(asking(BAD | BAD_LEAST | BAD_HEALTH), annotated(other="x"), None),
    "ports": Update(asking(BAD | BAD_LEAST | BAD_HEALTH), {"spec": {"ports": [{"port": 81}]}}, None),
    "other-value": Update(asking(BAD), annotated(least="2", health="tcp"), None),
    "bad-to-bad": Update(asking(BAD), annotated(keys="*,b"), "'*' is key 1 of 2"),
    "bad-to-good": Update(asking(BAD), annotated(keys=ZONE), None),
    "good-to-bad": Update(asking(GOOD), annotated(keys="a,a"), "'a' is listed twice"),
    "none-to-bad": Update(asking({}), annotated(keys="a b"), "'a b' is no valid label key"),
    "one-kept-one-broken": Update(asking(BAD), annotated(health="udp"), "'udp' counts as none"),
    "bad-number-changed": Update(asking(BAD_LEAST), annotated(least="three"), "'three' counts as 1"),
    "blank-number": Update(asking({}), annotated(least=""), "'' counts as 1"),
    "bad-health-changed": Update(asking(BAD_HEALTH), annotated(health=""), "'' counts as none"),
    "bad-balance-kept": Update(asking(BAD_BALANCE), annotated(least="2"), None),
    "bad-overload-changed": Update(asking(BAD_BALANCE), annotated(most="0.5"), "'0.5' counts as none, expected a dec"),
    "bad-clients-changed": Update(asking(BAD_BALANCE), annotated(**{CLIENTS: "shop/"}), "'shop/' counts as none"),
    "balance-corrected": Update(asking(BAD_BALANCE), annotated(most="1.5", **{CLIENTS: "shop"}), None),
    "bad-balance-removed": Update(asking(BAD_BALANCE), annotated(most=None, **{CLIENTS: None}), None),
    "newly-local": Update(asking(GOOD, **OPEN), {"spec": LOCAL}, "together with externalTrafficPolicy: Local"),
    "bad-keys-newly-local": Update(asking(BAD, **OPEN), {"spec": LOCAL}, "together with externalTrafficPolicy: Local"),
    "blank-keys-newly-local": Update(asking({TOPOLOGY_KEYS: " "}, **OPEN), {"spec": LOCAL}, None),
    "local-kept": Update(asking(GOOD, **OPEN, **LOCAL), {"metadata": {"labels": {"a": "b"}}}, None),
    "local-with-other-keys": Update(asking(GOOD, **OPEN, **LOCAL), annotated(keys=ZONE), "together with"),
    "local-with-new-keys": Update(asking({}, **OPEN, **LOCAL), annotated(keys=ZONE), "together with"),
    "no-longer-local": Update(asking(BAD, **OPEN, **LOCAL), {"spec": {"externalTrafficPolicy": "Cluster"}}, None),
    "status": Update(asking(BAD, **OPEN), PUBLISHED, None, "status"),
    "annotation-by-status": Update(asking({}, **OPEN), annotated(keys="*,a"), "'*' is key 1 of 2", "status"),
}  # fmt: skip


def older(case: str) -> Item:
    """Return the Service of a case, which is there before the policy."""
    before = UPDATES[case].before
    return {**before, "metadata": {**before["metadata"], "name": case}}


@pytest.fixture(scope="module")
def guarded(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with the policy in force, and with Services that are older than it."""
    control_plane.api.create(namespace(WHERE), *map(older, UPDATES))
    with kustomize.installed(control_plane, objects_of(VARIANT, POLICY, BINDING)):
        until(lambda: refusal_of_new(control_plane, asking(BAD)), "the policy in force")
        yield control_plane
    until(lambda: refusal_of_new(control_plane, asking(BAD)) is None, "the policy gone")  # other tests break its rules
    control_plane.api.delete(namespace(WHERE))


def test_the_expressions_fit_the_types(guarded: ControlPlane) -> None:
    """The API server has no warning about the policy."""
    path = f"/apis/admissionregistration.k8s.io/v1/{POLICY.lower().replace('policy', 'policies')}/topodns"

    def checked() -> Item:
        return dict(guarded.api.request("GET", path).get("status", {}))

    until(lambda: "typeChecking" in checked(), "the types checked")
    assert checked()["typeChecking"] == {}


@pytest.mark.parametrize(("variant", "name"), [(VARIANT, "topodns"), ("webhook", "topodns-webhook")])
def test_old_api_servers_know_the_functions(variant: str, name: str) -> None:
    """Each function is in the CEL of Kubernetes 1.30: 1.31 refuses newer functions in a new policy."""
    known = {"exists", "filter", "indexOf", "int", "map", "matches", "orValue", "quote", "replace", "size", "split",
             "string", "trim"}  # fmt: skip
    spec = object_of(variant, POLICY, name)["spec"]
    rules = [*spec["matchConditions"], *spec.get("variables", ()), *spec["validations"]]
    texts = [rule.get(field, "") for rule in rules for field in ("expression", "messageExpression")]
    without_texts = [re.sub(r"'(\\.|[^'\\])*'|\"[^\"]*\"", "", text) for text in texts]
    assert {name for text in without_texts for name in re.findall(r"(\w+)\(", text)} <= known


# -- what is refused

ROWS: Sequence[tuple[str, str, bool]] = (
    *((TOPOLOGY_KEYS, text, words is None) for text, words in annotation_values.KEYS),
    *((MIN_ENDPOINTS, text, number is not None) for text, number in annotation_values.MIN_ENDPOINTS),
    *((MAX_OVERLOAD, text, number is not None) for text, number in annotation_values.MAX_OVERLOAD),
    *((CLIENTS, text, parts is not None) for text, parts in annotation_values.CLIENTS),
    *((HEALTH, text, valid) for text, valid in annotation_values.HEALTH),
    (TOPOLOGY_KEYS, "", True),
    (TOPOLOGY_KEYS, " \n", True),
    ("topodns.io/toplogy-keys", "*,a", True),  # check warns of unknown annotations
    ("topodns.io/federated", "maybe", True),
    ("example.com/topology-keys", "*,a", True),
)


@pytest.mark.parametrize(("annotation", "text", "valid"), ROWS, ids=lambda value: repr(value)[:40])
def test_a_value(guarded: ControlPlane, annotation: str, text: str, valid: bool) -> None:
    """The policy admits what is valid for our functions, and refuses the rest with their words."""
    new = asking({annotation: text})
    refused = refusal_of_new(guarded, new)
    assert (refused is None) == valid
    assert_same(new, refused)


LONG: Sequence[tuple[str, str, bool]] = (
    (TOPOLOGY_KEYS, "a" * LIMIT, False),
    (TOPOLOGY_KEYS, "," * LIMIT, False),
    (TOPOLOGY_KEYS, f"{' ' * (LIMIT - 3)}a,*", True),
    (TOPOLOGY_KEYS, f"a/{'b.' * (LIMIT // 2 - 2)}", False),
    (TOPOLOGY_KEYS, ",".join(chr(97 + n) + " " * (LIMIT // 16 - 2) for n in range(16)), True),
    (TOPOLOGY_KEYS, ",".join(f"{'a.' * 126}{chr(97 + n)}/{'b' * 63}" for n in range(16)), True),
    (MIN_ENDPOINTS, f"{' ' * (LIMIT - 1)}1", True),
    (MIN_ENDPOINTS, '"' * LIMIT, False),
    (MAX_OVERLOAD, f"1.1{'0' * (LIMIT - 3)}", True),
    (MAX_OVERLOAD, "0" * LIMIT, False),
    (CLIENTS, ";" * LIMIT, False),
    (CLIENTS, "a" * LIMIT, False),
    (CLIENTS, f"{' ' * (LIMIT - 4)}shop", True),
    (CLIENTS, ";".join("shop/" + "a," * 59 + "a" for _ in range(16)), True),
    (CLIENTS, f"shop/{'a.' * 126}a/b in ({'c,' * 800}){',!d' * 25}", True),
    (HEALTH, f"http:80/{'/:' * (LIMIT // 2 - 4)}", False),
    (HEALTH, f"{' ' * (LIMIT - 1008)}http:80/{'a' * 999}", True),
    (HEALTH, "tcp:" * (LIMIT // 4), False),
)


@pytest.mark.parametrize(
    ("annotation", "text", "valid"), LONG, ids=lambda value: repr(value)[:20] if isinstance(value, str) else None
)
def test_a_long_value(guarded: ControlPlane, annotation: str, text: str, valid: bool) -> None:
    """As large as annotations can be, a value costs less than the API server allows, and is judged by the rules."""
    new = asking({annotation: text})
    refused = refusal_of_new(guarded, new)
    assert (refused is None) == valid
    assert_same(new, refused)


def test_long_values_side_by_side(guarded: ControlPlane) -> None:
    """All annotations together are cheap enough, too."""
    part = LIMIT // 5
    long = {TOPOLOGY_KEYS: "," * part, MIN_ENDPOINTS: "9" * part, MAX_OVERLOAD: "9" * part, CLIENTS: "a" * part}
    new = asking({**long, HEALTH: "http:80/" + "é" * (part // 3)})
    assert_same(new, refusal_of_new(guarded, new))


@pytest.mark.parametrize(
    ("spec", "annotations", "valid"),
    [
        pytest.param(OPEN | LOCAL, GOOD, False, id="local"),
        pytest.param(OPEN | LOCAL, BAD, False, id="local-with-bad-keys"),
        pytest.param(OPEN | LOCAL, {TOPOLOGY_KEYS: " "}, True, id="local-with-blank-keys"),
        pytest.param(OPEN | LOCAL, {MIN_ENDPOINTS: "2", HEALTH: "tcp"}, True, id="local-without-keys"),
        pytest.param(OPEN, GOOD, True, id="load-balancer"),
        pytest.param(OPEN | LOCAL, GOOD | FEDERATED, True, id="local-and-federated"),
        pytest.param(OPEN | LOCAL, BAD | FEDERATED, False, id="local-and-federated-with-bad-keys"),
        pytest.param({"externalIPs": ["192.0.2.9"]} | LOCAL, GOOD, False, id="headless-and-local"),
        pytest.param({"type": "ClusterIP"}, GOOD, True, id="cluster-ip"),
        pytest.param({"type": "ClusterIP"}, BAD, False, id="cluster-ip-with-bad-keys"),
        pytest.param({"type": "ExternalName", "externalName": "a.example"}, GOOD, True, id="external-name"),
        pytest.param({"type": "ExternalName", "externalName": "a.example"}, BAD, False, id="external-name-bad-keys"),
    ],
)
def test_every_type_of_service(
    guarded: ControlPlane, spec: Mapping[str, Any], annotations: Mapping[str, str], valid: bool
) -> None:
    """The values of annotations are judged alike for every type; ``externalTrafficPolicy: Local`` excludes keys."""
    new = asking(annotations, **spec)
    refused = refusal_of_new(guarded, new)
    assert (refused is None) == valid
    assert_same(new, refused)


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(asking({}, **OPEN, **LOCAL), id="Service"),
        pytest.param(item("Pod", "tried", WHERE, annotations=BAD, spec={"containers": [{"name": "a", "image": "a"}]}),
                     id="Pod"),
        pytest.param(
            item("EndpointSlice", "tried", WHERE, annotations=BAD, addressType="IPv4", endpoints=[], ports=[]),
            id="EndpointSlice",
        ),
    ],
)  # fmt: skip
def test_what_is_not_concerned(guarded: ControlPlane, new: Item) -> None:
    """Services without these annotations, and other kinds, are left alone."""
    assert refusal_of_new(guarded, new) is None


# -- any values


def edited(valid: tuple[str, str], at: int, cut: int, inserted: str, spec: Item) -> Item:
    """Return a Service whose annotation was valid before something was cut out, or inserted, somewhere in it."""
    annotation, text = valid
    return asking({annotation: text[:at] + inserted + text[at + cut :]}, **spec)


SERVICES = st.builds(
    edited,
    st.sampled_from([(annotation, text) for annotation, text, valid in ROWS if annotation in ANNOTATIONS and valid]),
    st.integers(0, 50),
    st.sampled_from([0, 0, 0, 1, 2, 20]),
    st.sampled_from(["", "", "a", "a", "0", "A", "-", ".", "/", ",", ",*", "*,", " ", "\n", "\x1f", ":", ";", "=", "é"])
    | st.text(max_size=3),
    st.sampled_from([{}] * 7 + [OPEN | LOCAL]),
)


def drawn(strategy: st.SearchStrategy[Item], count: int) -> list[Item]:
    """Return examples, the same ones in every run."""
    examples: list[Item] = []

    @settings(max_examples=count)
    @given(strategy)
    def draw(example: Item) -> None:
        examples.append(example)

    draw()
    return examples


def test_any_values(guarded: ControlPlane) -> None:
    """The policy and our functions agree on whatever stands in the annotations."""
    services = drawn(SERVICES, 300)
    with ThreadPoolExecutor(THREADS) as pool:
        refusals = list(pool.map(lambda new: refusal_of_new(guarded, new), services))
    for new, refused in zip(services, refusals, strict=True):
        assert_same(new, refused)
    admitted = refusals.count(None)
    assert 100 < admitted < 200, "the values are too much alike"


# -- what was there before


@pytest.mark.parametrize("case", UPDATES)
def test_an_update(guarded: ControlPlane, case: str) -> None:
    """A value that was invalid before may stay as it is; nobody can write another invalid one."""
    update = UPDATES[case]
    path = guarded.api.path_of(older(case), sub=update.sub)
    refused = refusal(guarded, "PATCH", path, update.change, media="application/merge-patch+json")
    assert refused is None if update.words is None else refused is not None and update.words in refused
