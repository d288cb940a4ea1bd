# SPDX-License-Identifier: Apache-2.0

"""Real name servers as upstream: their CNAMEs are followed, and what they say of missing names is passed on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dns.edns
import dns.exception
import dns.message
import dns.query
import dns.rcode
import pytest

from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, external, listed, namespace, node, service
from tests.kit.commands_in_process import Run
from tests.kit.coredns import running_coredns
from tests.kit.programs import Daemon
from tests.kit.this_machine import free_port, needs_tool
from tests.kit.topodns_process import Server, serving

SHOP = "shop.svc.cluster.local"
IN_A, IN_B = "127.1.0.1", "127.1.0.2"
CLUSTER = listed([
    namespace("shop"),
    node("a1", {ZONE: "a"}, addresses=[IN_A]),
    node("b1", {ZONE: "b"}, addresses=[IN_B]),
    service("web", keys=f"{ZONE},*"),
    endpoint_slice("web", 1, [endpoint("10.1.0.1", nodeName="a1"), endpoint("10.1.0.2", nodeName="b1")]),
    external("back", "back.example.net"),
    external("there", "alias.example.net"),
    external("nx", "nx.example.net"),
    external("text", "text.example.net"),
    external("dead", "host.example.org"),
])  # fmt: skip
# What each has; it is no resolver, and knows nothing of the cluster's names.
RECORDS = f"""\
example.net. 60 IN SOA ns.example.net. h.example.net. 1 7200 1800 86400 30
example.net. 60 IN NS ns.example.net.
ns.example.net. 60 IN A 192.0.2.53
back.example.net. 60 IN CNAME web.{SHOP}.
alias.example.net. 60 IN CNAME host.example.net.
host.example.net. 60 IN A 192.0.2.1
text.example.net. 60 IN TXT "some text"
"""


def zone_file(folder: Path) -> Path:
    path = folder / "example.net.zone"
    path.write_text(RECORDS)
    return path


def answers(port: int) -> bool:
    try:
        dns.query.udp(dns.message.make_query("host.example.net", "A"), "127.0.0.1", port=port, timeout=1)
    except (dns.exception.DNSException, OSError):
        return False
    return True


@contextmanager
def daemon(folder: Path, name: str, program: str, *arguments: str, port: int) -> Iterator[int]:
    running = Daemon.start([needs_tool(program), *arguments], folder, name=name)
    try:
        running.until(lambda: answers(port))
        yield port
    finally:
        running.end()


def unbound(folder: Path) -> AbstractContextManager[int]:
    port, config = free_port(), folder / "unbound.conf"
    data = "".join(f"  local-data: '{line}'\n" for line in RECORDS.splitlines())
    config.write_text(
        f'server:\n  interface: 127.0.0.1\n  port: {port}\n  username: ""\n  chroot: ""\n  directory: {folder}\n'
        f'  pidfile: ""\n  use-syslog: no\n  do-daemonize: no\n  local-zone: example.net. static\n{data}'
        "  local-zone: . refuse\n"
    )
    return daemon(folder, "unbound", "unbound", "-d", "-c", str(config), port=port)


def bind(folder: Path) -> AbstractContextManager[int]:
    port, config = free_port(), folder / "named.conf"
    config.write_text(
        f'options {{ directory "{folder}"; listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};\n'
        f'recursion no; pid-file none; session-keyfile "{folder}/session.key"; }};\n'
        f'controls {{ }};\nzone "example.net" {{ type master; file "{zone_file(folder)}"; }};\n'
    )
    return daemon(folder, "named", "named", "-g", "-c", str(config), port=port)


@contextmanager
def coredns(folder: Path) -> Iterator[int]:
    with running_coredns(folder, f"file {zone_file(folder)} example.net") as running:
        yield running.port


PEERS: dict[str, Callable[[Path], AbstractContextManager[int]]] = {"unbound": unbound, "bind": bind, "coredns": coredns}


@pytest.fixture(scope="module", params=PEERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run topodns beside a real name server."""
    folder = tmp_path_factory.mktemp(request.param)
    with PEERS[request.param](folder) as port:
        flags = {"upstream": f"127.0.0.1:{port}", "http": "127.0.0.1:0"}
        with serving(folder, CLUSTER, flags=flags) as running:
            (folder / "upstream").write_text(f"127.0.0.1:{port}")
            running.folder = folder  # type: ignore[attr-defined]
            yield running


# Name, type, client -> rcode, data, owner of the SOA, extended errors
ROWS: dict[str, tuple[str, str, str, str, list[str], str | None, set[int]]] = {
    "back, near a": ("back", "A", IN_A, "NOERROR", ["back.example.net.", f"web.{SHOP}.", "10.1.0.1"], None, set()),
    "back, near b": ("back", "A", IN_B, "NOERROR", ["back.example.net.", f"web.{SHOP}.", "10.1.0.2"], None, set()),
    "back, no such type": (
        "back", "AAAA", IN_A, "NOERROR", ["back.example.net.", f"web.{SHOP}."], "cluster.local.", set()),
    "an address": (
        "there", "A", IN_A, "NOERROR", ["alias.example.net.", "host.example.net.", "192.0.2.1"], None, set()),
    "NODATA": (
        "there", "AAAA", IN_A, "NOERROR", ["alias.example.net.", "host.example.net."], "example.net.", set()),
    "another type": ("text", "TXT", IN_A, "NOERROR", ["text.example.net.", '"some text"'], None, set()),
    "NXDOMAIN": ("nx", "A", IN_A, "NXDOMAIN", ["nx.example.net."], "example.net.", set()),
    "refused": ("dead", "A", IN_A, "SERVFAIL", [], None, {22}),
}  # fmt: skip


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("case", ROWS)
def test_what_it_says_is_passed_on(server: Server, case: str, tcp: bool) -> None:
    """The first time and remembered."""
    name, qtype, client, rcode, data, soa, errors = ROWS[case]
    for _ in range(2):
        reply = server.ask(dns.message.make_query(f"{name}.{SHOP}", qtype, use_edns=0), source=client, tcp=tcp)
        assert dns.rcode.to_text(reply.rcode()) == rcode
        assert [str(rdata) for rrset in reply.answer for rdata in rrset] == data
        assert [str(rrset.name) for rrset in reply.authority] == ([soa] if soa else [])
        assert {int(option.code) for option in reply.options if isinstance(option, dns.edns.EDEOption)} == errors
        if soa == "example.net.":
            assert 28 <= reply.authority[0].ttl <= 30  # the lesser of the SOA's TTL and its minimum (RFC 2308, 3)


@pytest.mark.parametrize("case", ["back, near b", "refused"])
def test_it_is_explained(server: Server, case: str, topodns: Run) -> None:
    """By the command, and by the running server."""
    name, qtype, client, rcode, data, _, errors = ROWS[case]
    folder: Path = server.folder  # type: ignore[attr-defined]
    ran = topodns("explain", f"{name}.{SHOP}", qtype, "--client", client, "-o", "json", "--snapshot",
                  str(folder / "cluster.yaml"), "--upstream", (folder / "upstream").read_text())  # fmt: skip
    assert (ran.status, ran.err) == (0, "")
    status, text = server.get(f"/api/v1/explain?name={name}.{SHOP}&type={qtype}&client={client}")
    assert status == 200
    explanations: list[dict[str, Any]] = [ran.json, json.loads(text)]
    for explained in explanations:
        assert (explained["rcode"], [answer["data"] for answer in explained["answers"]]) == (rcode, data)
        error = explained["extended_error"]
        assert ({error["code"]} if error else set()) == errors
