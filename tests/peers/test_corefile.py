# SPDX-License-Identifier: Apache-2.0

"""``topodns corefile``: what it prints for each forwarder, and what it finds in a Corefile; with the real programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import dns.message
import dns.query
import dns.reversename
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.cli.dispatch import run_command
from dnsserver.settings.values import ListenAddress, parse_upstream
from dnsserver.tools.corefile import corefile_check, stub_blocks
from dnsserver.tools.corefile.caddyfile import Unparsable, parse
from dnsserver.tools.corefile.corefile_codes import CorefileCode
from dnsserver.tools.corefile.fixing import fixed
from tests.kit.coredns import starts
from tests.kit.forwarders import running, where
from tests.kit.terminal import Terminal
from tests.kit.this_machine import ROOT, needs_tool
from tests.kit.topodns_process import COMMAND, Server, run
from tests.kit.waiting import PATIENCE

DONE, FAILED, WRONG = 0, 1, 2
ECS = "rewrite edns0 subnet set 32 128 revert"
GOOD = f"{ECS}\nforward . 10.96.0.53"


def addresses(text: str) -> list[ListenAddress]:
    return [parse_upstream(each) for each in text.split(",")]


# --- What is printed ------------------------------------------------------------------------------------------------

PRINTED = {
    "coredns": ("coredns", "10.96.0.53", ["cluster.local"], False, """\
# CoreDNS 1.11.4 or later
cluster.local:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53
}
"""),
    "coredns-several": ("coredns", "10.96.0.53,[fd00::53]:5353,fd00::54", ["Shop.svc.cluster.local.", "pod.a.example"],
                        False, """\
# CoreDNS 1.11.4 or later
shop.svc.cluster.local:53 pod.a.example:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53 [fd00::53]:5353 fd00::54
}
"""),
    "coredns-fail-open": ("coredns", "10.96.0.53,10.96.0.54", ["shop.svc.cluster.local", "10.in-addr.arpa"], True, """\
# CoreDNS 1.13 or later
shop.svc.cluster.local:53 10.in-addr.arpa:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53 10.96.0.54 127.0.0.1:5301 {
        policy sequential
        failover SERVFAIL REFUSED
        max_fails 1
        health_check 100ms
    }
}
cluster.local:5301 in-addr.arpa:5301 {
    bind 127.0.0.1
    errors
    kubernetes cluster.local in-addr.arpa
}
"""),
    "nodelocal": ("nodelocal", "10.96.0.53", ["shop.svc.cluster.local"], False, """\
shop.svc.cluster.local:53 {
    errors
    cache 5
    reload
    bind 169.254.20.10 10.96.0.10  # like the other blocks
    forward . 10.96.0.53 {
        force_tcp
    }
}
"""),
    "nodelocal-whole": ("nodelocal", "10.96.0.53", ["cluster.local"], False, """\
# If there is a block for cluster.local:53, change only its forward.
cluster.local:53 {
    errors
    cache 5
    reload
    bind 169.254.20.10 10.96.0.10  # like the other blocks
    forward . 10.96.0.53 {
        force_tcp
    }
}
"""),
    "dnsmasq": ("dnsmasq", "10.96.0.53,[fd00::53]:5353", ["cluster.local", "10.in-addr.arpa"], False, """\
server=/cluster.local/10.96.0.53#53
server=/cluster.local/fd00::53#5353
server=/10.in-addr.arpa/10.96.0.53#53
server=/10.in-addr.arpa/fd00::53#5353
rebind-domain-ok=/cluster.local/
rebind-domain-ok=/10.in-addr.arpa/
# These two name the client to every server, and turn caching off.
add-subnet=32,128
strip-subnet
"""),
    "unbound": ("unbound", "10.96.0.53:5353,10.96.0.53,fd00::53", ["cluster.local"], False, """\
server:
    module-config: "subnetcache validator iterator"
    send-client-subnet: 10.96.0.53
    send-client-subnet: fd00::53
    max-client-subnet-ipv4: 32
    max-client-subnet-ipv6: 128
    domain-insecure: "cluster.local"
    private-domain: "cluster.local"
stub-zone:
    name: "cluster.local"
    stub-addr: 10.96.0.53@5353
    stub-addr: 10.96.0.53@53
    stub-addr: fd00::53@53
"""),
    "unbound-special": ("unbound", "127.0.0.1:5353", ["kube.test", "10.in-addr.arpa"], False, """\
server:
    module-config: "subnetcache validator iterator"
    send-client-subnet: 127.0.0.1
    max-client-subnet-ipv4: 32
    max-client-subnet-ipv6: 128
    do-not-query-localhost: no
    unblock-lan-zones: yes
    domain-insecure: "kube.test"
    private-domain: "kube.test"
    local-zone: "kube.test" transparent
    domain-insecure: "10.in-addr.arpa"
    private-domain: "10.in-addr.arpa"
stub-zone:
    name: "kube.test"
    stub-addr: 127.0.0.1@5353
stub-zone:
    name: "10.in-addr.arpa"
    stub-addr: 127.0.0.1@5353
"""),
    "dnsdist": ("dnsdist", "10.96.0.53,[fd00::53]:5353", ["cluster.local", "10.in-addr.arpa"], False, """\
newServer({address="10.96.0.53:53", pool="topodns", useClientSubnet=true, disableZeroScope=true, \
checkName="cluster.local.", checkType="SOA"})
newServer({address="[fd00::53]:5353", pool="topodns", useClientSubnet=true, disableZeroScope=true, \
checkName="cluster.local.", checkType="SOA"})
setECSOverride(true)
setECSSourcePrefixV4(32)
setECSSourcePrefixV6(128)
getPool("topodns"):setCache(newPacketCache(10000, {parseECS=true, temporaryFailureTTL=0}))
addAction({"cluster.local.", "10.in-addr.arpa."}, PoolAction("topodns"))
"""),
    "powerdns": ("powerdns", "10.96.0.53,[fd00::53]:5353", ["cluster.local", "10.in-addr.arpa"], False, """\
forward-zones=cluster.local=10.96.0.53:53;[fd00::53]:5353, 10.in-addr.arpa=10.96.0.53:53;[fd00::53]:5353
edns-subnet-allow-list=cluster.local, 10.in-addr.arpa
ecs-add-for=0.0.0.0/0, ::/0
ecs-ipv4-bits=32
ecs-ipv6-bits=128
ecs-ipv4-cache-bits=32
ecs-ipv6-cache-bits=128
# By default 1: an empty answer for one client would be every client's for a second.
minimum-ttl-override=0
# Otherwise it answers for private addresses by itself.
serve-rfc1918=no
# The zones are not signed. Whoever asks for validation, as dig does, gets SERVFAIL without these
# lines in the file of lua-config-file:
# addNTA("cluster.local")
# addNTA("10.in-addr.arpa")
"""),
}  # fmt: skip


OF_CLUSTERS = {
    "federation-alone": (["--federation=fed.example"], """\
# CoreDNS 1.11.4 or later
fed.example:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53
}
"""),
    "all-fail-open": (
        ["--zone=cluster.local", "--federation=fed.example", "--multicluster=clusterset.local", "--fail-open"], """\
# CoreDNS 1.13 or later
cluster.local:53 clusterset.local:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53 127.0.0.1:5301 {
        policy sequential
        failover SERVFAIL REFUSED
        max_fails 1
        health_check 100ms
    }
}
cluster.local:5301 clusterset.local:5301 {
    bind 127.0.0.1
    errors
    kubernetes cluster.local clusterset.local {
        multicluster clusterset.local
    }
}
fed.example:53 {
    errors
    rewrite edns0 subnet set 32 128 revert
    forward . 10.96.0.53
}
"""),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), OF_CLUSTERS.values(), ids=OF_CLUSTERS)
def test_zones_of_several_clusters(capsys: pytest.CaptureFixture[str], flags: Sequence[str], expected: str) -> None:
    """CoreDNS has multi-cluster names of its own, but no federated ones to fall back on."""
    assert run_command(["corefile", "--for", "coredns", "--to", "10.96.0.53", *flags]) == DONE
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(("forwarder", "to", "zones", "fail_open", "expected"), PRINTED.values(), ids=PRINTED)
def test_printed(
    capsys: pytest.CaptureFixture[str], forwarder: str, to: str, zones: Sequence[str], fail_open: bool, expected: str
) -> None:
    """Standard output holds the lines for the program's configuration, and nothing else."""
    flags = [*(f"--zone={zone}" for zone in zones), *(["--fail-open"] if fail_open else [])]
    assert run_command(["corefile", "--for", forwarder, "--to", to, *flags]) == DONE
    assert capsys.readouterr() == (expected, "")
    assert stub_blocks.stub_block(forwarder, addresses(to), zones, fail_open=fail_open) == expected


FAILING_OPEN = ["policy sequential", "failover SERVFAIL REFUSED", "max_fails 1", "health_check 100ms"]


@pytest.mark.parametrize(
    ("flags", "head", "options"),
    [
        pytest.param((), "1.14.5", ["read_timeout 400ms"], id="newest"),
        pytest.param(
            ("--fail-open",), "1.14.5",
            [*FAILING_OPEN, "read_timeout 400ms"],
            id="newest-failing-open",
        ),
        pytest.param(("--coredns-version=1.14.5",), "1.14.5", ["read_timeout 400ms"], id="the-first-that-times-reads"),
        pytest.param(("--coredns-version=1.14.4",), "1.11.4", [], id="the-last-that-does-not"),
        pytest.param(
            ("--fail-open", "--coredns-version=v1.13"), "1.13",
            FAILING_OPEN, id="failing-open",
        ),
    ],
)  # fmt: skip
def test_printed_for_a_version(
    capsys: pytest.CaptureFixture[str], flags: Sequence[str], head: str, options: Sequence[str]
) -> None:
    """The block has what that version of CoreDNS knows, and its first line says from which on."""
    assert run_command(["corefile", *TO, "--coredns-version=v1.14.7-eks.1", *flags]) == DONE
    printed = capsys.readouterr().out
    assert printed.startswith(f"# CoreDNS {head} or later\ncluster.local:53 {{\n")
    (forward,) = (directive for directive in parse(printed)[0].directives if directive.name == "forward")
    assert [" ".join(option.words) for option in forward.body] == options


