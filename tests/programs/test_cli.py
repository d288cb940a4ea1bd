# SPDX-License-Identifier: Apache-2.0

"""The command line: its output, its exit status, and its messages for wrong input."""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import pytest
import yaml

from dnsserver import __version__
from dnsserver.cli.dispatch import parser_of
from dnsserver.cli.settings_flags import given_flags
from dnsserver.settings.fields import FLAGS
from dnsserver.settings.reading import read_settings
from tests.kit.api_objects import (
    HOSTNAME,
    SLICE_CONTROLLER,
    ZONE,
    endpoint,
    endpoint_slice,
    namespace,
    node,
    pod,
    service,
)
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import settings_of
from tests.kit.programs import environment
from tests.kit.topodns_process import COMMAND, Process, Server, run
from tests.kit.waiting import PATIENCE

DONE, FAILED, WRONG = 0, 1, 2
NAME = "web.shop.svc.cluster.local"

HTTP = (("http", 80, "TCP"),)
CLUSTER = [
    namespace("shop"),
    node("a1", {ZONE: "a"}, addresses=["127.1.0.1"]),
    node("b1", {ZONE: "b"}, addresses=["127.1.0.2"]),
    pod("client", ["127.1.0.9"], "a1"),
    service("web", keys=f"{HOSTNAME},{ZONE}", ports=HTTP, selects=True),
    endpoint_slice(
        "web",
        1,
        [endpoint("10.9.0.1", nodeName="a1"), endpoint("10.9.0.3", nodeName="c1")],
        ports=HTTP,
        by=SLICE_CONTROLLER,
    ),
    node("c1", {ZONE: "c"}, addresses=["127.1.0.3"]),
    service("kube-dns", cluster_ips=("10.96.0.10",), where="kube-system"),
    endpoint_slice("kube-dns", 1, [endpoint("127.0.0.10", nodeName="a1")], where="kube-system"),
]
NAMESPACE, NODE_A, NODE_B, POD, SERVICE, SLICE, *_ = CLUSTER


