# SPDX-License-Identifier: Apache-2.0

"""``topodns corefile``: what it prints for each forwarder, and what it finds in a Corefile."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnsserver.cli.report import explanations
from dnsserver.settings.values import ListenAddress, parse_upstream
from dnsserver.tools.corefile import stub_blocks
from dnsserver.tools.corefile.caddyfile import Unparsable, parse
from dnsserver.tools.corefile.checks import check, fixed
from dnsserver.tools.corefile.codes import CorefileCode
from dnsserver.tools.corefile.stub_zones import read
from tests.kit.commands_in_process import Ran, Run
from tests.kit.corefiles import Case, corefiles

DONE, FAILED, WRONG = 0, 1, 2
TO = [parse_upstream("10.96.0.53")]
PRINTED, FOUND, CLEAN = map(corefiles, ("printed", "found", "clean"))
NOT_READ = {**corefiles("unparsable"), **corefiles("whole_config_maps")}


def checked(topodns: Run, folder: Path, text: str, *flags: str) -> Ran:
    """Check a Corefile, which is called F in what is printed."""
    (path := folder / "Corefile").write_text(text)
    status, out, err = topodns("corefile", "--check", str(path), *flags)
    return Ran(status, out.replace(str(path), "F"), err.replace(str(path), "F"))


# --- What is printed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PRINTED.values(), ids=PRINTED)
def test_printed(topodns: Run, case: Case) -> None:
    """Standard output holds the lines for the program's configuration, and nothing else."""
    assert topodns("corefile", *case.flags) == (DONE, case.printed, "")


FAILING_OPEN = ["policy sequential", "failover SERVFAIL REFUSED", "max_fails 1", "health_check 100ms"]
TIMED = "read_timeout 400ms"


@pytest.mark.parametrize(
    ("flags", "head", "options"),
    [
        pytest.param((), "1.14.5", [TIMED], id="newest"),
        pytest.param(("--fail-open",), "1.14.5", [*FAILING_OPEN, TIMED], id="newest-failing-open"),
        pytest.param(("--coredns-version=1.14.5",), "1.14.5", [TIMED], id="the-first-that-times-reads"),
        pytest.param(("--coredns-version=1.14.4",), "1.11.4", [], id="the-last-that-does-not"),
        pytest.param(("--fail-open", "--coredns-version=v1.13"), "1.13", FAILING_OPEN, id="failing-open"),
    ],
)
def test_printed_for_a_version(topodns: Run, flags: Sequence[str], head: str, options: Sequence[str]) -> None:
    """The block has what that version of CoreDNS knows, and its first line says from which on."""
    printed = topodns("corefile", "--for=coredns", "--to=10.96.0.53", "--coredns-version=v1.14.7-eks.1", *flags).out
    assert printed.startswith(f"# CoreDNS {head} or later\ncluster.local:53 {{\n")
    (forward,) = (directive for directive in parse(printed)[0].directives if directive.name == "forward")
    assert [" ".join((option.name, *option.arguments)) for option in forward.body] == options


def test_many_zones(topodns: Run) -> None:
    """The line that names all of them is whole, however long it is: a forwarder reads it."""
    zones = "--zone=10.0.0.0/9", "--zone=172.0.0.0/9"
    (block,) = parse(topodns("corefile", "--for", "coredns", "--to", "10.96.0.53", *zones).out)
    assert len(block.keys) == 256 and block.keys[-1] == "127.172.in-addr.arpa:53"


@pytest.mark.parametrize(
    ("zone", "domain"),
    [
        ("cluster.local", "cluster.local"),
        ("shop.svc.cluster.local", "cluster.local"),
        ("web.shop.svc.k8s.example", "k8s.example"),
        ("svc.svc.cluster.local", "cluster.local"),
        ("topo.local", "topo.local"),
        ("svc", "svc"),
        ("a.svc", "a.svc"),
    ],
)
def test_the_domain_of_a_zone(zone: str, domain: str) -> None:
    """``kubernetes`` in the block serves the whole cluster domain, of which the zone may be a part."""
    assert stub_blocks.cluster_domain(zone) == domain


