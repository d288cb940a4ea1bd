# SPDX-License-Identifier: Apache-2.0

"""Whatever others write, and wherever: topodns' output is lines of printable text that end, and JSON and YAML."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from locator.printable import (
    MAX_LINE,
    as_line,
    ascii_json,
    cut,
    filled,
    printable,
    printable_values,
    quoted,
    shell_words,
)
from tests.kit.api_objects import (
    HOSTNAME,
    MIN_ENDPOINTS,
    RACK,
    REGION,
    SLICE_CONTROLLER,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    endpoints,
    external,
    imported_slice,
    item,
    listed,
    namespace,
    node,
    pod,
    pod_locator,
    service,
    service_import,
)
from tests.kit.commands_in_process import Run
from tests.kit.other_server import Response, other_server
from tests.kit.topodns_process import serving

# What commands a terminal, forges lines, turns the direction, and what a shell, Markdown and HTML take for theirs.
FORGED = "error    forged"
ODD = f"\x1b[31m\x1b]0;owned\a\r\t\b\0\x7f\x85\x9b2J\u2028\u2029\u202e\u2066\n{FORGED}\n"
SHELL = "$(touch owned)`touch owned`;'\"|*<b>"
WORDS = {"commands": f"x{ODD}x", "shell": SHELL, "long": ODD * 1000}


def is_clean(text: str) -> bool:
    """Whether a text consists of lines of printable characters that are not long, none of which others began."""
    lines = text.split("\n")
    return all(line.isprintable() and len(line.encode()) <= MAX_LINE and line != FORGED for line in lines)


# The functions


@given(st.text() | st.text(st.sampled_from(ODD + SHELL)))
def test_a_printable_text_has_no_control_character(text: str) -> None:
    """Nor what is invisible and turns, ends or hides other characters; what is printable stays as it is."""
    shown = printable(text)
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert printable(shown) == shown and (shown == text) == text.isprintable()


@given(st.text(max_size=9000) | st.integers(0, 2 * MAX_LINE).map(lambda number: "\U0001f600" * number))
def test_a_line_is_short(text: str) -> None:
    """It begins as the text does, and says how long that is if it is not all of it."""
    line = as_line(text)
    assert line.isprintable() and len(line.encode()) <= MAX_LINE
    assert line == printable(text) or line.endswith(f"… ({len(text):,} characters)")


@given(st.text(max_size=500), st.integers(0, 400))
def test_a_text_is_cut(text: str, most: int) -> None:
    """Only if it is longer than it may be."""
    shown = cut(text, most)
    assert shown == printable(text) if len(printable(text)) <= most else shown.startswith(printable(text)[:most])
    assert shown.isprintable() and quoted(text).isprintable()


VALUES = st.recursive(st.text() | st.integers(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))


@given(VALUES)
def test_json_is_ascii_and_means_the_same(value: object) -> None:
    """Escapes are JSON's own."""
    text = ascii_json(json.dumps(value, ensure_ascii=False))
    assert text.isascii() and text.isprintable() and json.loads(text) == value
    assert ascii_json(json.dumps(printable_values(value))).isprintable()


@given(st.lists(st.text(st.sampled_from(SHELL + "ab -")), min_size=1))
def test_a_shell_reads_the_same_words(words: list[str]) -> None:
    """What a shell would run stays text."""
    assert shlex.split(shell_words(*words)) == words


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        ("kubectl -n NAMESPACE get KIND NAME", {"NAMESPACE": "a", "NAME": "b"}, "kubectl -n a get KIND b"),
        ("kubectl label node NAME ZONE=ZONE", {"NAME": "a;b c"}, "kubectl label node 'a;b c' ZONE=ZONE"),
        ("kubectl delete NAME", {"NAME": "--all"}, "kubectl delete NAME"),
        ("kubectl get -o custom-columns=NAME:.x NAME", {"NAME": "a"}, "kubectl get -o custom-columns=NAME:.x a"),
        ("kubectl get NAME", {"NAME": "a\nb"}, "kubectl get 'a\\nb'"),
        ("kubectl get NAME", {"NAME": ""}, "kubectl get NAME"),
    ],
    ids=["plain", "quoted", "flag", "title-of-a-column", "line-feed", "empty"],
)
def test_commands(command: str, words: Mapping[str, str], expected: str) -> None:
    """Names stand for the words in capitals, quoted, unless they would be flags."""
    assert filled(command, words) == expected