def changed(item: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return an object with other fields; ``a__b=1`` sets a field within a field, None removes one."""
    item = json.loads(json.dumps(item))
    for path, value in fields.items():
        *way, last = path.split("__")
        inner = item
        for step in way:
            inner = inner.setdefault(step, {})
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = value
    return item


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """Return the path of a small cluster."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump_all(CLUSTER))
    return str(path)


# --- Settings -------------------------------------------------------------------------------------------------------

BAD_SETTINGS = [
    ("ttl", "3601", "from 0 to 3600"),
    ("ttl", "-1", "from 0 to 3600"),
    ("ttl", "5s", "whole number"),
    ("zone", "", "domain name"),
    ("zone", "cluster..local", "domain name"),
    ("zone", "a" * 64 + ".local", "domain name"),
    ("zone", "in-addr.arpa", "only reverse zones"),
    ("trusted-forwarder", "10.0.0.1/24", r"'10.0.0.1/24' has host bits set.* 10\.0\.0\.0/24,"),
    ("trusted-forwarder", "fd00::1:1/112", "'fd00::1:1/112' has host bits set.* fd00::1:0/112,"),
    ("trusted-forwarder", "::ffff:10.0.0.1/120", "host bits"),
    ("trusted-forwarder", "10.0.0.0/33", "CIDR|address block"),
    ("trusted-forwarder", "kube-dns", "address block"),
    ("subnet", "10.0.0.0/8", "CIDR=KEY=VALUE"),
    ("subnet", "10.0.0.0/8=zone", "CIDR=KEY=VALUE"),
    ("subnet", "10.0.0.0/8=a/b/c=d", "CIDR=KEY=VALUE"),
    ("subnet", "10.0.0.1/8=topology.kubernetes.io/zone=a", r"host bits.* 10\.0\.0\.0/8,"),
    ("ns-address", "10.0.0.256", "address"),
    ("ns-address", "fe80::1%eth0", "address"),
    ("unknown-client", "some", "strict or all"),
    ("client-source", "pods,services", "podlocators"),
    ("forwarder-service", "kube-dns", "NAMESPACE/NAME"),
    ("client-option", "65000", "65001 to 65534"),
    ("client-option", "8", "65001 to 65534"),
    ("client-option", "65535", "65001 to 65534"),
    ("client-option", "0xfde8", "'0xfde8'.*65001 to 65534"),
    ("client-option", "0xffff", "'0xffff'.*65001 to 65534"),
    ("client-option", "0x1fe00", "65001 to 65534"),
    ("client-option", "0x", "65001 to 65534"),
    ("client-option", "fe00", "65001 to 65534"),
    ("client-option", "-65024", "65001 to 65534"),
    ("client-option", "on", "65001 to 65534"),
    ("serve-namespace", "shop/web", "namespace"),
    ("serve-namespace", "shop.svc", "namespace"),
    ("serve-namespace", "Shop", "namespace"),
    ("namespace-selector", "team in a", "label selector"),
    ("service-selector", "-team", "label key.*label selector"),
    ("pods", "all", "disabled, insecure or verified"),
    ("endpoint-pod-names", "yes", "on or off"),
    ("ignore-empty-service", "1", "on or off"),
    ("no-endpoints", "maybe", "on or off"),
    ("zonal", "a/b/c", "a label key"),
    ("zonal", "on", "a label key"),
    ("upstream", "example.org", "ADDRESS"),
    ("upstream", "192.0.2.1:", "ADDRESS"),
    ("upstream", "192.0.2.1:0", "ADDRESS"),
    ("upstream", "[::1]:65536", "ADDRESS"),
    ("default-topology-keys", "cluster.local", "no valid label key"),
    ("default-topology-keys", "cluster.local=*,a", "only the last key"),
    ("default-topology-keys", "=a", "ZONE=KEY"),
    ("default-topology-keys", "topo.local=a,*", "topo.local is not served, expected one of --zone: cluster.local"),
    ("traffic-distribution", "PreferClose", "honor or ignore"),
    ("log-level", "loud", "debug"),
    ("log-format", "xml", "text or json"),
    ("snapshot", "", "file"),
]
BAD_SERVER_SETTINGS = [
    ("proxy-protocol", "v2", "on or off"),
    ("listen", "127.0.0.1", "PORT"),
    ("listen", "127.0.0.1:65536", "PORT"),
    ("listen", "localhost:53", "ADDRESS"),
    ("listen", "::1:53", "bracket"),
    ("http", "9153", "PORT"),
    ("max-connections", "0", "from 1"),
    ("tcp-idle-timeout", "0", "from 1"),
    ("max-queries-in-flight", "0", "from 1"),
    ("nsid", "n" * 129, "at most 128 octets"),
    ("stale-after", "0", "from 1 to 86400"),
    ("state-dir", "", "a folder"),
    ("state-max-age", "-1", "from 1"),
]
BAD_CONTROLLER_SETTINGS = [
    ("lease", "topodns", "NAMESPACE/NAME"),
    ("lease", "a/b/c", "NAMESPACE/NAME"),
    ("labels", "", "a pattern"),
    ("http", "9153", "PORT"),
]


@pytest.mark.parametrize(
    ("flag", "value", "expected", "way"),
    [
        (flag, value, expected, way)
        for flag, value, expected in BAD_SETTINGS
        for way in ("flag", "environment", "file")
        # By white space, an empty variable holds no value at all.
        if not (way == "environment" and not value and FLAGS[flag.replace("-", "_")].repeatable)
    ],
)
def test_bad_setting(
    topodns: Run, cluster: str, tmp_path: Path, flag: str, value: str, expected: str, way: str
) -> None:
    """A wrong setting ends the command with status 2; the error says where it is, what was found and expected."""
    variable = f"TOPODNS_{flag.upper().replace('-', '_')}"
    config = tmp_path / "settings.yaml"
    settings = ["--snapshot", cluster] if flag != "snapshot" else []
    if way == "flag":
        ran, where = topodns("check", *settings, f"--{flag}={value}"), f"--{flag}"
    elif way == "environment":
        ran, where = topodns("check", *settings, **{variable: value}), variable
    else:
        config.write_text(yaml.safe_dump({flag: value}))
        ran, where = topodns("check", *settings, "--config", str(config)), f"{config}: {flag}"
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith(f"topodns: {where}: ") and ran.err.count("\n") == 1
    assert re.search(expected, ran.err)


@pytest.mark.parametrize(("flag", "value", "expected"), BAD_SERVER_SETTINGS)
def test_bad_server_setting(topodns: Run, cluster: str, flag: str, value: str, expected: str) -> None:
    """The same for settings that only ``serve`` has."""
    ran = topodns("serve", "--snapshot", cluster, f"--{flag}={value}")
    assert ran.status == WRONG and ran.err.startswith(f"topodns: --{flag}: ")
    assert repr(value) in ran.err and expected in ran.err


@pytest.mark.parametrize(("flag", "value", "expected"), BAD_CONTROLLER_SETTINGS)
def test_bad_controller_setting(topodns: Run, flag: str, value: str, expected: str) -> None:
    """The same for ``controller``, before it connects to a cluster."""
    ran = topodns("controller", f"--{flag}={value}")
    assert ran.status == WRONG and ran.err.startswith(f"topodns: --{flag}: ")
    assert repr(value) in ran.err and expected in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--snapshop", "x"), "--snapshop: unknown flag, did you mean --snapshot?"),
        (("check", "--tll=5"), "--tll: unknown flag, did you mean --ttl?"),
        (("serve", "--trusted-forwarders=10.0.0.0/8"), "did you mean --trusted-forwarder?"),
        (("check", "--http=off"), "--http: "),
        (("tail", "more"), "'more' found, expected no more arguments after tail"),
        (("serve", "--snapshot=x", "--context=y"), "--context: given together with --snapshot, expected only one"),
        (("check", "--default-topology-keys=cluster.local=a", "--default-topology-keys=cluster.local=b"),
         "--default-topology-keys: cluster.local is given twice"),
        (("serve", "--no-endpoints", "on"), "on: No such file or directory"),
        (("webhook", "--tls-cert=x"), "--tls-cert: given without --tls-key, expected both or neither"),
        (("webhook", "--tls-key=x"), "--tls-key: given without --tls-cert, expected both or neither"),
        (("webhook", "--tls-cert=x", "--tls-key=y", "--tls-secret=a/b"),
         "--tls-secret: given together with --tls-cert, expected only one of them"),
        (("webhook", "--tls-cert=x", "--tls-key=y", "--webhook-configuration=z"),
         "--webhook-configuration: given together with --tls-cert, expected only one of them"),
        (("webhook", "--tls-secret=x"), "--tls-secret: 'x', expected NAMESPACE/NAME"),
        (("webhook", "--tls-secret=A/b"), "--tls-secret: 'A/b', expected NAMESPACE/NAME"),
        (("webhook", "--webhook-configuration=a b"), "--webhook-configuration: 'a b', expected the name of an object"),
        (("webhook", "--webhook-listen=8443"), "--webhook-listen: '8443', expected ADDRESS:PORT"),
        (("webhook",), "neither --tls-cert with --tls-key nor --tls-secret given"),
        (("webhook", "--tls-cert=/none/crt", "--tls-key=/none/key"),
         "/none/crt: No such file or directory, expected a file in PEM"),
        (("webhook", "--tls-secret=a/b"), "/nonexistent/.kube/config: no such file, expected a kubeconfig"),
        (("webhook", "--install-ca"), "nor --tls-secret given, expected one of them outside a pod"),
        (("webhook", "--install-ca", "--tls-cert=x", "--tls-key=y"),
         "--install-ca: given together with --tls-cert, expected only one of them"),
        (("webhook", "--snapshot=x"),
         "--snapshot: a flag of serve, explain, check, simulate, console and dump, not of webhook"),
        (("serve", "--fail-on=error"), "--fail-on: a flag of check and simulate, not of serve"),
        (("serve", "--picture=x"), "--picture: a flag of simulate, not of serve"),
    ],
    ids=["misspelt", "misspelt-with-value", "plural", "of-another-command", "too-many", "two-clusters", "two-defaults",
         "value-of-a-switch", "certificate-alone", "key-alone", "two-certificates", "whose-configuration", "secret",
         "secret-in-capitals", "configuration-with-a-space", "https", "no-certificate", "certificate-not-there",
         "webhook-without-cluster", "install-nothing", "install-for-another", "of-six-others", "of-two-others",
         "of-one-other"],
)  # fmt: skip
def test_bad_command_line(topodns: Run, arguments: tuple[str, ...], message: str) -> None:
    """A wrong command line ends with status 2 and one line that quotes the word and the nearest known one."""
    ran = topodns(*arguments)
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith("topodns: ") and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tttl: 5", "settings.yaml: tttl: unknown key, did you mean ttl?"),
        ("ttl: 5\nzone: [a", "line "),
        ("- ttl", "list"),
        ("ttl: {seconds: 5}", "ttl: a mapping found"),
        ("ttl: [5, 6]", "ttl: 2 values"),
        ("ttl:", "ttl: "),
        ("\x00", "YAML"),
        ("? [a]\n: b", "YAML"),
        ("ttl: 0x" + "f" * 5000, "ttl: '0xfff"),
        ('kubeconfig: "a\\0b"', "kubeconfig: 'a\\x00b', expected a kubeconfig"),
    ],
    ids=["unknown-key", "broken", "no-mapping", "nested", "several", "nothing", "binary", "key-that-is-a-list",
         "number-of-thousands-of-digits", "no-name-of-a-file"],
)  # fmt: skip
def test_bad_configuration_file(topodns: Run, cluster: str, tmp_path: Path, content: str, message: str) -> None:
    """A configuration file that cannot be used is an error that names file and place."""
    path = tmp_path / "settings.yaml"
    path.write_text(content)
    ran = topodns("check", "--snapshot", cluster, "--config", str(path))
    assert ran.status == WRONG and ran.err.startswith(f"topodns: {path}: ") and message in ran.err


def test_missing_configuration_file(topodns: Run, cluster: str, tmp_path: Path) -> None:
    """A missing configuration file is an error."""
    ran = topodns("check", "--snapshot", cluster, "--config", str(tmp_path / "none.yaml"))
    assert ran.status == WRONG and f"topodns: {tmp_path}/none.yaml: No such file" in ran.err


