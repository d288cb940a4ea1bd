# SPDX-License-Identifier: Apache-2.0

"""The console: pages for people at ``/`` of ``--http``."""

from __future__ import annotations

import json
import re
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dns.edns
import dns.message
import pytest
import trio
import trio.testing
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from dnsserver.answers.decision import UpstreamAnswer
from dnsserver.metrics.counters import Counts
from dnsserver.net.upstream import Upstream
from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.api.api import Api
from dnsserver.tools.api.events import EventStream
from dnsserver.tools.api.inspected import MAX_OUTSIDE, MAX_WAITING, Inspected, Turns
from dnsserver.tools.console import console, rendering
from dnsserver.tools.console.changes import CHANGE_SECONDS, PageChanges
from dnsserver.tools.console.console import HEADERS, MAX_STREAMS, Console
from dnsserver.tools.console.recent import MAX_SLOTS, Key, Window
from tests.kit.api_client import Answered, Events, request
from tests.kit.api_objects import (
    HOSTNAME,
    MIN_ENDPOINTS,
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
)
from tests.kit.clusters import OUT, WEB, WEB_AND_MANY, WITH_ALIASES
from tests.kit.commands_in_process import Run
from tests.kit.files import replace_file
from tests.kit.in_memory import settings_of, snapshot_of
from tests.kit.live_server import serving_live
from tests.kit.other_server import kubeconfig
from tests.kit.skewed import skewed
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import COMMAND, Process, Server, run, serving
from tests.kit.unshrunk import unshrunk
from tests.kit.waiting import PATIENCE, until

SCRIPT = "<script>alert(1)</script>"
LINK = "javascript:alert(1)"
ODD = "<b onclick=alert(1)>"  # without a slash, which would end a part of a path
QUOTES = "\"'><img src=x onerror=alert(1)>{{7331*7919}}"

CLUSTER: list[Item] = [
    *map(namespace, ("shop", "lab")),
    node("a1", {ZONE: "a", REGION: "r", RACK: "1"}, addresses=["10.0.0.1"], cidrs=["10.244.1.0/24"]),
    node("a2", {ZONE: "a", REGION: "r", RACK: "2"}, addresses=["10.0.0.2"], cidrs=["10.244.2.0/24"]),
    node("b1", {ZONE: "b", REGION: "r"}),
    node("bare", {}),
    pod("front", ["10.244.1.9"], "a1"),
    pod("back", ["10.244.9.1"], "b1", where="lab"),
    service("near", keys=f"{HOSTNAME},{ZONE},{RACK},*"),
    endpoint_slice("near", 1, [
        endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="a2"),
        endpoint("10.244.2.8", nodeName="a2", ready=False), endpoint("10.244.3.7", nodeName="b1")]),
    service("hard", keys=ZONE),
    endpoint_slice("hard", 1, [endpoint("10.244.3.9", nodeName="b1")]),
    service("wrong", keys="*,a"),
    service("plain"),
]  # fmt: skip
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
SNAPSHOT = snapshot_of(WEB_AND_MANY)
QUESTION = "name=service-1.shop&type=A&client=10.5.0.9"
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = [
    "/",
    "/findings",
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
    "/tail",
    "/tail?service=shop/near&client=10.0.0.0/8&outcome=unmet",
]