def test_a_person_is_told_of_the_version(tmp_path: Path) -> None:
    """On a terminal, what a newer CoreDNS could do is said beside the block, which may go into a file."""
    with (tmp_path / "block").open("wb") as block:
        command = [*COMMAND, "corefile", *TO]
        with Terminal(command, env={}, folder=tmp_path, stdout=block.fileno()) as terminal:
            terminal.until("--coredns-version 1.14.5 lets it wait 0.4 s")
            assert terminal.process.wait(PATIENCE) == DONE
    assert (tmp_path / "block").read_text().startswith("# CoreDNS 1.11.4 or later\n")


def test_spaces_between_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    """Spaces around commas are ignored."""
    assert run_command(["corefile", "--for", "coredns", "--to", " 10.96.0.53, 10.96.0.54 "]) == DONE
    assert "    forward . 10.96.0.53 10.96.0.54\n" in capsys.readouterr().out


def test_many_zones(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that names all of them is whole, however long it is: a forwarder reads it."""
    zones = "--zone=10.0.0.0/9", "--zone=172.0.0.0/9"
    assert run_command(["corefile", "--for", "coredns", "--to", "10.96.0.53", *zones]) == DONE
    (block,) = parse(capsys.readouterr().out)
    assert len(block.keys) == 256 and block.keys[-1] == "127.172.in-addr.arpa:53"


@pytest.mark.parametrize(
    ("zone", "domain"),
    [
        ("cluster.local", "cluster.local"),
        ("shop.svc.cluster.local", "cluster.local"),
        ("svc.cluster.local", "cluster.local"),
        ("web.shop.svc.k8s.example", "k8s.example"),
        ("shop.pod.cluster.local", "cluster.local"),
        ("svc.svc.cluster.local", "cluster.local"),
        ("topo.local", "topo.local"),
        ("svc", "svc"),
        ("a.svc", "a.svc"),
    ],
)
def test_the_domain_of_a_zone(zone: str, domain: str) -> None:
    """``kubernetes`` in the block serves the whole cluster domain, of which the zone may be a part."""
    assert stub_blocks.cluster_domain(zone) == domain


def test_reverse_zones_alone_fall_back_to_the_whole_cluster() -> None:
    """The plugin kubernetes needs a zone that is not reverse."""
    text = stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["d.f.ip6.arpa"], fail_open=True)
    assert "\n    kubernetes cluster.local ip6.arpa\n" in text


@pytest.mark.parametrize("forwarder", stub_blocks.FORWARDERS)
def test_a_whole_reverse_zone_is_printed_with_a_remark(forwarder: str) -> None:
    """It is what was asked for, but not what one should want; the remark is a comment of the program."""
    first, *others = stub_blocks.stub_block(forwarder, addresses("10.96.0.53"), ["in-addr.arpa"]).splitlines()
    assert first == (
        f"{'--' if forwarder == 'dnsdist' else '#'} in-addr.arpa: addresses outside the cluster lose their names. "
        "Better name its networks: --zone 10.96.0.0/12"
    )
    assert "in-addr.arpa" in "".join(others)
    assert "outside" not in stub_blocks.stub_block(forwarder, addresses("10.96.0.53"), ["10.in-addr.arpa"])


def syntax_check(forwarder: str, path: Path) -> list[str]:
    return {
        "dnsmasq": [needs_tool("dnsmasq"), "--test", "-C", str(path)],
        "unbound": [needs_tool("unbound-checkconf"), str(path)],
        "dnsdist": [needs_tool("dnsdist"), "--check-config", "-C", str(path)],
        "powerdns": [needs_tool("pdns_recursor"), "--config=check", f"--config-dir={path.parent}"],
    }[forwarder]


@pytest.mark.parametrize("name", [name for name in PRINTED if not name.startswith(("coredns", "nodelocal"))])
def test_the_program_takes_it(tmp_path: Path, name: str) -> None:
    """The program itself accepts each printed configuration."""
    forwarder, text = PRINTED[name][0], PRINTED[name][4]
    path = tmp_path / "recursor.conf"  # PowerDNS wants this name
    path.write_text(text + f'server:\n    directory: "{tmp_path}"\n    chroot: ""\n' * (forwarder == "unbound"))
    command = syntax_check(forwarder, path)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("forwarder", ["unbound", "powerdns"])
def test_private_addresses_are_topodns_own(serve: Callable[..., Server], tmp_path: Path, forwarder: str) -> None:
    """Programs that know reverse names of private networks themselves leave them to topodns."""
    server = serve(ROOT / "examples" / "cluster.yaml", flags={"trusted-forwarder": ["127.0.0.0/8"]})
    with running(forwarder, tmp_path, where(server), zones=("in-addr.arpa",)) as program:
        query = dns.message.make_query(dns.reversename.from_address("10.244.1.7"), "PTR")
        reply = dns.query.udp(query, program.address, port=program.port, timeout=PATIENCE)
    (name,) = (record.to_text() for rrset in reply.answer for record in rrset)
    assert name.endswith(".memcached.shop.svc.cluster.local.")


TO = ("--for", "coredns", "--to", "10.96.0.53")
MANY = ",".join(f"10.9.0.{number}" for number in range(14))
BAD_COMMAND_LINES = {
    "nothing": ((), "--for: missing, expected a program to print for, or --check FILE"),
    "no-to": (("--for", "coredns"), "--to: missing, expected the address of topodns"),
    "unknown-program": (("--for", "bind", "--to", "10.96.0.53"), "--for: 'bind', expected coredns, nodelocal, dnsmasq"),
    "to-is-a-name": (("--for", "coredns", "--to", "topodns"), "--to: 'topodns' is no IP address, expected ADDRESS"),
    "to-ends-with-a-comma": (("--for", "coredns", "--to", "10.96.0.53,"), "--to: '' is no IP address, expected"),
    "port": (("--for", "coredns", "--to", "10.96.0.53:0"), "--to: '0' is not a port from 1 to 65535, expected ADDRESS"),
    "port-too-high": (("--check", "x", "--to", "[::1]:99999"), "--to: '99999' is not a port from 1 to 65535, expected"),
    "to-anywhere": (("--for", "coredns", "--to", "0.0.0.0"), "--to: '0.0.0.0' is not a unicast address, expected"),
    "to-anywhere-6": (("--check", "x", "--to", "[::]:53"), "--to: '[::]:53' is not a unicast address, expected"),
    "to-many": (("--check", "x", "--to", "224.0.0.1"), "--to: '224.0.0.1' is not a unicast address, expected"),
    "to-many-6": (("--for", "coredns", "--to", "ff02::1"), "--to: 'ff02::1' is not a unicast address, expected"),
    "to-all": (("--for", "coredns", "--to", "255.255.255.255"), "--to: '255.255.255.255' is not a unicast address"),
    "too-many": ((*TO, "--to", "10.96.0.54", "--to", MANY), "--to: 16 addresses, expected at most 15"),
    "too-many-with-its-own": ((*TO, "--to", MANY, "--fail-open"), "--to: 15 addresses, expected at most 14"),
    "zone": ((*TO, "--zone", "a..b"), "--zone: 'a..b' is not a domain name, expected a domain name such as cluster"),
    "zone-empty": ((*TO, "--zone", ""), "--zone: '' is not a domain name, expected a domain name such as"),
    "zone-root": (("--check", "x", "--zone", "."), "--zone: '.' is not a domain name, expected a domain name such as"),
    "zone-breaks-out": ((*TO, "--zone", "a {"), "--zone: 'a {' is not a domain name, expected a domain name such as"),
    "fail-open-of-nodelocal": (
        ("--for", "nodelocal", "--to", "10.96.0.53", "--fail-open"),
        "--fail-open: nodelocal cannot answer for Services by itself, expected coredns",
    ),
    "fail-open-onto-topodns": (
        ("--for", "coredns", "--to", "10.96.0.53,127.0.0.1:5301", "--fail-open"),
        "--fail-open: 127.0.0.1:5301 is where coredns answers by itself, expected another address for topodns",
    ),
    "fail-open-of-federated-names": (
        ("--for", "coredns", "--to", "10.96.0.53", "--federation", "fed.example", "--fail-open"),
        "--fail-open: coredns cannot answer for federated names by itself, expected another zone, too",
    ),
    "version-too-old": ((*TO, "--coredns-version", "1.11.3"), "'1.11.3', expected 1.11.4 or later, which the block"),
    "version-too-old-for-fail-open": (
        (*TO, "--fail-open", "--coredns-version", "1.12.1"), "expected 1.13 or later, which --fail-open needs",
    ),
    "version-of-something": ((*TO, "--coredns-version", "new"), "'new', expected a version such as 1.14.7"),
    "version-of-another": (
        ("--for", "nodelocal", "--to", "10.96.0.53", "--coredns-version", "1.14.7"), "given with --for nodelocal",
    ),
    "version-and-check": (("--coredns-version", "1.14.7", "--check", "x"), "--coredns-version: given together with"),
    "fail-open-and-check": (("--fail-open", "--check", "x"), "--fail-open: given together with --check"),
    "check-and-fix": (("--check", "x", "--fix", "x"), "--fix: given together with --check"),
    "json-of-a-fix": (("--fix", "x", "-o", "json"), "-o: 'json' with --fix, expected it only with --check FILE"),
    "json": ((*TO, "-o", "json"), "-o: 'json' without --check"),
    "check-of-unbound": (("--for", "unbound", "--check", "x"), "--for: 'unbound', expected coredns or nodelocal"),
    "no-file": (("--check", "/nonexistent/Corefile"), "/nonexistent/Corefile: No such file or directory, expected"),
    "no-file-named": (("--check", ""), "--check: '' found, expected a file, or - for standard input"),
    "folder": (("--check", "/"), "/: Is a directory, expected a Corefile"),
    "flag-of-others": ((*TO, "--ttl", "5"), "--ttl: a flag of serve"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_COMMAND_LINES.values(), ids=BAD_COMMAND_LINES)
def test_bad_command_line(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], message: str) -> None:
    """One line names the flag, what was found and what was expected; status 2."""
    assert run_command(["corefile", *arguments]) == WRONG
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("topodns: ") and message in err and err.count("\n") == 1


# --- What is found --------------------------------------------------------------------------------------------------

# A cluster's own DNS, and a cache on each node, with all that such Corefiles have in them.
STOCK = """\
.:53 {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . /etc/resolv.conf {
        max_concurrent 500
    }
    cache 60 {
        disable denial cluster.local
        disable success cluster.local
    }
    health {
        lameduck 3s
    }
    errors
    loadbalance
    loop
    prometheus :9153
    ready
    reload
}
10.in-addr.arpa:53 {
    forward . 192.0.2.53
    cache 30
}
"""
STOCK_NODELOCAL = """\
__PILLAR__DNS__DOMAIN__:53 {
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    cache {
        denial 1000 5
        success 1000 30
    }
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
    }
    health __PILLAR__LOCAL__DNS__:8080
    reload
}
.:53 {
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    cache 30
}
"""
ASKS_ITSELF = (f"cluster.local:53 {{\n{GOOD} 127.0.0.1:53 {{\npolicy sequential\n"
               "failover SERVFAIL REFUSED\n}\n}\n")  # fmt: skip
FALLBACK = "cluster.local:5301 {{\n{}\nkubernetes cluster.local\n}}\n"
SHOP = f"shop.svc.cluster.local:53 {{\n{GOOD}\n}}\n"
AUTOPATH = (".:53 {\nautopath @kubernetes\nkubernetes cluster.local in-addr.arpa {\npods verified\n}\n"
            "forward . /etc/resolv.conf\ncache\n}\n")  # fmt: skip
NODELOCAL_ASKS = "{}:53 {{\nbind 169.254.20.10\nforward . 10.96.0.53 {{\nforce_tcp\n}}\n}}\n"
# Flags, a Corefile, and the lines of what is found in it.
FOUND = {
    "no-ecs": ("", "shop.svc.cluster.local:53 {\nforward . 10.96.0.53\n}", [
        "error    F: line 1: shop.svc.cluster.local:53: no rule names the client to topodns, "
        "expected the line 'rewrite edns0 subnet set 32 128 revert' [ClientNotNamed]",
    ]),
    "ecs-taken-out": ("", "cluster.local {\nrewrite edns0 subnet unset\nforward . 10.96.0.53\n}", [
        "error    F: line 1: cluster.local: no rule names the client to topodns, "
        f"expected the line '{ECS}' [ClientNotNamed]",
    ]),
    "append": ("", "cluster.local {\nrewrite edns0 subnet append 32 128 revert\nforward . 10.96.0.53\n}", [
        "error    F: line 2: cluster.local: the effect of 'append' depends on the option that the client sends, "
        "expected 'set' [ClientNamesItself]",
    ]),
    "replace": ("", "cluster.local {\nrewrite EDNS0 Subnet Replace 32 128 revert\nforward . 10.96.0.53\n}", [
        "error    F: line 2: cluster.local: the effect of 'replace' depends on the option that the client sends, "
        "expected 'set' [ClientNamesItself]",
    ]),
    "no-revert": ("", "cluster.local {\nrewrite edns0 subnet set 32 128\nforward . 10.96.0.53\n}", [
        "warning  F: line 2: cluster.local: the subnet stays in the reply to a client that sent none, "
        "expected 'revert' at the end [SubnetNotReverted]",
    ]),
    "short-prefix": ("", "cluster.local {\nrewrite edns0 subnet set 24 0x38 revert\nforward . 10.96.0.53\n}", [
        "warning  F: line 2: cluster.local: 'edns0 subnet set 24 0x38 revert' does not name a client by its whole "
        f"address, expected the line '{ECS}' [ClientNamedInPart]",
    ]),
    "prefix-is-a-word": ("", "cluster.local {\nrewrite edns0 subnet set all revert\nforward . 10.96.0.53\n}", [
        "warning  F: line 2: cluster.local: 'edns0 subnet set all revert' does not name a client by its whole "
        f"address, expected the line '{ECS}' [ClientNamedInPart]",
    ]),
    "a-rule-before": ("", f"cluster.local {{\nrewrite name a b\n{GOOD}\n}}", [
        "warning  F: line 2: cluster.local: queries that 'name a b' matches skip the rules below, "
        "expected 'rewrite continue ...' [RewriteStopsEarlier]",
    ]),
    "a-rule-for-all-before": ("", f"cluster.local {{\nrewrite edns0 nsid set\n{GOOD}\n}}", [
        "warning  F: line 2: cluster.local: queries that 'edns0 nsid set' matches skip the rules below, "
        "expected 'rewrite continue ...' [RewriteStopsEarlier]",
    ]),
    "option": ("", "cluster.local {\nrewrite edns0 local set 0xfe00 {client_ip}\nforward . 10.96.0.53\n}", [
        "warning  F: line 2: cluster.local: topodns trusts the client's own subnet unless it runs with "
        f"--client-option 0xfe00, expected that flag, or the line '{ECS}' [ClientSubnetTrusted]",
    ]),
    "option-appended": ("", "cluster.local {\nrewrite edns0 local append 0xfe00 {client_ip}\nforward . 10.96.0.53\n}", [
        "error    F: line 2: cluster.local: the effect of 'append' depends on the option that the client sends, "
        "expected 'set' [ClientNamesItself]",
    ]),
    "cache": ("", f"cluster.local {{\ncache 30\n{GOOD}\n}}", [
        "error    F: line 2: cluster.local: cache: all clients get the first one's answer, expected no cache here "
        "[CacheMixesClients]",
    ]),
    "half-a-cache": ("", f"cluster.local {{\ncache {{\ndisable success\n}}\n{GOOD}\n}}", [
        "error    F: line 2: cluster.local: cache: all clients get the first one's answer, expected no cache here "
        "[CacheMixesClients]",
    ]),
    "template-first": ("", f"cluster.local {{\ntemplate ANY ANY {{\nrcode NXDOMAIN\n}}\n{GOOD}\n}}", [
        "warning  F: line 2: cluster.local: template answers for cluster.local before forward: topodns is not asked, "
        "expected template in another block, or none [PluginAnswersFirst]",
    ]),
    "acl-first": ("--to=10.96.0.53", f".:53 {{\nacl shop.svc.cluster.local {{\nblock\n}}\n{GOOD}\n}}", [
        "warning  F: line 2: .:53: acl answers for shop.svc.cluster.local before forward: topodns is not asked, "
        "expected acl in another block, or none [PluginAnswersFirst]",
    ]),
    "another-forward-first": (
        "--to=10.96.0.53", f".:53 {{\n{ECS}\nforward . 192.0.2.53\nforward shop.svc.cluster.local 10.96.0.53\n}}", [
        "error    F: line 4: .:53: shop.svc.cluster.local is forwarded at line 3 already: topodns is not asked, "
        "expected this line before that one [EarlierForwardWins]",
    ]),
    "another-forward-first-of-all": ("--to=10.96.0.53", f"cluster.local {{\n{ECS}\nforward . 192.0.2.53\n"
                                                        "forward . 10.96.0.53\n}", [
        "error    F: line 4: cluster.local: cluster.local is forwarded at line 3 already: topodns is not asked, "
        "expected this line before that one [EarlierForwardWins]",
    ]),
    "forward-to-nobody": ("", "cluster.local {\nwhoami\n}\nexample {\nforward\n}\nsvc.cluster.local {\n"
                              f"{ECS}\nforward .\n}}", [
        "error    F: line 5: example: forward to 0 addresses: CoreDNS does not start, expected 1 to 15 [UpstreamCount]",
        "error    F: line 9: svc.cluster.local: forward to 0 addresses: CoreDNS does not start, expected 1 to 15 "
        "[UpstreamCount]",
    ]),
    "forward-to-too-many": (
        "--to=10.96.0.53", f"cluster.local {{\n{GOOD} {' '.join(f'127.0.0.{number}' for number in range(1, 16))}\n}}", [
        "error    F: line 3: cluster.local: forward to 16 addresses: CoreDNS does not start, expected 1 to 15 "
        "[UpstreamCount]",
    ]),
    "kubernetes-first": ("", f"shop.svc.cluster.local:53 {{\nkubernetes cluster.local\n{GOOD}\n}}", [
        "error    F: line 2: shop.svc.cluster.local:53: kubernetes answers for shop.svc.cluster.local before forward: "
        "topodns is not asked, expected kubernetes in another block, or none [KubernetesAnswersFirst]",
    ]),
    "kubernetes-first-at-the-root": ("--to=10.96.0.53", f".:53 {{\nkubernetes cluster.local\n{GOOD}\n}}", [
        "error    F: line 2: .:53: kubernetes answers for cluster.local before forward: "
        "topodns is not asked, expected kubernetes in another block, or none [KubernetesAnswersFirst]",
    ]),
    "twice": ("", f"cluster.local:53 {{\n{GOOD}\n}}\nCluster.local. {{\n{GOOD}\n}}", [
        "error    F: line 5: Cluster.local.: cluster.local:53 is served at line 1, too: CoreDNS does not start, "
        "expected one block for it [ZoneServedTwice]",
    ]),
    "twice-one-bound": ("", f"cluster.local {{\nbind 10.0.0.1\n{GOOD}\n}}\ncluster.local {{\n{GOOD}\n}}", [
        "error    F: line 6: cluster.local: cluster.local:53 is served at line 1, too: CoreDNS does not start, "
        "expected one block for it [ZoneServedTwice]",
    ]),
    "except": ("", f"cluster.local {{\n{GOOD} {{\nexcept shop.svc.cluster.local\n}}\n}}", [
        "error    F: line 4: cluster.local: names under shop.svc.cluster.local are not forwarded and get SERVFAIL, "
        "expected no part of the stub zone [StubZoneExcepted]",
    ]),
    "prefer-udp": ("", f"cluster.local {{\n{GOOD} {{\nprefer_udp\n}}\n}}", [
        "warning  F: line 4: cluster.local: prefer_udp: CoreDNS asks over UDP first, even for a client that asks over "
        "TCP, expected no such line [UdpPreferred]",
    ]),
    "autopath": ("--to=10.96.0.53", AUTOPATH + SHOP, [
        "warning  F: line 2: .:53: web.shop.default.svc.cluster.local becomes a name of shop.svc.cluster.local by "
        "autopath, which kubernetes answers in this block: topodns is not asked, "
        "expected svc.cluster.local forwarded at line 9 [AutopathBypassesStub]",
    ]),
    "autopath-beside-the-namespace-default": ("", (AUTOPATH + SHOP).replace("shop.svc", "default.svc"), [
        "warning  F: line 2: .:53: web.default.kube-system.svc.cluster.local becomes a name of "
        "default.svc.cluster.local by autopath, which kubernetes answers in this block: topodns is not asked, "
        "expected svc.cluster.local forwarded at line 9 [AutopathBypassesStub]",
    ]),
    "rewritten": ("--to=10.96.0.53", ".:53 {\nrewrite name web.example.com web.shop.svc.cluster.local\n"
                  "rewrite name suffix .intern.example.com .shop.svc.cluster.local answer auto\n"
                  "kubernetes cluster.local\nforward . /etc/resolv.conf\n}\n" + SHOP, [
        f"warning  F: line {line}: .:53: {name} becomes a name of shop.svc.cluster.local, "
        "which kubernetes answers in this block: topodns is not asked, "
        "expected this rule in a block of its own that forwards as the one at line 7 [RewriteBypassesStub]"
        for line, name in ((2, "web.example.com"), (3, "a.intern.example.com"))
    ]),
    "rewritten-in-the-middle": ("", ".:53 {\n"
                                "rewrite name substring .old. .svc.\nwhoami\n}\n" + SHOP, [
        "warning  F: line 2: .:53: shop.old.cluster.local becomes a name of shop.svc.cluster.local, "
        "which nothing in this block knows: topodns is not asked, "
        "expected this rule in a block of its own that forwards as the one at line 5 [RewriteBypassesStub]",
    ]),
    "rewritten-in-braces": ("", ".:53 {\nrewrite continue {\nname regex (.*)-(.*)\\.corp {1}.{2}.svc.cluster.local\n}\n"
                            "whoami\n}\n" + SHOP, [
        "warning  F: line 2: .:53: a-shop.corp becomes a name of shop.svc.cluster.local, "
        "which nothing in this block knows: topodns is not asked, "
        "expected this rule in a block of its own that forwards as the one at line 7 [RewriteBypassesStub]",
    ]),
    "rewritten-by-many-groups": ("", f".:53 {{\nrewrite name regex x {'{1}' * 200}\n"
                                 f"rewrite name regex x {'{1}.' * 9}local\nrewrite name regex x {'{1}' * 200}y\n"
                                 "rewrite name regex x a{1}svc{2}local\n}\n" + SHOP, []),
    "rewritten-for-another-server": (
        "--for=nodelocal --to=10.96.0.53", NODELOCAL_ASKS.format("cluster.local") + ".:53 {\nbind 169.254.20.10\n"
        "rewrite name git.my.domain git.gogs.svc.cluster.local\nforward . 198.51.100.2\n}\n", [
        "warning  F: line 9: .:53: git.my.domain becomes a name of cluster.local, "
        "which this block forwards to 198.51.100.2: topodns is not asked, "
        "expected this rule in a block of its own that forwards as the one at line 1 [RewriteBypassesStub]",
    ]),
    "reverse-zones-whole": (
        "--for=nodelocal --to=10.96.0.53", NODELOCAL_ASKS.format("cluster.local")
        + NODELOCAL_ASKS.format("in-addr.arpa").replace("{\n", "{\nerrors\n", 1) + NODELOCAL_ASKS.format("::/0"), [
        f"warning  F: line {line}: {block}: {zone} is forwarded whole: topodns has no names for addresses outside the "
        f"cluster, expected the cluster's own networks, such as {network} [ReverseZoneForwardedWhole]"
        for line, block, zone, network in ((10, "in-addr.arpa:53", "in-addr.arpa", "10.96.0.0/12"),
                                           (16, "::/0:53", "ip6.arpa", "fd00:10:96::/112"))
    ]),
    "reverse-zone-whole-in-a-block-of-its-own": ("", f"cluster.local {{\n{GOOD}\n}}\nip6.arpa {{\n{GOOD}\n}}", [
        "warning  F: line 7: ip6.arpa: ip6.arpa is forwarded whole: topodns has no names for addresses outside the "
        "cluster, expected the cluster's own networks, such as fd00:10:96::/112 [ReverseZoneForwardedWhole]",
    ]),
    "reverse-zone-whole-as-it-is-meant": ("--for=nodelocal --zone=in-addr.arpa",
                                          NODELOCAL_ASKS.format("in-addr.arpa"), [
        "warning  F: line 3: in-addr.arpa:53: in-addr.arpa is forwarded whole: topodns has no names for addresses "
        "outside the cluster, expected the cluster's own networks, such as 10.96.0.0/12 [ReverseZoneForwardedWhole]",
    ]),
    "reverse-zone-whole-beside-another": ("", f"cluster.local in-addr.arpa {{\n{GOOD}\n}}", [
        "warning  F: line 3: cluster.local in-addr.arpa: in-addr.arpa is forwarded whole: topodns has no names for "
        "addresses outside the cluster, expected the cluster's own networks, such as 10.96.0.0/12 "
        "[ReverseZoneForwardedWhole]",
    ]),
    **{f"the-rest-goes-elsewhere{flags}": (flags, f"cluster.local in-addr.arpa ip6.arpa {{\n{ECS}\n"
                                           "forward cluster.local 10.96.0.53\nforward . 192.0.2.53\n}", [])
       for flags in ("", "--to=10.96.0.53", "--zone=cluster.local")},
    "the-rest-goes-there-too": ("", f"cluster.local ip6.arpa {{\n{ECS}\nforward cluster.local 10.96.0.53\n"
                                    "forward . 10.96.0.53\n}", [
        "warning  F: line 4: cluster.local ip6.arpa: ip6.arpa is forwarded whole: topodns has no names for addresses "
        "outside the cluster, expected the cluster's own networks, such as fd00:10:96::/112 "
        "[ReverseZoneForwardedWhole]",
    ]),
    "a-zone-beneath": ("", f"cluster.local {{\n{GOOD}\n}}\nsvc.cluster.local {{\nkubernetes cluster.local\n}}", [
        "warning  F: line 5: svc.cluster.local: names under svc.cluster.local are answered here: topodns is not asked, "
        "expected no zone below the one forwarded at line 1 [SubzoneNotForwarded]",
    ]),
    "no-stub": ("", ".:53 {\nkubernetes cluster.local\nforward . /etc/resolv.conf\n}", [
        "warning  F: line 1: nothing forwards a zone of the cluster: topodns is not asked, "
        "expected the block that 'topodns corefile --for coredns' prints [NoStubZone]",
    ]),
    "no-stub-of-nodelocal": ("--for=nodelocal", "", [
        "warning  F: line 1: nothing forwards a zone of the cluster: topodns is not asked, "
        "expected the block that 'topodns corefile --for nodelocal' prints [NoStubZone]",
    ]),
    "nothing-goes-there": ("--to=10.96.0.54,10.96.0.55", f"cluster.local {{\n{GOOD}\n}}", [
        "error    F: line 1: nothing forwards to 10.96.0.54:53 or 10.96.0.55:53: topodns is not asked, "
        "expected the block that 'topodns corefile --for coredns' prints [ZoneNotForwarded]",
    ]),
    "one-zone-is-not-there": ("--zone=a.example --zone=b.example", f"a.example {{\n{GOOD}\n}}", [
        "error    F: line 1: nothing forwards b.example: topodns is not asked, "
        "expected the block that 'topodns corefile --for coredns' prints [ZoneNotForwarded]",
    ]),
    "a-zone-does-not-go-there": ("--to=10.96.0.54 --zone=cluster.local", f"cluster.local {{\n{GOOD}\n}}", [
        "error    F: line 1: nothing forwards cluster.local to 10.96.0.54:53: topodns is not asked, "
        "expected the block that 'topodns corefile --for coredns' prints [ZoneNotForwarded]",
    ]),
    "parts-of-a-zone": ("--zone=cluster.local", f"shop.svc.cluster.local a.cluster.local {{\n{GOOD}\n}}", [
        "error    F: line 1: only shop.svc.cluster.local a.cluster.local of cluster.local is forwarded: "
        "topodns is not asked for the rest, expected the block that 'topodns corefile --for coredns' prints "
        "[ZoneNotForwarded]",
    ]),
    "reverse-zones-beside-those-of-a-block": ("--zone=10.in-addr.arpa", f"10.0.0.0/15:53 fd00::/8 {{\n{GOOD}\n}}", [
        "error    F: line 1: only 0.10.in-addr.arpa 1.10.in-addr.arpa of 10.in-addr.arpa is forwarded: "
        "topodns is not asked for the rest, expected the block that 'topodns corefile --for coredns' prints "
        "[ZoneNotForwarded]",
    ]),
    "files": ("", f"import more/*.server\ncluster.local {{\nimport x.override\n{GOOD}\n}}", [
        "warning  F: line 1: import more/*.server: topodns does not read this file, expected everything in one file "
        "[ImportNotRead]",
        "warning  F: line 3: import x.override: topodns does not read this file, expected everything in one file "
        "[ImportNotRead]",
    ]),
    "block-without-a-zone": ("", f"cluster.local {{\n{GOOD}\n}}\n{{\nwhoami\n}}", [
        "warning  F: line 5: a block without a zone has no effect, expected a zone in front of '{' [BlockWithoutZone]",
    ]),
    "errors-come-first": ("", "cluster.local {\nrewrite edns0 subnet set 32 128\ncache\nforward . 10.96.0.53\n}", [
        "error    F: line 3: cluster.local: cache: all clients get the first one's answer, expected no cache here "
        "[CacheMixesClients]",
        "warning  F: line 2: cluster.local: the subnet stays in the reply to a client that sent none, "
        "expected 'revert' at the end [SubnetNotReverted]",
    ]),
    "fallback-unused": ("", f"cluster.local {{\n{GOOD}\n}}\n" + FALLBACK.format("bind 127.0.0.1"), [
        "warning  F: line 5: cluster.local:5301: nothing forwards to port 5301: nobody answers while topodns does not, "
        "expected this address after topodns in the 'forward' of the stub zone, or no such block [FallbackUnused]",
    ]),
    "fallback-missing": ("", f"cluster.local {{\n{GOOD} {{\nfailover SERVFAIL\n}}\n}}", [
        "warning  F: line 4: cluster.local: failover has no server to go to: clients get errors while topodns does not "
        "answer, expected a fallback after topodns, as --fail-open prints it [FallbackMissing]",
    ]),
    "not-in-sequence": ("", f"cluster.local {{\n{GOOD} 127.0.0.1:5301 {{\nfailover SERVFAIL REFUSED\n}}\n}}\n"
                            + FALLBACK.format("bind 127.0.0.1"), [
        "warning  F: line 3: cluster.local: CoreDNS asks 127.0.0.1:5301 even while topodns answers, "
        "expected 'policy sequential' [FallbackNotSequential]",
    ]),
    "no-failover": ("", f"cluster.local {{\n{GOOD} 127.0.0.1:5301 {{\npolicy sequential\nfailover REFUSED\n}}\n}}\n"
                        + FALLBACK.format("bind 127.0.0.1"), [
        "warning  F: line 3: cluster.local: clients get SERVFAIL from topodns, expected 'failover SERVFAIL REFUSED' "
        "[FailoverMissing]",
    ]),
    "fallback-first": ("", f"cluster.local {{\n{ECS}\nforward . 127.0.0.1:5301 10.96.0.53 {{\npolicy sequential\n"
                           "failover SERVFAIL REFUSED\n}\n}\n" + FALLBACK.format("bind ::1 127.0.0.1"), [
        "error    F: line 3: cluster.local: 127.0.0.1:5301 comes before topodns: CoreDNS asks topodns only when "
        "127.0.0.1:5301 is down, expected topodns first [FallbackFirst]",
    ]),
    "fallback-for-all": ("", stub_blocks.stub_block(
        "coredns", addresses("10.96.0.53"), ["cluster.local"], fail_open=True)
                         .replace("    bind 127.0.0.1\n", ""), [
        "warning  F: line 12: cluster.local:5301: queries to port 5301 bypass topodns, expected 'bind 127.0.0.1' "
        "[FallbackOpenToAll]",
    ]),
    "fallback-elsewhere": ("", stub_blocks.stub_block(
        "coredns", addresses("10.96.0.53"), ["cluster.local"], fail_open=True)
                           .replace("cluster.local:5301", "cluster.local:5302"), [
        "warning  F: line 5: cluster.local:53: no block here answers for cluster.local at 127.0.0.1:5301, "
        "expected the block that --fail-open prints [FallbackUnanswered]",
    ]),
    "fallback-for-another-zone": (
        "", stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["cluster.local"], fail_open=True)
        .replace("kubernetes cluster.local", "kubernetes k8s.example"), [
        "warning  F: line 1: nothing forwards a zone of the cluster: topodns is not asked, "
        "expected the block that 'topodns corefile --for coredns' prints [NoStubZone]",
    ]),
    "fallback-for-another-zone-with-to": (
        "--to=10.96.0.53", stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["cluster.local"], fail_open=True)
        .replace("kubernetes cluster.local", "kubernetes k8s.example"), [
        "warning  F: line 5: cluster.local:53: no block here answers for cluster.local at 127.0.0.1:5301, "
        "expected the block that --fail-open prints [FallbackUnanswered]",
    ]),
    "nodelocal-by-udp": ("--for=nodelocal", "cluster.local {\ncache 5\nforward . 10.96.0.53\n}", [
        "warning  F: line 3: cluster.local: forward over UDP: each query takes a connection tracking entry, "
        "and some queries get lost, expected force_tcp [ForwardByUdp]",
    ]),
    "nodelocal-keeps": ("--for=nodelocal", "cluster.local {\ncache {\nsuccess 9984 30 20\ndenial 9984 5\n}\n"
                        "forward . 10.96.0.53 {\nforce_tcp\n}\n}", [
        "warning  F: line 3: cluster.local: answers are cached for at least 20 s, even if their TTL is shorter, "
        "expected at most 5 [AnswersKeptTooLong]",
    ]),
    "nodelocal-keeps-for-long": ("--for=nodelocal", "cluster.local {\ncache 5 {\nserve_stale 1h\n}\n"
                                 "forward . 10.96.0.53 {\nforce_tcp\n}\n}", [
        "warning  F: line 3: cluster.local: serve_stale: clients get answers after their TTL, expected no such line "
        "[StaleAnswersServed]",
    ]),
    "fallback-onto-itself": ("", ASKS_ITSELF + STOCK, [
        "error    F: line 3: cluster.local:53: 127.0.0.1:53 is this block: CoreDNS asks itself, expected another port "
        "[FallbackAsksItself]",
    ]),
    "fallback-onto-itself-with-to": ("--to=10.96.0.53", ASKS_ITSELF + STOCK, [
        "error    F: line 3: cluster.local:53: 127.0.0.1:53 is this block: CoreDNS asks itself, expected another port "
        "[FallbackAsksItself]",
    ]),
    "fallback-that-a-longer-zone-takes": (
        "--to=10.96.0.53", f"cluster.local {{\n{GOOD} 127.0.0.1:5301 {{\npolicy sequential\nfailover SERVFAIL REFUSED\n"
        "}\n}\n" + FALLBACK.replace("cluster.local:5301", ".:5301").format("bind 127.0.0.1")
        + "local:5301 {\nbind 127.0.0.1\nkubernetes k8s.example\n}", [
        "warning  F: line 3: cluster.local: no block here answers for cluster.local at 127.0.0.1:5301, "
        "expected the block that --fail-open prints [FallbackUnanswered]",
    ]),
}  # fmt: skip


def checked(capsys: pytest.CaptureFixture[str], path: Path, text: str, flags: str = "") -> tuple[int, list[str], str]:
    """Check a Corefile; return the status, all lines but the last (with F for the file), and the errors."""
    path.write_text(text)
    status = run_command(["corefile", "--check", str(path), *flags.split()])
    out, err = capsys.readouterr()
    return status, out.replace(str(path), "F").splitlines(), err.replace(str(path), "F")


@pytest.mark.parametrize(("flags", "text", "expected"), FOUND.values(), ids=FOUND)
def test_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, text: str, expected: Sequence[str]
) -> None:
    """Each line says where, what was found and what was expected; an error makes the status 1."""
    errors = sum(line.startswith("error") for line in expected)
    warnings = len(expected) - errors
    last = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    status = FAILED if errors else DONE
    assert checked(capsys, tmp_path / "Corefile", text, flags) == (status, [*expected, last], "")


def test_each_code_is_found() -> None:
    """Each code occurs for some Corefile above."""
    found = {line.rpartition(" ")[2] for _, _, lines in FOUND.values() for line in lines}
    assert found == {f"[{code.name}]" for code in CorefileCode} - {"[ExternalNameBypassesStub]"}, (
        "but what doctor knows"
    )


# Flags, and a Corefile in which nothing is wrong.
CLEAN = {
    "beside-the-usual-one": (
        "", STOCK + stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["shop.svc.cluster.local"])),
    "fail-open-beside-it": (
        "", stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["cluster.local"], fail_open=True) + STOCK),
    "nodelocal-as-it-comes": ("--for=nodelocal", STOCK_NODELOCAL),
    "nodelocal-names-clients-too": (
        "--for=nodelocal", f"cluster.local {{\ncache 5\n{GOOD} {{\nforce_tcp\n}}\n}}"),
    "one-block-without-braces": ("", f"cluster.local\n{GOOD}"),
    "snippets": ("", f"(named) {{\n{ECS}\n}}\n(to) {{\nimport named\nforward . 10.96.0.53 {{\nimport by\n}}\n}}\n"
                     "(by) {\nforce_tcp\n}\ncluster.local:53 {\nerrors\nimport to\nlog\n}"),
    "several-keys": ("", f"a.example, cluster.local:53,\nb.example:5353 dns://c.example {{\n{GOOD}\n}}"),
    "quotes-and-comments": ("", f"# {{\n\"cluster.local\" {{ # }}\n{ECS}\nforward . \"10.96.0.53\" # }}\n}}"),
    "variables": ("", f"{{$DOMAIN}}:53 {{%PORT%}} {{\nbind {{$ADDRESS}}\nwhoami\n}}\ncluster.local {{\n{GOOD}\n}}"),
    "an-end-too-many": ("", f"cluster.local {{\n{GOOD}\n}}\n}}\n"),
    "an-end-too-few": ("", f"cluster.local {{\n{GOOD} {{\nforce_tcp\n}}\n"),
    "an-end-without-a-beginning": ("", f"cluster.local\n{GOOD}\n}}\n"),
    "rule-in-braces": ("", f"cluster.local {{\nrewrite stop {{\n{ECS.removeprefix('rewrite ')}\n}}\n"
                           "forward . 10.96.0.53\n}"),
    "rules-go-on": ("", f"cluster.local {{\nrewrite continue name a b\n{GOOD}\nrewrite name c d\n}}"),
    "named-by-an-option-too": ("", "cluster.local {\nrewrite continue edns0 local set 0xfe00 {client_ip}\n"
                                   f"{GOOD}\n}}"),
    "cache-of-others": ("", f".:53 {{\ncache 30 example\n{ECS}\nforward cluster.local 10.96.0.53\n}}"),
    "cache-that-is-off": (
        "", f"cluster.local {{\ncache {{\ndisable success\ndisable denial cluster.local\n}}\n{GOOD}\n}}"),
    "kubernetes-for-others": ("--zone=a.example", f"a.example {{\nkubernetes b.example\n{GOOD}\n}}"),
    "bound-apart": ("", f"cluster.local {{\nbind 10.0.0.1\n{GOOD}\n}}\ncluster.local {{\nbind 10.0.0.2\n{GOOD}\n}}"),
    "told-apart-by-a-view": (
        "", f"cluster.local {{\nview a {{\nexpr true\n}}\n{GOOD}\n}}\ncluster.local {{\n{GOOD}\n}}"),
    "forced-anyway": ("", f"cluster.local {{\n{GOOD} {{\nforce_tcp\nprefer_udp\n}}\n}}"),
    "several-in-sequence": ("", f"cluster.local {{\n{GOOD} 10.96.0.54 {{\npolicy sequential\n}}\n}}"),
    "both-of-this-machine": (
        "--to=127.0.0.1:5300", f"cluster.local {{\n{ECS}\nforward . 127.0.0.1:5300 127.0.0.1:5301 {{\n"
        "policy sequential\nfailover SERVFAIL REFUSED\n}\n}\n" + FALLBACK.format("bind lo")),
    "exception-for-another-forward": (
        "", f"cluster.local {{\n{GOOD} {{\nexcept a.cluster.local\n}}\nforward a.cluster.local 10.96.0.53\n}}"),
    "zone-in-a-stub": ("--zone=web.shop.svc.cluster.local", f"shop.svc.cluster.local {{\n{GOOD}\n}}"),
    "forwards-apart": (
        "--to=10.96.0.53", f".:53 {{\n{ECS}\nforward cluster.local 10.96.0.53\nforward . 192.0.2.53\n}}"),
    "hosts-that-hand-on": ("", f"cluster.local {{\nhosts {{\n192.0.2.1 a.example\nfallthrough\n}}\n{GOOD}\n}}"),
    "template-for-others": ("", f"cluster.local {{\ntemplate IN A example {{\nrcode NXDOMAIN\n}}\n{GOOD}\n}}"),
    "fallback-is-for-others-too": (
        "", f"cluster.local:1053 {{\n{GOOD} 127.0.0.1:53 {{\npolicy sequential\nfailover SERVFAIL REFUSED\n}}\n}}\n"
        + STOCK),
    "autopath-of-all-namespaces": ("", AUTOPATH + SHOP.replace("shop.", "")),
    "autopath-that-knows-no-pods": ("", AUTOPATH.replace("verified", "insecure") + SHOP),
    "autopath-by-a-file": ("", AUTOPATH.replace("@kubernetes", "/etc/resolv.conf") + SHOP),
    "autopath-for-another-zone": ("", AUTOPATH.replace("@", "example.com @") + SHOP),
    "autopath-at-another-port": ("", AUTOPATH.replace(":53", ":1053") + SHOP),
    "autopath-at-another-address": (
        "", AUTOPATH.replace("cache", "bind 10.0.0.1") + SHOP.replace("{\n", "{\nbind 10.0.0.2\n", 1)),
    "rewritten-elsewhere": ("", ".:53 {\nrewrite name a.example.com web.other.svc.cluster.local\n"
        "rewrite name suffix .example.com .ashop.svc.cluster.local\nrewrite name prefix shop. other.\n"
        "rewrite name regex (.*)\\.example\\.com {1}.default.svc.cluster.local\n"
        "rewrite name regex (.*)\\.shop\\.svc\\.cluster\\.local web.shop.svc.cluster.local\n"
        "rewrite name exact a.shop.svc.cluster.local web.shop.svc.cluster.local\nrewrite ttl suffix . 30\n"
        "rewrite cname exact a.example.com web.shop.svc.cluster.local\nrewrite name\nrewrite name other a b\n"
        "kubernetes cluster.local\n}\n" + SHOP),
    "rewritten-by-a-block-that-asks-topodns": (
        "--to=10.96.0.53", "example.com {\nrewrite continue name suffix .example.com .shop.svc.cluster.local\n"
        f"{GOOD}\n}}\n{SHOP}"),
    "rewritten-of-another-block": ("", ".:53 {\nrewrite name a.example.com web.shop.svc.cluster.local\nwhoami\n}\n"
                                       "example.com {\nwhoami\n}\n" + SHOP),
    "reverse-zones-of-networks": (
        "--to=10.96.0.53", f"cluster.local 10.96.0.0/12 10.in-addr.arpa fd00::/8 {{\n{GOOD}\n}}"),
    "reverse-zones-of-nodelocal-as-they-come": (
        "--for=nodelocal", "cluster.local in-addr.arpa ip6.arpa {\nforward . 10.96.0.10 {\nforce_tcp\n}\n}\n"),
    "reverse-block-of-addresses": ("--zone=1.10.in-addr.arpa", f"10.0.0.0/15:53 fd00::/8 {{\n{GOOD}\n}}"),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "text"), CLEAN.values(), ids=CLEAN)
def test_clean(capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, text: str) -> None:
    """A correct Corefile has no findings."""
    assert checked(capsys, tmp_path / "Corefile", text, flags) == (DONE, ["0 errors, 0 warnings"], "")


HEAD = ".:53 {\nerrors\nhealth {\nlameduck 5s\n}\nready\n"
PLUGIN = (
    "kubernetes cluster.local in-addr.arpa ip6.arpa {\npods insecure\nfallthrough in-addr.arpa ip6.arpa\nttl 30\n}\n"
)
REST = "prometheus :9153\nforward . /etc/resolv.conf {\nmax_concurrent 1000\n}\ncache 30\nloop\nreload\nloadbalance\n"
# The Corefiles of clusters as they are installed: CoreDNS's, and NodeLocal DNSCache's.
INSTALLED = {
    "kubeadm": f"{HEAD}{PLUGIN}{REST}}}\n",
    "kind": f"{HEAD}{PLUGIN}{REST}}}\n".replace("cache 30", "cache 30 {\ndisable success cluster.local\n"
                                                 "disable denial cluster.local\n}"),
    "kops": f"{HEAD}{PLUGIN}{REST}}}\n".replace("cluster.local ", "cluster.local. "),
    "EKS": f"{HEAD}{PLUGIN}{REST}}}\n".replace("ttl 30\n", "").replace(" {\nmax_concurrent 1000\n}", ""),
    "AKS": f"{HEAD}{PLUGIN}{REST}template ANY ANY internal.cloudapp.net {{\n"
           'match "^(?:[^.]+\\.){4,}internal\\.cloudapp\\.net\\.$"\nrcode NXDOMAIN\nfallthrough\n}\n'
           "template ANY ANY reddog.microsoft.com {\nrcode NXDOMAIN\n}\n}\n",
    "k3s": f"{HEAD}{PLUGIN}hosts /etc/coredns/NodeHosts {{\nttl 60\nreload 15s\nfallthrough\n}}\n{REST}}}\n",
    "OpenShift": f".:5353 {{\nbufsize 1232\n{PLUGIN}{REST}}}\nhostname.bind:5353 {{\nchaos\n}}\n",
}  # fmt: skip
INSTALLED_NODELOCAL = STOCK_NODELOCAL + "".join(
    f"{zone}:53 {{\nerrors\ncache 30\nreload\nloop\nbind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__\n"
    "forward . __PILLAR__CLUSTER__DNS__ {\nforce_tcp\n}\nprometheus :9253\n}\n"
    for zone in stub_blocks.ARPA
)
BYPASSES = {code.name for code in CorefileCode if code.name.endswith("BypassesStub")} | {"ReverseZoneForwardedWhole"}


@pytest.mark.parametrize("zone", ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "10.96.in-addr.arpa"])
@pytest.mark.parametrize("name", [*INSTALLED, "nodelocal"])
def test_no_false_alarm_about_what_clusters_have(name: str, zone: str) -> None:
    """With our block beside it, no Corefile that comes with a cluster answers names of the stub zone by itself."""
    forwarder = name if name == "nodelocal" else "coredns"
    stub = stub_blocks.stub_block(forwarder, addresses("10.96.0.53"), [zone])
    corefile = (INSTALLED_NODELOCAL if name == "nodelocal" else INSTALLED[name]) + stub
    for to in ((), addresses("10.96.0.53")):
        found = corefile_check.check(corefile, forwarder=forwarder, to=to)
        assert not BYPASSES & {finding.code for finding in found}, found


LABELS = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map(".".join)  # few, so that they meet
PIECES = st.tuples(st.sampled_from(["", "."]), LABELS).map("".join)


@settings(max_examples=500)
@given(
    form=st.sampled_from(["exact", "prefix", "suffix", "substring"]),
    source=PIECES, target=PIECES, zone=LABELS, head=st.sampled_from(["", "a", "x.", "b.a."]), tail=LABELS,
)  # fmt: skip
def test_whatever_rule_leads_into_the_stub_zone_is_found(
    form: str, source: str, target: str, zone: str, head: str, tail: str
) -> None:
    """A name that the rule makes one of the stub zone, and that is none itself, is enough."""
    corefile = f".:53 {{\nrewrite name {form} {source} {target}\nwhoami\n}}\n{zone}:53 {{\n{GOOD}\n}}\n"
    found = corefile_check.check(corefile, forwarder="coredns", to=addresses("10.96.0.53"))
    asked = (f"{head}{source}", f"{source}.{tail}", f"{head}{source}.{tail}", f"{head}{source}{tail}")
    names = [f"{name}." for name in asked if all(name.split("."))]
    rewritten = _rewritten(form, f"{source}.", f"{target}.", names)
    leads = [
        name
        for name, after in zip(names, rewritten, strict=True)
        if f".{after}".endswith(f".{zone}.") and not f".{name}".endswith(f".{zone}.")
    ]
    if leads:
        assert "RewriteBypassesStub" in {finding.code for finding in found}, leads


def _rewritten(form: str, source: str, target: str, names: Sequence[str]) -> list[str]:
    """Return what a rule makes of names, by regular expressions and not by what the check does."""
    pattern = {"exact": "^{}$", "prefix": "^{}", "suffix": "{}$", "substring": "{}"}[form].format(re.escape(source))
    return [re.sub(pattern, target, name) for name in names]


# Rules, and an example of what they make a name of shop.svc.cluster.local; empty if there is none.
REGEXES = {
    r"(.*)\.example\.com {1}.shop.svc.cluster.local": "a.example.com",
    r"(.*)\.(.*)\.example\.com {1}.{2}.svc.cluster.local": "a.shop.example.com",
    r"^db-(\d+)\.legacy\.$ db-{1}.shop.svc.cluster.local": "db-1.legacy",
    r"^([a-z0-9-]+)\.([a-z]{2,8})\.lan\.$ {1}.{2}.svc.cluster.local": "a.shop.lan",
    r"^(web|api)\.old {1}.shop.svc.cluster.local": "web.old",
    r"^(?:www\.)?shop\.example web.shop.svc.cluster.local": "www.shop.example",
    r"^[wv]eb\S*\.old\.?$ web.shop.svc.cluster.local": "veb.old",
    r"^(.+)\.corp\.internal\.?$ {1}": "shop.svc.cluster.local.corp.internal",
    r"(.*)\.(svc\.cluster\.local) {1}.{2}": "",  # no name changes
    r"^(kube|default)\.(.*)$ {2}": "",  # such a name comes to the stub block by itself
    r"^db-(\d+)\.legacy$ db-{1}.shop.svc.cluster.local": "",  # names have a final dot
    r"(.*)-(.*) {1}.{2}.svc.cluster.local": "",  # the final dot is in the second group
    r"(.*)\.example\.com {1}.{2}.svc.cluster.local": "",  # there is no second group
    r"(.*)\.example\.com {1}.other.svc.cluster.local": "",
    r"((.*)\.)?example\.com {2}.shop.svc.cluster.local": "",  # groups in groups are not judged
    r"(?i)web\.example web.shop.svc.cluster.local": "",  # nor are flags
    r"(?P<name>.*)\.example\.com {1}.shop.svc.cluster.local": "a.example.com",
    r"(.+)+\.example\.com {1}.shop.svc.cluster.local": "",  # Python may try too many ways, here and below
    r"(a|aa)+\.example web.shop.svc.cluster.local": "",
    r"w(a?a?)+\.example web.shop.svc.cluster.local": "",
    f"{'a?' * 20}web.example web.shop.svc.cluster.local": "",
    f"{'(a|aa)' * 20}.example web.shop.svc.cluster.local": "",
    f"a*a*a*a*{'b' * 60} web.shop.svc.cluster.local": "",
    "[" + "\\" * 25 + "x web.shop.svc.cluster.local": "",
    f"x {''.join('{' + '0' * zeros + '1}' for zeros in range(7))}y": "",
    f"x {{{'1' * 5000}}}y": "",
    "a{99999999999} web.shop.svc.cluster.local": "",
    r"[[:alpha:]]+\.example web.shop.svc.cluster.local": "",  # Python reads another class
    r"(a|b)?\.(c|dd)*x{2}\.example web.shop.svc.cluster.local": "",
    r"^(a|bb)?(cc)+\.example web.shop.svc.cluster.local": "acc.example",
    r"[ {1}.shop.svc.cluster.local": "",
}


@pytest.mark.parametrize(("rule", "name"), REGEXES.items())
def test_a_regular_expression_is_applied_to_an_example(rule: str, name: str) -> None:
    """What is reported does become a name of the stub zone, and comes to the block of the rule."""
    corefile = f".:53 {{\nrewrite name regex {rule}\nwhoami\n}}\nshop.svc.cluster.local:53 {{\n{GOOD}\n}}\n"
    found = corefile_check.check(corefile, forwarder="coredns", to=addresses("10.96.0.53"))
    assert [finding.message.partition(" ")[0] for finding in found] == [name] * bool(name)


CODE = re.compile(r"^ *```\w*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("manifests/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "README.md"]


def test_no_false_alarm_about_our_own_pages() -> None:
    """What pages and manifests show of Corefiles is parsed, and bypasses nothing."""
    texts = [text for page in PAGES for text in CODE.findall(page.read_text()) if "forward ." in text]
    for path in (path for end in ("yaml", "txt") for path in ROOT.glob(f"manifests/**/*.{end}")):
        if "{{" not in (text := path.read_text()):
            maps = [
                item for item in yaml.safe_load_all(text) if isinstance(item, dict) and item.get("kind") == "ConfigMap"
            ]
            texts += [item["data"]["Corefile"] for item in maps if "Corefile" in item.get("data", {})]
    assert len(texts) >= 3
    for text in texts:
        try:
            found = corefile_check.check(text, forwarder="coredns")
        except Unparsable:
            continue
        assert not BYPASSES & {finding.code for finding in found}, text


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("web.shop.svc.cluster.local", True),
        ("WEB.shop.svc.cluster.local.", True),
        ("web.other.svc.cluster.local", False),
        ("web.shop.svc.other.example", False),
    ],
)
def test_external_names_that_the_cluster_has(target: str, found: bool) -> None:
    """A Service of a namespace that is not forwarded, whose target is in one that is."""
    names = {"default/alias": target, "shop/inside": "web.shop.svc.cluster.local"}
    corefile = STOCK + stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["shop.svc.cluster.local"])
    findings = corefile_check.check(corefile, forwarder="coredns", external_names=names)
    expected = (
        "line 2: .:53: Service default/alias names web.shop.svc.cluster.local, which kubernetes answers in this block: "
        "topodns is not asked, expected default.svc.cluster.local, too, forwarded at line 27 [ExternalNameBypassesStub]"
    )
    assert list(map(str, findings)) == [expected] * found
    whole = STOCK + stub_blocks.stub_block("coredns", addresses("10.96.0.53"), ["svc.cluster.local"])
    assert not corefile_check.check(whole, forwarder="coredns", external_names=names)


def test_what_is_printed_is_clean() -> None:
    """``--check`` finds nothing in the blocks printed for CoreDNS and NodeLocal DNSCache."""
    for forwarder, to, zones, fail_open, text in PRINTED.values():
        if forwarder in stub_blocks.CHECKED:
            for known in ((), addresses(to)):
                assert corefile_check.check(text, forwarder=forwarder, to=known, zones=zones) == [], text
            assert fail_open == ("5301" in text)


def test_findings_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The fields are those of ``check``."""
    path = tmp_path / "Corefile"
    path.write_text(f"cluster.local {{\ncache\n{GOOD}\n}}")
    assert run_command(["corefile", "--check", str(path), "-o", "json"]) == FAILED
    assert json.loads(capsys.readouterr().out) == [
        {
            "code": "CacheMixesClients",
            "severity": "error",
            "kind": "",
            "namespace": "",
            "name": "",
            "field": "cluster.local",
            "message": "cache: all clients get the first one's answer",
            "expected": "no cache here",
            "line": 2,
            "file": str(path),
        }
    ]