@pytest.mark.parametrize(
    ("text", "code"),
    [("65001", 65001), ("65534", 65534), ("0xfde9", 65001), ("0xFFFE", 65534), ("0XfE00", 65024), ("off", None)],
)
def test_an_option_code_may_be_hexadecimal(text: str, code: int | None) -> None:
    """As in Corefiles; YAML reads some of these as numbers by itself."""
    assert settings_of({"client-option": text}).client_option == code
    assert settings_of({"client-option": yaml.safe_load(text)}).client_option == code


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.0/8", "::ffff:10.0.0.0/104", "10.0.0.0/8"),
     ("::ffff:0:0/96", "0.0.0.0/0", "0.0.0.0/0"), ("10.1.2.3", "10.1.2.3/32", "10.1.2.3/32"),
     ("2001:db8::/32", "2001:DB8:0::/32", "2001:db8::/32")],
)  # fmt: skip
@pytest.mark.parametrize("way", ["flag", "environment", "file"])
def test_a_subnet_stands_once(
    topodns: Run, cluster: str, tmp_path: Path, first: str, second: str, named: str, way: str
) -> None:
    """A subnet that is configured twice is an error, even with the same labels."""
    values = [f"{each}=topology.kubernetes.io/zone=a" for each in (first, "192.0.2.0/24", second)]
    config = tmp_path / "settings.yaml"
    if way == "flag":
        ran, where = topodns("check", "--snapshot", cluster, *(f"--subnet={value}" for value in values)), "--subnet"
    elif way == "environment":
        ran, where = topodns("check", "--snapshot", cluster, TOPODNS_SUBNET=" ".join(values)), "TOPODNS_SUBNET"
    else:
        config.write_text(yaml.safe_dump({"subnet": values}))
        ran, where = topodns("check", "--snapshot", cluster, "--config", str(config)), f"{config}: subnet"
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith(f"topodns: {where}: {named} ") and "twice" in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("client", "zone"),
    [("192.0.2.1", "c"), ("192.0.3.1", "b"), ("192.1.0.1", "a"), ("192.0.2.0/24", "c"), ("192.0.2.0/25", "c"),
     ("192.0.0.0/24", "b"), ("192.0.0.0/16", None), ("::ffff:192.0.2.9", "c"), ("::ffff:192.0.2.0/120", "c")],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1])
def test_overlapping_subnets(topodns: Run, cluster: str, client: str, zone: str | None, order: int) -> None:
    """The longest prefix decides, in any order; a client subnet around several has the labels that they share."""
    subnets = [f"--subnet={block}=topology.kubernetes.io/zone={zone}"
               for block, zone in (("192.0.0.0/8", "a"), ("192.0.0.0/16", "b"), ("192.0.2.0/24", "c"))]  # fmt: skip
    ran = topodns("explain", NAME, "--client", client, "-o", "json", "--snapshot", cluster, *subnets[::order])
    assert (ran.status, ran.err) == (DONE, "")
    found = ran.json["client"]
    assert found["labels"] == ({"topology.kubernetes.io/zone": zone} if zone else {})
    assert found["located_by"] == ("subnet" if zone else "unknown")


@pytest.mark.parametrize(
    ("block", "named"), [("0.0.0.0/0", "0.0.0.0/0"), ("::/0", "::/0"), ("::ffff:0.0.0.0/96", "0.0.0.0/0")]
)
def test_trust_in_everybody_is_a_warning(topodns: Run, cluster: str, block: str, named: str) -> None:
    """It is allowed, and a warning says what it means."""
    ran = topodns("check", "--snapshot", cluster, "--trusted-forwarder=10.0.0.0/8", f"--trusted-forwarder={block}")
    assert ran.status == DONE
    (line,) = [line for line in ran.err.splitlines() if "WARNING" in line]
    assert f"--trusted-forwarder: {named} trusts every sender" in line and "unknown" in line


def test_pods_without_nodes_are_a_warning(topodns: Run, cluster: str) -> None:
    """Without Nodes, a client's node has a name but no labels: hardly what is meant."""
    ran = topodns("check", "--snapshot", cluster, "--client-source", "pods")
    assert ran.status == DONE
    assert (
        "WARNING --client-source: with pods alone, topodns knows the node of a client, but not the node's labels"
        in ran.err
    )


def test_unknown_variable_is_a_warning(topodns: Run, cluster: str) -> None:
    """Another program may have set it: the warning names the nearest known variable, and the command goes on."""
    ran = topodns("check", "--snapshot", cluster, TOPODNS_TLL="5")
    assert ran.status == DONE
    assert "WARNING TOPODNS_TLL: unknown environment variable, did you mean TOPODNS_TTL?" in ran.err


@pytest.mark.parametrize(
    "variable",
    ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_DNS", "SERVICE_PORT_DNS_TCP", "PORT", "PORT_53_UDP",
     "PORT_53_UDP_ADDR", "PORT_53_TCP_PROTO"],
)  # fmt: skip
def test_service_links_are_passed_over(topodns: Run, cluster: str, variable: str) -> None:
    """topodns ignores the variables that Kubernetes sets for a Service called topodns."""
    assert topodns("check", "--snapshot", cluster, **{f"TOPODNS_{variable}": "tcp://10.96.0.9:53"}).err == ""


# Where a setting is given by its old name: flags, environment, file; what counts, and the warnings.
OLD_NAME = {
    "flag": (("--namespace=a", "--namespace", "b"), {}, None, ("a", "b"), ["--namespace: an old name, expected "
             "--serve-namespace; a later version does not know it"]),
    "variable": ((), {"TOPODNS_NAMESPACE": "a b"}, None, ("a", "b"), ["TOPODNS_NAMESPACE: an old name, expected "
                 "TOPODNS_SERVE_NAMESPACE; a later version does not know it"]),
    "file": ((), {}, {"namespace": ["a", "b"]}, ("a", "b"), ["FILE: namespace: an old name, expected "
             "serve-namespace; a later version does not know it"]),
    "both": ((), {"TOPODNS_NAMESPACE": "a", "TOPODNS_SERVE_NAMESPACE": "b"}, {"serve-namespace": "c"}, ("b",), [
             "TOPODNS_NAMESPACE: an old name, expected TOPODNS_SERVE_NAMESPACE; a later version does not know it"]),
    "flag-beats-variable": (("--serve-namespace=b",), {"TOPODNS_NAMESPACE": "a"}, None, ("b",), [
             "TOPODNS_NAMESPACE: an old name, expected TOPODNS_SERVE_NAMESPACE; a later version does not know it"]),
    "new": (("--serve-namespace=b",), {"TOPODNS_SERVE_NAMESPACE": "a"}, {"serve-namespace": "c"}, ("b",), []),
}  # fmt: skip


@pytest.mark.parametrize(("words", "variables", "content", "served", "warnings"), OLD_NAME.values(), ids=OLD_NAME)
def test_old_name_of_a_setting(
    words: Sequence[str], variables: dict[str, str], content: object, served: tuple[str, ...], warnings: list[str]
) -> None:
    """``serve`` takes it for a release, and says what to write; the new one counts if both are there."""
    arguments, unknown = parser_of("serve").parse(words)
    file = None if content is None else ("FILE", content)
    read = read_settings(flags=given_flags(arguments), environment=variables, file=file)
    assert (unknown, read[0].serve_namespace, read[1]) == ([], served, warnings)


def test_a_wrong_value_by_its_old_name(topodns: Run, cluster: str) -> None:
    """The message names what the user wrote."""
    ran = topodns("serve", "--snapshot", cluster, "--namespace", "A")
    assert (ran.status, ran.err) == (WRONG, "topodns: --namespace: 'A', expected the name of a namespace\n")


def test_flag_beats_environment_beats_file(topodns: Run, cluster: str, tmp_path: Path) -> None:
    """For each setting, a flag has precedence over the environment, and that over the file."""
    config = tmp_path / "settings.yaml"
    config.write_text(f"snapshot: {cluster}\nttl: 7\nclient-source: nodes\nunknown-client: all\n")
    command = ("explain", NAME, "--client", "127.1.0.1", "-o", "json")

    def ttl(*flags: str, **env: str) -> int:
        return int(topodns(*command, *flags, **env).json["answers"][0]["ttl"])

    assert ttl("--config", str(config)) == 7
    assert ttl("--config", str(config), TOPODNS_TTL="8") == 8
    assert ttl("--config", str(config), "--ttl", "9", TOPODNS_TTL="8") == 9
    assert ttl(TOPODNS_CONFIG=str(config)) == 7
    assert ttl(TOPODNS_SNAPSHOT=cluster) == 5


