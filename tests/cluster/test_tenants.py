# SPDX-License-Identifier: Apache-2.0

"""What the owner of one namespace can do to others through topodns: what docs/security.md says.

On a real API server, a tenant has Kubernetes' own role ``admin`` in a namespace, and the right that a row of the page
is about. In memory, tenants write anything into any cluster.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import quote

import dns.message
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locator.ip import Network, parse_address
from locator.places.book import Place
from tests.kit import api_objects, kustomize, random_cluster
from tests.kit.api_objects import (
    IMPORTED_SERVICE_NAME,
    MANAGED_BY,
    SERVICE_NAME,
    SLICE_CONTROLLER,
    SOURCE_CLUSTER,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    endpoints,
    external,
    item,
    namespace,
    node,
    pod,
    pod_locator,
    service,
    service_import,
)
from tests.kit.in_memory import ask_in_memory, responder_of, snapshot_of
from tests.kit.kube import KINDS, Api, ApiError, ControlPlane, multicluster_api
from tests.kit.kustomize import objects_of
from tests.kit.live_server import addresses, answered, asked, serving_live
from tests.kit.page_commands import section
from tests.kit.random_cluster import chance
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server
from tests.kit.unshrunk import unshrunk
from tests.kit.waiting import until

PAGE, HEADING = ROOT / "docs" / "security.md", "What the owner of a namespace can do"
SHOP, FEDERATION = "tn-shop", "fed.example.com"
RBAC = "rbac.authorization.k8s.io"
SOURCES = ("pods,nodes", "nodes")  # --client-source of the servers that are asked

POD_A, FREE_A, NODE_A, OUTSIDE, POD_B = "10.231.1.9", "10.231.1.99", "192.168.231.1", "198.51.100.231", "10.231.2.9"
CLIENTS = (POD_A, FREE_A, NODE_A, OUTSIDE, POD_B)  # each has another way to be located
NODES = [
    node("tn-a", {ZONE: "a"}, cidrs=["10.231.1.0/24"], addresses=[NODE_A]),
    node("tn-b", {ZONE: "b"}, cidrs=["10.231.2.0/24"], addresses=["192.168.231.2"]),
]
ADDRESS_A, ADDRESS_B = "10.231.1.10", "10.231.2.10"
WEB = {"app": "web"}
API = "10.96.231.1"
NEIGHBOUR = [
    pod("web-a", [ADDRESS_A], "tn-a", where=SHOP, labels=WEB),
    pod("web-b", [ADDRESS_B], "tn-b", where=SHOP, labels=WEB),
    pod("client-a", [POD_A], "tn-a", where=SHOP),
    pod("client-b", [POD_B], "tn-b", where=SHOP),
    service("web", where=SHOP, keys=f"{ZONE},*", labels=WEB, selector=WEB),
    service("api", where=SHOP, cluster_ips=(API,), labels=WEB, selector=WEB),
    service("broken", where=SHOP, keys="*,a", labels=WEB, selector=WEB),
    item("ServiceExport", "web", SHOP),
]
QUESTIONS = [
    *((f"web.{SHOP}.svc.cluster.local", rtype) for rtype in ("A", "AAAA", "SRV")),
    (f"api.{SHOP}.svc.cluster.local", "A"),
    (f"broken.{SHOP}.svc.cluster.local", "A"),
    (f"web.{SHOP}.{FEDERATION}", "A"),
    ("kubernetes.default.svc.cluster.local", "A"),
]


class Tenant(NamedTuple):
    """A namespace, a client of the API server with the rights of its owner, and one with all rights."""

    where: str
    api: Api
    cluster: Api

    def create(self, *items: Item) -> None:
        """Create objects as the owner, who cannot write a status."""
        for made in items:
            self.api.request("POST", self.api.path(made["kind"], self.where), made)

    def run_pod(self, name: str, on: str, address: str, **spec: object) -> None:
        """Create a pod on a node as the owner; the node's kubelet alone can report its address."""
        made = pod(name, [ADDRESS_A], on, where=self.where, labels={"app": name}, **spec)
        self.create(made)
        assert "podIPs" not in self.api.request("GET", self.api.path_of(made))["status"]
        with pytest.raises(ApiError, match="forbidden"):
            self.api.patch_status(made, made["status"])
        self.cluster.run_pod(made, on, address)