def test_standard_input() -> None:
    """``-`` reads the Corefile that ``kubectl`` prints; standard error stays empty."""
    ran = run("corefile", "--check", "-", stdin=f"cluster.local {{\ncache\n{GOOD}\n}}")
    assert (ran.returncode, ran.stderr) == (FAILED, "")
    assert ran.stdout.startswith("error    -: line 2: cluster.local: cache: ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("corefile --check -", "-: standard input is closed, expected a Corefile"),
        ("check --snapshot -", "standard input: Bad file descriptor, expected a snapshot"),
    ],
)
def test_no_standard_input(command: str, message: str) -> None:
    """A closed standard input is an error, not a crash."""
    shell = f"exec {sys.executable} -m dnsserver {command} <&-"
    ran = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=ROOT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (WRONG, "", f"topodns: {message}\n")


# --- Any text -------------------------------------------------------------------------------------------------------

# What CoreDNS does not start with, and where it is.
UNPARSABLE = {
    "no-end": ("cluster.local {\nwhoami\n", "line 1: the block has no end, expected '}'"),
    "no-end-within": ("a {\nwhoami\nforward . 127.0.0.1 {\nforce_tcp\n", "line 3: the block of forward has no end"),
    "no-end-of-quotes": ('a {\nwhoami "\n}\n', "line 1: the block has no end"),
    "end-too-many": ("a {\nwhoami\n}\n}\nb {\nwhoami\n}\n", "line 4: '}' found, expected a zone: no '{' is open"),
    "end-in-a-line": ("a {\nwhoami }\n", "line 2: '}' found, expected none in this line: no '{' is open"),
    "comma": ("a, {\nwhoami\n}\n", "line 1: '{' found after a comma, expected another zone"),
    "comma-at-the-end": ("a {\nwhoami\n}\nb,\n", "line 4: the end found after a comma, expected another zone"),
    "import-of-nothing": ("a {\nimport\n}\n", "line 2: 0 words after import, expected a snippet or a file"),
    "import-of-two": ("(s) {\nwhoami\n}\na {\nimport s t\n}\n", "line 5: 2 words after import"),
    "snippet-twice": (
        "(s) {\n}\n(s) {\n}\na {\nwhoami\n}\n",
        "line 3: (s) found, expected one snippet of that name, in braces",
    ),
    "snippet-without-a-block": ("(s)\nwhoami\n", "line 1: (s) found, expected one snippet of that name"),
    "snippet-without-an-end": ("(s) {\nwhoami\n", "line 1: (s) found, expected one snippet of that name"),
    "no-space": ("cluster.local:53{\nwhoami\n}\n", "line 1: 'cluster.local:53{' found, expected a space before '{'"),
    "circle": ("(s) {\nimport s\n}\na {\nimport s\n}\n", "import s: too many imports, expected no cycle"),
    "circle-of-two": ("(s) {\nimport t\n}\n(t) {\nimport s\n}\na {\nimport s\n}\n", "too many imports"),
}


