# SPDX-License-Identifier: Apache-2.0

"""DNS programs that forward to topodns, each started on a free port with the lines that topodns prints for it.

The configuration is what ``topodns corefile`` prints for the program, if it prints something, and the few lines that it
needs to run in a test: port and address, no daemon, no other user. It caches only if the printed lines say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dns.exception
import dns.message
import dns.query
import dns.rcode

from dnsserver.settings.values import ListenAddress
from dnsserver.tools.corefile.stub_blocks import FORWARDERS, stub_block
from locator.ip import address_text, parse_address
from tests.kit import go_programs
from tests.kit.programs import Daemon
from tests.kit.this_machine import free_port, needs_tool
from tests.kit.topodns_process import Server

# The programs that ``topodns corefile`` prints lines for, by the names that it takes.
COREDNS, NODELOCAL, DNSMASQ, UNBOUND, DNSDIST, POWERDNS = FORWARDERS
# Others. CoreDNS names the client by the EDNS option, or names the one that a proxy named to it; dnsdist uses the PROXY
# protocol, over UDP and TCP or over TCP alone; BIND names no client.
COREDNS_OPTION, COREDNS_PROXIED = "coredns, local option", "coredns, told by a proxy"
DNSDIST_PROXY, DNSDIST_PROXY_TCP = "dnsdist, PROXY protocol", "dnsdist, PROXY protocol by TCP"
BIND = "bind"

CLIENT_OPTION = 0xFE00  # the EDNS option by which ``COREDNS_OPTION`` names the client
ZONES = ("cluster.local",)


class Forwarder(NamedTuple):
    """A running forwarder, which listens at ``address`` (or all addresses, if unspecified) for both UDP and TCP."""

    name: str
    address: str
    port: int
    daemon: Daemon

    @property
    def at(self) -> ListenAddress:
        """The address by which another forwarder reaches it."""
        return at(_reached(self.address), self.port)


class Wanted(NamedTuple):
    """What a program should do: listen at ``address`` and ``port``, and ask ``to`` for names in ``zones``.

    ``extra`` are further lines in the program's own syntax; ``other`` replaces texts of the printed lines;
    ``federated`` says that the zones are those of federated names.
    """

    kind: str
    folder: Path
    address: str
    port: int
    to: ListenAddress
    zones: Sequence[str]
    extra: str
    other: Mapping[str, str]
    federated: bool

    @property
    def printed(self) -> str:
        plain, federated = ((), self.zones) if self.federated else (self.zones, ())
        text = stub_block(self.kind, [self.to], plain, federation=federated)
        for old, new in self.other.items():
            assert old in text
            text = text.replace(old, new)
        return text


def at(address: str, port: int) -> ListenAddress:
    return ListenAddress(parse_address(address), port)


def where(server: Server) -> ListenAddress:
    """Return the address by which a forwarder on the same machine reaches a server."""
    return at(_reached(server.host), server.port)


def _reached(listening: str) -> str:
    """Return the address by which a program on this machine reaches another one that listens at *listening*."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening, listening)


@contextmanager
def running(
    kind: str,
    folder: Path,
    to: ListenAddress,
    *,
    zones: Sequence[str] = ZONES,
    address: str = "127.0.0.1",
    extra: str = "",
    other: Mapping[str, str] | None = None,
    federated: bool = False,
) -> Iterator[Forwarder]:
    """Run a forwarder of *kind* that asks *to* for names in *zones*, until the block ends; wait until it answers.

    *extra* are further lines of its configuration: in CoreDNS's stub block, in unbound's ``server`` clause, in BIND's
    ``options``, at the end for the others. *other* replaces texts of the printed lines. *federated* says that the zones
    are those of federated names. A folder holds at most one forwarder of a kind.
    """
    wanted = Wanted(kind, folder, address, free_port(address=address), to, zones, extra, other or {}, federated)
    with started(kind, folder, _PROGRAMS[kind].configured(wanted), lambda: _forwards(wanted)) as daemon:
        yield Forwarder(kind, address, wanted.port, daemon)


@contextmanager
def started(kind: str, folder: Path, configuration: str, ready: Callable[[], object]) -> Iterator[Daemon]:
    """Run a forwarder of *kind* with a complete configuration until the block ends; wait until it is *ready*."""
    program = _PROGRAMS[kind]
    name = re.sub("[^a-z]+", "-", kind.lower())
    file = folder / (program.file or f"{name}.conf")
    file.write_text(configuration)
    command = [argument.format(file=file, folder=folder) for argument in program.arguments]
    daemon = Daemon.start([program.path(), *command], folder, name=name)
    try:
        daemon.until(ready)
        yield daemon
    finally:
        daemon.end()


def _forwards(wanted: Wanted) -> bool:
    """Whether the forwarder answers a name that topodns has, over UDP and over TCP."""
    query = dns.message.make_query(wanted.zones[0], "SOA")
    host, port = _reached(wanted.address), wanted.port
    try:
        replies = [ask(query, host, port=port, timeout=1) for ask in (dns.query.tcp, dns.query.udp)]
    except (dns.exception.DNSException, EOFError, OSError):
        return False
    return all(reply.rcode() == dns.rcode.NOERROR for reply in replies)


# The configuration of each program


def _corefile(wanted: Wanted) -> str:
    """Return the printed block with the test's port, and with its address in place of a cluster's."""
    text = re.sub(r"^ *bind .*\n", "", wanted.printed, flags=re.MULTILINE)
    keys, rest = text.split("{", 1)
    return f"{keys.replace(':53', f':{wanted.port}')}{{\nbind {wanted.address}\n{wanted.extra}{rest}"


