# SPDX-License-Identifier: Apache-2.0

"""Settings: by flag, environment variable and file; and what a command says of wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from dnsserver.cli.dispatch import parser_of
from dnsserver.cli.settings_flags import given_flags
from dnsserver.settings.reading import InvalidSetting, read_settings
from tests.kit.commands_in_process import Run
from tests.kit.in_memory import settings_of
from tests.kit.this_machine import ROOT

DONE, WRONG = 0, 2
NAME = "memcached.shop.svc.cluster.local"


@pytest.fixture
def cluster() -> str:
    """Return the path of a small cluster."""
    return str(ROOT / "examples" / "cluster.yaml")


BAD_SETTINGS = [
    ("ttl", "3601", "from 0 to 3600"),
    ("ttl", "5s", "whole number"),
    ("zone", "", "domain name"),
    ("zone", "a" * 64 + ".local", "domain name"),
    ("zone", "in-addr.arpa", "only reverse zones"),
    ("trusted-forwarder", "10.0.0.1/24", r"'10.0.0.1/24' has host bits set.* 10\.0\.0\.0/24,"),
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
    ("client-option", "65535", "65001 to 65534"),
    ("client-option", "0xfde8", "'0xfde8'.*65001 to 65534"),
    ("client-option", "0xffff", "'0xffff'.*65001 to 65534"),
    ("client-option", "0x", "65001 to 65534"),
    ("client-option", "fe00", "65001 to 65534"),
    ("client-option", "on", "65001 to 65534"),
    ("serve-namespace", "shop/web", "namespace"),
    ("serve-namespace", "Shop", "namespace"),
    ("namespace-selector", "team in a", "label selector"),
    ("service-selector", "-team", "label key.*label selector"),
    ("pods", "all", "disabled, insecure or verified"),
    ("ignore-empty-service", "1", "on or off"),
    ("no-endpoints", "maybe", "on or off"),
    ("zonal", "a/b/c", "a label key"),
    ("zonal", "on", "a label key"),
    ("upstream", "example.org", "ADDRESS"),
    ("upstream", "192.0.2.1:", "ADDRESS"),
    ("upstream", "[::1]:65536", "ADDRESS"),
    ("default-topology-keys", "cluster.local", "no valid label key"),
    ("default-topology-keys", "cluster.local=*,a", "only the last key"),
    ("default-topology-keys", "=a", "ZONE=KEY"),
    ("default-topology-keys", "topo.local=a,*", "topo.local is not served, expected one of --zone: cluster.local"),
    ("traffic-distribution", "PreferClose", "honor or ignore"),
    ("log-level", "loud", "debug"),
    ("log-format", "xml", "text or json"),
    ("snapshot", "", "file"),
    ("proxy-protocol", "v2", "on or off"),
    ("listen", "127.0.0.1", "PORT"),
    ("listen", "::1:53", "bracket"),
    ("max-connections", "0", "from 1"),
    ("tcp-idle-timeout", "0", "from 1"),
    ("max-queries-in-flight", "0", "from 1"),
    ("nsid", "n" * 129, "at most 128 octets"),
    ("stale-after", "0", "from 1 to 86400"),
    ("state-dir", "", "a folder"),
    ("state-max-age", "-1", "from 1"),
    ("lease", "topodns", "NAMESPACE/NAME"),
    ("lease", "a/b/c", "NAMESPACE/NAME"),
    ("labels", "", "a pattern"),
]


@pytest.mark.parametrize(("name", "value", "expected"), BAD_SETTINGS)
def test_bad_setting(name: str, value: str, expected: str) -> None:
    """The message says where a wrong setting is, what was found and what was expected."""
    with pytest.raises(InvalidSetting, match=rf"^flags: {name}: .*({expected})"):
        settings_of({name: value})


@pytest.mark.parametrize("way", ["flag", "environment", "file"])
def test_where_a_bad_setting_is(topodns: Run, tmp_path: Path, way: str) -> None:
    """It ends the command with status 2 and one line, wherever it is."""
    config = tmp_path / "settings.yaml"
    config.write_text("ttl: 5s\n")
    ran, where = {
        "flag": lambda: (topodns("check", "--ttl=5s"), "--ttl"),
        "environment": lambda: (topodns("check", TOPODNS_TTL="5s"), "TOPODNS_TTL"),
        "file": lambda: (topodns("check", "--config", str(config)), f"{config}: ttl"),
    }[way]()
    assert ran == (WRONG, "", f"topodns: {where}: '5s', expected a whole number of seconds from 0 to 3600\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "--snapshop", "x"), "--snapshop: unknown flag, did you mean --snapshot?"),
        (("check", "--tll=5"), "--tll: unknown flag, did you mean --ttl?"),
        (("tail", "more"), "'more' found, expected no more arguments after tail"),
        (("check", "--default-topology-keys=cluster.local=a", "--default-topology-keys=cluster.local=b"),
         "--default-topology-keys: cluster.local is given twice"),
        (("serve", "--no-endpoints", "on"), "--no-endpoints: on found behind it, expected --no-endpoints=on"),
        (("serve", "--console", "off"), "--console: off found behind it, expected --console=off"),
        (("webhook", "--tls-cert=x"), "--tls-cert: given without --tls-key, expected both or neither"),
        (("webhook", "--tls-key=x"), "--tls-key: given without --tls-cert, expected both or neither"),
        (("webhook", "--tls-cert=x", "--tls-key=y", "--tls-secret=a/b"),
         "--tls-secret: given together with --tls-cert, expected only one of them"),
        (("webhook", "--tls-cert=x", "--tls-key=y", "--webhook-configuration=z"),
         "--webhook-configuration: given together with --tls-cert, expected only one of them"),
        (("webhook", "--tls-secret=A/b"), "--tls-secret: 'A/b', expected NAMESPACE/NAME"),
        (("webhook", "--webhook-configuration=a b"), "--webhook-configuration: 'a b', expected the name of an object"),
        (("webhook",), "neither --tls-cert with --tls-key nor --tls-secret given"),
        (("webhook", "--tls-cert=/none/crt", "--tls-key=/none/key"),
         "/none/crt: No such file or directory, expected a file in PEM"),
        (("webhook", "--tls-secret=a/b"), "/nonexistent/.kube/config: no such file, expected a kubeconfig"),
        (("webhook", "--install-ca"), "nor --tls-secret given, expected one of them outside a pod"),
        (("webhook", "--install-ca", "--tls-cert=x", "--tls-key=y"),
         "--install-ca: given together with --tls-cert, expected only one of them"),
        (("webhook", "--snapshot=x"),
         "--snapshot: a flag of serve, explain, check, simulate, console and dump, not of webhook"),
        (("serve", "--picture=x"), "--picture: a flag of simulate, not of serve"),
    ],
    ids=["misspelt", "misspelt-with-value", "too-many", "two-defaults", "value-of-a-switch", "off-of-a-switch",
         "certificate-alone", "key-alone", "two-certificates",
         "whose-configuration", "secret-in-capitals", "configuration-with-a-space",
         "no-certificate", "certificate-not-there", "webhook-without-cluster", "install-nothing", "install-for-another",
         "of-others", "of-one-other"],
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


@pytest.mark.parametrize(
    ("text", "code"), [("65001", 65001), ("65534", 65534), ("0xfde9", 65001), ("0XfFFE", 65534), ("off", None)]
)
def test_an_option_code_may_be_hexadecimal(text: str, code: int | None) -> None:
    """As in Corefiles; YAML reads some of these as numbers by itself."""
    assert settings_of({"client-option": text}).client_option == code
    assert settings_of({"client-option": yaml.safe_load(text)}).client_option == code


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"), ("::ffff:0:0/96", "0.0.0.0/0", "0.0.0.0/0"),
     ("10.1.2.3", "10.1.2.3/32", "10.1.2.3/32"), ("2001:db8::/32", "2001:DB8:0::/32", "2001:db8::/32")],
)  # fmt: skip
def test_a_subnet_stands_once(first: str, second: str, named: str) -> None:
    """A subnet that is configured twice is an error, even with the same labels."""
    values = [f"{subnet}=topology.kubernetes.io/zone=a" for subnet in (first, "192.0.2.0/24", second)]
    with pytest.raises(InvalidSetting, match=f"^flags: subnet: {named} is given twice"):
        settings_of({"subnet": values})


EVERYBODY = "trusts every sender: anyone can claim any client address, and a client that queries topodns without"
WARNINGS = [
    # flags, environment, the warning
    (
        ("--trusted-forwarder=10.0.0.0/8", "--trusted-forwarder=0.0.0.0/0"),
        {},
        f"--trusted-forwarder: 0.0.0.0/0 {EVERYBODY}",
    ),
    (("--trusted-forwarder=::/0",), {}, f"--trusted-forwarder: ::/0 {EVERYBODY}"),
    (("--trusted-forwarder=::ffff:0.0.0.0/96",), {}, f"--trusted-forwarder: 0.0.0.0/0 {EVERYBODY}"),
    (
        ("--client-source", "pods"),
        {},
        "--client-source: with pods alone, topodns knows the node of a client, but not the node's labels",
    ),
    ((), {"TOPODNS_TLL": "5"}, "TOPODNS_TLL: unknown environment variable, did you mean TOPODNS_TTL?"),
]


@pytest.mark.parametrize(("flags", "variables", "warning"), WARNINGS, ids=[row[2][:40] for row in WARNINGS])
def test_what_is_allowed_but_hardly_meant(
    topodns: Run, cluster: str, flags: tuple[str, ...], variables: dict[str, str], warning: str
) -> None:
    """Is a warning, and the command goes on."""
    ran = topodns("check", "--snapshot", cluster, *flags, **variables)
    (line,) = [line for line in ran.err.splitlines() if " WARNING " in line]
    assert ran.status == DONE and f" WARNING {warning}" in line


def test_service_links_are_passed_over() -> None:
    """topodns ignores the variables that Kubernetes sets for a Service called topodns."""
    names = ("SERVICE_HOST", "SERVICE_PORT_DNS_TCP", "PORT", "PORT_53_UDP_ADDR")
    variables = {f"TOPODNS_{name}": "tcp://10.96.0.9:53" for name in names}
    assert read_settings(flags={}, environment=variables, file=None)[1] == []


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
    command = ("explain", NAME, "--client", "10.244.2.16", "-o", "json")

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
        return str(topodns("explain", *flags, "--client", "10.244.2.16", "-o", "json", **env).json["rcode"])

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


def test_lists_in_every_place() -> None:
    """A repeatable flag is a list in a file, and separated by white space in the environment."""
    nowhere = {"flags": {}, "environment": {}, "file": None}
    for way in (
        {"flags": {"zone": ["one.test", "two.test."]}},
        {"environment": {"TOPODNS_ZONE": "one.test  two.test"}},
        {"file": ("FILE", {"zone": ["one.test", "two.test"]})},
    ):
        settings, warnings = read_settings(**{**nowhere, **way})  # type: ignore[arg-type]
        assert ([zone.name for zone in settings.zone], warnings) == (["one.test", "two.test"], [])
