# SPDX-License-Identifier: Apache-2.0

"""The console: pages for people at ``/`` of ``--http``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import dns.edns
import dns.message
import pytest

from dnsserver.tools.console import console, rendering
from dnsserver.tools.console.console import HEADERS
from tests.kit.api_client import Answered, request
from tests.kit.api_objects import (
    CLIENTS,
    HOSTNAME,
    MAX_OVERLOAD,
    RACK,
    REGION,
    SLICE_CONTROLLER,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    external,
    listed,
    namespace,
    node,
    pod,
    service,
    service_policy,
)
from tests.kit.commands_in_process import Run
from tests.kit.console_pages import CONSOLE_CLUSTER, HTML, Page, is_safe, page, serving_console, untried
from tests.kit.crowded_zone import balanced, crowded
from tests.kit.skewed import balanced_if, skewed
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

SCRIPT = "<script>alert(1)</script>"
LINK = "javascript:alert(1)"
ODD = "<b onclick=alert(1)>"  # without a slash, which would end a part of a path
QUOTES = "\"'><img src=x onerror=alert(1)>{{7331*7919}}"

HOSTILE: list[Item] = [
    namespace("shop"),
    node("n1", {ZONE: SCRIPT, REGION: LINK, QUOTES: QUOTES}, addresses=["10.0.0.1"]),
    node(ODD, {ZONE: QUOTES, REGION: "a&b"}, addresses=["10.0.0.2"]),
    pod(SCRIPT, ["10.244.1.9"], ODD),
    pod("client", ["10.244.1.8"], "n1"),
    service("near", annotations={TOPOLOGY_KEYS: f"{SCRIPT},{LINK}", f"topodns.io/{SCRIPT}": QUOTES}),
    endpoint_slice("near", 1, [
        endpoint("10.244.1.7", nodeName=ODD, targetRef={"kind": "Pod", "name": QUOTES}, hostname=SCRIPT)]),
    service(LINK, keys=ZONE),
    service(QUOTES, keys=ZONE),
]  # fmt: skip
ENDLESS = 255_000  # characters: Kubernetes allows 256 KiB of annotations
MARKUP = "\"'<&>\x1b\u202e\n" * (ENDLESS // 9)
LONG_TEXTS = ("a" * ENDLESS + "!", MARKUP, ",".join(map(str, range(45_000))), f"{ZONE},*")
LONG: list[Item] = [
    namespace("shop"),
    *(node(f"node-{n}", {ZONE: f"zone-{n}", REGION: "r"}, cidrs=[f"10.{n}.0.0/24"]) for n in range(120)),
    *(pod(f"client-{n}", [f"10.{n}.0.9"], f"node-{n}") for n in range(120)),
]
for number in range(120):
    text = LONG_TEXTS[number % len(LONG_TEXTS)][: ENDLESS if number < 2 * len(LONG_TEXTS) else 3000]
    notes = {"topodns.io/health": text, f"topodns.io/{number}": text}
    LONG += [
        service(f"service-{number}", keys=text, least=text, annotations=notes),
        endpoint_slice(f"service-{number}", 1, [
            endpoint(f"10.{n}.0.{number + 10}", nodeName=f"node-{n}", targetRef={"kind": "Pod", "name": f"pod-{n}"})
            for n in range(120 if number < len(LONG_TEXTS) else 2)]),
    ]  # fmt: skip
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
ROWS = [endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="b1")]
IN_VAIN = [  # a Service that asks for near endpoints and gets none, and one that selects the same pods
    node("a1", {ZONE: "a"}), node("b1", {ZONE: "b"}), service("web", annotations=AUTO), endpoint_slice("web", 1, ROWS),
    service("twin", annotations={}), endpoint_slice("twin", 1, ROWS),
]  # fmt: skip
LEFT_BEHIND = [
    node("a1", {ZONE: "a"}), service("web", selects=True), pod("web-7", ["10.244.1.7"], "a1"),
    *(endpoint_slice("web", slice_number, [
        endpoint(f"10.244.1.{number}", nodeName="a1", targetRef={"kind": "Pod", "name": f"web-{number}"})
    ], by=by) for slice_number, number, by in (
        (1, 7, SLICE_CONTROLLER), (2, 8, "endpointslicemirroring-controller.k8s.io"))),
]  # fmt: skip
SORTS = [
    namespace("shop"), service("plain"), service("api", cluster_ips=["10.96.0.1"]), external("alias", "example.org"),
    service("rendered", cluster_ips=()), service("keyless", labels={"app": "web"}), service_policy("near", None),
]  # fmt: skip
MANY = [
    namespace("shop"),
    *(node(f"n{n}", {ZONE: f"z{n}", REGION: f"r{n % 40}"}) for n in range(2000)),
    *(pod(f"pod-{n}", [f"10.8.{n // 200}.{n % 200}"], "n0") for n in range(2000)),
    *(service(f"s{n}", keys=ZONE if n % 2 else "*,*", selects=True) for n in range(2000)),
    *(endpoint_slice("s1", part, [
        endpoint(f"10.9.{n // 200}.{n % 200}", nodeName=f"n{n}") for n in range(part, 2000, 10)
    ], by=SLICE_CONTROLLER) for part in range(10)),
]  # fmt: skip
ZONE_LOST = [
    node("a1", {ZONE: "a"}), node("b1", {ZONE: "b"}), pod("client", ["10.244.2.9"], "b1"),
    service("web", keys=f"{ZONE},*"), endpoint_slice("web", 1, [
        endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.1.8", nodeName="ghost"),
        *(endpoint(f"10.244.2.{number}", nodeName="b1", ready=False) for number in (7, 8))]),
]  # fmt: skip
SKEWED, BOUNDED = skewed(), balanced_if(**{MAX_OVERLOAD: "1.2"})
WITHOUT_SLICES = [item for item in skewed() if item["kind"] != "EndpointSlice"]
CLUSTERS = {
    "small": CONSOLE_CLUSTER, "hostile": HOSTILE, "long": LONG, "many": MANY, "in vain": IN_VAIN, "sorts": SORTS,
    "left behind": LEFT_BEHIND, "skewed": SKEWED, "bounded": BOUNDED,
    "zone lost": ZONE_LOST,
    "unbounded": balanced_if(), "for some": balanced_if(**{CLIENTS: "shop/tier=1"}),
    "no slices": WITHOUT_SLICES,
    "crowded": crowded(balanced(f"{ZONE},*")),
}  # fmt: skip
NODES = ("a1", "a2", "b1", "bare")
PAGES = [
    "/",
    "/findings",
    "/gain",
    "/gain?price=0.02&traffic=100",
    "/findings?code=InvalidTopologyKeys",
    "/map",
    f"/map?within={ZONE}=a&within={REGION}=r",
    f"/map?key={ZONE}",
    "/nodes/local/a1",
    "/services",
    "/services?text=ne",
    "/services/shop/near",
    "/services/shop/near?client=10.244.1.9",
    f"/services/shop/near?client=10.244.1.9&keys={ZONE}",
    "/services/shop/near?client=pod/back&namespace=lab",
    "/services/shop/wrong",
    "/services/shop/plain",
    "/explain",
    "/explain?name=near.shop&client=10.244.1.9",
    "/search",
    "/search?text=a",
    "/tail",
    "/tail?service=shop/near&client=10.0.0.0/8&outcome=unmet",
]
QUESTION = "name=service-1.shop&type=A&client=10.5.0.9"

Served = Callable[[str], Server]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Give a server of one of the CLUSTERS, which is started when a test first asks for it."""
    servers: dict[str, Server] = {}
    with ExitStack() as stack:

        def of(name: str) -> Server:
            if name not in servers:
                folder = tmp_path_factory.mktemp("console")
                servers[name] = stack.enter_context(serving_console(folder, CLUSTERS[name]))
            return servers[name]

        yield of


