# SPDX-License-Identifier: Apache-2.0

"""Label selectors, as texts and as objects: what each selects, and those that are none."""

from __future__ import annotations

from typing import Any

FRONT = {"app": "web", "tier": "front", "size": "12"}
TEXTS = [
    # id, selector, labels that are selected, labels that are not
    ("equal", "app=web", FRONT, {"app": "db"}),
    ("equal-twice", "app==web", FRONT, {}),
    ("unequal", "app!=web", {"app": "db"}, FRONT),
    ("unequal-without-the-label", "app!=web", {}, FRONT),
    ("in", "tier in (front, back)", FRONT, {"tier": "middle"}),
    ("in-without-the-label", "tier in (front)", FRONT, {}),
    ("not-in", "tier notin (back,middle)", FRONT, {"tier": "back"}),
    ("not-in-without-the-label", "tier notin (back)", {}, {"tier": "back"}),
    ("in-of-nothing", "app in ()", {"app": ""}, FRONT),
    ("exists", "app", FRONT, {"tier": "app"}),
    ("exists-with-an-empty-value", "app", {"app": ""}, {}),
    ("absent", "!app", {"tier": "front"}, FRONT),
    ("absent-with-space", " ! app ", {}, FRONT),
    ("above", "size>11", FRONT, {"size": "11"}),
    ("above-no-number", "size>11", FRONT, {"size": "large"}),
    ("above-without-the-label", "size>11", FRONT, {}),
    ("below", "size<13", FRONT, {"size": "13"}),
    ("empty-value", "app=", {"app": ""}, {}),
    ("all-must-hold", "app=web,tier!=back,!canary", FRONT, {**FRONT, "canary": "yes"}),
    ("comma-within-a-set", "app in (a,b),tier", {"app": "b", "tier": ""}, {"app": "b"}),
    ("key-with-a-prefix", "kubernetes.io/metadata.name=shop", {"kubernetes.io/metadata.name": "shop"}, {}),
    ("key-called-in", "in in (in)", {"in": "in"}, {"in": "out"}),
    ("all-kinds-of-space", "app\tin\r\n(\tweb )", FRONT, {}),
    ("key-that-begins-with-in", "inner", {"inner": ""}, {"in": "ner"}),
]
NO_TEXTS = (
    ["", " ", ",", "app=web,", ",app", "app web", "app=web=db", "=web", "app in web", "app in (web", "app notin",
     "(app)", "app>many", "-app", "app=we b", "app=-web", "app in (we b)", "a/b/c", "app=web,,tier", "!app=web", "app!",
     "app<>1", "appin(web)", "appin (web)", "appnotin(web)", "app\x0b=web", "app=web\xa0", "app in (web\x0c)"]
)  # fmt: skip

WEB = {"app": "web"}


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator} | ({"values": values} if values else {})]}


OBJECTS: list[tuple[str, dict[str, Any], dict[str, str], dict[str, str]]] = [
    # id, selector, labels that are selected, labels that are not
    ("label", {"matchLabels": WEB}, {"app": "web", "tier": "front"}, {"app": "db"}),
    ("two-labels", {"matchLabels": {"app": "web", "tier": "front"}}, {"app": "web", "tier": "front"}, WEB),
    ("empty-value", {"matchLabels": {"app": ""}}, {"app": ""}, {}),
    ("in", expression("In", "web", "db"), WEB, {"app": "cache"}),
    ("in-without-the-label", expression("In", "web"), WEB, {}),
    ("not-in", expression("NotIn", "db"), WEB, {"app": "db"}),
    ("not-in-without-the-label", expression("NotIn", "db"), {}, {"app": "db"}),
    ("exists", expression("Exists"), {"app": ""}, {"tier": "app"}),
    ("does-not-exist", expression("DoesNotExist"), {"tier": "app"}, WEB),
    ("all-must-hold", {"matchLabels": WEB} | expression("Exists", key="tier"), {"app": "web", "tier": ""}, WEB),
    ("key-with-a-prefix", {"matchLabels": {"app.kubernetes.io/name": "web"}}, {"app.kubernetes.io/name": "web"}, WEB),
]
NO_OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("unknown-operator", expression("Equals", "web")),
    ("operator-in-small-letters", expression("in", "web")),
    ("in-without-values", expression("In")),
    ("not-in-without-values", expression("NotIn")),
    ("exists-with-values", expression("Exists", "web")),
    ("does-not-exist-with-values", expression("DoesNotExist", "web")),
    ("key", expression("Exists", key="a b")),
    ("key-of-a-label", {"matchLabels": {"a/b/c": "web"}}),
    ("no-key", expression("Exists", key="")),
    ("value", expression("In", "we b")),
    ("value-of-a-label", {"matchLabels": {"app": "-web"}}),
    ("long-value", {"matchLabels": {"app": "a" * 64}}),
    ("one-of-two", {"matchLabels": WEB} | expression("Exists", key="a b")),
]
