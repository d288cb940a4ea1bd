# SPDX-License-Identifier: Apache-2.0

"""What a query costs in instructions, counted by valgrind: other work on the machine changes no figure.

An answer that is remembered is asked for over and over, one query at a time, as at a few thousand queries a second. So
the server wakes for each. What the kernel does in system calls does not count.

If a figure is above its limit, look for the reason; callgrind_annotate shows which functions cost how much. If it is
far below, lower the limit.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import topodns_process
from tests.kit.dns_queries import ecs, opt, query
from tests.kit.in_memory import HAS_NATIVE, cluster_text
from tests.kit.programs import environment
from tests.kit.small_cluster import WEB, WEB_AND_MANY
from tests.kit.this_machine import ROOT, lacking, needs_tool
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE

# What the native thread does for each wake-up. Only that counts, because the event loop wakes up beside it, too.
WAKE_UP = "native::datagrams::Shared::answer"
QUERIES = 500
WARM = 1200  # queries before: so many, and Python has specialised its code, and each endpoint had its turns

NUMBERS = (200, 20_000)  # of questions that a table of native code knows
ASKED = 200  # of them
# Puts the answers to so many questions into a table, and asks it. ``take_counts`` ends each part.
KNOWN_QUESTIONS = f"""
from dnsserver.message.rendering import RenderedAnswer
from dnsserver.net import native
from dnsserver.responder.native_feed import ClientGroup, NativePlace
from locator.ip import parse_address
from tests.kit.dns_queries import query

source, rendered = parse_address("192.0.2.1"), RenderedAnswer(flags=0x8400, answers=[bytes(16)], dependent=True)
for number in {NUMBERS}:
    table = native.AnswerTable((), (1.0,), 1)
    table.configure((), (), NativePlace(location=1, origin=0, forwarder=False, located=True))
    asked = [query(f"svc-{{each}}.shop.svc.cluster.local") for each in range(number)]
    for of, wire in enumerate(asked):
        table.answer(wire[12:], rendered, of, ClientGroup(keys=1, values=1, location=1))
    table.take_counts()
    assert all(table.reply(wire, source) is not None for wire in asked[:: number // {ASKED}])
    table.take_counts()
"""

LIMITS = [
    # id, settings, whether a forwarder asks, instructions for a query at most
    ("native", (), False, 2_200),
    ("native, forwarded", ("--trusted-forwarder", "127.0.0.1/32"), True, 2_800),
    ("python", ("--native", "off"), False, 190_000),
    ("python, forwarded", ("--native", "off", "--trusted-forwarder", "127.0.0.1/32"), True, 190_000),
]


@pytest.mark.parametrize(
    ("settings", "forwarded", "limit"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS]
)
def test_a_wake_up_walks_little_code(
    tmp_path: Path, settings: tuple[str, ...], forwarded: bool, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the datagram that wakes the server to its reply, and until it waits again."""
    if not HAS_NATIVE and "off" not in settings:
        lacking("the native code is not built")
    counting = (
        needs_tool("valgrind"),
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={tmp_path}/out",
        *(() if "off" in settings else (f"--toggle-collect={WAKE_UP}",)),
    )
    needs_tool("callgrind_control")
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(cluster_text(WEB_AND_MANY))
    flags = ("serve", "--snapshot", str(cluster), "--listen", "127.0.0.1:0", "--http", "off", *settings)
    monkeypatch.setattr(topodns_process, "SERVER_COMMAND", (*counting, *topodns_process.SERVER_COMMAND))
    server = Server(flags)
    try:
        server.started()
        ask(server, WARM, forwarded=forwarded)
        control(server, "--instr=on")
        ask(server, QUERIES, forwarded=forwarded)
        control(server, "--zero")
        ask(server, QUERIES, forwarded=forwarded)
        control(server, "--dump")
    finally:
        server.end()
    (total,) = re.findall(r"^summary: (\d+)$", (tmp_path / "out.1").read_text(), re.MULTILINE)
    print(f"{int(total) / QUERIES:,.0f} instructions for a query")
    assert int(total) / QUERIES < limit


def ask(server: Server, number: int, *, forwarded: bool) -> None:
    """Ask the same question *number* times, each time after the reply."""
    wire = query(WEB, edns=opt(ecs("10.0.0.1/32"))) if forwarded else query(WEB)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PATIENCE)
        sock.connect((server.host, server.port))
        for _ in range(number):
            sock.send(wire)
            sock.recv(2048)


def control(server: Server, command: str) -> None:
    subprocess.run(
        ["callgrind_control", command, str(server.process.pid)], env=environment(), check=True, capture_output=True
    )


def test_many_questions_cost_no_more_than_few(tmp_path: Path) -> None:
    """Clients of one zone ask for 20,000 Services: neither a reply nor what makes its answer known gets slow."""
    if not HAS_NATIVE:
        lacking("the native code is not built")

    methods = "native::native::AnswerTable::__pymethod_{}__"
    counting = (needs_tool("valgrind"), "--tool=callgrind", f"--callgrind-out-file={tmp_path}/out")
    collected = [f"--toggle-collect={methods.format(name)}" for name in ("answer", "reply")]
    parts = f"--dump-before={methods.format('take_counts')}"
    command = (*counting, *collected, parts, sys.executable, "-c", KNOWN_QUESTIONS)
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=9 * PATIENCE)
    put_few, asked_few, put_many, asked_many = (
        int(re.findall(r"^summary: (\d+)$", (tmp_path / f"out.{part}").read_text(), re.MULTILINE)[0])
        for part in range(1, 5)
    )
    few, many = NUMBERS
    print(
        f"{put_few / few:,.0f} and {put_many / many:,.0f} to put one; {asked_few:,} and {asked_many:,} to ask for all"
    )
    assert 0 < put_many / many < 2 * put_few / few and 0 < asked_many < 2 * asked_few