@pytest.mark.parametrize("forwarder", stub_blocks.FORWARDERS)
def test_a_whole_reverse_zone_is_printed_with_a_remark(forwarder: str) -> None:
    """It is what was asked for, but not what one should want; the remark is a comment of the program."""
    first, *others = stub_blocks.stub_block(forwarder, TO, ["in-addr.arpa"]).splitlines()
    assert first == (
        f"{'--' if forwarder == 'dnsdist' else '#'} in-addr.arpa: addresses outside the cluster lose their names. "
        "Better name its networks: --zone 10.96.0.0/12"
    )
    assert "in-addr.arpa" in "".join(others)
    assert "outside" not in stub_blocks.stub_block(forwarder, TO, ["10.in-addr.arpa"])


labels = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,8}[a-z0-9_])?", fullmatch=True)
names = st.builds("{}.{}".format, st.lists(labels, max_size=3).map(".".join), st.sampled_from(["x", "0a", "a-b"])).map(
    lambda name: name.lstrip(".")
)
places = st.builds(ListenAddress, st.binary(min_size=4, max_size=4), st.integers(1, 65535))


@given(st.lists(places, min_size=1, max_size=3, unique=True), st.lists(names, min_size=1, max_size=4), st.booleans())
def test_whatever_is_printed_is_clean(to: Sequence[ListenAddress], zones: Sequence[str], fail_open: bool) -> None:
    """``--check`` finds nothing in what is printed, for any addresses and zones, whether or not it knows them."""
    for forwarder in stub_blocks.CHECKED:
        text = stub_blocks.stub_block(forwarder, to, zones, fail_open=fail_open and forwarder == stub_blocks.COREDNS)
        assert check(read(text, forwarder=forwarder, to=to, zones=zones)) == []
        assert {key for block in parse(text) for key in block.keys} >= {f"{zone}:53" for zone in zones}


@pytest.mark.parametrize("name", [name for name in PRINTED if name.startswith(("coredns", "nodelocal"))])
def test_what_is_printed_is_clean(topodns: Run, tmp_path: Path, name: str) -> None:
    """Also where only its zones are known, and not the addresses."""
    known = [flag for flag in PRINTED[name].flags if flag.startswith(("--for", "--zone"))]
    assert checked(topodns, tmp_path, PRINTED[name].printed, *known) == (DONE, "0 errors, 0 warnings\n", "")


# --- What is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_found(topodns: Run, tmp_path: Path, case: Case) -> None:
    """Each line says where, what was found and what was expected; an error makes the status 1."""
    errors = sum(line.startswith("error") for line in case.found)
    warnings = len(case.found) - errors
    last = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    codes = [re.findall(r"\[(\w+)\]$", line)[0] for line in case.found]
    lines = "".join(f"{line}\n" for line in (*case.found, *explanations(codes), last))
    assert checked(topodns, tmp_path, case.text, *case.flags) == (FAILED if errors else DONE, lines, "")


def test_each_code_is_found() -> None:
    """Each code occurs for some Corefile, but the one that only ``doctor`` knows."""
    found = {line.rpartition(" ")[2] for case in FOUND.values() for line in case.found}
    assert found == {f"[{code.name}]" for code in CorefileCode} - {"[ExternalNameBypassesStub]"}


@pytest.mark.parametrize("case", CLEAN.values(), ids=CLEAN)
def test_clean(topodns: Run, tmp_path: Path, case: Case) -> None:
    """A correct Corefile has no findings."""
    assert checked(topodns, tmp_path, case.text, *case.flags) == (DONE, "0 errors, 0 warnings\n", "")


def test_findings_as_json(topodns: Run, tmp_path: Path) -> None:
    """The fields are those of ``check``."""
    assert json.loads(checked(topodns, tmp_path, FOUND["cache"].text, "-o", "json").out) == [
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
            "file": "F",
            "documentation": "docs/findings.md#cachemixesclients",
        }
    ]


