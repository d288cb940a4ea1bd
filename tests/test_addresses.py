"""Where an address is: reading addresses and blocks, trust in forwarders, and what is wrong in a dump."""

from __future__ import annotations

from typing import Any

import pytest

from locator.addresses import address_text, network_text, parse_address, parse_network
from tests.support import snapshot_of


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:0a00:0001", "10.0.0.1"),
        ("::10.0.0.1", "::a00:1"),
        ("2001:DB8::0", "2001:db8::"),
        ("::1", "::1"),
    ],
)
def test_address(text: str, plain: str) -> None:
    """IPv4-mapped IPv6 is IPv4; the IPv4-compatible form is not."""
    assert address_text(parse_address(text)) == plain


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "010.0.0.1", "10.0.0.1/32", "web-0", " 10.0.0.1"])
def test_no_address(text: str) -> None:
    """What is no address is named in a ValueError."""
    with pytest.raises(ValueError, match="is no IP address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.1", "10.0.0.1/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_block(text: str, plain: str) -> None:
    """A block of IPv4-mapped addresses is a block of IPv4."""
    assert network_text(parse_network(text)) == plain


@pytest.mark.parametrize(
    ("text", "words"), [("10.0.0.1/8", "host bits"), ("10.0.0.0/33", "no CIDR"), ("x/8", "no CIDR")]
)
def test_no_block(text: str, words: str) -> None:
    """Host bits are a slip of the pen, or a misunderstanding; neither is guessed at."""
    with pytest.raises(ValueError, match=words):
        parse_network(text)


def node(name: str, **more: Any) -> dict[str, Any]:
    labels = {"topology.kubernetes.io/zone": more.pop("zone", "a")}
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in more.pop("addresses", ())]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": more,
            "status": status}  # fmt: skip


def pod(name: str, address: str, node: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": node, **spec}, "status": {"phase": "Running", "podIP": address}}  # fmt: skip


def endpoints(service: str, *rows: dict[str, Any]) -> dict[str, Any]:
    namespace, name = service.split("/")
    labels = {"kubernetes.io/service-name": name}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": [*rows],
            "metadata": {"name": f"{name}-1", "namespace": namespace, "labels": labels}}  # fmt: skip


def located(cluster: list[dict[str, Any]], client: str, flags: dict[str, Any] | None = None) -> tuple[str, str | None]:
    """Return by what a client is located, and its zone."""
    place = snapshot_of(cluster, flags).addresses.locate_network(parse_network(client))
    return place.located_by, place.location.value("topology.kubernetes.io/zone")


def test_a_node_of_one_family_leaves_the_other_alone() -> None:
    """The same bits in the other family are another address."""
    cluster = [node("a1", podCIDR="10.0.0.0/8")]
    assert located(cluster, "10.1.1.1") == ("podcidr", "a")
    assert located(cluster, "a00::1") == ("unknown", None)


def test_a_whole_family_as_subnet() -> None:
    """/0 holds everything of its family."""
    flags = {"subnet": ["0.0.0.0/0=topology.kubernetes.io/zone=x"]}
    assert located([node("a1")], "203.0.113.9", flags) == ("subnet", "x")
    assert located([node("a1")], "2001:db8::1", flags) == ("unknown", None)


@pytest.mark.parametrize(
    ("sources", "expected"),
    [("pods,nodes", ("pod", "a")), ("pods", ("pod", None)), ("nodes", ("podcidr", "b"))],
)
def test_client_source(sources: str, expected: tuple[str, str | None]) -> None:
    """What is not watched says nothing: neither where a pod is, nor what a node's labels are."""
    cluster = [node("a1"), node("b1", zone="b", podCIDR="10.0.0.0/24"), pod("p", "10.0.0.1", "a1")]
    assert located(cluster, "10.0.0.1", {"client-source": sources}) == expected


def kube_dns(namespace: str = "kube-system", name: str = "kube-dns") -> list[dict[str, Any]]:
    rows = (
        {"addresses": ["10.0.0.53"], "nodeName": "a1"},
        {"addresses": ["10.0.0.54"], "conditions": {"ready": False}},
    )
    return [node("a1", podCIDR="10.0.0.0/24"), endpoints(f"{namespace}/{name}", *rows)]


