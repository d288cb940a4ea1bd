# SPDX-License-Identifier: Apache-2.0

"""``topodns simulate`` as people run it: what they ask for, what they get wrong, and a real server beside it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dns.edns
import dns.message
import pytest
import yaml

from dnsserver.text import PLAIN
from tests.kit.api_objects import (
    CLIENTS,
    MAX_OVERLOAD,
    MIN_ENDPOINTS,
    REGION,
    TOPOLOGY_KEYS,
    ZONE,
    external,
    listed,
    pod,
    service_policy,
)
from tests.kit.commands_in_process import Ran, Run
from tests.kit.other_server import Response, other_server
from tests.kit.skewed import balanced_if, skewed
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server

Simulate = Callable[..., Ran]
WEB = ("--service", "shop/web")
REQUIRED = service_policy("near", ZONE)
UNLIKELY = 6  # standard deviations: once in a billion


@pytest.fixture
def simulate(topodns: Run, tmp_path: Path) -> Simulate:
    def run(*flags: str, items: Any = None) -> Ran:
        path = tmp_path / "cluster.json"
        path.write_text(listed(skewed() if items is None else items))
        return topodns("simulate", "--snapshot", str(path), *flags)

    return run


def only(ran: Ran) -> Any:
    """Return the one Service of a simulation."""
    assert ran.status == 0, ran.err
    (service,) = ran.json["services"]
    return service


def test_constrained_services_are_simulated(simulate: Simulate) -> None:
    """By default those are all headless ones with a constraint."""
    found = simulate("-o", "json").json
    assert [(row["namespace"], row["name"], row["zone"]) for row in found["services"]] == [
        ("shop", "web", "cluster.local")
    ]
    row = found["services"][0]
    assert row["constraint"] == {"source": "annotation", "keys": [ZONE, "*"]}
    assert [(one["domain"], one["clients"], one["outcome"]) for one in row["domains"]] == [
        ({ZONE: "a"}, 6, "nearest"), ({ZONE: "b"}, 2, "nearest"), ({ZONE: "c"}, 2, "all")
    ]  # fmt: skip
    first = next(one for one in row["endpoints"] if one["pod"] == "web-a0")
    assert first == {
        "address": "10.0.2.1", "pod": "web-a0", "node": "node-a", "domain": {ZONE: "a"},
        "share": pytest.approx(0.65), "even_share": 0.25,
    }  # fmt: skip
    assert row["max_overload"] == pytest.approx(2.6)
    assert row["cross_zone"] == {"before": pytest.approx(0.7), "after": pytest.approx(0.2)}
    assert found["totals"] == {"clients": 10, "cross_zone": row["cross_zone"], "cost": None}
    assert [finding["code"] for finding in found["findings"]] == ["OverloadedEndpoint"]


def test_a_service_without_a_constraint_is_simulated_if_named(simulate: Simulate) -> None:
    row = only(simulate("--service", "shop/plain", "-o", "json"))
    assert row["constraint"] is None and row["max_overload"] == pytest.approx(1)
    assert row["cross_zone"]["before"] == row["cross_zone"]["after"]
    assert [(one["domain"], one["clients"]) for one in row["domains"]] == [({}, 12)]  # web-b1 and web-b2 ask, too


def test_a_constraint_is_tried(simulate: Simulate) -> None:
    """``--with`` is the annotation that the Service would have, and without keys it has none."""
    hard = only(simulate(*WEB, "--with", f"shop/web={ZONE}", "-o", "json"))
    assert (hard["unmet_clients"], hard["cross_zone"]["after"]) == (2, 0)
    none = only(simulate(*WEB, "--with", "shop/web=", "-o", "json"))
    assert none["constraint"] is None and none["max_overload"] == pytest.approx(1)
    unknown = simulate(*WEB, "--with", "shop/web=example.com/zne,*", "-o", "json").json
    assert ("KeyOnNoNode", "no node has the label example.com/zne") in [
        (finding["code"], finding["message"]) for finding in unknown["findings"]
    ]


def test_a_policy_overrides_what_is_tried(simulate: Simulate) -> None:
    items = [*skewed(labels={"app": "web"}), REQUIRED]
    ran = simulate(*WEB, "--with", "shop/web=*", "-o", "json", items=items)
    assert only(ran)["constraint"] == {"source": "policy", "keys": [ZONE]}
    (overridden,) = [finding for finding in ran.json["findings"] if finding["code"] == "SourceNotHeard"]
    assert overridden["message"] == "overridden: ServicePolicy near comes first"


def test_annotations_are_tried_together(simulate: Simulate) -> None:
    """All that ``--with`` says about a Service counts; without a value, the annotation of the cluster does not."""
    items = skewed(None, annotations={MIN_ENDPOINTS: "4"})
    keys, least = ("--with", f"shop/web={ZONE},*"), "--with=shop/web:min-endpoints="
    for flags, outcomes in ((keys, ["all"] * 3), ((*keys, f"{least}3"), ["all", "nearest", "all"]),
                            ((*keys, least), ["nearest", "nearest", "all"])):  # fmt: skip
        row = only(simulate(*WEB, *flags, "-o", "json", items=items))
        assert [one["outcome"] for one in row["domains"]] == outcomes
    alone = only(simulate("--with", "shop/web:min-endpoints=2", "-o", "json"))
    assert [one["outcome"] for one in alone["domains"]] == ["all", "nearest", "all"], "the keys are the cluster's"


def test_what_is_tried_need_not_be_about_invalid_keys(simulate: Simulate) -> None:
    """Those of the cluster are shown as what they are."""
    ran = simulate(*WEB, "--with", "shop/web:min-endpoints=2", items=skewed(f"*,{ZONE}"))
    assert ran.status == 0 and "(not in effect: '*' is key 1 of 2" in ran.out, ran.err


def test_domains_fail(simulate: Simulate) -> None:
    """Their clients still ask; their endpoints are not ready."""
    row = only(simulate("--fail", f"{ZONE}=a", "--fail", "failure-domain.beta.kubernetes.io/zone=b", "-o", "json"))
    assert (row["endpoints"], row["unmet_clients"], row["max_overload"]) == ([], 10, 0)
    assert [one["clients"] for one in row["domains"]] == [6, 2, 2]
    assert row["cross_zone"] == {"before": 0, "after": 0}


def test_clients_are_named(simulate: Simulate) -> None:
    """Then endpoints ask, too."""
    assert [one["clients"] for one in only(simulate("--clients", "shop", "-o", "json"))["domains"]] == [7, 5, 2]
    some = only(simulate("--clients", "shop/app=front,tier=0", "-o", "json"))
    assert [one["clients"] for one in some["domains"]] == [3, 1, 1]
    both = only(simulate("--clients", "shop/app=web", "--clients", "shop/tier=1", "-o", "json"))
    assert [one["clients"] for one in both["domains"]] == [4, 4, 1]


def test_money(simulate: Simulate) -> None:
    """Price times traffic times the part that crosses zones, for each Service."""
    totals = simulate("--price", "0.02", "--traffic", "1000", "-o", "json").json["totals"]
    assert totals["cost"] == {"before": pytest.approx(14), "after": pytest.approx(4)}
    assert (
        "costs 14.00 a month without constraints, 4.00 with them: 10.00 less"
        in simulate("--price", "0.02", "--traffic", "1000").out
    )


@pytest.mark.parametrize(
    ("items", "flags", "annotations"),
    [
        (skewed(), (), f"{MAX_OVERLOAD}=1.5"),
        (skewed(), ("--max-overload", "1.2"), f"{MAX_OVERLOAD}=1.2"),
        (skewed(), ("--max-overload", "1"), f"{MAX_OVERLOAD}=1.1"),
        (
            skewed(clients_in={"a": 99, "b": 1}, endpoints_in={"a": 1, "b": 12}),
            ("--max-overload", "11"),
            f"{MAX_OVERLOAD}=10",
        ),
        (skewed(f"{ZONE},{REGION}"), (), f"{MAX_OVERLOAD}=1.5"),
        (skewed(None), (f"--with=shop/web={ZONE},*",), f"{TOPOLOGY_KEYS}='{ZONE},*' {MAX_OVERLOAD}=1.5"),
        (skewed(field=[ZONE, "*"]), ("--with=shop/web=",), f"{TOPOLOGY_KEYS}- {MAX_OVERLOAD}=1.5"),
        (skewed(), ("--with=shop/web:min-endpoints=1",), f"{MIN_ENDPOINTS}=1 {MAX_OVERLOAD}=1.5"),
        (skewed(annotations={MAX_OVERLOAD: "9"}), ("--with=shop/web:max-overload=",), f"{MAX_OVERLOAD}=1.5"),
    ],
    ids=[
        "soft",
        "low",
        "lowest",
        "highest",
        "several keys",
        "tried",
        "taken away",
        "beside another",
        "balance taken away",
    ],
)
def test_max_overload_is_proposed(simulate: Simulate, items: Any, flags: tuple[str, ...], annotations: str) -> None:
    """It bounds what is overloaded. The command also does in the cluster what ``--with`` tried."""
    command = f"kubectl -n shop annotate service web --overwrite {annotations}\n"
    assert f"  proposal  {command}" in simulate(*WEB, *flags, items=items).out
    assert f"$ {command}" in simulate(*WEB, *flags, "-o", "markdown", items=items).out


def test_a_balance_is_tried(simulate: Simulate, tmp_path: Path) -> None:
    """Those for whom there is no room are spilled, in tables and in the picture."""
    path = tmp_path / "web.svg"
    flags = (*WEB, "--with", "shop/web:max-overload=1.2", "--picture", str(path))
    out = simulate(*flags, items=balanced_if()).out
    assert f"web.shop.svc.cluster.local  annotation: {ZONE},*, max-overload 1.2\n" in out
    assert "\n  each endpoint may expect 3.0 of 10 clients; 1 endpoint had no more room\n" in out
    assert re.search(r"\n  zone=a +2 +spilled +10.0.2.1, 10.1.2.1, 10.1.2.2 and 1 more\n", out), out
    assert re.search(r"\n  zone=a +2 +spilled +10.1.2.1, 10.1.2.2, 10.1.2.3\n", out), out
    assert re.search(r"\n  zone=a +2 +nearest +10.0.2.1\n", out), out
    texts = [element.text or "" for element in ElementTree.fromstring(path.read_text()).iter()]
    assert "a to b: 35.0 % of the load, no room nearer" in texts
    row = only(simulate(*flags, "-o", "json", items=balanced_if()))
    assert row == only(simulate(*WEB, "-o", "json", items=balanced_if(**{MAX_OVERLOAD: "1.2"})))
    assert row["max_overload"] <= 1.2 and row["cross_zone"]["after"] == pytest.approx(0.55)
    assert row == only(simulate(*flags, "-o", "json", items=balanced_if(**{MAX_OVERLOAD: "9"})))
    assert "spilled" not in simulate("--with", "shop/web:max-overload=", items=balanced_if(**{MAX_OVERLOAD: "1.2"})).out


def test_whom_a_balance_counts_is_tried(simulate: Simulate) -> None:
    """Whom it counts is one thing, who asks in the simulation is another. Labels of pods are read for it."""
    bound, some = ("--with", "shop/web:max-overload=1.2"), "shop/app=web"
    for_some = only(simulate(*WEB, *bound, "-o", "json", items=balanced_if(**{CLIENTS: some})))
    assert for_some == only(
        simulate(*WEB, *bound, f"--with=shop/web:clients={some}", "-o", "json", items=balanced_if())
    )
    assert for_some == only(simulate(*WEB, "-o", "json", items=balanced_if()))
    assert for_some["max_overload"] > 2 and sum(one["clients"] for one in for_some["domains"]) == 10
    text = simulate(*WEB, *bound, "--clients", "shop/tier=1", items=balanced_if(**{CLIENTS: some})).out
    assert " of 4 clients; all have room\n" in text and "\n  5 clients, 4 ready endpoints, " in text
    nobody = simulate(*WEB, *bound, "--with", "shop/web:clients=nowhere", items=balanced_if()).out
    assert " of 0 clients; all have room\n" in nobody and "spilled" not in nobody


@pytest.mark.parametrize(
    ("items", "flags", "codes"),
    [
        (skewed(None), ("max-overload=2",), ["BalanceWithoutEffect"]),
        (skewed(), ("clients=shop",), ["BalanceWithoutEffect"]),
        (skewed(), ("max-overload=2", "clients=shpo"), ["BalanceWithoutClients"]),
        (skewed(ZONE), ("max-overload=2",), ["BalanceImpossible"]),
        (skewed(annotations={CLIENTS: "shop"}), ("max-overload=3",), []),
        (skewed(annotations={CLIENTS: "shpo", MAX_OVERLOAD: "3"}), ("clients=",), []),
        (skewed(ZONE, annotations={MAX_OVERLOAD: "2"}), ("max-overload=",), []),
        (skewed(ZONE, annotations={MAX_OVERLOAD: "2"}), ("min-endpoints=1",), ["BalanceImpossible"]),
    ],
    ids=["no constraint", "alone", "nobody", "hard", "heard", "found", "taken away", "as it is"],
)
def test_findings_are_about_what_is_tried(simulate: Simulate, items: Any, flags: tuple[str, ...], codes: Any) -> None:
    """What is wrong in the cluster alone is not said; what would be wrong is."""
    found = simulate(*WEB, *(f"--with=shop/web:{flag}" for flag in flags), "-o", "json", items=items).json["findings"]
    assert [one["code"] for one in found if "Balance" in one["code"]] == codes


def test_clients_in_a_failed_domain_count(simulate: Simulate) -> None:
    """They still ask."""
    out = simulate(*WEB, "--with=shop/web:max-overload=1.5", "--fail", f"{ZONE}=a", items=balanced_if()).out
    assert "\n  each endpoint may expect 5.0 of 10 clients; all have room\n" in out


CHOICES = {
    "none": {TOPOLOGY_KEYS: "*"},
    "as it is": None,
    "zone": {TOPOLOGY_KEYS: f"{ZONE},*"},
    "zone, at most 1.2": {TOPOLOGY_KEYS: f"{ZONE},*", MAX_OVERLOAD: "1.2"},
    "zone, at most 1.5": {TOPOLOGY_KEYS: f"{ZONE},*", MAX_OVERLOAD: "1.5"},
    "zone, at most 2": {TOPOLOGY_KEYS: f"{ZONE},*", MAX_OVERLOAD: "2"},
}


@pytest.mark.parametrize("flags", [(), ("--fail", f"{ZONE}=b"), ("--with=shop/web=kubernetes.io/hostname",)],
                         ids=["cluster", "failed", "tried"])  # fmt: skip
def test_choices_are_compared(simulate: Simulate, flags: tuple[str, ...]) -> None:
    """Each is what the Service is with these annotations in the cluster. What ``--with`` tries is "as it is"."""
    asks = {TOPOLOGY_KEYS: f"{ZONE}", MIN_ENDPOINTS: "2", MAX_OVERLOAD: "3"}
    row = only(simulate(*WEB, *flags, "--compare", "-o", "json", items=skewed(None, annotations=asks)))
    assert [one["name"] for one in row["compare"]] == list(CHOICES)
    for found in row["compare"]:
        choice = CHOICES[found["name"]]
        used = flags if choice is None else tuple(flag for flag in flags if not flag.startswith("--with"))
        alone = only(simulate(*WEB, *used, "-o", "json", items=skewed(None, annotations=choice or asks)))
        assert found == {
            "name": found["name"], "constraint": None if found["name"] == "none" else alone["constraint"],
            "cross_zone": alone["cross_zone"]["after"], "max_overload": alone["max_overload"],
            "unmet_clients": alone["unmet_clients"],
            "overloaded": sum(one["share"] > 1.5 * one["even_share"] for one in alone["endpoints"]),
        }  # fmt: skip


def test_what_decides_in_the_place_of_a_choice_is_said(simulate: Simulate) -> None:
    """Without ``--compare`` there is nothing of it."""
    items = [*skewed(labels={"app": "web"}), REQUIRED]
    row = only(simulate("--compare", "-o", "json", items=items))
    assert [one["constraint"] for one in row["compare"]] == [{"source": "policy", "keys": [ZONE]}] * len(CHOICES)
    assert "compare" not in only(simulate("-o", "json"))
    hinted = only(simulate("--compare", "-o", "json", items=skewed(None, trafficDistribution="PreferClose")))
    assert [one["constraint"] and one["constraint"]["source"] for one in hinted["compare"]] == [
        None, "traffic-distribution", *["annotation"] * 4
    ]  # fmt: skip


def test_choices_are_tables(simulate: Simulate) -> None:
    """Also in Markdown; of many Services, those of the worst. YAML has what JSON has."""
    assert yaml.safe_load(simulate("--compare", "-o", "yaml").out) == simulate("--compare", "-o", "json").json
    text = simulate("--compare").out
    assert re.search("\n  as it is +20.0 % +2.60 x +1 +0 +annotation: ", text), text
    markdown = simulate("--compare", "-o", "markdown").out
    assert "\n#### web.shop.svc.cluster.local\n\n| compared | cross-zone |" in markdown
    assert "\n| none | 70.0 % | 1.00 x | 0 | 0 | no constraint |\n" in markdown
    many = copies(20)
    for output, heading in (("text", "\n  compared "), ("markdown", "\n| compared |")):
        assert simulate("--compare", "-o", output, items=many).out.count(heading) == 10


@pytest.mark.parametrize(
    ("items", "flags"),
    [
        (skewed(), ("--max-overload", "3")),
        (skewed(ZONE), ()),
        (skewed(annotations={MAX_OVERLOAD: "1.5"}), ("--max-overload", "1")),
        ([*skewed(labels={"app": "web"}), REQUIRED], ("--with=shop/web=*",)),
    ],
    ids=["no overload", "nowhere else to go", "asked for already", "required"],
)
def test_nothing_is_proposed_that_changes_nothing(simulate: Simulate, items: Any, flags: tuple[str, ...]) -> None:
    for output in ("text", "markdown"):
        ran = simulate(*WEB, *flags, "-o", output, items=items)
        assert ran.status == 0 and "kubectl" not in ran.out, ran.out


@pytest.mark.parametrize(
    ("keys", "word", "status"),
    [(f"{ZONE},*", "overload", 1), (f"{ZONE},*", "unmet,idle", 0), (ZONE, "unmet", 1), (ZONE, "never", 0),
     ("kubernetes.io/hostname", "idle", 0)],
)  # fmt: skip
def test_a_pipeline_fails(simulate: Simulate, keys: str, word: str, status: int) -> None:
    assert simulate(*WEB, "--with", f"shop/web={keys}", "--fail-on", word).status == status


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--service", "shop/wep"), "--service: no Service shop/wep, did you mean shop/web?"),
        (("--service", "shop/virtual"), "--service: shop/virtual has a cluster IP, so DNS chooses no endpoints: "
         "kube-proxy does, expected a headless Service, or for kube-proxy the label topodns.io/hints"),
        (("--service", "web"), "--service: 'web', expected NAMESPACE/NAME"),
        (("--with", "shop/wep=*"), "--with: no Service shop/wep, did you mean shop/web?"),
        (("--with", "shop/web"), "--with: 'shop/web', expected NAMESPACE/NAME=KEYS, NAME.NAMESPACE=KEYS, or svc/"),
        (("--with", f"shop/web=*,{ZONE}"), "--with: shop/web=*,topology.kubernetes.io/zone: '*' is key 1 of 2"),
        (("--with", "shop/web:max-overlaod=2"), "--with: 'shop/web:max-overlaod=2': 'max-overlaod' cannot be tried, "
         "did you mean max-overload?, expected NAMESPACE/NAME=KEYS"),
        (("--with", "shop/web:colour=2"), "'colour' cannot be tried; there are clients, max-overload, min-endpoints"),
        (("--with", "shop/web:max-overload"), "--with: 'shop/web:max-overload', expected NAMESPACE/NAME=KEYS"),
        (("--with", "shop/wep:max-overload=2"), "--with: no Service shop/wep, did you mean shop/web?"),
        (("--with", "shop/web:max-overload=20"),
         "--with: shop/web:max-overload=20: '20' found, expected a decimal number from 1.1 to 10"),
        (("--with", "shop/web:min-endpoints=0"),
         "--with: shop/web:min-endpoints=0: '0' found, expected a whole number from 1 to 999999999"),
        (("--with", "shop/web:clients=shop/app in;"), "shop/web:clients=shop/app in;: 'shop/app in;' found, expected"),
        (("--with", "shop/web:max-overload=2", "--with", "shop/web:min-endpoints=x"), "shop/web:min-endpoints=x: 'x' "),
        (("--service", "shop/plain", "--with", "shop/web=*"),
         "--with: shop/web is not simulated, expected it among --service: shop/plain"),
        (("--fail", f"{ZONE}=x"), f"--fail: no node has {ZONE}=x; there are a, b, c"),
        (("--fail", "example.com/zone=a"), "--fail: no node has the label example.com/zone, did you mean"),
        (("--fail", "zone"), "--fail: 'zone', expected KEY=VALUE of a node label"),
        (("--clients", "shp"), "--clients: shp: no running pod in namespace shp, did you mean shop?"),
        (("--clients", "shop/app=fron"), "matches; they have app=front, app=web"),
        (("--clients", "shop/colour=red"), "matches; none has colour"),
        (("--clients", "shop/app in"), "'app in' is no label selector, expected NAMESPACE"),
        (("--price", "0.02"), "--traffic: missing, expected both --price and --traffic"),
        (("--price", "cheap", "--traffic", "1"), "--price: 'cheap', expected a number from 0 on"),
        (("--price", "nan", "--traffic", "1"), "--price: 'nan', expected a number from 0 on"),
        (("--price", "1", "--traffic", "100TB"), "--traffic: '100TB', expected a number of gigabytes from 0 on"),
        (("--price", "1e308", "--traffic", "1e308"), "--price: 1e+308 times --traffic 1e+308 is too large"),
        (("--clients-from", "http://[::1"), "--clients-from: 'http://[::1', expected http://HOST:PORT"),
        (("--price", "-1", "--traffic", "1"), "--price: '-1', expected a number from 0 on"),
        (("--max-overload", "0.5"), "--max-overload: '0.5', expected a factor from 1 on"),
        (("--fail-on", "fire"), "--fail-on: 'fire', expected never, overload, idle or unmet"),
        (("--picture", "x.png"), "--picture: 'x.png': the picture is an SVG, and 'x.svg' would say so, expected FILE"),
        (("--picture", "/nowhere/x.svg"), "--picture /nowhere/x.svg: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_input(simulate: Simulate, flags: tuple[str, ...], message: str) -> None:
    """Status 2, and a message that says what was found and what would do."""
    ran = simulate(*flags)
    assert ran.status == 2 and message in ran.err, ran.err


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([item for item in skewed() if item["kind"] != "Pod"],
         "no pods (a dump must contain them), expected some that ask"),
        ([item for item in skewed() if item["kind"] != "Pod"] + [pod("done", ["10.0.0.9"], None, phase="Failed")],
         "none of 1 pods runs and has an address"),
        ([item for item in skewed() if item["kind"] != "Service"], "the dump has no Services, expected one"),
        ([item for item in skewed() if item["kind"] != "Service"] + [external("away", "example.com")],
         "no headless Service, expected one"),
    ],
    ids=["no pods", "no running pod", "no Service", "no headless Service"],
)  # fmt: skip
def test_a_cluster_with_nothing_to_simulate(simulate: Simulate, items: Any, message: str) -> None:
    """No flag is at fault but one that was given."""
    ran = simulate(items=items)
    assert ran.status == 2 and ran.err.startswith(f"topodns: {message}"), ran.err
    if "that ask" in message:
        assert f"topodns: --clients: {message}" in simulate("--clients", "shop", items=items).err


def test_text(simulate: Simulate) -> None:
    """Of several, and of one of each."""
    one = simulate(items=skewed(ZONE, clients_in={"c": 1}, endpoints_in={"a": 1})).out
    assert "  1 client, 1 ready endpoint, " in one and "1 Service, 1 client, " in one
    out = simulate().out
    assert "web.shop.svc.cluster.local  annotation: topology.kubernetes.io/zone,*" in out
    assert "10.0.2.1  web-a0  node-a  zone=a  65.0 %  2.60 x            overloaded" in out
    assert "1 Service, 10 clients, cross-zone 70.0 % of the load without constraints, 20.0 % with them" in out
    assert "warning  Service shop/web: web-a0 gets 2.6 times an even share of the load" in out


def test_colours(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each colour ends, and nothing else does; without them the text is the same."""
    plain = simulate().out
    for module in ("dnsserver.cli.commands.simulate", "dnsserver.cli.output"):
        monkeypatch.setattr(f"{module}.coloured", lambda: True)
    text = simulate().out
    codes = re.findall("\033\\[\\d+m", text)
    assert codes[::2] and PLAIN not in codes[::2] and set(codes[1::2]) == {PLAIN}
    assert re.sub("\033\\[\\d+m", "", text) == plain