def test_switches_in_every_place(topodns: Run, cluster: str, tmp_path: Path) -> None:
    """A switch takes no value from the next word of the command line; ``off`` disables it."""
    config = tmp_path / "settings.yaml"
    config.write_text(f"snapshot: {cluster}\nno-endpoints: true\n")

    def rcode(*flags: str, **env: str) -> str:
        return str(topodns("explain", *flags, "--client", "127.1.0.1", "-o", "json", **env).json["rcode"])

    assert rcode("--snapshot", cluster, NAME) == "NOERROR"
    assert rcode("--snapshot", cluster, "--no-endpoints", NAME) == "NXDOMAIN"
    assert rcode("--snapshot", cluster, NAME, "--no-endpoints=on") == "NXDOMAIN"
    assert rcode("--config", str(config), NAME) == "NXDOMAIN"
    assert rcode("--config", str(config), NAME, "--no-endpoints=off") == "NOERROR"
    assert rcode("--config", str(config), NAME, TOPODNS_NO_ENDPOINTS="false") == "NOERROR"
    assert rcode("--snapshot", cluster, NAME, TOPODNS_NO_ENDPOINTS="true") == "NXDOMAIN"


def test_an_upstream_with_and_without_a_port() -> None:
    """The default port is 53; an IPv6 address with a port is in brackets; ``off`` means no upstream."""
    settings = settings_of({"upstream": ["192.0.2.1", "192.0.2.2:5353", "::1", "[::2]", "[::3]:54"]})
    assert settings.upstream is not None
    assert list(map(str, settings.upstream)) == ["192.0.2.1:53", "192.0.2.2:5353", "[::1]:53", "[::2]:53", "[::3]:54"]
    assert settings_of({"upstream": False}).upstream == ()
    assert settings_of().upstream is None


def test_lists_in_every_place(topodns: Run, cluster: str, tmp_path: Path) -> None:
    """A repeatable flag is a list in a file, and separated by white space in the environment."""
    config = tmp_path / "settings.yaml"
    config.write_text(f"snapshot: [{cluster}]\nzone: [one.test, two.test]\nforwarder-service: false\n")
    for ways in (
        {"arguments": ("--config", str(config)), "env": {}},
        {"arguments": ("--snapshot", cluster), "env": {"TOPODNS_ZONE": "one.test  two.test"}},
        {"arguments": ("--snapshot", cluster, "--zone", "one.test", "--zone=two.test."), "env": {}},
    ):
        for zone, rcode in (("one.test", "NOERROR"), ("two.test", "NOERROR"), ("cluster.local", "REFUSED")):
            ran = topodns("explain", f"web.shop.svc.{zone}", "--client", "127.1.0.1", "-o", "json",
                          *ways["arguments"], **ways["env"])  # fmt: skip
            assert (ran.status, ran.err, ran.json["rcode"]) == (DONE, "", rcode)


# --- Snapshots ------------------------------------------------------------------------------------------------------


def _files(folder: Path, *texts: str, suffix: str = ".yaml") -> list[str]:
    paths = [folder / f"part-{number}{suffix}" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [str(path) for path in paths]


def _flags(paths: list[str]) -> list[str]:
    return [word for path in paths for word in ("--snapshot", path)]


def _lists() -> list[dict[str, Any]]:
    """Return what ``kubectl get KIND -A -o yaml`` prints for each kind; its items lack kind and apiVersion."""
    kinds = [*dict.fromkeys(item["kind"] for item in CLUSTER)]
    return [
        {
            "apiVersion": next(item["apiVersion"] for item in CLUSTER if item["kind"] == kind),
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": "1"},
            "items": [changed(item, kind=None, apiVersion=None) for item in CLUSTER if item["kind"] == kind],
        }
        for kind in kinds
    ]


def _folder(folder: Path) -> list[str]:
    """Make a folder with snapshots of all three suffixes, and other files."""
    _files(folder, *map(yaml.safe_dump, CLUSTER[:2]))
    _files(folder, *map(yaml.safe_dump, CLUSTER[2:4]), suffix=".yml")
    _files(folder, *map(json.dumps, CLUSTER[4:]), suffix=".json")
    _files(folder, "no cluster at all: [", suffix=".yaml.old")
    return ["--snapshot", str(folder)]


OTHERS = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"kind": "Pod"}},
    {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
     "spec": {"clusterIP": 7}},
    {"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"metadata": {"name": "web"}}]},
    {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "shop"}, "subsets": 5},
]  # fmt: skip
LIST = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": CLUSTER}

