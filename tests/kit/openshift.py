# SPDX-License-Identifier: Apache-2.0

"""What OpenShift's SecurityContextConstraints ``restricted-v2`` refuse of a pod; most ServiceAccounts have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.kit.kube import Item

# The annotation openshift.io/sa.scc.uid-range of a namespace, say "1000660000/10000". Users and fsGroup must be in it.
USERS = range(1_000_660_000, 1_000_670_000)
GROUP = 0  # of every user whom the image does not know
VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def refusals(spec: Item) -> Sequence[str]:
    """Return what is refused of the spec of a pod; nothing if it is admitted."""
    return list(_refusals(spec))


def _refusals(spec: Item) -> Iterator[str]:
    yield from (f"{name}: {spec[name]}" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    for volume in spec.get("volumes", ()):
        yield from (f"volume: {kind}" for kind in volume.keys() - VOLUMES - {"name"})
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    for context in (spec.get("securityContext", {}), *(each.get("securityContext", {}) for each in containers)):
        for name in ("runAsUser", "fsGroup"):
            if context.get(name, USERS[0]) not in USERS:
                yield f"{name}: {context[name]}"
        yield from (f"{name}: true" for name in ("privileged", "allowPrivilegeEscalation") if context.get(name))
        if added := {*context.get("capabilities", {}).get("add", ())} - {"NET_BIND_SERVICE"}:
            yield f"capabilities: {sorted(added)}"
        if (profile := context.get("seccompProfile", {}).get("type", "RuntimeDefault")) != "RuntimeDefault":
            yield f"seccompProfile: {profile}"
        if "seLinuxOptions" in context:
            yield f"seLinuxOptions: {context['seLinuxOptions']}"
    for container in containers:
        yield from (f"hostPort: {port['hostPort']}" for port in container.get("ports", ()) if "hostPort" in port)
