# SPDX-License-Identifier: Apache-2.0

"""The chart's files: the schema and the page are those of the values, and each value is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from docs.pages import chart_pages
from docs.pages.chart_pages import CHART, SCHEMA, VALUES
from tests.kit.api_objects import Item
from tests.kit.this_machine import ROOT


def test_the_schema_has_the_values_and_no_others() -> None:
    """Each value has a default, but for those that begin empty; the schema lets in no key beside them."""

    def compare(schema: Item, values: Item, path: str) -> None:
        if "properties" not in schema:
            return
        assert schema["additionalProperties"] is False, path
        assert schema["properties"].keys() == values.keys() | ({"global"} if not path else set()), path
        for name, value in values.items():
            compare(schema["properties"][name], value, f"{path}.{name}")

    compare(json.loads(SCHEMA.read_text()), yaml.safe_load(VALUES.read_text()), "")


def test_the_requests_are_those_that_were_measured() -> None:
    """The page about sizes says for which cluster."""
    (said,) = re.findall(
        r"Each requests (\w+) CPU and (\w+) of memory, with a limit of (\w+)\.",
        (ROOT / "docs" / "sizing.md").read_text(),
    )
    resources = yaml.safe_load(VALUES.read_text())["dns"]["resources"]
    assert said == (*(resources["requests"][name] for name in ("cpu", "memory")), resources["limits"]["memory"])


def test_every_value_is_commented_on_and_read() -> None:
    """So each is in the table of the page, and in a template."""

    def leaves(values: Item, path: str) -> Iterator[str]:
        for name, value in values.items():
            yield from leaves(value, f"{path}{name}.") if isinstance(value, dict) and value else [f"{path}{name}"]

    rows = [name for name, _, _ in chart_pages.values_rows()]
    for leaf in leaves(yaml.safe_load(VALUES.read_text()), ""):
        assert any(leaf == row or leaf.startswith(f"{row}.") for row in rows), leaf
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
    for row in rows:
        assert re.search(rf"\.{row.rpartition('.')[2]}\b", templates), row
