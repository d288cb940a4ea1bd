# SPDX-License-Identifier: Apache-2.0

"""``explain`` says which source of constraints decides and why the others do not, and the same of each endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from dnsserver.text import BOLD, PLAIN
from dnsserver.tools.explain.explanation import Explanation
from dnsserver.tools.explain.explanation_text import as_text
from tests.kit import api_objects
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    namespace,
    node,
    service,
    service_policy,
)
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import snapshot_of
from tests.kit.random_cluster import world

NODES = [
    node("a1", {ZONE: "a", RACK: "r1", REGION: "r"}, addresses=["127.1.0.1"]),
    node("a2", {ZONE: "a", RACK: "r2", REGION: "r"}, addresses=["127.1.0.2"]),
    node("b1", {ZONE: "b", RACK: "r1", REGION: "r"}, addresses=["127.1.0.3"]),
    node("edge", {}, addresses=["127.1.0.4"]),
]
UNKNOWN = "203.0.113.9"
ONE_FOR_ZONES = [{"forZones": [{"name": zone}]} for zone in "aab"]


def cluster(
    web: Item, policies: Sequence[Item] = (), hints: Sequence[Any] = (None,) * 3, *, on: str | None = None
) -> list[Item]:
    """Return the Service *web*: endpoints on a1, a2 and b1, one that is not ready, maybe another one *on* a node."""
    rows = zip(("a1", "a2", "b1"), hints, strict=True)
    endpoints = [
        endpoint(f"10.0.0.{number}", nodeName=name, targetRef={"kind": "Pod", "name": f"web-{number}"},
                 **({"hints": hinted} if hinted else {}))
        for number, (name, hinted) in enumerate(rows, 1)
    ]  # fmt: skip
    endpoints.append(endpoint("10.0.0.4", nodeName="b1", ready=False, targetRef={"kind": "Pod", "name": "web-4"}))
    if on:
        endpoints.append(endpoint("10.0.0.5", nodeName=on))
    return [namespace("shop"), *NODES, web, endpoint_slice("web", 1, endpoints, ports=[("http", 80, "TCP")]), *policies]


def explained(
    items: Sequence[Item],
    name: str = "web.shop.svc.cluster.local",
    rtype: str = "A",
    *,
    client: str = "127.1.0.1",
    flags: Mapping[str, Any] | None = None,
    candidates: bool = True,
) -> Explanation:
    return explanation_of(snapshot_of(items, flags), name, client, rtype, flags=flags, candidates=candidates)


ZONE_DEFAULT = {"default-topology-keys": [f"cluster.local={REGION},*"]}
REQUIRES = service_policy("in-zone", ZONE, "required")
PREFERS = service_policy("near", RACK, "preferred")
IGNORED = service_policy("off", HOSTNAME, "ignored")
KEYLESS = service_policy("keyless", None)
WEB = {"labels": {"app": "web"}}
ALL_SPEAK = service("web", keys=f"{ZONE},*", field=[HOSTNAME], trafficDistribution="PreferSameZone", **WEB)

SOURCES = {
    # case: items, name, flags, [(source, heard, why)]
    "every-source": (
        cluster(ALL_SPEAK, [REQUIRES, PREFERS, IGNORED], ONE_FOR_ZONES), "", ZONE_DEFAULT,
        [("policy", True, "the first source that declares one"), ("policy", False, "its mode is Ignored"),
         ("annotation", False, "overridden by policy"), ("field", False, "overridden by policy"),
         ("hints", False, "overridden by policy"), ("traffic-distribution", False, "overridden by policy"),
         ("zone-default", False, "overridden by policy")]),
    "annotation": (
        cluster(ALL_SPEAK, [IGNORED], ONE_FOR_ZONES), "", {},
        [("policy", False, "its mode is Ignored"), ("annotation", True, "the first source that declares one"),
         ("field", False, "overridden by annotation"), ("hints", False, "overridden by annotation"),
         ("traffic-distribution", False, "overridden by annotation")]),
    "policy-without-key": (
        cluster(ALL_SPEAK, [KEYLESS, IGNORED], ONE_FOR_ZONES), "", {},
        [("policy", False, "it has no topology key"), ("policy", False, "its mode is Ignored"),
         ("annotation", True, "the first source that declares one"), ("field", False, "overridden by annotation"),
         ("hints", False, "overridden by annotation"),
         ("traffic-distribution", False, "overridden by annotation")]),
    "invalid": (
        cluster(service("web", keys=f"*,{ZONE}", field=[ZONE])), "", {},
        [("annotation", True,
          "invalid, so that nothing is narrowed: '*' is key 1 of 2, but only the last key may be '*'"),
         ("field", False, "overridden by annotation")]),
    "invalid-and-overridden": (
        cluster(service("web", keys=f"*,{ZONE}", **WEB), [PREFERS]), "", {},
        [("policy", True, "the first source that declares one"), ("annotation", False, "overridden by policy")]),
    "own-keys-of-peers": (
        cluster(service("web", field=[ZONE], publishNotReadyAddresses=True, **WEB), [REQUIRES]), "", {},
        [("field", True, "the first source that declares one"), ("policy", False, "overridden by field")]),
    "policy-of-peers": (
        cluster(service("web", publishNotReadyAddresses=True, **WEB), [REQUIRES]), "", {},
        [("policy", True, "without effect: the Service publishes addresses that are not ready, "
                          "so only its own topology keys apply")]),
    "cluster-ip": (
        cluster(service("web", keys=ZONE, cluster_ips=["10.96.0.1"], trafficDistribution="PreferClose")),
        "", ZONE_DEFAULT,
        [("annotation", True, "without effect: the Service is not headless"),
         ("traffic-distribution", False, "overridden by annotation")]),
    "switched-off": (
        cluster(service("web", trafficDistribution="PreferClose"), hints=ONE_FOR_ZONES), "",
        {"traffic-distribution": "ignore", **ZONE_DEFAULT},
        [("hints", False, "switched off by --traffic-distribution ignore"),
         ("traffic-distribution", False, "switched off by --traffic-distribution ignore"),
         ("zone-default", True, "no other source declares one")]),
    "topology-mode-auto": (
        cluster(service("web", trafficDistribution="PreferClose",
                        annotations={"service.kubernetes.io/topology-mode": "Auto"})), "", {},
        [("hints", False, "the Service's topology mode is Auto, and no ready endpoint has a hint"),
         ("traffic-distribution", True,
          "the Service's topology mode is Auto, which switches trafficDistribution off")]),
    "some-hints": (
        cluster(service("web", trafficDistribution="PreferClose"), hints=[*ONE_FOR_ZONES[:2], None]), "", {},
        [("hints", False, "some ready endpoints have no hint, so none counts"),
         ("traffic-distribution", True, "the first source that declares one")]),
    "some-hints-and-nothing-else": (
        cluster(service("web"), hints=[*ONE_FOR_ZONES[:2], None]), "", ZONE_DEFAULT,
        [("hints", False, "some ready endpoints have no hint, so none counts"),
         ("zone-default", True, "no other source declares one")]),
    "zonal-name": (
        cluster(service("web", keys=HOSTNAME)), "b.pin._zone.", ZONE_DEFAULT,
        [("zonal-name", True, "the name states it"), ("annotation", False, "the name states a constraint of its own"),
         ("zone-default", False, "the name states a constraint of its own")]),
    "endpoint": (
        cluster(service("web", keys=HOSTNAME, **WEB), [IGNORED]), "10-0-0-3.", ZONE_DEFAULT,
        [("policy", False, "its mode is Ignored"), ("annotation", False, "an endpoint's own name is never narrowed"),
         ("zone-default", False, "an endpoint's own name is never narrowed")]),
    "nobody": (cluster(service("web")), "", {}, []),
    "no-such-service": (cluster(service("web", keys=HOSTNAME)), "no.", ZONE_DEFAULT, []),
}  # fmt: skip


@pytest.mark.parametrize(("items", "prefix", "flags", "expected"), SOURCES.values(), ids=SOURCES)
def test_sources(items: list[Item], prefix: str, flags: dict[str, Any], expected: list[tuple[str, bool, str]]) -> None:
    """All sources that declare a constraint are listed in order of precedence, with why each decides or not."""
    name = "none.shop.svc.cluster.local" if prefix == "no." else f"{prefix}web.shop.svc.cluster.local"
    said = explained(items, name, flags=flags)
    assert [(row.source, row.decides, row.why) for row in said.sources] == expected
    heard = [row for row in said.sources if row.decides]
    if heard:
        assert (said.constraint.source, said.constraint.keys) == (heard[0].source, heard[0].keys)


def test_what_a_service_import_declares_comes_before_what_the_service_of_its_name_does() -> None:
    """So its annotation comes before the ServicePolicies of that Service; the default of the DNS zone comes last."""
    items = [
        *cluster(ALL_SPEAK, [REQUIRES]),
        api_objects.service_import("web", keys=f"{RACK},*"),
        api_objects.imported_slice("web", "east", [endpoint("10.9.0.1", zone="a")]),
    ]
    flags = {"multicluster": ["clusterset.local"], "default-topology-keys": [f"clusterset.local={REGION}"]}
    rows = explained(items, "web.shop.svc.clusterset.local", flags=flags).sources
    assert [(row.source, row.keys, row.decides) for row in rows][:3] == [
        ("annotation", (RACK, "*"), True), ("policy", (ZONE,), False), ("annotation", (ZONE, "*"), False),
    ]  # fmt: skip
    assert rows[-1].source == "zone-default"


@pytest.mark.parametrize(("label", "own"), [("east", False), ("lone", True)], ids=["cluster", "endpoint"])
def test_a_clusters_name_is_no_endpoints_own_name(label: str, own: bool) -> None:
    """An endpoint of a multi-cluster Service whose slice names no cluster has a name of the same form."""
    items = [
        *cluster(service("web")),
        api_objects.service_import("web", keys=f"{ZONE},*"),
        api_objects.imported_slice("web", "east", [endpoint("10.9.0.1", zone="a")]),
        api_objects.imported_slice("web", None, [endpoint("10.9.0.2", zone="b", hostname="lone")]),
    ]
    name, flags = f"{label}.web.shop.svc.clusterset.local", {"multicluster": ["clusterset.local"]}
    (row,) = explained(items, name, flags=flags).sources
    assert (row.why == "an endpoint's own name is never narrowed") == own


def test_an_alias_shows_the_sources_of_its_target() -> None:
    """An ExternalName Service that leads to a Service, or to a zonal name of it."""
    plain = external("plain", "web.shop.svc.cluster.local")
    zonal = external("zonal", "b.pin._zone.web.shop.svc.cluster.local")
    items = [*cluster(service("web", keys=ZONE)), plain, zonal]
    heard = {
        name: [row.source for row in explained(items, f"{name}.shop.svc.cluster.local").sources if row.decides]
        for name in ("plain", "zonal")
    }
    assert heard == {"plain": ["annotation"], "zonal": ["zonal-name"]}


SAME_ZONE, OTHER_ZONE = f"has the client's {ZONE}", f"{ZONE} is b, not a"
NOT_READY = (False, "not ready")
CANDIDATES = {
    # case: items, what is asked, {address: (chosen, why)}
    "first-match": (
        cluster(service("web", keys=f"{ZONE},*")), {},
        [(True, SAME_ZONE), (True, SAME_ZONE), (False, OTHER_ZONE), NOT_READY]),
    "no-label": (
        cluster(service("web", keys=f"{ZONE},*"), on="edge"), {},
        [(True, SAME_ZONE), (True, SAME_ZONE), (False, OTHER_ZONE), NOT_READY, (False, f"has no {ZONE}")]),
    "any": (
        cluster(service("web", keys=f"{HOSTNAME},*")), {"client": "127.1.0.4"},
        [(True, "none is nearer, and the constraint allows any")] * 3 + [NOT_READY]),
    "unmet": (
        cluster(service("web", keys=f"{HOSTNAME},{ZONE}")), {"client": "127.1.0.4"},
        [(False, f"{HOSTNAME} is a1, not edge; the client has no {ZONE}"),
         (False, f"{HOSTNAME} is a2, not edge; the client has no {ZONE}"),
         (False, f"{HOSTNAME} is b1, not edge; the client has no {ZONE}"), NOT_READY]),
    "unknown-client": (
        cluster(service("web", keys=f"{HOSTNAME},{ZONE}")), {"client": UNKNOWN},
        [(False, "the client cannot be located, so it has no labels")] * 3 + [NOT_READY]),
    "unknown-client-gets-all": (
        cluster(service("web", keys=ZONE)), {"client": UNKNOWN, "flags": {"unknown-client": "all"}},
        [(True, "the client is unknown, and --unknown-client is all")] * 3 + [NOT_READY]),
    "unknown-client-of-a-soft-constraint": (
        cluster(service("web", keys=f"{ZONE},*")), {"client": UNKNOWN},
        [(True, "the client cannot be located, and the constraint allows any")] * 3 + [NOT_READY]),
    "unknown-client-and-hints": (
        cluster(service("web"), hints=ONE_FOR_ZONES), {"client": UNKNOWN},
        [(True, "the client cannot be located, and the constraint allows any")] * 3 + [NOT_READY]),
    "too-few": (
        cluster(service("web", keys=f"{RACK},{ZONE},*", least="3")), {"client": "127.1.0.2"},
        [(True, "too few are nearer (min-endpoints is 3), and the constraint allows any")] * 3 + [NOT_READY]),
    "too-few-for-a-policy": (
        cluster(service("web", least="3", **WEB), [PREFERS]), {},
        [(True, "too few are nearer (min-endpoints is 3), and the constraint allows any")] * 3 + [NOT_READY]),
    "too-few-of-one-key": (
        cluster(service("web", keys=f"{RACK},{ZONE},*", least="3"), on="a2"), {},
        [(True, SAME_ZONE), (True, SAME_ZONE),
         (False, f"{OTHER_ZONE}; {RACK} is the client's, but 2 with it are too few (min-endpoints is 3)"), NOT_READY,
         (True, SAME_ZONE)]),
    "too-few-of-all-keys": (
        cluster(service("web", keys=f"{RACK},{ZONE}", least="3")), {"client": "127.1.0.3"},
        [(True, f"has the client's {RACK}"), (False, f"{RACK} is r2, not r1"), (True, f"has the client's {RACK}"),
         NOT_READY]),
    "policies": (
        cluster(service("web", **WEB), [REQUIRES, PREFERS]), {},
        [(True, f"has the client's {ZONE} and {RACK}"), (False, f"{RACK} is r2, not r1 (policy near)"),
         (False, f"{ZONE} is b, not a (policy in-zone)"), NOT_READY]),
    "policies-unmet": (
        cluster(service("web", **WEB), [REQUIRES]), {"client": "127.1.0.4"},
        [(False, f"the client has no {ZONE} (policy in-zone)")] * 3 + [NOT_READY]),
    "preferred-too-few": (
        cluster(service("web", least="2", **WEB), [REQUIRES, PREFERS]), {},
        [(True, SAME_ZONE), (True, SAME_ZONE), (False, f"{ZONE} is b, not a (policy in-zone)"), NOT_READY]),
    "hints-for-zones": (
        cluster(service("web"), hints=ONE_FOR_ZONES), {},
        [(True, "its hints name the client's zone")] * 2
        + [(False, "its hints name zone b, not the client's a"), NOT_READY]),
    "hints-for-nodes": (
        cluster(service("web"), hints=[{"forNodes": [{"name": name}]} for name in ("a1", "a2", "b1")]), {},
        [(True, "its hints name the client's node"), (False, "its hints name node a2, not the client's a1"),
         (False, "its hints name node b1, not the client's a1"), NOT_READY]),
    "some-hints": (
        cluster(service("web"), hints=[*ONE_FOR_ZONES[:2], None]), {},
        [(True, "no constraint is in effect: some ready endpoints have no hint, so none counts")] * 3 + [NOT_READY]),
    "hints-for-others": (
        cluster(service("web"), hints=ONE_FOR_ZONES), {"client": "127.1.0.4"},
        [(True, "no hint names the client's zone")] * 3 + [NOT_READY]),
    "pinned": (
        cluster(service("web")), {"name": "b.pin._zone.web.shop.svc.cluster.local"},
        [(False, f"{ZONE} is a, not b"), (False, f"{ZONE} is a, not b"), (True, f"has {ZONE}=b"), NOT_READY]),
    "pinned-where-nothing-is": (
        cluster(service("web")), {"name": "z.pin._zone.web.shop.svc.cluster.local", "client": UNKNOWN},
        [(False, f"{ZONE} is a, not z"), (False, f"{ZONE} is a, not z"), (False, f"{ZONE} is b, not z"), NOT_READY]),
    "preferred-zone": (
        cluster(service("web")), {"name": "z.prefer._zone.web.shop.svc.cluster.local"},
        [(True, f"none has {ZONE}=z, which the name prefers")] * 3 + [NOT_READY]),
    "unconstrained": (
        cluster(service("web")), {}, [(True, "the Service has no constraint")] * 3 + [NOT_READY]),
    "invalid": (
        cluster(service("web", keys="*,a")), {}, [(True, "the constraint is invalid")] * 3 + [NOT_READY]),
    "endpoint": (
        cluster(service("web", keys=ZONE)), {"name": "10-0-0-3.web.shop.svc.cluster.local"},
        [(False, "the name is another endpoint's")] * 2 + [(True, "the name is its own"), NOT_READY]),
    "no-such-endpoint": (
        cluster(service("web", keys=ZONE)), {"name": "10-0-0-5.web.shop.svc.cluster.local"},
        [(False, "no ready endpoint of the Service has this name")] * 3 + [NOT_READY]),
    "cluster-ip": (
        cluster(service("web", cluster_ips=["10.96.0.1"])), {},
        [(False, "kube-proxy chooses behind the cluster IP")] * 3 + [NOT_READY]),
    "other-family": (
        cluster(service("web", keys=ZONE)), {"rtype": "AAAA"},
        [(True, f"{SAME_ZONE}, but has no AAAA record")] * 2 + [(False, OTHER_ZONE), NOT_READY]),
    "other-type": (
        cluster(service("web", keys=ZONE)), {"rtype": "TXT"},
        [(False, "this name has records of type A, AAAA and SRV alone")] * 3 + [NOT_READY]),
    "port": (
        cluster(service("web", keys=ZONE)), {"name": "_http._tcp.web.shop.svc.cluster.local", "rtype": "SRV"},
        [(True, SAME_ZONE), (True, SAME_ZONE), (False, OTHER_ZONE), NOT_READY]),
    "nothing-ready": (
        [*NODES, service("web", keys=ZONE), endpoint_slice("web", 1, [endpoint("10.0.0.1", ready=False)])], {},
        [NOT_READY]),
    "alias": (
        [*cluster(service("web", keys=ZONE)), external("alias", "web.shop.svc.cluster.local")],
        {"name": "alias.shop.svc.cluster.local"},
        [(True, SAME_ZONE), (True, SAME_ZONE), (False, OTHER_ZONE), NOT_READY]),
}  # fmt: skip


@pytest.mark.parametrize(("items", "asked", "expected"), CANDIDATES.values(), ids=CANDIDATES)
def test_candidates(items: list[Item], asked: dict[str, Any], expected: list[tuple[bool, str]]) -> None:
    """Every endpoint of the Service is listed once, with the reason why it was chosen or not."""
    rows = {row.addresses[0]: (row.chosen, row.why) for row in explained(items, **asked).candidates}
    assert rows == {f"10.0.0.{number}": row for number, row in enumerate(expected, 1)}


NO_A, OF_A = "no endpoint with an A record", "every ready endpoint with an A record"
ANY_A = f"{NO_A} is nearer, and the constraint allows any"
TOO_FEW = "too few with an A record are nearer (min-endpoints is 2), and the constraint allows any"
NOT_HINTED = "no hint of an endpoint with an A record names the client's zone"
PREFERRED = f"{ZONE}=a, which the name prefers"
OTHER = f"{ZONE} is b, not a"
OF_A_FAMILY = {
    # case: Service, hints, first label, type, reason, why (of the first one)
    "any": (service("web", keys=f"{ZONE},*"), False, "", "A", f"{OF_A}: {ANY_A}", ANY_A),
    "nearest": (service("web", keys=f"{ZONE},{RACK},*"), False, "", "A",
                "the endpoints with an A record nearest to the client", f"has the client's {RACK}"),
    "too-few": (service("web", keys=f"{ZONE},{RACK},*", least="2"), False, "", "A", f"{OF_A}: {TOO_FEW}", TOO_FEW),
    "policies": (service("web", labels={"app": "web"}), False, "", "A", f"{OF_A}: {ANY_A}", ANY_A),
    "hints": (service("web"), True, "", "A", f"{OF_A}: {NOT_HINTED}", NOT_HINTED),
    "zonal-name": (service("web"), False, "a.prefer._zone.", "A",
                   f"{OF_A}: {NO_A} has {PREFERRED}", f"{NO_A} has {PREFERRED}"),
    "zonal-name-of-all": (service("web"), False, "a.prefer._zone.", "SRV", f"the endpoints with {PREFERRED}", OTHER),
    "nearest-of-all": (service("web", keys=f"{ZONE},*"), False, "", "AAAA",
                       "the endpoints nearest to the client", OTHER),
}  # fmt: skip


@pytest.mark.parametrize(("web", "has_hints", "label", "rtype", "reason", "why"), OF_A_FAMILY.values(), ids=OF_A_FAMILY)
def test_the_reason_is_about_the_family_that_was_asked(
    web: Item, has_hints: bool, label: str, rtype: str, reason: str, why: str
) -> None:
    """Endpoints of IPv6 alone are nearer; so the choice of IPv4 endpoints was among those."""
    ports = [("http", 80, "TCP")]
    four, six = (
        [
            endpoint(f"{prefix}{number}", nodeName=name, **({"hints": hints} if has_hints else {}))
            for number, name in enumerate(nodes, 1)
        ]
        for prefix, nodes, hints in (
            ("10.0.0.", ("b1", "edge"), ONE_FOR_ZONES[2]),
            ("fd00::", ("a1", "a2"), ONE_FOR_ZONES[0]),
        )
    )
    slices = endpoint_slice("web", 1, four, ports=ports), endpoint_slice("web", 2, six, family="IPv6", ports=ports)
    items = [namespace("shop"), *NODES, web, *slices, service_policy("near", ZONE, "preferred")]
    said = explained(items, f"{label}web.shop.svc.cluster.local", rtype)
    rows = {row.addresses[0]: row.why for row in said.candidates}
    assert (said.reason, rows["10.0.0.1"]) == (reason, why)


def test_a_candidate() -> None:
    """The fields of one; those that were chosen come first, those that are not ready last."""
    rows = explained(cluster(service("web", keys=f"{RACK},{ZONE},*"))).candidates
    assert [row.pod for row in rows] == ["web-1", "web-3", "web-2", "web-4"]
    assert msgspec.json.decode(msgspec.json.encode(rows[1])) == {
        "addresses": ["10.0.0.3"], "pod": "web-3", "node": "b1", "cluster": "local", "ready": True,
        "values": {RACK: "r1", ZONE: "b"}, "chosen": True, "why": f"has the client's {RACK}",
    }  # fmt: skip
    assert (rows[3].ready, rows[3].values) == (False, {RACK: "r1", ZONE: "b"})
    no_zone = explained(cluster(service("web", keys=ZONE), on="edge")).candidates[2]
    assert (no_zone.pod, no_zone.node, no_zone.values) == (None, "edge", {ZONE: None})


@pytest.mark.parametrize(
    ("items", "asked"),
    [(cluster(service("web")), {"candidates": False}),
     (cluster(service("web")), {"name": "none.shop.svc.cluster.local"}),
     (cluster(service("web")), {"name": "1.0.0.10.in-addr.arpa", "rtype": "PTR"}),
     (cluster(service("web")), {"flags": {"no-endpoints": True}}),
     ([*cluster(service("web")), external("out", "example.org")], {"name": "out.shop.svc.cluster.local"})],
    ids=["not-asked-for", "no-service", "reverse", "no-endpoints", "alias-of-elsewhere"],
)  # fmt: skip
def test_no_candidates(items: list[Item], asked: dict[str, Any]) -> None:
    """The list is empty without ``--candidates``, and where there is no Service with endpoint records."""
    assert explained(items, **asked).candidates == ()


def test_a_pod_with_two_families_is_one_candidate() -> None:
    """As it is one endpoint of a selection; while it moves between slices, it is ready if it is in one."""
    pod = {"nodeName": "a1", "targetRef": {"kind": "Pod", "name": "web-1"}}
    items = [
        *NODES, service("web", keys=ZONE), endpoint_slice("web", 1, [endpoint("10.0.0.1", **pod)]),
        endpoint_slice("web", 2, [endpoint("fd00::1", **pod)], family="IPv6"),
        endpoint_slice("web", 3, [endpoint("10.0.0.1", ready=False, **pod)]),
    ]  # fmt: skip
    (row,) = explained(items).candidates
    assert (row.addresses, row.ready, row.chosen) == (("10.0.0.1", "fd00::1"), True, True)


@pytest.mark.parametrize("seed", range(8))
def test_candidates_agree_with_the_answer(seed: int) -> None:
    """In random clusters, the candidates are all endpoints, and the chosen ones have the addresses of the answer."""
    made = world(seed)
    snapshot = snapshot_of(made.items)
    for name in made.names:
        for client in made.addresses[::12]:
            said = explanation_of(snapshot, name, client, candidates=True)
            rows, service_of = said.candidates, said.service
            if service_of is None:
                assert rows == ()
                continue
            compiled = snapshot.services[f"{service_of.namespace}/{service_of.name}"]
            assert sum(row.ready for row in rows) == len(compiled.endpoints)
            assert all(row.why for row in rows)
            if compiled.service.headless:
                chosen = {text for row in rows if row.chosen for text in row.addresses if ":" not in text}
                assert {row.data for row in said.answers if row.type == "A"} <= chosen
                if said.steps:
                    assert chosen == {row.data for row in said.answers if row.type == "A"}


# --- As text ----------------------------------------------------------------------------------------------------------


def text_of(said: Explanation) -> str:
    text = as_text(said)
    columns = {re.match(r"(\S+)?\s*", line).end() for line in text.splitlines()}  # type: ignore[union-attr]
    assert columns == {12}, "values stand below each other"
    return text


def test_overridden_sources_as_text() -> None:
    """One row for each source that does not count, with the reason; lists of keys are wrapped."""
    policies = [REQUIRES, PREFERS, IGNORED, KEYLESS]
    text = text_of(explained(cluster(ALL_SPEAK, policies, ONE_FOR_ZONES), candidates=False))
    assert (
        f"""
