# SPDX-License-Identifier: Apache-2.0

"""A running server: new versions of its snapshot, health and metrics, and its end."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import dns.message
import dns.rcode
import pytest
import yaml

from tests.kit.api_client import request
from tests.kit.api_objects import ZONE, Item, endpoint, endpoint_slice, node, service
from tests.kit.files import replace_file
from tests.kit.programs import environment
from tests.kit.topodns_process import COMMAND, Process, Server, reload, serving
from tests.kit.waiting import PATIENCE, until

NAME = "web.shop.svc.cluster.local"
Serve = Callable[..., Server]


def cluster(*addresses: str, keys: str = "") -> list[Item]:
    """Return a cluster whose Service has these endpoints."""
    return [
        node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]),
        service("web", keys=keys),
        endpoint_slice("web", 1, [endpoint(address, nodeName="a1") for address in addresses]),
    ]


def write(path: Path, *addresses: str, **more: Any) -> None:
    """Replace the file."""
    replace_file(path, yaml.safe_dump_all(cluster(*addresses, **more)))


def addresses_of(reply: dns.message.Message) -> set[str]:
    return {str(rdata) for rrset in reply.answer for rdata in rrset}


def asked(server: Server, **more: Any) -> set[str]:
    return addresses_of(server.ask(dns.message.make_query(NAME, "A"), **more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "dump.yaml"
    write(path, "10.0.0.1")
    return path


class Served(NamedTuple):
    """A server of several tests, which change nothing of it but its snapshot, and that snapshot."""

    server: Server
    path: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("reload") / "dump.yaml"
    write(path, "10.0.0.1")
    with serving(path.parent, path, flags={"http": "127.0.0.1:0"}) as server:
        yield Served(server, path)


@pytest.fixture
def served(running: Served) -> Served:
    """The server, which answers 10.0.0.1."""
    write(running.path, "10.0.0.1")
    reload(running.server)
    return running


def test_sighup(served: Served) -> None:
    """After SIGHUP the server answers from the new file, without cached answers of the old one."""
    server, path = served
    assert asked(server) == {"10.0.0.1"}
    write(path, "10.0.0.2", "10.0.0.3")
    reload(server)
    assert asked(server) == {"10.0.0.2", "10.0.0.3"}
    write(path, "10.0.0.2", keys="topology.kubernetes.io/zone")
    reload(server)
    assert asked(server) == set()
    assert asked(server, source="127.1.0.1") == {"10.0.0.2"}


def test_configmap_volume(serve: Serve, tmp_path: Path) -> None:
    """Kubernetes swaps a symbolic link to a folder; the file's own path never changes."""
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        write(tmp_path / f"v{number}" / "cluster.yaml", f"10.0.0.{number}")
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "mounted.yaml").symlink_to("..data/cluster.yaml")
    server = serve(tmp_path / "mounted.yaml")
    (tmp_path / "..new").symlink_to("v2")
    before = len(server.lines)
    os.replace(tmp_path / "..new", tmp_path / "..data")
    server.wait_for("snapshot read again", after=before)
    assert asked(server) == {"10.0.0.2"}


@pytest.mark.parametrize("content", [None, "kind: ["], ids=["gone", "broken"])
def test_broken_version(served: Served, content: str | None) -> None:
    """An unreadable version is reported, and the old one stays until a good one comes."""
    server, path = served
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    before = len(server.lines)
    reload(server)
    assert any("ERROR" in line and str(path) in line for line in server.lines[before:])
    assert asked(server) == {"10.0.0.1"}
    write(path, "10.0.0.2")
    reload(server)
    assert asked(server) == {"10.0.0.2"}


def test_reload_under_load_loses_nothing(served: Served) -> None:
    """Each query gets the whole answer of one version, and never an old one after a new one."""
    server, path = served
    versions = [{f"10.{number}.0.{last}" for last in (1, 2, 3)} for number in range(6)]
    write(path, *sorted(versions[0]))
    reload(server)
    seen: list[int] = []
    failures: list[object] = []
    done = threading.Event()

    def client(tcp: bool) -> None:
        version = 0
        try:
            while not done.is_set():
                reply = server.ask(dns.message.make_query(NAME, "A"), tcp=tcp)
                version, before = versions.index(addresses_of(reply)), version
                assert version >= before
                seen.append(version)
        except BaseException as error:  # handed to the test, which fails by it
            failures.append(error)

    clients = [threading.Thread(target=client, args=(tcp,)) for tcp in (False, True)]
    for each in clients:
        each.start()
    for version in versions[1:]:
        write(path, *sorted(version))
        reload(server)
    last = len(versions) - 1
    until(lambda: failures or (last in seen and len(seen) > len(versions)), "the last version, asked for by many")
    done.set()
    for each in clients:
        each.join(2 * PATIENCE)  # a query that is lost is known to be so after PATIENCE
        assert not each.is_alive()
    assert not failures


