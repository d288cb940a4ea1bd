# SPDX-License-Identifier: Apache-2.0

"""Pages about live traffic: the list of Services with rates, and on a Service's own page who asks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import dns.edns
import dns.message
import pytest
from jinja2 import ChoiceLoader, DictLoader

from dnsserver.tools.console.rendering import environment, rendered
from dnsserver.tools.console.traffic import MAX_CURVES, curve_points, rate, zone_curves_in
from dnsserver.tools.live import history
from dnsserver.tools.live.history import History
from tests.kit.api_client import request
from tests.kit.api_objects import service
from tests.kit.console_pages import CONSOLE_CLUSTER, is_safe, page, serving_console
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

CLUSTER = [*CONSOLE_CLUSTER, service("virtual", keys=None, cluster_ips=["10.96.0.7"])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_console(tmp_path_factory.mktemp("live"), CLUSTER, nsid="dns-1") as server:
        for name, times in (("near", 9), ("hard", 3), ("virtual", 30)):
            for client in ("10.244.1.9", "10.244.9.1"):
                query = dns.message.make_query(
                    f"{name}.shop.svc.cluster.local", "A", options=[dns.edns.ECSOption(client, 32)]
                )
                for _ in range(times):
                    server.ask(query)
        until(lambda: "get nothing" in page(server, "/services/shop/hard").text, "the console has looked")
        yield server


ORDERS = [
    ("", ["shop/hard", "shop/near", "shop/wrong", "shop/plain", "shop/virtual"]),
    ("sort=name", ["shop/hard", "shop/near", "shop/plain", "shop/virtual", "shop/wrong"]),
    ("sort=answers", ["shop/near", "shop/hard", "shop/wrong", "shop/plain", "shop/virtual"]),
    ("sort=unmet", ["shop/hard", "shop/near", "shop/wrong", "shop/plain", "shop/virtual"]),
    ("sort=findings", ["shop/wrong"]),
    ("sort=answers&text=r", ["shop/near", "shop/hard", "shop/wrong", "shop/virtual"]),
]


@pytest.mark.parametrize(("query", "rows"), ORDERS, ids=[row[0] or "none" for row in ORDERS])
def test_services_are_sorted(server: Server, query: str, rows: list[str]) -> None:
    """As the address says; the head of the column says so, and keeps what is searched for."""
    found = page(server, f"/services?{query}")
    assert found.status == 200 and is_safe(found)
    first = [row for row in found.rows if row in rows][: len(rows)]
    assert first == rows if len(rows) > 1 else found.rows[0] in ("shop/wrong", "shop/hard")
    assert len(found.attributes("th", "aria-sort")) == (1 if "sort=" in query else 0)
    links = found.attributes("a", "href")
    assert f"/services?{'text=r&' if 'text' in query else ''}sort=spilled" in links


def test_a_list_that_cannot_be_sorted_so(server: Server) -> None:
    assert page(server, "/services?sort=best").status == 400


def test_rates_of_services(server: Server) -> None:
    """Unmet ones lead to their decisions; behind a cluster IP, kube-proxy chooses. It says who has counted this."""
    found = page(server, "/services")
    assert "/tail?service=shop%2Fhard&outcome=unmet" in found.attributes("a", "href")
    assert "10.96.0.7: kube-proxy chooses" in found.text
    assert "Counted by this server alone, dns-1, since 20" in found.text


def test_a_service_now(server: Server) -> None:
    """Answers a second, who gets nothing, who asks, and the annotation that says so."""
    found = page(server, "/services/shop/hard")
    assert is_safe(found)
    assert "a second get nothing" in found.text and "shop/Pod/front" in found.rows and "lab/Pod/back" in found.rows
    assert "kubectl -n shop annotate service hard --overwrite topodns.io/clients='lab; shop'" in found.text
    assert "kube-proxy chooses the endpoint: topodns does not know which" in page(server, "/services/shop/virtual").text
    assert "Nobody that topodns can locate has asked." in page(server, "/services/shop/plain").text


def test_a_service_without_endpoints(server: Server) -> None:
    """It stands out in the list, and its page does not say that nobody asks."""
    (cell,) = re.findall(
        r'data-key="shop/plain".*?<td data-label="Ready endpoints"[^>]*>(.*?)</td>',
        request(server, "/services", headers={"accept": "text/html"}).body.decode(),
        re.S,
    )
    assert "badge warn" in cell
    uncounted = "Queries are not counted while no endpoint is ready."
    assert uncounted in page(server, "/services/shop/plain").text


def test_who_has_counted(server: Server) -> None:
    """The first page says so; before a minute is over, it has no curves."""
    found = page(server, "/")
    assert "Counted by this server alone, dns-1, since 20" in found.text and "The last day" not in found.text


def test_curves_are_drawn() -> None:
    """Each with what it shows, for those who do not see it; what never was is left out."""
    templates = environment()
    page_of = DictLoader({"page": '{% import "curves.html" as c %}{{ c.curves(found) }}'})
    templates.loader = ChoiceLoader([page_of, *([templates.loader] if templates.loader else [])])
    past = History(0.0)
    past.add([(past.cell(history.ZONE, "a", history.ANSWERS), 1.0)], 60)
    past.turn(60.0)
    drawn = rendered(templates, "page", {"found": zone_curves_in(past)["a"]})
    assert drawn.count("<polyline") == 1 and "unmet" not in drawn and "last 24 hours" in drawn
    assert "answers in the last hour: 1.0 a second in the last minute, at most 1.0" in drawn


def test_zones_with_the_most_answers_come_first() -> None:
    """Unmet answers count, too; there are at most so many curves."""
    past = History(0.0)
    for number in range(MAX_CURVES + 2):
        past.add([(past.cell(history.ZONE, f"z{number:02}", history.ANSWERS), 1.0)], number)
    past.add([(past.cell(history.ZONE, "hard", history.UNMET), 1.0)], 100)
    past.cell(history.ZONE, "silent", history.ANSWERS)
    past.turn(600.0)
    curves = zone_curves_in(past)
    assert [*curves][:2] == ["hard", f"z{MAX_CURVES + 1:02}"] and len(curves) == MAX_CURVES and "silent" not in curves
    assert [*curves["hard"]["unmet"].day] == [100 / 600] and sum(curves["hard"]["unmet"].hour) == 100 / 60


def test_metrics_do_not_change(server: Server) -> None:
    """That the console counts by Service is no reason to show it to Prometheus."""
    metrics = request(server, "/metrics").body.decode()
    assert "service_name=" not in metrics and "topodns_service_answers" not in metrics


def test_a_console_without_answers(tmp_path: Path) -> None:
    """Without --console, nothing is noted, and there are no such paths."""
    with serving_console(tmp_path, CLUSTER, console="off") as server:
        assert request(server, "/api/v1/decisions").status == request(server, "/api/v1/clients").status == 404


RATES = [(0, 1, "0"), (1, 300, "< 0.1"), (30, 300, "0.1"), (999, 100, "10"), (12_345_600, 100, "123,456"), (1, 0, "0")]


@pytest.mark.parametrize(("number", "seconds", "text"), RATES, ids=[row[2] + str(row[1]) for row in RATES])
def test_a_rate(number: int, seconds: int, text: str) -> None:
    assert rate(number, seconds) == text


def test_the_points_of_a_curve() -> None:
    """The last minute stands at the right; the highest value at the top."""
    assert curve_points([], 60) == ""
    assert curve_points([2.0, 1.0, 0.0], 60) == "115.9,1.0 118.0,12.0 120.0,23.0"
    hour = curve_points([1.0] * 60, 60)
    assert len(hour.split()) == 60 and hour.startswith("0.0,1.0 ")