@pytest.fixture(scope="module")
def server(served: Served) -> Server:
    return served("small")


# Every page


def test_each_page_has_a_row() -> None:
    """What it shows is a row of SHOWN, or a test of its own."""
    assert not untried(PAGES), "add them to PAGES"


@pytest.mark.parametrize("path", PAGES)
def test_each_page(server: Server, path: str) -> None:
    """It is whole HTML with a title, landmarks and one heading, and is marked in the navigation."""
    answered = request(server, path, headers=HTML)
    found = Page(answered)
    assert found.status == 200 and is_safe(found) and has_headers(answered)
    tags = [tag for tag, _ in found.elements]
    assert all(tags.count(tag) == 1 for tag in ("main", "h1", "header", "footer"))
    assert tags[: tags.index("body")].count("title") == 1  # the parts of a picture have titles, too
    assert found.attributes("a", "aria-current") == ([] if path.startswith("/search") else ["page"])
    assert found.attributes("html", "lang") == ["en"] and "#main" in found.attributes("a", "href")
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [name for names in found.attributes("section", "aria-labelledby") for name in names.split()]
    assert {*labelled, *found.attributes("label", "for"), *found.attributes("input", "list")} <= set(ids)


def has_headers(answered: Answered, *, but: str = "") -> bool:
    """Whether the headers let nothing be loaded from elsewhere, and no other page frame or read what was sent."""
    forbidden = {"set-cookie", "access-control-allow-origin"} & {name.lower() for name in answered.headers}
    return not forbidden and all(answered.headers[name] == text for name, text in HEADERS.items() if name != but)