constraint  {ZONE}, {RACK}  (by policy)
            required: {ZONE}
            policies: in-zone, near
declared    policy keyless (it has no topology key)
            policy off (its mode is Ignored): {HOSTNAME}
            annotation (overridden by policy): {ZONE}, *
            field (overridden by policy): {HOSTNAME}
            hints (overridden by policy): {ZONE}, *
            traffic-distribution (overridden by policy): {ZONE}, *
step        {ZONE}=a  2 endpoints  required by in-zone
            {f"{RACK}=r1":{len(ZONE) + 2}}  1 endpoint   preferred by near
"""
        in text
    )
    keys = ",".join(f"example.com/a-rather-long-key-{number}" for number in range(16))
    for row in (service("web", keys=keys), service("web", keys=HOSTNAME, field=keys.split(","))):
        assert max(map(len, text_of(explained(cluster(row), candidates=False)).splitlines())) <= 100


def test_nothing_is_heard_as_text() -> None:
    """An endpoint's own name has no constraint; what the Service asks for is shown as declared."""
    text = text_of(explained(cluster(service("web", keys=ZONE)), "10-0-0-3.web.shop.svc.cluster.local"))
    assert f"constraint  none\ndeclared    annotation (an endpoint's own name is never narrowed): {ZONE}\n" in text