ENDLESS = 255_000  # characters: Kubernetes allows 256 KiB of annotations
MARKUP = "\"'<&>\x1b\u202e\n" * (ENDLESS // 9)
LONG_VALUES = ("a" * ENDLESS + "!", MARKUP, ",".join(map(str, range(45_000))), f"{ZONE},*")
LARGE: list[Item] = [
    namespace("shop"),
    *(node(f"node-{n}", {ZONE: f"zone-{n}", REGION: "r"}, cidrs=[f"10.{n}.0.0/24"]) for n in range(120)),
    *(pod(f"client-{n}", [f"10.{n}.0.9"], f"node-{n}") for n in range(120)),
]
for number in range(120):
    text = LONG_VALUES[number % len(LONG_VALUES)]
    notes = {"topodns.io/health": text, f"topodns.io/{number}": text}
    LARGE += [
        service(f"service-{number}", keys=text, least=text, annotations=notes),
        endpoint_slice(f"service-{number}", 1, [
            endpoint(f"10.{n}.0.{number + 10}", nodeName=f"node-{n}", targetRef={"kind": "Pod", "name": f"pod-{n}"})
            for n in range(120 if number < len(LONG_VALUES) else 2)]),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on loopback, which serves the console by default."""
    with serving_console(tmp_path_factory.mktemp("console"), CLUSTER) as running:
        yield running


@contextmanager
def serving_console(folder: Path, cluster: list[Item], **flags: Any) -> Iterator[Server]:
    path = folder / "cluster.json"
    path.write_text(listed(cluster))
    with serving(folder, path, flags={"http": "127.0.0.1:0", "trusted-forwarder": ["127.0.0.0/8"], **flags}) as running:
        yield running


class Page(HTMLParser):
    """A page, as a browser reads it: the elements with their attributes, and the text without tags."""

    def __init__(self, answered: Answered) -> None:
        super().__init__()
        self.status = answered.status
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(answered.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.texts))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for found, attributes in self.elements if found == tag and name in attributes]

    @property
    def rows(self) -> list[str]:
        return [attributes["data-key"] for _, attributes in self.elements if "data-key" in attributes]


def page(server: Server, path: str, **more: str) -> Page:
    return Page(request(server, path, headers=HTML, **more))


def is_safe(found: Page) -> bool:
    """Whether a page runs and loads nothing but the console's own."""
    scripts = [attributes.get("src", "") for tag, attributes in found.elements if tag == "script"]
    links = [*found.attributes("a", "href"), *found.attributes("link", "href"), *found.attributes("form", "action")]
    names = {name for _, attributes in found.elements for name in attributes}
    return (
        all(source.startswith("/static/") for source in scripts)
        and all(link.startswith(("/", "#")) and not link.startswith("//") for link in links)
        and not {tag for tag, _ in found.elements} & {"style", "img", "iframe", "object", "base"}
        and not any(name.startswith("on") or name == "style" for name in names)
    )


# Every page


def test_no_page_is_large(tmp_path: Path) -> None:
    """However much others write: parts of lists are short, texts are cut, and none commands a terminal."""
    asked = [f"/services/shop/service-{number}" for number in range(len(LONG_VALUES))]
    asked += [f"{path}?client=10.5.0.9&keys={HOSTNAME}" for path in asked]
    asked += [f"/explain?name=service-{number}.shop&client=10.5.0.9" for number in range(len(LONG_VALUES))]
    with serving_console(tmp_path, LARGE) as running:
        codes = re.findall(r'id="cause-(\w+)"', request(running, "/", headers=HTML).body.decode())
        asked += ["/", "/map", f"/map?key={ZONE}", "/services", "/services?page=2", "/nodes/local/node-5"]
        asked += [f"/findings?code={code}" for code in codes]
        sizes = {}
        for path in asked:
            answered = request(running, path, headers=HTML)
            sizes[path] = len(answered.body)
            assert answered.status == 200 and answered.body.decode().replace("\n", "").isprintable()
        api = {path: len(request(running, path).body) for path in ("/api/v1/services", f"/api/v1/explain?{QUESTION}")}
        lines = running.lines
    assert {"InvalidTopologyKeys", "InvalidHealth", "InvalidMinEndpoints", "UnknownAnnotation"} <= set(codes)
    with_pictures = {path for path in sizes if path.startswith("/services/")}
    assert not {path: size for path, size in sizes.items() if size > (120_000 if path in with_pictures else 60_000)}
    assert not {path: size for path, size in api.items() if size > 60_000 * 4}
    assert max(map(len, lines)) < 4096 and len(lines) < 120  # fifty warnings, fifty errors, and how many more


@pytest.mark.parametrize("path", PAGES)
def test_each_page(server: Server, path: str) -> None:
    """It is whole HTML with a title, landmarks and one heading, and is marked in the navigation."""
    found = page(server, path)
    assert found.status == 200 and is_safe(found)
    tags = [tag for tag, _ in found.elements]
    assert all(tags.count(tag) == 1 for tag in ("main", "h1", "header", "footer"))
    assert tags[: tags.index("body")].count("title") == 1  # the parts of a picture have titles, too
    assert found.attributes("a", "aria-current") == ["page"]
    assert found.attributes("html", "lang") == ["en"] and "#main" in found.attributes("a", "href")
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = [name for names in found.attributes("section", "aria-labelledby") for name in names.split()]
    assert {*labelled, *found.attributes("label", "for"), *found.attributes("input", "list")} <= set(ids)


@pytest.mark.parametrize("path", [*PAGES, "/services/shop/nothing", "/static/console.css", "/complete?for=name", "/x"])
def test_headers(server: Server, path: str) -> None:
    """Nothing may be loaded from elsewhere, and no other page may frame or read what the console sends."""
    answered = request(server, path, headers=HTML)
    if path == "/x":
        assert answered.status == 404
        return
    kept = {"Cache-Control"} if path.startswith("/static") else set()
    assert all(answered.headers[name] == text for name, text in HEADERS.items() if name not in kept)
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert not {"set-cookie", "access-control-allow-origin"} & {name.lower() for name in answered.headers}
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


def test_no_console(tmp_path: Path) -> None:
    """``--console=off`` serves none of it, and neither does an address that is not loopback."""
    with serving_console(tmp_path, CLUSTER, console=False) as running:
        for path in ("/", "/map", "/live", "/static/console.js"):
            assert request(running, path, headers=HTML).status == 404


@pytest.mark.parametrize("path", [
    "/", "/map", f"/map?key={REGION}", "/services", "/services/shop/near", "/services/shop/near?client=10.244.1.8",
    "/findings", "/nodes/local/n1", f"/nodes/local/{ODD}",
    "/explain?name=near.shop&client=10.244.1.9", f"/explain?name={SCRIPT}&client={SCRIPT}", f"/services?text={SCRIPT}",
    f"/services/shop/near?client={SCRIPT}&namespace={SCRIPT}", f"/tail?service={SCRIPT}&client={QUOTES}",
    f"/map?within={SCRIPT}={SCRIPT}", f"/findings?code={SCRIPT}", f"/{SCRIPT}", f"/services/{SCRIPT}/x",
])  # fmt: skip
def test_hostile_names_are_text(hostile: Server, path: str) -> None:
    """Whatever stands in labels, annotations, names or the request: it is shown, and nothing more."""
    answered = request(hostile, path.replace("<", "%3C").replace('"', "%22").replace(" ", "%20"), headers=HTML)
    assert answered.status in (200, 400, 404)
    if answered.headers["content-type"].startswith("text/html"):
        assert is_safe(Page(answered)) and b"<script>alert" not in answered.body and b"58054189" not in answered.body
    else:
        json.loads(answered.body)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_console(tmp_path_factory.mktemp("hostile"), HOSTILE) as running:
        yield running


def test_hostile_names_can_be_read(hostile: Server) -> None:
    """They are not left out: somebody must find them."""
    assert SCRIPT in page(hostile, "/map").text and LINK in page(hostile, "/map").text
    assert ODD in page(hostile, "/nodes/local/%3Cb%20onclick=alert(1)%3E").text


# What the pages show


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
    assert "1 answer left empty by a hard constraint" in found.text and "127.0.0.1" in found.text


def test_map(server: Server) -> None:
    """By whatever keys are in use, within what is chosen, down to nodes."""
    found = page(server, "/map")
    assert {f"/map?within={key.replace('/', '%2F')}%3D{value}" for key, value in ((ZONE, "a"), (RACK, "2"))} <= {
        link.replace("/", "%2F").replace("%2Fmap", "/map", 1) for link in found.attributes("a", "href")
    }
    assert [row for row in found.rows if row.startswith("local/")] == [
        "local/a1 ", "local/a2 ", "local/b1 ", "local/bare "
    ]  # fmt: skip
    found = page(server, f"/map?within={ZONE}=a&within={RACK}=2")
    assert [row for row in found.rows if row.startswith("local/")] == ["local/a2 "]
    found = page(server, f"/map?within={ZONE}=")
    assert [row for row in found.rows if row.startswith("local/")] == ["local/bare "]
    found = page(server, f"/map?within={ZONE}=typo")
    assert "Nothing is here: no node, endpoint or client has this label" in found.text
    found = page(server, "/map?within=typo=a")
    assert (
        found.status == 400 and f"within: 'typo=a' found, expected KEY=VALUE with a key in use: {REGION}" in found.text
    )


def test_node(server: Server) -> None:
    """Endpoints, ready or not, and clients, with who holds their addresses."""
    found = page(server, "/nodes/local/a2")
    assert {"shop/near 10.244.2.7", "shop/near 10.244.2.8", "10.0.0.2"} <= set(found.rows)
    assert "not ready" in found.text and "node a2" in found.text
    for path in ("/nodes/local/a9", "/nodes/other/a1"):
        assert page(server, path).status == 404


def test_services(server: Server) -> None:
    """Those that ask for something come first; a filter finds parts of names."""
    assert page(server, "/services").rows == ["shop/hard", "shop/near", "shop/wrong", "shop/plain"]
    found = page(server, "/services", text="op/n")
    assert found.rows == ["shop/near"] and found.attributes("input", "value") == ["op/n"]
    assert "No Service has this" in page(server, "/services", text="nothing").text


def test_service(server: Server) -> None:
    """Its constraint, its endpoints, and for a client why it gets which; an invalid one with what its Event says."""
    found = page(server, "/services/shop/near")
    assert set(found.rows) == {"10.244.1.7", "10.244.2.7", "10.244.2.8", "10.244.3.7"}
    found = page(server, "/services/shop/near", client="10.244.1.9")
    assert found.rows[0] == "10.244.1.7" and f"has the client's {HOSTNAME}" in found.text
    assert f"{HOSTNAME} is a2, not a1" in found.text and "not ready" in found.text
    text = page(server, "/services/shop/hard").text
    assert "1 client gets nothing" in text and "\N{BALLOT X} 1 gets nothing" in text, "in words, and in the picture"
    found = page(server, "/services/shop/wrong")
    assert "InvalidTopology: metadata.annotations" in found.text
    assert "invalid, and so ignored by annotation: '*' is key 1 of 2" in found.text
    found = page(server, "/services/shop/nera")
    assert found.status == 404 and "did you mean shop/near?" in found.text


def test_what_was_asked_in_vain(tmp_path: Path) -> None:
    """The pages of a Service that asks for near endpoints and gets none say so, whatever source it asks by."""
    auto = {"service.kubernetes.io/topology-mode": "Auto"}
    rows = [endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="b1")]
    twin = service("twin", annotations={})
    cluster = [
        node("a1", {ZONE: "a"}), node("b1", {ZONE: "b"}), service("web", annotations=auto),
        endpoint_slice("web", 1, rows), twin, endpoint_slice("twin", 1, rows),
    ]  # fmt: skip
    with serving_console(tmp_path, cluster) as running:
        for path in ("/services/shop/web", "/explain?name=web.shop&client=10.244.1.9"):
            assert "no ready endpoint a hint" in page(running, path).text
        assert "selects the same pods" in page(running, "/services/shop/twin").text
        text = page(running, "/services").text
        assert "1 of which asks for near endpoints" in text and "near endpoints" in text and "no hints" in text


def test_a_slice_that_was_left_behind(tmp_path: Path) -> None:
    """What only a change of Pods reveals is among the findings of a server, too."""
    row, gone = (endpoint(f"10.244.1.{number}", nodeName="a1", targetRef={"kind": "Pod", "name": f"web-{number}"})
                 for number in (7, 8))  # fmt: skip
    by = "endpointslicemirroring-controller.k8s.io"
    cluster = [
        node("a1", {ZONE: "a"}), service("web", selects=True), pod("web-7", ["10.244.1.7"], "a1"),
        endpoint_slice("web", 1, [row], by="endpointslice-controller.k8s.io"), endpoint_slice("web", 2, [gone], by=by),
    ]  # fmt: skip
    with serving_console(tmp_path, cluster) as running:
        assert "there is no Pod shop/web-8" in page(running, "/findings").text


def test_a_service_that_asks_for_nothing(tmp_path: Path) -> None:
    """The page says what clients get, which depends on the sort of the Service, and why there are no records."""
    sorts = {
        "plain": ("headless", "every client gets all its endpoints."),
        "api": ("cluster IP", "behind which kube-proxy chooses an endpoint."),
        "alias": ("external name", "every client gets the name that it is an alias of."),
        "rendered": ("without address", "no records, because no address is written in it."),
    }
    items = [
        *(service("plain"), service("api", cluster_ips=["10.96.0.1"]), external("alias", "example.org")),
        *(namespace("shop"), service("rendered", cluster_ips=())),
    ]
    with serving_console(tmp_path, items) as server:
        for name, (sort, gets) in sorts.items():
            text = page(server, f"/services/shop/{name}").text
            assert sort in text and gets in text
        found = page(server, "/services/shop/rendered", client="10.0.0.1").text
        assert "no address is written in the Service (spec.clusterIP)" in found


def test_where_the_load_flows(tmp_path: Path, topodns: Run) -> None:
    """As ``topodns simulate`` says, and the same with another constraint beside it: load, reasons, a proposal."""
    dump = tmp_path / "skewed.json"
    items = [item for item in skewed() if item["metadata"]["name"] != "waiting"]  # it has an address, and does not run
    dump.write_text(listed(items))
    with serving_console(tmp_path, items) as server:
        found = page(server, "/services/shop/web")
        assert "at most 2.60 \N{MULTIPLICATION SIGN} an even share" in found.text and "overloaded" in found.text
        assert "20.0 % of the load crosses zones; without any constraint, 70.0 %." in found.text
        proposed = page(server, "/services/shop/web", propose="on")
        assert f"annotate service web --overwrite {MIN_ENDPOINTS}=2" in proposed.text
        assert "Propose something milder" in found.text and "annotate service" not in found.text
        other = page(server, "/services/shop/web", keys=f"{HOSTNAME},*", propose="on", client="10.2.1.1")
        assert f"annotate service web --overwrite {TOPOLOGY_KEYS}='{HOSTNAME},*' {MIN_ENDPOINTS}=2" in other.text
        tries = [parse_qs(urlsplit(link).query) for link in other.attributes("a", "href") if "least=2" in link]
        assert tries[-1] == {"client": ["10.2.1.1"], "keys": [f"{HOSTNAME},*"], "least": ["2"]}
        keys = f"example.com/Rack_A,{ZONE}"
        assert f"With {keys} and at least 1 endpoint " in page(server, "/services/shop/web", keys=keys, least="1").text
        tried = page(server, "/services/shop/web", keys=ZONE, least="2", client="10.2.1.1")
        assert f"With {ZONE} and at least 2 endpoints" in tried.text and "2 clients get nothing" in tried.text
        assert f"{ZONE} is a, not c" in tried.text, "why the client in zone c does not get an endpoint, in a column"
        for path in ("/services/shop/web", "/services/shop/plain"):
            text = page(server, path).text
            row = topodns("simulate", "--service", path[10:], "--snapshot", str(dump), "-o", "json").json["services"][0]
            for domain in row["domains"]:
                assert f"{next(iter(domain['domain'].values()), 'anywhere')}{domain['clients']}" in text, domain
        without = page(server, "/services/shop/web", keys="-")
        assert "Without the annotation" in without.text and "no constraint" in without.text
        unknown = page(server, "/services/shop/web", keys="example.com/zone,*")
        assert f"no node has the label example.com/zone; the nearest that nodes have is {ZONE}" in unknown.text
        assert "Where the load flows" not in page(server, "/services/shop/virtual").text


@pytest.mark.parametrize("without", ["no pods", "finished pods"])
def test_endpoints_that_name_no_pod_that_asks(tmp_path: Path, without: str) -> None:
    """They are no clients, and take none away: every page is there, and counts the pods that it has."""
    items = skewed()
    for item in [item for item in items if item["kind"] == "Pod"]:
        if without == "no pods":
            items.remove(item)
        elif item["metadata"]["name"].startswith("web-"):
            item["status"]["phase"] = "Succeeded"
    dump = tmp_path / "cluster.json"
    dump.write_text(listed(items))
    with shown(str(dump)) as running:
        first, found = page(running, "/"), page(running, "/services/shop/web")
        assert first.status == found.status == 200
        assert ("knows no Pods" in found.text) == ("knows no Pods" in first.text) == (without == "no pods")
        assert ("\N{MULTIPLICATION SIGN} an even share" in found.text) == (without == "finished pods")
        assert ("crosses zones" in found.text) == (without == "finished pods")
        assert ("zone=a7" in found.text) == (without == "finished pods"), "six, and one that is not running"


def test_a_dump_without_slices(tmp_path: Path) -> None:
    """No page says that a Service has no endpoint where the dump does not say so."""
    dump, lacks = tmp_path / "cluster.json", "the dump has neither EndpointSlices nor Endpoints"
    dump.write_text(listed([item for item in skewed() if item["kind"] != "EndpointSlice"]))
    with shown(str(dump)) as running:
        for path in ("/", "/services", "/services/shop/web"):
            found = page(running, path)
            assert found.status == 200 and f"Not known: {lacks}" in found.text, path
        assert "0 ready" not in found.text and "Where the load flows" not in found.text
        assert lacks in page(running, "/explain", name="web.shop", client="10.0.0.1").text


@pytest.mark.parametrize(
    ("path", "field", "message"),
    [
        (f"/services/shop/near?keys=*,{ZONE}", "keys", "'*' is key 1 of 2, but only the last key may be '*'"),
        ("/services/shop/near?least=x", "least", "'x' found, expected a whole number from 1"),
        ("/explain?name=near.shop&client=x", "client", "'x' is no IP address, expected an address, a prefix"),
        ("/explain?name=svc/naer&namespace=shop&client=10.0.0.1", "name", "no Service shop/naer, did you mean near?"),
        ("/explain?name=near.shop", "client", "missing, expected an address"),
        ("/explain?name=near.shop&client=10.0.0.1&type=AX", "type", "'AX' is not a record type"),
        ("/explain?name=near&client=10.0.0.1&namespace=S_", "namespace", "'S_'"),
        ("/services/shop/near?client=pod/frnt", "client", "no Pod shop/frnt, did you mean front?"),
        ("/tail?client=x", "client", "'x' is no IP address"),
    ],
)
def test_errors_stand_beside_the_field(server: Server, path: str, field: str, message: str) -> None:
    """Status 400, the form as it was filled in, what was found and expected; and the page is whole."""
    found = page(server, path)
    assert found.status == 400 and message in found.text and is_safe(found)
    (invalid,) = (attributes for _, attributes in found.elements if "aria-invalid" in attributes)
    assert invalid["name"] == field and f"{field}-error" in invalid["aria-describedby"].split()


def test_explain_is_that_of_the_api(server: Server) -> None:
    """With every endpoint, and why."""
    asked = {"name": "near.shop", "client": "10.244.1.9"}
    found = page(server, "/explain", **asked)
    explained = request(server, "/api/v1/explain", candidates="true", **asked).json
    assert explained["reason"] in found.text
    assert all(row["why"] in found.text and row["addresses"][0] in found.text for row in explained["candidates"])
    assert page(server, "/explain?name=near.shop&client=10.244.1.9&x=1").status == 400


def test_completion(server: Server) -> None:
    """From what exists: names of Services, pods with their namespaces, nodes, domains."""

    def proposals(**asked: str) -> list[str]:
        found = request(server, "/complete", **asked).json["proposals"]
        return [f"{row['value']} {row['namespace']}".strip() for row in found]

    assert proposals(**{"for": "name", "text": "ne"}) == ["near.shop"]
    assert proposals(**{"for": "name", "text": "near.sh"}) == ["near.shop"]
    assert proposals(**{"for": "client", "text": "pod/"}) == ["pod/back lab", "pod/front shop"]
    assert proposals(**{"for": "client", "text": "fro"}) == ["pod/front shop"]
    assert proposals(**{"for": "client", "text": "node/a"}) == ["node/a1", "node/a2", "node/bare"]
    assert f"{ZONE}=a" in proposals(**{"for": "client", "text": "zone"})
    assert request(server, "/complete", **{"for": "nothing"}).status == 400


def query_from(client: str | None, name: str) -> Any:
    options = [] if client is None else [dns.edns.ECSOption(client, 32)]
    return dns.message.make_query(name, "A", use_edns=0, options=options)


# What changes


@contextmanager
def live(server: Server) -> Iterator[Events]:
    """Read the events of ``/live`` until the block ends."""
    response = urllib3.request(
        "GET", f"http://{server.http}/live", timeout=PATIENCE, retries=False, preload_content=False
    )
    assert response.status == 200
    try:
        yield Events(response)
    finally:
        response.close()


def test_pages_hear_of_changes(tmp_path: Path) -> None:
    """First the version, by which a page knows whether it is out of date; then each change, and pages show it."""
    with serving_console(tmp_path, CLUSTER) as running, live(running) as told:
        name, state = told.next()
        before = page(running, "/services/shop/near")
        assert (name, [state["version"]]) == ("state", before.attributes("body", "data-version"))
        fewer = [item for item in CLUSTER if not item["metadata"]["name"].startswith("near-")]
        replace_file(tmp_path / "cluster.json", listed(fewer))
        running.send(signal.SIGHUP)
        while told.next() != ("changed", {"what": ["snapshot"]}):
            pass
        after = page(running, "/services/shop/near")
        assert before.rows and not after.rows
        assert after.attributes("body", "data-version") != before.attributes("body", "data-version")


@pytest.mark.parametrize(
    "change",
    [PageChanges.counted, lambda changes: changes.published(snapshot_of(CLUSTER), ())],
    ids=["counted", "published"],
)
def test_a_page_that_misses_a_change_notices(change: Callable[[PageChanges], None]) -> None:
    """What changes after a page was made, and before it begins to follow, changes the version that it is told first."""
    changes = PageChanges()
    made = changes.version
    change(changes)
    with changes.feed(lambda: None) as take:
        (told,) = take()
    assert changes.version in told and made not in told


def test_streams_are_bounded(server: Server) -> None:
    """One more is refused, and says so; the place of a reader that has gone is free again."""
    with ExitStack() as stack:
        for _ in range(MAX_STREAMS):
            stack.enter_context(live(server))
        assert request(server, "/live", "HEAD").status == 503
        refused = request(server, "/live")
        assert refused.headers["retry-after"] == "10"
        assert refused.json["detail"].startswith(f"{MAX_STREAMS} pages that follow changes found")
        assert page(server, "/").status == 200
    until(lambda: _opens(server), "places are free again")


def _opens(server: Server) -> bool:
    try:
        with live(server):
            return True
    except AssertionError:
        return False


def test_changes_come_at_most_once_a_second() -> None:
    """Several together are one event; who has gone hears nothing more. In virtual time."""
    changes, got = PageChanges(), list[tuple[float, str]]()

    async def main() -> None:
        async def receive() -> dict[str, Any]:
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            got.append((trio.current_time(), message.get("body", b"").decode()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(EventStream(changes.feed, pause=CHANGE_SECONDS), {}, receive, send)
            for _ in range(30):
                await trio.sleep(0.1)
                changes.published(SNAPSHOT, ())
                changes.counted()
            await trio.sleep(1.5)
            nursery.cancel_scope.cancel()
        assert not changes.readers
        changes.counted()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    times = [when for when, text in got if text.startswith("event: changed")]
    assert 3 <= len(times) <= 5 and all(later - sooner >= 1 for sooner, later in pairwise(times))
    assert all('"what":["snapshot","counts"]' in text for _, text in got if text.startswith("event: changed"))


SUMS = st.dictionaries(st.tuples(st.sampled_from("abc")), st.integers(0, 9), max_size=3)
LOOKS = st.lists(st.tuples(st.floats(0.1, 50.0), SUMS), max_size=30)


@settings(unshrunk)
@given(LOOKS, st.floats(0.0, 200.0))
def test_the_window_slides(looks: list[tuple[float, Mapping[Key, int]]], later: float) -> None:
    """It has what was counted since the last look before it began, and nothing older; it stays small."""
    window, now, sums = Window(100.0, 0.0, {}), 0.0, Counter[Key]()
    grown: list[tuple[float, Counter[Key]]] = []
    for pause, more in looks:
        now += pause
        sums.update(more)
        grown.append((now, Counter(more)))
        window = window.after(dict(sums), now)
        assert len(window.slots) <= MAX_SLOTS
    now += later
    expected = Counter[Key]()
    for when, more in grown:
        expected.update(more if when > now - 100.0 else {})
    assert +window.counted(now) == +expected
    assert window.covered(now) == min(100.0, now)


def test_the_window_has_few_slots() -> None:
    """Whoever looks too often sees less of the past."""
    window = Window(1e9, 0.0, {})
    for now in range(3 * MAX_SLOTS):
        window = window.after({("a",): now + 1}, float(now))
    assert len(window.slots) == MAX_SLOTS and window.counted(3.0 * MAX_SLOTS) == {("a",): MAX_SLOTS}


# Limits


def test_pages_stay_small(tmp_path: Path) -> None:
    """However large the cluster is, a page has a part of it, and leads to the others."""
    number, endpoints = 2000, [endpoint(f"10.9.{n // 200}.{n % 200}", nodeName=f"n{n}") for n in range(2000)]
    large = [
        namespace("shop"),
        *(node(f"n{n}", {ZONE: f"z{n}", REGION: f"r{n % 40}"}) for n in range(number)),
        *(pod(f"pod-{n}", [f"10.8.{n // 200}.{n % 200}"], "n0") for n in range(number)),
        *(service(f"s{n}", keys=ZONE if n % 2 else "*,*", selects=True) for n in range(number)),
        *(endpoint_slice("s1", n, endpoints[n::10], by=SLICE_CONTROLLER) for n in range(10)),
    ]
    with serving_console(tmp_path, large) as running:
        for path, parts in {
            "/": 0, "/findings?code=InvalidTopologyKeys": 20, "/map": 40, f"/map?key={ZONE}": 20, "/nodes/local/n0": 41,
            "/services": 40, "/services?text=s1": 23, "/services/shop/s1": 40,
            "/services/shop/s1?client=10.8.0.1": 40, "/explain?name=s1.shop&client=10.8.0.1": 0,
        }.items():  # fmt: skip
            answered = request(running, path, headers=HTML)
            found = Page(answered)
            assert answered.status == 200 and len(answered.body) < 60_000, path
            assert "\N{HORIZONTAL ELLIPSIS}" not in found.text, path
            assert not parts or f"Part 1 of {parts}" in found.text, path
        first = page(running, "/services")
        (following,) = (link for link in first.attributes("a", "href") if "page=2" in link)
        assert not set(page(running, following).rows) & set(first.rows)
        assert "Part 40 of 40" in page(running, "/services?page=999").text


def test_before_the_first_snapshot(tmp_path: Path) -> None:
    """Overview says what is missing; other pages come with status 503, and say why."""
    with serving_live(tmp_path, kubeconfig(tmp_path, "http://127.0.0.1:1"), started=False) as running:
        found = page(running, "/")
        assert found.status == 200 and "Not ready" in found.text and "not read yet" in found.text
        for path in ("/map", "/services", "/services/a/b", "/nodes/local/a", "/explain?name=a.b&client=10.0.0.1"):
            found = page(running, path)
            assert found.status == 503 and "the server has not read the cluster yet" in found.text and is_safe(found)


def test_requests_that_wait_are_bounded() -> None:
    """One page of each sort is computed, some wait; whoever comes then is told to come again, on a page."""
    changes = PageChanges()
    changes.published(SNAPSHOT, ())

    class SlowPublisher:
        """A publisher of which nobody gets the objects."""

        snapshot = SNAPSHOT

        async def objects(self, kind: object) -> dict[str, object]:
            await trio.sleep_forever()
            raise AssertionError

    inspected = Inspected(lambda: changes.snapshot, {"local": SlowPublisher()}, authority_of(settings_of()), "default")  # type: ignore[dict-item]

    async def main() -> None:
        console = Console(inspected, Turns(), changes, None, health=dict, ages=dict)
        (endpoint,) = (route.endpoint for route in console.routes(loopback=False) if route.path == "/map")
        scope = {"type": "http", "method": "GET", "headers": [(b"host", b"x")], "query_string": b"", "path": "/map"}
        async with trio.open_nursery() as nursery:
            for _ in range(1 + MAX_WAITING):
                nursery.start_soon(endpoint, Request(scope))
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE):
                refused = await endpoint(Request(scope))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert b"<h1>Busy</h1>" in refused.body
            nursery.cancel_scope.cancel()

    trio.run(main)


class SilentUpstream(Upstream):
    """An upstream that never answers; ``asked`` is set when *number* requests wait for it."""

    def __init__(self, number: int) -> None:
        super().__init__((), Counts())
        self.asked, self._number = trio.Event(), number

    async def find(self, target: str, qtype: int, namespace: str, *, deadline: float = inf) -> UpstreamAnswer:
        self._number -= 1
        if not self._number:
            self.asked.set()
        await trio.sleep_forever()
        raise AssertionError


@pytest.mark.parametrize("path", ["/explain", "/api/v1/explain"])
def test_who_waits_for_the_upstream_holds_up_nobody(path: str) -> None:
    """A name in the zones is explained while more wait than there are turns to wait for."""
    snapshot, number = snapshot_of(WITH_ALIASES), 1 + MAX_WAITING
    authority = authority_of(settings_of({"upstream": "192.0.2.1"}))

    def asking(name: str) -> Request:
        query = f"name={name}&client=127.1.0.1".encode()
        return Request(
            {"type": "http", "method": "GET", "headers": [(b"host", b"x")], "query_string": query, "path": path}
        )

    async def main() -> None:
        upstream, turns = SilentUpstream(MAX_OUTSIDE), Turns()
        inspected = Inspected(lambda: snapshot, {}, authority, "default", find_all=upstream.find_all)
        console = Console(inspected, turns, PageChanges(), None, health=dict, ages=dict)
        routes = [*Api(inspected, turns, None).routes(loopback=False), *console.routes(loopback=False)]
        (endpoint,) = (route.endpoint for route in routes if route.path == path)
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for _ in range(number):
                    nursery.start_soon(endpoint, asking(OUT))
                await upstream.asked.wait()
                answered = await endpoint(asking(WEB))
                assert answered.status_code == 200 and b"127.1.0.1" in answered.body
                nursery.cancel_scope.cancel()

    trio.run(main)


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


# topodns console


class Shown(Process):
    """A running ``topodns console``, whose pages are at ``http``."""

    def __init__(self, *arguments: str) -> None:
        command = ["sh", "-c", 'exec "$@" >&2', "sh", *COMMAND]  # standard output is where its lines are read
        super().__init__(["console", *arguments], command=command)
        self.http = self.wait_for(r"^http://(127\.0\.0\.1:\d+)/$")[1]


@contextmanager
def shown(*arguments: str) -> Iterator[Any]:
    process = Shown(*arguments)
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_console_of_a_dump(tmp_path: Path, number: signal.Signals) -> None:
    """It can be opened once its address is there, follows the files, answers no DNS, and a signal ends it."""
    path = tmp_path / "cluster.json"
    path.write_text(listed(CLUSTER))
    with shown(str(path)) as running:
        found = page(running, "/")
        assert found.status == 200 and "answers no DNS queries" in found.text and "each pod asks once" in found.text
        assert {"a", "b", "shop/hard"} <= set(found.rows), "zones of clients, and a Service to look at"
        assert "/tail" not in found.attributes("a", "href") and request(running, "/api/v1/tail").status == 404
        assert "/api/v1/tail" not in request(running, "/api/v1/openapi.json").json["paths"]
        assert not [line for line in running.lines if line.startswith("listening udp")]
        assert request(running, "/", headers={"Host": "evil.example"}).status == 403
        assert page(running, "/services/shop/near", client="10.244.1.9").rows[0] == "10.244.1.7"
        assert page(running, "/explain", name="near.shop", client="pod/front", namespace="shop").status == 200
        replace_file(path, listed([*CLUSTER, service("later")]))
        until(lambda: "shop/later" in page(running, "/services").rows, "the file is read again")
        assert running.end(number) == 0


def test_a_node_of_another_cluster() -> None:
    """Nothing leads from it to the own cluster's node or Service of the same name."""
    europe, central = (str(ROOT / "examples" / "clusters" / f"{name}.yaml") for name in ("europe", "us-central"))
    with shown(europe, "--cluster-name", "europe", "--cluster", f"us-central={central}") as running:
        for cluster, leads in (("europe", True), ("us-central", False)):
            found = page(running, f"/nodes/{cluster}/node-1")
            assert "shop/web" in found.text and cluster in found.text
            links = found.attributes("a", "href")
            assert ("/services/shop/web" in links) == ("/explain?client=node%2Fnode-1" in links) == leads


def test_console_of_a_live_cluster(tmp_path: Path) -> None:
    """It can be opened before the cluster can be reached, and says what is wrong."""
    config = kubeconfig(tmp_path, "http://127.0.0.1:1")
    with shown("--kubeconfig", str(config)) as running:
        assert "Not ready" in page(running, "/").text
        assert running.end() == 0


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("missing.yaml",), 2, "topodns: missing.yaml: No such file or directory, expected a file or folder\n"),
        (
            ("--http", "0.0.0.0:0", "x"),
            2,
            "topodns: --http: 0.0.0.0:0 found, expected an address of this machine alone",
        ),
        (("--http", "off", "x"), 2, "topodns: --http: off found, expected an address of this machine alone"),
        (("--context", "c", "x"), 2, "topodns: --context: given together with --snapshot"),
        (("--listen", "127.0.0.1:0"), 2, "topodns: --listen: a flag of serve, not of console"),
    ],
)
def test_console_with_wrong_arguments(arguments: tuple[str, ...], status: int, message: str) -> None:
    """A message, no traceback, and nothing on standard output."""
    ran = run("console", *arguments)
    assert (ran.returncode, ran.stdout) == (status, "") and ran.stderr.startswith(message)


def test_console_whose_port_is_taken(tmp_path: Path, server: Server) -> None:
    """Status 1, and which program has it can be found."""
    ran = run("console", "--http", server.http, str(ROOT / "examples" / "cluster.yaml"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"topodns: --http {server.http}: tcp: port in use" in ran.stderr