def hostile() -> Any:
    items = skewed()
    for item in items:
        if item["kind"] == "Node" and item["metadata"]["name"] == "node-a":
            item["metadata"]["labels"][ZONE] = '<script>|`\x1b[31m&" @all http://x'
    return items


def test_names_are_no_markup(simulate: Simulate, tmp_path: Path) -> None:
    """What a label holds is text: in Markdown, in a terminal, and in a picture."""
    picture = tmp_path / "web.svg"
    ran = simulate("-o", "markdown", "--picture", str(picture), items=hostile())
    assert ran.status == 0 and not [text for text in ("<script>", "@all", "http://x") if text in ran.out]
    root = ElementTree.fromstring(picture.read_text())
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert any("<script>" in (element.text or "") for element in root.iter())
    assert "\x1b" not in simulate(items=hostile()).out


def test_picture(simulate: Simulate, tmp_path: Path) -> None:
    """It says in words what is overloaded, idle or unmet, and a page may colour it: no styles, no scripts."""
    path = tmp_path / "web.svg"
    assert simulate("--picture", str(path)).status == 0
    root = ElementTree.fromstring(path.read_text())
    texts = [element.text or "" for element in root.iter()]
    assert any("web-a0: 2.6\N{MULTIPLICATION SIGN} overloaded" in text for text in texts)
    assert any(text.startswith("c to b: ") and text.endswith("to another zone") for text in texts)
    assert all("style" not in element.attrib for element in root.iter())


