# SPDX-License-Identifier: Apache-2.0

"""With ``--log-format json``, each line on standard error is one JSON object, of one envelope."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dns.message
import pytest
import trio
import trio.testing

from dnsserver.programs.from_settings import store_of
from dnsserver.programs.server_log import loaded, log_loaded
from locator.cluster.publisher import Publisher
from locator.printable import printable
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.import_graph import MODULES
from tests.kit.in_memory import cluster_text, dump_of, settings_of, snapshot_of
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import reload, run, serving
from tests.kit.waiting import until_in_trio

DONE, FAILED, WRONG = 0, 1, 2
JSON = ("--log-format", "json")
EXAMPLE = str(ROOT / "examples" / "cluster.yaml")
EXPLAIN = ("explain", "memcached.shop", "--client", "10.244.2.16", "--snapshot", EXAMPLE)


def rows(lines: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects in lines of JSON, each of which has the envelope: four fields, and others after them."""
    found = [json.loads(line) for line in lines]
    for row in found:
        assert [*row][:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["time"])
        assert row["level"] in ("debug", "info", "warning", "error", "critical")
        assert all(isinstance(row[name], str) and row[name] for name in ("logger", "message"))
    return found


# What goes wrong: arguments, environment, file; the level and the message.
MESSAGES: dict[str, tuple[tuple[str, ...], dict[str, str], str, str, str]] = {
    "setting": (("check", "--ttl=x", *JSON), {}, "", "error", "--ttl: 'x', expected a whole number"),
    "setting-before-the-format": (("check", "--ttl", "x", *JSON), {}, "", "error", "--ttl: 'x', expected"),
    "setting-in-the-file": (("check",), {}, "log-format: json\nttl: x\n", "error", "settings.yaml: ttl: 'x', expected"),
    "warning-about-a-setting": (
        ("check", "--snapshot", EXAMPLE, "--client-source", "pods", *JSON), {}, "", "warning", "--client-source: "),
    "unknown-variable": (
        ("check", "--snapshot", EXAMPLE, *JSON), {"TOPODNS_FOO": "1"}, "", "warning",
        "TOPODNS_FOO: unknown environment variable"),
    "dump": (("check", "--snapshot", "/no/such/file", *JSON), {}, "", "error", "/no/such/file: No such file"),
    "kubeconfig": (("check", "--kubeconfig", "/no/such/file", *JSON), {}, "", "error", "/no/such/file: no such file"),
    "unknown-namespace": (
        ("check", "--snapshot", EXAMPLE, "-n", "shpo", *JSON), {}, "", "warning", "--namespace: no namespace shpo"),
    "hint-of-explain": (
        (*EXPLAIN, "--client", "zone=a", *JSON), {}, "", "warning", "--client: no node has the label zone"),
    "errors-only": (
        ("check", "--snapshot", EXAMPLE, "-n", "shpo", "--log-level", "error", *JSON), {}, "", "warning",
        "--namespace: no namespace shpo"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "env", "content", "level", "message"), MESSAGES.values(), ids=MESSAGES)
def test_messages_of_a_command(
    topodns: Run,
    tmp_path: Path,
    arguments: tuple[str, ...],
    env: dict[str, str],
    content: str,
    level: str,
    message: str,
) -> None:
    """Whatever is wrong, also with a setting that is read after the format: one object, without the name in front."""
    if content:
        (tmp_path / "settings.yaml").write_text(content)
        arguments = (*arguments, "--config", str(tmp_path / "settings.yaml"))
    ran = topodns(*arguments, **env)
    (row,) = rows(ran.err.splitlines())
    assert row["level"] == level and message in row["message"] and not row["message"].startswith("topodns:")
    text = topodns(*(word.replace("json", "text") for word in arguments))
    if content or env:  # the format comes from there
        return
    assert ran.status == text.status and row["message"] in text.err and not text.err.startswith("{")


@pytest.mark.parametrize("arguments", [("chek",), ("check", "--foo"), ("explain",)], ids=" ".join)
def test_a_wrong_command_line_is_said_in_text(topodns: Run, arguments: tuple[str, ...]) -> None:
    """Who types it reads it: the settings are not looked at yet."""
    ran = topodns(*arguments, *JSON, TOPODNS_LOG_FORMAT="json")
    assert ran.status == WRONG and ran.err.startswith("topodns: ") and ran.err.count("\n") == 1