class Row(NamedTuple):
    """What one can do: the row of the page, the deed, and what the tenant's own name then answers.

    ``kinds`` are those that the owner may write beside what the role ``admin`` says.
    """

    title: str
    kinds: tuple[str, ...]
    attack: Callable[[Tenant], None]
    name: str
    seen: set[str]


def claims() -> list[Item]:
    """Return endpoints at the addresses of others, all on a node in the other zone."""
    return [endpoint(address, nodeName="tn-b", zone="b") for address in (*CLIENTS, ADDRESS_A, API)]


CLAIMED = {*CLIENTS, ADDRESS_A, API}
KEPT = "Kubernetes' own controller keeps this EndpointSlice"  # why the admission policy refuses one


def services(tenant: Tenant) -> None:
    where = tenant.where
    tenant.create(
        external("loop", f"loop.{where}.svc.cluster.local", where=where),
        external("web", f"web.{SHOP}.svc.cluster.local", where=where),
        service("odd", where=where, keys="*,a", annotations={f"topodns.io/x{number}": "" for number in range(999)}),
        service("claim", where=where, cluster_ips=(), selector=WEB, labels={"k8s-app": "kube-dns"},
                externalIPs=[ADDRESS_A, OUTSIDE], annotations={"topodns.io/federated": "true"}),
        service("kube-dns", where=where, keys=ZONE, selector={"app": "own"}),
    )  # fmt: skip
    tenant.run_pod("own", "tn-b", "10.231.2.77")


def slices(tenant: Tenant) -> None:
    tenant.create(
        service("claim", where=tenant.where),
        endpoint_slice("claim", 1, claims(), where=tenant.where, by=SLICE_CONTROLLER),
        endpoint_slice("web", 1, claims(), where=tenant.where, labels={"kubernetes.io/namespace": SHOP}),
    )


def deleted_slice(tenant: Tenant) -> None:
    """The controller drops a slice that has been deleted from its work, and a finalizer keeps it in place."""
    made = endpoint_slice("claim", 1, [], where=tenant.where, by=SLICE_CONTROLLER)
    made["metadata"]["finalizers"] = ["example.com/stays"]
    tenant.create(service("claim", where=tenant.where, selects=True), made)
    tenant.api.delete(made)
    tenant.api.patch(made, {"endpoints": claims()})


def mirrored(tenant: Tenant) -> None:
    rows = [{"ip": address, "nodeName": "tn-b"} for address in CLAIMED]
    tenant.create(
        service("claim", where=tenant.where),
        endpoints("claim", {"addresses": rows, "ports": [{"port": 80}]}, where=tenant.where),
    )


def pods(tenant: Tenant) -> None:
    tenant.create(service("claim", where=tenant.where, selector={"app": "host"}))
    tenant.run_pod("host", "tn-b", "192.168.231.2", hostNetwork=True)
    tenant.create(pod("nowhere", [], "no-such-node", where=tenant.where, labels={"k8s-app": "kube-dns"}))


def policies(tenant: Tenant) -> None:
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    spec = {"serviceSelector": selector, "topology": {"key": "no-such-key", "mode": "required"}}
    tenant.create(
        item("ServicePolicy", "all", tenant.where, spec=spec),
        service("claim", where=tenant.where, labels=WEB, selector={"app": "own"}),
    )
    tenant.run_pod("own", "tn-b", "10.231.2.77")


def locators(tenant: Tenant) -> None:
    labels = {ZONE: "b"}
    tenant.create(
        pod_locator("claim", tenant.where, list(CLAIMED), nodeName="tn-b", nodeLabels=labels),
        pod_locator("client-a", tenant.where, [POD_A], nodeName="tn-b", nodeLabels=labels),
    )
    tenant.create(service("claim", where=tenant.where, selector={"app": "own"}))
    tenant.run_pod("own", "tn-b", "10.231.2.77")