def test_hangups_in_a_row(served: Served) -> None:
    """If SIGHUPs arrive while the file is read, the last version is read in the end."""
    server, path = served
    before = len(server.lines)
    for last in range(2, 12):
        write(path, f"10.0.0.{last}")
        server.send(signal.SIGHUP)
    while asked(server) != {"10.0.0.11"}:
        server.wait_for("snapshot read again", after=before)
        before = next(n for n, line in enumerate(server.lines) if n >= before and "read again" in line) + 1


def test_interrupted(serve: Serve, path: Path) -> None:
    """Ctrl-C ends a server at once, whatever the delay is, and whoever is connected; ``--http off`` is heeded."""
    server = serve(path, flags={"shutdown-delay": 3600})
    assert server.http == ""
    with socket.create_connection((server.host, server.port), PATIENCE) as idle:
        assert asked(server, tcp=True) == {"10.0.0.1"}  # by then the server has taken the connection
        assert server.end(signal.SIGINT) == 0
        assert idle.recv(1) == b""


def test_shutdown_delay(serve: Serve, path: Path) -> None:
    """After SIGTERM a server is not ready, but alive, and answers new clients; a second SIGTERM ends it at once."""
    server = serve(path, flags={"http": "127.0.0.1:0", "shutdown-delay": 3600})
    assert server.get("/readyz") == (200, "ok\n")
    server.send(signal.SIGTERM)
    server.wait_for("goes on answering")
    assert server.get("/readyz") == (503, "[-]shutdown ending: got SIGTERM\nnot ok\n")
    assert server.get("/livez")[0] == 200
    assert asked(server) == asked(server, tcp=True) == {"10.0.0.1"}
    assert server.end(signal.SIGTERM) == 0


def test_health(served: Served) -> None:
    """The HTTP status tells the health; with ``?verbose`` there is a line for each check."""
    server = served.server
    for name in ("/livez", "/readyz", "/health", "/healthz", "/ready"):
        status, text = server.get(name)
        assert status == 200 and text.strip()
        assert len(server.get(f"{name}?%ff&verbose")[1].splitlines()) > len(text.splitlines())
    assert server.get("/nothing")[0] == 404
    assert request(server, "/metrics?%ff", headers={"Accept": "\xff"}).status == 200