def test_headers(server: Server) -> None:
    """What is no page has them, too; files may be kept. Nothing but the console's own is allowed."""
    for path in ("/services/shop/nothing", "/complete?for=name"):
        assert has_headers(request(server, path, headers=HTML))
    assert has_headers(request(server, "/static/console.css"), but="Cache-Control")
    assert request(server, "/x", headers=HTML).status == 404
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_program_gets_the_list(server: Server) -> None:
    """Whoever does not ask for HTML gets text at ``/``, and caches tell both apart."""
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        answered = request(server, "/", headers=headers)
        assert answered.headers["content-type"].startswith("text/plain") and b"/api/v1/explain" in answered.body
        assert answered.headers["vary"] == "Accept"
    assert request(server, "/", headers=HTML).headers["vary"] == "Accept"


@pytest.mark.parametrize("path", ["/", "/map", "/live", "/complete?for=name", "/static/console.js"])
def test_who_may_read(server: Server, path: str) -> None:
    """Those who may read the API: no page of another site, also under a name that leads to this machine."""
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = request(server, path, headers={**HTML, **headers})
        assert refused.status == 403 and refused.headers["X-Content-Type-Options"] == "nosniff"
    assert request(server, path, "POST").status == 405


@pytest.mark.parametrize("path", [
    "/", "/map", f"/map?key={REGION}", "/services", "/services/shop/near", "/services/shop/near?client=10.244.1.8",
    "/findings", "/nodes/local/n1", f"/nodes/local/{ODD}",
    "/explain?name=near.shop&client=10.244.1.9", f"/explain?name={SCRIPT}&client={SCRIPT}", f"/services?text={SCRIPT}",
    f"/services/shop/near?client={SCRIPT}&namespace={SCRIPT}", f"/tail?service={SCRIPT}&client={QUOTES}",
    f"/map?within={SCRIPT}={SCRIPT}", f"/findings?code={SCRIPT}", f"/{SCRIPT}", f"/services/{SCRIPT}/x",
])  # fmt: skip
def test_hostile_names_are_text(served: Served, path: str) -> None:
    """Whatever stands in labels, annotations, names or the request: it is shown, and nothing more."""
    asked = path.replace("<", "%3C").replace('"', "%22").replace(" ", "%20")
    answered = request(served("hostile"), asked, headers=HTML)
    assert answered.status in (200, 400, 404)
    if answered.headers["content-type"].startswith("text/html"):
        assert is_safe(Page(answered)) and b"<script>alert" not in answered.body and b"58054189" not in answered.body
    else:
        json.loads(answered.body)


# What the pages show


class Shows(NamedTuple):
    """What a page of one of the CLUSTERS says, and does not say; ``rows`` are the keys of those that it has."""

    cluster: str
    path: str
    texts: Sequence[str]
    without: Sequence[str] = ()
    rows: Sequence[str] | None = None
    status: int = 200


