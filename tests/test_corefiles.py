"""The Corefiles that the overlays' pages show, in a real CoreDNS; only addresses and ports are the test's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dns.edns
import dns.exception
import dns.message
import dns.query
import pytest

from tests import tools
from tests.clusters import ZONE, endpoint, endpoint_slice, namespace, node, service
from tests.kube import ControlPlane, Item, config_of
from tests.kustomize import MANIFESTS
from tests.support import PATIENCE, Process, Server
from tests.tools import Daemon, free_port, until

WHERE = "corefiles"
CACHE = f"cache.{WHERE}.svc.cluster.local"
IN_A, IN_B = "10.254.0.1", "10.254.1.1"
CLIENTS = {"127.0.1.10": IN_A, "127.0.2.10": IN_B}  # who asks, and the endpoint in the same zone
NODES = [
    node("corefiles-a", {ZONE: "a"}, addresses=["127.0.1.10"]),
    node("corefiles-b", {ZONE: "b"}, addresses=["127.0.2.10"]),
]
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


def shown(overlay: str) -> list[str]:
    """Return the Corefiles that an overlay's page shows."""
    return re.findall(r"```corefile\n(.*?)```", (MANIFESTS / "overlays" / overlay / "README.md").read_text(), re.DOTALL)


def ask(port: int, source: str, *, timeout: float = PATIENCE) -> dns.message.Message:
    return dns.query.udp(dns.message.make_query(CACHE, "A"), "127.0.0.1", port=port, source=source, timeout=timeout)


def asked(port: int, source: str, *, timeout: float = PATIENCE) -> set[str]:
    """Return the addresses that a client gets, none if it gets no reply."""
    try:
        return {record.to_text() for rrset in ask(port, source, timeout=timeout).answer for record in rrset}
    except (dns.exception.Timeout, OSError):
        return set()


@contextmanager
def running(folder: Path, corefile: str, topodns: int, *, plain: str = "") -> Iterator[int]:
    """Run CoreDNS with a page's Corefile before a topodns at a port; *plain* stands for its own plugin kubernetes."""
    port = free_port()
    own = free_port()
    for found, placed in (
        ("shop.svc", f"{WHERE}.svc"),
        (":53 {", f":{port} {{"),
        ("10.96.0.53", f"127.0.0.1:{topodns}"),
        ("5301", str(own)),
        ("bind 169.254.20.10 10.96.0.10", "bind 127.0.0.1"),
        ("    kubernetes cluster.local\n", plain),
    ):
        corefile = corefile.replace(found, placed)
    path = folder / "Corefile"
    path.write_text(corefile)
    daemon = Daemon.start([str(tools.coredns()), "-conf", str(path)], folder, name="coredns")
    try:
        daemon.until(lambda: asked(port, "127.0.0.1", timeout=1))
        yield port
    finally:
        daemon.end()


def test_behind_coredns_each_client_gets_the_endpoint_of_its_zone(serve: Callable[..., Server], tmp_path: Path) -> None:
    """CoreDNS names the client, and its name for it does not come back."""
    server = serve(CLUSTER, "--trusted-forwarder=127.0.0.1/32")
    corefile, _ = shown("coredns-stub")
    with running(tmp_path, corefile, server.port) as port:
        for _ in range(2):  # nothing is cached for others
            assert {client: asked(port, client) for client in CLIENTS} == {
                client: {near} for client, near in CLIENTS.items()
            }
        assert not [option for option in ask(port, "127.0.1.10").options if isinstance(option, dns.edns.ECSOption)]


def test_behind_nodelocal_the_node_that_asks_is_the_client(serve: Callable[..., Server], tmp_path: Path) -> None:
    """The cache stands on the node; whoever asks it is there, too."""
    here = [node("corefiles-a", {ZONE: "a"}, addresses=["127.0.0.1"]), *CLUSTER[2:]]
    server = serve([CLUSTER[0], *here], "--client-source=nodes")
    (corefile,) = shown("nodelocal")
    with running(tmp_path, corefile, server.port) as port:
        assert asked(port, "127.0.2.10") == asked(port, "127.0.1.10") == {IN_A}


@pytest.fixture
def in_the_cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Return the control plane with the Service and its endpoints in it."""
    control_plane.api.create(*CLUSTER)
    yield control_plane
    control_plane.api.delete(*reversed(CLUSTER))


@pytest.fixture
def unsynced(tmp_path: Path) -> Iterator[Process]:
    """Run a topodns that finds no API server, and so knows nothing: SERVFAIL."""
    kubeconfig = tmp_path / "nowhere"
    kubeconfig.write_text(json.dumps(config_of(f"http://127.0.0.1:{free_port()}")))
    # Another one listens there afterwards: a port that is nobody's meanwhile.
    listen = f"--listen=127.0.0.1:{free_port()}"
    process = Process(["serve", listen, "--http=off", "--kubeconfig", str(kubeconfig)])
    yield process
    process.end()


def test_coredns_answers_all_endpoints_while_topodns_cannot(
    in_the_cluster: ControlPlane, unsynced: Process, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """While it knows nothing and while it is away; and those of the client's zone, always, while it is there."""
    port = int(unsynced.wait_for(r"^listening udp .*:(\d+)$")[1])
    flags = (f"--listen=127.0.0.1:{port}", "--trusted-forwarder=127.0.0.1/32")
    _, corefile = shown("coredns-stub")
    plain = f"    kubernetes cluster.local {{\n        kubeconfig {in_the_cluster.kubeconfig}\n    }}\n"
    with running(tmp_path, corefile, port, plain=plain) as coredns:
        until(lambda: asked(coredns, "127.0.1.10", timeout=1) == {IN_A, IN_B}, "all endpoints, from CoreDNS itself")
        assert unsynced.end() == 0
        until(lambda: asked(coredns, "127.0.1.10", timeout=1) == {IN_A, IN_B}, "all endpoints, from CoreDNS itself")
        server = serve(CLUSTER, *flags, flags={"listen": []})
        until(lambda: asked(coredns, "127.0.1.10", timeout=1) == {IN_A}, "the endpoint in zone a")
        assert [asked(coredns, "127.0.2.10") for _ in range(10)] == [{IN_B}] * 10
        assert server.end() == 0
        until(lambda: asked(coredns, "127.0.2.10", timeout=1) == {IN_A, IN_B}, "all endpoints again")
