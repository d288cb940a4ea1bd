# SPDX-License-Identifier: Apache-2.0

"""Names of endpoints, and those that are made of their addresses."""

from __future__ import annotations

import struct

import dns.edns
import dns.reversename
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.names import dashed_label, pod_address
from locator.ip import address_text, parse_address, plain_address
from locator.model import is_dns_label
from tests.kit.api_objects import endpoint, endpoint_slice, listed, namespace, node, pod, service
from tests.kit.in_memory import ask, responder_of
from tests.kit.replies import data

WEB = "web.shop.svc.cluster.local"
TWO_PODS = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {topodns.io/topology-keys: "topology.kubernetes.io/zone,*"}}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
ports: [{name: a, port: 80}]
endpoints: [{addresses: [10.0.0.1], hostname: web-0, targetRef: {kind: Pod, name: web-0}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-2, namespace: shop, labels: {kubernetes.io/service-name: web}}
ports: [{name: b, port: 81}]
endpoints: [{addresses: [10.0.0.1], hostname: web-1, targetRef: {kind: Pod, name: web-1}}]
"""


def test_pods_that_share_an_address_keep_their_names() -> None:
    """Two host-network pods of one node have two names and one address, which an answer holds once."""
    responder = responder_of(TWO_PODS)
    assert data(ask(responder, WEB, "A").answer) == ["A 10.0.0.1"]
    for number in (0, 1):
        assert data(ask(responder, f"web-{number}.{WEB}", "A").answer) == ["A 10.0.0.1"]
        expected = [f"SRV 0 100 {80 + number} web-{number}.{WEB}."]
        assert data(ask(responder, f"_{'ab'[number]}._tcp.{WEB}", "SRV").answer) == expected


@pytest.mark.parametrize(("keys", "scope"), [("topology.kubernetes.io/zone,*", 0), ("topology.kubernetes.io/zone", 32)])
def test_records_that_nobody_has_do_not_depend_on_the_client(keys: str, scope: int) -> None:
    """A soft Service without IPv6 has no AAAA for any client; for a hard one it may depend on the client."""
    responder = responder_of(TWO_PODS.replace("topology.kubernetes.io/zone,*", keys))
    subnet = dns.edns.ECSOption("192.0.2.1", 32)
    (echo,) = (
        option for option in ask(responder, WEB, "AAAA", options=[subnet]).options if option.otype == subnet.otype
    )
    assert echo.scopelen == scope


groups = st.sampled_from([0, 0, 0, 1, 0xAB, 0xFFFF, 0x2001])
six = st.lists(groups, min_size=8, max_size=8).map(lambda numbers: struct.pack("!8H", *numbers))
packed = st.one_of(six, st.binary(min_size=16, max_size=16), st.binary(min_size=4, max_size=4)).filter(
    lambda octets: plain_address(octets) == octets
)


@settings(max_examples=50)
@given(st.lists(packed, min_size=2, max_size=2, unique=True))
def test_an_address_and_its_label_mean_each_other(addresses: list[bytes]) -> None:
    """The label is one of a host name (RFC 1123, 2.1), leads back to the address, and is that of no other."""
    labels = [dashed_label(address) for address in addresses]
    assert len(set(labels)) == len(labels)
    for address, label in zip(addresses, labels, strict=True):
        assert is_dns_label(label)
        assert pod_address(label) == address


@settings(max_examples=25)
@given(st.lists(six.filter(lambda octets: plain_address(octets) == octets), min_size=1, max_size=4, unique=True))
def test_the_names_of_endpoints_lead_back(addresses: list[bytes]) -> None:
    """From SRV to the address, and from the address to the same name: of a Service, federated, and of pods."""
    texts = [address_text(address) for address in addresses]
    items = [
        namespace("shop"),
        node("a1", addresses=["127.1.0.1"]),
        service("web", annotations={"topodns.io/federated": "true"}),
        endpoint_slice("web", 1, [endpoint(text, nodeName="a1") for text in texts], family="IPv6"),
        *(pod(f"web-{number}", [text], "a1") for number, text in enumerate(texts)),
    ]
    responder = responder_of(listed(items), {"federation": ["fed.example"], "pods": "verified"})
    for name in ("web.shop.svc.cluster.local", "web.shop.fed.example"):
        targets = {row.split()[-1].rstrip(".") for row in data(ask(responder, name, "SRV").answer)}
        found = {target: data(ask(responder, target, "AAAA").answer) for target in targets}
        assert sorted(parse_address(row.split()[-1]) for (row,) in found.values()) == sorted(addresses)
        for target, rows in found.items():
            assert is_dns_label(target.partition(".")[0])
            if name.endswith("cluster.local"):
                reverse = dns.reversename.from_address(rows[0].split()[-1])
                assert data(ask(responder, reverse, "PTR").answer) == [f"PTR {target}."]
            of_pod = f"{target.partition('.')[0]}.shop.pod.cluster.local"
            assert data(ask(responder, of_pod, "AAAA").answer) == rows