INVALID = "invalid, and so ignored by annotation: '*' is key 1 of 2"
LACKS = "the dump has neither EndpointSlices nor Endpoints"
TIMES = "\N{MULTIPLICATION SIGN}"
AT_MOST_THREE = (
    "Max-overload 1.2: each endpoint may expect 3.0 of 10 clients; 1 endpoint had no more room.", "4 clients spilled",
    "a to b: 35.0 % of the load, no room nearer", "no room nearer",
    f"the most that an endpoint may expect: 3.0 of 10 clients, 1.20{TIMES} an even share",
)  # fmt: skip
AT_A2 = ("shop/near 10.244.2.7", "shop/near 10.244.2.8", "10.0.0.2")
SHOWN = [
    Shows("hostile", "/map", [SCRIPT, LINK]),
    Shows("hostile", "/nodes/local/%3Cb%20onclick=alert(1)%3E", [ODD]),
    Shows("small", "/nodes/local/a2", ["not ready", "node a2"], rows=AT_A2),
    Shows("small", "/nodes/local/a9", ["no node a9 in cluster local"], status=404),
    Shows("small", "/nodes/other/a1", ["no cluster other"], status=404),
    Shows("small", f"/map?within={ZONE}=a&within={RACK}=2", [], rows=["local/a2 "]),
    Shows("small", f"/map?within={ZONE}=", [], rows=["local/bare "]),
    Shows("small", "/map", ["1 endpoint not ready", "1 node without a zone"]),
    Shows("small", f"/map?within={RACK}=2", ["zone a", "a2 1 endpoint · 1 client ! 1 not ready"], rows=["local/a2 "]),
    Shows("zone lost", "/map",
          ["zone b", "✕ 1 client, no ready endpoint", "✕ 2 endpoints not ready", "! no such Node"]),
    Shows("skewed", "/map", ["no ready endpoint"], without=["all endpoints are ready"]),
    Shows("many", "/map", ["region r39 50 nodes · "]),
    Shows("many", f"/map?key={ZONE}", ["1,960 more domains"]),
    Shows("small", "/nodes/local/a1", ["pod shop/front"]),
    Shows("small", "/explain?client=pod/front&namespace=shop", ["What would a client get"], without=["✕"]),
    Shows("small", f"/map?within={ZONE}=typo", ["Nothing is here: no node, endpoint or client has this label"]),
    Shows("small", "/map?within=typo=a",
          [f"within: 'typo=a' found, expected KEY=VALUE with a key in use: {REGION}"], status=400),
    Shows("small", "/map?key=typo", ["key: 'typo' is no topology key in use"], status=400),
    Shows("small", "/services", [], rows=["shop/hard", "shop/near", "shop/wrong", "shop/plain"]),
    Shows("small", "/services?text=op/n", [], rows=["shop/near"]),
    Shows("small", "/services?text=nothing", ["No Service has this"], rows=[]),
    Shows("small", "/services/shop/near", [], rows=["10.244.1.7", "10.244.2.7", "10.244.2.8", "10.244.3.7"]),
    Shows("small", "/services/shop/near?client=10.244.1.9",
          [f"has the client's {HOSTNAME}", f"{HOSTNAME} is a2, not a1", "not ready"]),
    Shows("small", "/services/shop/hard", [
        "What is wrong now", "gets nothing of shop/hard", "To fix it:",
        "1 client gets nothing", "valid syntax by annotation", "\N{BALLOT X} 1 gets nothing",  # in the picture
        "That counts those who get something: 1 of 2 clients gets nothing."], ["no overload"]),
    Shows("small", "/services/shop/wrong", ["InvalidTopology: metadata.annotations", INVALID]),
    Shows("small", "/services/shop/nera", ["did you mean shop/near?"], status=404),
    Shows("small", "/explain?name=near.shop&client=10.244.1.9&x=1", [], status=400),
    Shows("in vain", "/services/shop/web", ["no ready endpoint a hint"]),
    Shows("in vain", "/explain?name=web.shop&client=10.244.1.9", ["no ready endpoint a hint"]),
    Shows("in vain", "/services/shop/twin", ["selects the same pods"]),
    Shows("in vain", "/services", ["1 of which asks for near endpoints", "near endpoints", "no hints"]),
    Shows("left behind", "/findings", ["there is no Pod shop/web-8"]),  # which only a change of Pods reveals
    Shows("sorts", "/services/shop/plain", ["headless", "every client gets all its endpoints."]),
    Shows("sorts", "/services/shop/api", ["cluster IP", "behind which kube-proxy chooses an endpoint."]),
    Shows("sorts", "/services/shop/alias", ["external name", "every client gets the name that it is an alias of."]),
    Shows("sorts", "/services/shop/keyless", ["no effect policy near it has no topology key"]),
    Shows("sorts", "/explain?name=keyless.shop&client=10.0.0.1", ["policy near it has no topology key"]),
    Shows("sorts", "/services/shop/rendered", ["without address", "no records, because no address is written in it."]),
    Shows("sorts", "/services/shop/rendered?client=10.0.0.1", ["is written in the Service (spec.clusterIP)"]),
    Shows("skewed", "/services/shop/web", [
        f"at most 2.60 {TIMES} an even share", "overloaded", "Try max-overload 1.5: no endpoint expects more",
        "20.0 % of the load crosses zones; without any constraint, 70.0 %.", "What is wrong now",
        "gets 2.6 times an even share of shop/web"], ["spilled"]),
    Shows("skewed", "/services/shop/plain", [f"at most 1.00 {TIMES} an even share"], ["annotate service", "Try max-o"]),
    Shows("skewed", f"/services/shop/web?keys=example.com/Rack_A,{ZONE}&least=1",
          [f"With example.com/Rack_A,{ZONE} and at least 1 endpoint "]),
    Shows("skewed", f"/services/shop/web?keys={ZONE}&least=2&client=10.2.1.1", [
        f"With {ZONE} and at least 2 endpoints", "2 clients get nothing", f"{ZONE} is a, not c"]),
    Shows("skewed", "/services/shop/web?keys=-", ["Without the annotation", "no constraint"]),
    Shows("skewed", "/services/shop/web?keys=example.com/zone,*",
          [f"no node has the label example.com/zone; the nearest that nodes have is {ZONE}"]),
    Shows("bounded", "/services/shop/web", [*AT_MOST_THREE, f"As it is annotation: {ZONE},*, max-overload 1.2"],
          ["annotate service", "Try max-overload 1"]),
    Shows("bounded", "/services/shop/web?overload=-", [
        *AT_MOST_THREE, "No max-overload", "Try max-overload 1.5", f"service web --overwrite {MAX_OVERLOAD}-"]),
    Shows("skewed", "/services/shop/plain?overload=1.5", ["It bounds nothing: the Service asks for no near endpoints"]),
    Shows("skewed", "/services/shop/virtual", [], ["Where the load flows"]),
    Shows("crowded", "/services/shop/web?client=127.1.0.1", [
        "Balanced: at most 1.2 even shares of 12 clients: 3.6 for each endpoint; asked by everybody but its own ",
        "3.5 of 3.6 ↷ full", "2.5 of 3.6", "↷ spilled 127.1.0.1 gets 4 endpoints"]),
    Shows("crowded", "/explain?name=web.shop&client=127.1.0.1", [
        "at most 1.2 even shares of 12 clients: 3.6 for each endpoint", "the client's is number 256 of 256",
        "passed on to every ready endpoint", "3.5 of 3.6 ↷ full"]),
    Shows("small", "/services/shop/near?client=10.244.1.9", [], ["Balanced", "of at most"]),
    Shows("no slices", "/services", [f"Not known: {LACKS}"], ["0 ready"]),
    Shows("no slices", "/services/shop/web", [f"Not known: {LACKS}"], ["0 ready", "Where the load flows"]),
    Shows("no slices", "/explain?name=web.shop&client=10.0.0.1", [LACKS]),
]  # fmt: skip


