# SPDX-License-Identifier: Apache-2.0

"""Constraints of a Service: validity (KEP-536) and precedence, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from locator.endpoints import Port
from locator.labels import parse_selector
from locator.model import Endpoint, Hints, Service, ServicePolicy
from locator.topology.annotations import (
    CLIENTS,
    HEALTH,
    MAX_OVERLOAD,
    MIN_ENDPOINTS,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
    asking,
    max_overload,
)
from locator.topology.constraints import (
    ANNOTATION,
    FIELD,
    HINTS,
    REQUIRED,
    SERVICE_ANNOTATIONS,
    SOURCES,
    TRAFFIC_DISTRIBUTION,
    Declaration,
    deciding,
    declarations_of,
)
from locator.topology.hints import hinted
from locator.topology.selection import FirstMatch
from locator.topology.service_checks import service_findings
from tests.kit import annotation_values

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


def service(keys: str | None = None, field: tuple[str, ...] | None = None, **more: Any) -> Service:
    annotations = more.pop("annotations", {}) | ({} if keys is None else {TOPOLOGY_KEYS: keys})
    return Service(
        "shop", "web", headless=more.pop("headless", True), topology_keys=field, annotations=annotations, **more
    )


def declaration_of(asked: Service) -> Declaration | None:
    """Return the declaration that counts."""
    return deciding(declarations_of(asked))


@pytest.mark.parametrize(("keys", "words"), annotation_values.KEYS)
def test_validity(keys: str, words: str | None) -> None:
    """At most 16 keys, each a valid label key, none twice, ``*`` only last."""
    declaration = declaration_of(service(keys))
    assert declaration is not None
    assert declaration.valid == (words is None), declaration.error
    if words is not None:
        assert words in str(declaration.error)


TO_A, TO_NODE = Hints(zones=("a",)), Hints(nodes=("a1",))
BOTH = Hints(("a1",), ("a",))
NEAR = {"traffic_distribution": "PreferClose"}


@pytest.mark.parametrize(
    ("asked", "hints", "declared"),
    [
        (service(), [None, None], []),
        (service("", field=()), [], []),
        (service("", field=(ZONE,)), [], [(FIELD, (ZONE,))]),
        (service("*,*", field=(ZONE,)), [], [(ANNOTATION, ("*", "*")), (FIELD, (ZONE,))]),
        (service(), [TO_A, TO_A], [(HINTS, (ZONE, "*"))]),
        (service(), [TO_NODE, TO_NODE], [(HINTS, (HOST, "*"))]),
        (service(), [BOTH, BOTH], [(HINTS, (HOST, ZONE, "*"))]),
        (service(), [BOTH, TO_A], [(HINTS, (ZONE, "*"))]),
        (service(), [TO_A, TO_NODE], [(HINTS, None)]),
        (service(), [TO_A, None], [(HINTS, None)]),
        (service(**NEAR), [TO_A, None], [(HINTS, None), (TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
        (service(**NEAR), [None], [(TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
        (service(traffic_distribution="PreferSameZone"), [], [(TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
        (service(traffic_distribution="PreferSameNode"), [], [(TRAFFIC_DISTRIBUTION, (HOST, ZONE, "*"))]),
        (service(traffic_distribution="PreferFar"), [], []),
        (service(annotations={TOPOLOGY_MODE: "Auto"}, **NEAR), [], [(HINTS, None), (TRAFFIC_DISTRIBUTION, ("*",))]),
        (service(annotations={TOPOLOGY_MODE: "auto"}, **NEAR), [], [(HINTS, None), (TRAFFIC_DISTRIBUTION, ("*",))]),
        (service(annotations={TOPOLOGY_MODE: "Disabled"}, **NEAR), [], [(TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
        (service(annotations={TOPOLOGY_MODE: "Auto"}), [], [(HINTS, None)]),
        (service(annotations={TOPOLOGY_MODE: "Auto"}), [TO_A], [(HINTS, (ZONE, "*"))]),
        (service(**NEAR), [TO_A], [(HINTS, (ZONE, "*")), (TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
        (service(HOST, field=(ZONE,), **NEAR), [TO_A], [(ANNOTATION, (HOST,)), (FIELD, (ZONE,)), (HINTS, (ZONE, "*")),
                                                        (TRAFFIC_DISTRIBUTION, (ZONE, "*"))]),
    ],
    ids=["no-hints", "empty", "empty-annotation", "invalid-annotation", "zones", "nodes", "both", "zones-for-all",
         "neither-for-all", "in-part", "in-part-and-close", "close", "same-zone", "same-node", "unknown", "auto",
         "lower-case-auto", "disabled", "auto-alone", "auto-with-hints", "hints-first", "all"],
)  # fmt: skip
def test_sources(asked: Service, hints: list[Hints | None], declared: list[tuple[str, tuple[str, ...] | None]]) -> None:
    """What all declare, in order; hints count only as far as every ready endpoint has them, else (None) never.

    The first that is not ignored decides, even if it is invalid.
    """
    endpoints = [Endpoint((bytes(4),), hints=hint) for hint in hints]
    endpoints.append(Endpoint((bytes(4),), ready=False, hints=None if any(hints) else TO_A))
    found = declarations_of(asked, (), hinted(endpoints))
    assert [
        (declaration.source, None if declaration.unmatched else declaration.constraint.keys) for declaration in found
    ] == declared
    assert all((declaration.ignored is None) != declaration.unmatched for declaration in found)
    decides = deciding(found)
    assert (decides and decides.source) == next((source for source, keys in declared if keys is not None), None)
    switched_off = declarations_of(asked, (), hinted(endpoints), honor_kubernetes=False)
    assert [declaration.ignored is None for declaration in switched_off] == [
        source in (ANNOTATION, FIELD) for source, _ in declared
    ]


def test_the_table_of_sources() -> None:
    """Names are stable, and in order of precedence. Findings can name the field of all that are read from objects."""
    names = ["zonal-name", "policy", "annotation", "field", "hints", "traffic-distribution", "zone-default"]
    assert [row.name for row in SOURCES] == names
    assert all(bool(row.field) == (row.read is not None) for row in SOURCES)
    assert {TOPOLOGY_KEYS, TOPOLOGY_MODE} <= SERVICE_ANNOTATIONS


def test_external_traffic_policy() -> None:
    """Keys and ``externalTrafficPolicy: Local`` contradict each other (KEP-536); so do policies."""
    declaration = declaration_of(service(ZONE, external_traffic_policy="Local"))
    assert declaration is not None and not declaration.valid and "externalTrafficPolicy" in str(declaration.error)
    policy = ServicePolicy("shop", "near", "", parse_selector("app=web"), ZONE, REQUIRED)
    for headless in (True, False):
        asked = service(headless=headless, labels={"app": "web"}, external_traffic_policy="Local")
        declaration = deciding(declarations_of(asked, [policy]))
        assert declaration is not None and declaration.valid == (not headless)


@pytest.mark.parametrize(
    ("text", "number"), annotation_values.MIN_ENDPOINTS, ids=lambda value: str(value)[:8] or "nothing"
)
def test_min_endpoints(text: str, number: int | None) -> None:
    """A whole number from 1; any other value counts as 1 and is a finding."""
    asked = service(ZONE, annotations={MIN_ENDPOINTS: text})
    declaration = declaration_of(asked)
    assert declaration is not None and declaration.valid
    assert declaration.constraint == FirstMatch((ZONE,), at_least=number or 1)
    reported = [
        finding for finding in service_findings(asked, declarations_of(asked)) if finding.code == "InvalidMinEndpoints"
    ]
    assert bool(reported) == (number is None)


@pytest.mark.parametrize(("text", "number"), annotation_values.MAX_OVERLOAD, ids=lambda value: repr(value)[:40])
def test_max_overload(text: str, number: float | None) -> None:
    """A decimal number from 1.1 to 10, without sign and exponent; any other value counts as none and is a finding."""
    asked = service(ZONE, annotations={MAX_OVERLOAD: text})
    assert max_overload(asked) == number
    found = [(finding.code, finding.field) for finding in service_findings(asked, declarations_of(asked))]
    assert found == ([("InvalidMaxOverload", f"metadata.annotations[{MAX_OVERLOAD}]")] if number is None else [])


@pytest.mark.parametrize(("text", "parts"), annotation_values.CLIENTS, ids=lambda value: repr(value)[:40])
def test_clients(text: str, parts: list[str] | None) -> None:
    """At most 16 of ``NAMESPACE[/SELECTOR]`` by ``;``; any other value counts as none and is a finding."""
    asked = service(ZONE, annotations={CLIENTS: text})
    selectors = asking(asked)
    assert (selectors and [selector.text for selector in selectors]) == parts
    found = [(finding.code, finding.field) for finding in service_findings(asked, declarations_of(asked))]
    assert found == ([("InvalidClients", f"metadata.annotations[{CLIENTS}]")] if parts is None else [])


def test_neither_is_there() -> None:
    """Without annotations there is nothing to read, and nothing to find."""
    assert (max_overload(service(ZONE)), asking(service(ZONE))) == (None, None)
    assert not list(service_findings(service(ZONE), declarations_of(service(ZONE))))


@pytest.mark.parametrize(("text", "valid"), annotation_values.HEALTH, ids=lambda value: repr(value)[:40])
def test_health(text: str, valid: bool) -> None:
    """Four forms; any other value counts as none and is a finding."""
    ports = tuple(Port("", number) for number in (1, 80, 443, 8080, 8443, 65535))
    asked = service(annotations={HEALTH: text}, ports=ports)
    found = [(finding.code, finding.field) for finding in service_findings(asked, ())]
    assert found == ([] if valid else [("InvalidHealth", f"metadata.annotations[{HEALTH}]")])


DNS, WEB, SECOND = Port("dns", 53, "udp"), Port("", 80), Port("", 443)
NODES_OWN = "'http:10250/pods' counts as none: 10250 is none of the Service's own TCP ports"


@pytest.mark.parametrize(
    ("text", "of_service", "expected"),
    [
        ("tcp", {"ports": (DNS, WEB)}, []),
        ("tcp:443", {"ports": (WEB, SECOND)}, []),
        ("http:30123/healthz", {"ports": (WEB,), "health_check_port": 30123}, []),
        ("tcp", {"ports": (DNS,)}, [("'tcp' counts as none: the Service has no TCP port", "a TCP port in spec.ports")]),
        ("tcp:53", {"ports": (DNS, WEB)},
         [("'tcp:53' counts as none: 53 is none of the Service's own TCP ports", "PORT to be one of 80")]),
        ("http:10250/pods", {"ports": (WEB,), "health_check_port": 30123},
         [(NODES_OWN, "PORT to be one of 80, 30123")]),
        ("tcp", {"ports": (WEB,), "ingress": ("192.0.2.1", "169.254.169.254", "lb.example")},
         [("169.254.169.254 is not probed", "an address of a load balancer")]),
    ],
)  # fmt: skip
def test_what_is_not_probed_is_said(text: str, of_service: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    """A port that is none of the Service's own is somebody else's; so is an address such as that of metadata."""
    found = list(service_findings(service(annotations={HEALTH: text}, **of_service), ()))
    assert [(finding.code, finding.message, finding.expected) for finding in found] == [
        ("InvalidHealth", *row) for row in expected
    ]


ENDLESS = {"long": "a" * 255_000 + "!", "many": ",".join(map(str, range(45_000))), "both": ("a" * 500 + ",") * 500}


@pytest.mark.parametrize("keys", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("source", [ANNOTATION, FIELD])
def test_little_is_kept_of_endless_keys(keys: str, source: str) -> None:
    """Kubernetes allows 256 KiB of annotations, and nobody needs all of it to see what is wrong."""
    asked = service(keys) if source == ANNOTATION else service(field=tuple(keys.split(",")))
    declaration = declaration_of(asked)
    assert declaration is not None and declaration.error is not None and len(declaration.error) < 500
    assert sum(map(len, declaration.constraint.keys)) < 10_000
    (finding,) = service_findings(asked, (declaration,))
    assert len(str(finding)) < 1000


def test_thousands_of_unknown_annotations() -> None:
    """The findings name a few of them; the last one counts the others."""
    asked = service(annotations={f"topodns.io/x{number}": "" for number in range(10_000)})
    found = list(service_findings(asked, declarations_of(asked)))
    assert len(found) == 8
    assert [finding.message for finding in found[-2:]] == [
        "unknown annotation", "unknown annotation (and 9992 more)"
    ]  # fmt: skip
