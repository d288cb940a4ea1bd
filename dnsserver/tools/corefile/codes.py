# SPDX-License-Identifier: Apache-2.0

"""The findings of a Corefile: one code for each cause, with its severity.

An error makes answers wrong or keeps CoreDNS from starting. A warning is probably a mistake. What a finding says, what
its code means and how to fix it stands in ``codes.toml``, of which ``make docs`` makes ``docs/findings.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, ParamSpec

from dnsserver.tools.corefile.fixes import Edits
from dnsserver.tools.corefile.stub_zones import ServerBlock
from locator.findings import FindingCode, prose_of
from locator.model import ERROR, WARNING, Finding
from locator.printable import cut

Arguments = ParamSpec("Arguments")


class CorefileProblem(NamedTuple):
    """What is wrong in a Corefile, and its fix, if there is a certain one."""

    finding: Finding
    fix: Callable[[], Edits] | None = None

    def fixed_by(
        self, fix: Callable[Arguments, Edits], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> CorefileProblem:
        """Return the problem with the fix that such a call returns."""
        return self._replace(fix=partial(fix, *args, **kwargs))


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

    def at(self, line: int, server: ServerBlock | None = None, /, **values: object) -> CorefileProblem:
        """Return a problem of a line, in a block if one is around it. *values* are for the names in its texts."""
        keys = cut(" ".join(server.block.keys)) if server is not None else ""
        message, expected = (prose_of(type(self))[self.name][key].format_map(values) for key in ("message", "expected"))
        return CorefileProblem(self.finding(field=keys, message=message, expected=expected, line=line))


# Nothing of the cluster is forwarded to topodns, which may be meant.
NOT_FORWARDED = {CorefileCode.NoStubZone.name, CorefileCode.ZoneNotForwarded.name}
# A fallback that would not step in, although somebody wanted one, or that CoreDNS asks at any time.
NO_FALLBACK = {
    CorefileCode.FallbackUnused.name,
    CorefileCode.FallbackMissing.name,
    CorefileCode.FallbackUnanswered.name,
    CorefileCode.FallbackNotSequential.name,
}