def exports(tenant: Tenant) -> None:
    tenant.create(
        item("ServiceExport", "web", tenant.where),
        {**item("ServiceImport", "web", tenant.where), "spec": {"type": "Headless", "ports": []}},
        service("web", where=tenant.where, keys="*", selector={"app": "own"}),
    )
    tenant.run_pod("own", "tn-b", "10.231.2.77")


ROWS = {
    "services": Row("Services", (), services, "kube-dns", set()),
    "slices": Row("EndpointSlices", ("EndpointSlice",), slices, "claim", CLAIMED),
    "deleted-slice": Row("EndpointSlices", ("EndpointSlice",), deleted_slice, "claim", CLAIMED),
    "endpoints": Row("Endpoints", ("Endpoints",), mirrored, "claim", CLAIMED),
    "pods": Row("Pods", (), pods, "claim", {"192.168.231.2"}),
    "policies": Row("ServicePolicies", ("ServicePolicy",), policies, "claim", set()),
    "locators": Row("PodLocators", ("PodLocator",), locators, "claim", {"10.231.2.77"}),
    "exports": Row(
        "ServiceExports, ServiceImports", ("ServiceExport", "ServiceImport"), exports, "web", {"10.231.2.77"}
    ),
}
# Rows about what the owner of a namespace may not write: with one of these objects that ``admin`` is refused.
NOT_THEIRS = {
    "Nodes": node("tn-evil", {ZONE: "b"}, cidrs=["10.231.1.0/25"]),
    "Namespaces": namespace("com"),
    "`kube-system`, the Corefile": service("kube-dns-2", where="kube-system", labels={"k8s-app": "kube-dns"}),
}
OTHERS = {"Another cluster"}  # tests of several clusters are about it


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A neighbour in two zones, with whatever topodns has names for."""
    crds = objects_of("base with health", "CustomResourceDefinition")
    with kustomize.installed(control_plane, crds), multicluster_api(control_plane):
        control_plane.settle(SHOP)
        control_plane.api.create(namespace(SHOP), *NODES, *NEIGHBOUR)
        yield control_plane
        control_plane.api.delete(*NEIGHBOUR, *NODES, namespace(SHOP))


@pytest.fixture(scope="module")
def servers(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """One server for each of ``SOURCES``."""
    flags = {"subnet": [f"198.51.100.0/24={ZONE}=a"], "federation": [FEDERATION]}
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                serving_live(tmp_path_factory.mktemp("tenants"), cluster.kubeconfig,
                             flags={**flags, "client-source": source})
            )
            for source in SOURCES
        ]  # fmt: skip
        for server in started:
            until(lambda server=server: answered(server, f"web.{SHOP}", POD_A) == {ADDRESS_A}, "the neighbour answered")
        yield started


@pytest.fixture
def tenant(cluster: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """The owner of a namespace that sorts before all others, with one more right if the test has a row."""
    name = getattr(request, "param", "owner")
    where, kinds = f"aa-evil-{name}", ROWS[name].kinds if name in ROWS else ()
    subject = {"kind": "ServiceAccount", "name": "owner", "namespace": where}
    rules = [
        {"apiGroups": [base.removeprefix("/api/v1").removeprefix("/apis/").partition("/")[0]],
         "resources": [resource], "verbs": ["*"]}
        for base, resource, _ in map(KINDS.__getitem__, kinds)
    ]  # fmt: skip
    role = {**item("Role", "more", where, rules=rules), "apiVersion": f"{RBAC}/v1"}
    bindings = [binding("ClusterRole", "admin", where, subject), binding("Role", "more", where, subject)]
    cluster.settle(where)
    cluster.api.create(namespace(where), item("ServiceAccount", "owner", where), role, *bindings)
    api = cluster.api_of(cluster.token(where, "owner"))
    for kind in ("Service", *kinds):
        until(lambda kind=kind: may_list(api, kind, where), f"the right to list {kind}")
    yield Tenant(where, api, cluster.api)
    for found in cluster.api.items("EndpointSlice", where):
        cluster.api.patch({"kind": "EndpointSlice", **found}, {"metadata": {"finalizers": None}})
    cluster.api.delete(*({"kind": "Pod", **found} for found in cluster.api.items("Pod", where)), namespace(where))


def binding(kind: str, role: str, where: str, subject: Item) -> Item:
    reference = {"apiGroup": RBAC, "kind": kind, "name": role}
    return item("RoleBinding", role, where, roleRef=reference, subjects=[subject])


def may_list(api: Api, kind: str, where: str) -> bool:
    try:
        api.items(kind, where)
    except ApiError as error:
        if error.status not in (403, 429):  # a CRD that is new begins to be served
            raise
        return False
    return True


def explained(server: Server) -> dict[tuple[str, str, str], Item]:
    """Return what each client of the neighbour's and the system's names gets, and why, as the server says it."""
    found: dict[tuple[str, str, str], Item] = {}
    for row in ((name, rtype, client) for name, rtype in QUESTIONS for client in CLIENTS):
        said = json.loads(server.get("/api/v1/explain?name={}&type={}&client={}".format(*map(quote, row)))[1])
        del said["client"]["overlooked"]  # names the endpoint that does not count
        found[row] = said
    return found


def own_answer(server: Server, name: str) -> set[str]:
    return addresses(asked(server, name, POD_A))


@pytest.mark.parametrize(("tenant", "row"), ROWS.items(), ids=ROWS, indirect=["tenant"])
def test_what_a_tenant_writes_moves_nobody_else(servers: Sequence[Server], tenant: Tenant, row: Row) -> None:
    """Once it counts in the tenant's own names, the names of others have the same answers, for the same reasons."""
    before = [explained(server) for server in servers]
    row.attack(tenant)
    for server in servers:
        until(
            lambda server=server: own_answer(server, f"{row.name}.{tenant.where}") == row.seen,
            lambda server=server: f"{row.seen}, but {own_answer(server, f'{row.name}.{tenant.where}')}",
        )
    for server, known in zip(servers, before, strict=True):
        after = explained(server)
        for question, said in known.items():
            assert after[question] == said, question


