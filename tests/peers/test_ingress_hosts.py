# SPDX-License-Identifier: Apache-2.0

"""Host names of load balancers, resolved by a real name server."""

from __future__ import annotations

import json
from pathlib import Path

import dns.message

from tests.kit.api_objects import endpoint, endpoint_slice, listed, namespace, node, service
from tests.kit.coredns import running_coredns
from tests.kit.topodns_process import serving
from tests.kit.waiting import until

NAME = "lb.example.com"


def test_a_real_name_server(tmp_path: Path) -> None:
    """The first answer has the address, with its TTL: the server is ready once the name is resolved."""
    web = service("web", cluster_ips=("10.96.0.1",), annotations={"topodns.io/federated": "true"})
    web["status"] = {"loadBalancer": {"ingress": [{"hostname": NAME}]}}
    slices = endpoint_slice("web", 1, [endpoint("10.1.0.1", nodeName="n1")])
    west = tmp_path / "west.json"
    west.write_text(listed([namespace("shop"), node("n1"), web, slices]))
    with running_coredns(tmp_path, f"hosts {{\nttl 40\n203.0.113.9 {NAME}\n}}") as upstream:
        flags = {"federation": "fed.example", "cluster": f"west={west}", "upstream": f"127.0.0.1:{upstream.port}"}
        with serving(tmp_path, json.loads(listed([namespace("shop")])), flags=flags) as server:
            query = dns.message.make_query("web.shop.fed.example", "A")
            (rrset,) = server.ask(query).answer
            assert ([str(row) for row in rrset], 30 < rrset.ttl <= 40) == (["203.0.113.9"], True)
            until(lambda: server.ask(query).answer[0].ttl < 40, "the TTL runs down")