FORMS: dict[str, Callable[[Path], list[str]]] = {
    "list": lambda folder: _flags(_files(folder, yaml.safe_dump(LIST))),
    "list-json": lambda folder: _flags(_files(folder, json.dumps(LIST), suffix=".json")),
    "list-json-indented": lambda folder: _flags(_files(folder, json.dumps(LIST, indent=4) + "\n", suffix=".json")),
    "json-without-suffix": lambda folder: _flags(_files(folder, json.dumps(LIST), suffix="")),
    "json-stream": lambda folder: _flags(_files(folder, "\n".join(map(json.dumps, CLUSTER)), suffix=".json")),
    "documents": lambda folder: _flags(_files(folder, yaml.safe_dump_all(CLUSTER))),
    "documents-with-empty-ones": lambda folder: _flags(
        _files(folder, "# dumped\n---\n" + "\n---\n---\n# and\n".join(map(yaml.safe_dump, CLUSTER)) + "\n---\n")
    ),
    "windows-lines": lambda folder: _flags(_files(folder, yaml.safe_dump_all(CLUSTER).replace("\n", "\r\n"))),
    "flow-style": lambda folder: _flags(_files(folder, yaml.safe_dump(LIST, default_flow_style=True))),
    "a-list-of-each-kind": lambda folder: _flags(_files(folder, *map(yaml.safe_dump, _lists()))),
    "a-list-of-each-kind-json": lambda folder: _flags(_files(folder, *map(json.dumps, _lists()), suffix=".json")),
    "single-objects": lambda folder: _flags(_files(folder, *map(yaml.safe_dump, CLUSTER))),
    "folder": lambda folder: _folder(folder),
    "unknown-kinds-between": lambda folder: _flags(_files(folder, yaml.safe_dump_all([*OTHERS, *CLUSTER, *OTHERS]))),
    "a-list-with-unknown-kinds": lambda folder: _flags(
        _files(folder, yaml.safe_dump({**LIST, "items": [*OTHERS, *CLUSTER]}))
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_a_snapshot(topodns: Run, tmp_path: Path, form: Callable[[Path], list[str]]) -> None:
    """Every form in which kubectl prints a cluster reads as the same cluster, without findings."""
    flags = form(tmp_path)
    checked = topodns("check", "-o", "json", *flags)
    found = [finding["message"] for finding in checked.json]
    assert found == (["not read: the name ends in .old"] if form is FORMS["folder"] else [])
    assert (checked.status, checked.err) == (DONE, "")
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "-o", "json", *flags).json
    assert [answer["data"] for answer in explained["answers"]] == ["10.9.0.1"]
    assert (explained["client"]["located_by"], explained["client"]["node"]) == ("pod", "a1")


@pytest.mark.parametrize("dump", [yaml.safe_dump, json.dumps], ids=["yaml", "json"])
def test_standard_input(dump: Callable[[Any], str]) -> None:
    """``--snapshot -`` reads what kubectl pipes."""
    ran = run("explain", NAME, "--client", "127.1.0.9", "--snapshot", "-", stdin=dump(LIST))
    assert ran.returncode == DONE and "10.9.0.1" in ran.stdout


def test_labels_that_look_like_something_else(topodns: Run, tmp_path: Path) -> None:
    """A label value is a string, even if YAML 1.1 would read it as a number or a boolean."""
    labels = ("rack: 0x1f", "row: 1_000", "slot: 12:30:00", "side: on", "date: 2026-01-01", "power: 1e3")
    text = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a1\n  labels:\n    topology.kubernetes.io/zone: a\n"
    text += "".join(f"    {label}\n" for label in labels) + "    hard: \"true\"\n"  # fmt: skip
    text += "status:\n  addresses:\n  - {type: InternalIP, address: 127.1.0.1}\n"
    ran = topodns("explain", NAME, "--client", "127.1.0.1", "-o", "json", "--snapshot", *_files(tmp_path, text))
    expected = dict(label.split(": ") for label in labels) | {"hard": "true"}
    assert expected.items() <= ran.json["client"]["labels"].items()


def test_the_same_object_twice(topodns: Run, tmp_path: Path) -> None:
    """The later one counts, and a warning names it."""
    later = changed(SLICE, endpoints=[endpoint("10.9.0.7", nodeName="a1"), endpoint("10.9.0.8", nodeName="b1")])
    flags = _flags(_files(tmp_path, yaml.safe_dump_all(CLUSTER), yaml.safe_dump(later)))
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "-o", "json", *flags).json
    assert [answer["data"] for answer in explained["answers"]] == ["10.9.0.7"]
    ran = topodns("check", "-o", "json", *flags)
    (finding,) = ran.json
    assert ran.status == DONE
    assert (finding["code"], finding["severity"], finding["kind"], finding["namespace"], finding["name"]) == (
        "ObjectTwice", "warning", "EndpointSlice", "shop", "web-1")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: a\nspec: {}\n", r"line [345]: "),
        ("c.yaml", "kind: Node\nmetadata:\n\tname: a\n", "line 3: "),
        ("c.yaml", "kind: Node\nmetadata:\n  managedFields:\n  - a: 1\n   b: [\n  name: x: y\n", "line [4-6]: "),
        ("c.yaml", "kind: Pod\nmetadata: *nowhere\n", "line 2: "),
        ("c.json", '{"kind": "Node",\n "metadata": {"name": "a"}\n', "line [23]: "),
        ("c.json", '{"kind": "Node"}}', "line 1: "),
        ("c.yaml", "kind: Node\n\x01", "YAML"),
        ("c.yaml", b"kind: Node\nname: \xff\xfe\n", "YAML|UTF-8"),
        ("c.json", b'{"kind": "\xff"}', "no object that topodns reads"),
        ("c.yaml", "[" * 100_000, "nested|line|list"),
        ("c.yaml", "a: " + "{b: " * 2_000, "nested|line"),
    ],
    ids=["yaml-line", "yaml-tab", "yaml-in-a-block-nobody-reads", "yaml-alias", "json-line", "json-rest",
         "control-character", "no-utf-8", "json-no-utf-8", "deep-flow-list",
         "deep-mapping"],
)  # fmt: skip
def test_unreadable_snapshot(topodns: Run, tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    """An unreadable file ends with status 2 and one line: file, place, what was found or expected."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    for command in (("check",), ("explain", NAME, "--client", "127.1.0.1")):
        ran = topodns(*command, "--snapshot", str(path))
        assert (ran.status, ran.out) == (WRONG, "")
        assert re.match(f"topodns: {re.escape(str(path))}: .*({message})", ran.err) and ran.err.count("\n") == 1


def test_half_a_surrogate_pair(topodns: Run, tmp_path: Path) -> None:
    """JSON can escape half a character; the error names its place, in an object or in the file."""
    (path,) = _files(tmp_path, '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "\\ud800"}}', suffix=".json")
    ran = topodns("check", "--snapshot", path)
    assert ran.status in (FAILED, WRONG) and path in ran.out + ran.err


BAD_OBJECTS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # what: (object, where it is said to be, field, words)
    "no-name": (changed(NODE_B, metadata__name=None), "Node", "metadata.name", "without a name"),
    "empty-name": (changed(POD, metadata__name=""), "Pod", "metadata.name", "without a name"),
    "no-metadata": (changed(POD, metadata=None), "Pod", "", "metadata"),
    "metadata-is-a-list": (changed(POD, metadata=[]), "Pod", "metadata", "object"),
    "name-is-a-number": (changed(POD, metadata__name=7), "Pod", "metadata.name", "int"),
    "service-name": (changed(SERVICE, metadata__name="web.2"), "Service shop/web.2", "metadata.name", "no DNS label"),
    "service-namespace": (
        changed(SERVICE, metadata__namespace="Shop"), "Service Shop/web", "metadata.namespace", "no DNS label"),
    "namespace-name": (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a b"}}, "Namespace a b", "metadata.name",
        "no DNS label"),
    "external-name": (
        changed(SERVICE, metadata__name="s2", spec={"type": "ExternalName", "externalName": "a..b"}),
        "Service shop/s2", "spec.externalName", "'a..b' is no domain name"),
    "node-address": (
        changed(NODE_B, metadata__name="b2", status__addresses=[{"type": "InternalIP", "address": "10.0.0.300"}]),
        "Node b2", "status.addresses[0].address", "'10.0.0.300' is no IP address"),
    "node-annotation": (
        changed(NODE_B, metadata__name="b2", metadata__annotations={"flannel.alpha.coreos.com/public-ip": "x"}),
        "Node b2", "metadata.annotations[flannel.alpha.coreos.com/public-ip]", "'x' is no IP address"),
    "node-pod-cidr": (
        changed(NODE_B, metadata__name="b2", spec__podCIDRs=["10.0.0.0/33"]),
        "Node b2", "spec.podCIDRs[0]", "'10.0.0.0/33' is no CIDR"),
    "pod-address": (
        changed(POD, metadata__name="p2", status__podIP="here", status__podIPs=None),
        "Pod shop/p2", "status.podIP", "'here' is no IP"),
    "service-address": (
        changed(SERVICE, metadata__name="s2", spec__clusterIP="10.96.0", spec__clusterIPs=None),
        "Service shop/s2", "spec.clusterIP", "'10.96.0' is no IP"),
    "service-ports": (
        changed(SERVICE, metadata__name="s2", spec__ports="80"), "Service shop/s2", "spec.ports", "array"),
    "endpoint-address": (
        changed(SLICE, metadata__name="web-2",
                endpoints=[{"addresses": ["10.9.0.1", "300.1.1.1"], "nodeName": "a1"}]),
        "EndpointSlice shop/web-2", "endpoints[0].addresses[1]", "'300.1.1.1' is no IP"),
    "endpoints": (
        changed(SLICE, metadata__name="web-2", endpoints={"addresses": []}),
        "EndpointSlice shop/web-2", "endpoints", "array"),
    "endpoint-port": (
        changed(SLICE, metadata__name="web-2", ports=[{"name": "big", "port": 65536}]),
        "EndpointSlice shop/web-2", "ports[0]", "65536"),
    "service-port": (
        changed(SERVICE, metadata__name="s2", spec__ports=[{"name": "big", "port": -1}]),
        "Service shop/s2", "ports[0]", "-1"),
    "invalid-constraint": (
        changed(SERVICE, metadata__name="s2", metadata__annotations={"topodns.io/topology-keys": "*,a"}),
        "Service shop/s2", "metadata.annotations[topodns.io/topology-keys]", "invalid constraint"),
    "invalid-field": (
        changed(SERVICE, metadata__name="s2", metadata__annotations={}, spec__topologyKeys=["a", "a"]),
        "Service shop/s2", "spec.topologyKeys", "'a' is listed twice"),
}  # fmt: skip


@pytest.mark.parametrize(("item", "where", "field", "words"), BAD_OBJECTS.values(), ids=BAD_OBJECTS)
def test_bad_object(topodns: Run, tmp_path: Path, item: dict[str, Any], where: str, field: str, words: str) -> None:
    """An error in one object names it and the field; topodns serves the other objects."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([item, *CLUSTER]))
    ran = topodns("check", "--snapshot", path)
    errors = [line for line in ran.out.splitlines() if line.startswith("error")]
    assert ran.status == FAILED and len(errors) == 1
    assert where in errors[0] and field in errors[0] and words in errors[0]
    assert errors[0].endswith("[InvalidTopologyKeys]" if "invalid constraint" in errors[0] else "[UnreadableObject]")
    explained = topodns("explain", NAME, "--client", "127.1.0.9", "--snapshot", path, "-o", "json")
    assert explained.status == DONE
    assert [answer["data"] for answer in explained.json["answers"]] == ["10.9.0.1"]


def test_bad_item_of_a_list(topodns: Run, tmp_path: Path) -> None:
    """An item that is not an object is named by its position in the list."""
    (path,) = _files(tmp_path, yaml.safe_dump({**LIST, "items": [*CLUSTER, "words", {"kind": 7}]}))
    ran = topodns("check", "--snapshot", path, "-o", "json")
    assert ran.status == FAILED
    assert [finding["name"] for finding in ran.json] == [f"items[{len(CLUSTER) + more}]" for more in (0, 1)]


ODDITIES: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    # what: (objects beside the cluster, code, kind and name, words)
    "node-without-zone": ([changed(NODE_B, metadata__labels={})], "NodeWithoutZone", "Node b1", "node without zone"),
    "endpoint-without-location": (
        [changed(SLICE, metadata__name="web-2", endpoints=[{"addresses": ["10.9.0.5"]}])],
        "EndpointWithoutLocation", "EndpointSlice shop/web-2", "endpoint without location"),
    "endpoint-on-an-unknown-node": (
        [changed(SLICE, metadata__name="web-2", endpoints=[{"addresses": ["10.9.0.5"], "nodeName": "gone"}])],
        "EndpointWithoutLocation", "EndpointSlice shop/web-2", "gone"),
    "slice-without-a-service": (
        [changed(SLICE, metadata__name="web-2", metadata__labels={"kubernetes.io/service-name": "none"})],
        "SliceWithoutService", "EndpointSlice shop/web-2", "shop/none"),
    "slice-without-a-label": ([changed(SLICE, metadata__name="web-2", metadata__labels={})],
                              "SliceWithoutService", "EndpointSlice shop/web-2", "without a Service"),
    "pod-cidr-that-lies": (
        [changed(NODE_B, spec={"podCIDR": "10.9.0.0/24"})], "PodCidrDistrusted", "Node b1", "10.9.0.0/24"),
    "pod-cidr-that-is-shared": (
        [changed(NODE_A, spec={"podCIDR": "10.8.0.0/24"}), changed(NODE_B, spec={"podCIDR": "10.8.0.0/24"})],
        "PodCidrDistrusted", "Node b1", "10.8.0.0/24"),
    "constraint-without-effect": (
        [changed(SERVICE, metadata__name="s2", spec__clusterIPs=["10.96.0.7"])],
        "ConstraintWithoutEffect", "Service shop/s2", "not headless"),
    "unknown-annotation": (
        [changed(SERVICE, metadata__annotations__topodns=None, metadata__name="s2",
                 metadata__annotations={"topodns.io/topology-key": "a"})],
        "UnknownAnnotation", "Service shop/s2", "topodns.io/topology-keys"),
    "min-endpoints": (
        [changed(SERVICE, metadata__name="s2", metadata__annotations={"topodns.io/min-endpoints": "many"})],
        "InvalidMinEndpoints", "Service shop/s2", "'many' counts as 1"),
}  # fmt: skip


