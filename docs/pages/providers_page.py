# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/providers.md`` from the table of providers that ``topodns doctor`` has: ``make docs``."""

from __future__ import annotations

import json

from dnsserver.settings.values import parse_upstream
from dnsserver.tools.corefile.caddyfile import parse
from dnsserver.tools.corefile.stub_blocks import COREDNS, stub_block
from dnsserver.tools.doctor.providers import CUSTOM_CONFIG, CUSTOM_KEY, PROVIDERS, STUB_DOMAINS, Edit, Provider

TO, ZONE = "10.96.0.53", "shop.svc.cluster.local"
STUB = stub_block(COREDNS, [parse_upstream(TO)], [ZONE])
TODAY = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa
    forward . /etc/resolv.conf
    cache 30
    reload
}
"""

HEAD = f"""\
# Providers

Who owns the Corefile differs: on some clusters you edit it, on others the provider writes it anew, and leaves another
object to you. `topodns doctor` recognises how your cluster runs its DNS, and prints the command with your own names and
your own Corefile:

```console
$ topodns doctor
```

The commands below are for the zone `{ZONE}`, and a topodns at `{TO}`. Where a command has a whole Corefile,
that is an example: take the command that `doctor` prints, which has yours. These are the facts of the providers'
documentation in 2026.

"""
FOOT = """
<!-- Printed by "make docs"; the table is in dnsserver/tools/doctor/providers.py. -->
"""


def document() -> str:
    """Return the page."""
    ordered = sorted(PROVIDERS, key=lambda provider: (" with coredns" in provider.name, provider.name.lower()))
    rows = "".join(f"| [{provider.name}](#{_anchor(provider)}) | {_object(provider)} |\n" for provider in ordered)
    table = f"| your cluster | what you change |\n| --- | --- |\n{rows}"
    return HEAD + table + "".join(map(_section, ordered)) + FOOT


def _anchor(provider: Provider) -> str:
    return provider.name.lower().replace(" ", "-")


def _object(provider: Provider) -> str:
    if not provider.config_map:
        return "nothing: its DNS cannot be configured so"
    if provider.own_part:
        return f"ConfigMap `{CUSTOM_CONFIG}`"
    commands = _commands(provider)
    if "HelmChartConfig" in commands:
        return "HelmChartConfig `kube-system/rke2-coredns`"
    if "dns.operator" in commands:
        return "`dns.operator/default`"
    return "the add-on's value `corefile`" if "eks" in commands else f"ConfigMap `{provider.config_map}`"


def _section(provider: Provider) -> str:
    where = f"ConfigMap `{provider.config_map}`: " if provider.config_map else ""
    commands = _commands(provider)
    block = f"\n```sh\n{commands}\n```\n" if commands else ""
    return f"\n## {provider.name}\n\n{where}{provider.owner}. {provider.advice}\n{block}"


def _commands(provider: Provider) -> str:
    corefile = TODAY + STUB
    config_map = CUSTOM_CONFIG if provider.own_part else provider.config_map
    text = json.dumps({ZONE: [TO]}) if provider.key == STUB_DOMAINS else corefile
    key, text = (CUSTOM_KEY, STUB) if provider.own_part else (provider.key, text)
    blocks = parse(TODAY if provider.below else corefile)
    edit = Edit("kubectl", config_map, None, key, text=text, blocks=blocks, zones=[ZONE], to=[TO])
    return "\n".join(provider.edit(edit))


if __name__ == "__main__":
    print(document(), end="")
