# SPDX-License-Identifier: Apache-2.0

"""Who owns the configuration of a cluster's DNS: one row for each provider, and how each lets it be edited.

A provider is recognised by marks: lines about ConfigMaps and nodes, which ``marks_of`` makes. The facts are those of
the providers' public documentation in 2026; the sources stand beside the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import unified_diff
from fnmatch import fnmatchcase

from msgspec import Struct

from dnsserver.tools.corefile.caddyfile import Block
from dnsserver.tools.corefile.stub_blocks import COREDNS, NODELOCAL
from dnsserver.tools.doctor.facts import V1ConfigMap
from locator.printable import filled, shell_words

SYSTEM, OPENSHIFT = "kube-system", "openshift-dns"
NODELOCAL_CONFIG = "kube-system/node-local-dns"
CUSTOM_CONFIG = "kube-system/coredns-custom"
CUSTOM_KEY = "topodns.server"
COREFILE, STUB_DOMAINS = "Corefile", "stubDomains"  # keys of ConfigMaps


class ConfigMapEdit(Struct, frozen=True):
    """What is to be changed: a key of a ConfigMap, from ``before`` to ``text``.

    The ConfigMap was read at ``version``, None if there is none. ``blocks`` are the parsed blocks of its Corefile, for
    owners that take nothing else. ``zones`` are to be forwarded to the addresses ``to``. ``kubectl`` is the command
    with its flags.
    """

    kubectl: str
    config_map: str
    version: str | None
    key: str = COREFILE
    before: str = ""
    text: str = ""
    blocks: Sequence[Block] = ()
    zones: Sequence[str] = ()
    to: Sequence[str] = ()

    @property
    def difference(self) -> str:
        """The lines that change, as ``diff -u`` shows them."""
        name = f"{self.config_map} {self.key}"
        lines = unified_diff(self.before.splitlines(), self.text.splitlines(), name, name, n=1, lineterm="")
        return "\n".join(lines)


class Provider(Struct, frozen=True):
    """A way to run the cluster's DNS.

    ``marks`` are the ways to recognise it: all patterns of one must match. ``config_map`` has the Corefile, or the stub
    domains, in ``key``; it is empty if nobody can read or change it. ``edit`` returns the commands that change it.
    ``checked_as`` is the forwarder as which the Corefile is judged. ``own_part``: what is ours is a file of its own,
    in coredns-custom. ``below``: the cluster's domain as a whole cannot be forwarded, only what is below ``svc``.
    """

    name: str
    marks: tuple[tuple[str, ...], ...]
    owner: str
    config_map: str
    advice: str
    edit: Callable[[ConfigMapEdit], tuple[str, ...]]
    checked_as: str = COREDNS
    key: str = COREFILE
    own_part: bool = False
    below: bool = False


def marks_of(
    config_maps: Mapping[str, V1ConfigMap], node_labels: Iterable[Mapping[str, str]], *, dns_endpoints: bool
) -> frozenset[str]:
    """Return the lines by which providers are recognised.

    *config_maps* are those of the namespaces of DNS by ``namespace/name``. *dns_endpoints*: the cluster's DNS Service
    has any.
    """
    marks = {"dns endpoints" if dns_endpoints else "no dns endpoints"}
    for key, config_map in config_maps.items():
        marks.add(f"configmap {key}")
        marks.update(
            f"configmap {key} label {label}={text}" for label, text in (config_map.metadata.labels or {}).items()
        )
        annotations = config_map.metadata.annotations or {}
        marks.update(f"configmap {key} annotation {name}={text}" for name, text in annotations.items())
        lines = (line.split() for line in (config_map.data or {}).get(COREFILE, "").splitlines())
        marks.update(f"configmap {key} imports {words[1]}" for words in lines if words[:1] == ["import"] and words[1:])
    for labels in node_labels:
        marks.update(f"node label {label}={text}" for label, text in labels.items())
    return frozenset(marks)


def recognised(marks: Iterable[str]) -> list[Provider]:
    """Return the providers of which these are the marks: at most one whose Corefile can be changed, the first."""
    known, found = list(marks), list[Provider]()
    for provider in PROVIDERS:
        ways = (all(any(fnmatchcase(mark, pattern) for mark in known) for pattern in way) for way in provider.marks)
        if any(ways) and not (provider.config_map and any(other.config_map for other in found)):
            found.append(provider)
    return found


# --- How each is edited -----------------------------------------------------------------------------------------------


def _nothing(_: ConfigMapEdit) -> tuple[str, ...]:
    return ()


def merged(edit: ConfigMapEdit) -> tuple[str, ...]:
    """Return the command that writes a key of a ConfigMap, unless the ConfigMap has changed since it was read."""
    namespace, _, name = edit.config_map.partition("/")
    as_read = {} if edit.version is None else {"metadata": {"resourceVersion": edit.version}}
    patch = json.dumps({**as_read, "data": {edit.key: edit.text}})
    words = {"NAMESPACE": namespace, "NAME": name, "PATCH": patch}
    return (f"{edit.kubectl} {filled('-n NAMESPACE patch configmap NAME --type merge -p PATCH', words)}",)


def _addon(edit: ConfigMapEdit) -> tuple[str, ...]:
    values = json.dumps({"corefile": edit.text})
    return (
        "aws eks update-addon --cluster-name CLUSTER --addon-name coredns --resolve-conflicts PRESERVE"
        f" --configuration-values {shell_words(values)}",
    )


def _own_file(edit: ConfigMapEdit) -> tuple[str, ...]:
    namespace, _, name = edit.config_map.partition("/")
    config_map = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name},
        "data": {edit.key: edit.text},
    }  # fmt: skip
    restart = f"{edit.kubectl} -n {SYSTEM} rollout restart deployment coredns"
    return *((applied(edit.kubectl, config_map),) if edit.version is None else merged(edit)), restart


def _helm_values(edit: ConfigMapEdit) -> tuple[str, ...]:
    values = json.dumps({"servers": [_helm_server(block) for block in edit.blocks]}, indent=1)
    chart = {
        "apiVersion": "helm.cattle.io/v1", "kind": "HelmChartConfig",
        "metadata": {"namespace": SYSTEM, "name": "rke2-coredns"}, "spec": {"valuesContent": values},
    }  # fmt: skip
    return (applied(edit.kubectl, chart),)


def _helm_server(block: Block) -> dict[str, object]:
    """Return a block as the chart of CoreDNS takes it."""
    keys = [key.rpartition(":") for key in block.keys]
    port = next((int(port) for _, colon, port in keys if colon and port.isdigit()), 53)
    plugins = []
    for directive in block.directives:
        plugin = {"name": directive.name}
        if directive.arguments:
            plugin["parameters"] = " ".join(map(_written, directive.arguments))
        if directive.body:
            plugin["configBlock"] = "\n".join(
                " ".join(map(_written, (line.name, *line.arguments))) for line in directive.body
            )
        plugins.append(plugin)
    return {"zones": [{"zone": zone or port} for zone, _, port in keys], "port": port, "plugins": plugins}


def _written(word: str) -> str:
    """Return a word of a Corefile, in quotes if it needs them."""
    plain = word and word not in ("{", "}") and not re.search(r'[\s"#]', word)
    return word if plain else '"{}"'.format(word.replace('"', '\\"'))


def _operator(edit: ConfigMapEdit) -> tuple[str, ...]:
    """Return the command that adds a server, and keeps those that the operator has written already."""
    server = {"name": "topodns", "zones": list(edit.zones), "forwardPlugin": {"upstreams": list(edit.to)}}
    written = {key.rpartition(":")[0] for block in edit.blocks for key in block.keys} - {".", "hostname.bind"}
    kind = f"{edit.kubectl} {{}} dns.operator.openshift.io default"
    if written & set(edit.zones):
        return (kind.format("edit"),)
    patch: object = {"spec": {"servers": [server]}}
    if written:
        patch = [{"op": "add", "path": "/spec/servers/-", "value": server}]
    words = shell_words("--type", "json" if written else "merge", "-p", json.dumps(patch))
    return (f"{kind.format('patch')} {words}",)


def applied(kubectl: str, *objects: Mapping[str, object]) -> str:
    """Return the command that creates objects, or changes what of them is given here."""
    text = "\n---\n".join(map(json.dumps, objects))
    return f"{kubectl} apply --server-side --field-manager=topodns -f - <<'END'\n{text}\nEND"


# --- The table --------------------------------------------------------------------------------------------------------

# Advice that several share.
_OWN_COREDNS = (
    "Run a CoreDNS of your own that forwards to topodns, and name it in `dnsConfig` of the pods that need near"
    " endpoints."
)
_CUSTOM_KEYS = "A key of coredns-custom that ends in .server becomes a server block."

PROVIDERS = (
    # docs.redhat.com, OpenShift Container Platform 4, "DNS Operator in OpenShift": the operator writes dns-default, its
    # servers have a cache and no rewrite, and cluster.local itself is no valid zone.
    Provider(
        "OpenShift",
        (("configmap openshift-dns/dns-default*",),),
        "the DNS operator writes this ConfigMap; edit the object dns.operator/default instead",
        "openshift-dns/dns-default",
        "The operator cannot make CoreDNS name the client. CoreDNS runs on every node, so run topodns with"
        " `--forwarder-service off`: the node of the CoreDNS that asks is then the client. Its Service prefers the"
        " CoreDNS of the own node. The zone"
        " cluster.local as a whole is not allowed.",
        _operator,
        checked_as=NODELOCAL,
        below=True,
    ),
    # cloud.google.com, "About Cloud DNS for GKE": without kube-dns, nodes ask Cloud DNS.
    Provider(
        "GKE with Cloud DNS",
        (("node label cloud.google.com/gke-nodepool=*", "no dns endpoints"),),
        "Google runs Cloud DNS outside of the cluster, and it names no client",
        "",
        _OWN_COREDNS,
        _nothing,
    ),
    # cloud.google.com, "Using kube-dns": the ConfigMap kube-dns has stubDomains; Autopilot allows no change.
    Provider(
        "GKE",
        (("node label cloud.google.com/gke-nodepool=*", "configmap kube-system/kube-dns"),),
        "GKE runs kube-dns and NodeLocal DNSCache; only the stub domains in this ConfigMap are yours",
        "kube-system/kube-dns",
        "NodeLocal DNSCache must be on: it asks from the node's address, while kube-dns names no client. In Autopilot"
        " clusters the ConfigMap cannot be changed.",
        merged,
        key=STUB_DOMAINS,
        below=True,
    ),
    # docs.rke2.io, "Networking": the packaged chart rke2-coredns is configured by a HelmChartConfig of that name.
    Provider(
        "RKE2",
        (("configmap kube-system/rke2-coredns-rke2-coredns",),),
        "RKE2's chart writes this ConfigMap; edit the HelmChartConfig kube-system/rke2-coredns instead",
        "kube-system/rke2-coredns-rke2-coredns",
        "The values hold all server blocks of today, because they replace those of the chart. If you have a"
        " HelmChartConfig already, add them there.",
        _helm_values,
    ),
    # learn.microsoft.com, "Customize CoreDNS for Azure Kubernetes Service": keys of coredns-custom end in .server.
    Provider(
        "AKS",
        (("node label kubernetes.azure.com/*", "configmap kube-system/coredns"),),
        "AKS owns this ConfigMap; edit the ConfigMap kube-system/coredns-custom, which its Corefile imports",
        "kube-system/coredns",
        _CUSTOM_KEYS,
        _own_file,
        own_part=True,
    ),
    # docs.k3s.io, "Advanced options", CoreDNS customization: the same ConfigMap; k3s writes its own at each start.
    Provider(
        "k3s",
        (
            ("configmap kube-system/coredns annotation objectset.rio.cattle.io/*",),
            ("node label node.kubernetes.io/instance-type=k3s", "configmap kube-system/coredns"),
        ),
        "k3s writes this ConfigMap at each start; edit the ConfigMap kube-system/coredns-custom, which its Corefile"
        " imports",
        "kube-system/coredns",
        _CUSTOM_KEYS,
        _own_file,
        own_part=True,
    ),
    # docs.aws.amazon.com, "Update the CoreDNS Amazon EKS add-on", and the add-on's schema: the value "corefile".
    Provider(
        "EKS",
        (("configmap kube-system/coredns label eks.amazonaws.com/component=coredns",),),
        "the EKS add-on coredns owns this ConfigMap; set its value corefile instead",
        "kube-system/coredns",
        "CLUSTER is the name of the EKS cluster. The command replaces all values of the add-on; add those that you have"
        " set, as `aws eks describe-addon` shows them. If CoreDNS is self-managed (that command does not know it), edit"
        " the ConfigMap kube-system/coredns.",
        _addon,
    ),
    # docs.aws.amazon.com, "Learn about VPC networking in EKS Auto Mode": the node answers DNS by itself.
    Provider(
        "EKS Auto Mode",
        (("node label eks.amazonaws.com/compute-type=auto",),),
        "CoreDNS runs on each node of EKS Auto Mode as a part of the node, and cannot be configured",
        "",
        _OWN_COREDNS,
        _nothing,
    ),
    # Others whose Corefile imports the same ConfigMap, such as Gardener.
    Provider(
        "a provider with coredns-custom",
        (("configmap kube-system/coredns imports *custom/*.server",),),
        "the provider owns this ConfigMap; edit the ConfigMap kube-system/coredns-custom, which its Corefile imports",
        "kube-system/coredns",
        _CUSTOM_KEYS,
        _own_file,
        own_part=True,
    ),
    # kubernetes.io, "Customizing DNS Service".
    Provider(
        "kubeadm",
        (("configmap kube-system/coredns",),),
        "this ConfigMap is yours",
        "kube-system/coredns",
        "CoreDNS reads it again within two minutes if it has the plugin `reload`.",
        merged,
    ),
)


def imported(corefile: str, custom: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a Corefile in parts, with what it imports of coredns-custom in place of the imports.

    Each part is a text with the key that it has there, empty for what is the Corefile's own.
    """
    parts = [("", "")]
    for line in corefile.splitlines():
        words = line.split()
        pattern = words[1].rpartition("/")[2] if words[:1] == ["import"] and "custom/" in words[-1] else ""
        if not pattern:
            parts[-1] = ("", f"{parts[-1][1]}{line}\n")
            continue
        parts += [(name, custom[name].rstrip("\n") + "\n") for name in sorted(custom) if fnmatchcase(name, pattern)]
        parts.append(("", ""))
    return parts