@pytest.mark.parametrize(
    ("cluster", "flags", "trusted"),
    [
        (kube_dns(), {}, True),
        (kube_dns("dns", "cluster-dns"), {}, False),
        (kube_dns("dns", "cluster-dns"), {"forwarder-service": ["kube-system/kube-dns", "dns/cluster-dns"]}, True),
        (kube_dns(), {"forwarder-service": ["dns/cluster-dns"]}, False),
        (kube_dns(), {"forwarder-service": "off"}, False),
        (kube_dns(), {"forwarder-service": False, "trusted-forwarder": ["10.0.0.0/24"]}, True),
    ],
    ids=["default", "elsewhere", "two-services", "another-service", "off", "off-but-configured"],
)
def test_trust(cluster: list[dict[str, Any]], flags: dict[str, Any], trusted: bool) -> None:
    """The endpoints of the cluster's own DNS are trusted, ready or not, unless configured otherwise."""
    book = snapshot_of(cluster, flags).addresses
    for address in ("10.0.0.53", "10.0.0.54"):
        assert book.source(parse_address(address)).forwarder == trusted
    assert book.source(parse_address("10.0.1.53")).forwarder is False


def test_a_forwarder_as_the_final_client() -> None:
    """What a forwarder asks for itself is asked from its own place, once somebody names it as the client."""
    assert located(kube_dns(), "10.0.0.53") == ("endpoint", "a")
    assert located(kube_dns(), "10.0.0.54") == ("podcidr", "a")


FINDINGS = [
    ("cidr-that-lies",
     [node("a1", podCIDR="10.0.1.0/24"), node("b1"),
      endpoints("shop/w", {"addresses": ["10.0.1.9"], "nodeName": "b1"})],
     [("a1", ("10.0.1.0/24", "10.0.1.9", "b1"))]),
    ("cidr-around-one-that-lies",
     [node("a1", podCIDR="10.0.0.0/24"), node("b1", podCIDR="10.0.0.0/16"), node("c1"),
      endpoints("shop/w", {"addresses": ["10.0.0.5"], "nodeName": "c1"})],
     [("a1", ("10.0.0.0/24", "10.0.0.5", "c1")), ("b1", ("10.0.0.0/16", "10.0.0.5", "c1"))]),
    ("cidr-within-another",
     [node("a1", podCIDR="10.0.0.0/24"), node("b1", podCIDR="10.0.0.0/16"),
      endpoints("shop/w", {"addresses": ["10.0.0.5"], "nodeName": "a1"}),
      endpoints("shop/v", {"addresses": ["10.0.9.5"], "nodeName": "b1"})],
     []),
    ("cidr-that-is-shared", [node("a1", podCIDR="10.0.1.0/24"), node("b1", podCIDR="10.0.1.0/24")],
     [("a1", ("10.0.1.0/24", "b1")), ("b1", ("10.0.1.0/24", "a1"))]),
    ("shared-cidr-that-one-of-them-proves",
     [node("a1", podCIDR="10.0.1.0/24"), node("b1", podCIDR="10.0.1.0/24"),
      endpoints("shop/w", {"addresses": ["10.0.1.9"], "nodeName": "b1"})],
     [("a1", ("10.0.1.0/24",)), ("b1", ("10.0.1.0/24",))]),
    ("honest", [node("a1", podCIDR="10.0.1.0/24"), endpoints("shop/w", {"addresses": ["10.0.1.9"], "nodeName": "a1"})],
     []),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "expected"), [row[1:] for row in FINDINGS], ids=[row[0] for row in FINDINGS])
def test_findings(cluster: list[dict[str, Any]], expected: list[tuple[str, tuple[str, ...]]]) -> None:
    """A pod CIDR that cannot be believed is reported on its node, with the witness."""
    found = [each for each in snapshot_of(cluster).findings if each.kind == "Node"]
    assert [each.name for each in found] == [name for name, _ in expected]
    for each, (_, words) in zip(found, expected, strict=True):
        assert each.field.startswith("spec.podCIDR") and not [word for word in words if word not in each.message]


def test_a_block_agrees_with_the_subnets_within_it() -> None:
    """A client subnet has a location only as far as all of it agrees, the longer subnets in it included."""
    flags = {"subnet": ["10.0.0.0/8=region=north,zone=a", "10.0.1.0/24=region=north,zone=b"]}
    book = snapshot_of([node("a1")], flags).addresses
    assert book.locate_network(parse_network("10.0.0.0/16")).location.labels == {"region": "north"}
    assert book.locate_network(parse_network("10.0.1.0/25")).location.labels == {"region": "north", "zone": "b"}
    assert book.locate_network(parse_network("10.2.0.0/16")).location.labels == {"region": "north", "zone": "a"}
