# SPDX-License-Identifier: Apache-2.0

"""Findings: how they are printed, and the tables of their codes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import Enum

import pytest

from dnsserver.cli.errors import EXIT_DONE, EXIT_FAILED
from dnsserver.cli.report import as_lines, report
from dnsserver.text import RED
from dnsserver.tools.corefile.codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import ECS_RULE, FALLBACK_PORT, MAX_UPSTREAMS, NODELOCAL_TTL
from dnsserver.tools.doctor.steps import StepCode
from dnsserver.tools.simulation.codes import SimulationCode
from locator.findings import ClusterCode, FindingCode, prose_of
from locator.model import ERROR, INFO, SEVERITIES, WARNING, Finding
from tests.kit.this_machine import ROOT

CODES: list[FindingCode] = [*ClusterCode, *CorefileCode, *SimulationCode]


def finding(severity: str, name: str = "web", line: int | None = None, file: str = "") -> Finding:
    """Return a finding with a field and an expectation."""
    return Finding("SomeCode", severity, "Service", "shop", name, "spec.x", "'y' found", "z", line, file)


@pytest.mark.parametrize(
    ("severities", "last"),
    [
        ((), "0 errors, 0 warnings"),
        ((ERROR,), "1 error, 0 warnings"),
        ((WARNING, ERROR, WARNING), "1 error, 2 warnings"),
        ((INFO,), "0 errors, 0 warnings, 1 info"),
        ((INFO, WARNING, INFO), "0 errors, 1 warning, 2 infos"),
    ],
    ids=["nothing", "error", "both", "info", "several-infos"],
)
def test_counted(severities: Sequence[str], last: str) -> None:
    """The last line counts each severity; infos only if there are any."""
    lines = as_lines([finding(severity) for severity in severities], colour=False)
    assert lines[-1] == last and len(lines) == len(severities) + 1


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (finding(ERROR), "error    Service shop/web: spec.x: 'y' found, expected z [SomeCode]"),
        (finding(WARNING, file="c.yaml"),
         "warning  c.yaml: Service shop/web: spec.x: 'y' found, expected z [SomeCode]"),
        (finding(INFO, line=7, file="c.yaml"),
         "info     c.yaml: line 7: Service shop/web: spec.x: 'y' found, expected z [SomeCode]"),
        (Finding("SomeCode", ERROR, "", "", "", "a.example:53", "cache", line=2, file="Corefile"),
         "error    Corefile: line 2: a.example:53: cache [SomeCode]"),
    ],
    ids=["alone", "with-file", "with-line", "of-a-line"],
)  # fmt: skip
def test_a_line(shown: Finding, line: str) -> None:
    """A line says where, what was found and what was expected, as far as known, and the code."""
    assert as_lines([shown], colour=False)[0] == line
    coloured = as_lines([shown], colour=True)[0]
    assert re.sub("\033\\[\\d+m", "", coloured) == line and (RED in coloured) == (shown.severity == ERROR)


def test_the_gravest_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Findings are sorted by severity; an error makes the command fail."""
    mixed = [finding(severity, name) for name in "ab" for severity in reversed(SEVERITIES)]
    assert report(mixed, "json") == EXIT_FAILED
    ordered = [(row["severity"], row["name"]) for row in json.loads(capsys.readouterr().out)]
    assert ordered == [(severity, name) for severity in SEVERITIES for name in "ab"]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Each field has its name; an unknown line is null."""
    assert report([finding(INFO)], "json") == EXIT_DONE
    assert json.loads(capsys.readouterr().out) == [
        {"code": "SomeCode", "severity": "info", "kind": "Service", "namespace": "shop", "name": "web",
         "field": "spec.x", "message": "'y' found", "expected": "z", "line": None, "file": "",
         "documentation": "docs/findings.md#somecode"},
    ]  # fmt: skip


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_code(code: FindingCode) -> None:
    """A code is in CamelCase as Kubernetes' reasons, has a severity, and tells in whole sentences what to do."""
    assert re.fullmatch(r"([A-Z][a-z0-9]+)+", code.name) and code.severity in SEVERITIES
    assert code.cause.endswith(".") and code.fix[-1] in ".:"
    assert "  " not in code.cause + code.fix and code.cause.count("`") % 2 == code.fix.count("`") % 2 == 0
    assert bool(code.command) or not code.fix.endswith(":"), "a colon announces a command"
    made = code.finding("Service", "shop", "web", field="spec.x", message="'y' found")
    assert (made.code, made.severity) == (code.name, code.severity)


