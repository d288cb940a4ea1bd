"""Programs that others wrote, at full speed: dnsperf while the snapshot changes, unbound beside us."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support import PATIENCE, Server, needs_tool

ROOT = Path(__file__).parent.parent
RELOADS = 3

CLUSTER = """\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
endpoints:
- {addresses: [10.0.0.1]}
- {addresses: [10.0.0.2]}
"""


def test_dnsperf_loses_nothing_while_snapshots_are_swapped(serve: Callable[..., Server], tmp_path: Path) -> None:
    """A good new version is swapped in without a lost query, whatever the load."""
    dnsperf = needs_tool("dnsperf")
    server = serve(CLUSTER)
    (tmp_path / "queries").write_text("web.shop.svc.cluster.local A\nweb.shop.svc.cluster.local AAAA\n")
    load = subprocess.Popen(
        [dnsperf, "-s", server.host, "-p", str(server.port), "-d", str(tmp_path / "queries"), "-n", "40000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(RELOADS):
        seen = len(server.lines)
        server.send(signal.SIGHUP)
        server.wait_for("snapshot read again", after=seen)
    printed, _ = load.communicate(timeout=3 * PATIENCE)
    assert re.search(r"Queries sent: +80000\b", printed), printed
    assert re.search(r"Queries lost: +0 ", printed), printed
    assert re.search(r"Response codes: +NOERROR 80000 \(100.00%\)\n", printed), printed


def test_benchmark_measures_every_server_under_every_load() -> None:
    """``make bench`` looks at replies as it goes: a wrong one from anybody, unbound included, would end it."""
    needs_tool("unbound")
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "--only", "answering", "--seconds", "0.2", "--warmup", "0.1", "--rounds", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    rows = re.findall(r"^\| (unbound|topodns|topodns without memory) +\| \(([ab])\)", ran.stdout, re.MULTILINE)
    assert len(rows) == len(set(rows)) == 6, ran.stdout
