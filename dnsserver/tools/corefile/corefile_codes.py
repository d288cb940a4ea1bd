# SPDX-License-Identifier: Apache-2.0

"""The findings of a Corefile: one code for each cause, with its severity and its cure.

An error makes answers wrong or keeps CoreDNS from starting. A warning is probably a mistake.
``docs/findings.md`` is made from this table by ``make docs``.
"""

from __future__ import annotations

from enum import unique

from dnsserver.tools.corefile.stub_blocks import ECS_RULE, FALLBACK_PORT, MAX_UPSTREAMS, NODELOCAL_TTL
from locator.finding_codes import FindingCode
from locator.model import ERROR, WARNING


@unique
class CorefileCode(FindingCode):
    """The codes of ``topodns corefile --check``."""

    # How clients are named.
    ClientNotNamed = (
        ERROR,
        "A block forwards to topodns without naming the client. All clients of this CoreDNS are unknown to topodns.",
        f"Add the line `{ECS_RULE}` to the block.",
    )
    ClientNamesItself = (
        ERROR,
        "The `rewrite` rule of a block uses `append` or `replace`. With `append`, topodns locates a client by the"
        " subnet that the client itself sends. With `replace`, a client that sends no subnet is not named.",
        f"Use `set`: `{ECS_RULE}`.",
    )
    ClientSubnetTrusted = (
        WARNING,
        "A block names clients by a local EDNS option. Unless topodns runs with `--client-option`, it ignores that"
        " option and trusts the client subnet, which the client can choose.",
        f"Run topodns with `--client-option` and the code of that option, or use `{ECS_RULE}`.",
    )
    ClientNamedInPart = (
        WARNING,
        "A block names clients by a prefix shorter than their address. topodns then knows only the labels that all"
        " clients of that prefix share.",
        f"Use the whole address: `{ECS_RULE}`.",
    )
    SubnetNotReverted = (
        WARNING,
        "The client subnet that the block adds to a query is also in the reply. A client that sent no subnet does not"
        " expect one.",
        f"Write `revert` at the end of the rule: `{ECS_RULE}`.",
    )
    RewriteStopsEarlier = (
        WARNING,
        "CoreDNS stops at the first `rewrite` rule that matches. For queries that an earlier rule matches, the rule"
        " that names the client is not applied.",
        "Write `rewrite continue` in the earlier rule, or move the rule that names the client to the top of the block.",
    )
    # Names that do not reach topodns.
    NoStubZone = (
        WARNING,
        "No block forwards a zone of the cluster to another server, as far as the Corefile tells. This CoreDNS does not"
        " ask topodns.",
        "Add the block that topodns prints (for NodeLocal DNSCache with `--for nodelocal`). If the Corefile forwards"
        " to topodns already, give the address of topodns (`--to`) or its zones (`--zone`).",
        "topodns corefile --for coredns --to ADDRESS --zone ZONE",
    )
    ZoneNotForwarded = (
        ERROR,
        "Nothing forwards to the address of `--to`, or a zone of `--zone` is not forwarded there, or only in part.",
        "Add the block that topodns prints (for NodeLocal DNSCache with `--for nodelocal`):",
        "topodns corefile --for coredns --to ADDRESS --zone ZONE",
    )
    SubzoneNotForwarded = (
        WARNING,
        "Another block serves a zone below the zone that is forwarded to topodns. CoreDNS picks the block with the"
        " longest matching zone, so it does not ask topodns for names in that zone.",
        "Remove that block, or forward its zone to topodns, too.",
    )
    AutopathBypassesStub = (
        WARNING,
        "A block with `autopath` answers names of the zone that is forwarded to topodns. A pod of another namespace"
        " asks first for `web.shop.default.svc.cluster.local` if it looks for `web.shop`. CoreDNS picks the block of"
        " `default`, where `autopath` then finds `web.shop.svc.cluster.local` and stays in that block.",
        "Forward all namespaces (`svc.cluster.local`) to topodns, or remove `autopath`.",
    )
    RewriteBypassesStub = (
        WARNING,
        "A `rewrite name` in another block makes a name of the zone that is forwarded to topodns. CoreDNS picks the"
        " block before it rewrites, and stays in it.",
        "Make a block for the names that are rewritten: `rewrite continue name` with the same words, then the lines of"
        " the block that forwards to topodns.",
    )
    ExternalNameBypassesStub = (
        WARNING,
        "A Service of type ExternalName, in a namespace that is not forwarded to topodns, names a Service in one that"
        " is. The plugin `kubernetes` answers both by itself. Only `topodns doctor` knows such Services.",
        "Forward the namespace of the ExternalName, too, or all namespaces (`svc.cluster.local`).",
    )
    KubernetesAnswersFirst = (
        ERROR,
        "The block that forwards to topodns has the plugin `kubernetes` for the same zone. CoreDNS runs this plugin"
        " before `forward`, and it answers all names of the zone.",
        "Move `kubernetes` to another block, or remove it.",
    )
    PluginAnswersFirst = (
        WARNING,
        "A plugin in the block that forwards to topodns comes before `forward` and may answer names of the same zone.",
        "Move the plugin to another block, remove it, or let it pass on names that it does not know (`fallthrough`).",
    )
    EarlierForwardWins = (
        ERROR,
        "An earlier `forward` in the same block takes the names of the zone. CoreDNS never uses the one to topodns.",
        "Write the `forward` to topodns before the other one.",
    )
    StubZoneExcepted = (
        ERROR,
        "The `except` of the `forward` to topodns names a part of the zone. Names in that part get SERVFAIL.",
        "Remove the zone from `except`.",
    )
    ReverseZoneForwardedWhole = (
        WARNING,
        "A block forwards all of `in-addr.arpa` or `ip6.arpa` to topodns. It answers for them with authority, so"
        " addresses outside the cluster have no name any more.",
        "Forward the networks of the cluster instead: those of Services and pods.",
        "topodns corefile --for coredns --to ADDRESS --zone ZONE --zone NETWORK",
    )
    # Caches.
    CacheMixesClients = (
        ERROR,
        "A block that forwards to topodns has a `cache`. It does not distinguish clients, so all clients get the answer"
        " for the first one.",
        "Remove `cache` from the block. A `cache` in other blocks does no harm.",
    )
    AnswersKeptTooLong = (
        WARNING,
        f"The `cache` of NodeLocal DNSCache has a minimum TTL above {NODELOCAL_TTL} s. It serves answers of topodns"
        " for that time, although they may change sooner.",
        f"Write at most {NODELOCAL_TTL} as the minimum TTL of `success` and `denial`.",
    )
    StaleAnswersServed = (
        WARNING,
        "The `cache` of NodeLocal DNSCache has `serve_stale`: clients get answers of topodns after their TTL.",
        "Remove `serve_stale` from the block.",
    )
    # How topodns is asked.
    UdpPreferred = (
        WARNING,
        "`prefer_udp` makes CoreDNS ask over UDP, even for a client that asks over TCP because the answer is long.",
        "Remove `prefer_udp`.",
    )
    ForwardByUdp = (
        WARNING,
        "NodeLocal DNSCache forwards to topodns over UDP. Each query takes an entry in the node's connection tracking"
        " table, and some queries get lost.",
        "Write `force_tcp` in the braces of the `forward`.",
    )
    UpstreamCount = (
        ERROR,
        f"A `forward` names no server, or more than {MAX_UPSTREAMS}. CoreDNS does not start.",
        f"Name 1 to {MAX_UPSTREAMS} servers.",
    )
    # Fallbacks: servers that answer while topodns does not.
    FallbackNotSequential = (
        WARNING,
        "A `forward` names topodns and another server, without `policy sequential`. CoreDNS asks the other server"
        " even while topodns answers.",
        "Write `policy sequential` in the braces of the `forward`.",
    )
    FallbackFirst = (
        ERROR,
        "In a `forward` with `policy sequential`, another server comes before topodns. CoreDNS asks topodns only when"
        " that server is down.",
        "Name topodns first.",
    )
    FailoverMissing = (
        WARNING,
        "A `forward` with a fallback after topodns has no `failover` for SERVFAIL or REFUSED. While topodns sends these"
        " replies, for example before it has read the cluster, clients get them.",
        "Write `failover SERVFAIL REFUSED` in the braces of the `forward` (CoreDNS 1.13 or later).",
    )
    FallbackAsksItself = (
        ERROR,
        "The fallback after topodns is the block that forwards to topodns. CoreDNS asks itself until it gives up.",
        "Add a block on another port that answers while topodns does not. topodns prints both:",
        "topodns corefile --for coredns --fail-open --to ADDRESS --zone ZONE",
    )
    FallbackUnanswered = (
        WARNING,
        "A `forward` names a loopback address after topodns, but no block of the Corefile answers for the zone there.",
        "Add the block that topodns prints:",
        "topodns corefile --for coredns --fail-open --to ADDRESS --zone ZONE",
    )
    FallbackUnused = (
        WARNING,
        f"A block on port {FALLBACK_PORT} would answer while topodns does not, but no `forward` leads to it. Clients"
        " get errors while topodns does not answer.",
        "Name its address after topodns in the `forward`, with `policy sequential` and `failover SERVFAIL REFUSED`, or"
        " remove the block.",
    )
    FallbackMissing = (
        WARNING,
        "A `forward` has `failover`, but names topodns alone. Clients get errors while topodns does not answer.",
        "Name the fallback after topodns. topodns prints it with its block:",
        "topodns corefile --for coredns --fail-open --to ADDRESS --zone ZONE",
    )
    FallbackOpenToAll = (
        WARNING,
        "The fallback block, which answers while topodns does not, listens on all addresses. Queries to its port bypass"
        " topodns.",
        "Write `bind 127.0.0.1` in that block.",
    )
    # The Corefile as a whole.
    ZoneServedTwice = (
        ERROR,
        "Two blocks serve the same zone at the same port. CoreDNS does not start.",
        "Make one block of them, or bind them to different addresses.",
    )
    ImportNotRead = (
        WARNING,
        "The Corefile imports a file, which topodns does not read. So it may miss problems, or report one that the"
        " imported file solves.",
        "Check a single file that holds the whole configuration.",
    )
    BlockWithoutZone = (
        WARNING,
        "A block has no zone in front of its brace. CoreDNS does not use it.",
        "Write the zone in front of `{`, or remove the block.",
    )
