# SPDX-License-Identifier: Apache-2.0

"""The alerts' cases, and the queries of the dashboard and of pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from docs.pages.site_pages import pages
from tests.kit.this_machine import ROOT

ALERTS = ROOT / "tests" / "peers" / "alerts.yaml"
DASHBOARD = json.loads((ROOT / "manifests/chart/files/monitoring/dashboard.json").read_text())
PANELS = DASHBOARD["panels"]


def queries() -> Iterator[tuple[str, str]]:
    """Yield every query of pages and of the dashboard, after the name of the page or the title of the panel."""
    for page in pages():
        found = re.findall(r"^ *```promql\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
        yield from ((page.name, query) for query in found)
    for panel in PANELS:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))
