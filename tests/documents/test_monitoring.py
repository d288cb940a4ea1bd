# SPDX-License-Identifier: Apache-2.0

"""The alerts and the dashboard: they ask for metrics that exist, and Prometheus understands them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnsserver.metrics import server as server_metrics
from dnsserver.metrics.tables import TABLES
from docs.pages.make_pages import RULES, names_in, rules, series_of
from docs.pages.site_pages import pages
from tests.kit import kustomize
from tests.kit.go_programs import promtool
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server

ALERTS = Path(__file__).parent / "alerts.yaml"
RUNBOOK = ROOT / "docs" / "runbook.md"
OF_TARGETS = {"namespace", "pod", "instance", "job"}  # labels that Prometheus adds
ADDED = OF_TARGETS | {"le", "service_namespace", "service_name"}  # the last two by --metrics-per-service

OTHERS = {"topodns_dns_requests"}  # what prometheus-adapter makes of a metric

DASHBOARD = json.loads((ROOT / "manifests/chart/files/monitoring/dashboard.json").read_text())
PANELS = DASHBOARD["panels"]
FAMILIES = {name: family for table in TABLES.values() for family in table for name in series_of(family)}


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of pages and of the dashboard, after the name of the page or the title of the panel."""
    for page in pages():
        found = re.findall(r"^ *```promql\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
        yield from ((page.name, query) for query in found)
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


EXPRESSIONS = [*((rule["alert"], rule["expr"]) for rule in rules()), *queries()]


@pytest.mark.parametrize("expression", [row[1] for row in EXPRESSIONS], ids=[row[0] for row in EXPRESSIONS])
def test_metrics_that_are_asked_for_exist(expression: str) -> None:
    """Each metric, its labels, and the values with which they are compared."""
    names = names_in(expression)
    assert names <= FAMILIES.keys() and (names or "process_" in expression)
    labels = {label: values for name in names for label, values in FAMILIES[name].labels.items()}
    for label, operator, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', expression):
        assert label in labels or label in ADDED
        if labels.get(label):
            assert set(value.split("|") if operator == "=~" else [value]) <= set(labels[label])
    for by in re.findall(r"(?:by|without|on) \(([^)]*)\)", expression):
        assert set(by.replace(" ", "").split(",")) <= labels.keys() | ADDED


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_that_a_page_names_exist(page: Path) -> None:
    """By the name that queries use, or the name without a histogram's suffix."""
    known = {*FAMILIES, *(family.name for family in FAMILIES.values())}
    texts = re.findall(r"`(topodns_[a-z_]+)[`{]", page.read_text())
    assert {*texts} - known - OTHERS == set()


def test_each_alert_has_a_section_and_a_case() -> None:
    """The runbook has a section for each alert, to which the alert leads, and alerts.yaml sets each off."""
    names = [rule["alert"] for rule in rules()]
    assert re.findall(r"^## (.*)$", RUNBOOK.read_text(), re.MULTILINE) == names
    links = [rule["annotations"]["runbook_url"] for rule in rules()]
    (page,) = {link.partition("#")[0] for link in links}
    assert re.fullmatch(r"https://\S+/docs/runbook\.md", page)
    assert links == [f"{page}#{name.lower()}" for name in names]
    cases = [case for test in alert_tests() for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {*names}


def test_each_alert_has_what_tools_show() -> None:
    """A summary with what was found, and a description that is the same whatever was found."""
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert "{{" not in rule["annotations"]["description"]


def test_alerts_lead_to_a_runbook_of_ones_own() -> None:
    """By the lines of the page, in an overlay; each alert to its section."""
    (lines,) = re.findall(r"```yaml\n(.*?)```", RUNBOOK.read_text(), re.DOTALL)
    own = yaml.safe_load(lines)
    built = yaml.safe_load_all(kustomize.build(kustomize.kustomization("base", ("monitoring",), **own)))
    (rule,) = (made for made in built if made["kind"] == "PrometheusRule")
    links = [one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert links == [f"{own['replacements'][0]['sourceValue']}#{one['alert'].lower()}" for one in rules()]


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


def test_variables_of_the_dashboard_are_asked_for_again() -> None:
    """When the time range changes: an installation that came later can be chosen."""
    asked = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert [(variable["name"], variable["refresh"]) for variable in asked] == [("namespace", 2)]
    assert {name for variable in asked for name in names_in(variable["query"])} <= FAMILIES.keys()


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
