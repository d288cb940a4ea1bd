# SPDX-License-Identifier: Apache-2.0

"""Which texts name a zone, in every command and every setting that takes one, and which zones a network means."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dns.message
import dns.rcode
import dns.reversename
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.names import parse_zone, parse_zones
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import ask_in_memory, responder_of, settings_of

CLUSTER = """\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: default}}
- apiVersion: v1
  kind: Service
  metadata: {name: k, namespace: default}
  spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, "fd00:1234::1"], ports: [{name: https, port: 443}]}
"""
LONG = ".".join(["a" * 60] * 4)  # 243 octets: "dns-version" before it is too long
REFUSED = {
    "a space": "cluster local",
    "a wildcard": "*.cluster.local",
    "an address": "10.96.0.1",
    "an IPv6 address": "fd00:1234::1",
    "an address with a final dot": "10.96.0.1.",
    "a part of an address": "10.96.0",
    "an address with a port": "10.96.0.1:53",
    "a hyphen first": "-x.y",
    "a hyphen last": "x-.y",
    "a label that is too long": f"{'a' * 64}.local",
    "a name that is too long": LONG,
    "an empty label": "cluster..local",
    "the root": ".",
    "nothing": "",
    "no ASCII": "clüster.local",
    "a prefix that is too long": "10.96.0.0/33",
    "a prefix that is none": "10.96.0.0/x",
    "a mask": "10.96.0.0/255.240.0.0",
    "a mask and a prefix": "10.96.0.0/255.240.0.0/1",
    "a prefix with a zero in front": "10.96.0.0/012",
    "a prefix with a sign": "10.96.0.0/+12",
    "a prefix in other digits": "10.96.0.0/1\u0662",
    "an interface": "fe80::1%eth0/64",
    "a delegation of less than an octet": "0/25.2.0.192.in-addr.arpa",
    "an escape": "cluster\\046local",
}
ACCEPTED = {
    "cluster.local": ["cluster.local"],
    "Cluster.LOCAL.": ["cluster.local"],
    "local": ["local"],
    "10.in-addr.arpa": ["10.in-addr.arpa"],
    "_msdcs.example.org": ["_msdcs.example.org"],
    "xn--clster-3ya.local": ["xn--clster-3ya.local"],
    "3.example": ["3.example"],
    "10.96.0.0/16": ["96.10.in-addr.arpa"],
    "10.96.0.1/32": ["1.0.96.10.in-addr.arpa"],
    "10.96.0.0/15": ["96.10.in-addr.arpa", "97.10.in-addr.arpa"],
    "10.96.0.0/12": [f"{number}.10.in-addr.arpa" for number in range(96, 112)],
    "10.96.0.10/12": [f"{number}.10.in-addr.arpa" for number in range(96, 112)],  # host bits: as CoreDNS has it
    "0.0.0.0/0": ["in-addr.arpa"],
    "fd00:1234::/48": ["0.0.0.0.4.3.2.1.0.0.d.f.ip6.arpa"],
    "fd00::/7": ["c.f.ip6.arpa", "d.f.ip6.arpa"],
    "FD00::/8": ["d.f.ip6.arpa"],
    "::/0": ["ip6.arpa"],
    "::ffff:10.96.0.0/112": ["96.10.in-addr.arpa"],
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_zone_is_a_domain_name_or_the_reverse_zones_of_a_network(text: str) -> None:
    """As CoreDNS reads its zones: without case or final dot; a network means zones of whole octets or digits."""
    assert [zone.name for zone in parse_zones(text)] == ACCEPTED[text]


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_what_is_no_domain_is_refused(text: str) -> None:
    """The message quotes it."""
    for parse in (parse_zone, parse_zones):
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            parse(text)


def test_the_longest_zone() -> None:
    """The names that every zone has must fit."""
    name = f"{LONG[2:]}"
    assert parse_zone(name).name == name


networks = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)), st.tuples(st.ip_addresses(v=6), st.integers(0, 128))
).map(lambda pair: ipaddress.ip_network(pair, strict=False))


@given(networks, st.data())
def test_the_zones_of_a_network_hold_its_addresses_and_no_others(network: Any, data: st.DataObject) -> None:
    """Each address of the network lies in exactly one of its zones, and any other in none."""
    if network.version == 6 and network.overlaps(ipaddress.ip_network("::ffff:0:0/96")):
        return  # IPv4 in disguise
    zones = [zone.name for zone in parse_zones(str(network))]
    assert len(set(zones)) == len(zones) <= 128
    inside = data.draw(st.ip_addresses(network=network))
    outside = data.draw(st.ip_addresses(v=network.version))
    for address in (inside, outside):
        reverse = f".{address.reverse_pointer}"
        holding = [zone for zone in zones if reverse.endswith(f".{zone}")]
        assert len(holding) == (address in network)


# In each command, each setting that takes a zone

COMMANDS: dict[str, tuple[str, ...]] = {
    "serve": ("serve", "--snapshot", "{}"),
    "check": ("check", "--snapshot", "{}"),
    "explain": ("explain", "k.default", "--client", "10.0.0.1", "--snapshot", "{}"),
    "simulate": ("simulate", "--snapshot", "{}"),
    "console": ("console", "{}"),
    "corefile": ("corefile", "--for", "coredns", "--to", "10.0.0.1"),
}
SETTINGS = {"--zone": "{}", "--federation": "{}", "--multicluster": "{}", "--default-topology-keys": "{}=a"}


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return str(path)


def ways(flag: str, text: str, folder: Path) -> Iterator[tuple[str, Sequence[str], dict[str, str]]]:
    """Yield where a setting can stand: the words of a message about it, flags, and variables."""
    yield flag, (f"{flag}={text}",), {}
    config = folder / "config.yaml"
    config.write_text(f"{flag[2:]}: [{text!r}]\n")
    yield f"{config}: {flag[2:]}", (f"--config={config}",), {}
    if text:
        variable = f"TOPODNS_{flag[2:].replace('-', '_').upper()}"
        yield variable, (), {variable: text}


@pytest.mark.parametrize("flag", SETTINGS)
@pytest.mark.parametrize("case", ["a wildcard", "an address", "nothing"])
def test_every_setting_refuses_it(topodns: Run, snapshot: str, tmp_path: Path, case: str, flag: str) -> None:
    """Status 2: the message names the flag, file or variable, what was found, and what was expected."""
    text = SETTINGS[flag].format(REFUSED[case])
    for source, flags, env in ways(flag, text, tmp_path):
        ran = topodns("check", "--snapshot", snapshot, *flags, **env)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"topodns: {source}: ") and repr(text) in ran.err and "a domain name" in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_it(topodns: Run, snapshot: str, command: str) -> None:
    """And in the same words."""
    ran = topodns(*(word.format(snapshot) for word in COMMANDS[command]), "--zone=a..b")
    assert (ran.status, ran.out, ran.err) == (
        *(2, ""),
        "topodns: --zone: 'a..b' is not a domain name, expected a domain name such as cluster.local, or a network such "
        "as 10.96.0.0/12\n",
    )


@pytest.mark.parametrize("flag", ["--federation", "--multicluster", "--default-topology-keys"])
def test_a_network_is_no_zone_for_names(topodns: Run, snapshot: str, flag: str) -> None:
    """Only --zone takes networks."""
    for text in ("10.96.0.0/12", "fd00::/8"):
        ran = topodns("check", "--snapshot", snapshot, flag, SETTINGS[flag].format(text))
        assert (ran.status, ran.out) == (2, "") and f"{text!r} is not a domain name" in ran.err


def test_an_address_is_told_its_network(topodns: Run, snapshot: str) -> None:
    """Who means one address writes it as a network."""
    ran = topodns("check", "--snapshot", snapshot, "--zone", "10.96.0.1")
    assert ran.err == (
        "topodns: --zone: '10.96.0.1' is an address, whose network is 10.96.0.1/32, expected a domain name such as "
        "cluster.local, or a network such as 10.96.0.0/12\n"
    )


def test_a_zone_twice_is_once() -> None:
    """However it is written, in each setting."""
    flags = {"zone": ["cluster.local", "10.96.0.0/16", "Cluster.local.", "10.96.0.0/15"], "federation": ["a.b", "A.b"]}
    settings = settings_of({**flags, "multicluster": ["c.d.", "c.d"]})
    names = [[zone.name for zone in zones] for zones in (settings.zone, settings.federation, settings.multicluster)]
    assert names == [["cluster.local", "96.10.in-addr.arpa", "97.10.in-addr.arpa"], ["a.b"], ["c.d"]]


@pytest.mark.parametrize("address", ["10.112.0.1", "8.8.8.8", "fd00:1235::1"])
def test_what_lies_around_the_networks_is_not_served(address: str) -> None:
    """They replace the default reverse zones: what lies around them belongs to somebody else."""
    responder = responder_of(CLUSTER, {"zone": ["cluster.local", "10.96.0.0/12", "fd00:1234::/48"]})
    reply = ask_in_memory(responder, dns.message.make_query(dns.reversename.from_address(address), "PTR"), "10.0.0.1")
    assert reply is not None and reply.rcode() == dns.rcode.REFUSED


def test_a_network_in_a_stub_block(topodns: Run) -> None:
    """The printed block forwards the reverse zones, and --check finds nothing to say."""
    ran = topodns(
        "corefile", "--for", "coredns", "--to", "10.0.0.1", "--zone", "cluster.local", "--zone", "10.96.0.0/15"
    )
    assert ran.status == 0 and "cluster.local:53 96.10.in-addr.arpa:53 97.10.in-addr.arpa:53 {" in ran.out