def test_a_picture_of_many_zones(simulate: Simulate, tmp_path: Path) -> None:
    """The largest are drawn, and it says that there are more."""
    path, zones = tmp_path / "web.svg", [f"z{number}" for number in range(15)]
    items = skewed(clients_in=dict.fromkeys(zones, 1), endpoints_in=dict.fromkeys(zones[:13], 1))
    assert simulate("--picture", str(path), items=items).status == 0
    texts = [element.text for element in ElementTree.fromstring(path.read_text()).iter()]
    assert "not drawn: 3 zones of clients, 1 zone of endpoints" in texts


@pytest.mark.parametrize(("cluster", "shown"), [("cluster", "simulate"), ("uneven", "balance")])
def test_a_page_shows_the_picture(topodns: Run, tmp_path: Path, cluster: str, shown: str) -> None:
    """``make docs`` draws it."""
    drawn, snapshot = tmp_path / "drawn.svg", ROOT / "examples" / f"{cluster}.yaml"
    assert topodns("simulate", "--snapshot", str(snapshot), "--picture", str(drawn)).status == 0
    assert drawn.read_text() == (ROOT / "docs" / f"{shown}.svg").read_text()


def test_a_load_at_the_threshold_is_no_overload(simulate: Simulate) -> None:
    """The endpoint in zone a gets 1.5 even shares, whose fractions make a little more."""
    items = skewed(clients_in={"a": 2, "b": 1, "c": 1, "d": 1, "e": 1}, endpoints_in={"a": 1, "b": 2})
    assert simulate("--max-overload", "1.5", "--fail-on", "overload", items=items).status == 0
    assert simulate("--max-overload", "1.49", "--fail-on", "overload", items=items).status == 1


