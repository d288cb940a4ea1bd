# SPDX-License-Identifier: Apache-2.0

"""A table of a page that says what the code does: what ``explain`` prints for each cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.api_objects import TOPOLOGY_KEYS, ZONE, endpoint, endpoint_slice, item, namespace, node, pod, service
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import cluster_text
from tests.kit.page_commands import table
from tests.kit.this_machine import ROOT

TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"


NODES = [node("node-a", {ZONE: "a"}), node("node-b", {ZONE: "b"}), pod("client-a", ["10.0.0.1"], "node-a")]
POLICY = item(
    "ServicePolicy",
    "near",
    "shop",
    spec={"serviceSelector": {"matchLabels": {"app": "cache"}}, "topology": {"key": ZONE, "mode": "preferred"}},
)
NEAR, FAR = endpoint("10.0.0.2", nodeName="node-a"), endpoint("10.0.0.3", nodeName="node-b")
CAUSES = {
    "`constraint  none`": ([service("cache", annotations={"topodns.io/topology-key": ZONE})], NEAR, "pod/client-a"),
    "`invalid, and so ignored`": ([service("cache", keys="*,*")], NEAR, "pod/client-a"),
    "`(by policy)`, and you have set an annotation": (
        [service("cache", keys="*", labels={"app": "cache"}), POLICY],
        NEAR,
        "pod/client-a",
    ),
    "`outcome     all`": ([service("cache", keys=f"{ZONE},*")], FAR, "pod/client-a"),
    "`located by unknown`": ([service("cache", keys=f"{ZONE},*")], NEAR, "203.0.113.1"),
    "`outcome     nearest`": ([service("cache", annotations={TOPOLOGY_KEYS: f"{ZONE},*"})], NEAR, "pod/client-a"),
}


@pytest.mark.parametrize("line", CAUSES)
def test_explain_prints_the_line_of_each_cause(topodns: Run, tmp_path: Path, line: str) -> None:
    """The table knows each cause, and the line is there."""
    assert line in table(TROUBLESHOOTING, "All endpoints, although a constraint is set")
    objects, near, client = CAUSES[line]
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(cluster_text([namespace("shop"), *NODES, *objects, endpoint_slice("cache", 0, [near, FAR])]))
    ran = topodns("explain", "svc/cache", "-n", "shop", "--client", client, "--snapshot", str(cluster))
    (text,) = re.findall(r"`([^`]*)`", line)
    assert text in ran.out
