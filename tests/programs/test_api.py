# SPDX-License-Identifier: Apache-2.0

"""The HTTP API: what a running server answers, and why."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given, settings

from dnsserver import __version__
from dnsserver.http.guard import objection
from dnsserver.names import parse_zone
from dnsserver.programs.from_settings import store_of
from dnsserver.tools.api.contents import ClusterContents, domains_of
from dnsserver.tools.api.operations import DESCRIPTION, JSON, OPERATIONS
from locator import model
from tests.kit.api_client import API, Answered, request
from tests.kit.api_objects import (
    HOSTNAME,
    RACK,
    REGION,
    SLICE_CONTROLLER,
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
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import NOW, dump_of, settings_of, take_in
from tests.kit.topodns_process import Server, serving
from tests.kit.unshrunk import unshrunk

if TYPE_CHECKING:
    from schemathesis import Case
    from schemathesis.specs.openapi.schemas import OpenApiSchema

CLUSTER: list[Item] = [
    *map(namespace, ("default", "shop", "lab")),
    node("a1", {ZONE: "a", REGION: "r", RACK: "1"}, addresses=["10.0.0.1", "fd00::1"], cidrs=["10.244.1.0/24"]),
    node("a2", {ZONE: "a", REGION: "r", RACK: "2"}, addresses=["10.0.0.2"], cidrs=["10.244.2.0/24"]),
    node("b1", {ZONE: "b", REGION: "r"}),
    node("bare", {}),
    pod("front", ["10.244.1.9", "fd00:1::9"], "a1"),
    pod("proxy", ["10.0.0.2"], "a2", hostNetwork=True),
    service("near", keys=f"{HOSTNAME},{ZONE},{RACK},*", selects=True),
    endpoint_slice("near", 1, [
        endpoint("10.244.1.7", nodeName="a1"), endpoint("10.244.2.7", nodeName="a2"),
        endpoint("10.244.2.8", nodeName="a2", ready=False)], by=SLICE_CONTROLLER),
    service("far", keys=ZONE, where="lab", selects=True),
    endpoint_slice("far", 1, [endpoint("10.244.3.7", nodeName="b1")], where="lab", by=SLICE_CONTROLLER),
    service("wrong", keys="*,a"),
    service("plain", selects=True),
    endpoint_slice("plain", 1, [endpoint("10.244.9.9")], by=SLICE_CONTROLLER),
]  # fmt: skip


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "cluster.json"
    path.write_text(listed(CLUSTER))
    return path


@pytest.fixture(scope="module")
def server(dump: Path) -> Iterator[Server]:
    """A server on loopback, which serves the API by default."""
    with serving(dump.parent, dump, flags={"http": "127.0.0.1:0"}) as running:
        yield running


# Who asks from where

EXPLAINED = [
    {"name": "near.shop.svc.cluster.local", "client": "10.244.1.9"},
    {"name": "near", "client": "pod/front", "namespace": "shop", "candidates": "true"},
    {"name": "near", "client": "pod/shop/front", "namespace": "shop"},
    {"name": "svc/far", "client": "node/a1", "namespace": "lab"},
    {"name": "near.shop", "client": f"{ZONE}=a,{RACK}=1"},
    {"name": "near.shop", "client": "10.244.2.0/24", "type": "aaaa"},
    {"name": "naer.shop", "client": "fd00:1::9"},
    {"name": "example.com", "client": "203.0.113.9"},
]


@pytest.mark.parametrize("asked", EXPLAINED, ids=lambda asked: " ".join(asked.values()))
def test_explain(server: Server, dump: Path, topodns: Run, asked: dict[str, str]) -> None:
    """The same JSON as ``explain`` prints, and ``explain --server`` prints what ``explain`` does, in each form."""
    arguments = ["explain", asked["name"], asked.get("type", "A"), "--client", asked["client"]]
    arguments += ["-n", asked["namespace"]] if "namespace" in asked else []
    arguments += ["--candidates"] if "candidates" in asked else []
    said = request(server, f"{API}/explain", **asked)
    assert (said.status, said.headers["content-type"]) == (200, "application/json")
    for output in ("json", "text"):
        local = topodns(*arguments, "-o", output, "--snapshot", str(dump))
        remote = topodns(*arguments, "-o", output, "--server", f"http://{server.http}")
        assert (remote.status, remote.out) == (0, local.out)
        if output == "json":
            assert said.json == local.json


# Bad input

LONG = "x" * 2000
PROBLEMS = [
    # id, path, parameters, status, parameter, detail
    ("no-name", "explain", {"client": "10.0.0.1"}, 400, "name", "missing, expected svc/NAME, NAMESPACE/NAME or a "),
    ("no-client", "explain", {"name": "near.shop"}, 400, "client", "missing, expected an address"),
    ("bad-name", "explain", {"name": "a..b", "client": "10.0.0.1"}, 400, "name", "'a..b' is not a domain name"),
    ("unknown-type", "explain", {"name": "near.shop", "client": "10.0.0.1", "type": "AX"}, 400, "type",
     "'AX' is not a record type, expected a record type such as A, AAAA or SRV"),
    ("bad-client", "explain", {"name": "near.shop", "client": "10.0.0"}, 400, "client", "'10.0.0' is no IP address"),
    ("bad-switch", "explain", {"name": "near.shop", "client": "10.0.0.1", "candidates": "yes"}, 400, "candidates",
     "'yes', expected true or false"),
    ("bad-namespace", "explain", {"name": "near", "client": "10.0.0.1", "namespace": "S_"}, 400, "namespace", "'S_'"),
    ("no-such-service", "explain", {"name": "svc/naer", "namespace": "shop", "client": "10.0.0.1"}, 400, "name",
     "no Service shop/naer, did you mean near?"),
    ("no-such-parameter", "explain", {"nmae": "x"}, 400, "nmae",
     "unknown parameter, expected one of name, client, type, namespace, candidates"),
    ("too-long", "explain", {"name": LONG, "client": "10.0.0.1"}, 400, "name", "2000 characters found, expected svc/"),
    ("no-key", "topology", {"keys": "-"}, 400, "keys", "'-': '-' is no valid label key, expected label keys"),
    ("any-key", "topology", {"keys": "zone,*"}, 400, "keys", "'zone,*', expected label keys, separated by commas"),
    ("no-limit", "services", {"limit": "0"}, 400, "limit", "'0', expected a whole number from 1 to 1000"),
    ("no-page", "services", {"continue": "near"}, 400, "continue", "'near', expected NAMESPACE/NAME"),
    ("no-service", "tail", {"service": "near"}, 400, "service", "'near', expected NAMESPACE/NAME"),
    ("no-address", "tail", {"client": "front"}, 400, "client", "'front' is no IP address, expected an address or a"),
    ("no-outcome", "tail", {"outcome": "best"}, 400, "outcome",
     "'best', expected nearest, all, spilled, unconstrained or unmet"),
    ("no-path", "explane", {}, 404, None, "nothing is served at /api/v1/explane"),
]  # fmt: skip


def problem_of(answered: Answered) -> dict[str, Any]:
    assert answered.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answered.json
    assert problem["status"] == answered.status and problem["type"] == "about:blank" and problem["title"]
    return problem


@pytest.mark.parametrize(
    ("path", "given", "status", "parameter", "detail"), [row[1:] for row in PROBLEMS], ids=[row[0] for row in PROBLEMS]
)
def test_bad_input(
    server: Server, path: str, given: dict[str, str], status: int, parameter: str | None, detail: str
) -> None:
    """A problem as RFC 9457 has it, which names the parameter, what was found and what was expected."""
    problem = problem_of(request(server, f"{API}/{path}", **given))
    assert (problem["status"], problem.get("parameter")) == (status, parameter)
    assert problem["detail"].startswith(f"{parameter}: {detail}" if parameter else detail)


def test_a_parameter_stands_once(server: Server) -> None:
    """Whichever of two was meant, one of them would be ignored."""
    problem = problem_of(request(server, f"{API}/services?limit=1&limit=2"))
    assert problem["detail"] == "limit: given twice, expected once"


PATHS = ["/", DESCRIPTION, "/metrics", "/readyz", f"{API}/topology", f"{API}/services"]


@pytest.mark.parametrize("path", [*PATHS, f"{API}/tail"])
def test_methods(server: Server, path: str) -> None:
    """Everything is only read: GET, and HEAD, which says what GET would, without a body."""
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        refused = request(server, path, method)
        assert (refused.status, set(refused.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
        assert problem_of(refused)["detail"] == f"{method} found, expected GET or HEAD"
    head = request(server, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    if path in PATHS:
        assert head.headers["content-type"] == request(server, path).headers["content-type"]


# Who may ask

HEADERS = [
    # id, headers, whether on loopback, what is wrong
    ("name", {"host": "localhost:9153"}, True, None),
    ("name-below", {"host": "topodns.localhost"}, True, None),
    ("address", {"host": "127.0.0.1:9153"}, True, None),
    ("another-address", {"host": "127.9.0.1"}, True, None),
    ("ipv6", {"host": "[::1]:9153"}, True, None),
    ("ipv4-mapped", {"host": "[::ffff:127.0.0.1]:9153"}, True, None),
    ("final-dot", {"host": "localhost.:9153"}, True, None),
    ("two-final-dots", {"host": "localhost..:9153"}, True, "Host:"),
    ("rebound", {"host": "evil.example:9153"}, True, "Host: 'evil.example:9153'"),
    ("like-localhost", {"host": "notlocalhost"}, True, "Host:"),
    ("below-another", {"host": "localhost.evil.example"}, True, "Host:"),
    ("another-machine", {"host": "10.0.0.1:9153"}, True, "Host:"),
    ("elsewhere", {"host": "topodns.kube-system.svc:9153"}, False, None),
    ("elsewhere-whole", {"host": "topodns.kube-system.svc.cluster.local"}, False, None),
    ("elsewhere-upper-case", {"host": "TOPODNS.kube-system.SVC.:9153"}, False, None),
    ("elsewhere-one-label", {"host": "topodns:9153"}, False, None),
    ("elsewhere-local", {"host": "localhost:9153"}, False, None),
    ("elsewhere-address", {"host": "10.0.0.1:9153"}, False, None),
    ("elsewhere-ipv6", {"host": "[fd00::1]:9153"}, False, None),
    ("elsewhere-host-name", {"host": "vm-1.corp.example"}, False, None),
    ("elsewhere-rebound", {"host": "evil.example:9153"}, False, "Host: 'evil.example:9153' found, expected"),
    ("elsewhere-two-labels", {"host": "topodns.dev"}, False, "Host:"),  # may be somebody's domain
    ("elsewhere-like-a-service", {"host": "topodns.shop.svc.evil.example"}, False, "Host:"),
    ("elsewhere-like-an-address", {"host": "10.0.0.1.evil.example"}, False, "Host:"),
    ("elsewhere-another-zone", {"host": "topodns.shop.svc.evil.local"}, False, "Host:"),
    ("elsewhere-below-the-zone", {"host": "evil.cluster.local"}, False, "Host:"),
    ("elsewhere-reverse", {"host": "evil.svc.in-addr.arpa"}, False, "Host:"),
    ("elsewhere-none", {}, False, "Host: ''"),
    ("elsewhere-malformed", {"host": "[::1"}, False, "Host:"),
    # Browsers say so over HTTPS alone, where the name is proven.
    ("ingress", {"host": "topodns.example.com", "sec-fetch-site": "same-origin"}, False, None),
    ("ingress-typed", {"host": "topodns.example.com", "sec-fetch-site": "none"}, False, None),
    ("ingress-link", {"host": "topodns.example.com", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
     False, None),
    ("ingress-other-page", {"host": "topodns.example.com", "sec-fetch-site": "cross-site"}, False, "Sec-Fetch-Site:"),
    ("https-to-loopback", {"host": "topodns.example.com", "sec-fetch-site": "same-origin"}, True, "Host:"),
    ("own-page", {"host": "localhost:9153", "origin": "http://localhost:9153", "sec-fetch-site": "same-origin"}, True,
     None),
    ("typed", {"host": "localhost", "sec-fetch-site": "none"}, True, None),
    ("other-page", {"host": "localhost:9153", "origin": "https://evil.example"}, True, "Origin:"),
    ("other-port", {"host": "localhost:9153", "origin": "http://localhost:8000"}, True, "Origin:"),
    ("malformed-page", {"host": "localhost:9153", "origin": "http://[::1"}, True, "Origin:"),
    ("hidden-page", {"host": "localhost:9153", "origin": "null"}, True, "Origin:"),
    ("image", {"host": "localhost:9153", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, True,
     "Sec-Fetch-Site:"),
    ("link", {"host": "localhost:9153", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True, None),
    ("other-page-elsewhere", {"host": "topodns:9153", "origin": "https://evil.example"}, False, "Origin:"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "loopback", "wrong"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS]
)
def test_pages_of_other_sites_read_nothing(
    monkeypatch: pytest.MonkeyPatch, headers: Mapping[str, str], loopback: bool, wrong: str | None
) -> None:
    """A browser that reaches the server runs pages from anywhere, also under names that they let point there."""
    monkeypatch.setattr(socket, "gethostname", lambda: "VM-1.corp.example")
    zones = tuple(map(parse_zone, ("cluster.local", "in-addr.arpa")))
    objected = objection(headers, loopback=loopback, zones=zones)
    assert objected is None if wrong is None else (objected or "").startswith(wrong)


@pytest.mark.parametrize(
    "path", ["/", DESCRIPTION, "/metrics", "/readyz", "/ready", *(operation.path for operation in OPERATIONS)]
)
def test_what_the_guard_guards(server: Server, path: str) -> None:
    """All but whether the process is alive, which says nothing about the cluster."""
    refused = request(server, path, headers={"Host": "evil.example"})
    assert refused.status == 403 and "evil.example" in problem_of(refused)["detail"]
    assert request(server, path, headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    assert "access-control-allow-origin" not in request(server, "/", headers={"Origin": "http://x"}).headers
    for alive in ("/livez", "/health", "/healthz"):
        assert request(server, alive, headers={"Host": "evil.example"}).status == 200


CONSOLE = [
    # id, --http, --console, whether API and console are served, by which Host, by which name the command asks
    ("everywhere", "0.0.0.0:0", None, False, "topodns", "127.0.0.1"),
    ("everywhere-on", "0.0.0.0:0", True, True, "topodns", "topodns.example.com"),
    ("loopback-off", "127.0.0.1:0", False, False, "localhost", "127.0.0.1"),
]


@pytest.mark.parametrize(
    ("http", "console", "served", "host", "name"), [row[1:] for row in CONSOLE], ids=[row[0] for row in CONSOLE]
)
def test_console(
    tmp_path: Path, dump: Path, topodns: Run, monkeypatch: pytest.MonkeyPatch, http: str, console: bool | None,
    served: bool, host: str, name: str,
) -> None:  # fmt: skip
    """On for loopback, off elsewhere; the setting overrides that. Metrics and health are served in any case.

    The command may ask by any name: no page of a site is behind it, and operators have names of their own for a server.
    """
    flags = {"http": http, **({} if console is None else {"console": console})}
    with serving(tmp_path, dump, flags=flags) as running:
        for path in ("/", f"{API}/services", "/map", "/static/console.js"):
            found = request(running, path, headers={"Host": host})
            assert found.status == (200 if served else 404)
            rebound = request(running, path, headers={"Host": "evil.example"})
            assert rebound.status == (403 if served else 404)
        assert request(running, "/metrics").status == 200
        url = f"http://{name}:{running.http.rpartition(':')[2]}"
        resolve = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **more: resolve("127.0.0.1", *rest, **more))
        asked = topodns("explain", "near.shop", "--client", "10.0.0.1", "--server", url)
        assert asked.status == (0 if served else 1)
        assert served or "start it with --console" in asked.err


def test_where_the_console_is_off(tmp_path: Path, dump: Path) -> None:
    """A browser gets a page that says how to switch it on, others a problem; neither says anything of the server."""
    with serving(tmp_path, dump, flags={"http": "127.0.0.1:0", "console": "off"}) as running:
        for accepted, media_type in (("text/html,*/*;q=0.8", "text/html"), ("*/*", "application/problem+json")):
            found = request(running, "/", headers={"Accept": accepted})
            assert found.status == 404 and found.headers["Content-Type"].startswith(media_type)
            assert "default-src 'none'" in found.headers["Content-Security-Policy"]
            text = found.body.decode()
            assert "--console" in text and "topodns console" in text and __version__ not in text


# What there is


def test_overview(server: Server) -> None:
    """``/`` names everything."""
    page = request(server, "/").body.decode()
    assert all(path in page for path in (*(operation.path for operation in OPERATIONS), DESCRIPTION, "/metrics"))


def counts(server: Server, **given: str) -> dict[tuple[str, str | None], tuple[int, int, int]]:
    domains = request(server, f"{API}/topology", **given).json["domains"]
    return {(row["key"], row["value"]): (row["nodes"], row["endpoints"], row["clients"]) for row in domains}


def test_topology(server: Server) -> None:
    """Region, zone and the keys of constraints, without the hostname: nodes, ready endpoints, clients."""
    assert counts(server) == {
        (REGION, "r"): (3, 3, 7), (REGION, None): (1, 1, 0),
        (ZONE, "a"): (2, 2, 6), (ZONE, "b"): (1, 1, 1), (ZONE, None): (1, 1, 0),
        (RACK, "1"): (1, 1, 3), (RACK, "2"): (1, 1, 3), (RACK, None): (2, 2, 1),
    }  # fmt: skip
    assert counts(server, keys=HOSTNAME) == {
        (HOSTNAME, "a1"): (1, 1, 3), (HOSTNAME, "a2"): (1, 1, 3), (HOSTNAME, "b1"): (1, 1, 1),
        (HOSTNAME, "bare"): (1, 0, 0), (HOSTNAME, None): (0, 1, 0),
    }  # fmt: skip
    assert counts(server, keys="failure-domain.beta.kubernetes.io/zone").keys() == {
        (ZONE, "a"),
        (ZONE, "b"),
        (ZONE, None),
    }


def test_topology_of_several_clusters() -> None:
    """The name of each is the value of a key, and what is in another cluster counts, too."""
    found = []
    for name in ("west", "east"):
        store = store_of(settings_of({"cluster-name": name}))
        take_in(store, dump_of(listed(CLUSTER)).objects)
        found.append(ClusterContents(name, store.publish(NOW), list(store.objects(model.Node).values())))
    domains = trio.run(domains_of, found, (model.CLUSTER, ZONE))
    assert [tuple(row.values()) for row in domains["domains"]] == [
        (model.CLUSTER, "east", 4, 4, 7), (model.CLUSTER, "west", 4, 4, 7),
        (ZONE, "a", 4, 4, 12), (ZONE, "b", 2, 2, 2), (ZONE, None, 2, 2, 0),
    ]  # fmt: skip


def test_services(server: Server) -> None:
    """Those that ask for something, valid or not, page by page."""
    whole = request(server, f"{API}/services").json
    assert [(item["namespace"], item["name"]) for item in whole["items"]] == [
        ("lab", "far"), ("shop", "near"), ("shop", "wrong"),
    ]  # fmt: skip
    assert (whole["total"], whole["continue"]) == (3, None)
    far, near, wrong = (item["constraint"] for item in whole["items"])
    assert (far["source"], far["keys"], far["valid"]) == ("annotation", [ZONE], True)
    assert near["keys"] == [HOSTNAME, ZONE, RACK, "*"]
    assert not wrong["valid"] and wrong["error"]
    pages, after = [], {}
    while True:
        page = request(server, f"{API}/services", limit="2", **after).json
        pages += page["items"]
        if page["continue"] is None:
            break
        after = {"continue": page["continue"]}
    assert pages == whole["items"]
    assert request(server, f"{API}/services", limit="3").json == whole


# The description, read by schemathesis. It takes seconds to import, also in workers that run none of these tests.


@pytest.fixture(scope="module")
def described(server: Server) -> OpenApiSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"http://{server.http}{DESCRIPTION}")


def conforms(case: Case) -> None:
    """Check status, media type, headers and JSON of a response against the description."""
    # Whether a name exists is not for the description to say.
    from schemathesis.checks import CHECKS

    (excluded,) = CHECKS.get_by_names(["positive_data_acceptance"])
    case.call_and_validate(excluded_checks=[excluded])


JSON_PATHS = [operation.path for operation in OPERATIONS if operation.media_type == JSON]


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_the_server_is_as_it_is_described(described: OpenApiSchema, path: str, mode: str) -> None:
    """Whatever is asked, in the form that the description gives or in another."""
    from schemathesis import GenerationMode

    asked = described[path]["GET"].as_strategy(generation_mode=GenerationMode(mode))
    settings(unshrunk, max_examples=25)(given(asked)(conforms))()


@pytest.mark.parametrize(
    ("path", "asked"),
    [*((f"{API}/explain", asked) for asked in EXPLAINED), *((path, {}) for path in JSON_PATHS[1:])],
    ids=str,
)
def test_what_is_found_is_as_it_is_described(described: OpenApiSchema, path: str, asked: dict[str, str]) -> None:
    """Whatever the description promises is there."""
    conforms(described[path]["GET"].Case(query=asked))


def test_the_description_is_valid(server: Server) -> None:
    """As OpenAPI has it."""
    import schemathesis

    schemathesis.openapi.from_dict(request(server, DESCRIPTION).json).validate()