@pytest.mark.parametrize("shows", SHOWN, ids=lambda shows: f"{shows.cluster} {shows.path}")
def test_what_a_page_shows(served: Served, shows: Shows) -> None:
    """Each row is what a person looks for on the page."""
    found = page(served(shows.cluster), shows.path)
    assert found.status == shows.status
    assert [text for text in shows.texts if text not in found.text] == []
    assert [text for text in shows.without if text in found.text] == []
    if shows.rows is not None:
        rows = [row for row in found.rows if not shows.path.startswith("/map") or row.startswith("local/")]
        assert sorted(rows) == sorted(shows.rows)


def test_overview(server: Server) -> None:
    """Findings with the commands that fix them, the contact with each cluster, and who has asked."""
    found = page(server, "/")
    assert "InvalidTopologyKeys" in found.text and "1 cluster" in found.text
    command = "kubectl -n shop annotate service wrong --overwrite topodns.io/topology-keys='kubernetes.io/hostname,*'"
    assert command in found.text
    for source, name in (("10.244.1.9", "near"), ("10.244.1.9", "hard"), ("203.0.113.9", "near")):
        server.ask(query_from(source, f"{name}.shop.svc.cluster.local"))
    server.ask(query_from(None, "near.shop.svc.cluster.local"))
    until(lambda: "rewrite edns0 subnet set" in page(server, "/").text, "what was asked is counted")
    found = page(server, "/")
    assert {"a", "unknown", "203.0.113.0/24 address"} <= {row or "unknown" for row in found.rows}
    assert "1 answer was empty in the last" in found.text and "127.0.0.1" in found.text


