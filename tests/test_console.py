"""The console: pages for people at ``/`` of ``--http``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dnsserver.http.console.headers import HEADERS
from tests.api_client import Answered, request
from tests.api_objects import (
    HOSTNAME,
    MIN_ENDPOINTS,
    RACK,
    REGION,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    service,
)
from tests.commands_in_process import Run
from tests.skewed import skewed
from tests.topodns_process import Server, serving
from tests.waiting import until

SCRIPT = "<script>alert(1)</script>"
LINK = "javascript:alert(1)"
ODD = "<b onclick=alert(1)>"  # without a slash, which would end a part of a path
QUOTES = "\"'><img src=x onerror=alert(1)>{{7*7}}"

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
        assert is_safe(Page(answered)) and b"<script>alert" not in answered.body and b"49" not in answered.body
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
    """Findings with the commands that mend them, the contact with each cluster, and who has asked."""
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
    found = page(server, "/services/shop/wrong")
    assert "InvalidTopology: metadata.annotations" in found.text and "invalid, and so ignored" in found.text
    found = page(server, "/services/shop/nera")
    assert found.status == 404 and "did you mean shop/near?" in found.text


def test_where_the_load_flows(tmp_path: Path, topodns: Run) -> None:
    """As ``topodns simulate`` says, and the same with another constraint beside it: load, reasons, a proposal."""
    dump = tmp_path / "skewed.json"
    items = [item for item in skewed() if item["metadata"]["name"] != "waiting"]  # it has an address, and does not run
    dump.write_text(listed(items))
    with serving_console(tmp_path, items) as server:
        found = page(server, "/services/shop/web")
        assert "at most 2.60 \N{MULTIPLICATION SIGN} an even share" in found.text and "overloaded" in found.text
        assert "20.0 % of the load crosses zones; without any constraint, 70.0 %." in found.text
        assert f"annotate service web --overwrite {MIN_ENDPOINTS}=2" in found.text
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
    import dns.edns
    import dns.message

    options = [] if client is None else [dns.edns.ECSOption(client, 32)]
    return dns.message.make_query(name, "A", use_edns=0, options=options)