@pytest.mark.parametrize("code", ClusterCode, ids=lambda code: code.name)
def test_a_command_fixes(code: ClusterCode) -> None:
    """For each code of a cluster the page has a command that fixes the cause, or shows what has to be fixed."""
    assert code.command.startswith("kubectl ")


@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("metadata.annotations[topodns/topology-keys]",
         "kubectl -n shop annotate service web topodns/topology-keys-"),
        ("metadata.labels[topodns.io/hint]", "kubectl -n shop label service web topodns.io/hint-"),
        ("metadata.annotations[topodns.io/<b>\n]", "kubectl -n shop annotate service web ANNOTATION-"),
    ],
    ids=["annotation", "label", "no-key"],
)  # fmt: skip
def test_the_command_names_the_key(field: str, command: str) -> None:
    """What nobody knows is taken away by its own name."""
    code = ClusterCode.UnknownAnnotation
    assert code.command_for(code.finding("Service", "shop", "web", field=field, message="unknown")) == command


@pytest.mark.parametrize(
    "codes", [ClusterCode, CorefileCode, SimulationCode, StepCode], ids=lambda codes: codes.__name__
)
def test_what_is_raised_has_prose(codes: type[Enum]) -> None:
    """The file beside the codes explains each of them and no other, and each is raised somewhere."""
    assert list(prose_of(codes)) == list(codes.__members__)
    keys = {"title", "why", "fix"} if codes is StepCode else {"cause", "fix", "command"}
    said = {"message", "expected"} if codes is CorefileCode else set()
    assert all({"fix", *said} <= texts.keys() <= keys | said for texts in prose_of(codes).values())
    sources = [path.read_text() for folder in ("locator", "dnsserver") for path in (ROOT / folder).rglob("*.py")]
    named = {name for source in sources for name in re.findall(rf"\b{codes.__name__}\.(\w+)", source)}
    assert set(codes.__members__) <= named


