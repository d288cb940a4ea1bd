# SPDX-License-Identifier: Apache-2.0

"""CoreDNS with the blocks that ``topodns corefile`` prints; and with wrong blocks.

Only addresses and ports are changed for the test.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dns.edns
import dns.exception
import dns.message
import dns.query
import dns.rcode
import dns.rdatatype
import pytest

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.checks import check
from dnsserver.tools.corefile.stub_blocks import COREDNS, ECS_RULE, FALLBACK_PORT, stub_block
from dnsserver.tools.corefile.stub_zones import read
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, namespace, node, service
from tests.kit.forwarders import started
from tests.kit.in_memory import cluster_text
from tests.kit.kube import Item, config_of
from tests.kit.this_machine import free_port
from tests.kit.topodns_process import Process, Server, serving
from tests.kit.waiting import PATIENCE, until

WHERE = "corefiles"
CACHE = f"cache.{WHERE}.svc.cluster.local"
A, B = "127.0.1.10", "127.0.2.10"  # clients in two zones
IN_A, IN_B = "10.254.0.1", "10.254.1.1"  # the endpoints there
NODES = [node("corefiles-a", {ZONE: "a"}, addresses=[A]), node("corefiles-b", {ZONE: "b"}, addresses=[B])]
CLUSTER: list[Item] = [
    namespace(WHERE),
    *NODES,
    service("cache", keys=f"{ZONE},*", where=WHERE),
    endpoint_slice(
        "cache",
        0,
        [endpoint(IN_A, nodeName="corefiles-a"), endpoint(IN_B, nodeName="corefiles-b")],
        where=WHERE,
    ),
]
TRUSTED = "--trusted-forwarder=127.0.0.1/32"


def ask(port: int, source: str, name: str, *, own: str = "", timeout: float = PATIENCE) -> dns.message.Message:
    options = [dns.edns.ECSOption(own, 32)] if own else []
    query = dns.message.make_query(name, "A", use_edns=0, options=options)
    return dns.query.udp(query, "127.0.0.1", port=port, source=source, timeout=timeout)


def asked(port: int, source: str, name: str = CACHE, *, own: str = "", timeout: float = PATIENCE) -> set[str]:
    """Return a client's addresses, or else the rcode, with ``ECS`` if a subnet comes back; empty without a reply.

    With *own*, the client claims to be another.
    """
    try:
        reply = ask(port, source, name, own=own, timeout=timeout)
    except (dns.exception.Timeout, OSError):
        return set()
    records = [record for rrset in reply.answer for record in rrset if record.rdtype == dns.rdatatype.A]
    ecs = {"ECS" for option in reply.options if isinstance(option, dns.edns.ECSOption)}
    return ({record.to_text() for record in records} or {dns.rcode.to_text(reply.rcode())}) | ecs


@contextmanager
def running(folder: Path, corefile: str, *, plain: str = "") -> Iterator[int]:
    """Run CoreDNS with a Corefile at a free port; *plain* replaces its own kubernetes plugin."""
    port, own = free_port(), free_port()
    for found, placed in (
        (":53 {", f":{port} {{"),
        (str(FALLBACK_PORT), str(own)),
        ("    kubernetes cluster.local\n", plain),
    ):
        corefile = corefile.replace(found, placed)
    # A name that nobody asks for later, so that no cache knows it.
    ready = partial(asked, port, "127.0.0.1", "nobody.example", timeout=1)
    with started(COREDNS, folder, corefile, ready):
        yield port


@pytest.fixture
def unsynced(tmp_path: Path) -> Iterator[Process]:
    """Run a topodns that finds no API server: it answers SERVFAIL."""
    kubeconfig = tmp_path / "nowhere"
    kubeconfig.write_text(json.dumps(config_of(f"http://127.0.0.1:{free_port()}")))
    # Another one listens there afterwards: a port that is nobody's meanwhile.
    listen = f"--listen=127.0.0.1:{free_port()}"
    process = Process(["serve", listen, "--http=off", "--kubeconfig", str(kubeconfig)])
    yield process
    process.end()


@contextmanager
def ending(process: Process) -> Iterator[Process]:
    """Kill a process at the end of the block, unless it has ended."""
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@contextmanager
def load(port: int) -> Iterator[Callable[[], object]]:
    """Ask CoreDNS as two clients, again and again; every reply has the client's endpoint, or all of them.

    Yield what waits until each client has asked some times more.
    """
    ended, rounds, wrong = threading.Event(), 0, list[set[str]]()

    def work() -> None:
        nonlocal rounds
        while not ended.is_set():
            for client, near in ((A, IN_A), (B, IN_B)):
                if (told := asked(port, client)) not in ({near}, {IN_A, IN_B}):
                    wrong.append(told)
            rounds += 1

    def goes_on() -> None:
        enough = rounds + 10
        until(lambda: rounds >= enough, lambda: f"load: {rounds} rounds")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield goes_on
    ended.set()
    thread.join(2 * PATIENCE)
    assert wrong == []


def test_coredns_answers_all_endpoints_while_topodns_cannot(unsynced: Process, tmp_path: Path) -> None:
    """While topodns is not ready, stopped or killed, CoreDNS answers all endpoints; else those of the zone.

    Clients never get anything else.
    """
    port = int(unsynced.wait_for(r"^listening udp .*:(\d+)$")[1])
    snapshot = tmp_path / "cluster.yaml"
    snapshot.write_text(cluster_text(CLUSTER))
    command = ["serve", f"--listen=127.0.0.1:{port}", "--http=off", TRUSTED, "--snapshot", str(snapshot)]
    plain = f"hosts {{\n{IN_A} {CACHE}\n{IN_B} {CACHE}\n}}\n"
    to, zones = [parse_upstream(f"127.0.0.1:{port}")], [f"{WHERE}.svc.cluster.local"]
    with running(tmp_path, stub_block(COREDNS, to, zones, fail_open=True), plain=plain) as coredns:
        until(lambda: asked(coredns, A, timeout=1) == {IN_A, IN_B}, "all endpoints, from CoreDNS itself")
        with load(coredns) as goes_on:
            goes_on()
            assert unsynced.end() == 0
            goes_on()
            assert asked(coredns, A) == {IN_A, IN_B}
            for number in (signal.SIGTERM, signal.SIGKILL):
                with ending(Process(command)) as process:
                    until(lambda: [asked(coredns, A) for _ in range(10)] == [{IN_A}] * 10, "the endpoint in zone a")
                    until(lambda: [asked(coredns, B) for _ in range(10)] == [{IN_B}] * 10, "the endpoint in zone b")
                    goes_on()
                    assert process.end(number) in (0, -number)
                assert asked(coredns, B) == {IN_A, IN_B}
                goes_on()


# --- What comes of what --check finds -------------------------------------------------------------------------------

STUB = "cluster.local:53 {{\n{}\nforward . TOPODNS {{\n{}\n}}\n}}\n".format
# What is wrong, a Corefile, and who is told what by CoreDNS because of it: client, name, own word, what comes.
CONSEQUENCES = {
    "no-ecs": (STUB("errors", ""), [(A, CACHE, "", {IN_A, IN_B})]),
    "append": (STUB("rewrite edns0 subnet append 32 128 revert", ""), [
        (A, CACHE, "", {IN_A}), (B, CACHE, A, {IN_A, "ECS"}),
    ]),
    "replace": (STUB("rewrite edns0 subnet replace 32 128 revert", ""), [
        (A, CACHE, "", {IN_A, IN_B}), (B, CACHE, A, {IN_B, "ECS"}),
    ]),
    "no-revert": (STUB("rewrite edns0 subnet set 32 128", ""), [(A, CACHE, "", {IN_A, "ECS"})]),
    "no-prefix": (STUB("rewrite edns0 subnet set 0 128 revert", ""), [(A, CACHE, "", {IN_A, IN_B})]),
    "a-rule-before": (STUB(f"rewrite name other.cluster.local {CACHE}\n{ECS_RULE}", ""), [
        (A, CACHE, "", {IN_A}), (A, "other.cluster.local", "", {IN_A, IN_B}),
    ]),
    "a-rule-for-all-before": (STUB(f"rewrite edns0 nsid set\n{ECS_RULE}", ""), [(A, CACHE, "", {IN_A, IN_B})]),
    "cache": (STUB(f"cache\n{ECS_RULE}", ""), [(A, CACHE, "", {IN_A}), (B, CACHE, "", {IN_A})]),
    "except": (STUB(ECS_RULE, f"except {WHERE}.svc.cluster.local"), [(A, CACHE, "", {"SERVFAIL"})]),
    "a-zone-beneath": (STUB(ECS_RULE, "") + "svc.cluster.local:53 {\ntemplate ANY ANY {\nrcode NXDOMAIN\n}\n}", [
        (A, CACHE, "", {"NXDOMAIN"}),
    ]),
    "an-option-alone": (STUB("rewrite edns0 local set 0xfe00 {client_ip} revert", ""), [
        (A, CACHE, "", {IN_A, IN_B}), (B, CACHE, A, {IN_A, "ECS"}),
    ]),
    "a-forward-before": (STUB(f"{ECS_RULE}\nforward . NOBODY", ""), [(A, CACHE, "", {"SERVFAIL"})]),
    "template": (STUB(f"template ANY ANY {{\nrcode NXDOMAIN\n}}\n{ECS_RULE}", ""), [(A, CACHE, "", {"NXDOMAIN"})]),
    "acl": (STUB(f"acl {{\nblock\n}}\n{ECS_RULE}", ""), [(A, CACHE, "", {"REFUSED"})]),
    "hosts": (STUB(f"hosts {{\n192.0.2.1 {CACHE}\n}}\n{ECS_RULE}", ""), [
        (A, CACHE, "", {"192.0.2.1"}), (A, f"other.{CACHE}", "", {"SERVFAIL"}),
    ]),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("topodns"), CLUSTER, TRUSTED) as running:
        yield running


@pytest.mark.parametrize(("corefile", "rows"), CONSEQUENCES.values(), ids=CONSEQUENCES)
def test_what_comes_of_a_wrong_block(
    server: Server, tmp_path: Path, corefile: str, rows: Sequence[tuple[str, str, str, set[str]]]
) -> None:
    """What ``corefile --check`` says of such blocks is what clients then get."""
    corefile = corefile.replace("TOPODNS", f"127.0.0.1:{server.port}").replace("NOBODY", f"127.0.0.1:{free_port()}")
    assert check(read(corefile, forwarder=COREDNS, to=[parse_upstream(f"127.0.0.1:{server.port}")]))
    with running(tmp_path, corefile) as port:
        for client, name, own, expected in rows:
            assert asked(port, client, name, own=own) == expected, (client, name, own)