def test_tail_begins_with_what_is_kept(server: Server) -> None:
    """Who got nothing before the page was opened, with the way to the explanation; that needs no script."""
    server.ask(query_from("10.244.1.9", "hard.shop.svc.cluster.local"))
    path = "/tail?service=shop/hard&outcome=unmet"
    until(lambda: "before you opened this page" in page(server, path).text, "a decision is kept")
    found = page(server, path)
    assert "10.244.1.9 (pod shop/front) a" in found.text and "no records" in found.text and is_safe(found)
    explained = "/explain?name=hard.shop.svc.cluster.local.&client=10.244.1.9&type=A"
    assert {explained, "/services/shop/hard"} <= set(found.attributes("a", "href"))
    assert "before you opened this page" not in page(server, "/tail?outcome=spilled").text


def test_services_to_look_at(served: Served) -> None:
    """Where endpoints get too much, and where clients are spilled so that they do not."""
    for cluster, text in (("skewed", "▲ overloaded 2.60 ×"), ("bounded", "1.20 × 0 ↷ 4")):
        found = page(served(cluster), "/")
        assert "shop/web" in found.rows and text in found.text, found.text


def test_map(server: Server) -> None:
    """By whatever keys are in use, down to nodes."""
    found = page(server, "/map")
    links = {link.replace("/", "%2F").replace("%2Fmap", "/map", 1) for link in found.attributes("a", "href")}
    assert {f"/map?within={key.replace('/', '%2F')}%3D{value}" for key, value in ((ZONE, "a"), (RACK, "2"))} <= links
    assert [row for row in found.rows if row.startswith("local/")] == [f"local/{name} " for name in NODES]


def test_the_order_of_rows(server: Server) -> None:
    """First what asks for something; first what a client gets."""
    assert page(server, "/services").rows == ["shop/hard", "shop/near", "shop/wrong", "shop/plain"]
    assert page(server, "/services", text="op/n").attributes("input", "value") == ["op/n"]
    endpoints = [row for row in page(server, "/services/shop/near", client="10.244.1.9").rows if row[0].isdigit()]
    assert endpoints[0] == "10.244.1.7"


def test_max_overload_is_proposed_with_what_is_tried(served: Served) -> None:
    """Each card with an overload has a link that tries to bound it, beside what the card shows."""
    found = page(served("skewed"), "/services/shop/web", keys=f"{HOSTNAME},*", client="10.2.1.1")
    _, *links = [link for link in found.attributes("a", "href") if "overload=" in link]  # the first one for a click
    tried = [dict(parse_qsl(urlsplit(link).query)) for link in links]
    now = {"client": "10.2.1.1", "overload": "1.5"}
    assert tried == [now, {**now, "keys": f"{HOSTNAME},*"}]
    followed = page(served("skewed"), links[1])
    command = f"annotate service web --overwrite {TOPOLOGY_KEYS}='{HOSTNAME},*' {MAX_OVERLOAD}=1.5"
    assert command in followed.text and f"With {HOSTNAME},* and max-overload 1.5" in followed.text
    assert {f"{HOSTNAME},*", "1.5"} <= {*followed.attributes("input", "value")}


