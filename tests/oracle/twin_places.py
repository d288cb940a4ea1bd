# SPDX-License-Identifier: Apache-2.0

"""Where clients are if there are several clusters, a second time: slow, simple, without any index.

Tests compare it with what topodns says. ``tests/oracle/twin_map.py`` says where an address is in one cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tests.oracle.twin_map import CLUSTER, UNKNOWN, Item, TwinMap, Where, ip_address, ip_network, longest_first

IMPORTED = "multicluster.kubernetes.io/service-name"  # the label of EndpointSlices that come from other clusters


class TwinPlaces:
    """Where addresses are, as the server in one of several clusters sees it."""

    def __init__(
        self,
        clusters: Mapping[str, Sequence[Item]],
        own: str,
        *,
        client_source: str,
        subnets: Mapping[str, Mapping[str, str]],
    ) -> None:
        self.own = own
        self.maps = {
            name: TwinMap(without_imported(items), client_source, {}, subnets) for name, items in clusters.items()
        }
        self.subnets = {ip_network(text): labels for text, labels in subnets.items()}

    def locate(self, text: str) -> Where:
        """Return where an address is: in the own cluster, in the one other that has it, else by ``--subnet``."""
        having = [name for name in self.maps if self.has(name, text)]
        if self.own in having:
            return self.within(self.own, text)
        if having:
            return self.within(having[0], text) if len(having) == 1 else UNKNOWN
        for network in longest_first(self.subnets, ip_address(text))[:1]:
            return Where("subnet", None, self.subnets[network])
        return UNKNOWN

    def has(self, cluster: str, text: str) -> bool:
        """Whether a cluster has an address, even if it does not say where."""
        found = self.maps[cluster]
        return found.locate(text) != UNKNOWN

    def within(self, cluster: str, text: str) -> Where:
        where = self.maps[cluster].locate(text)
        return Where(where.located_by, where.node, {**where.labels, CLUSTER: cluster})


def without_imported(items: Iterable[Item]) -> list[Item]:
    """Return a cluster's objects without the slices that were imported: they say nothing of this cluster."""
    return [item for item in items if IMPORTED not in (item["metadata"].get("labels") or {})]


def marked(items: Iterable[Item], cluster: str) -> list[Item]:
    """Return a cluster's objects, with the cluster as a label of every place that they tell."""
    return [mark(item, cluster) for item in items]


def mark(item: Item, cluster: str) -> Item:
    label = {CLUSTER: cluster}
    if item["kind"] == "Node":
        labels = {**(item["metadata"].get("labels") or {}), **label}
        return {**item, "metadata": {**item["metadata"], "labels": labels}}
    if item["kind"] == "PodLocator":
        return {**item, "nodeLabels": {**item["nodeLabels"], **label}}
    if item["kind"] == "EndpointSlice":
        rows = item["endpoints"]
        told = [{**row, "deprecatedTopology": {**row.get("deprecatedTopology", {}), **label}} for row in rows]
        return {**item, "endpoints": told}
    return item
