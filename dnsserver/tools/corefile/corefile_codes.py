# SPDX-License-Identifier: Apache-2.0

"""The findings of a Corefile: one code for each cause, with its severity.

An error makes answers wrong or keeps CoreDNS from starting. A warning is probably a mistake. What a code means and how
to fix it stands in ``corefile_codes.toml``, of which ``make docs`` makes ``docs/findings.md``.
"""

from __future__ import annotations

from locator.findings import FindingCode
from locator.model import ERROR, WARNING


class CorefileCode(FindingCode):
    """The codes of ``topodns corefile --check``."""

    # How clients are named.
    ClientNotNamed = ERROR
    ClientNamesItself = ERROR
    ClientSubnetTrusted = WARNING
    ClientNamedInPart = WARNING
    SubnetNotReverted = WARNING
    RewriteStopsEarlier = WARNING
    # Names that do not reach topodns.
    NoStubZone = WARNING
    ZoneNotForwarded = ERROR
    SubzoneNotForwarded = WARNING
    AutopathBypassesStub = WARNING
    RewriteBypassesStub = WARNING
    ExternalNameBypassesStub = WARNING
    KubernetesAnswersFirst = ERROR
    PluginAnswersFirst = WARNING
    EarlierForwardWins = ERROR
    StubZoneExcepted = ERROR
    ReverseZoneForwardedWhole = WARNING
    # Caches.
    CacheMixesClients = ERROR
    AnswersKeptTooLong = WARNING
    StaleAnswersServed = WARNING
    # How topodns is asked.
    UdpPreferred = WARNING
    ForwardByUdp = WARNING
    UpstreamCount = ERROR
    # Fallbacks: servers that answer while topodns does not.
    FallbackNotSequential = WARNING
    FallbackFirst = ERROR
    FailoverMissing = WARNING
    FallbackAsksItself = ERROR
    FallbackUnanswered = WARNING
    FallbackUnused = WARNING
    FallbackMissing = WARNING
    FallbackOpenToAll = WARNING
    # The Corefile as a whole.
    ZoneServedTwice = ERROR
    ImportNotRead = WARNING
    BlockWithoutZone = WARNING
