# SPDX-License-Identifier: Apache-2.0

"""``topodns tail``, ``explain --server`` and ``--log-queries``: decisions of a running server as it makes them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dns.edns
import dns.message
import pytest
import yaml

from dnsserver.settings.reading import read_settings
from dnsserver.tools.api.api import MAX_STREAMS
from tests.kit.api_client import API, events, request
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.live_server import TRUSTED
from tests.kit.other_server import Response, other_server
from tests.kit.programs import environment
from tests.kit.this_machine import free_port
from tests.kit.topodns_process import COMMAND, Server, serving
from tests.kit.waiting import PATIENCE

FRONT, BACK = "10.244.1.9", "10.244.2.9"
CLUSTER: list[Item] = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, cidrs=["10.244.1.0/24"]),
    node("b1", {ZONE: "b"}, cidrs=["10.244.2.0/24"]),
    pod("front", [FRONT], "a1"),
    service("near", keys=f"{ZONE},*"),
    endpoint_slice("near", 1, [
        endpoint("10.244.1.6", nodeName="a1"), endpoint("10.244.1.7", nodeName="a1"),
        endpoint("10.244.2.7", nodeName="b1")]),
    service("hard", keys=ZONE),
    endpoint_slice("hard", 1, [endpoint("10.244.1.8", nodeName="a1")]),
    service("plain"),
    endpoint_slice("plain", 1, [endpoint("10.244.1.5", nodeName="a1")]),
]  # fmt: skip


@contextmanager
def running(folder: Path, *arguments: str, **flags: Any) -> Iterator[Server]:
    given = {"http": "127.0.0.1:0", "trusted-forwarder": TRUSTED, **flags}
    with serving(folder, listed(CLUSTER), *arguments, flags=given) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("tail")) as server:
        yield server


def asked(server: Server, service: str, client: str, *, tcp: bool = False) -> list[str]:
    """Ask for a Service as a forwarder; return the addresses in the order of the reply."""
    query = dns.message.make_query(f"{service}.shop.svc.cluster.local", "A", options=[dns.edns.ECSOption(client, 32)])
    reply = server.ask(query, tcp=tcp)
    return [record.to_text() for rrset in reply.answer for record in rrset]


def sent(line: Mapping[str, Any]) -> list[str]:
    return [answer["data"] for answer in line["answers"]]


def test_each_answer_is_told(server: Server) -> None:
    """Also one that is remembered, or that native code repeated before; in the order in which it was sent."""
    for protocol in ("udp", "tcp"):
        tcp = protocol == "tcp"
        for _ in range(3):
            asked(server, "near", FRONT, tcp=tcp)
        with events(server) as told:
            for _ in range(3):
                addresses = asked(server, "near", FRONT, tcp=tcp)
                name, line = told.next()
                assert (name, sent(line)) == ("message", addresses)
                assert (line["protocol"], line["source"]) == (protocol, "127.0.0.1")
                assert line["client"]["holder"] == "pod shop/front" and line["outcome"] == "nearest"
        assert asked(server, "near", FRONT, tcp=tcp)


def test_the_server_filters(server: Server) -> None:
    """By Service, client and outcome, each reader for itself."""
    near_and_back = events(server, service="shop/near", client="10.244.2.0/24")
    with near_and_back as near, events(server, outcome="unconstrained") as plain:
        for _ in range(2):
            for name in ("plain", "near"):
                for client in (FRONT, BACK):
                    asked(server, name, client)
        for _ in range(2):
            assert near.next()[1]["client"]["address"] == BACK
        assert [plain.next()[1]["client"]["address"] for _ in range(4)] == [FRONT, BACK, FRONT, BACK]


def test_the_number_of_readers_is_bounded(server: Server) -> None:
    """One more is refused, until one of them has gone."""
    with events(server), events(server), events(server):
        with events(server):
            assert MAX_STREAMS == 4
            refused = request(server, f"{API}/tail")
            assert refused.status == 503 and "4 readers found" in refused.json["detail"]

        with events(server):
            pass


# The command


class Tail:
    """A running ``topodns tail``."""

    def __init__(self, server: Server, *arguments: str) -> None:
        command = [*COMMAND, "tail", "--server", f"http://{server.http}", *arguments]
        pipe, before = subprocess.PIPE, len(server.lines)
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment({}))
        server.wait_for("a reader of decisions has come", after=before)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, number: signal.Signals | None = None) -> tuple[int, str]:
        """Return the exit status, and what was said on standard error."""
        if number is not None:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err


@pytest.mark.usefixtures("_heeds_sigint")
def test_tail_prints_a_line_for_each_decision(tmp_path: Path) -> None:
    """As text, JSON or YAML, until it is interrupted or the server ends."""
    with running(tmp_path) as server:
        text, as_json = Tail(server, "--client", FRONT), Tail(server, "-o", "json", "--outcome", "nearest")
        as_yaml = Tail(server, "-o", "yaml", "--service", "svc/near", "-n", "shop")
        addresses = asked(server, "near", FRONT)
        line = text.line()
        assert line.endswith(
            f"  {FRONT} (pod shop/front)  near.shop.svc.cluster.local. A  nearest zone=a  {', '.join(addresses)}\n"
        )
        said = json.loads(as_json.line())
        assert sent(said) == addresses
        assert as_yaml.line() == "---\n"
        document = [as_yaml.line() for _ in yaml.safe_dump(said, sort_keys=False).splitlines()]
        assert yaml.safe_load("".join(document)) == said
        as_yaml.end(signal.SIGTERM)
        assert as_json.end(signal.SIGINT) == (-signal.SIGINT, "")
        server.end()
        assert text.end() == (1, f"topodns: --server http://{server.http}: the server has ended\n")


FILTERS = [
    (
        ("--service", "near"),
        "--service: 'near', expected NAMESPACE/NAME, NAME.NAMESPACE, or svc/NAME with -n NAMESPACE",
    ),
    (("--client", "front"), "--client: 'front' is no IP address, expected an address or a CIDR"),
    (("--last", "0"), "--last: '0', expected a whole number from 1 to 1000"),
    (("--last", "5", "--outcome", "nearest"), "--outcome: 'nearest', expected unmet or spilled"),
    (("--outcome", "best"), "--outcome: 'best', expected nearest, all, spilled, unconstrained or unmet"),
    (("--server", "localhost:9153"), "--server: 'localhost:9153', expected http://HOST:PORT"),
    (("--server", "http://x/?y"), "--server: 'http://x/?y', expected http://HOST:PORT"),
]


@pytest.mark.parametrize(("flags", "message"), FILTERS, ids=[" ".join(row[0]) for row in FILTERS])
def test_a_filter_that_is_none(topodns: Run, flags: tuple[str, ...], message: str) -> None:
    """Is wrong input; nobody is asked."""
    assert topodns("tail", *flags)[::2] == (2, f"topodns: {message}\n")


# Decisions that were made before


def test_a_dump_has_no_last_decision(topodns: Run) -> None:
    """It is not read in silence."""
    ran = topodns("explain", "shop/hard", "--last", "--snapshot", "cluster.yaml")
    expected = "--last: a dump found, expected none: the decisions are those of a running server (--server)"
    assert ran[::2] == (2, f"topodns: {expected}\n")


def test_the_last_decisions(tmp_path: Path, topodns: Run) -> None:
    """Unmet ones are kept, whoever looks; ``tail --last`` prints them and ends, ``explain --last`` explains one."""
    with running(tmp_path) as server:
        url = f"http://{server.http}"
        none = topodns("tail", "--last", "9", "--server", url)
        assert none[:2] == (0, "") and "no such decision is kept; the server keeps those that were unmet" in none.err
        none = topodns("explain", "shop/hard", "--last", "--server", url)
        assert none.status == 2 and "NAME: no decision about shop/hard found that was unmet or spilled" in none.err
        for client in (BACK, FRONT, "10.244.2.10", "10.244.2.11"):
            asked(server, "hard", client)
            asked(server, "near", client)
        kept = request(server, f"{API}/decisions", limit="2").json
        assert kept["since"].endswith("Z")
        assert [line["client"]["address"] for line in kept["items"]] == ["10.244.2.10", "10.244.2.11"]
        ran = topodns("tail", "--last", "2", "--server", url, "--service", "svc/hard", "-n", "shop")
        assert ran.status == 0 and ran.err == ""
        time_of, sent_line = ran.out.splitlines()[1].split("  ", 1)
        assert kept["items"][1]["time"] == f"{time_of.replace(' ', 'T')}Z"
        assert (
            sent_line == "10.244.2.11 (pod CIDR 10.244.2.0/24 of b1)  hard.shop.svc.cluster.local. A  unmet  no records"
        )
        as_json = topodns("tail", "--last", "9", "--server", url, "-o", "json", "--client", BACK)
        assert [json.loads(line)["outcome"] for line in as_json.out.splitlines()] == ["unmet"]
        explained = topodns("explain", "svc/hard", "-n", "shop", "--last", "--server", url)
        assert explained.status == 0 and f"decided     {kept['items'][1]['time']}\n" in explained.out
        assert "10.244.2.11" in explained.out and "unmet: " in explained.out
        one = topodns("explain", "shop/hard", "--last", "--client", BACK, "--server", url, "-o", "json")
        assert json.loads(one.out)["client"]["address"] == BACK
        assert topodns("tail", "--last", "9", "--server", url, "--outcome", "spilled").out == ""


def test_native_code_goes_on(tmp_path: Path) -> None:
    """Whoever keeps decisions takes no query from it: what it knows, it repeats."""
    with running(tmp_path) as server:
        for _ in range(20):
            asked(server, "near", FRONT)
        metrics = request(server, "/metrics").body.decode()
        assert 'topodns_remembered_total{result="hit"} 19.0' in metrics
        assert request(server, f"{API}/decisions").json["items"] == []


@pytest.mark.parametrize("flags", [("--last", "5"), ()], ids=["kept", "new"])
def test_a_service_of_nobody(server: Server, topodns: Run, flags: tuple[str, ...]) -> None:
    """Is refused, with the one that was probably meant."""
    ran = topodns("tail", "--server", f"http://{server.http}", "--service", "shop/naer", *flags)
    text = "--service: shop/naer found, expected a Service that is served, did you mean shop/near?"
    assert ran[::2] == (2, f"topodns: {text}\n")
    assert request(server, "/tail?service=shop/naer").status == 400


# Whoever answers there

PROBLEM = "application/problem+json"


def problem(status: int, detail: str, **more: str) -> Response:
    return Response(status, json.dumps({"status": status, "detail": detail, **more}).encode(), PROBLEM)


OTHERS = [
    # id, what answers, status, what is said of it
    ("older", Response(404, b"Not Found", "text/plain"), 1,
     "HTTP status 404 found at {path}, expected {form}: it is no"),
    ("something-else", Response(200, b"<html>", "text/html"), 1,
     "text/html found at {path}, expected {form}: it is no"),
    ("redirects", Response(302, b"", "text/plain"), 1, "HTTP status 302 found"),
    ("api-off", problem(404, "nothing is served"), 1, "its HTTP API is off: start it with --console"),
    ("not-ready", problem(503, "it has not read the cluster"), 1, "it has not read the cluster"),
    ("forbidden", problem(403, "Host: 'x' found"), 1, "Host: 'x' found"),
    ("wrong-parameter", problem(400, "client: no Pod shop/x", parameter="client"), 2, "--client: no Pod shop/x"),
    ("odd-problem", Response(503, b"[]", PROBLEM), 1, "[]"),
    ("commands-to-a-terminal", problem(503, "a\x1b[2J\nb"), 1, "a\\x1b[2J\\nb"),
    ("closes", None, 1, "expected a running topodns"),
]  # fmt: skip


@pytest.mark.parametrize(("response", "status", "said"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS])
@pytest.mark.parametrize("command", ["explain", "tail"])
def test_what_answers_is_told(topodns: Run, command: str, response: Response | None, status: int, said: str) -> None:
    """What was found at the URL, and what to do; status 2 if the command line is wrong."""
    arguments = ("explain", "near.shop", "--client", FRONT) if command == "explain" else ("tail",)
    with other_server(lambda: response) as address:
        url = f"http://{address}"
        ran = topodns(*arguments, "--server", url)
    assert (ran.status, ran.out) == (status, "")
    form = "JSON" if command == "explain" else "text/event-stream"
    assert said.format(path=f"{API}/{command}", form=form) in ran.err
    assert ran.err.startswith(f"topodns: --server {url}: " if status == 1 else "topodns: --client: ")
    assert ran.err.count("\n") == 1


ANOTHER_VERSION = [
    # id, command, media type, body
    ("explain", "explain", "application/json", b'{"question": {}}'),
    ("tail", "tail", "text/event-stream", b'data: {"question": {}}\n\n'),
    ("tail-of-no-json", "tail", "text/event-stream", b"data: x\n\n"),
    ("tail-of-another-loss", "tail", "text/event-stream", b"event: lost\ndata: []\n\n"),
]


@pytest.mark.parametrize(
    ("command", "media_type", "body"), [row[1:] for row in ANOTHER_VERSION], ids=[row[0] for row in ANOTHER_VERSION]
)
def test_another_version_is_told(topodns: Run, command: str, media_type: str, body: bytes) -> None:
    """What cannot be read is a failure, and no traceback."""
    arguments = ("explain", "near.shop", "--client", FRONT) if command == "explain" else ("tail",)
    with other_server(lambda: Response(200, body, media_type)) as address:
        ran = topodns(*arguments, "--server", f"http://{address}")
    assert ran.status == 1 and ran.err.endswith("expected a topodns of this version\n")


@pytest.mark.parametrize(
    ("url", "reason"),
    [("http://127.0.0.1:{port}", "Connection refused"), ("http://nix.invalid:1", "Name or service not known")],
    ids=["refused", "no-such-host"],
)
def test_nobody_answers(topodns: Run, url: str, reason: str) -> None:
    """The message has the reason, and says what the flag is for."""
    url = url.format(port=free_port())
    ran = topodns("tail", "--server", url)
    assert ran[::2] == (
        1,
        f"topodns: --server {url}: {reason}, expected a running topodns, at an address of its --http\n",
    )


@pytest.mark.parametrize("flags", [("--zone", "x.local"), ("--snapshot", "x.yaml")], ids=lambda flags: flags[0])
def test_a_running_server_has_its_own_settings(topodns: Run, flags: tuple[str, str]) -> None:
    """Flags about the cluster and its answers would change nothing there."""
    ran = topodns("explain", "near.shop", "--client", FRONT, "--server", "http://127.0.0.1:1", *flags)
    assert ran[::2] == (2, f"topodns: {flags[0]}: given together with --server, expected only one of them\n")


@pytest.mark.parametrize(
    ("http", "warnings"),
    [("off", ["--console has no effect with --http off"]), ("127.0.0.1:0", [])],
    ids=["off", "on"],
)
def test_the_api_needs_http(http: str, warnings: list[str]) -> None:
    """Who asks for it in vain is told."""
    assert read_settings(flags={"console": ["on"], "http": [http]}, environment={}, file=None)[1] == warnings


# --log-queries


def test_log_queries(tmp_path: Path) -> None:
    """At most so many lines a second, each a decision as JSON, whatever the format and the level of log lines."""
    with running(tmp_path, **{"log-queries": 2, "log-level": "error"}) as server:
        began = time.monotonic()
        for client in (FRONT, BACK) * 20:
            asked(server, "near", client)
        seconds = 2 + int(time.monotonic() - began)
        server.end()
    lines = [json.loads(line) for line in server.lines if '"question"' in line]
    assert 2 <= len(lines) <= 2 * seconds
    for line in lines:
        assert line["client"]["address"] in (FRONT, BACK) and sent(line)
        assert line["service"] == {"namespace": "shop", "name": "near"}


def test_queries_are_not_logged_by_default(tmp_path: Path) -> None:
    """Who asked for what is nobody's business unless somebody wants to know."""
    with running(tmp_path) as server:
        asked(server, "near", FRONT)
        server.end()
    assert not any("near" in line for line in server.lines)