@pytest.mark.parametrize("tenant", ["slices"], ids=["slices"], indirect=True)
def test_slices_like_those_of_the_controller_are_refused_at_the_door(cluster: ControlPlane, tenant: Tenant) -> None:
    """With the component ``admission``; the controller itself goes on, and other slices of the tenant are admitted."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    tenant.create(service("claim", where=tenant.where, selects=True))
    kept = endpoint_slice("claim", 9, claims(), where=tenant.where, by=SLICE_CONTROLLER)

    def refusal(method: str, path: str, body: Item) -> str:
        media = "application/json" if method == "POST" else "application/merge-patch+json"
        try:
            tenant.api.request(method, f"{path}?dryRun=All", body, media=media)
        except ApiError as error:
            return str(error)
        return ""

    def refused_new() -> str:
        return refusal("POST", tenant.api.path("EndpointSlice", tenant.where), kept)

    def made_by_controller() -> list[Item]:
        found = cluster.api.items("EndpointSlice", tenant.where, labels=f"{SERVICE_NAME}=claim")
        return [one for one in found if one["metadata"]["labels"][MANAGED_BY] == SLICE_CONTROLLER]

    with kustomize.installed(cluster, objects_of("base with admission", *kinds)):
        until(lambda: KEPT in refused_new(), "the policy in force")
        tenant.run_pod("claim", "tn-b", "10.231.2.78")
        until(lambda: [one for one in made_by_controller() if one["endpoints"]], "the controller's own slice")
        path = tenant.api.path_of({"kind": "EndpointSlice", **made_by_controller()[0]})
        assert "Kubernetes' own controller keeps" in refusal("PATCH", path, {"endpoints": claims()})
        assert "Kubernetes' own controller keeps" in refusal(
            "PATCH", path, {"metadata": {"labels": {MANAGED_BY: "me"}}}
        )
        tenant.create(endpoint_slice("claim", 2, claims(), where=tenant.where))
        api = cluster.api  # who may write them in all namespaces may write these
        api.request("PATCH", path, {"metadata": {"labels": {"x": "y"}}}, media="application/merge-patch+json")
    until(lambda: refused_new() == "", "the policy gone")


@pytest.mark.parametrize("title", NOT_THEIRS)
def test_what_a_tenant_may_not_write(tenant: Tenant, title: str) -> None:
    """Kubernetes' role ``admin`` has no right to it."""
    made = NOT_THEIRS[title]
    with pytest.raises(ApiError, match="forbidden") as refused:
        tenant.api.request("POST", tenant.api.path(made["kind"], made["metadata"].get("namespace")), made)
    assert refused.value.status == 403


