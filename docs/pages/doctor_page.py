# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/doctor.md`` from the table of steps: ``make docs``."""

from __future__ import annotations

import textwrap

from dnsserver.tools.doctor.steps import StepCode

WIDTH = 120  # columns

HEAD = """\
# Doctor

`topodns doctor` examines a running installation: what pods ask, whether that asks topodns, what topodns needs, what
it says of itself, and whether its answers are right. Each step is a check mark, a cross, or a dash if it could not be
looked at. Under a cross stand the reason, and the commands that fix it, with the names of your objects.

```console
$ topodns doctor --context production
```

Where a Corefile is at fault, its lines at fault are inserted or changed, and all else stays as it is: comments,
indentation, `--fail-open` and other upstreams, too. The step shows these lines as `diff -u` does, and the command
writes the whole Corefile. What nobody can decide for you, such as which of two blocks for one zone to keep, opens an
editor. If a Corefile or a flag has changed since, its command changes nothing and fails: run `doctor` again.

It finds topodns by the label `app.kubernetes.io/name=topodns`, or in the namespace of `-n`. It changes nothing.
Whatever you may not read is a dash that names the missing rule; the other steps go on. If you may not list pods, it
finds the replicas by the EndpointSlices of their Service. The exit status is 1 if there is a cross.

From outside of the cluster, the addresses of pods often cannot be reached. `doctor` then reads the replicas through
the API server (`get` of `pods/proxy`), but it cannot ask them for names. If your network enforces NetworkPolicies,
those of the manifests do not let the API server in, either: a dash. Inside, it can do both:

```console
$ kubectl -n topodns exec deploy/topodns -- topodns doctor
```

There it has the flags and the rights of topodns, which may not read Deployments, ConfigMaps and CRDs. So run it at
both places.

It asks each replica, and each pod of the cluster's DNS, over UDP and TCP for the name of a Service whose answer
depends on the client, and compares the answer with what `topodns explain` says of the same cluster. Through a
forwarder, it asks as the place where it runs. If nothing locates that place, a node on the way may stand in for it:
then the answer is right if the clients of any zone get it. Of a replica it asks for a client in each zone, if the
replica trusts that place (`--trusted-forwarder`).

Each of its queries carries an EDNS option for local use (code 65107, `topodns doctor`), which CoreDNS passes on. The
answer is the same with it and without. topodns counts these queries as `topodns_probes_total`, and in all metrics about
requests, responses and answers; not as queries of clients, so that nobody who looks from a laptop raises an alert.

With `-o json` or `yaml`, the fields are `version`, `namespace`, `providers`, `steps` and `counts` (of `failed`,
`unknown` and `passed` steps). A step has the fields `code`, `title`, `subject`, `status`, `message`, `why`, `cure`,
`difference` and `commands`.
Codes are stable; the words of a message are not. `subject` is empty if there is only one such step.

## Who owns the Corefile

`doctor` recognises how a cluster runs its DNS, and prints the command for the object that its owner leaves to you.
[Providers](providers.md) has what it knows of each.

## Steps

"""
FOOT = """
<!-- Printed by "make docs"; the table is dnsserver/tools/doctor/steps.toml. -->
"""


def document() -> str:
    """Return the page."""
    return HEAD + "\n".join(map(_step, StepCode)) + FOOT


def _step(code: StepCode) -> str:
    title = f"{code.title[0].upper()}{code.title[1:]}"
    texts = (f"{title}. {code.why}", f"**What to do:** {code.fix}")
    paragraphs = ("\n".join(textwrap.wrap(text, WIDTH, break_on_hyphens=False)) for text in texts)
    return "\n\n".join((f"### {code.name}", *paragraphs)) + "\n"


if __name__ == "__main__":
    print(document(), end="")