@pytest.mark.parametrize(("others", "code", "where", "words"), ODDITIES.values(), ids=ODDITIES)
def test_warning(topodns: Run, tmp_path: Path, others: list[dict[str, Any]], code: str, where: str, words: str) -> None:
    """What is allowed but probably not meant is a warning that names the object; the status stays 0."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER, *others]))
    ran = topodns("check", "--snapshot", path)
    *lines, read, _ = [line for line in ran.out.splitlines() if "[ObjectTwice]" not in line]
    assert read.startswith("read 1 file: ")
    assert ran.status == DONE and lines and all(line.startswith("warning") for line in lines)
    assert [line for line in lines if where in line and words in line and line.endswith(f" [{code}]")]
    rows = topodns("check", "--snapshot", path, "-o", "json").json
    found = [finding for finding in rows if finding["code"] != "ObjectTwice"]
    assert len(found) == len(lines)
    for finding in found:
        assert list(finding) == ["code", "severity", "kind", "namespace", "name", "field", "message", "expected",
                                 "line", "file"]  # fmt: skip
        assert finding["severity"] == "warning" and finding["field"]
    assert code in {finding["code"] for finding in found}


def test_check_of_a_good_cluster(topodns: Run, cluster: str) -> None:
    """Without findings, ``check`` prints what it has read, and the numbers, and ends with status 0."""
    ran = topodns("check", "--snapshot", cluster)
    read = "read 1 file: 1 namespace, 3 nodes, 1 pod, 2 Services, 2 EndpointSlices"
    assert (ran.status, ran.out, ran.err) == (DONE, f"{read}\n0 errors, 0 warnings\n", "")


@pytest.mark.parametrize(
    ("others", "flags", "status"),
    [
        ([], ("--fail-on", "warning"), DONE),
        ([changed(NODE_B, metadata__labels={})], (), DONE),
        ([changed(NODE_B, metadata__labels={})], ("--fail-on", "error"), DONE),
        ([changed(NODE_B, metadata__labels={})], ("--fail-on=warning", "-o", "json"), FAILED),
        ([changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})], (), FAILED),
        (
            [changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})],
            ("--fail-on", "warning"),
            FAILED,
        ),
        ([changed(SERVICE, spec__topologyKeys=["a"])], ("--fail-on", "warning"), DONE),
        ([], ("--fail-on", "info"), WRONG),
    ],
    ids=[
        "nothing",
        "warning-by-default",
        "warning",
        "warning-fails",
        "error-by-default",
        "error",
        "info",
        "no-severity",
    ],
)
def test_what_fails(
    topodns: Run, tmp_path: Path, others: list[dict[str, Any]], flags: tuple[str, ...], status: int
) -> None:
    """``--fail-on`` says from which severity on the status is 1; an info never fails."""
    names = {(item["kind"], item["metadata"]["name"]) for item in others}
    rest = [item for item in CLUSTER if (item["kind"], item["metadata"]["name"]) not in names]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*rest, *others]))
    assert topodns("check", "--snapshot", path, *flags).status == status


def test_what_fails_by_environment_or_file(topodns: Run, tmp_path: Path) -> None:
    """``--fail-on`` is a setting like others: a pipeline can have it in its environment or its file."""
    rest = [item for item in CLUSTER if item["metadata"]["name"] != NODE_B["metadata"]["name"]]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*rest, changed(NODE_B, metadata__labels={})]))
    config = tmp_path / "config.yaml"
    config.write_text("fail-on: warning\ncandidates: true\n")
    check = ("check", "--snapshot", path)
    assert topodns(*check, TOPODNS_FAIL_ON="warning").status == FAILED
    assert topodns(*check, "--config", str(config)).status == FAILED
    assert topodns(*check, "--config", str(config), TOPODNS_FAIL_ON="error").status == DONE
    explain = ("explain", NAME, "--client", "10.0.0.1", "--snapshot", path)
    assert "\ncandidates  CHOSEN" in topodns(*explain, "--config", str(config)).out
    assert "\ncandidates  CHOSEN" in topodns(*explain, TOPODNS_CANDIDATES="on").out


@pytest.mark.parametrize(
    "flags",
    [
        ("-n", "lab"),
        ("-nlab",),
        ("--namespace", "lab"),
        ("--serve-namespace", "lab"),
        ("-n", "none", "--namespace=lab"),
    ],
    ids=" ".join,
)
def test_check_of_a_namespace(topodns: Run, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """As kubectl, ``check`` then looks at it alone: findings about other namespaces are left out."""
    wrong = changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"}, metadata__name="s2")
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER, wrong, changed(wrong, metadata__namespace="lab")]))
    found = topodns("check", "--snapshot", path, "-o", "json", *flags)
    assert (found.status, [finding["namespace"] for finding in found.json]) == (FAILED, ["lab"])
    assert len(topodns("check", "--snapshot", path, "-o", "json").json) == 2


@pytest.mark.parametrize("left_out", [(), ("Namespace",)], ids=["namespaces", "none-in-the-dump"])
def test_check_of_an_unknown_namespace(topodns: Run, tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """``check`` looks at nothing there, so it says so, and suggests the nearest; known ones need no word."""
    (path,) = _files(tmp_path, yaml.safe_dump_all([item for item in CLUSTER if item["kind"] not in left_out]))
    ran = topodns("check", "--snapshot", path, "-n", "shpo", "-n", "shop")
    assert (ran.status, ran.err) == (DONE, "topodns: --namespace: no namespace shpo, did you mean shop?\n")


def test_subnets_that_check_proposes(topodns: Run, tmp_path: Path) -> None:
    """In a cluster without pod CIDRs, the text proposes flags by which a pod is located that nobody has seen yet."""
    nodes = [node("a1", {ZONE: "a"}, addresses=["10.0.1.1"]), node("b1", {ZONE: "b"}, addresses=["10.0.2.1"])]
    pods = [pod("pa", ["10.0.1.7"], "a1"), pod("pb", ["10.0.2.7"], "b1")]
    (path,) = _files(tmp_path, yaml.safe_dump_all([*nodes, *pods, *CLUSTER[-2:]]))
    ran = topodns("check", "--snapshot", path)
    *_, first, second, read, last = ran.out.splitlines()
    assert (ran.status, last) == (DONE, "0 errors, 0 warnings")
    flags = [*first.split(), *second.split()]
    assert flags == ["--subnet", f"10.0.1.0/24={ZONE}=a", "--subnet", f"10.0.2.0/24={ZONE}=b"]
    assert topodns("check", "--snapshot", path, "-o", "json").json == []
    assert topodns("check", "--snapshot", path, *flags).out == f"{read}\n0 errors, 0 warnings\n"
    for address, zone in (("10.0.1.99", "a"), ("10.0.2.99", "b")):
        client = topodns("explain", NAME, "--client", address, "-o", "json", "--snapshot", path, *flags).json["client"]
        assert client["labels"] == {ZONE: zone}


# --- explain --------------------------------------------------------------------------------------------------------


def test_explain_as_json(topodns: Run, cluster: str) -> None:
    """The Decision, field by field."""
    explained = topodns("explain", NAME, "SRV", "--client", "127.1.0.9", "-o", "json", "--snapshot", cluster).json
    expected = {
        "question": {"name": f"{NAME}.", "type": "SRV"},
        "client": {
            "address": "127.1.0.9",
            "located_by": "pod",
            "node": "a1",
            "labels": {"kubernetes.io/hostname": "a1", "topology.kubernetes.io/zone": "a"},
        },
        "service": {"namespace": "shop", "name": "web"},
        "constraint": {
            "source": "annotation",
            "keys": ["kubernetes.io/hostname", "topology.kubernetes.io/zone"],
            "valid": True,
            "error": None,
        },
        "outcome": "nearest",
        "rcode": "NOERROR",
        "extended_error": None,
    }
    for field, value in expected.items():
        found = explained[field]
        assert {key: found[key] for key in value} == value if isinstance(value, dict) else found == value
    assert explained["steps"] == [{"key": "kubernetes.io/hostname", "value": "a1", "matched": 1}]
    (answer,) = explained["answers"]
    assert answer == {"name": f"{NAME}.", "type": "SRV", "ttl": 5, "data": f"0 100 80 10-9-0-1.{NAME}."}


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ((NAME, "--client", "127.1.0.9"), ["question", f"{NAME}. A", "pod shop/client", "a1", "shop/web",
                                           "annotation", "kubernetes.io/hostname=a1", "nearest", "10.9.0.1"]),
        ((NAME, "--client", "127.1.0.2"), ["node b1", "kubernetes.io/hostname=b1", "topology.kubernetes.io/zone=b",
                                           "0 endpoints", "unmet", "NOERROR", "extended error 0"]),
        ((NAME, "--client", "9.9.9.9"), ["located by unknown", "unmet"]),
        (("none.shop.svc.cluster.local", "--client", "127.1.0.9"), ["NXDOMAIN", "none"]),
        (("example.com", "--client", "127.1.0.9"), ["REFUSED"]),
        (("cluster.local", "SOA", "--client", "127.1.0.9"), ["SOA", "ns.dns.cluster.local. hostmaster.cluster.local."]),
        ((NAME, "aaaa", "--client", "127.1.0.0/24"), ["127.1.0.0/24", "AAAA", "NOERROR"]),
    ],
    ids=["nearest", "unmet", "unknown", "nxdomain", "refused", "soa", "block"],
)  # fmt: skip
def test_explain_as_text(topodns: Run, cluster: str, arguments: tuple[str, ...], facts: list[str]) -> None:
    """The text says how the client is located, the constraint, the endpoints and the answer; status 0."""
    ran = topodns("explain", *arguments, "--snapshot", cluster)
    assert (ran.status, ran.err) == (DONE, "")
    assert [fact for fact in facts if fact not in ran.out] == []
    columns = {re.match(r"(\S+)?\s*", line).end() for line in ran.out.splitlines()}  # type: ignore[union-attr]
    assert len(columns) == 1, "values stand below each other"
    assert "\033" not in ran.out


def test_explain_says_why_a_constraint_counts_for_nothing(topodns: Run, tmp_path: Path) -> None:
    """An invalid constraint, and one on a Service with a ClusterIP, are shown with the reason."""
    invalid = changed(SERVICE, metadata__annotations={"topodns.io/topology-keys": "*,a"})
    virtual = changed(SERVICE, metadata__name="api", spec__clusterIPs=["10.96.0.7"])
    (path,) = _files(tmp_path, yaml.safe_dump_all([*CLUSTER[:4], SLICE, invalid, virtual]))
    explained = topodns("explain", NAME, "--client", "127.1.0.2", "--snapshot", path, "-o", "json").json
    assert (explained["constraint"]["valid"], explained["outcome"]) == (False, "unconstrained")
    assert explained["constraint"]["error"]
    assert "INVALID" in topodns("explain", NAME, "--client", "127.1.0.2", "--snapshot", path).out.upper()
    text = topodns("explain", "api.shop.svc.cluster.local", "--client", "127.1.0.2", "--snapshot", path).out
    assert "not headless" in text and "10.96.0.7" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NAME, "--client", "nobody"), "--client: 'nobody'"),
        ((NAME, "--client", "10.0.0.0/33"), "--client: '10.0.0.0/33'"),
        ((NAME, "BOGUS", "--client", "10.0.0.1"), "'BOGUS' is not a record type"),
        (("svc", "memcached", "--client", "10.0.0.1"), "expected svc/memcached as NAME, or a record type"),
        (("a..b", "--client", "10.0.0.1"), "'a..b' is not a domain name"),
        (("é.test", "--client", "10.0.0.1"), "ASCII"),
    ],
    ids=["client", "prefix", "type", "two-words", "name", "no-ascii"],
)
def test_explain_of_nonsense(topodns: Run, cluster: str, arguments: tuple[str, ...], message: str) -> None:
    """A question that cannot be asked ends with status 2 and one line."""
    ran = topodns("explain", *arguments, "--snapshot", cluster)
    assert (ran.status, ran.out) == (WRONG, "")
    assert ran.err.startswith("topodns: ") and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_colour_only_on_a_terminal(cluster: str, env: dict[str, str], coloured: bool) -> None:
    """Only a terminal that understands them gets escape codes."""
    ours, theirs = pty.openpty()
    printed = b""
    try:
        command = [*COMMAND, "explain", NAME, "--client", "127.1.0.9", "--snapshot", cluster]
        try:
            ran = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                 env=environment({"TERM": "xterm", **env}), timeout=PATIENCE, check=False)  # fmt: skip
        finally:
            os.close(theirs)
        with suppress(OSError):  # the end, to which it is read: a terminal hands on what was printed piece by piece
            while True:
                printed += os.read(ours, 65536)
    finally:
        os.close(ours)
    assert (ran.returncode, ran.stderr) == (DONE, b"")
    assert (b"\033[" in printed) == coloured and b"10.9.0.1" in printed


# --- The rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["topodns", "kubectl-topodns"])
def test_version_by_every_name(program: str) -> None:
    """Both commands print topodns' version, Python's and the libraries'."""
    path = Path(sys.executable).parent / program
    ran = subprocess.run([path, "version"], capture_output=True, text=True, env=environment(), check=False)
    assert (ran.returncode, ran.stderr) == (DONE, "")
    lines = ran.stdout.splitlines()
    assert lines[0] == f"topodns {__version__}" and lines[1].startswith("python 3.")
    assert any(line.startswith("dnslib ") for line in lines)