@pytest.mark.parametrize(("text", "message"), UNPARSABLE.values(), ids=UNPARSABLE)
def test_unparsable(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, message: str) -> None:
    """One line names the file and the line in it; status 2 and no findings."""
    status, out, err = checked(capsys, tmp_path / "Corefile", text)
    assert (status, out) == (WRONG, []) and err.startswith("topodns: F: line ") and message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in UNPARSABLE if name != "no-space"])
def test_coredns_does_not_start_with_it_either(tmp_path: Path, name: str) -> None:
    """CoreDNS does not start, or answers nothing, with what is reported unparsable."""
    assert not starts(tmp_path, UNPARSABLE[name][0])


MAP = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"Corefile": STOCK}}
# A Corefile with more around it, and the line at which that begins.
DATA = {
    "yaml": (yaml.safe_dump(MAP), 1),
    "yaml-of-kubectl": (f"apiVersion: v1\ndata:\n  Corefile: |\n{textwrap.indent(STOCK, '    ')}kind: ConfigMap\n", 1),
    "documents": (f"# as it was\n---\n{yaml.safe_dump(MAP)}", 2),
    "items": (yaml.safe_dump([MAP]), 1),
    "list": (yaml.safe_dump({"kind": "List", "items": [MAP]}), 1),
    "data": (yaml.safe_dump(MAP["data"]), 1),
    "flow": ('data: {Corefile: ".:53 {\\n    errors\\n}\\n"}\n', 1),
    "json": (json.dumps(MAP), 1),
    "json-of-kubectl": (json.dumps(MAP, indent=4), 2),
    "json-list": (json.dumps([MAP], indent=1), 2),
    "json-data": (json.dumps(MAP["data"]), 1),
    "of-describe": ("Name:         coredns\nNamespace:    kube-system\n", 1),
}