def test_the_node_of_a_candidate() -> None:
    """It is the one that the endpoint is on, whoever says so: here, its pod."""
    running = api_objects.pod("web-1", ["10.0.0.1"], "a1")
    rows = [{**endpoint("10.0.0.1"), "targetRef": {"kind": "Pod", "name": "web-1"}}, endpoint("10.0.0.2")]
    items = [*NODES, running, service("web", keys=ZONE), endpoint_slice("web", 1, rows)]
    assert [row.node for row in explained(items).candidates] == ["a1", None]


def test_candidates_as_text() -> None:
    """A table with a column for each key; names of keys are short where that is clear."""
    text = text_of(explained(cluster(service("web", keys=f"{HOSTNAME},{ZONE},*"), on="edge"), client="127.1.0.2"))
    assert text.endswith("""
candidates  CHOSEN  POD    ADDRESS   NODE  ZONE  WHY
            yes     web-2  10.0.0.2  a2    a     has the client's hostname
            no      -      10.0.0.5  edge  -     hostname is edge, not a2
            no      web-1  10.0.0.1  a1    a     hostname is a1, not a2
            no      web-3  10.0.0.3  b1    b     hostname is b1, not a2
            no      web-4  10.0.0.4  b1    b     not ready
""")
    renamed = [node("n1", {HOSTNAME: "host-1"}), service("web", keys=HOSTNAME),
               endpoint_slice("web", 1, [endpoint("10.0.0.1", nodeName="n1")])]  # fmt: skip
    assert "NODE  HOSTNAME  WHY" in text_of(explained(renamed))
    same = text_of(explained(cluster(service("web", keys=f"{ZONE},example.com/zone,*"))))
    assert f"{ZONE.upper()}  EXAMPLE.COM/ZONE" in same and f"has the client's {ZONE}" in same


def test_candidates_in_colour() -> None:
    """Colours change no column."""
    said = explained(cluster(service("web", keys=ZONE)))
    coloured = as_text(said, colour=True)
    assert f"{BOLD}candidates{PLAIN}" in coloured
    assert re.sub("\033\\[\\d+m", "", coloured) == as_text(said)
