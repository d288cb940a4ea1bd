# SPDX-License-Identifier: Apache-2.0

"""Prometheus understands the alerts, the dashboard and the metrics, and shows what they are meant to show."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnsserver.metrics import server as server_metrics
from docs.pages.make_pages import RULES, rules
from tests.kit.go_programs import promtool
from tests.kit.monitoring import ALERTS, PANELS, queries
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server


def alert_tests() -> list[dict[str, Any]]:
    """Return the tests of alerts.yaml, which say the summaries, with the annotations that never vary."""
    tests: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["tests"]
    fixed = {
        rule["alert"]: {name: rule["annotations"][name] for name in ("description", "runbook_url")} for rule in rules()
    }
    for case in (case for test in tests for case in test["alert_rule_test"]):
        for alert in case["exp_alerts"]:
            alert["exp_annotations"] = {**alert["exp_annotations"], **fixed[case["alertname"]]}
    return tests


def test_prometheus_understands_the_rules(tmp_path: Path) -> None:
    """Each alert goes off when it should, and not when it should not; each query of the dashboard can be read."""
    spec = yaml.safe_load(RULES.read_text())["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    tests = {**yaml.safe_load(ALERTS.read_text()), "tests": alert_tests()}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(tests))
    asked = [re.sub(r"\$__\w+", "5m", query) for _, query in queries()]
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(asked)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    for command in (["check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", "queries.yaml"],
                    ["test", "rules", "alerts.yaml"]):  # fmt: skip
        done = subprocess.run([promtool(), *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


NEAR_AND_FAR = {'client_zone="a",answer="other"': "0+60x20", 'client_zone="b",answer="same"': "0+60x20"}
SHOWN = [
    ("Same zone", NEAR_AND_FAR, {"{}": 0.5}),
    ("Same zone, by the client's zone", NEAR_AND_FAR, {'{client_zone="a"}': 0, '{client_zone="b"}': 1}),
    ("Same zone", {'client_zone="a",answer="same"': "0x20"}, {}),
]


@pytest.mark.parametrize(("title", "counted", "expected"), SHOWN, ids=["some near", "by zone", "nobody asks"])
def test_what_a_panel_shows(title: str, counted: dict[str, str], expected: dict[str, float], tmp_path: Path) -> None:
    """A zone from which nothing is near stands at 0, and a server that nobody asks nowhere."""
    (query,) = (target["expr"] for panel in PANELS if panel["title"] == title for target in panel["targets"])
    series = [
        {"series": f"topodns_answer_zones_total{{{labels}}}", "values": values} for labels, values in counted.items()
    ]
    asked = {
        "expr": re.sub(r"\$__\w+", "5m", query).replace("$namespace", ".*"),
        "eval_time": "15m",
        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [asked]}
    (tmp_path / "panel.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool(), "test", "rules", "panel.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_can_read_what_is_served(serve: Callable[..., Server], tmp_path: Path) -> None:
    """promtool finds nothing to complain of in /metrics."""
    snapshot = tmp_path / "cluster.yaml"
    snapshot.write_text((ROOT / "examples" / "cluster.yaml").read_text())
    server = serve(snapshot, flags={"http": "127.0.0.1:0"})
    text = server.get("/metrics")[1]
    done = subprocess.run([promtool(), "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert f"# TYPE {server_metrics.ANSWER_ZONES.shown_name} counter" in text