# --- Any text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NOT_READ.values(), ids=NOT_READ)
def test_unparsable(topodns: Run, tmp_path: Path, case: Case) -> None:
    """One line names the file and the line in it; status 2 and no findings."""
    status, out, err = checked(topodns, tmp_path, case.text)
    assert (status, out) == (WRONG, "") and err.startswith("topodns: F: line ") and case.message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("forwarder", "name"), [("coredns", "coredns"), ("nodelocal", "node-local-dns")])
def test_more_than_a_corefile(topodns: Run, tmp_path: Path, forwarder: str, name: str) -> None:
    """For a whole ConfigMap, the error says how to extract the Corefile from it."""
    assert checked(topodns, tmp_path, NOT_READ["json"].text, f"--for={forwarder}").err == (
        "topodns: F: line 1: YAML or JSON found, expected the Corefile alone: "
        f"kubectl -n kube-system get configmap {name} -o jsonpath='{{.data.Corefile}}'\n"
    )


GOOD = CLEAN["one-block-without-braces"].text.removeprefix("cluster.local\n")
ODD = {
    "byte-order-mark": (f"\ufeffcluster.local {{\n{GOOD}\n}}".encode(), DONE),
    "windows": (f"cluster.local {{\n{GOOD}\n}}\n".replace("\n", "\r\n").encode(), DONE),
    "latin-1": (f"# caf\xe9\ncluster.local {{\n{GOOD}\n}}\n".encode("latin-1"), DONE),
    "binary": (bytes(range(256)) * 100, WRONG),
    "a-long-line": (b"x" * 1_000_000, DONE),
    "a-long-comment": (f"cluster.local {{\n{GOOD} # {'x ' * 500_000}\n}}".encode(), DONE),
    "long-quotes": (b'"' + b'\\"' * 500_000, DONE),
    "many-words": (b"x " * 500_000, WRONG),
    "many-braces": (b"{" * 1_000_000, WRONG),
    "deep": (b"a {\n" + b"b {\n" * 40_000, WRONG),
    "many-blocks": (b"".join(b"z%d {\nforward . 10.96.0.53\n}\n" % n for n in range(2_000)), DONE),
    "imports-of-imports": (
        b"(s0) {\nwhoami\nwhoami\n}\n"
        + b"".join(b"(s%d) {\nimport s%d\nimport s%d\n}\n" % (n + 1, n, n) for n in range(40))
        + b"a {\nimport s40\n}\n",
        WRONG,
    ),
    "imports-in-imports": (
        b"(s0) {\nwhoami\n}\n"
        + b"".join(b"(s%d) {\nimport s%d\n}\n" % (n + 1, n) for n in range(9_000))
        + b"cluster.local {\nimport s9000\nforward . 10.96.0.53\n}\n",
        FAILED,
    ),
}


@pytest.mark.parametrize(("octets", "status"), ODD.values(), ids=ODD)
def test_odd_files(topodns: Run, tmp_path: Path, octets: bytes, status: int) -> None:
    """Odd files are read, or refused with one short line."""
    (path := tmp_path / "Corefile").write_bytes(octets)
    ran = topodns("corefile", "--check", str(path))
    assert ran.status == status and bool(ran.err) == (status == WRONG)
    assert all(len(line) < 500 for line in (ran.out + ran.err).splitlines())


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
    try:
        corefile = read(text, forwarder=forwarder, to=TO if known else ())
    except Unparsable:
        return
    findings, after = check(corefile), fixed(corefile)
    assert fixed(after).text == after.text
    errors, left = ([row for row in rows if row.severity == "error"] for rows in (findings, check(after)))
    assert len(left) <= len(errors)
    for finding in findings:
        assert finding.line is not None and 1 <= finding.line <= text.count("\n") + 1
        assert finding.message and finding.expected
