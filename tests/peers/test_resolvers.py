# SPDX-License-Identifier: Apache-2.0

"""Programs' own resolvers ask topodns directly, over IPv4 and IPv6: each finds what ``explain`` says.

Each pod is a machine of its own with a pod's ``/etc/resolv.conf``; topodns locates it by its source address.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from locator.state.snapshot import Snapshot
from tests.kit import api_objects
from tests.kit.api_objects import ZONE, Item
from tests.kit.coredns import running_coredns
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import snapshot_of
from tests.kit.made_once import CACHE
from tests.kit.network_namespaces import Machine, loopback_with, one_network
from tests.kit.programs import Daemon, environment
from tests.kit.this_machine import has_ipv6, lacking, needs_tool
from tests.kit.topodns_process import serving
from tests.kit.waiting import PATIENCE

ZONES = ("a", "b", "c")
VAULTED = ("a", "b")  # where a Service with a hard constraint has endpoints
LARGE = 120  # endpoints of a Service in each zone: no UDP reply holds as many
CROWD = 252  # endpoints of another: with all addresses beside them, their SRV records would take 30 kB
DOMAIN = "shop.svc.cluster.local"
SERVERS = ("10.253.0.1", "fd00:253::1")  # where topodns is
STUB = "127.0.0.53"  # where systemd's is, in each machine


class Pod(NamedTuple):
    """A client with an address of each family, made of its number; ``zone`` is None for an unknown client.

    ``stub`` is whether it asks its machine's stub resolver, which asks ``server``.
    """

    number: int
    zone: str | None
    server: str
    stub: bool = False

    @property
    def addresses(self) -> tuple[str, str]:
        return f"10.253.0.{self.number}", f"fd00:253::{self.number}"

    @property
    def asks_from(self) -> str:
        return self.addresses[":" in self.server]

    def __str__(self) -> str:
        way = "IPv6" if ":" in self.server else "IPv4"
        return f"{self.zone or 'nowhere'}-{way}{'-stub' if self.stub else ''}"


DIRECT = [
    Pod(10 * row + column, zone, server)
    for row, zone in enumerate((*ZONES, None), 1)
    for column, server in enumerate(SERVERS)
]
STUBBED = [Pod(10 * row + 5, zone, SERVERS[row % 2], stub=True) for row, zone in enumerate((*ZONES, None), 1)]
PODS = (*DIRECT, *STUBBED)


def members(
    name: str, number: int, *, count: int = 2, zones: Sequence[str] = ZONES, families: str = "46"
) -> list[Item]:
    """Return the slices of a headless Service with *count* endpoints in each of *zones*.

    Their addresses hold the Service's unique *number*, and the zones, which ``zones_of`` reads from them.
    """
    rows = [(zone, row) for zone in zones for row in range(count)]
    nets = {"4": ("IPv4", "10.250.{}.{}"), "6": ("IPv6", "fd00:250:{}::{}")}
    return [
        api_objects.endpoint_slice(
            name,
            index,
            [
                api_objects.endpoint(
                    net.format(4 * number + ZONES.index(zone), row + 1),
                    nodeName=f"node-{zone}",
                    hostname=f"{name}-{zone}-{row}",
                )
                for zone, row in rows
            ],
            family=family,
        )
        for index, (family, net) in enumerate(nets[wanted] for wanted in families)
    ]


def zones_of(addresses: set[str]) -> set[str]:
    """Return the zones of endpoints."""
    return {ZONES[int(re.split("[.:]", address)[2]) % 4] for address in addresses}


def zones_near(zone: str | None) -> set[str]:
    """Return the zones whose endpoints a client gets, if any will do in the end."""
    return {zone} if zone else set(ZONES)


ALIAS = api_objects.external("alias", f"cache.{DOMAIN}")
# What the upstream has: a name outside the zones that leads back.
OUTSIDE = f"""\
example.net. 60 IN SOA ns.example.net. h.example.net. 1 7200 1800 86400 30
example.net. 60 IN NS ns.example.net.
back.example.net. 60 IN CNAME cache.{DOMAIN}.
"""
SOFT = f"{ZONE},*"
CLUSTER: list[Item] = [
    api_objects.namespace("shop"),
    *(api_objects.node(f"node-{zone}", {ZONE: zone}) for zone in ZONES),
    *(api_objects.pod(f"client-{pod.number}", pod.addresses, f"node-{pod.zone}") for pod in PODS if pod.zone),
    *(api_objects.service("cache", keys=SOFT), *members("cache", 1)),
    *(api_objects.service("vault", keys=ZONE), *members("vault", 2, zones=VAULTED)),
    *(api_objects.service("four", keys=SOFT), *members("four", 3, families="4")),
    *(api_objects.service("six", keys=SOFT), *members("six", 4, families="6")),
    *(api_objects.service("many", keys=SOFT), *members("many", 5, count=LARGE)),
    *(api_objects.service("plain"), *members("plain", 6)),
    *(api_objects.service("shop", keys=SOFT), *members("shop", 7)),  # a name like its namespace's
    *(api_objects.service("crowd"), *members("crowd", 8, count=CROWD // len(ZONES))),
    api_objects.service("api", cluster_ips=("10.96.0.10", "fd00:96::10")),
    api_objects.service("closed"),
    ALIAS,
    api_objects.external("back", "back.example.net"),
    api_objects.external("missing", "nx.example.net"),
]

# What a program says -> which name it means.
NAMES = {
    "cache": f"cache.{DOMAIN}",
    "cache.shop": f"cache.{DOMAIN}",
    "cache.shop.svc": f"cache.{DOMAIN}",
    f"cache.{DOMAIN}": f"cache.{DOMAIN}",
    f"cache.{DOMAIN}.": f"cache.{DOMAIN}",
    "CACHE.Shop": f"cache.{DOMAIN}",
    "shop.shop": f"shop.{DOMAIN}",
    "cache-a-1.cache": f"cache-a-1.cache.{DOMAIN}",
    "b.pin._zone.cache": f"b.pin._zone.cache.{DOMAIN}",
    "vault": f"vault.{DOMAIN}",
    f"vault.{DOMAIN}.": f"vault.{DOMAIN}",
    "four": f"four.{DOMAIN}",
    "six": f"six.{DOMAIN}",
    "many": f"many.{DOMAIN}",
    "plain": f"plain.{DOMAIN}",
    "api.shop": f"api.{DOMAIN}",
    "alias": f"alias.{DOMAIN}",
    "back": f"cache.{DOMAIN}",  # in the end
    f"closed.{DOMAIN}.": f"closed.{DOMAIN}",
    f"none.{DOMAIN}.": f"none.{DOMAIN}",
}
# The search list of ``resolv.conf`` is for names without a dot; for those with fewer than ``ndots`` not in busybox.
UNSEARCHED = [name for name in NAMES if "." not in name or DOMAIN in name]


class Resolver(NamedTuple):
    """A command that resolves names: it prints a line for each address, then ``= NAME STATUS``.

    ``types`` are what it asks for, with ``either`` a later type only if there is nothing of the ones before.
    ``options`` are glibc's. ``cuts``: it uses truncated UDP replies, without TCP. ``dots``: it follows ``ndots``.
    """

    command: tuple[str, ...]
    types: tuple[str, ...] = ("A", "AAAA")
    either: bool = False
    options: str = ""
    cuts: bool = False
    dots: bool = True

    @property
    def names(self) -> list[str]:
        return list(NAMES) if self.dots else UNSEARCHED


def each_name(command: str) -> tuple[str, ...]:
    return ("sh", "-c", f'for name; do {command}; echo "= $name $?"; done', "sh")


GETENT = each_name('getent ahosts "$name"')
PYTHON = """
import socket, sys
for name in sys.argv[1:]:
    status = 0
    try:
        for row in socket.getaddrinfo(name, None):
            print(row[4][0])
    except socket.gaierror as error:
        status = error.errno
    print("=", name, status)
