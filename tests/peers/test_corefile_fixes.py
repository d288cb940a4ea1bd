# SPDX-License-Identifier: Apache-2.0

"""What a fix changes in a damaged Corefile: the lines at fault, and nothing else; with the real CoreDNS."""

from __future__ import annotations

import difflib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from dnsserver.cli.errors import EXIT_FAILED
from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile import corefile_check
from dnsserver.tools.corefile.fixing import fixed
from dnsserver.tools.corefile.stub_blocks import FAILING_OPEN, stub_block
from tests.kit import topodns_process
from tests.kit.commands_in_process import Run
from tests.kit.coredns import starts
from tests.kit.terminal import Terminal
from tests.kit.this_machine import free_port

TO = [parse_upstream("10.96.0.53")]
ECS = "rewrite edns0 subnet set 32 128 revert"
REST = """\
# Everything else
.:53 {
    errors
    health {
        lameduck 5s  # as kubeadm has it
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        pods insecure
    }
    forward . 192.0.2.53
    cache 30
    reload
}
"""
WHOLE = (
    stub_block("coredns", TO, ["shop.svc.cluster.local"], fail_open=True).replace(
        "    errors", "    errors  # first", 1
    )
    + REST
)
OPTIONS = "".join(f"        {option}\n" for option in FAILING_OPEN)
FALLBACK_LINE = "    forward . 10.96.0.53 127.0.0.1:5301 {"
FALLBACK = "cluster.local:5301 {\n    bind 127.0.0.1\n    errors\n    kubernetes cluster.local\n}\n"
CACHE = "(common) {\n    errors\n    # ours\n    cache 30 {\n        prefetch 5\n    }\n}\n"


class Damage(NamedTuple):
    """A damaged Corefile, and the lines that its fix takes away and adds, in the order of the text."""

    text: str
    changes: Sequence[str]
    forwarder: str = "coredns"
    stub: str = ""


def damage(old: str, new: str, *changes: str, of: str = WHOLE) -> Damage:
    assert of.count(old) == 1, old
    return Damage(of.replace(old, new), changes)