@pytest.mark.parametrize(
    ("flags", "name"), [("", "coredns"), ("--for=nodelocal", "node-local-dns")], ids=["coredns", "nodelocal"]
)
@pytest.mark.parametrize(("text", "line"), DATA.values(), ids=DATA)
def test_more_than_a_corefile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, line: int, flags: str, name: str
) -> None:
    """For a whole ConfigMap, the error says how to extract the Corefile from it."""
    status, out, err = checked(capsys, tmp_path / "Corefile", text, flags)
    assert (status, out) == (WRONG, []) and err == (
        f"topodns: F: line {line}: YAML or JSON found, expected the Corefile alone: "
        f"kubectl -n kube-system get configmap {name} -o jsonpath='{{.data.Corefile}}'\n"
    )


@pytest.mark.parametrize("name", ["yaml-of-kubectl", "documents", "flow", "json", "json-of-kubectl", "of-describe"])
def test_coredns_does_not_start_with_more_either(tmp_path: Path, name: str) -> None:
    """CoreDNS does not start with what is reported as YAML or JSON."""
    assert not starts(tmp_path, DATA[name][0])


REFUSED = ("twice", "twice-one-bound", "forward-to-nobody", "forward-to-too-many")


@pytest.mark.parametrize("name", REFUSED)
def test_coredns_does_not_start(tmp_path: Path, name: str) -> None:
    """If a finding says that CoreDNS does not start, it does not."""
    _, text, findings = FOUND[name]
    assert any("CoreDNS does not start" in line for line in findings)
    assert not starts(tmp_path, text.replace("bind 10.0.0.1", "bind 127.0.0.1").replace(":53 {", " {"))