def test_a_balance_is_tried(served: Served) -> None:
    """The picture is that of a Service which has the annotation."""
    has, tries = (
        request(served(cluster), f"/services/shop/web{query}", headers=HTML).body.decode()
        for cluster, query in (("bounded", ""), ("unbounded", "?overload=1.2"))
    )
    (drawn,) = re.findall("<svg.*?</svg>", has, re.DOTALL)
    _, drawn_if = re.findall("<svg.*?</svg>", tries, re.DOTALL)
    assert drawn == drawn_if


def test_who_counts_in_a_balance_that_is_tried(served: Served) -> None:
    """The clients that the Service names, by their labels."""
    assert "may expect 1.5 of 5 clients" in page(served("for some"), "/services/shop/web?overload=1.2").text


@pytest.mark.parametrize("name", ["shop/web", "shop/plain"])
def test_where_the_load_flows(served: Served, tmp_path: Path, topodns: Run, name: str) -> None:
    """As ``topodns simulate`` says."""
    dump = tmp_path / "skewed.json"
    dump.write_text(listed(SKEWED))
    text = page(served("skewed"), f"/services/{name}").text
    (row,) = topodns("simulate", "--service", name, "--snapshot", str(dump), "-o", "json").json["services"]
    for domain in row["domains"]:
        assert f"{next(iter(domain['domain'].values()), 'anywhere')}{domain['clients']}" in text, domain


@pytest.mark.parametrize(
    ("path", "field", "message"),
    [
        (f"/services/shop/near?keys=*,{ZONE}", "keys", "'*' is key 1 of 2, but only the last key may be '*'"),
        ("/services/shop/near?least=x", "least", "'x' found, expected a whole number from 1"),
        ("/services/shop/near?overload=1", "overload", "'1' found, expected a decimal number from 1.1 to 10"),
        ("/explain?name=near.shop&client=x", "client", "'x' is no IP address, expected an address, a prefix"),
        (
            "/explain?name=svc/naer&namespace=shop&client=10.0.0.1",
            "name",
            "no Service shop/naer, did you mean shop/near?",
        ),
        ("/explain?name=near.shop", "client", "missing, expected an address"),
        ("/explain?name=near.shop&client=10.0.0.1&type=AX", "type", "'AX' is not a record type"),
        ("/explain?name=near&client=10.0.0.1&namespace=S_", "namespace", "'S_'"),
        ("/services/shop/near?client=pod/frnt", "client", "no Pod shop/frnt, did you mean pod/shop/front?"),
        ("/tail?client=x", "client", "'x' is no IP address"),
    ],
)
def test_errors_stand_beside_the_field(server: Server, path: str, field: str, message: str) -> None:
    """Status 400, the form as it was filled in, what was found and expected; and the page is whole."""
    found = page(server, path)
    assert found.status == 400 and message in found.text and is_safe(found)
    (invalid,) = (attributes for _, attributes in found.elements if "aria-invalid" in attributes)
    assert invalid["name"] == field and f"{field}-error" in invalid["aria-describedby"].split()


@pytest.mark.parametrize("path", ["/services/shop/near?page=x", "/explain?name=near.shop&client=10.0.0.1&page=x"])
def test_an_error_without_a_field_stands_above_the_form(server: Server, path: str) -> None:
    """Nobody wonders what was wrong with an address."""
    found = page(server, path)
    assert found.status == 400 and "Error page: " in found.text and is_safe(found)


def test_each_wrong_field_is_told(server: Server) -> None:
    """Not only the first: a form is corrected once."""
    form = f"keys=*,{ZONE}&least=x&overload=1&clients=%3D&client=pod/frnt&price=x&traffic=3"
    found = page(server, f"/services/shop/near?{form}")
    wrong = [attributes["name"] for _, attributes in found.elements if "aria-invalid" in attributes]
    assert found.status == 400 and sorted(wrong) == ["client", "clients", "keys", "least", "overload", "price"]


def test_explain_is_that_of_the_api(server: Server) -> None:
    """With every endpoint, and why."""
    asked = {"name": "near.shop", "client": "10.244.1.9"}
    found = page(server, "/explain", **asked)
    explained = request(server, "/api/v1/explain", candidates="true", **asked).json
    assert explained["reason"] in found.text
    assert all(row["why"] in found.text and row["addresses"][0] in found.text for row in explained["candidates"])


