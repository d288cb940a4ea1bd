# SPDX-License-Identifier: Apache-2.0

"""``make demo``: in its day happens what it promises, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from dnsserver.metrics.families import METRICS_SECONDS
from examples.demo.__main__ import PORTS
from examples.demo.day import DAY, STRANGER, UNNAMING
from examples.demo.server import Server
from examples.demo.stage import Stage, staged
from tests.kit.api_client import Answered
from tests.kit.console_pages import HTML, Page
from tests.kit.programs import environment
from tests.kit.terminal import Terminal
from tests.kit.this_machine import ROOT
from tests.kit.waiting import PATIENCE, until

COMMAND = (sys.executable, "-m", "examples.demo", "--listen", "127.0.0.1:0")
IN_ZONE_B, IN_ZONE_C = "10.244.6.10", "10.244.11.10"

Samples = Counter[tuple[str, ...]]


def samples(server: Server) -> Samples:
    """Return the value of each sample, by its name and its label values in the order of the labels' names.

    They are new ones, for which this waits: the server keeps metrics for a second.
    """
    time.sleep(METRICS_SECONDS)
    return Counter(
        {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(server.get("/metrics"))
            for sample in family.samples
        }
    )


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged() as running:
        yield running


@pytest.fixture(scope="module")
def counted(stage: Stage) -> Mapping[str, Samples]:
    """What the server counted in each moment of a day that is played without a pause."""
    by_moment: dict[str, Samples] = {}
    before = samples(stage.server)
    for moment in DAY:
        stage.play(moment, pace=0.0)
        after = samples(stage.server)
        by_moment[moment.name] = Counter({key: after[key] - before[key] for key in after if after[key] != before[key]})
        before = after
    return by_moment


ANSWERS = "topodns_answer_zones_total"  # answer, client_zone
UNMET, SPILLED = (("topodns_answers_total", outcome) for outcome in ("unmet", "spilled"))
UNNAMED = ("topodns_forwarded_without_client_total", UNNAMING)
IGNORED = ("topodns_client_subnets_ignored_total", STRANGER)


@pytest.mark.parametrize(
    ("sample", "moments"),
    [
        ((ANSWERS, "same", "eu-west-a"), {moment.name for moment in DAY}),
        ((ANSWERS, "some", "eu-west-a"), {moment.name for moment in DAY}),
        ((ANSWERS, "same", "eu-west-b"), {moment.name for moment in DAY} - {"zone b lost"}),
        ((ANSWERS, "other", "eu-west-b"), {"zone b lost"}),
        ((ANSWERS, "unknown", "unknown"), {moment.name for moment in DAY}),
        (SPILLED, {moment.name for moment in DAY} - {"zone b lost"}),  # then four endpoints have more room
        (UNMET, {"report", "zone b lost", "unnamed clients", "stranger"}),
        (UNNAMED, {"unnamed clients"}),
        (IGNORED, {"stranger"}),
        (("topodns_untrusted_forwarders", STRANGER), {"stranger"}),
        (("topodns_dns_responses_total", "NXDOMAIN"), {moment.name for moment in DAY}),
        (("topodns_snapshot_reloads_total", "failure"), set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_happens_when(counted: Mapping[str, Samples], sample: tuple[str, ...], moments: set[str]) -> None:
    """A sample grows in these moments of the day, and in no other."""
    assert {name for name, counts in counted.items() if counts[sample] > 0} == moments


@pytest.mark.parametrize(
    ("moment", "answered"),
    [
        ("noon", {("memcached", IN_ZONE_C): {"10.244.9.7", "10.244.10.7"}}),
        (
            "zone b lost",
            {
                ("memcached", IN_ZONE_B): {"10.244.1.7", "10.244.3.7", "10.244.9.7", "10.244.10.7"},
                ("orders-db", IN_ZONE_B): set(),
            },
        ),
    ],
    ids=["noon", "zone-b-lost"],
)
def test_a_moment_can_be_reached(stage: Stage, moment: str, answered: dict[tuple[str, str], set[str]]) -> None:
    """The server answers from the cluster of that moment, whatever was played before."""
    stage.reach(moment)
    for (service, client), addresses in answered.items():
        decision = stage.server.get_json(f"/api/v1/explain?name={service}.shop&client={client}")
        assert {record["data"] for record in decision["answers"]} == addresses


def test_which_services_to_look_at(stage: Stage) -> None:
    """One is overloaded, and one that is balanced spills clients."""
    stage.reach("night")
    services = {"catalog": "Try max-overload 1.5", "sessions": "clients spilled"}
    rows = {f"shop/{service}" for service in services}
    until(lambda: rows <= {*shown(stage.server, "/").rows}, f"rows of {rows}: a server simulates not all the time")
    for service, text in services.items():
        assert text in shown(stage.server, f"/services/shop/{service}").text


def shown(server: Server, path: str) -> Page:
    response = urllib3.request("GET", server.http + path, headers=HTML, timeout=PATIENCE)
    return Page(Answered(response.status, response.headers, response.data))


def test_ctrl_c_ends_it_quietly(tmp_path: Path) -> None:
    """With status 0, and without a word; the server has ended, too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    env = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    with Terminal((*COMMAND, "--http", "127.0.0.1:0"), env=env, folder=ROOT) as demo:
        host, port = demo.until(r"http://([\d.]+):(\d+)/").groups()
        demo.until(r"02:00  .*\r\n")
        os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does
        assert (demo.rest(), demo.process.returncode) == (b"", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host.decode(), int(port)), PATIENCE)
    assert list(folder.iterdir()) == []


def test_a_port_in_use() -> None:
    """What is in use, and how to take other ports."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        ran = subprocess.run(
            [*COMMAND, "--http", taken], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        )
    message, advice = ran.stderr.splitlines()
    assert f"--http {taken}: tcp: port in use" in message
    assert advice == PORTS
    assert (ran.returncode, ran.stdout) == (1, "")