STARTS = ("an-end-too-many", "an-end-too-few", "an-end-without-a-beginning", "one-block-without-braces",
          "snippets", "several-keys", "quotes-and-comments", "rule-in-braces",
          "rules-go-on", "named-by-an-option-too", "cache-that-is-off", "told-apart-by-a-view",
          "reverse-block-of-addresses")  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
def test_coredns_starts(tmp_path: Path, name: str) -> None:
    """CoreDNS starts with each Corefile that has no findings."""
    assert starts(tmp_path, CLEAN[name][1])


ODD = {
    "byte-order-mark": (f"\ufeffcluster.local {{\n{GOOD}\n}}".encode(), DONE),
    "windows": (f"cluster.local {{\n{GOOD}\n}}\n".replace("\n", "\r\n").encode(), DONE),
    "latin-1": (f"# caf\xe9\ncluster.local {{\n{GOOD}\n}}\n".encode("latin-1"), DONE),
    "binary": (bytes(range(256)) * 100, WRONG),
    "a-long-line": (b"x" * 10_000_000, DONE),
    "a-long-comment": (f"cluster.local {{\n{GOOD} # {'x ' * 5_000_000}\n}}".encode(), DONE),
    "long-quotes": (b'"' + b'\\"' * 5_000_000, DONE),
    "many-words": (b"x " * 5_000_000, WRONG),
    "many-braces": (b"{" * 10_000_000, WRONG),
    "deep": (b"a {\n" + b"b {\n" * 40_000, WRONG),
    "many-blocks": (b"".join(b"z%d {\nforward . 10.96.0.53\n}\n" % n for n in range(10_000)), DONE),
    "imports-of-imports": (
        b"(s0) {\nwhoami\nwhoami\n}\n"
        + b"".join(b"(s%d) {\nimport s%d\nimport s%d\n}\n" % (n + 1, n, n) for n in range(40))
        + b"a {\nimport s40\n}\n",
        WRONG,
    ),
}