def query_from(client: str | None, name: str) -> Any:
    options = [] if client is None else [dns.edns.ECSOption(client, 32)]
    return dns.message.make_query(name, "A", use_edns=0, options=options)


# Limits


def test_no_page_is_large(served: Served) -> None:
    """However much others write: parts of lists are short, texts are cut, and none commands a terminal."""
    running = served("long")
    asked = [f"/services/shop/service-{number}" for number in range(len(LONG_TEXTS))]
    asked += [f"{path}?client=10.5.0.9&keys={HOSTNAME}" for path in asked]
    asked += [f"/explain?name=service-{number}.shop&client=10.5.0.9" for number in range(len(LONG_TEXTS))]
    codes = re.findall(r'id="cause-(\w+)"', request(running, "/", headers=HTML).body.decode())
    assert {"InvalidTopologyKeys", "InvalidHealth", "InvalidMinEndpoints", "UnknownAnnotation"} <= set(codes)
    asked += ["/", "/map", f"/map?key={ZONE}", "/services", "/services?page=2", "/nodes/local/node-5"]
    for path in [*asked, *(f"/findings?code={code}" for code in codes)]:
        answered = request(running, path, headers=HTML)
        assert answered.status == 200 and answered.body.decode().replace("\n", "").isprintable()
        assert len(answered.body) <= (140_000 if path.startswith("/services/") else 80_000), path  # with pictures
    for path in ("/api/v1/services", f"/api/v1/explain?{QUESTION}"):
        assert len(request(running, path).body) <= 60_000 * 4
    assert max(map(len, running.lines)) < 4096
    assert len(running.lines) < 120  # fifty warnings, fifty errors, and how many more


@pytest.mark.parametrize(("path", "parts"), {
    "/": 0, "/findings?code=InvalidTopologyKeys": 20, "/map": 40, f"/map?key={ZONE}": 20, "/nodes/local/n0": 41,
    "/services": 40, "/services?text=s1": 23, "/services/shop/s1": 40, "/services/shop/s1?client=10.8.0.1": 40,
    "/explain?name=s1.shop&client=10.8.0.1": 0,
}.items())  # fmt: skip
def test_pages_stay_small(served: Served, path: str, parts: int) -> None:
    """However large the cluster is, a page has a part of it."""
    answered = request(served("many"), path, headers=HTML)
    found = Page(answered)
    assert answered.status == 200 and len(answered.body) < 80_000
    assert "\N{HORIZONTAL ELLIPSIS}" not in found.text
    assert not parts or f"Part 1 of {parts}" in found.text


def test_parts_lead_to_the_others(served: Served) -> None:
    """A page has other rows than the one before, and beyond the last part is the last part."""
    first = page(served("many"), "/services")
    (following,) = (link for link in first.attributes("a", "href") if "page=2" in link)
    assert not set(page(served("many"), following).rows) & set(first.rows)
    assert "Part 40 of 40" in page(served("many"), "/services?page=999").text


# Files


def test_what_is_installed() -> None:
    """The wheel has each template and each file, and so has the image: nothing ignores them."""
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = console.STATIC.parent
    installed = {path for pattern in package["dnsserver.tools.console"] for path in folder.glob(pattern)}
    assert installed == {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert rendering.FOLDER.is_relative_to(folder) and console.STATIC.is_relative_to(folder)


def test_files_are_kept_by_browsers(server: Server) -> None:
    """Pages ask for them by what is in them, so that another version has another address."""
    found = page(server, "/")
    paths = [*found.attributes("script", "src"), *found.attributes("link", "href")]
    assert {path.partition("?")[0] for path in paths} == {
        "/static/console.js", "/static/console.css", "/static/icon.svg"
    }  # fmt: skip
    for path in paths:
        answered = request(server, path)
        assert answered.status == 200 and "immutable" in answered.headers["cache-control"]
        assert answered.headers["content-type"].partition(";")[0] in console.MEDIA_TYPES.values()
        assert not re.search(rb"https?://(?!www\.w3\.org/2000/svg)", answered.body)