PLAIN = f"shop.svc.cluster.local:53 {{\n\terrors\n\t{ECS}\n\tforward . 10.96.0.53\n}}\n{REST}"
DAMAGED = {
    # How clients are named.
    "no client is named": damage(f"    {ECS}\n", "", f"+    {ECS}"),
    "tabs": damage(f"\t{ECS}\n", "", f"+\t{ECS}", of=PLAIN),
    "another rule goes on": damage(
        ECS, "rewrite name cart.shop.svc.cluster.local basket.shop.svc.cluster.local",
        f"+    {ECS.replace('rewrite', 'rewrite continue')}",
    ),
    "append": damage("subnet set", "subnet append", f"-    {ECS.replace('set', 'append')}", f"+    {ECS}"),
    "replace, with a comment": damage(
        ECS, "rewrite edns0 subnet replace 32 128 revert # so", f"-    {ECS.replace('set', 'replace')} # so",
        f"+    {ECS} # so",
    ),
    "a shorter prefix": damage("32 128", "24 56", f"-    {ECS.replace('32 128', '24 56')}", f"+    {ECS}"),
    "quoted words": damage(
        "set 32 128", 'set "24" "128"', '-    rewrite edns0 subnet set "24" "128" revert',
        '+    rewrite edns0 subnet set 32 "128" revert',
    ),
    "a rule in braces": damage(
        ECS, "rewrite stop {\n        edns0 subnet set 32 128\n    }", "-        edns0 subnet set 32 128",
        "+        edns0 subnet set 32 128 revert",
    ),
    "no revert": damage(" revert\n", "\n", f"-    {ECS.removesuffix(' revert')}", f"+    {ECS}"),
    "a rule that ends before it": damage(
        f"    {ECS}", f"    rewrite stop type ANY HINFO\n    rewrite class CH IN\n    {ECS}",
        "-    rewrite stop type ANY HINFO", "-    rewrite class CH IN", "+    rewrite continue type ANY HINFO",
        "+    rewrite continue class CH IN",
    ),
    # Names that do not reach topodns.
    "a cache": damage("    errors  # first\n", "    errors  # first\n    cache 30  # bad\n", "-    cache 30  # bad"),
    "a cache with braces": damage(
        "    errors  # first\n", "    errors  # first\n    cache {\n        success 5000\n    }\n", "-    cache {",
        "-        success 5000", "-    }",
    ),
    "a cache in the block of others": damage(
        "    cache 30\n",
        f"    cache 30 {{\n        prefetch 2\n    }}\n    {ECS}\n    forward db.example 10.96.0.53\n",
        "+        disable success db.example", "+        disable denial db.example",
        of=REST.replace("    forward . 192.0.2.53\n", ""),
    ),
    "a cache in a snippet": damage(
        "    errors  # first\n", "    import common\n", "-    import common", "+    errors", "+    # ours",
        of=CACHE + WHOLE,
    ),
    "kubernetes first": damage(
        "    errors  # first\n", "    errors  # first\n    kubernetes cluster.local {\n        pods verified\n    }\n",
        "-    kubernetes cluster.local {", "-        pods verified", "-    }",
    ),
    "kubernetes in the block of others": Damage(
        REST.replace("    forward", f"    {ECS}\n    forward shop.svc.cluster.local 10.96.0.53\n    forward"),
        ("-    forward shop.svc.cluster.local 10.96.0.53", "+shop.svc.cluster.local:53 {", f"+    {ECS}",
         "+    forward shop.svc.cluster.local 10.96.0.53", "+}"),
    ),
    "no client is named in the block of others": Damage(
        REST.replace("    forward", "    forward shop.svc.cluster.local 10.96.0.53\n    forward"),
        ("-    forward shop.svc.cluster.local 10.96.0.53", "+shop.svc.cluster.local:53 {", f"+    {ECS}",
         "+    forward shop.svc.cluster.local 10.96.0.53", "+}"),
    ),
    "another forward first": damage(
        FALLBACK_LINE, f"    forward shop.svc.cluster.local 10.0.0.9 # old\n{FALLBACK_LINE}",
        "-    forward shop.svc.cluster.local 10.0.0.9 # old", "+    forward shop.svc.cluster.local 10.0.0.9 # old",
    ),
    "an exception": damage(
        "policy sequential", "policy sequential\n        except example.com db.shop.svc.cluster.local a.example",
        "-        except example.com db.shop.svc.cluster.local a.example", "+        except example.com a.example",
    ),
    "an exception alone": damage(
        "policy sequential", "policy sequential\n        except db.shop.svc.cluster.local",
        "-        except db.shop.svc.cluster.local",
    ),
    "UDP preferred": damage("policy", "prefer_udp\n        policy", "-        prefer_udp"),
    # The fallback.
    "no policy": damage("        policy sequential\n", "", "+        policy sequential"),
    "another policy": damage("sequential", "round_robin", "-        policy round_robin", "+        policy sequential"),
    "no failover": damage("        failover SERVFAIL REFUSED\n", "", "+        failover SERVFAIL REFUSED"),
    "half a failover": damage(
        "SERVFAIL REFUSED", "refused  # enough", "-        failover refused  # enough",
        "+        failover refused SERVFAIL  # enough",
    ),
    "no braces": damage(
        f"{FALLBACK_LINE}\n{OPTIONS}    }}\n",
        "    forward . 10.96.0.53   127.0.0.1:5301\t# with a fallback\n",
        "-    forward . 10.96.0.53   127.0.0.1:5301\t# with a fallback",
        "+    forward . 10.96.0.53   127.0.0.1:5301 {", "+        policy sequential",
        "+        failover SERVFAIL REFUSED", "+    }\t# with a fallback",
    ),
    "the fallback first": damage(
        "10.96.0.53 127.0.0.1:5301", "127.0.0.1:5301  dns://10.96.0.53",
        "-    forward . 127.0.0.1:5301  dns://10.96.0.53 {",
        "+    forward . dns://10.96.0.53  127.0.0.1:5301 {",
    ),
    "no block of the fallback": damage(
        FALLBACK, "", *(f"+{line}" for line in FALLBACK.splitlines())
    ),
    "the fallback asks itself": damage(
        "127.0.0.1:5301", "127.0.0.1", "-    forward . 10.96.0.53 127.0.0.1 {", f"+{FALLBACK_LINE}",
    ),
    "the fallback is open": damage("    bind 127.0.0.1\n", "", "+    bind 127.0.0.1"),
    "the fallback is bound to all": damage(
        "bind 127.0.0.1", "bind 0.0.0.0", "-    bind 0.0.0.0", "+    bind 127.0.0.1",
    ),
    "the fallback is bound elsewhere": damage(
        "bind 127.0.0.1", "bind  10.0.0.7  # ours", "-    bind  10.0.0.7  # ours", "+    bind  127.0.0.1  # ours",
    ),
    "nothing leads to the fallback": damage(
        FALLBACK_LINE, "    forward . 10.96.0.53 {",
        "-    forward . 10.96.0.53 {", f"+{FALLBACK_LINE}",
    ),
    "the old fix": damage(
        f"{FALLBACK_LINE}\n{OPTIONS}    }}\n",
        "    forward . 10.96.0.53\n",
        "-    forward . 10.96.0.53", f"+{FALLBACK_LINE}", *(f"+{line}" for line in OPTIONS.splitlines()), "+    }",
    ),
    "failover alone": Damage(
        WHOLE.replace(FALLBACK, "").replace(" 127.0.0.1:5301", ""),
        ("-    forward . 10.96.0.53 {", f"+{FALLBACK_LINE}", *(f"+{line}" for line in FALLBACK.splitlines())),
    ),
    # Nothing forwards to topodns.
    "no block": Damage(
        REST, tuple(f"+{line}" for line in stub_block("coredns", TO, ["db.example"]).splitlines()), "coredns",
        stub_block("coredns", TO, ["db.example"]),
    ),
    "an old address": Damage(
        WHOLE.replace("10.96.0.53 ", "10.96.0.9  10.96.0.8 "),
        ("-    forward . 10.96.0.9  10.96.0.8 127.0.0.1:5301 {", f"+{FALLBACK_LINE}"), "coredns",
        stub_block("coredns", TO, ["cluster.local"]),
    ),
    # Ways to write.
    "Windows": Damage(WHOLE.replace(f"    {ECS}\n", "").replace("\n", "\r\n"), (f"+    {ECS}",)),
    "a byte order mark": Damage("\ufeff" + WHOLE.replace(f"    {ECS}\n", ""), (f"+    {ECS}",)),
    "braces on the line of a directive": damage(
        f"53 {{\n    errors  # first\n    {ECS}\n", "53 { errors\n", "-shop.svc.cluster.local:53 { errors",
        "+shop.svc.cluster.local:53 {", f"+    {ECS}", "+    errors",
    ),
    "without braces, without an end": Damage(
        "shop.svc.cluster.local:53\nlog\n\nforward . 10.96.0.53 # the last", (f"+    {ECS}",)
    ),
    "two blocks, one of them damaged": Damage(
        WHOLE + PLAIN.replace(REST, "").replace("shop.", "db.").replace(" revert", ""),
        (f"-\t{ECS.removesuffix(' revert')}", f"+\t{ECS}"),
    ),
    "two forwards, the second of them damaged": damage(
        "    }\n}\ncluster.local:5301",
        "    }\n    forward a.shop.svc.cluster.local 10.96.0.53 127.0.0.1:5301\n}\ncluster.local:5301",
        "-    forward a.shop.svc.cluster.local 10.96.0.53 127.0.0.1:5301",
        "+    forward a.shop.svc.cluster.local 10.96.0.53 127.0.0.1:5301 {", "+        policy sequential",
        "+        failover SERVFAIL REFUSED", "+    }",
        of=WHOLE.replace("forward . 10", "forward b.shop.svc.cluster.local 10"),
    ),
    "keys without a block at the end": Damage(
        f"{WHOLE.replace(FALLBACK, '')}cluster.local:5301", ("+bind 127.0.0.1",)
    ),
    "imports in imports": Damage(
        "(all) {\n    errors\n    import more\n}\n(more) {\n    cache\n    log\n}\n"
        + PLAIN.replace("\terrors", "\timport all"),
        ("-\timport all", "+\terrors", "+    log"),
    ),
    "options from a snippet": Damage(
        "(options) {\n    policy random\n    max_fails 3\n}\n"
        + WHOLE.replace("        policy sequential\n", "        import options\n"),
        ("-        import options", "+        policy sequential", "+    max_fails 3"),
    ),
    # NodeLocal DNSCache.
    "no force_tcp": Damage(
        "shop.svc.cluster.local:53 {\n    bind 169.254.20.10\n    cache {\n        success 1000 3600 60\n"
        "        serve_stale\n    }\n    forward . 10.96.0.53\n}\n",
        ("-        success 1000 3600 60", "-        serve_stale", "-    forward . 10.96.0.53",
         "+        success 1000 3600 5", "+    forward . 10.96.0.53 {", "+        force_tcp", "+    }"),
        "nodelocal",
    ),
}  # fmt: skip


