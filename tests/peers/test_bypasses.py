# SPDX-License-Identifier: Apache-2.0

"""A real CoreDNS that answers names of its stub zone in another block: what ``corefile --check`` says is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import dns.message
import dns.query
import dns.rcode
import dns.reversename
import pytest

from dnsserver.tools.corefile.checks import check
from dnsserver.tools.corefile.stub_blocks import ARPA, COREDNS, stub_block
from dnsserver.tools.corefile.stub_zones import read, zones_named
from tests.kit.api_objects import ZONE, endpoint, endpoint_slice, external, namespace, node, pod, service
from tests.kit.coredns import kubernetes_block, running_coredns
from tests.kit.forwarders import where
from tests.kit.kube import ControlPlane
from tests.kit.live_server import serving_live
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE

CLIENT = "127.0.7.7"  # a pod of another namespace, in zone a
SHOP, OTHER = "bypassed", "bypassing"
STUB = f"{SHOP}.svc.cluster.local"
WEB = f"web.{STUB}"
BOTH, NEAREST = {"10.1.0.1", "10.2.0.1"}, {"10.1.0.1"}
OBJECTS = [
    namespace(SHOP),
    namespace(OTHER),
    node("bypass-a", {ZONE: "a"}),
    node("bypass-b", {ZONE: "b"}),
    pod("client", [CLIENT], "bypass-a", where=OTHER),
    service("web", where=SHOP, keys=ZONE),
    endpoint_slice("web", "a", [endpoint("10.1.0.1", nodeName="bypass-a"), endpoint("10.2.0.1", nodeName="bypass-b")],
                   where=SHOP),
    external("alias", WEB, where=OTHER),
]  # fmt: skip
EXTERNAL = {f"{OTHER}/alias": WEB}


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run topodns on a cluster with a Service that insists on nearness."""
    control_plane.api.create(*OBJECTS)
    flags = {"trusted-forwarder": ["127.0.0.0/8"], "upstream": "off"}
    with serving_live(tmp_path_factory.mktemp("topodns"), control_plane.kubeconfig, flags=flags) as server:
        yield server
    control_plane.api.delete(*OBJECTS[4:], *OBJECTS[:4])


class Asked(NamedTuple):
    """A CoreDNS with a stub block for topodns: what it answers, and what is found in its Corefile."""

    ask: Callable[[str], set[str]]
    codes: set[str]


def codes(server: Server, block: str, others: str) -> set[str]:
    """Return what is found in a Corefile with a block of all names, and others."""
    corefile = read(f".:53 {{\n{block}\n}}\n{others}", forwarder=COREDNS, to=[where(server)], external_names=EXTERNAL)
    return {finding.code for finding in check(corefile)}


@pytest.fixture
def coredns(server: Server, control_plane: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., Asked]]:
    """Return a function that starts CoreDNS with these lines in the block of all names."""
    with ExitStack() as stack:

        def start(*lines: str, zones: tuple[str, ...] = (STUB,), others: str = "", hosts: str = "") -> Asked:
            stub = stub_block(COREDNS, [where(server)], zones) + others.replace("TOPODNS", str(where(server)))
            kubernetes = kubernetes_block(control_plane.kubeconfig, "pods verified", zones=("cluster.local",))
            block = "\n".join((*lines, kubernetes, hosts))
            running = stack.enter_context(running_coredns(tmp_path, block, others=stub))

            def ask(name: str) -> set[str]:
                rtype = "PTR" if name.endswith(".arpa.") else "A"
                query = dns.message.make_query(name, rtype)
                reply = dns.query.udp(query, CLIENT, port=running.port, source=CLIENT, timeout=PATIENCE)
                found = {
                    row.to_text() for rrset in reply.answer if rrset.rdtype == query.question[0].rdtype for row in rrset
                }
                return found or {dns.rcode.to_text(reply.rcode())}

            return Asked(ask, codes(server, block, stub))

        yield start


def test_autopath_answers_from_its_own_block(coredns: Callable[..., Asked]) -> None:
    """The first name that a pod of another namespace asks for ``web.bypassed``; the stub zone itself is right."""
    found = coredns("autopath @kubernetes")
    assert found.ask(WEB) == NEAREST
    assert found.ask(f"web.{SHOP}.{OTHER}.svc.cluster.local") == BOTH
    assert found.codes == {"AutopathBypassesStub", "ExternalNameBypassesStub"}


def test_with_all_namespaces_autopath_does_no_harm(coredns: Callable[..., Asked]) -> None:
    """The pod's own resolver then goes on with the next name of its search path."""
    found = coredns("autopath @kubernetes", zones=("svc.cluster.local",))
    assert found.ask(f"web.{SHOP}.{OTHER}.svc.cluster.local") == {"NXDOMAIN"}
    assert found.ask(WEB) == NEAREST
    assert found.ask(f"alias.{OTHER}.svc.cluster.local") == NEAREST
    assert found.codes == set()