@pytest.mark.parametrize(("octets", "status"), ODD.values(), ids=ODD)
def test_odd_files(capsys: pytest.CaptureFixture[str], tmp_path: Path, octets: bytes, status: int) -> None:
    """Odd files are read, or refused with one short line."""
    path = tmp_path / "Corefile"
    path.write_bytes(octets)
    assert run_command(["corefile", "--check", str(path)]) == status
    out, err = capsys.readouterr()
    assert all(len(line) < 500 for line in (out + err).splitlines()) and bool(err) == (status == WRONG)


WORDS = [
    "{", "}", "import", "(s)", "s", "forward", ".", "10.96.0.53", "127.0.0.1:5301", "cluster.local",
    "cluster.local:53", "kubernetes", "cache", "disable", "success", "rewrite", "edns0", "subnet", "local", "set",
    "append", "unset", "32", "128", "0x", "revert", "continue", "stop", "except", "bind", "policy", "failover",
    "autopath", "view", "10.0.0.0/9", "fd00::/7:5301", "/", "a/b", ",", "a,", '"', "#", "{client_ip}", ":", "\\",
]  # fmt: skip
words = st.lists(st.sampled_from([*WORDS, *["\n"] * 10]), max_size=60)  # a line's end is a word, too
texts = st.one_of(st.text(), words.map(" ".join), words.map("\n".join))