"""
NSLOOKUP = "busybox nslookup \"$name\" | sed -n '/^Name/,$s/^Address: //p'"  # before it stands the server's address

RESOLVERS = {
    "glibc": Resolver(GETENT),
    "glibc-ipv4": Resolver(each_name('getent ahostsv4 "$name"'), types=("A",)),
    "glibc-ipv6": Resolver(each_name('getent ahostsv6 "$name"'), types=("AAAA", "A"), either=True),
    "glibc-edns": Resolver(GETENT, options="edns0"),
    "glibc-one-after-the-other": Resolver(GETENT, options="single-request"),
    "glibc-two-sockets": Resolver(GETENT, options="single-request-reopen"),
    "glibc-tcp": Resolver(GETENT, options="use-vc"),
    "python": Resolver((sys.executable, "-c", PYTHON)),
    "musl": Resolver(("./getaddrinfo",), cuts=True),
    "busybox": Resolver(each_name(NSLOOKUP), cuts=True, dots=False),
}
NEEDED = {"musl": "musl-gcc", "busybox": "busybox"}


class World(NamedTuple):
    """The machines that ask topodns, and a folder with the files that they use."""

    machines: Mapping[Pod, Machine]
    folder: Path

    def found(self, pod: Pod, resolver: Resolver, names: Sequence[str]) -> dict[str, tuple[set[str], int]]:
        """Return what a resolver finds in *pod* for each name: addresses and status."""
        found: dict[str, tuple[set[str], int]] = {}
        addresses: set[str] = set()
        for line in self.run(pod, *resolver.command, *names, env={"RES_OPTIONS": resolver.options}).splitlines():
            first, *rest = line.split()
            if first == "=":
                found[rest[0]] = addresses, int(rest[1])
                addresses = set()
            else:
                addresses.add(unmapped(first))
        return found

    def run(self, pod: Pod, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return the output of a command in *pod*."""
        ran = subprocess.run(
            [*self.machines[pod].there, *command],
            env=environment(env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@cache
def known() -> Snapshot:
    return snapshot_of(api_objects.listed(CLUSTER))


@cache
def explained(client: str, name: str, *types: str) -> frozenset[str]:
    """Return the addresses that a client gets, as ``explain`` says."""
    return frozenset(
        answer.data
        for rtype in types
        for answer in explanation_of(known(), name, client, rtype).answers
        if answer.type == rtype
    )


def expected(pod: Pod, resolver: Resolver, name: str) -> frozenset[str]:
    """Return the addresses that *resolver* must find."""
    sets = [explained(pod.asks_from, NAMES[name], rtype) for rtype in resolver.types]
    return next(filter(None, sets), frozenset()) if resolver.either else frozenset().union(*sets)


def unmapped(text: str) -> str:
    address = ipaddress.ip_address(text)
    return str(getattr(address, "ipv4_mapped", None) or address)


# In place of what this machine has: what ``getent`` looks at, and whom systemd's stub becomes.
ETC = {
    "nsswitch.conf": "hosts: dns\npasswd: files\ngroup: files\n",
    "passwd": "root:x:0:0::/root:/bin/sh\nsystemd-resolve:x:64353:64353::/:/usr/sbin/nologin\n",
    "group": "root:x:0:\nsystemd-resolve:x:64353:\n",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run topodns at port 53, on one network with the machines of all pods.

    This process is in its own network meanwhile, where the port and all addresses are free.
    """
    if not has_ipv6():
        lacking("there is no IPv6 here")
    folder = tmp_path_factory.mktemp("resolvers")
    with ExitStack() as stack:
        stack.enter_context(stack.enter_context(loopback_with()).inside())
        network = stack.enter_context(one_network())
        for address in SERVERS:
            network.take(address)
        machines = {}
        for pod in PODS:
            resolv_conf = (
                f"nameserver {STUB if pod.stub else pod.server}\n"
                f"search {DOMAIN} svc.cluster.local cluster.local\n"
                "options ndots:5\n"
            )
            files = {**ETC, "resolv.conf": resolv_conf}
            machines[pod] = stack.enter_context(network.machine(*pod.addresses, files=files))
        zone = folder / "example.net.zone"
        zone.write_text(OUTSIDE)
        upstream = stack.enter_context(running_coredns(folder, f"file {zone} example.net"))
        flags = {"listen": [f"{SERVERS[0]}:53", f"[{SERVERS[1]}]:53"], "upstream": f"127.0.0.1:{upstream.port}"}
        stack.enter_context(serving(folder, api_objects.listed(CLUSTER), flags=flags))
        yield World(machines, folder)


@pytest.fixture(scope="module")
def stubs(world: World) -> Iterator[None]:
    """Run systemd's stub resolver in the pods that use one."""
    folders = (root / each for root in (CACHE / "systemd-resolved", Path("/")) for each in ("usr/lib", "lib"))
    program = shutil.which("systemd-resolved", path=os.pathsep.join(f"{folder}/systemd" for folder in folders))
    if program is None:
        lacking("systemd-resolved is neither installed here nor unpacked in .cache")
    own = (  # there is no D-Bus in its /run, and nobody else's files
        "mount -t tmpfs none /run && mkdir -p /run/systemd/resolved.conf.d"
        " && install -d -o systemd-resolve -g systemd-resolve /run/systemd/resolve"
        ' && cp "$1" /run/systemd/resolved.conf.d/ && exec "$2"'
    )
    with ExitStack() as stack:
        for pod in STUBBED:
            conf = world.folder / f"{pod}.conf"
            conf.write_text(f"[Resolve]\nDNS={pod.server}\nDomains=~.\nDNSSEC=no\nLLMNR=no\nMulticastDNS=no\n")
            command = (*world.machines[pod].there, "sh", "-c", own, "sh", str(conf), program)
            daemon = Daemon.start(command, world.folder, name=f"systemd-resolved-{pod}")
            stack.callback(daemon.end)
            daemon.until(lambda pod=pod: world.found(pod, RESOLVERS["glibc"], ["cache"])["cache"][0])
        yield


def resolver_of(world: World, name: str) -> Resolver:
    """Return a resolver that can run here."""
    tool = needs_tool(NEEDED[name]) if name in NEEDED else ""
    program = world.folder / "getaddrinfo"
    if name == "musl" and not program.exists():
        source = Path(__file__).with_name("getaddrinfo.c")
        command = [tool, "-static", "-Wall", "-Werror", "-o", str(program), str(source)]
        subprocess.run(command, check=True, timeout=PATIENCE)
    return RESOLVERS[name]


def check(world: World, pod: Pod, resolver: Resolver) -> None:
    """Check that *resolver* in *pod* finds for each name what ``explain`` says for the pod's zone."""
    found = {name: addresses for name, (addresses, _) in world.found(pod, resolver, resolver.names).items()}
    right = {name: expected(pod, resolver, name) for name in resolver.names}
    if resolver.cuts:
        assert found["many"] and found["many"] < right["many"]
        del found["many"], right["many"]
    assert found == right
    assert zones_of(found["cache"]) == zones_near(pod.zone)


@pytest.mark.parametrize("pod", DIRECT, ids=str)
@pytest.mark.parametrize("name", RESOLVERS)
def test_a_resolver_finds_what_is_explained(world: World, name: str, pod: Pod) -> None:
    """For short and full names, A and AAAA together or in turn, UDP or TCP: the pod is the client.

    What does not fit UDP comes over TCP; busybox, and musl before 1.2.4, use the truncated reply.
    """
    check(world, pod, resolver_of(world, name))


@pytest.mark.parametrize("pod", STUBBED, ids=str)
@pytest.mark.parametrize("name", ["glibc", "glibc-tcp", "musl"])
def test_a_stub_resolver_finds_what_is_explained(world: World, stubs: None, name: str, pod: Pod) -> None:
    """A stub resolver on the pod's machine does not hide the pod, and shares its cache with no other."""
    check(world, pod, resolver_of(world, name))


@pytest.mark.parametrize("pod", [pod for pod in DIRECT if pod.zone not in VAULTED], ids=str)
def test_what_is_too_far_away_is_told_from_what_is_not_there(world: World, pod: Pod) -> None:
    """An unmet hard constraint is a name without addresses; a wrong name is a different error."""
    names = ["vault", f"vault.{DOMAIN}.", f"none.{DOMAIN}.", f"missing.{DOMAIN}."]
    found = world.found(pod, RESOLVERS["python"], names)
    nothing, nobody = socket.EAI_NODATA, socket.EAI_NONAME
    assert [status for _, status in found.values()] == [nothing, nothing, nobody, nobody]


RESOLVE_SRV = """
require("dns").resolveSrv(process.argv[1], (error, rows) => {
  if (error) throw error;
  for (const row of rows) console.log(row.name);
});
"""


@pytest.mark.parametrize("service", [f"_main._tcp.crowd.{DOMAIN}", f"crowd.{DOMAIN}"])
def test_nodejs_reads_many_srv_records(world: World, service: str) -> None:
    """c-ares parses the reply and writes it again: it fails if a name first stands where no pointer reaches."""
    printed = world.run(DIRECT[-1], needs_tool("node"), "-e", RESOLVE_SRV, service)
    assert len(set(printed.split())) == CROWD


@pytest.mark.usefixtures("stubs")
@pytest.mark.parametrize("service", [f"_main._tcp.crowd.{DOMAIN}", f"crowd.{DOMAIN}"])
def test_a_stub_resolver_passes_on_many_srv_records(world: World, service: str) -> None:
    """systemd-resolved writes the message again, too."""
    printed = world.run(STUBBED[-1], needs_tool("dig"), f"@{STUB}", "+noall", "+answer", service, "SRV")
    assert len(set(re.findall(r"\sSRV\s+(.+)$", printed, re.MULTILINE))) == CROWD