def changes(old: str, new: str) -> list[str]:
    """Return the lines that differ, those that went first, and without the ends of lines."""
    lines = difflib.ndiff(old.splitlines(), new.splitlines())
    return [f"{line[0]}{line[2:]}" for line in lines if line[0] in "+-"]


@pytest.mark.parametrize(("text", "expected", "forwarder", "stub"), DAMAGED.values(), ids=DAMAGED)
def test_only_the_lines_at_fault_change(text: str, expected: Sequence[str], forwarder: str, stub: str) -> None:
    """Then nothing is found any more, and what is whole stays whole."""
    after = fixed(text, forwarder=forwarder, to=TO, stub=stub)
    assert sorted(changes(text, after)) == sorted(expected)
    assert corefile_check.check(text, forwarder=forwarder, to=TO)
    assert corefile_check.check(after, forwarder=forwarder, to=TO) == []
    assert fixed(after, forwarder=forwarder, to=TO) == after
    assert set(re.findall(r"\r?\n", after)) == set(re.findall(r"\r?\n", text))


SHARED = REST.replace("    forward", "    forward shop.svc.cluster.local 10.96.0.53\n    forward").replace(
    "    cache 30\n", ""
)
UNCERTAIN = {
    # A block of its own would lose what another plugin does with the names, or its port and certificates.
    "hosts": SHARED.replace("    health", "    hosts {\n        192.0.2.1 a.shop.svc.cluster.local\n    }\n    health"),
    "a rule": SHARED.replace("    health", "    rewrite name cart.shop.svc.cluster.local shop.example\n    health"),
    "TLS": SHARED.replace(".:53 {", "tls://.:853 {\n    tls cert.pem key.pem"),
    # The block of all clients must not be bound to the loopback address.
    "the fallback is everybody's": WHOLE.replace("127.0.0.1:5301", "127.0.0.1").replace(FALLBACK, "").replace(
        "    errors  #", "    bind 192.0.2.1\n    errors  #").replace("    forward . 192.0.2.53\n", ""),
    "bound to nothing": WHOLE.replace("bind 127.0.0.1", "bind"),
}  # fmt: skip


