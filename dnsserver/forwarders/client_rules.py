"""Which rule of CoreDNS's ``rewrite`` tells topodns who asks, and whether a client can tell it something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dnsserver.forwarders.caddyfile import cut
from dnsserver.forwarders.corefile_codes import CorefileCode
from dnsserver.forwarders.stub_blocks import ECS_RULE
from dnsserver.forwarders.stub_zones import Server, Stub, line_finding
from locator.model import Finding

_EXPECTED = f"the line {ECS_RULE!r}"
_WHOLE = ("32", "128")  # the prefix lengths of one address


class _Rule(NamedTuple):
    """A rule that has its line: whether others follow it, and its words from its type on."""

    line: int
    goes_on: bool
    words: tuple[str, ...]

    @property
    def action(self) -> str:
        """How it names a client, empty if it does not: set, append or replace."""
        kind, option, action = (*(word.lower() for word in self.words[:3]), "", "", "")[:3]
        names = option == "subnet" or (option == "local" and self.words[4:5] == ("{client_ip}",))
        return action if kind == "edns0" and names and action in ("set", "append", "replace") else ""

    @property
    def code(self) -> str:
        """The code of an option that names a client, empty if the client subnet does."""
        return cut(self.words[3]) if self.words[1].lower() == "local" else ""


def client_findings(stub: Stub) -> Iterator[Finding]:
    """Yield what is wrong with how a block names clients."""
    server, rules = stub.server, list(_rules(stub.server))
    # Of several the best one: what comes of them together is not looked into.
    naming = sorted((rule for rule in rules if rule.action), key=lambda rule: (rule.action != "set", rule.code != ""))
    if not naming:
        message = "topodns is not told who asks"
        yield line_finding(CorefileCode.ClientNotNamed, server.block.line, server, message, _EXPECTED)
        return
    rule = naming[0]
    if rule.action != "set":
        message = f"{rule.action} leaves it to a client whether it is named, and as whom"
        yield line_finding(CorefileCode.ClientNamesItself, rule.line, server, message, "set in place of it")
    elif rule.code:
        message = f"a client's own subnet is believed, unless topodns has --client-option {rule.code}"
        expected = f"that flag there, or {_EXPECTED}"
        yield line_finding(CorefileCode.ClientSubnetBelieved, rule.line, server, message, expected)
    elif rule.words[3:5] != _WHOLE:
        message = f"'{cut(' '.join(rule.words))}' does not name a client by its whole address"
        yield line_finding(CorefileCode.ClientNamedInPart, rule.line, server, message, _EXPECTED)
    if not rule.code and rule.words[-1] != "revert":
        message = "the subnet stays in the reply to a client that sent none"
        yield line_finding(CorefileCode.SubnetNotReverted, rule.line, server, message, "'revert' at the end")
    for earlier in rules[: rules.index(rule)]:
        if not earlier.goes_on:
            message = f"the rules below are passed over for what '{cut(' '.join(earlier.words))}' matches"
            expected = "'rewrite continue ...'"
            yield line_finding(CorefileCode.RewriteStopsEarlier, earlier.line, server, message, expected)


def _rules(server: Server) -> Iterator[_Rule]:
    for each in server.directives("rewrite"):
        words = list(each.arguments)
        if len(words) < 2:
            words += [word for line in each.body for word in line.words]
        mode = words[0].lower() if words else ""
        yield _Rule(each.line, mode == "continue", tuple(words[mode in ("stop", "continue") :]))
