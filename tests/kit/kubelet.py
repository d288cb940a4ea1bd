# SPDX-License-Identifier: Apache-2.0

"""Plays the scheduler and the kubelets of a cluster that has none: its pods run, are ready, and end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from tests.kit.kube import Api, ApiError, Item


class Kubelet:
    """Runs pods on *nodes* whenever it looks after them.

    A pod gets a node that its ``nodeSelector`` matches, in turn. Its address is in *addresses*, by how its name
    begins, or it is the next one of its node's pod CIDR.
    """

    def __init__(self, api: Api, nodes: Sequence[Item], addresses: Mapping[str, str]) -> None:
        self._api, self._nodes, self._addresses = api, nodes, addresses
        self._turns: dict[str, Iterator[int]] = {}  # by what the pods have in common
        self._free = {node["metadata"]["name"]: count(2) for node in nodes}

    def look_after(self, namespace: str) -> None:
        """Start the pods of a namespace that do not run yet, and end those that should."""
        for pod in self._api.items("Pod", namespace):
            pod["kind"] = "Pod"
            try:
                if "deletionTimestamp" in pod["metadata"]:
                    self._api.delete(pod)
                elif "podIP" not in pod.get("status", {}):
                    self._start(pod)
            except ApiError as error:
                if error.status not in (404, 409):  # it went, or changed, meanwhile
                    raise

    def _start(self, pod: Item) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        wanted = spec.get("nodeSelector", {}).items()
        nodes = [node for node in self._nodes if wanted <= node["metadata"]["labels"].items()]
        turn = self._turns.setdefault(metadata.get("generateName", metadata["name"]), count())
        node = nodes[next(turn) % len(nodes)]
        name = node["metadata"]["name"]
        network = node["spec"]["podCIDRs"][0].rpartition(".")[0]
        given = [address for begin, address in self._addresses.items() if metadata["name"].startswith(begin)]
        address = given[0] if given else f"{network}.{next(self._free[name])}"
        self._api.run_pod(pod, name, address)
