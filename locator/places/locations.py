"""Where nodes, pods and endpoints are: the Node's word, else the PodLocator's, else what they say themselves.

Equal locations are one and the same object, since what is remembered hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from locator.model import Endpoint, Location, Node, Pod, PodLocator, canonical_labels

NOWHERE = Location(None, {})  # of what neither node nor zone is known
MIN_SHARED = 1024  # shared locations that are kept whether anybody is there or not


class Locations:
    """The location of each node that is known, and of whatever is on one that is not."""

    def __init__(self) -> None:
        self._nodes: dict[str, Location] = {}
        self._locators: dict[str, PodLocator] = {}
        # Without a Node: by the node's name, else by the labels; hardly ever more than one of a name.
        self._shared: dict[object, list[Location]] = {}
        self._count, self._bound = 0, MIN_SHARED

    def take_node(self, name: str, node: Node | None) -> bool:
        """Note a node as it is now, None if it is gone; return whether its location is another one."""
        before = self._nodes.get(name)
        if node is None:
            return self._nodes.pop(name, None) is not None
        if before is not None and before.labels == node.labels:
            return False
        self._nodes[name] = Location(name, node.labels)
        return True

    def take_locator(self, key: str, locator: PodLocator | None) -> None:
        """Note a PodLocator as it is now, None if it is gone."""
        if locator is None:
            self._locators.pop(key, None)
        else:
            self._locators[key] = locator

    def of_node(self, name: str | None) -> Location | None:
        """Return where a node is, None if it is not known."""
        return None if name is None else self._nodes.get(name)

    def of_pod(self, pod: Pod) -> tuple[Location, bool]:
        """Return where a pod is, and whether only its PodLocator says so."""
        known = self._nodes.get(pod.node) if pod.node is not None else None
        if known is not None:
            return known, False
        locator = self._locators.get(pod.key) if self._locators else None
        if locator is not None and locator.node == pod.node and locator.labels:
            return self.shared(locator.node, locator.labels), True
        return self.shared(pod.node, canonical_labels({}, node=pod.node)), False

    def of_locator(self, locator: PodLocator) -> Location:
        """Return where the pod of a PodLocator is."""
        return self.of_node(locator.node) or self.shared(locator.node, locator.labels)

    def of_endpoint(self, namespace: str, endpoint: Endpoint) -> Location:
        """Return where an endpoint of a slice in *namespace* is, ``NOWHERE`` if nobody says."""
        if endpoint.node is not None:
            known = self._nodes.get(endpoint.node)
            if known is not None:
                return known
        if endpoint.pod is not None and self._locators:
            locator = self._locators.get(f"{namespace}/{endpoint.pod}")
            if locator is not None and locator.labels:
                return self.shared(locator.node, locator.labels)
        if endpoint.node is None and not endpoint.slice_labels:
            return NOWHERE
        return self.shared(endpoint.node, canonical_labels(endpoint.slice_labels, node=endpoint.node))

    def shared(self, node: str | None, labels: dict[str, str]) -> Location:
        """Return the one location of this node and these labels."""
        row = self._shared.setdefault(node if node is not None else frozenset(labels.items()), [])
        for each in row:
            if each.labels == labels:
                return each
        row.append(found := Location(node, labels))
        self._count += 1
        return found

    def forget_unused(self, used: Callable[[], Set[int]]) -> None:
        """Drop the shared locations that are not among *used* (their ids), once their number has doubled."""
        if self._count <= self._bound:
            return
        ids = used()
        kept = {key: [each for each in row if id(each) in ids] for key, row in self._shared.items()}
        self._shared = {key: row for key, row in kept.items() if row}
        self._count = sum(map(len, self._shared.values()))
        self._bound = max(MIN_SHARED, 2 * self._count)