@pytest.mark.parametrize("kind", ["PodLocator", "ServicePolicy", "ServiceExport", "ServiceHealth", "EndpointSlice"])
def test_our_kinds_give_no_tenant_a_right(tenant: Tenant, kind: str) -> None:
    """Nothing that is installed adds to the roles ``admin`` and ``edit``."""
    with pytest.raises(ApiError, match="forbidden"):
        tenant.api.request("POST", tenant.api.path(kind, tenant.where), api_objects.item(kind, "x"))


def test_the_page_has_a_row_for_each() -> None:
    """Whoever may write one of these finds what it can do."""
    titles = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", section(PAGE, HEADING), re.MULTILINE)[2:]
    assert set(titles) == {row.title for row in ROWS.values()} | {*NOT_THEIRS} | OTHERS


# -- any cluster

FLAGS = {
    "subnet": [f"{network}={','.join(f'{key}={text}' for key, text in labels.items())}"
               for network, labels in random_cluster.SUBNETS.items()],
    "zone": ["cluster.local"], "pods": "verified",
    "federation": [FEDERATION], "multicluster": ["clusterset.local"],
}  # fmt: skip
KEEPERS = (None, SLICE_CONTROLLER, SLICE_CONTROLLER, "endpointslicemirroring-controller.k8s.io")
IN_MEMORY = ("zz-evil", "aa-evil")  # after and before all others


def hostile(rng: random.Random, where: str, addresses: Sequence[str]) -> list[Item]:
    """Return whatever a tenant can bring about with some addresses of others, and with the nodes' own."""
    made: list[Item] = [namespace(where, {"kubernetes.io/metadata.name": "shop"})]
    for number in range(rng.randint(1, 5)):
        name = rng.choice(("s0", "s1", "web", "kube-dns", "x-y", f"e{number}"))
        if any(known["metadata"]["name"] == name for known in made):
            continue
        said = random_cluster.declarations(rng)
        said["labels"] = {**(said.get("labels") or {}), "k8s-app": "kube-dns"}
        kind = rng.randrange(4)
        if kind == 0:
            made.append(
                external(
                    name, rng.choice(("s0.shop.svc.cluster.local", f"{name}.{where}.svc.cluster.local")), where=where
                )
            )
        elif kind < 3:
            made.append(service(name, where=where, cluster_ips=rng.choice((("None",), ("10.96.9.9",))), **said))
        slices = [
            written(rng, endpoint_slice(name, part, claimed(rng, addresses), where=where, by=rng.choice(KEEPERS)))
            for part in range(rng.randint(0, 2))
        ]
        if kind == 1 and chance(rng, 50):
            made[-1]["spec"]["selector"] = {"app": "none"}  # so the controller keeps all but what it dropped
            for one in slices:
                one["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/stays"]}
        elif kind == 2 and chance(rng, 50):
            rows = [{"ip": row["addresses"][0], "nodeName": row["nodeName"]} for row in claimed(rng, addresses)]
            made.append(endpoints(name, {"addresses": rows}, where=where))
        made += slices
        made += [item("ServiceExport", name, where)] * chance(rng, 30)
        made += [service_import(name, where=where, ips=rng.choice(((), ("10.96.0.10",))))] * chance(rng, 30)
    made += [
        {**policy, "metadata": {**policy["metadata"], "namespace": where}} for policy in random_cluster.policies(rng)
    ]
    for number in range(rng.randint(0, 5)):
        name, on = f"p{number}", rng.randrange(2)  # every cluster has these two nodes
        made.append(
            rng.choice((
                pod(name, [], f"node-{on}", where=where, phase="Pending", labels={"k8s-app": "kube-dns"}),
                pod(name, [rng.choice(addresses)], f"node-{on}", where=where, phase="Failed", created="2030"),
                pod(name, [f"192.168.0.{on + 1}", f"fd00:1::{on + 1:x}"], f"node-{on}", where=where, hostNetwork=True),
                pod_locator(name, where, [rng.choice(addresses)], nodeName=f"node-{on}", nodeLabels={ZONE: "c"}),
            ))
        )  # fmt: skip
    return made


