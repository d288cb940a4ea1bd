# SPDX-License-Identifier: Apache-2.0

"""Chooses endpoints by the hints of their EndpointSlices, by kube-proxy's rule (KEP-2433, KEP-3015).

kube-proxy heeds hints for virtual IPs, where it knows the node that it runs on. topodns heeds them for the names of
headless Services, where it knows the node of the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from locator.model import CLUSTER, HOSTNAME, NODE_NAME, ZONE, Endpoint, Hints, Location, in_two_clusters
from locator.topology.selection import ALL, ANY, NEAREST, LocatedEndpoint, Selection, Step

# With one of these labels and the value "true", a Service, or a slice, asks the webhook for hints by its constraint.
# The EndpointSlice controller copies the labels of a Service to its slices. The second label is of Gardener's webhook.
OPT_IN_LABELS = ("topodns.io/hints", "endpoint-slice-hints.resources.gardener.cloud/consider")
OPTED_IN = "true"

_NO_HINTS = Hints()


class Hinted(Struct, frozen=True, gc=False):
    """The endpoints that are for the client's node; if there are none, those for its zone; if there are none, all.

    Hints for nodes count only in the address families of which every ready endpoint has some: *for_nodes* are the
    octets in their addresses. Hints for zones count likewise (*for_zones*): ``topologyModeFromHints`` of kube-proxy
    1.36. Hints that only some endpoints have say nothing.
    """

    for_nodes: tuple[int, ...] = ()
    for_zones: tuple[int, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the hints say anything."""
        return bool(self.for_nodes or self.for_zones)

    @property
    def keys(self) -> tuple[str, ...]:
        """See ``Constraint``: the labels that the hints stand for."""
        return (*([HOSTNAME] if self.for_nodes else []), *([ZONE] if self.for_zones else []), ANY)

    @property
    def client_keys(self) -> tuple[str, ...]:
        """See ``Constraint``. Hints name nodes by their names, not by their hostname labels."""
        return (*((NODE_NAME, CLUSTER) if self.for_nodes else ()), *((ZONE,) if self.for_zones else ()))

    @property
    def soft(self) -> bool:
        """See ``Constraint``."""
        return True

    def distinguishing_values(self, endpoints: Sequence[LocatedEndpoint]) -> tuple[frozenset[str | None], ...]:
        """See ``Constraint``."""
        nodes, zones = (
            frozenset(name for located in endpoints for name in names_for(key, located)) for key in (HOSTNAME, ZONE)
        )
        clusters = frozenset(located.location.labels.get(CLUSTER) for located in endpoints)
        return (*((nodes, clusters) if self.for_nodes else ()), *((zones,) if self.for_zones else ()))

    def select(self, client: Location, endpoints: Sequence[LocatedEndpoint]) -> Selection:
        """See ``Constraint``."""
        steps: list[Step] = []
        for key in self.keys[:-1]:
            value, sizes = (client.node, self.for_nodes) if key == HOSTNAME else (client.value(ZONE), self.for_zones)
            chosen = tuple(
                located
                for located in endpoints
                if value is not None
                and value in names_for(key, located)
                and any(len(address) in sizes for address in located.endpoint.addresses)
                and (key != HOSTNAME or not in_two_clusters(client, located.location))
            )
            steps.append(Step(key, value, len(chosen)))
            if chosen:
                return Selection(chosen, NEAREST, tuple(steps), key, (key,))
        steps.append(Step(ANY, None, len(endpoints)))
        return Selection(tuple(endpoints), ALL, tuple(steps), ANY)


def asks_for_hints(labels: Mapping[str, str]) -> bool:
    """Whether a Service or an EndpointSlice with these labels asks for hints by its constraint."""
    return any(labels.get(label) == OPTED_IN for label in OPT_IN_LABELS)


def names_for(key: str, located: LocatedEndpoint) -> tuple[str, ...]:
    """Return the nodes (*key* is ``kubernetes.io/hostname``) or the zones that the endpoint is for by its hints."""
    hints = located.endpoint.hints or _NO_HINTS
    return hints.nodes if key == HOSTNAME else hints.zones


def hinted(endpoints: Iterable[Endpoint]) -> Hinted | None:
    """Return the constraint by the hints of a Service's *endpoints*, None if no ready one has hints.

    A pod that is in several slices, such as one of each address family, is one endpoint. Hints are complete if all
    endpoints of one family have them: kube-proxy judges each family by itself, too.
    """
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if not any(endpoint.hints for endpoint in ready):
        return None
    families: dict[int, list[Hints]] = {}  # by octets in an address
    for endpoint in ready:
        for octets in {len(address) for address in endpoint.addresses}:
            families.setdefault(octets, []).append(endpoint.hints or _NO_HINTS)
    return Hinted(
        for_nodes=tuple(sorted(octets for octets, hints in families.items() if all(hint.nodes for hint in hints))),
        for_zones=tuple(sorted(octets for octets, hints in families.items() if all(hint.zones for hint in hints))),
    )