def test_prose_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code without prose, or prose of no code, is an error when the file is read."""

    class ImportCode(FindingCode):
        """A code that no file explains."""

        NoSuchCode = ERROR

    monkeypatch.setattr(ImportCode, "__module__", ClusterCode.__module__)
    with pytest.raises(LookupError, match="expected the codes of ImportCode"):
        prose_of(ImportCode)


@pytest.mark.parametrize(
    ("code", "fact"),
    [
        *((code, f"`{ECS_RULE}`") for code in (
            CorefileCode.ClientNotNamed, CorefileCode.ClientNamesItself, CorefileCode.ClientSubnetTrusted,
            CorefileCode.ClientNamedInPart, CorefileCode.SubnetNotReverted,
        )),
        *((code, f"the line {ECS_RULE!r}") for code in (
            CorefileCode.ClientNotNamed, CorefileCode.ClientSubnetTrusted, CorefileCode.ClientNamedInPart,
        )),
        (CorefileCode.AnswersKeptTooLong, f"above {NODELOCAL_TTL} s"),
        (CorefileCode.AnswersKeptTooLong, f"at most {NODELOCAL_TTL} as"),
        (CorefileCode.UpstreamCount, f"more than {MAX_UPSTREAMS}."),
        (CorefileCode.UpstreamCount, f"1 to {MAX_UPSTREAMS} servers"),
        (CorefileCode.UpstreamCount, f"CoreDNS does not start 1 to {MAX_UPSTREAMS}"),
        (CorefileCode.AnswersKeptTooLong, f"shorter at most {NODELOCAL_TTL}"),
        (CorefileCode.FallbackUnused, f"port {FALLBACK_PORT} "),
        (CorefileCode.FallbackUnused, f"port {FALLBACK_PORT}: "),
    ],
)  # fmt: skip
def test_prose_agrees_with_the_code(code: CorefileCode, fact: str) -> None:
    """What the prose states is what ``corefile`` prints and checks."""
    texts = prose_of(type(code))[code.name]
    assert fact in " ".join(texts[key] for key in ("cause", "fix", "message", "expected"))


def test_no_code_stands_for_two_causes() -> None:
    """A code has one cause, across clusters and Corefiles."""
    assert len({code.name for code in CODES}) == len(CODES)


# Stable: scripts and dashboards hold on to them. A code may be added, never renamed.
IN_A_CLUSTER = {
    "InvalidTopologyKeys": ERROR,
    "InvalidServicePolicy": ERROR,
    "UnreadableObject": ERROR,
    "KeyOnNoNode": ERROR,
    "PolicyWithoutMode": WARNING,
    "PolicySelectsNothing": WARNING,
    "EmptyTopologyKeys": WARNING,
    "UnknownAnnotation": WARNING,
    "UnknownTrafficDistribution": WARNING,
    "InvalidMinEndpoints": WARNING,
    "InvalidMaxOverload": WARNING,
    "InvalidClients": WARNING,
    "InvalidHealth": WARNING,
    "ConstraintWithoutEffect": WARNING,
    "BalanceWithoutEffect": WARNING,
    "BalanceWithoutClients": WARNING,
    "BalanceImpossible": INFO,
    "SourceNotHeard": INFO,
    "KeyOnNoEndpoint": ERROR,
    "UnmetClients": WARNING,
    "ZoneWithoutEndpoints": INFO,
    "EndpointsInOneDomain": INFO,
    "SingleEndpoint": INFO,
    "HintsIncomplete": WARNING,
    "AutoWithoutHints": INFO,
    "HintsElsewhere": INFO,
    "HintsCannotSay": WARNING,
    "TwinWithoutConstraint": INFO,
    "AnswerTooLarge": WARNING,
    "NoTrustedForwarder": WARNING,
    "NodeWithoutZone": WARNING,
    "ZoneInTwoRegions": WARNING,
    "EndpointWithoutLocation": WARNING,
    "PodCidrDistrusted": WARNING,
    "SliceWithoutService": WARNING,
    "KindMissing": ERROR,
    "SliceLeftBehind": WARNING,
    "ServiceImportWithoutSlices": WARNING,
    "ImportWithoutCluster": WARNING,
    "NameWithoutAddress": INFO,
    "EndpointsTruncated": WARNING,
    "LoadBalancerWithoutAddress": WARNING,
    "HostNameWithoutUpstream": WARNING,
    "ExternalNameExported": WARNING,
    "FederatedConstraintsDiffer": WARNING,
    "ExportsDisagree": WARNING,
    "PortsDiffer": WARNING,
    "HealthWithoutMajority": WARNING,
    "ExportedInOneCluster": INFO,
    "ExportWithoutService": WARNING,
    "FlatNetworkOverlaps": WARNING,
    "ClusterUnreachable": WARNING,
    "InvalidClusterFile": WARNING,
    "InvalidFederation": ERROR,
    "NotDistributed": WARNING,
    "NotOurs": WARNING,
    "Refused": WARNING,
    "ObjectTwice": WARNING,
    "PassedOver": INFO,
}


def test_codes_are_stable() -> None:
    """Each code keeps its name and severity."""
    assert {code.name: code.severity for code in ClusterCode} == IN_A_CLUSTER
