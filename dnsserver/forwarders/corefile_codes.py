"""What can be wrong in a Corefile: one code for each cause, with its severity and its cure.

An error makes answers wrong, or keeps CoreDNS from starting; a warning is hardly what was meant.
``docs/findings.md`` is made from this table by ``make docs``.
"""

from __future__ import annotations

from enum import unique

from dnsserver.forwarders.stub_blocks import ECS_RULE, MAX_UPSTREAMS, NODELOCAL_TTL
from locator.finding_codes import FindingCode
from locator.model import ERROR, WARNING


@unique
class CorefileCode(FindingCode):
    """What ``topodns corefile --check`` finds."""

    # How clients are named.
    ClientNotNamed = (
        ERROR,
        "A block forwards to topodns without saying who asks. For topodns all clients of this CoreDNS are unknown.",
        f"Add the line `{ECS_RULE}` to the block.",
    )
    ClientNamesItself = (
        ERROR,
        "The `rewrite` rule of a block uses `append` or `replace`. With `append`, topodns locates a client by the"
        " subnet that it sends itself; with `replace`, a client that sends none is not named.",
        f"Use `set`: `{ECS_RULE}`.",
    )
    ClientSubnetBelieved = (
        WARNING,
        "A block names clients by an EDNS option of its own. Unless topodns is told to read that option, it believes"
        " the client subnet, which a client can choose.",
        f"Run topodns with `--client-option` and the number of that option, or use `{ECS_RULE}`.",
    )
    ClientNamedInPart = (
        WARNING,
        "A block names clients by a prefix shorter than their address. topodns then knows only what all clients of that"
        " prefix have in common.",
        f"Use the whole address: `{ECS_RULE}`.",
    )
    SubnetNotReverted = (
        WARNING,
        "The client subnet that the block adds to a query is also in the reply. A client that sent none does not expect"
        " one.",
        f"Write `revert` at the end of the rule: `{ECS_RULE}`.",
    )
    RewriteStopsEarlier = (
        WARNING,
        "CoreDNS stops at the first `rewrite` rule that matches. For queries that an earlier rule matches, the rule"
        " that names the client is not applied.",
        "Write `rewrite continue` in the earlier rule, or move the rule that names the client to the top of the block.",
    )
    # What keeps names from topodns.
    NoStubZone = (
        WARNING,
        "No block forwards a zone of the cluster to another server, as far as the Corefile tells. This CoreDNS does not"
        " ask topodns.",
        "Add the block that topodns prints (for NodeLocal DNSCache with `--for nodelocal`). If the Corefile forwards"
        " there already, say where topodns is (`--to`), or which zones it has (`--zone`).",
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
        "Another block serves a zone beneath the one that is forwarded to topodns. A name goes to the block with the"
        " longest zone around it, so topodns is not asked for names in that zone.",
        "Remove that block, or forward its zone to topodns, too.",
    )
    KubernetesAnswersFirst = (
        ERROR,
        "The plugin `kubernetes` stands in the block that forwards to topodns, for the same zone. CoreDNS runs it"
        " before `forward`, and it answers everything.",
        "Move `kubernetes` to another block, or remove it.",
    )
    PluginAnswersFirst = (
        WARNING,
        "A plugin in the block that forwards to topodns comes before `forward` and may answer names of the same zone.",
        "Move the plugin to another block, remove it, or let it pass on what it does not know (`fallthrough`).",
    )
    EarlierForwardWins = (
        ERROR,
        "An earlier `forward` of the same block takes the names of the zone. The one to topodns is never reached.",
        "Write the `forward` to topodns before the other one.",
    )
    StubZoneExcepted = (
        ERROR,
        "The `except` of the `forward` to topodns names a part of the zone. Names in that part get SERVFAIL.",
        "Remove the zone from `except`.",
    )
    # Caches.
    CacheMixesClients = (
        ERROR,
        "A block that forwards to topodns has a `cache`. CoreDNS does not tell clients apart in it, so each client gets"
        " the answer that was meant for the first.",
        "Remove `cache` from the block. One in other blocks does no harm.",
    )
    AnswersKeptTooLong = (
        WARNING,
        f"The `cache` of NodeLocal DNSCache has a minimum TTL above {NODELOCAL_TTL} s. Answers of topodns are kept for"
        " that time, although they may change sooner.",
        f"Write at most {NODELOCAL_TTL} as the minimum TTL of `success` and `denial`.",
    )
    StaleAnswersServed = (
        WARNING,
        "The `cache` of NodeLocal DNSCache has `serve_stale`: it gives answers of topodns after their TTL.",
        "Remove `serve_stale` from the block.",
    )
    # How topodns is asked.
    UdpPreferred = (
        WARNING,
        "`prefer_udp` makes CoreDNS ask by UDP, also for a client that asks by TCP because the answer is long.",
        "Remove `prefer_udp`.",
    )
    ForwardByUdp = (
        WARNING,
        "NodeLocal DNSCache forwards to topodns by UDP. Each query takes an entry in the node's connection tracking,"
        " and some queries get lost.",
        "Write `force_tcp` in the braces of the `forward`.",
    )
    UpstreamCount = (
        ERROR,
        f"A `forward` names no server, or more than {MAX_UPSTREAMS}. CoreDNS does not start.",
        f"Name 1 to {MAX_UPSTREAMS} servers.",
    )
    # Who answers while topodns does not.
    FallbackNotSequential = (
        WARNING,
        "A `forward` names topodns and another server, without `policy sequential`. CoreDNS also asks the other server"
        " while topodns is there.",
        "Write `policy sequential` in the braces of the `forward`.",
    )
    FallbackFirst = (
        ERROR,
        "In a `forward` with `policy sequential` another server stands before topodns. CoreDNS asks topodns only when"
        " that one is dead.",
        "Name topodns first.",
    )
    FailoverMissing = (
        WARNING,
        "A `forward` with another server behind topodns has no `failover` for SERVFAIL or REFUSED. While topodns gives"
        " these replies, for example before it has read the cluster, clients get them.",
        "Write `failover SERVFAIL REFUSED` in the braces of the `forward` (CoreDNS 1.13 or later).",
    )
    FallbackAsksItself = (
        ERROR,
        "The server behind topodns is the very block that forwards to it. CoreDNS asks itself until it gives up.",
        "Let another block, on another port, answer while topodns does not. topodns prints both:",
        "topodns corefile --for coredns --fail-open --to ADDRESS --zone ZONE",
    )
    FallbackUnanswered = (
        WARNING,
        "A `forward` names an address of this machine behind topodns, but no block of the Corefile answers for the zone"
        " there.",
        "Add the block that topodns prints:",
        "topodns corefile --for coredns --fail-open --to ADDRESS --zone ZONE",
    )
    FallbackOpenToAll = (
        WARNING,
        "The block that answers while topodns does not listens on all addresses. Whoever asks its port goes past"
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
        "The Corefile imports a file. topodns does not read it, so it may miss something, or find something wrong that"
        " is mended there.",
        "Check a Corefile in which everything stands in one file.",
    )
    BlockWithoutZone = (
        WARNING,
        "A block has no zone in front of its brace. CoreDNS uses it for nothing.",
        "Write the zone in front of `{`, or remove the block.",
    )
