# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/metrics.md`` from the tables of metrics and the alerts: ``make docs``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from dnsserver.metrics.families import ANY_VALUE, HISTOGRAM, Family
from dnsserver.metrics.tables import TABLES
from tests.kit.this_machine import ROOT

RULES = ROOT / "manifests" / "chart" / "files" / "monitoring" / "prometheusrule.yaml"

ABOUT = {
    "Queries": "`topodns serve` counts these.",
    "The cluster": "`topodns serve` has these.",
    "Watches": "`serve`, `controller` and `webhook` have these, each about what it reads.",
    "The controller": "`topodns controller` has these.",
    "The webhook": "`topodns webhook` has these.",
    "Each process": "`serve`, `controller` and `webhook` have these. They also have `process_*`, as Linux counts: CPU "
    "seconds, memory, open files.",
}

HEAD = """\
# Metrics

`topodns serve`, `controller` and `webhook` serve `/metrics` at `--http`, as Prometheus' text format or OpenMetrics.
They are those of the last second: two requests within a second get the same.

What to look at first:

- **What does topodns save, and what could it save?** `topodns_answer_zones_total`: [What it saves](cost.md)
  has the queries.
- **Is somebody without an answer?** `topodns_answers_total{outcome="unmet"}` counts queries that got no endpoint,
  because a Service insists on nearness. `topodns_clients_total{located_by="unknown"}` counts clients that topodns
  cannot locate.
- **Does every forwarder say who asks?** `topodns_forwarded_without_client_total` and
  `topodns_client_subnets_ignored_total` must not grow.

The component `monitoring` of the manifests has a PodMonitor for the Prometheus Operator, [alerts](runbook.md), and
[a dashboard](../manifests/chart/files/monitoring/dashboard.json) for Grafana. The chart has the same by the values
`metrics.monitor`, `metrics.rules` and `metrics.dashboard`.

A label whose values are listed below has every one of them from the start, at 0. Otherwise `rate()` would miss the
first count.
"""
FOOT = """
<!-- Printed by "make docs"; the tables are in dnsserver/metrics/. -->
"""


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """Return the names of topodns' metrics in a query."""
    return set(re.findall(r"\btopodns_\w+", re.sub(r'"[^"]*"', "", expression)))


def series_of(family: Family) -> set[str]:
    """Return the names by which queries find a metric."""
    if family.kind == HISTOGRAM:
        return {f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    return {family.shown_name}


def document() -> str:
    """Return the page."""
    return HEAD + "".join(_section(title, table) for title, table in TABLES.items()) + FOOT


def _section(title: str, table: Iterable[Family]) -> str:
    rows = "".join(map(_row, table))
    head = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n"
    return f"\n## {title}\n\n{ABOUT[title]}\n\n{head}{rows}"


def _row(family: Family) -> str:
    labels = "; ".join(
        f"`{label}`{': ' + ', '.join(values) if values is not ANY_VALUE else ''}"
        for label, values in family.labels.items()
    )
    alerts = ", ".join(
        f"[{rule['alert']}](runbook.md#{rule['alert'].lower()})"
        for rule in rules()
        if names_in(rule["expr"]) & series_of(family)
    )
    when = f" Only with {family.when}." if family.when else ""
    alert = f" Alert: {alerts}." if alerts else ""
    return f"| `{family.shown_name}` | {family.kind} | {labels} | {family.text}{when}{alert} |\n"


if __name__ == "__main__":
    print(document(), end="")