def test_what_cannot_be_compared_is_not_overloaded(simulate: Simulate) -> None:
    """A client cannot get the cluster IP of each cluster: shares of federated cluster IPs say nothing."""
    items = skewed()
    virtual = next(item for item in items if item["kind"] == "Service" and item["metadata"]["name"] == "virtual")
    virtual["metadata"]["annotations"]["topodns.io/federated"] = "true"
    virtual["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}
    (slices,) = [item for item in items if item["kind"] == "EndpointSlice" and item["metadata"]["name"] == "web-1"]
    items.append(json.loads(json.dumps(slices).replace('"web-1"', '"virtual-1"').replace('"web"', '"virtual"')))
    ran = simulate("--federation", "fed.example", "--service", "shop/virtual", "-o", "json", items=items)
    assert [row["zone"] for row in ran.json["services"]] == ["fed.example"], ran.err
    assert not {"OverloadedEndpoint", "IdleEndpoint"} & {finding["code"] for finding in ran.json["findings"]}


def test_clusters_that_share_no_network_are_not_compared(simulate: Simulate, tmp_path: Path) -> None:
    """No constraint can send the clients of a large cluster to the headless endpoints of a small one."""
    items = skewed(f"{REGION},*", annotations={"topodns.io/federated": "true"})
    few = [item for item in items if not item["metadata"]["name"].startswith("client-a")]
    other = tmp_path / "other.json"
    other.write_text(listed(few).replace('"10.', '"11.'))
    both = (*WEB, "--federation", "fed.example", "--cluster", f"other={other}", "--max-overload", "1.2")
    near = ("--with", "shop/web=topodns.io/cluster", "--fail", f"{ZONE}=b", "-o", "json")
    for flat, codes in (((), set()), (("--flat-network", "local,other"), {"OverloadedEndpoint"})):
        found = simulate(*both, *near, *flat, items=items).json
        assert found["services"][1]["max_overload"] > 1.2
        assert {finding["code"] for finding in found["findings"]} & {"OverloadedEndpoint", "IdleEndpoint"} == codes
    items.append(pod("lone", ["10.0.8.1"], "node-a", where="other"))
    one = simulate(*both, "--clients", "other", "-o", "markdown", items=items)
    assert "| web.shop.fed.example | 1 | 8 | 2.00 x | 0 |" in one.out, "the four of the other cluster are not idle"


@pytest.mark.parametrize(
    ("metrics", "message"),
    [("", "no topodns_answer_zones_total"), ("x{", "no topodns_answer_zones_total"),
     ('topodns_answer_zones_total{client_zone="a",answer="same"} +Inf', "no topodns_answer_zones_total"),
     ('topodns_answer_zones_total{client_zone="a",answer="same"} -5', "no topodns_answer_zones_total"),
     ('topodns_answer_zones_total{client_zone="a",answer="same"} 0', "has counted no answers yet")],
    ids=["nothing", "malformed", "infinite", "negative", "none-yet"],
)  # fmt: skip
def test_metrics_that_cannot_be_used(simulate: Simulate, metrics: str, message: str) -> None:
    text = f"# TYPE topodns_answer_zones_total counter\n{metrics}\n"
    with other_server(lambda: Response(200, text.encode(), "text/plain")) as address:
        ran = simulate("--clients-from", f"http://{address}")
    assert ran.status in (1, 2) and message in ran.err


def test_counted_clients_that_nothing_locates_are_unknown(simulate: Simulate) -> None:
    metrics = """# TYPE topodns_answer_zones_total counter
topodns_answer_zones_total{client_zone="a",answer="same"} 30
topodns_answer_zones_total{client_zone="unknown",answer="unknown"} 20
"""
    with other_server(lambda: Response(200, metrics.encode(), "text/plain")) as address:
        ran = simulate("--clients-from", f"http://{address}", "-o", "json")
    assert only(ran)["unknown_clients"] == 20
    assert "20 of 50 clients carry no label" in [finding["message"] for finding in ran.json["findings"]]


def copies(number: int) -> Any:
    """Return the cluster with so many more Services like shop/web."""
    items = skewed()
    web = [item for item in items if item["kind"] in ("Service", "EndpointSlice") and "web" in json.dumps(item)]
    for copy in range(number):
        items += json.loads(json.dumps(web[:2]).replace('"web"', f'"web{copy}"').replace('"web-1"', f'"s{copy}"'))
    return items


def test_many_services_are_a_table(simulate: Simulate, tmp_path: Path) -> None:
    """The worst come first, with what bounds them below. A picture has the first twenty, and says how many more."""
    path = tmp_path / "many.svg"
    out = simulate("--picture", str(path), items=copies(20)).out
    assert out.startswith("service ") and "21 Services, " in out
    assert out.count("proposal  kubectl -n shop annotate") == 20
    texts = [element.text for element in ElementTree.fromstring(path.read_text()).iter()]
    assert "1 more Service; --service NS/NAME draws one" in texts
    assert sum(text is not None and text.endswith("without the constraint") for text in texts) == 20


def test_the_most_severe_findings_come_first(simulate: Simulate) -> None:
    """Also where there are too many to print: here each Service has a client that nothing locates."""
    items = [*skewed(ZONE), pod("lost", ["10.9.9.9"], None)]
    web = [item for item in items if item["kind"] in ("Service", "EndpointSlice") and "web" in json.dumps(item)]
    for number in range(50):
        items += json.loads(json.dumps(web[:2]).replace('"web"', f'"a{number}"').replace('"web-1"', f'"s{number}"')
                            .replace(ZONE, "*"))  # fmt: skip
    for output in ("text", "markdown"):
        ran = simulate("--fail-on", "unmet", "-o", output, items=items)
        assert ran.status == 1 and "3 of 11 clients get no address" in ran.out, ran.out
        assert ran.out.index("UnmetClients") < ran.out.index("UnlocatedClient")


def with_client(name: str, address: str) -> dns.message.Message:
    return dns.message.make_query(name, "A", use_edns=0, options=[dns.edns.ECSOption(address, 32)])


def test_a_real_server_spreads_the_load_so(simulate: Simulate, serve: Callable[..., Server]) -> None:
    """Each client asks often, and takes the first address: the shares agree within the error of sampling.

    Then the same from what that server has counted.
    """
    items = skewed()
    row = only(simulate("-o", "json"))
    server = serve(items, "--trusted-forwarder", "127.0.0.0/8", "--metrics-per-service", "--http", "127.0.0.1:0")
    clients = [item["status"]["podIPs"][0]["ip"] for item in items
               if item["kind"] == "Pod" and item["metadata"]["name"].startswith("client-")]  # fmt: skip
    times = 100
    firsts = Counter[str]()
    for client in clients:
        for _ in range(times):
            firsts[server.ask(with_client("web.shop.svc.cluster.local", client)).answer[0][0].address] += 1
    total = times * len(clients)
    for endpoint in row["endpoints"]:
        deviation = math.sqrt(endpoint["share"] * (1 - endpoint["share"]) / total)
        assert firsts[endpoint["address"]] / total == pytest.approx(endpoint["share"], abs=UNLIKELY * deviation)
    for _ in range(total):  # now zone c asks as much as all others
        server.ask(with_client("web.shop.svc.cluster.local", "10.2.1.1"))
    counted = only(simulate("--clients-from", f"http://{server.http}", "-o", "json"))
    assert {one["domain"][ZONE]: one["clients"] for one in counted["domains"]} == {
        "a": 6 * times, "b": 2 * times, "c": 2 * times + total
    }  # fmt: skip
    assert counted["cross_zone"]["after"] == pytest.approx(0.6)
    closed = simulate("--clients-from", "http://127.0.0.1:1")
    assert closed.status == 1 and "Connection refused, expected a running topodns, at an address of its" in closed.err
