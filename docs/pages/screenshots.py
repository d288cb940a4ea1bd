# SPDX-License-Identifier: Apache-2.0

"""Makes the pictures of the console in ``docs/`` from moments of the demo: ``make screenshots``.

What a picture shows does not depend on when it is made, but for times of day.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect
from prometheus_client.parser import text_string_to_metric_families

from dnsserver.metrics.server import ANSWER_ZONES
from examples.demo.day import DAY, Moment
from examples.demo.stage import Stage, staged
from tests.kit.browser import Scheme, running_chromium, visiting
from tests.kit.this_machine import ROOT

MOST_OCTETS = 150_000  # of a picture: whoever reads a page loads all of it
DECISIONS = 14  # in the picture of Tail


class Picture(NamedTuple):
    """A picture of the page at ``path``, after the moment of the demo that is called ``moment``."""

    name: str
    moment: str
    path: str
    size: tuple[int, int]
    scheme: Scheme = "light"
    before: Callable[[Page, Stage], None] = lambda page, stage: None


def _some_decisions(page: Page, stage: Stage) -> None:
    """Have some queries asked, and wait until the page shows them."""
    expect(page.locator("#tail-state")).to_have_text("listening")
    stage.play(_moment("zone b lost"), pace=0.0, most=DECISIONS)
    expect(page.locator("#decisions tr")).to_have_count(DECISIONS)


def _all_answers(page: Page, stage: Stage) -> None:
    """Wait until the page has taken in what was asked before it was opened: it looks every few seconds."""
    families = text_string_to_metric_families(stage.server.get("/metrics"))
    answers = sum(
        sample.value for family in families for sample in family.samples if sample.name == f"{ANSWER_ZONES.name}_total"
    )
    expect(page.locator(".tile").first).to_contain_text(f"{answers:,.0f}", timeout=20_000)


def _moment(name: str) -> Moment:
    (moment,) = (moment for moment in DAY if moment.name == name)
    return moment


SERVICE = "/services/shop/memcached"
IN_ZONE_B = "pod/storefront-7drggrtsq-kpj5c&namespace=shop"
PICTURES: Sequence[Picture] = (
    Picture("console-map", "noon", "/map", (1200, 900)),
    Picture("console-flows", "noon", "/services/shop/catalog?overload=1.5#flows", (1160, 590)),
    Picture("console-service", "zone b lost", f"{SERVICE}?client={IN_ZONE_B}#endpoints", (1200, 660)),
    Picture("console-explain", "zone b lost", f"/explain?name=orders-db.shop&client={IN_ZONE_B}", (1200, 840)),
    Picture("console-tail", "zone b lost", "/tail", (1200, 700), before=_some_decisions),
    Picture("console-overview", "evening", "/", (1200, 840), before=_all_answers),
    Picture("console-dark", "evening", "/", (1200, 840), "dark", before=_all_answers),
    Picture("console-narrow", "evening", "/", (390, 800), before=_all_answers),
)


def main() -> int:
    """Make all pictures; return 0, or 1 if there is no Chromium."""
    parser = argparse.ArgumentParser(prog="python -m docs.pages.screenshots", description=__doc__)
    parser.add_argument("--pace", type=float, default=1.0, help="seconds that a second of the day takes: 0 is a draft")
    pace = parser.parse_args().pace
    try:
        with running_chromium() as browser, staged() as stage:
            for moment in DAY:
                stage.play(moment, pace=pace)
                for picture in PICTURES:
                    if picture.moment == moment.name:
                        _draw(picture, stage, browser)
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        print(f"screenshots: {missing}", file=sys.stderr)
        return 1
    return 0


def _draw(picture: Picture, stage: Stage, browser: Browser) -> None:
    width, height = picture.size
    url = stage.server.http + picture.path
    with visiting(browser, url, width=width, height=height, scheme=picture.scheme) as page:
        picture.before(page, stage)
        path = ROOT / "docs" / f"{picture.name}.png"
        drawn = page.screenshot(path=path, animations="disabled", caret="hide")
    if len(drawn) > MOST_OCTETS:
        raise ValueError(f"{path} has {len(drawn):,} octets, expected at most {MOST_OCTETS:,}: choose a smaller size")
    print(f"{path.relative_to(ROOT)}  {len(drawn):,}")


if __name__ == "__main__":
    sys.exit(main())