CLUSTER = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]),
    node("b1", {ZONE: "b"}, addresses=["127.1.0.2"]),
    node("b2", {ZONE: "b"}, addresses=["127.1.0.3"]),
    pod("client", ["127.1.0.9"], "a1"),
    service("web", keys=f"{ZONE},*"),
    endpoint_slice("web", 1, [endpoint("10.9.0.1", nodeName="a1")]),
    service("plain"),
    service("invalid", keys="*,a"),
    service("virtual", keys=ZONE, cluster_ips=["10.96.0.1"]),
]
DNS = [
    service("kube-dns", cluster_ips=("10.96.0.10",), where="kube-system"),
    endpoint_slice("kube-dns", 1, [endpoint("127.0.0.10"), endpoint("127.0.0.11")], where="kube-system"),
]
LOADED = {
    # what was loaded, flags: the line, and its numbers in JSON
    "nothing": ([namespace("shop")], {}, "loaded 0 nodes in 0 zones, 0 pods, 0 Services (0 constrained), "
                "0 trusted forwarders",
                {"nodes": 0, "pods": 0, "zones": 0, "services": 0, "constrained": 0, "forwarders": 0, "networks": 0}),
    "one": ([CLUSTER[1], CLUSTER[4], CLUSTER[5], *DNS], {"trusted-forwarder": "127.0.0.10/32"},
            "loaded 1 node in 1 zone, 1 pod, 2 Services (1 constrained), 1 trusted forwarder, 1 trusted network",
            {"nodes": 1, "pods": 1, "zones": 1, "services": 2, "constrained": 1, "forwarders": 1, "networks": 1}),
    "several": ([*CLUSTER, *DNS], {"serve-namespace": "shop"},
                "loaded 3 nodes in 2 zones, 1 pod, 4 Services (1 constrained), 2 trusted forwarders",
                {"nodes": 3, "pods": 1, "zones": 2, "services": 4, "constrained": 1, "forwarders": 2, "networks": 0}),
    "no-pods": (CLUSTER, {"client-source": "nodes"},
                "loaded 3 nodes in 2 zones, 4 Services (1 constrained), 0 trusted forwarders",
                {"nodes": 3, "zones": 2, "services": 4, "constrained": 1, "forwarders": 0, "networks": 0}),
    "podlocators-alone": (CLUSTER, {"client-source": "podlocators"},
                          "loaded 0 PodLocators, 4 Services (1 constrained), 0 trusted forwarders",
                          {"podlocators": 0, "zones": 0, "services": 4, "constrained": 1, "forwarders": 0,
                           "networks": 0}),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "flags", "text", "numbers"), LOADED.values(), ids=LOADED)
def test_what_was_loaded(
    cluster: list[dict[str, Any]], flags: dict[str, Any], text: str, numbers: dict[str, int]
) -> None:
    """Nodes, their zones, what else locates clients, Services that are served, and who may name clients."""
    settings = settings_of(flags)
    found = loaded(snapshot_of(cluster, flags), store_of(settings).kinds, settings.trusted_forwarder)
    assert str(found) == text and found.fields() == numbers


def test_lines_of_a_server(topodns: Run, tmp_path: Path) -> None:
    """Whatever happens to it, each line is an object; it has what it is about in fields of their own.

    Also a file whose name is no text.
    """
    path = tmp_path / os.fsdecode(b"caf\xe9.yaml")
    path.write_text(cluster_text([*CLUSTER, *DNS]))
    flags = {"http": "127.0.0.1:0", "serve-namespace": "shop", "log-queries": 100}
    with serving(tmp_path, path, *JSON, flags=flags, env={"TOPODNS_TLL": "1"}) as server:
        server.wait_for("^loaded ")
        listen = f"{server.host}:{server.port}"
        assert server.ask(dns.message.make_query("web.shop.svc.cluster.local", "A"), source="127.1.0.9").answer
        path.write_text("kind: [")
        reload(server)
        second = topodns("serve", *JSON, "--listen", listen, "--http", "off", "--snapshot", EXAMPLE)
    assert second.status == FAILED
    (in_use,) = rows(second.err.splitlines())[-1:]
    assert in_use["level"] == "error" and f"--listen {listen}: udp: port in use" in in_use["message"]
    finding = {"code": "InvalidTopologyKeys", "namespace": "shop", "name": "invalid", "file": str(path)}
    expected = [
        ("listening", "info", {"protocol": "udp", "address": listen}),
        ("listening", "info", {"protocol": "tcp", "address": listen}),
        ("listening", "info", {"protocol": "http", "address": server.http}),
        ("ready", "info", {}),
        ("TOPODNS_TLL:", "warning", {}),
        (printable(f"{path}:"), "error", finding),
        ("loaded", "info", LOADED["several"][3]),
        ("127.1.0.9", "info", {"question": {"name": "web.shop.svc.cluster.local.", "type": "A"}, "outcome": "nearest"}),
        ("ending:", "info", {}),
    ]
    assert any(text.endswith("; keeping the previous version") for text in server.messages())
    logged = [(row["message"].partition(" ")[0], row["level"], row) for row in rows(server.lines)]
    for word, level, fields in expected:
        assert [row for *about, row in logged if about == [word, level] and fields.items() <= row.items()], word


def test_what_was_loaded_is_logged_when_all_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """A saved view is not the cluster: the line comes once every kind is listed, and only once."""
    caplog.set_level("INFO")
    kept = snapshot_of(CLUSTER)

    async def main() -> None:
        publisher = Publisher(store_of(settings_of()), on_programmed=lambda seconds: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.run)
            nursery.start_soon(log_loaded, publisher, (), "here: ")
            await trio.testing.wait_all_tasks_blocked()  # until it listens
            publisher.start_from(kept)
            await trio.sleep(1)
            assert not caplog.messages
            await publisher.batches.send(dump_of(CLUSTER[:2]).batch())
            await publisher.flush()
            await until_in_trio(lambda: caplog.messages)
            await publisher.batches.send(dump_of(CLUSTER[:3]).batch())
            await publisher.flush()
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.02))
    (message,) = caplog.messages
    assert message.startswith("here: loaded 1 node in 1 zone, ")


