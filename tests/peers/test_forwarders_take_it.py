# SPDX-License-Identifier: Apache-2.0

"""The real programs with what ``topodns corefile`` prints, checks and fixes: what it says of them is true."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import dns.message
import dns.query
import dns.reversename
import pytest

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.checks import fixed
from dnsserver.tools.corefile.stub_zones import read
from tests.kit import go_programs
from tests.kit.corefiles import Case, corefiles
from tests.kit.forwarders import running, where
from tests.kit.programs import Daemon
from tests.kit.this_machine import ROOT, free_port, needs_tool
from tests.kit.topodns_process import Server
from tests.kit.waiting import PATIENCE, until

PRINTED = {name: case for name, case in corefiles("printed").items() if re.match("dns|unbound|powerdns", name)}
REFUSED = {name: case for name, case in corefiles("found").items() if "CoreDNS does not start" in " ".join(case.found)}
# In what is no Corefile, CoreDNS reads some names as keys: it starts, and answers nothing.
NOT_READ = {
    **{name: case for name, case in corefiles("unparsable").items() if name != "no-space"},
    **{name: case for name, case in corefiles("whole_config_maps").items()
       if name in ("yaml-of-kubectl", "documents", "flow", "json", "json-of-kubectl", "of-describe")},
}  # fmt: skip
CLEAN = ("an-end-too-many", "an-end-too-few", "an-end-without-a-beginning", "one-block-without-braces", "snippets",
         "several-keys", "quotes-and-comments", "rule-in-braces", "rules-go-on", "named-by-an-option-too",
         "cache-that-is-off", "told-apart-by-a-view", "reverse-block-of-addresses")  # fmt: skip
DAMAGED = {name: case for name, case in corefiles("fixed").items() if case.changes}


def starts(folder: Path, text: str) -> bool:
    """Whether CoreDNS starts with a Corefile: if not, it ends at once; if so, it prints its version.

    Keys without a port must have a free one.
    """
    path = folder / "Corefile"
    path.write_text(text)
    ports = ["-dns.port", str(free_port())]
    daemon = Daemon.start([str(go_programs.coredns()), *ports, "-conf", str(path)], folder, name="coredns")
    try:
        until(lambda: daemon.process.poll() is not None or "\nCoreDNS-" in daemon.last_lines(), daemon.last_lines)
        return daemon.process.poll() is None
    finally:
        daemon.end()


def syntax_check(forwarder: str, path: Path) -> list[str]:
    return {
        "dnsmasq": [needs_tool("dnsmasq"), "--test", "-C", str(path)],
        "unbound": [needs_tool("unbound-checkconf"), str(path)],
        "dnsdist": [needs_tool("dnsdist"), "--check-config", "-C", str(path)],
        "powerdns": [needs_tool("pdns_recursor"), "--config=check", f"--config-dir={path.parent}"],
    }[forwarder]


@pytest.mark.parametrize("case", PRINTED.values(), ids=PRINTED)
def test_the_program_takes_it(tmp_path: Path, case: Case) -> None:
    """The program itself accepts each printed configuration."""
    forwarder = case.flags[0].removeprefix("--for=")
    path = tmp_path / "recursor.conf"  # PowerDNS wants this name
    own = f'server:\n    directory: "{tmp_path}"\n    chroot: ""\n' * (forwarder == "unbound")
    path.write_text(case.printed + own)
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


@pytest.mark.parametrize("case", NOT_READ.values(), ids=NOT_READ)
def test_coredns_does_not_start_with_it_either(tmp_path: Path, case: Case) -> None:
    """CoreDNS does not start, or answers nothing, with what is reported unparsable, or as YAML or JSON."""
    assert not starts(tmp_path, case.text)


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_coredns_does_not_start(tmp_path: Path, case: Case) -> None:
    """If a finding says that CoreDNS does not start, it does not."""
    assert not starts(tmp_path, case.text.replace("bind 10.0.0.1", "bind 127.0.0.1").replace(":53 {", " {"))


@pytest.mark.parametrize("name", CLEAN)
def test_coredns_starts(tmp_path: Path, name: str) -> None:
    """CoreDNS starts with each Corefile that has no findings."""
    assert starts(tmp_path, corefiles("clean")[name].text)


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
def test_coredns_starts_with_what_is_fixed(tmp_path: Path, case: Case) -> None:
    """With free ports, and without the plugins that need a cluster or other addresses."""
    corefile = read(case.text, forwarder=case.forwarder, to=[parse_upstream("10.96.0.53")])
    after = re.sub(r":53\b", "", fixed(corefile, stub=case.stub).text.replace("5301", str(free_port())))
    after = re.sub(r"kubernetes [^\n{]*", "template IN A example ", after).replace("pods ", "rcode NXDOMAIN #")
    after = after.replace("lameduck 5s", "lameduck 1ms")  # for so long it would take to end
    assert starts(tmp_path, re.sub(r"bind 169\S+", "bind 127.0.0.1", after).replace("\tlog", ""))