def claimed(rng: random.Random, addresses: Sequence[str]) -> list[Item]:
    """Return endpoints at addresses of others, on any node, of any pod."""
    four = [text for text in addresses if "." in text]
    targets = [{"kind": "Pod", "name": "client-0", "namespace": "shop"}, {"kind": "Pod", "name": "p0"},
               {"kind": "Node", "name": "node-1"}]  # fmt: skip
    return [
        endpoint(text, ready=chance(rng, 80), nodeName=f"node-{rng.randrange(4)}", zone=rng.choice("abc"),
                 hostname=f"h{number}", **({"targetRef": rng.choice(targets)} if chance(rng, 60) else {}))
        for number, text in enumerate(rng.sample(four, min(3, len(four))))
    ]  # fmt: skip


def written(rng: random.Random, made: Item) -> Item:
    """Return a slice that may say of itself that it was imported from another cluster."""
    if chance(rng, 20):
        made["metadata"]["labels"] |= {IMPORTED_SERVICE_NAME: "s0", SOURCE_CLUSTER: "east"}
    return made


@settings(unshrunk, max_examples=40)
@given(seed=st.integers(0, 100_000), source=st.sampled_from(SOURCES), where=st.sampled_from(IN_MEMORY))
def test_no_object_in_one_namespace_changes_what_others_get(seed: int, source: str, where: str) -> None:
    """Neither any place or trust, nor any answer to a name of another namespace, nor a finding about one."""
    rng, world = random.Random(seed), random_cluster.world(seed)
    flags = {**FLAGS, "client-source": source}
    items = [*world.items, *hostile(rng, where, world.addresses)]
    alone, beside = snapshot_of(world.items, flags), snapshot_of(items, flags)
    for text in world.addresses:
        address = parse_address(text)
        block = Network(address[:-1] + b"\0", 8 * len(address) - 8)
        first, second = ((known.addresses.source(address), known.addresses.locate_network(block))
                         for known in (alone, beside))  # fmt: skip
        assert list(map(said_of, second)) == list(map(said_of, first)), text
    found = [[str(one) for one in known.findings if one.namespace != where] for known in (alone, beside)]
    assert found[1] == found[0]
    names = [*rng.sample(world.names, 5), f"s0.shop.{FEDERATION}", "s0.shop.svc.clusterset.local"]
    questions = [(name, qtype, client) for name in names for qtype in ("A", "SRV")
                 for client in rng.sample(world.addresses, 3)]  # fmt: skip
    responders = responder_of(world.items, flags), responder_of(items, flags)
    for name, qtype, client in questions:
        replies = [ask_in_memory(one, dns.message.make_query(name, qtype), client, proto="tcp") for one in responders]
        assert len(set(map(text_of, replies))) == 1, (name, qtype, client)


def said_of(place: Place) -> tuple[object, ...]:
    return place.location.node, place.location.labels, place.located_by, place.block, place.forwarder


def text_of(reply: dns.message.Message | None) -> str:
    """Return a reply without what differs between two of the same: its id, and the order of its records."""
    return "" if reply is None else "\n".join(sorted(reply.to_text().splitlines()[1:]))