def test_help_of_the_program(topodns: Run) -> None:
    """``--help`` lists the commands."""
    ran = topodns("--help")
    assert ran.status == DONE and all(word in ran.out for word in ("serve", "explain", "check", "version"))


@pytest.mark.parametrize("command", ["serve", "explain", "check"])
def test_help_of_a_command(topodns: Run, command: str) -> None:
    """Flags are grouped by theme, each with its default and its unit."""
    ran = topodns(command, "--help")
    text = re.sub(r"\s+", " ", ran.out)
    assert ran.status == DONE
    for theme in ("Cluster to read:", "Names and answers:", "Clients and forwarders:"):
        assert theme in text
    for flag in ("--snapshot PATH", "--zone NAME", "--ttl SECONDS", "--config FILE"):
        assert flag in text
    assert "default: 5)" in text and "(default: cluster.local, " in text
    assert ("--listen" in text) == (command == "serve")


def test_no_command(topodns: Run) -> None:
    """Without a command, the status is 2 and the help lists the commands."""
    ran = topodns()
    assert ran.status == WRONG and "serve" in ran.out + ran.err


def test_serve_beside_bad_objects(serve: Callable[..., Server]) -> None:
    """An error in one object is logged with its place, and everything else is served."""
    item, where, field, words = BAD_OBJECTS["endpoint-address"]
    server = serve([item, *CLUSTER, *OTHERS])
    line = server.wait_for(f"ERROR .*{re.escape(where)}.*{re.escape(field)}").string
    assert words in line
    reply = server.ask(dns.message.make_query(NAME, "A"), source="127.1.0.9")
    assert [str(rdata) for rrset in reply.answer for rdata in rrset] == ["10.9.0.1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("kind: Node\nmetadata: {name: [\n", "line ")],
    ids=["missing", "broken"],
)
def test_serve_without_a_first_view(tmp_path: Path, content: str | None, message: str) -> None:
    """A server that cannot read its first snapshot ends with status 2 and says why."""
    path = tmp_path / "cluster.yaml"
    if content is not None:
        path.write_text(content)
    ran = run("serve", "--listen", "127.0.0.1:0", "--http", "off", "--snapshot", str(path))
    assert ran.returncode == WRONG and "Traceback" not in ran.stderr and "\nready\n" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith(f"topodns: {path}: ") and message in ran.stderr


@pytest.mark.parametrize(
    ("flag", "kind"),
    [("listen", socket.SOCK_DGRAM), ("listen", socket.SOCK_STREAM), ("http", socket.SOCK_STREAM)],
    ids=["udp", "tcp", "http"],
)
def test_port_in_use(cluster: str, kind: socket.SocketKind, flag: str) -> None:
    """If a port is in use, the server ends with status 1 before it answers anything."""
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"listen": "127.0.0.1:0", "http": "off", flag: address}
        ran = run("serve", "--snapshot", cluster, *(f"--{name}={value}" for name, value in flags.items()))
    assert ran.returncode == FAILED and "Traceback" not in ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith(f"topodns: --{flag}") and address in last and "in use" in last


def test_address_that_is_not_ours(cluster: str) -> None:
    """An address of another machine ends the server with status 1; the error names it."""
    ran = run("serve", "--snapshot", cluster, "--http", "off", "--listen", "192.0.2.1:0")
    assert ran.returncode == FAILED and "192.0.2.1" in ran.stderr and "Traceback" not in ran.stderr


def test_standard_input_is_served(tmp_path: Path) -> None:
    """``serve --snapshot -`` answers from its standard input, also after SIGHUP."""
    process = Process(["serve", "--snapshot", "-", "--listen", "127.0.0.1:0", "--http", "off"], stdin=json.dumps(LIST))
    try:
        process.wait_for(r"^ready$")
        port = int(process.wait_for(r"^listening udp .*:(\d+)$")[1])
        reply = dns.query.udp(dns.message.make_query(NAME, "A"), "127.0.0.1", PATIENCE, port, source="127.1.0.9")
        assert len(reply.answer) == 1
    finally:
        assert process.end() == DONE


@pytest.mark.parametrize(
    "order",
    [
        ("{name}", "{type}", "{client}", "{snapshot}"),
        ("{name}", "{client}", "{type}", "{snapshot}"),
        ("{client}", "{name}", "{snapshot}", "{type}"),
        ("{snapshot}", "{client}", "{name}", "{type}"),
    ],
    ids=" ".join,
)
def test_flags_may_stand_anywhere(topodns: Run, cluster: str, order: tuple[str, ...]) -> None:
    """Flags may come before, between or after NAME and TYPE."""
    words = {
        "{name}": [NAME],
        "{type}": ["SRV"],
        "{client}": ["--client", "127.1.0.9"],
        "{snapshot}": ["--snapshot", cluster],
    }
    ran = topodns("explain", "-o", "json", *(word for part in order for word in words[part]))
    assert (ran.status, ran.json["question"]["type"]) == (DONE, "SRV")


@pytest.mark.parametrize(
    "text",
    ['{"kind": "List"}', "kind: List\napiVersion: v1\nitems: []\n"],
    ids=["list", "empty-list"],
)
def test_what_holds_no_object_is_no_cluster(topodns: Run, tmp_path: Path, text: str) -> None:
    """A file without any Kubernetes object is an error, not an empty cluster."""
    ran = topodns("check", "--snapshot", *_files(tmp_path, text))
    assert ran.status == WRONG and "no object that topodns reads" in ran.err


def test_huge_number_in_an_unreadable_object(topodns: Run, tmp_path: Path) -> None:
    """An object whose name cannot be read is skipped like any other unreadable one."""
    text = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1, "n": %s}}' % ("9" * 5000)
    ran = topodns("check", "--snapshot", *_files(tmp_path, text, suffix=".json"))
    assert ran.status == FAILED and "Pod: metadata.name" in ran.out
