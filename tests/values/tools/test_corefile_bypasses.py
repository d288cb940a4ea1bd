# SPDX-License-Identifier: Apache-2.0

"""Which rules and plugins of another block answer names of the stub zone by themselves."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.checks import check
from dnsserver.tools.corefile.codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import ECS_RULE, stub_block
from dnsserver.tools.corefile.stub_zones import read
from tests.kit.corefiles import corefiles

TO = [parse_upstream("10.96.0.53")]
GOOD = f"{ECS_RULE}\nforward . 10.96.0.53"
INSTALLED = corefiles("installed")
BYPASSES = {code.name for code in CorefileCode if code.name.endswith("BypassesStub")} | {"ReverseZoneForwardedWhole"}


@pytest.mark.parametrize("zone", ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "10.96.in-addr.arpa"])
@pytest.mark.parametrize("name", INSTALLED)
def test_no_false_alarm_about_what_clusters_have(name: str, zone: str) -> None:
    """With our block beside it, no Corefile that comes with a cluster answers names of the stub zone by itself."""
    forwarder = name if name == "nodelocal" else "coredns"
    corefile = INSTALLED[name].text + stub_block(forwarder, TO, [zone])
    for to in ((), TO):
        found = check(read(corefile, forwarder=forwarder, to=to))
        assert not BYPASSES & {finding.code for finding in found}, found


LABELS = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map(".".join)  # few, so that they meet
PIECES = st.tuples(st.sampled_from(["", "."]), LABELS).map("".join)


@settings(max_examples=200)
@given(
    form=st.sampled_from(["exact", "prefix", "suffix", "substring"]),
    source=PIECES, target=PIECES, zone=LABELS, head=st.sampled_from(["", "a", "x.", "b.a."]), tail=LABELS,
)  # fmt: skip
def test_whatever_rule_leads_into_the_stub_zone_is_found(
    form: str, source: str, target: str, zone: str, head: str, tail: str
) -> None:
    """A name that the rule makes one of the stub zone, and that is none itself, is enough."""
    corefile = f".:53 {{\nrewrite name {form} {source} {target}\nwhoami\n}}\n{zone}:53 {{\n{GOOD}\n}}\n"
    found = check(read(corefile, forwarder="coredns", to=TO))
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
    found = check(read(corefile, forwarder="coredns", to=TO))
    assert [finding.message.partition(" ")[0] for finding in found] == [name] * bool(name)


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
    corefile = STOCK + stub_block("coredns", TO, ["shop.svc.cluster.local"])
    findings = check(read(corefile, forwarder="coredns", external_names=names))
    expected = (
        "line 2: .:53: Service default/alias names web.shop.svc.cluster.local, which kubernetes answers in this block: "
        "topodns is not asked, expected default.svc.cluster.local, too, forwarded at line 27 [ExternalNameBypassesStub]"
    )
    assert list(map(str, findings)) == [expected] * found
    whole = STOCK + stub_block("coredns", TO, ["svc.cluster.local"])
    assert not check(read(whole, forwarder="coredns", external_names=names))