@given(texts, st.sampled_from(stub_blocks.CHECKED), st.booleans())
def test_any_text_is_checked_or_unparsable(text: str, forwarder: str, known: bool) -> None:
    """No other exception is raised for any text, nor by a fix; each finding's line is in the file."""
    to = addresses("10.96.0.53") if known else ()
    try:
        findings = corefile_check.check(text, forwarder=forwarder, to=to)
    except Unparsable:
        return
    after = fixed(text, forwarder=forwarder, to=to)
    assert fixed(after, forwarder=forwarder, to=to) == after
    left = corefile_check.check(after, forwarder=forwarder, to=to)
    assert len([row for row in left if row.severity == "error"]) <= len(
        [row for row in findings if row.severity == "error"]
    )
    for finding in findings:
        assert finding.line is not None and 1 <= finding.line <= text.count("\n") + 1
        assert finding.message and finding.expected


labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
names = st.builds("{}.{}".format, st.lists(labels, max_size=3).map(".".join), st.sampled_from(["x", "0a", "a-b"])).map(
    lambda name: name.lstrip(".")
)
places = st.builds(ListenAddress, st.binary(min_size=4, max_size=4), st.integers(1, 65535))


@given(st.lists(places, min_size=1, max_size=3, unique=True), st.lists(names, min_size=1, max_size=4), st.booleans())
def test_whatever_is_printed_is_clean(to: Sequence[ListenAddress], zones: Sequence[str], fail_open: bool) -> None:
    """``--check`` finds nothing in what is printed, for any addresses and zones."""
    for forwarder in stub_blocks.CHECKED:
        text = stub_blocks.stub_block(forwarder, to, zones, fail_open=fail_open and forwarder == stub_blocks.COREDNS)
        assert corefile_check.check(text, forwarder=forwarder, to=to, zones=zones) == []
        assert {key for block in parse(text) for key in block.keys} >= {f"{zone}:53" for zone in zones}