# A rule of CoreDNS's block of all names, which it has chosen before, a name that is asked, and whether that is then
# answered there with the endpoints of all zones.
REWRITES = [
    (f"rewrite name exact.example {WEB}", "exact.example", True),
    (f"rewrite name suffix .suffix.example .{STUB} answer auto", "web.suffix.example", True),
    ("rewrite name suffix .all.example .svc.cluster.local answer auto", f"web.{SHOP}.all.example", True),
    (f"rewrite name prefix web.prefix. web.{SHOP}. answer auto", "web.prefix.svc.cluster.local", True),
    (f"rewrite name substring .a-part. .{SHOP}. answer auto", "web.a-part.svc.cluster.local", True),
    (rf"rewrite name regex (.*)\.regex\.example {{1}}.{STUB} answer auto", "web.regex.example", True),
    (r"rewrite name regex (.*)\.(.*)\.groups\.example {1}.{2}.svc.cluster.local answer auto",
     f"web.{SHOP}.groups.example", True),
    (f"rewrite name suffix .harmless.example .{OTHER}.svc.cluster.local answer auto", "web.harmless.example", False),
    (f"rewrite name suffix .{STUB} .{OTHER}.svc.cluster.local answer auto", WEB, False),
    (f"rewrite name exact b.{STUB} {WEB}", f"b.{STUB}", False),
    (rf"rewrite name regex (.*)\.{SHOP}\.svc\.cluster\.local {{1}}.{STUB}", f"c.{STUB}", False),
    (f"rewrite continue name suffix .goes-on.example .{STUB} answer auto", "web.goes-on.example", True),  # the last one
]  # fmt: skip


def test_a_rewritten_name_is_answered_in_its_own_block(coredns: Callable[..., Asked], server: Server) -> None:
    """If a rule leads into the stub zone; one that does not is no finding, and does no harm."""
    ask = coredns(*(rule for rule, _, _ in REWRITES)).ask
    for rule, name, bypasses in REWRITES:
        assert (ask(name) == BOTH) == bypasses, rule
        assert ("RewriteBypassesStub" in codes(server, rule, stub_block(COREDNS, [where(server)], (STUB,)))) == bypasses
    assert ask(WEB) == NEAREST


def test_a_rewritten_name_in_a_block_of_its_own_is_right(coredns: Callable[..., Asked]) -> None:
    """As the finding says: the rule, then the one that names the client."""
    own = (
        f"example.com:53 {{\nrewrite continue name suffix .example.com .{STUB} answer auto\n"
        "rewrite edns0 subnet set 32 128 revert\nforward . TOPODNS\n}\n"
    )
    found = coredns(others=own)
    assert found.ask("web.example.com") == NEAREST
    assert found.codes == {"ExternalNameBypassesStub"}


def test_an_external_name_is_answered_where_it_is_asked(coredns: Callable[..., Asked]) -> None:
    """The plugin kubernetes follows it within its own zones; if its namespace is forwarded, too, topodns does."""
    found = coredns()
    assert found.ask(f"alias.{OTHER}.svc.cluster.local") == BOTH
    assert found.codes == {"ExternalNameBypassesStub"}


def test_an_external_name_that_is_forwarded_too_is_right(coredns: Callable[..., Asked]) -> None:
    """Its namespace beside that of its target is enough."""
    found = coredns(zones=(STUB, f"{OTHER}.svc.cluster.local"))
    assert found.ask(f"alias.{OTHER}.svc.cluster.local") == NEAREST
    assert found.codes == set()


HOSTS = "hosts {\n198.51.100.9 outside.example\nfallthrough\n}"


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "networks"])
def test_addresses_outside_the_cluster_keep_their_names(coredns: Callable[..., Asked], whole: bool) -> None:
    """If the networks' own reverse zones are forwarded, and not all of in-addr.arpa."""
    zones = ARPA if whole else (*zones_named("10.96.0.0/12"), *zones_named("fd00:96::/112"))
    found = coredns(zones=(STUB, *zones), hosts=HOSTS)
    names = {text: found.ask(dns.reversename.from_address(text).to_text()) for text in ("198.51.100.9", "10.96.0.1")}
    assert names["10.96.0.1"] == {"kubernetes.default.svc.cluster.local."}
    assert names["198.51.100.9"] == ({"NXDOMAIN"} if whole else {"outside.example."})
    assert ("ReverseZoneForwardedWhole" in found.codes) == whole
