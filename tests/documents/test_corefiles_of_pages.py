# SPDX-License-Identifier: Apache-2.0

"""The Corefiles that pages and manifests show."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import yaml

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.caddyfile import Unparsable
from dnsserver.tools.corefile.checks import check
from dnsserver.tools.corefile.stub_blocks import stub_block
from dnsserver.tools.corefile.stub_zones import read
from tests.kit.kustomize import MANIFESTS
from tests.kit.this_machine import ROOT

CODE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("manifests/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "README.md"]


@pytest.mark.parametrize(
    ("overlay", "forwarder", "fail_open"),
    [("coredns-stub", "coredns", (False, True)), ("nodelocal", "nodelocal", (False,))],
)
def test_a_page_shows_what_is_printed(overlay: str, forwarder: str, fail_open: Sequence[bool]) -> None:
    """The page shows the same block as the command prints."""
    page = (MANIFESTS / "overlays" / overlay / "README.md").read_text()
    to, zones = [parse_upstream("10.96.0.53")], ["shop.svc.cluster.local"]
    shown = [stub_block(forwarder, to, zones, fail_open=fallback) for fallback in fail_open]
    assert re.findall(r"```corefile\n(.*?)```", page, re.DOTALL) == shown


def test_no_false_alarm_about_our_own_pages() -> None:
    """What pages and manifests show of Corefiles is parsed, and bypasses nothing."""
    texts = [text for page in PAGES for text in CODE.findall(page.read_text()) if "forward ." in text]
    for path in (path for end in ("yaml", "txt") for path in ROOT.glob(f"manifests/**/*.{end}")):
        if "{{" not in (text := path.read_text()):
            items = [item for item in yaml.safe_load_all(text) if isinstance(item, dict)]
            maps = [item for item in items if item.get("kind") == "ConfigMap"]
            texts += [item["data"]["Corefile"] for item in maps if "Corefile" in item.get("data", {})]
    assert len(texts) >= 3
    for text in texts:
        try:
            codes = {finding.code for finding in check(read(text, forwarder="coredns"))}
        except Unparsable:
            continue
        assert not any(code.endswith("BypassesStub") for code in codes | {""}), text
        assert "ReverseZoneForwardedWhole" not in codes, text