def test_not_ready_before_the_first_view(tmp_path: Path) -> None:
    """Before the first snapshot, queries get SERVFAIL "Not Ready" and /readyz is 503."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    arguments = ("serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--snapshot", str(fifo))
    server = Server(arguments)
    try:
        server.host, server.port = "127.0.0.1", int(server.wait_for(r"^listening udp .*:(\d+)$")[1])
        server.http = server.wait_for(r"^listening http (.*)$")[1]
        reply = server.ask(dns.message.make_query(NAME, "A", use_edns=0))
        assert reply.rcode() == dns.rcode.SERVFAIL
        assert [(int(option.code), bool(option.text)) for option in reply.options] == [(14, True)]  # type: ignore[attr-defined]
        assert server.ask(dns.message.make_query("example.com", "A")).rcode() == dns.rcode.REFUSED
        assert (server.get("/livez")[0], server.get("/readyz")[0]) == (200, 503)
        assert server.metrics()["topodns_synced", "Service"] == 0
        fifo.write_text(yaml.safe_dump_all(cluster("10.0.0.1")))
        server.started()
        assert asked(server) == {"10.0.0.1"}
        assert server.get("/readyz")[0] == 200
    finally:
        assert server.end() == 0


def test_metrics(serve: Serve, path: Path) -> None:
    """The metrics count the queries, under the names that dashboards know."""
    write(path, "10.0.0.1", "10.0.0.2", keys="topology.kubernetes.io/zone")
    server = serve(path, flags={"http": "127.0.0.1:0", "trusted-forwarder": ["127.0.0.53/32"]})
    for _ in range(3):
        asked(server, source="127.1.0.1")
    asked(server, source="127.9.9.9", tcp=True)
    asked(server, source="127.0.0.53")
    server.ask(dns.message.make_query("none.shop.svc.cluster.local", "AAAA"))
    found = server.metrics()
    expected = {
        ("topodns_dns_requests_total", "1", "udp", "A"): 4,
        ("topodns_dns_requests_total", "1", "tcp", "A"): 1,
        ("topodns_dns_requests_total", "1", "udp", "AAAA"): 1,
        ("topodns_dns_responses_total", "NOERROR"): 5,
        ("topodns_dns_responses_total", "NXDOMAIN"): 1,
        ("topodns_answers_total", "nearest"): 3,
        ("topodns_answers_total", "unmet"): 2,
        ("topodns_answer_tier_total", "topology.kubernetes.io/zone"): 3,
        ("topodns_clients_total", "node"): 3,
        ("topodns_clients_total", "unknown"): 3,
        ("topodns_forwarded_without_client_total", "127.0.0.53"): 1,
        ("topodns_dns_request_duration_seconds_count",): 6,
        ("topodns_dns_response_truncated_total",): 0,
        ("topodns_invalid_constraints",): 0,
        ("topodns_objects", "Service"): 1,
        ("topodns_synced", "EndpointSlice"): 1,
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["topodns_remembered_total", "hit"] + found["topodns_remembered_total", "miss"] == 6
    assert found["topodns_loop_delay_seconds_bucket", "+Inf"] == found["topodns_loop_delay_seconds_count",]
    assert any(key[0] == "topodns_build_info" for key in found)
    write(path, "10.0.0.1", keys="*,a")
    reload(server)
    assert server.metrics()[("topodns_invalid_constraints",)] == 1


def test_default_http_port_taken(path: Path) -> None:
    """If the default HTTP port is in use, a server says so and serves DNS without metrics."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 9153))
            taken.listen()
        except OSError:
            pass  # somebody else's metrics stand there: just as taken
        process = Process(["serve", "--listen", "127.0.0.1:0", "--snapshot", str(path)])
        try:
            process.wait_for(r"^ready$")
            process.wait_for(r"WARNING .*127\.0\.0\.1:9153.*in use")
            assert not any(line.startswith("listening http") for line in process.lines)
        finally:
            assert process.end() == 0


def readers(server: Server) -> list[int]:
    """Return the child processes of the server."""
    found: list[int] = []
    for task in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            found += map(int, task.read_text().split())
    return found


@contextmanager
def reading(server: Server, path: Path, *addresses: str) -> Iterator[int]:
    """Replace the file by one that nobody can open until the block ends; yield the process that tries to.

    A lease holds up other openers (fcntl(2)); the signal that reports them is ignored.
    """
    new = path.with_suffix(".held")
    write(new, *addresses)
    with new.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.replace(new, path)
        server.send(signal.SIGHUP)
        until(lambda: readers(server), "a process that reads")
        (reader,) = readers(server)
        yield reader


def test_the_reading_process_ends_with_the_reading(served: Served) -> None:
    """Between readings, the server is a single process."""
    server, path = served
    assert readers(server) == []
    before = len(server.lines)
    with reading(server, path, "10.0.0.2"):
        pass
    server.wait_for("snapshot read again", after=before)
    until(lambda: not readers(server), "no other process")
    path.write_text("kind: [")
    reload(server)
    until(lambda: not readers(server), "no other process")


def test_death_of_the_reading_process(served: Served) -> None:
    """If the kernel kills the reading process, as for lack of memory, the server says so and serves on."""
    server, path = served
    before = len(server.lines)
    with reading(server, path, "10.0.0.9") as reader:
        os.kill(reader, signal.SIGKILL)
        said = server.wait_for("the process that reads it was ended", after=before)
        assert str(path) in said.string and "Killed" in said.string and "keeping the previous version" in said.string
        assert asked(server) == {"10.0.0.1"}
    reload(server)
    assert asked(server) == {"10.0.0.9"}


def test_end_while_a_snapshot_is_read(serve: Serve, path: Path) -> None:
    """SIGTERM ends the server and its reading process."""
    server = serve(path)
    with reading(server, path, "10.0.0.2") as reader:
        assert server.end() == 0
        assert not Path(f"/proc/{reader}").exists()


def test_end_while_standard_input_is_awaited() -> None:
    """Before the first snapshot, SIGTERM ends a server with status 0, too."""
    held, theirs = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, "serve", "--snapshot", "-", "--listen", "127.0.0.1:0", "--http", "off"],
        stdin=held,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stderr is not None
        assert [process.stderr.readline()[:13] for _ in range(2)] == ["listening udp", "listening tcp"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert "Fatal" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        os.close(held)
        os.close(theirs)
