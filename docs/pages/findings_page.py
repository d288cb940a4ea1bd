# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/findings.md`` from the tables of codes: ``make docs``."""

from __future__ import annotations

from collections.abc import Iterable

from dnsserver.tools.corefile.codes import CorefileCode
from dnsserver.tools.simulation.codes import SimulationCode
from locator.findings import ClusterCode, FindingCode

HEAD = """\
# Findings

`topodns check` reports what is wrong in a cluster, or in a dump of one. `topodns corefile --check` reports what is
wrong in a Corefile, and `topodns simulate` what a constraint does to the load. `topodns serve` logs the errors and
warnings of the cluster that it serves. Each finding ends with
a code, which you can look up here:

```console
$ topodns check --snapshot examples/cluster.yaml
warning  examples/cluster.yaml: line 1030: Node node-edge1: metadata.labels[topology.kubernetes.io/zone]: \
node without zone, expected a label, as other nodes have one [NodeWithoutZone]
...
```

A healthy cluster has no findings. `check` looks at what `serve` would serve: with `-n NAMESPACE`,
`--namespace-selector` or `--service-selector`, it leaves out findings about objects in other namespaces, and about
other Services. Those about nodes and forwarders stay.

One code stands for one cause. Codes and their severities are stable. The words of a message are not, so let scripts
read the code. With `-o json` a finding has the fields `code`, `severity`, `kind`, `namespace`, `name`, `field`,
`message`, `expected`, `line` and `file`; `line` is `null` if it is not known. A finding in a Corefile has no `kind`,
`namespace` or `name`, and its `field` holds the zones of the block.

| severity | meaning |
| --- | --- |
| error | topodns ignores something, or clients get wrong answers or none; the exit status is 1 |
| warning | probably not what was meant; with `--fail-on warning` the exit status is 1 |
| info | worth knowing; nothing has to be done. `check`, `explain`, `simulate` and the console report it |
"""
FOOT = """
<!-- Printed by "make docs"; the tables are locator/findings.toml, dnsserver/tools/corefile/codes.toml and
dnsserver/tools/simulation/codes.toml. -->
"""


def document() -> str:
    """Return the page."""
    return (
        HEAD
        + _section("In a cluster", ClusterCode)
        + _section("In a Corefile", CorefileCode)
        + _section("In a simulation", SimulationCode)
        + FOOT
    )


def _section(title: str, codes: Iterable[FindingCode]) -> str:
    return f"\n## {title}\n" + "".join(map(_entry, codes))


def _entry(code: FindingCode) -> str:
    command = f"\n```console\n$ {code.command}\n```\n" if code.command else ""
    return f"\n### {code.name}\n\n{code.severity.capitalize()}. {code.cause}\n\n**What to do:** {code.fix}\n{command}"


if __name__ == "__main__":
    print(document(), end="")