@pytest.mark.parametrize("text", UNCERTAIN.values(), ids=UNCERTAIN)
def test_what_needs_a_decision_is_left(text: str) -> None:
    """A rule in a block for other names, too, would name clients to their servers."""
    assert corefile_check.check(text, forwarder="coredns", to=TO)
    assert fixed(text, forwarder="coredns", to=TO) == text


def test_a_block_of_others_at_the_port_of_the_fallback() -> None:
    """Only one that answers from the API server is a fallback."""
    others = "corp.example:5301 {\n    forward . 192.0.2.53\n}\n"
    assert corefile_check.check(PLAIN + others, forwarder="coredns", to=TO) == []


@pytest.mark.parametrize("name", DAMAGED)
def test_coredns_starts_with_what_is_fixed(tmp_path: Path, name: str) -> None:
    """With free ports, and without the plugins that need a cluster or other addresses."""
    text, _, forwarder, stub = DAMAGED[name]
    after = fixed(text, forwarder=forwarder, to=TO, stub=stub).replace("5301", str(free_port()))
    after = re.sub(r":53\b", "", after)
    after = re.sub(r"kubernetes [^\n{]*", "template IN A example ", after).replace("pods ", "rcode NXDOMAIN #")
    after = after.replace("lameduck 5s", "lameduck 1ms")  # for so long it would take to end
    assert starts(tmp_path, re.sub(r"bind 169\S+", "bind 127.0.0.1", after).replace("\tlog", ""))


def test_the_command(topodns: Run, tmp_path: Path) -> None:
    """It prints the Corefile octet by octet, and says what it leaves; --check says that there is a fix."""
    path = tmp_path / "Corefile"
    path.write_bytes(DAMAGED["Windows"].text.encode().replace(b"Everything", b"caf\xe9"))
    whole = path.read_bytes()
    check = [*topodns_process.COMMAND, "corefile", "--check", str(path)]
    with (tmp_path / "out").open("wb") as out, Terminal(check, env={}, folder=tmp_path, stdout=out.fileno()) as shown:
        shown.until("--fix in its place prints")
    command = [*topodns_process.COMMAND, "corefile", "--fix", str(path), "--to=10.96.0.53"]
    printed = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"}).stdout
    assert printed.replace(f"    {ECS}\r\n".encode(), b"", 1) == whole
    path.write_text(f"{WHOLE}{WHOLE}")
    ran = topodns("corefile", "--fix", str(path))
    assert (ran.status, ran.out) == (EXIT_FAILED, path.read_text())
    assert "left as it is: " in ran.err and "[ZoneServedTwice]" in ran.err
