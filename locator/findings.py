# SPDX-License-Identifier: Apache-2.0

"""The causes of findings in a cluster: one code for each, with its severity.

Codes are stable, so that scripts and dashboards need not parse messages. What a code means and how to fix it stands in
``findings.toml``, of which ``make docs`` makes ``docs/findings.md``. A new code is a line here and a table there,
at the same place in the order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache

from locator.model import ERROR, INFO, WARNING, EndpointSlice, Finding, Namespaced
from locator.printable import MAX_TEXT, cut, filled

# Where the pages of 'make site' are; "" in a clone, which has none. A release writes the address here
# (tests/release/release.py).
SITE = ""
METADATA = re.compile(r"metadata\.(?P<where>annotations|labels)\[(?P<key>[A-Za-z0-9._/-]+)\]")  # a field of findings


@cache  # to import tomllib and to read takes 4 ms, which a command without findings need not pay
def prose_of(codes: type[Enum]) -> Mapping[str, Mapping[str, str]]:
    """Return the prose of *codes* by name, each text by its key, from the TOML file beside their module.

    Raises LookupError if the file lacks a code, has another one, or another order.
    """
    import pkgutil
    import tomllib

    package, _, module = codes.__module__.rpartition(".")
    read = tomllib.loads((pkgutil.get_data(package, f"{module}.toml") or b"").decode())
    if list(read) != list(codes.__members__):
        raise LookupError(f"{package}/{module}.toml: has {', '.join(read)}, expected the codes of {codes.__name__}")
    return {name: {key: " ".join(text.split()) for key, text in texts.items()} for name, texts in read.items()}


def documentation(code: str, page: str = "findings") -> str:
    """Return the address of what is written about a code: on the site, or in a clone the file and the heading there."""
    return f"{SITE}/{page}.html#{code.lower()}" if SITE else f"docs/{page}.md#{code.lower()}"


class FindingCode(Enum):
    """The cause of a finding. The name of the member is the code."""

    severity: str

    def __new__(cls, severity: str) -> FindingCode:
        """Return a member with a value of its own: members of one value would be aliases of the first."""
        code = object.__new__(cls)
        code._value_, code.severity = len(cls.__members__), severity
        return code

    @property
    def cause(self) -> str:
        """What is wrong and its effect, in Markdown."""
        return prose_of(type(self))[self.name]["cause"]

    @property
    def fix(self) -> str:
        """How to fix it, in Markdown."""
        return prose_of(type(self))[self.name]["fix"]

    @property
    def command(self) -> str:
        """A command that helps to fix it, empty if none does."""
        return prose_of(type(self))[self.name].get("command", "")

    def finding(
        self,
        kind: str = "",
        namespace: str = "",
        name: str = "",
        *,
        field: str = "",
        message: str,
        expected: str = "",
        line: int | None = None,
        file: str = "",
        severity: str | None = None,
    ) -> Finding:
        """Return a finding with this cause about an object, a line of a file, or neither.

        Others wrote parts of its texts, so these are made printable, and cut, before anybody shows or keeps them.
        *severity* is the code's own unless given: the same cause may do less harm in one place than in another.
        """
        field, message, expected = cut(field), cut(message, MAX_TEXT), cut(expected, MAX_TEXT)
        return Finding(
            self.name, severity or self.severity, kind, namespace, name, field, message, expected, line, file
        )

    def command_for(self, finding: Finding) -> str:
        """Return the command, for a shell, with the names of the object that a finding is about."""
        words = {"NAMESPACE": finding.namespace, "NAME": finding.name, "KIND": finding.kind.lower()}
        command = self.command if finding.namespace else self.command.replace("-n NAMESPACE ", "")
        if "ANNOTATION" in command and (found := METADATA.fullmatch(finding.field)):
            words["ANNOTATION"] = found["key"]
            if found["where"] == "labels":
                command = command.replace(" annotate ", " label ")
        return filled(command, words)

    def about(
        self, item: Namespaced, field: str, message: str, expected: str = "", *, severity: str | None = None
    ) -> Finding:
        """Return a finding with this cause about a known object."""
        kind = item.kind if isinstance(item, EndpointSlice) else type(item).__name__
        return self.finding(
            kind, item.namespace, item.name, field=field, message=message, expected=expected, severity=severity
        )


class ClusterCode(FindingCode):
    """The causes that ``topodns check`` reports for a cluster or a dump."""

    InvalidTopologyKeys = ERROR
    InvalidServicePolicy = ERROR
    UnreadableObject = ERROR
    KeyOnNoNode = ERROR
    PolicyWithoutMode = WARNING
    PolicySelectsNothing = WARNING
    EmptyTopologyKeys = WARNING
    UnknownAnnotation = WARNING
    UnknownTrafficDistribution = WARNING
    InvalidMinEndpoints = WARNING
    InvalidMaxOverload = WARNING
    InvalidClients = WARNING
    InvalidHealth = WARNING
    ConstraintWithoutEffect = WARNING
    BalanceWithoutEffect = WARNING
    BalanceWithoutClients = WARNING
    BalanceImpossible = INFO
    SourceNotHeard = INFO
    KeyOnNoEndpoint = ERROR
    UnmetClients = WARNING
    ZoneWithoutEndpoints = INFO
    EndpointsInOneDomain = INFO
    SingleEndpoint = INFO
    AnswerTooLarge = WARNING
    HintsIncomplete = WARNING
    AutoWithoutHints = INFO
    HintsElsewhere = INFO
    HintsCannotSay = WARNING
    TwinWithoutConstraint = INFO
    NoTrustedForwarder = WARNING
    NodeWithoutZone = WARNING
    ZoneInTwoRegions = WARNING
    EndpointWithoutLocation = WARNING
    PodCidrDistrusted = WARNING
    SliceWithoutService = WARNING
    KindMissing = ERROR
    SliceLeftBehind = WARNING
    ServiceImportWithoutSlices = WARNING
    ImportWithoutCluster = WARNING
    NameWithoutAddress = INFO
    EndpointsTruncated = WARNING
    LoadBalancerWithoutAddress = WARNING
    HostNameWithoutUpstream = WARNING
    ExternalNameExported = WARNING
    FederatedConstraintsDiffer = WARNING
    ExportsDisagree = WARNING
    PortsDiffer = WARNING
    HealthWithoutMajority = WARNING
    ExportedInOneCluster = INFO
    ExportWithoutService = WARNING
    FlatNetworkOverlaps = WARNING
    ClusterUnreachable = WARNING
    InvalidClusterFile = WARNING
    InvalidFederation = ERROR
    NotDistributed = WARNING
    NotOurs = WARNING
    Refused = WARNING
    ObjectTwice = WARNING
    PassedOver = INFO