@pytest.mark.parametrize(
    ("flags", "env", "content", "is_json"),
    [
        (("--log-format", "json"), {}, "", True),
        (("--log-format", "text"), {"TOPODNS_LOG_FORMAT": "json"}, "", False),
        (("--log-format", "text", "--log-format=json"), {}, "", True),
        ((), {"TOPODNS_LOG_FORMAT": " json "}, "", True),
        ((), {"TOPODNS_LOG_FORMAT": ""}, "log-format: json", True),
        ((), {"TOPODNS_LOG_FORMAT": "text"}, "log-format: json", False),
        (("--log-format", "xml"), {"TOPODNS_LOG_FORMAT": "json"}, "", False),
        (("--log-format",), {}, "", False),
        ((), {}, "log-format: [json]", False),
    ],
    ids=["flag", "flag-beats-variable", "last-flag", "variable", "empty-variable", "variable-beats-file", "unknown",
         "no-value", "list"],
)  # fmt: skip
def test_which_format_an_error_has(
    topodns: Run, tmp_path: Path, flags: tuple[str, ...], env: dict[str, str], content: str, is_json: bool
) -> None:
    """Flag beats variable beats file, as for every setting; while the format itself is wrong, errors are text."""
    path = tmp_path / "settings.yaml"
    path.write_text(content + "\nttl: x\n")
    ran = topodns("check", "--config", str(path), *flags, **env)
    assert ran.status == WRONG and ran.err.startswith("{" if is_json else "topodns: ")


@pytest.mark.parametrize(("level", "log_format"), [("debug", "json"), ("error", "text")])
def test_lines_that_programs_wait_for(tmp_path: Path, level: str, log_format: str) -> None:
    """They come whatever the level is. As text they stand alone."""
    arguments = ("--log-format", log_format, "--log-level", level)
    with serving(tmp_path, CLUSTER, *arguments, flags={"http": "127.0.0.1:0"}) as server:
        waited_for = [text for text in server.messages() if text.startswith(("listening ", "ready"))]
        assert [text.split()[:2] for text in waited_for] == [
            ["listening", "udp"], ["listening", "tcp"], ["listening", "http"], ["ready"]]  # fmt: skip
        assert (waited_for[0] in server.lines) is (log_format == "text")


def writers_to_standard_error() -> set[str]:
    """Return the modules whose code names ``sys.stderr`` in a call."""
    return {
        name
        for name, path in MODULES.items()
        if "sys.stderr" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and "sys.stderr" in ast.unparse(call)
        and ast.unparse(call.func) != "sys.stderr.isatty"
    }


def test_who_writes_to_standard_error() -> None:
    """``say`` and the log alone, which know the format."""
    assert writers_to_standard_error() == {"dnsserver.cli.log_format"}


# Takes the place of the server: what nobody logs, as it may come from any library.
BROKEN = """
import logging, sys, threading, types, warnings

def serve(settings):
    warnings.warn("a library is old", UserWarning)
    logging.getLogger("trio.serve_listeners").error("a line\\nand another")
    logging.getLogger("urllib3.connectionpool").warning("a connection broke")
    logging.getLogger("urllib3.connectionpool").warning("%d of %d", "one")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    class Broken:
        def __del__(self):
            raise ValueError("in a destructor")
    Broken()
    raise RuntimeError("a bug")

sys.modules["dnsserver.programs.server"] = types.ModuleType("dnsserver.programs.server")
sys.modules["dnsserver.programs.server"].serve = serve
"""
LOGGED = [
    ("warning", "py.warnings", "UserWarning: a library is old"),
    ("error", "trio.serve_listeners", "a line\\nand another"),
    ("warning", "urllib3.connectionpool", "a connection broke"),
    ("error", "topodns", "a log call is wrong: '%d of %d': TypeError("),
    ("critical", "topodns", "internal error: ZeroDivisionError("),
    ("error", "topodns", "ValueError('in a destructor')"),
    ("critical", "topodns", "internal error: RuntimeError('a bug')"),
]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_nobody_logs(tmp_path: Path, log_format: str) -> None:
    """Warnings of Python, records of libraries, exceptions of threads and destructors, the last exception."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    env = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    ran = run("serve", "--log-format", log_format, "--snapshot", EXAMPLE, env=env)
    assert ran.returncode == FAILED
    if log_format == "text":
        assert all(f"{level.upper()} " in ran.stderr and message in ran.stderr for level, _, message in LOGGED)
        return
    found = rows(ran.stderr.splitlines())
    assert [(row["level"], row["logger"]) for row in found] == [row[:2] for row in LOGGED]
    for row, (_, _, message) in zip(found, LOGGED, strict=True):
        assert message in row["message"]
        assert row.get("exception", "Traceback").startswith("Traceback")
    assert ["exception" in row for row in found] == [False, False, False, False, True, True, True]
