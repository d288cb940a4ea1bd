# SPDX-License-Identifier: Apache-2.0

"""The alerts and the dashboard ask for metrics that exist, and each alert leads to its section of the runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dnsserver.metrics.tables import TABLES
from docs.pages.make_pages import names_in, rules, series_of
from docs.pages.site_pages import pages
from tests.kit.monitoring import ALERTS, DASHBOARD, queries
from tests.kit.this_machine import ROOT

RUNBOOK = ROOT / "docs" / "runbook.md"
OF_TARGETS = {"namespace", "pod", "instance", "job"}  # labels that Prometheus adds
ADDED = OF_TARGETS | {"le", "service_namespace", "service_name"}  # the last two by --metrics-per-service

OTHERS = {"topodns_dns_requests"}  # what prometheus-adapter makes of a metric

FAMILIES = {name: family for table in TABLES.values() for family in table for name in series_of(family)}


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
    assert re.findall(r"^## (.*)$", RUNBOOK.read_text(), re.MULTILINE) == ["The first minute", *names]
    links = [rule["annotations"]["runbook_url"] for rule in rules()]
    (page,) = {link.partition("#")[0] for link in links}
    assert re.fullmatch(r"https://\S+/docs/runbook\.md", page)
    assert links == [f"{page}#{name.lower()}" for name in names]
    cases = [case for test in yaml.safe_load(ALERTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {*names}


def test_each_alert_has_what_tools_show() -> None:
    """A summary with what was found, and a description that is the same whatever was found."""
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert "{{" not in rule["annotations"]["description"]


def test_variables_of_the_dashboard_are_asked_for_again() -> None:
    """When the time range changes: an installation that came later can be chosen."""
    asked = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
    assert [(variable["name"], variable["refresh"]) for variable in asked] == [("namespace", 2)]
    assert {name for variable in asked for name in names_in(variable["query"])} <= FAMILIES.keys()