def _block(wanted: Wanted, *lines: str) -> str:
    keys = " ".join(f"{zone}:{wanted.port}" for zone in wanted.zones)
    body = ("errors", f"bind {wanted.address}", *lines, f"forward . {wanted.to}", wanted.extra)
    return f"{keys} {{\n" + "\n".join(body) + "\n}\n"


def _corefile_with_option(wanted: Wanted) -> str:
    return _block(wanted, f"rewrite edns0 local set {CLIENT_OPTION:#x} {{client_ip}} revert")


def _corefile_behind_a_proxy(wanted: Wanted) -> str:
    return _block(wanted, "proxyproto", "rewrite edns0 subnet set 32 128 revert")


def _dnsmasq(wanted: Wanted) -> str:
    own = (
        f"port={wanted.port}",
        f"listen-address={wanted.address}",
        "bind-interfaces",
        "no-resolv",
        "no-hosts",
        "log-queries",
        "log-facility=-",
        "user=",  # do not change the user
        "group=",
        "pid-file=",
    )
    return "\n".join((*own, wanted.printed, wanted.extra, ""))


def _unbound(wanted: Wanted) -> str:
    own = (
        f"interface: {wanted.address}@{wanted.port}",
        "access-control: 0.0.0.0/0 allow",
        "access-control: ::/0 allow",
        'username: ""',
        'chroot: ""',
        f'directory: "{wanted.folder}"',
        'pidfile: ""',
        "use-syslog: no",
        "do-daemonize: no",
        "num-threads: 1",
    )
    return "\n".join(("server:", *own, wanted.extra, "remote-control:", "control-enable: no", wanted.printed))


def _dnsdist(wanted: Wanted) -> str:
    return "\n".join((*_dnsdist_listening(wanted), wanted.printed, wanted.extra, ""))


def _dnsdist_with_proxy(wanted: Wanted) -> str:
    by_tcp = ", tcpOnly=true" if wanted.kind == DNSDIST_PROXY_TCP else ""
    server = f'newServer({{address="{wanted.to}", useProxyProtocol=true{by_tcp}}})'
    return "\n".join((*_dnsdist_listening(wanted), server, wanted.extra, ""))


def _dnsdist_listening(wanted: Wanted) -> tuple[str, ...]:
    return (f'setLocal("{at(wanted.address, wanted.port)}")', 'setSecurityPollSuffix("")')


def _bind(wanted: Wanted) -> str:
    ipv6 = ":" in wanted.address
    mine, other = ("listen-on-v6", "listen-on") if ipv6 else ("listen-on", "listen-on-v6")
    to = f"{address_text(wanted.to.address)} port {wanted.to.port}"
    options = (
        f'directory "{wanted.folder}";',
        f"{mine} port {wanted.port} {{ {wanted.address}; }};",
        f"{other} {{ none; }};",
        "allow-query { any; };",
        "allow-recursion { any; };",
        "dnssec-validation no;",
        "empty-zones-enable no;",
        "pid-file none;",
        "session-keyfile none;",
        wanted.extra,
    )
    zones = [f'zone "{zone}" {{ type forward; forward only; forwarders {{ {to}; }}; }};' for zone in wanted.zones]
    return "\n".join(("options {", *options, "};", "controls { };", *zones, ""))


def _powerdns(wanted: Wanted) -> str:
    scripted = wanted.folder / "recursor.lua"
    scripted.write_text("\n".join(re.findall(r"^# (addNTA.*)$", wanted.printed, re.MULTILINE)))
    own = (
        f"lua-config-file={scripted}",
        f"local-address={wanted.address}",
        f"local-port={wanted.port}",
        "socket-dir=.",  # else the path can be too long for a socket
        "hint-file=no",
        "security-poll-suffix=",
    )
    return "\n".join((*own, wanted.printed, wanted.extra, ""))


def _installed(name: str) -> Callable[[], str]:
    return lambda: needs_tool(name)


class Program(NamedTuple):
    """How to start a program: its path, its arguments with ``{file}`` or ``{folder}``, and the file's text and name."""

    path: Callable[[], str]
    arguments: Sequence[str]
    configured: Callable[[Wanted], str]
    file: str = ""


def _coredns(configured: Callable[[Wanted], str]) -> Program:
    return Program(lambda: str(go_programs.coredns()), ("-conf", "{file}"), configured)


def _of_dnsdist(configured: Callable[[Wanted], str]) -> Program:
    return Program(_installed("dnsdist"), ("--supervised", "--disable-syslog", "-C", "{file}"), configured)


_PROGRAMS = {
    COREDNS: _coredns(_corefile),
    NODELOCAL: _coredns(_corefile),
    COREDNS_OPTION: _coredns(_corefile_with_option),
    COREDNS_PROXIED: _coredns(_corefile_behind_a_proxy),
    DNSMASQ: Program(_installed("dnsmasq"), ("--keep-in-foreground", "-C", "{file}"), _dnsmasq),
    UNBOUND: Program(_installed("unbound"), ("-d", "-c", "{file}"), _unbound),
    DNSDIST: _of_dnsdist(_dnsdist),
    DNSDIST_PROXY: _of_dnsdist(_dnsdist_with_proxy),
    DNSDIST_PROXY_TCP: _of_dnsdist(_dnsdist_with_proxy),
    BIND: Program(_installed("named"), ("-g", "-n", "1", "-c", "{file}"), _bind),
    POWERDNS: Program(_installed("pdns_recursor"), ("--config-dir={folder}",), _powerdns, "recursor.conf"),
}
