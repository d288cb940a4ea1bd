# SPDX-License-Identifier: Apache-2.0

"""``topodns simulate`` where no Service has a constraint: what each would gain, and the command for it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.api_objects import (
    MAX_OVERLOAD,
    TOPOLOGY_KEYS,
    ZONE,
    Item,
    endpoint,
    endpoint_slice,
    listed,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.commands_in_process import Ran, Run
from tests.kit.skewed import skewed

Simulate = Callable[..., Ran]
PROPOSED = f"{ZONE},*"
PRICED = ("--price", "0.02", "--traffic", "1000")


@pytest.fixture
def simulate(topodns: Run, tmp_path: Path) -> Simulate:
    def run(*flags: str, items: Sequence[Item]) -> Ran:
        path = tmp_path / "cluster.json"
        path.write_text(listed(items))
        return topodns("simulate", str(path), *flags)

    return run


def cluster(clients: str, **endpoints: str) -> list[Item]:
    """Return a cluster with a client in each of the zones that *clients* names, "-" for none, a letter for each.

    Likewise the Services have endpoints, which are no pods.
    """
    nodes = {zone: node(f"node-{zone}", {} if zone == "-" else {ZONE: zone}) for zone in "abcd-"}
    asking = [pod(f"client-{n}", [f"10.0.0.{n + 1}"], f"node-{zone}") for n, zone in enumerate(clients)]
    items = [namespace("shop"), *nodes.values(), *asking]
    for number, (name, zones) in enumerate(endpoints.items()):
        rows = [endpoint(f"10.1.{number}.{n + 1}", nodeName=f"node-{zone}") for n, zone in enumerate(zones)]
        items += [service(name), endpoint_slice(name, 1, rows)]
    return items


def gains(ran: Ran) -> Any:
    assert ran.status == 0, ran.err
    return ran.json["gains"]


@pytest.mark.parametrize(
    ("clients", "endpoints", "ranking"),
    [
        ("aabb", {"few": "ab", "more": "abc"}, [("more", 8 / 3), ("few", 2)]),
        ("aabb", {"z": "ab", "a": "ab"}, [("a", 2), ("z", 2)]),
        ("aaab", {"only-b": "bbc", "both": "ab"}, [("both", 2), ("only-b", 1 / 3)]),
        ("aa--", {"hidden": "ab-", "known": "ab"}, [("known", 1), ("hidden", 2 / 3)]),
    ],
    ids=["most load first", "ties by name", "some clients have none near", "hidden zones are not known to be crossed"],
)  # fmt: skip
def test_the_ranking(simulate: Simulate, clients: str, endpoints: dict[str, str], ranking: Any) -> None:
    """By the load that stays in its zone; what nobody knows the zone of counts as near."""
    found = gains(simulate("-o", "json", items=cluster(clients, **endpoints)))
    assert [(row["name"], row["kept"]) for row in found] == [(name, pytest.approx(kept)) for name, kept in ranking]
    assert not any(row["unmet_clients"] or row["reason"] for row in found)


@pytest.mark.parametrize(
    ("clients", "zones", "reason"),
    [
        ("ab", "", "no ready endpoint"),
        ("ab", "a", "single endpoint"),
        ("ab", "aa", "one zone only"),
        ("ab", "--", "no zone labels"),
        ("--", "ab", "no zone labels"),
        ("c", "ab", "no endpoint in a zone of its clients"),
        ("ab", "a-", "one zone only"),
    ],
)
def test_nothing_to_gain(simulate: Simulate, clients: str, zones: str, reason: str) -> None:
    """It is said in a word, and those are counted in a line; there is no command."""
    items = cluster(clients, gaining="cd", poor=zones) if clients == "c" else cluster(clients, poor=zones)
    *_, last = gains(simulate("-o", "json", items=items))
    assert (last["reason"], last["annotations"], last["command"], last["kept"]) == (reason, {}, None, 0)
    text = simulate(items=items).out
    assert f"1 Service would gain nothing ({reason}: 1)" in text and "service poor" not in text
    assert ("with the commands" in text) == ("--price" in text) == (clients == "c"), "where somebody would gain"


def test_nobody_asks(simulate: Simulate) -> None:
    items = [*skewed(None)]
    items = [one for one in items if one["kind"] != "Pod" or one["metadata"]["name"].startswith("web")]
    plain, web = sorted(gains(simulate("-o", "json", items=items)), key=lambda row: row["name"])
    assert (plain["reason"], web["reason"]) == ("only by overload", "nobody asks"), "two pods of web ask for plain"
    assert plain["balanced"] is not None and plain["cross_zone"]["after"] == 0 and plain["kept"] == 0


def test_what_would_be_overloaded_is_bounded(simulate: Simulate) -> None:
    """Then the command has the bound, and all figures of what it would save are those with it."""
    ran = simulate("-o", "json", *PRICED, items=skewed(None))
    web = next(row for row in gains(ran) if row["name"] == "web")
    assert web["cross_zone"] == {"before": pytest.approx(0.7), "after": pytest.approx(0.2)}
    assert (web["max_overload"], web["overloaded"], web["clients"]) == (pytest.approx(2.6), 1, 10)
    balanced = web["balanced"]
    assert balanced["overloaded"] == 0 and balanced["max_overload"] <= 1.5 + 1e-9
    assert web["kept"] == pytest.approx(10 * (0.7 - balanced["cross_zone"]))
    assert web["saved"] == pytest.approx(20 * (0.7 - balanced["cross_zone"]))
    assert web["annotations"] == {TOPOLOGY_KEYS: PROPOSED, MAX_OVERLOAD: "1.5"}
    assert shlex.split(web["command"]) == [
        "kubectl", "-n", "shop", "annotate", "service", "web", "--overwrite",
        f"{TOPOLOGY_KEYS}={PROPOSED}", f"{MAX_OVERLOAD}=1.5",
    ]  # fmt: skip
    simulated = next(row for row in ran.json["services"] if row["name"] == "web")
    assert simulated["cross_zone"]["after"] == pytest.approx(balanced["cross_zone"]), "as it would be"
    tried = simulate(
        "-o", "json", "--with", f"shop/web={PROPOSED}", "--with", "shop/web:max-overload=1.5", items=skewed(None)
    )
    assert tried.json["services"][0] == simulated


def test_another_threshold(simulate: Simulate) -> None:
    """``--max-overload`` is both what counts as overloaded and the bound."""
    first = gains(simulate("-o", "json", "--max-overload", "3", items=skewed(None)))
    assert all(row["balanced"] is None and MAX_OVERLOAD not in row["annotations"] for row in first)
    web = next(
        row
        for row in gains(simulate("-o", "json", "--max-overload", "1.2", items=skewed(None)))
        if row["name"] == "web"
    )
    assert web["annotations"][MAX_OVERLOAD] == "1.2" and web["balanced"]["max_overload"] <= 1.2 + 1e-9


def test_money_leads(simulate: Simulate) -> None:
    """Each Service has the same traffic in a month, however many ask."""
    items = cluster("aabb", many="ab", few="abc")
    items += [pod(f"few-{zone}", [f"10.1.1.{n}"], f"node-{zone}") for n, zone in enumerate("ab", 1)]
    first, second = gains(simulate("-o", "json", *PRICED, items=items))
    assert (first["name"], first["saved"], first["kept"]) == ("few", pytest.approx(40 / 3), pytest.approx(8 / 3))
    assert (second["name"], second["saved"], second["kept"]) == ("many", pytest.approx(10), pytest.approx(3))
    assert [row["name"] for row in gains(simulate("-o", "json", items=items))] == ["many", "few"], "by load, without"
    text = simulate(*PRICED, items=items).out
    assert text.splitlines()[0].split()[:4] == ["service", "saved", "a", "month"]
    assert "traffic between zones costs 23.33 a month now, 0.00 with the commands: 23.33 less" in text
    assert "--price" not in text and "--price" in simulate(items=items).out


def test_text(simulate: Simulate) -> None:
    """A table, the commands, what gains nothing, totals."""
    out = simulate(items=[*skewed(None), service("idle"), endpoint_slice("idle", 1, [])]).out
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["service", "shop/plain", "shop/web"]
    assert "with max-overload 1.5 where an endpoint would get more than 1.5 even shares:" in out
    assert (
        f"  kubectl -n shop annotate service web --overwrite {TOPOLOGY_KEYS}='{PROPOSED}' {MAX_OVERLOAD}=1.5\n" in out
    )
    assert "1 Service would gain nothing (no ready endpoint: 1)" in out
    assert "% of the load now, " in out


def test_yaml_and_markdown(simulate: Simulate) -> None:
    items = skewed(None)
    found = simulate("-o", "json", *PRICED, items=items).json
    assert yaml.safe_load(simulate("-o", "yaml", *PRICED, items=items).out) == found
    assert set(found) == {"services", "gains", "totals", "findings"}
    page = simulate("-o", "markdown", *PRICED, items=items).out
    assert "| service | saved a month | kept in zone |" in page and "```console\n$ kubectl -n shop annotate" in page


def test_choices_can_be_compared(simulate: Simulate) -> None:
    out = simulate("--compare", items=skewed(None)).out
    assert "kubectl" in out and "zone, at most 1.2" in out
    assert "as it is" not in out, "that is none"


@pytest.mark.parametrize(
    ("items", "flags", "message"),
    [
        ([one for one in skewed(None) if one["kind"] != "Node"], (),
         "--snapshot: the dump has no Nodes, so nothing says which client is in which zone, expected some; 'kubectl"),
        ([one for one in skewed(None) if one["kind"] != "Pod"], (),
         "no pods (a dump must contain them), expected some that ask; 'kubectl get namespaces,nodes,pods,"),
        (skewed(None), ("--fail", f"{ZONE}=a"),
         "--fail: none of 2 headless Services has a constraint, expected one; --service NS/NAME simulates"),
    ],
    ids=["no Nodes", "no Pods", "a failed zone"],
)  # fmt: skip
def test_no_number_can_be_given(simulate: Simulate, items: Any, flags: tuple[str, ...], message: str) -> None:
    ran = simulate(*flags, items=items)
    assert ran.status == 2 and message in ran.err, ran.err


def test_those_without_a_constraint_are_named(simulate: Simulate) -> None:
    """In a cluster where some have one, a line says how many do not, and how to look at the largest."""
    line = (
        "1 headless Service has endpoints in several zones, and no constraint: "
        "--service shop/plain --compare shows what it would gain"
    )
    assert simulate(items=skewed()).out.splitlines()[-1] == line
    assert simulate("--service", "shop/plain", items=skewed()).out.splitlines()[-1] == line
    for named in (["shop/web"], ["shop/plain", "--compare"], ["shop/plain", "--with", f"shop/plain={ZONE}"]):
        assert "no constraint:" not in simulate("--service", *named, items=skewed()).out
    assert "gains" not in simulate("-o", "json", items=skewed()).json


def test_only_the_picture_s_own_format(simulate: Simulate, tmp_path: Path) -> None:
    wrong = simulate("--picture", str(tmp_path / "x.png"), items=skewed())
    assert wrong.status == 2 and f"and '{tmp_path}/x.svg' would say so" in wrong.err and not wrong.out
    for name in ("x.svg", "x.SVG", "x"):
        assert simulate("--picture", str(tmp_path / name), items=skewed()).status == 0
