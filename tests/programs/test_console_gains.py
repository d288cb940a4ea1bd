# SPDX-License-Identifier: Apache-2.0

"""The console where no Service has a constraint: what each would gain; and what a constraint that is tried changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.kit.api_objects import CLIENTS, HOSTNAME, MAX_OVERLOAD, TOPOLOGY_KEYS, ZONE, listed, service
from tests.kit.commands_in_process import Run
from tests.kit.console_pages import Page, is_safe, page, serving_console
from tests.kit.skewed import balanced_if, skewed
from tests.kit.topodns_process import Server

PRICED = {"price": "0.02", "traffic": "1000"}
WEB = "/services/shop/web"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_console(tmp_path_factory.mktemp("console"), skewed(None)) as running:
        yield running


@pytest.fixture(scope="module")
def constrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_console(tmp_path_factory.mktemp("console"), balanced_if()) as running:
        yield running


def commands(found: Page) -> list[str]:
    """Return those that annotate Services, but for what findings say."""
    return [text for text in found.texts if text.startswith("kubectl -n ") and " --overwrite " in text]


def tried(found: Page) -> list[dict[str, str]]:
    """Return what the links to Services with something to try fill in."""
    links = [urlsplit(link) for link in found.attributes("a", "href") if "keys=" in link]
    return [dict(parse_qsl(link.query)) for link in links]


@pytest.mark.parametrize("path", ["/", "/gain"])
def test_the_same_as_the_command_line(server: Server, topodns: Run, tmp_path: Path, path: str) -> None:
    """The ranking, the figures, the commands; each row leads to the Service with Try filled in."""
    (dump := tmp_path / "cluster.json").write_text(listed(skewed(None)))
    rows = topodns("simulate", str(dump), "-o", "json").json["gains"]
    found = page(server, path)
    assert found.status == 200 and is_safe(found)
    assert [key for key in found.rows if key.startswith("shop/")] == [f"shop/{row['name']}" for row in rows]
    assert commands(found) == [row["command"] for row in rows]
    for row in rows:
        assert f"{row['kept']:,.1f}" in found.texts and f"{100 * row['cross_zone']['before']:.1f} %" in found.texts
    both = {"keys": f"{ZONE},*", "overload": "1.5"}
    assert tried(found) == [{"keys": f"{ZONE},*"} if row["balanced"] is None else both for row in rows]
    assert "less a month" not in found.text


@pytest.mark.parametrize("path", ["/", "/gain"])
def test_money_leads(server: Server, topodns: Run, tmp_path: Path, path: str) -> None:
    """It stays in the address, in the fields and in the links."""
    (dump := tmp_path / "cluster.json").write_text(listed(skewed(None)))
    rows = topodns("simulate", str(dump), "-o", "json", "--price", "0.02", "--traffic", "1000").json["gains"]
    found = page(server, path, **PRICED)
    assert [key for key in found.rows if key.startswith("shop/")] == [f"shop/{row['name']}" for row in rows]
    assert f"{sum(row['saved'] for row in rows):,.2f} less a month" in found.text
    assert {*PRICED.values()} <= {*found.attributes("input", "value")}
    assert all(PRICED.items() <= link.items() for link in tried(found))


@pytest.mark.parametrize("path", ["/", "/gain", WEB])
@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"price": "cheap", "traffic": "1"}, "price", "'cheap', expected a number from 0 on"),
        ({"price": "1", "traffic": "-1"}, "traffic", "'-1', expected a number of gigabytes from 0 on"),
        ({"price": "1e300", "traffic": "1e300"}, "price", "1e+300 times 1e+300 is too large"),
    ],
    ids=["no number", "negative", "infinite"],
)
def test_errors_stand_beside_the_field(
    server: Server, path: str, fields: dict[str, str], field: str, message: str
) -> None:
    """The page is whole, and shows what was filled in."""
    found = page(server, path, **fields)
    assert found.status == 400 and message in found.text and "Endpoints" in found.text
    (invalid,) = (attributes for _, attributes in found.elements if "aria-invalid" in attributes)
    assert invalid["name"] == field and {*fields.values()} <= {*found.attributes("input", "value")}


def test_one_field_alone_is_no_money(server: Server) -> None:
    found = page(server, "/", price="0.02")
    assert found.status == 200 and "It takes both" in found.text


def test_where_some_have_a_constraint(constrained: Server) -> None:
    """The first page says how many do not; a page of its own shows what they would gain."""
    first = page(constrained, "/")
    assert "1 headless Service with endpoints in several zones has no constraint" in first.text
    assert "/gain" in first.attributes("a", "href") and not tried(first)
    found = page(constrained, "/gain")
    assert [key for key in found.rows if key.startswith("shop/")] == ["shop/plain"]


@pytest.mark.parametrize(
    ("kind", "word", "text"),
    [
        ("Pod", "no Pods", "topodns knows no Pods here"),
        ("Node", "no Nodes", "The dump has no Nodes, so topodns cannot say in which zone a client is"),
        ("EndpointSlice", "no endpoints", "neither EndpointSlices nor"),
    ],
)
def test_no_number_can_be_given(tmp_path: Path, kind: str, word: str, text: str) -> None:
    """It says what is missing, and how to dump it."""
    with serving_console(tmp_path, [one for one in skewed(None) if one["kind"] != kind]) as running:
        found = page(running, "/")
        assert word in found.text and text in found.text and "No number can be given" in found.text
        assert "with the most endpoints" not in found.text
        assert "kubectl get namespaces,nodes,pods" in found.text and not commands(found)


def test_nothing_to_gain_is_counted(tmp_path: Path) -> None:
    items = [*skewed(None, endpoints_in={"a": 1, "b": 3}), service("lonely")]
    with serving_console(tmp_path, items) as running:
        found = page(running, "/", **PRICED).text
    assert "1 Service would gain nothing (without endpoints in two zones: 1)." in found


def test_no_money_where_nothing_is_gained(tmp_path: Path) -> None:
    with serving_console(tmp_path, skewed(None, endpoints_in={"a": 3})) as running:
        found = page(running, "/", **PRICED).text
    assert "would gain nothing" in found and "less a month" not in found


# Try


def test_the_difference_in_words(server: Server) -> None:
    """Of what crosses zones, in money, too; of what is overloaded."""
    found = page(server, WEB, keys=f"{ZONE},*", **PRICED)
    assert "↓ −50.0 points 70.0 % → 20.0 % of the load crosses zones; 10.00 less a month at your price" in found.text
    assert "▲ 1 overloaded endpoint 0 now; the greatest load is 1.00 → 2.60 × an even share" in found.text
    assert "unmet client" not in found.text
    hard = page(server, WEB, keys=ZONE)
    assert "✕ 2 unmet clients 0 now" in hard.text and "at your price" not in hard.text
    nothing = page(server, WEB, keys="-", **PRICED)
    assert "– +0.0 points 70.0 % → 70.0 % of the load crosses zones; 0.00 less a month" in nothing.text
    assert "0 points" not in page(server, WEB, **PRICED).text, "nothing is tried"


def test_spilled_clients_and_less_overload_are_said(constrained: Server) -> None:
    text = page(constrained, WEB, overload="1.2").text
    assert "spilled client" in text and "↑ +" in text and "0 now" in text
    assert "✓ no overload 1 now; the greatest load is 2.60 → " in text


def test_a_click_fills_the_fields(server: Server) -> None:
    """What else is in the address stays: the price, the client; not what was tried before."""
    found = page(server, WEB, keys=HOSTNAME, least="2", client="10.0.1.1", **PRICED)
    links = [link for link in tried(found) if link["keys"] != HOSTNAME]
    kept = {"client": "10.0.1.1", **PRICED}
    assert [{**kept, **link} for link in links] == links
    assert [link["keys"] for link in links] == [
        f"{ZONE},*", f"{HOSTNAME},{ZONE},*", "topology.kubernetes.io/region,*", f"{ZONE},*", "-"
    ]  # fmt: skip
    assert [link.get("overload") for link in links] == [None, None, None, "1.5", None]
    assert not any("least" in link for link in links)


def test_other_clients_are_tried(constrained: Server) -> None:
    """``topodns.io/clients`` says whom the bound counts."""
    found = page(constrained, WEB, overload="1.2", clients="shop")
    assert "Max-overload 1.2 and clients shop" in found.text and "of 14 clients" in found.text
    *_, command = commands(found)
    assert f"{MAX_OVERLOAD}=1.2" in command and f"{CLIENTS}=shop" in command and TOPOLOGY_KEYS not in command
    wrong = page(constrained, WEB, clients="shop/app in;")
    (invalid,) = (attributes for _, attributes in wrong.elements if "aria-invalid" in attributes)
    assert wrong.status == 400 and invalid["name"] == "clients"
