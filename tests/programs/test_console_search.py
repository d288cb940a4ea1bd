# SPDX-License-Identifier: Apache-2.0

"""What finds things in the console: the search, what was meant, and completion."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.kit.api_client import request
from tests.kit.api_objects import HOSTNAME, RACK, REGION, ZONE
from tests.kit.console_pages import CONSOLE_CLUSTER, page, serving_console
from tests.kit.topodns_process import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_console(tmp_path_factory.mktemp("console"), CONSOLE_CLUSTER) as running:
        yield running


SEARCHED = {
    "shop/ne": ["/services/shop/near"], "a1": ["/nodes/local/a1"], "back": ["/explain?client=pod%2Flab%2Fback"],
    "rack=2": [f"/map?within={RACK.replace('/', '%2F')}%3D2"], "invalidtopo": ["/findings?code=InvalidTopologyKeys"],
    "10.244.1.9": ["/explain?client=10.244.1.9"], "no such thing": [],
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SEARCHED.items())
def test_search(server: Server, text: str, expected: list[str]) -> None:
    """For all sorts of things; each result leads to what is known of it."""
    found = page(server, "/search", text=text)
    everywhere = page(server, "/search").attributes("a", "href")
    assert [link for link in found.attributes("a", "href") if link not in everywhere] == expected


def test_a_search_for_one_thing_leads_there(server: Server) -> None:
    """Where a text is the whole name of one thing."""
    found = request(server, "/search", text="shop/near")
    assert (found.status, found.headers["Location"]) == (303, "/services/shop/near")


MEANT = [
    ("/explain?name=svc/naer&namespace=shop&client=10.244.1.9", {"name": "shop/near", "client": "10.244.1.9"}),
    ("/explain?name=naer.shop&client=10.244.1.9&type=AAAA", {"name": "shop/near", "type": "AAAA"}),
    ("/explain?name=near.shop&client=pod/frnt&namespace=shop", {"client": "pod/shop/front", "name": "near.shop"}),
    ("/explain?name=near.shop&client=pod/front&namespace=lab", {"client": "pod/shop/front", "name": "near.shop"}),
    ("/explain?name=near.shop&client=node/a11", {"client": "node/a1"}),
    ("/services/shop/near?client=pod/frnt", {"client": "pod/shop/front"}),
]


@pytest.mark.parametrize(("path", "asked"), MEANT)
def test_what_was_meant_is_a_link(server: Server, path: str, asked: dict[str, str]) -> None:
    """It asks again with the right word, and all the others; and it is right."""
    found = page(server, path)
    links = [link for link in found.attributes("a", "href") if link.startswith(f"{path.partition('?')[0]}?")]
    link = next(link for link in links if asked.items() <= dict(parse_qsl(urlsplit(link).query)).items())
    assert "did you mean" not in page(server, link).text and "(-n" not in found.text


def test_completion(server: Server) -> None:
    """From what exists: names of Services, pods with their namespaces, nodes, domains."""

    def proposals(**asked: str) -> list[str]:
        return [row["value"] for row in request(server, "/complete", **asked).json["proposals"]]

    assert proposals(**{"for": "name", "text": "ne"}) == ["near.shop"]
    assert proposals(**{"for": "name", "text": "near.sh"}) == ["near.shop"]
    assert proposals(**{"for": "client", "text": "pod/"}) == ["pod/lab/back", "pod/shop/front"]
    assert proposals(**{"for": "client", "text": "fro"}) == ["pod/shop/front"]
    assert proposals(**{"for": "client", "text": "node/a"}) == ["node/a1", "node/a2", "node/bare"]
    assert f"{ZONE}=a" in proposals(**{"for": "client", "text": "zone"})
    assert proposals(**{"for": "keys", "text": ""}) == [ZONE, HOSTNAME, REGION, "*", RACK, "topodns.io/cluster"]
    assert proposals(**{"for": "keys", "text": "zone"}) == [ZONE]
    assert proposals(**{"for": "keys", "text": f"{ZONE}, rack"}) == [f"{ZONE},{RACK}"]
    assert proposals(**{"for": "keys", "text": f"{ZONE},*,"}) == [], "nothing comes after the last"
    assert proposals(**{"for": "search", "text": "FRO"}) == ["shop/front"]
    assert proposals(**{"for": "search", "text": ""}) == []
    assert request(server, "/complete", **{"for": "nothing"}).status == 400
