# SPDX-License-Identifier: Apache-2.0

"""Host names of load balancers, resolved by a real name server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import pytest

from tests.kit.api_objects import endpoint, endpoint_slice, listed, namespace, node, service
from tests.kit.forwarders import UNBOUND, started
from tests.kit.this_machine import free_port
from tests.kit.topodns_process import serving
from tests.kit.waiting import until

NAME = "lb.example.com"


@pytest.fixture
def unbound(tmp_path: Path) -> Iterator[int]:
    """Return the port of an unbound that has the host name."""
    port = free_port()
    configuration = f"""\
server:
    interface: 127.0.0.1@{port}
    do-daemonize: no
    username: ""
    chroot: ""
    pidfile: ""
    use-syslog: no
    local-zone: "example.com." static
    local-data: "{NAME}. 40 IN A 203.0.113.9"
"""
    query = dns.message.make_query(NAME, "A")

    def answers() -> bool:
        try:
            return bool(dns.query.udp(query, "127.0.0.1", port=port, timeout=1).answer)
        except (dns.exception.DNSException, OSError):
            return False

    with started(UNBOUND, tmp_path, configuration, answers):
        yield port


def test_a_real_name_server(unbound: int, tmp_path: Path) -> None:
    """The first answer has the address, with its TTL: the server is ready once the name is resolved."""
    web = service("web", cluster_ips=("10.96.0.1",), annotations={"topodns.io/federated": "true"})
    web["status"] = {"loadBalancer": {"ingress": [{"hostname": NAME}]}}
    slices = endpoint_slice("web", 1, [endpoint("10.1.0.1", nodeName="n1")])
    west = tmp_path / "west.json"
    west.write_text(listed([namespace("shop"), node("n1"), web, slices]))
    flags = {"federation": "fed.example", "cluster": f"west={west}", "upstream": f"127.0.0.1:{unbound}"}
    with serving(tmp_path, json.loads(listed([namespace("shop")])), flags=flags) as server:
        query = dns.message.make_query("web.shop.fed.example", "A")
        (rrset,) = server.ask(query).answer
        assert ([str(row) for row in rrset], 30 < rrset.ttl <= 40) == (["203.0.113.9"], True)
        until(lambda: server.ask(query).answer[0].ttl < 40, "the TTL runs down")