# The commands


def cluster(word: str) -> list[Item]:
    """Return a cluster in which everything that can be read has the names that it must have, and *word* elsewhere."""
    name, zone = f"n{word}", f"z{word}"
    labels = {ZONE: zone, REGION: word, HOSTNAME: word, RACK: word, word: word}
    notes = {
        word: word, f"topodns.io/{word}": word, "topodns.io/health": word, MIN_ENDPOINTS: word,
        "service.kubernetes.io/topology-mode": word, "projectcalico.org/IPv4IPIPTunnelAddr": word,
        "io.cilium.network.ipv4-pod-cidr": word,
    }  # fmt: skip
    target = {"kind": "Pod", "name": f"p{word}", "namespace": "shop"}
    found = [
        endpoint("10.1.0.7", nodeName=name, targetRef=target, zone=zone, hints={"forZones": [{"name": word}]}),
        endpoint("10.1.0.8", nodeName=name, hostname=word),
        endpoint("10.2.0.9", nodeName="other", targetRef={**target, "name": word}),
    ]
    spec = {"serviceSelector": {"matchLabels": {word: word}}, "topology": {"key": word, "mode": word}}
    return [
        namespace("shop", {word: word}),
        node(name, labels, cidrs=["10.1.0.0/24", word], addresses=["10.0.0.1", word], annotations=notes),
        node("other", {ZONE: "b"}, cidrs=["10.2.0.0/24"]),
        node("third", {ZONE: f"y{word}"}),
        pod(f"p{word}", ["10.1.0.5", "10.1.0.7"], name, labels={"app": word}, phase="Running", hostname=word),
        pod("client", ["10.2.0.5"], "other"),
        *(pod(f"free{n}{word}", [f"10.{n}.0.5"], "third", created=word) for n in range(5, 9)),
        service("near", keys=f"{ZONE},*", labels={word: word}, annotations=notes, trafficDistribution=word),
        endpoint_slice("near", 1, found, by=SLICE_CONTROLLER, labels={word: word}),
        endpoint_slice("near", f"2{word}", [endpoint(word, nodeName=word)], ports=[(word, 80, "TCP")]),
        service("wrong", keys=f"{word},*", annotations=notes),
        service("field", field=[word, "*"]),
        service("hard", keys=RACK),
        endpoint_slice("hard", 1, found[:2]),
        service(word, keys=ZONE),
        service("ports", keys=ZONE, ports=[(word, 80, word)]),
        external("out", word),
        item("ServicePolicy", word, "shop", spec=spec),
        item("ServicePolicy", "empty", "shop", spec={**spec, "serviceSelector": {"matchLabels": {"a": "b"}}}),
        pod_locator(word, "shop", [word], nodeName=word, nodeLabels={word: word}),
        pod_locator("client", "shop", ["10.2.0.5"], nodeName=word, nodeLabels={ZONE: word}),
        endpoints(word, {"addresses": [{"ip": word, "nodeName": word}]}, annotations=notes),
        service_import("world", keys=word, ips=["10.97.0.1"], clusters=[word]),
        imported_slice("world", word, [endpoint("10.1.0.7", nodeName=name)]),
        item("ServiceExport", word, "shop"),
        item("ServiceHealth", word, None, status={"cluster": word, "entries": [{"address": word, "message": word}]}),
        item(word, word, word),
        {"apiVersion": f"{word}/v1", "kind": "Service", "metadata": {"name": word, "namespace": word}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": word, "namespace": [word]}},
    ]  # fmt: skip


SNAPSHOT = ("--snapshot", "{file}")
MORE = ("--multicluster", "clusterset.local", "--client-source", "pods,podlocators,nodes")
EXPLAIN = ("explain", "near.shop", "--client", "10.1.0.5", *SNAPSHOT)
COMMANDS: dict[str, tuple[str, ...]] = {
    "check": ("check", *SNAPSHOT, *MORE),
    "check-a-namespace": ("check", "-n", "nobody", *SNAPSHOT),
    "explain": EXPLAIN,
    "explain-candidates": (*EXPLAIN, "--candidates"),
    "explain-wrong": ("explain", "wrong.shop", "--client", "10.1.0.0/24", *SNAPSHOT),
    "explain-another-name": ("explain", "nera.shop", "SRV", "--client", "pod/client", "-n", "shop", *SNAPSHOT),
    "explain-unknown-pod": ("explain", "svc/near", "-n", "shop", "--client", "pod/p", *SNAPSHOT),
    "explain-by-labels": ("explain", "near.shop", "--client", f"{ZONE}=zz", *SNAPSHOT),
    "explain-multicluster": ("explain", "world.shop.svc.clusterset.local", "--client", "10.1.0.5", *MORE, *SNAPSHOT),
    "simulate": ("simulate", *SNAPSHOT),
    "simulate-all": ("simulate", "--service", "shop/near", "--service", "shop/hard", "--fail-on", "unmet", *SNAPSHOT),
    "simulate-markdown": ("simulate", "-o", "markdown", *SNAPSHOT),
}


@pytest.fixture(params=WORDS, scope="module")
def word(request: pytest.FixtureRequest) -> str:
    return WORDS[request.param]


@pytest.fixture(scope="module")
def file(word: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump whose name is odd, too."""
    path = tmp_path_factory.mktemp("dump") / f"a\x1b[31m\n{FORGED}\n.json"
    path.write_text(listed(cluster(word)))
    return path


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_text_for_people(topodns: Run, file: Path, arguments: tuple[str, ...]) -> None:
    """Every line is topodns' own, can be seen, and ends."""
    ran = topodns(*(text.replace("{file}", str(file)) for text in arguments))
    assert is_clean(ran.out) and is_clean(ran.err) and ran.out + ran.err


@pytest.mark.parametrize("name", ["check", "explain-candidates", "simulate-all"])
def test_colours_are_all_that_commands_the_terminal(
    topodns: Run, file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With them, the text is the same."""
    words = [text.replace("{file}", str(file)) for text in COMMANDS[name]]
    plain = topodns(*words)
    for module in ("cli.report", "cli.commands.explain", "cli.commands.simulate", "cli.output"):  # the origin last
        monkeypatch.setattr(f"dnsserver.{module}.coloured", lambda: True)
    painted = topodns(*words)
    assert re.sub("\033\\[\\d\\d?m", "", painted.out) == plain.out and painted.err == plain.err


@pytest.mark.parametrize("output", ["json", "yaml"])
@pytest.mark.parametrize("name", [name for name in COMMANDS if "markdown" not in name])
def test_output_for_programs(topodns: Run, file: Path, name: str, output: str) -> None:
    """JSON and YAML in ASCII, with escapes of their own."""
    if output == "yaml" and not name.startswith("explain"):
        return
    ran = topodns(*(text.replace("{file}", str(file)) for text in COMMANDS[name]), "-o", output)
    assert ran.out.isascii() and ran.out.replace("\n", "").isprintable() and is_clean(ran.err)
    if ran.out:
        assert (json.loads(ran.out) if output == "json" else yaml.safe_load(ran.out)) is not None


def test_a_picture(topodns: Run, file: Path, tmp_path: Path) -> None:
    """SVG has no control characters either."""
    path = tmp_path / "flows.svg"
    ran = topodns("simulate", "--service", "shop/near", "--picture", str(path), "--snapshot", str(file))
    assert is_clean(ran.out) and path.read_text().replace("\n", "").isprintable()


COREFILES = {
    "key": "cluster.local{word}:53 {{\n forward . 10.96.0.53\n}}\n",
    "plugin": 'cluster.local:53 {{\n "{word}" . 10.96.0.53\n forward . 10.96.0.53 "{word}"\n}}\n',
    "rule": 'cluster.local:53 {{\n rewrite edns0 local set "{word}" "{word}"\n forward . 10.96.0.53\n}}\n',
    "import": 'import "{word}"\ncluster.local:53 {{\n import "{word}"\n forward . 10.96.0.53\n}}\n',
    "broken": "cluster.local:53 {{\n {word}{{",
}


@pytest.mark.parametrize("text", COREFILES.values(), ids=COREFILES)
def test_corefiles(topodns: Run, tmp_path: Path, word: str, text: str) -> None:
    """What is wrong in a Corefile is said in clean lines; programs get JSON."""
    path = tmp_path / "Corefile"
    path.write_text(text.format(word=word.replace("\0", "").replace('"', "")))
    ran = topodns("corefile", "--check", str(path), "--to", "10.96.0.53")
    assert is_clean(ran.out) and is_clean(ran.err) and ran.out + ran.err
    ran = topodns("corefile", "--check", str(path), "--to", "10.96.0.53", "-o", "json")
    assert ran.out.replace("\n", "").isprintable() and is_clean(ran.err)


def test_flags_to_paste(topodns: Run, tmp_path: Path) -> None:
    """A label value that no cluster has is proposed to nobody, and nothing is proposed unquoted."""
    path = tmp_path / "cluster.json"
    for zone in WORDS.values():
        items = [node("a", {ZONE: zone, REGION: "r 1"}), node("b", {ZONE: "b"})]
        items += [pod(f"{on}{n}", [f"10.{net}.0.{n + 1}"], on) for net, on in enumerate("ab", 1) for n in range(9)]
        path.write_text(listed(items))
        flags = [line for line in topodns("check", "--snapshot", str(path)).out.split("\n") if line.startswith("--")]
        assert all(re.fullmatch(r"--subnet [0-9./]+=([a-z./]+=[a-z](,|$))+", flag) for flag in flags) and flags


# What servers send


def explanation(word: str) -> dict[str, Any]:
    """Return an explanation that another program has made up."""
    constraint = {"source": word, "keys": [word], "valid": False, "error": word, "effective": False,
                  "without_effect": word, "min_endpoints": 2, "required": [word], "policies": [word],
                  "policy_keys": [word]}  # fmt: skip
    candidate = {"addresses": [word], "pod": word, "node": word, "cluster": word, "ready": True,
                 "values": {word: word}, "chosen": True, "why": word, "kind": word,
                 "votes": [{"cluster": word, "vote": word}]}  # fmt: skip
    finding = {"code": word, "severity": "error", "kind": word, "namespace": word, "name": word, "field": word,
               "message": word, "expected": word, "line": None, "file": word, "cluster": word}  # fmt: skip
    return {
        "question": {"name": word, "type": word},
        "client": {"address": word, "located_by": word, "holder": word, "overlooked": word, "node": word,
                   "labels": {word: word, ZONE: word}},
        "service": {"namespace": word, "name": word}, "constraint": constraint,
        "sources": [{"source": word, "keys": [word], "policies": [word], "heard": heard, "why": word, "cluster": word}
                    for heard in (True, False)],
        "steps": [{"key": word, "value": word, "matched": 1}], "candidates": [candidate], "outcome": "nearest",
        "reason": word, "rcode": word, "extended_error": {"code": 1, "text": word},
        "answers": [{"name": word, "ttl": 1, "type": word, "data": word}], "findings": [finding],
    }  # fmt: skip


def problem(word: str) -> Response:
    body = {"title": word, "detail": word, "parameter": word}
    return Response(400, json.dumps(body).encode(), "application/problem+json")


ANSWERS: dict[str, Callable[[str], Response]] = {
    "explanation": lambda word: Response(200, json.dumps(explanation(word)).encode(), "application/json"),
    "problem": problem,
    "page": lambda word: Response(200, word.encode(), "application/json"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_a_server_that_is_asked(topodns: Run, word: str, answer: Callable[[str], Response], output: str) -> None:
    """``explain --server`` prints what another program has sent as what it has worked out itself."""
    with other_server(lambda: answer(word)) as at:
        ran = topodns("explain", "x", "--client", "10.0.0.1", "--server", f"http://{at}", "-o", output)
    assert is_clean(ran.out) if output == "text" else ran.out.isascii() and ran.out.replace("\n", "").isprintable()
    assert is_clean(ran.err) and ran.out + ran.err


@pytest.mark.parametrize("output", ["text", "json"])
def test_decisions_that_are_followed(topodns: Run, word: str, output: str) -> None:
    """``tail`` prints a line for each, whatever the server sends."""
    line = {**explanation(word), "time": word, "source": word, "protocol": word, "truncated": True}
    stream = f"event: decision\ndata: {json.dumps(line)}\n\n" * 2
    with other_server(lambda: Response(200, stream.encode(), "text/event-stream")) as at:
        ran = topodns("tail", "--server", f"http://{at}", "-o", output)
    assert ran.out.count("\n") == 2 and is_clean(ran.err)
    assert is_clean(ran.out) if output == "text" else ran.out.isascii() and ran.out.replace("\n", "").isprintable()


ENDLESS = {
    "explain": ("explain", "x", "--client", "10.0.0.1"),
    "tail": ("tail",),
    "simulate": ("simulate", "--snapshot", "{file}", "--clients-from"),
}


@pytest.mark.parametrize("command", ENDLESS)
def test_a_server_that_sends_too_much(
    topodns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The command ends with a message, and does not fill the memory."""
    monkeypatch.setattr("dnsserver.cli.remote.MAX_BODY", 1 << 20)
    monkeypatch.setattr("dnsserver.cli.remote.MAX_EVENT", 1 << 20)
    path = tmp_path / "cluster.json"
    path.write_text(listed(cluster("x")))
    media_type = {"explain": "application/json", "tail": "text/event-stream", "simulate": "text/plain"}[command]
    arguments = [text.replace("{file}", str(path)) for text in ENDLESS[command]]
    with other_server(lambda: Response(200, b"a" * (2 << 20), media_type)) as at:
        ran = topodns(*arguments, *([] if command == "simulate" else ["--server"]), f"http://{at}")
    assert ran.status == 1 and "more than 1 MiB" in ran.err and ran.err.count("\n") == 1


# A server


SERVED = (
    "/api/v1/explain?name=near.shop&client=10.1.0.5&candidates=true",
    "/api/v1/topology",
    "/api/v1/services",
    "/api/v1/explain?name=%C2%9B&client=%E2%80%AE",
    "/%C2%9B",
)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_server(tmp_path: Path, log_format: str) -> None:
    """Its JSON is ASCII, as that of commands is: people read it on a terminal, too. Each record of its log is a line.

    It is not long as text, and shows what stands in a message.
    """
    flags = {"client-source": "pods,podlocators,nodes", "http": "127.0.0.1:0", "log-format": log_format}
    word = WORDS["commands" if log_format == "json" else "long"]
    with serving(tmp_path, cluster(word), flags=flags) as server:
        server.wait_for("loaded ")
        assert is_clean(server.get("/readyz?verbose")[1])
        for path in SERVED:
            _, text = server.get(path)
            assert text.isascii() and text.isprintable() and json.loads(text)
    assert all(line.isprintable() and (log_format == "json" or len(line.encode()) <= MAX_LINE) for line in server.lines)
    assert all(map(is_clean, server.messages())) and any("[Unreadable" in text for text in server.messages())
