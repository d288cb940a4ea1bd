# SPDX-License-Identifier: Apache-2.0

"""Checks the ``rewrite`` rules with which CoreDNS names clients to topodns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import ECS_RULE
from dnsserver.tools.corefile.stub_zones import ServerBlock, Stub, line_finding
from locator.model import Finding
from locator.printable import cut

_EXPECTED = f"the line {ECS_RULE!r}"
_WHOLE = ("32", "128")  # the prefix lengths of one address


class Rule(NamedTuple):
    """A ``rewrite`` rule: its line, whether CoreDNS continues with the next rule, and its words from its type on."""

    line: int
    continues: bool
    words: tuple[str, ...]

    @property
    def action(self) -> str:
        """The action by which the rule names a client: set, append or replace. Empty if it names none."""
        field, option, action = (*(word.lower() for word in self.words[:3]), "", "", "")[:3]
        names_client = option == "subnet" or (option == "local" and self.words[4:5] == ("{client_ip}",))
        return action if field == "edns0" and names_client and action in ("set", "append", "replace") else ""

    @property
    def code(self) -> str:
        """The code of the local option that names the client, empty if the client subnet names it."""
        return cut(self.words[3]) if self.words[1].lower() == "local" else ""


def client_findings(stub: Stub) -> Iterator[Finding]:
    """Yield findings about how a block names clients."""
    server, rules = stub.server, list(rules_of(stub.server))
    # Only the best of several rules is checked, not their combined effect.
    naming = sorted((rule for rule in rules if rule.action), key=lambda rule: (rule.action != "set", rule.code != ""))
    if not naming:
        message = "no rule names the client to topodns"
        yield line_finding(CorefileCode.ClientNotNamed, server.block.line, server, message, _EXPECTED)
        return
    rule = naming[0]
    if rule.action != "set":
        message = f"the effect of '{rule.action}' depends on the option that the client sends"
        yield line_finding(CorefileCode.ClientNamesItself, rule.line, server, message, "'set'")
    elif rule.code:
        message = f"topodns trusts the client's own subnet unless it runs with --client-option {rule.code}"
        expected = f"that flag, or {_EXPECTED}"
        yield line_finding(CorefileCode.ClientSubnetTrusted, rule.line, server, message, expected)
    elif rule.words[3:5] != _WHOLE:
        message = f"'{cut(' '.join(rule.words))}' does not name a client by its whole address"
        yield line_finding(CorefileCode.ClientNamedInPart, rule.line, server, message, _EXPECTED)
    if not rule.code and rule.words[-1] != "revert":
        message = "the subnet stays in the reply to a client that sent none"
        yield line_finding(CorefileCode.SubnetNotReverted, rule.line, server, message, "'revert' at the end")
    for earlier in rules[: rules.index(rule)]:
        if not earlier.continues:
            message = f"queries that '{cut(' '.join(earlier.words))}' matches skip the rules below"
            expected = "'rewrite continue ...'"
            yield line_finding(CorefileCode.RewriteStopsEarlier, earlier.line, server, message, expected)


def rules_of(server: ServerBlock) -> Iterator[Rule]:
    """Yield the ``rewrite`` rules of a block."""
    for rewrite in server.directives("rewrite"):
        words = list(rewrite.arguments)
        if len(words) < 2:
            words += [word for line in rewrite.body for word in line.words]
        mode = words[0].lower() if words else ""
        yield Rule(rewrite.line, mode == "continue", tuple(words[mode in ("stop", "continue") :]))
