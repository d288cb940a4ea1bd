# SPDX-License-Identifier: Apache-2.0

"""Says which endpoints locate their addresses: the kept ones, which Kubernetes' own controller keeps true.

Whoever may write EndpointSlices in one namespace could name any address there. So only the endpoints of slices that
the EndpointSlice controller keeps count, of Services with a selector: it removes what others write there. The Pod of
such an endpoint, if it is known, has to have the address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from locator.index import Index
from locator.ip import Network
from locator.model import MANAGED_BY, SLICE_CONTROLLER, Endpoint, EndpointSlice, Pod, Service
from locator.places.address_map import KeysByAddress, Move, keys_at, with_moves


class EndpointHolder(NamedTuple):
    """An endpoint of a slice, as a holder of its addresses."""

    slice: EndpointSlice
    endpoint: Endpoint
    position: int

    @property
    def rank(self) -> tuple[object, ...]:
        """The order of the endpoints of one address; the first one decides."""
        known, endpoint = self.slice, self.endpoint
        return not endpoint.ready, endpoint.terminating, known.namespace, known.name, known.kind, self.position

    @property
    def pod(self) -> str | None:
        """The key of the pod behind the endpoint, None if there is no pod."""
        return self.endpoint.pod_key(self.slice.namespace)


class KeptEndpoints:
    """The endpoints of one *cluster* by address, kept up to date slice by slice.

    *slices*, *services* and *pods* are the known objects by key, always up to date; *pods* is empty if Pods locate
    nothing. *has_address* says whether a Pod has an address now. Endpoints that are in other clusters do not count.
    *joins* says whether it matters which addresses one pod has in several slices.
    """

    def __init__(
        self,
        cluster: str,
        slices: Mapping[str, EndpointSlice],
        services: Mapping[str, Service],
        pods: Mapping[str, Pod],
        has_address: Callable[[Pod, bytes], bool],
        *,
        joins: bool = False,
    ) -> None:
        self._cluster = cluster
        self._slices, self._services, self._pods, self._has_address = slices, services, pods, has_address
        self._keys = KeysByAddress()  # of the slices with an endpoint at an address, as of the last ``pop_changed``
        self._changed_slices: dict[str, EndpointSlice | None] = {}  # by key, as they were at that time
        self._joins = joins
        self._by_pod: Index[str, EndpointSlice] = Index(pod=_pods)  # slices by the pods in them, if it *joins* them

    @property
    def has_addresses(self) -> bool:
        """Whether some endpoint had an address at the last ``pop_changed``."""
        return len(self._keys) > 0

    def update_slice(self, key: str, before: EndpointSlice | None) -> None:
        """Record a change of a slice, which was *before* (None: it did not exist)."""
        self._changed_slices.setdefault(key, before)
        if self._joins:
            self._by_pod.move(key, before, self._slices.get(key))

    def pop_changed(self) -> dict[bytes, str | None]:
        """Return the addresses whose endpoints changed since the last call, in the order of the changes.

        A value is the node that all endpoints there name, if they are ready and in kept slices; None says nothing.
        """
        slices, self._changed_slices = self._changed_slices, {}
        changed: dict[bytes, str | None] = {}
        self._keys = with_moves(self._keys, self._moves(slices.items(), changed, first=not self._keys))
        return changed

    def _moves(
        self,
        changed_slices: Iterable[tuple[str, EndpointSlice | None]],
        changed: dict[bytes, str | None],
        *,
        first: bool,
    ) -> Iterator[Move]:
        """Yield which addresses changed slices have left and joined.

        Those at which other endpoints may count now are added to *changed*.
        *first* says that no slice was known before: then the node of an address can be told while all are gone through.
        """
        for key, before in changed_slices:
            before, after = self._own(before), self._own(self._slices.get(key))
            had: Iterable[bytes]
            has: Iterable[bytes]
            had, has = ([] if known is None else known.endpoints.all_addresses() for known in (before, after))
            differing: Iterable[bytes] = chain(had, has)
            if before is not None and after is not None:
                if (before.service, before.managed) == (after.service, after.managed):  # otherwise all are others
                    differing = before.endpoints.differing_addresses(after.endpoints)
                had, has = set(had).difference(has), set(has).difference(had)
            rows = after.endpoints if first and after is not None and before is None and self.is_kept(after) else None
            if rows is not None and not rows.unready and not rows.counts:
                for address, node in zip(has, rows.nodes, strict=True):
                    if changed.setdefault(address, node) != node:
                        changed[address] = None
            elif any(known is not None and known.managed for known in (before, after)):  # else none of it counts
                changed.update(dict.fromkeys(differing))
            yield key, had, has

    def _own(self, known: EndpointSlice | None) -> EndpointSlice | None:
        """Return a slice, None if its endpoints are in another cluster: there they have their addresses."""
        own = known is None or not known.endpoints.clusters or {*known.endpoints.clusters} <= {None, self._cluster}
        return known if own else None

    def all_on(self, address: bytes, node: str) -> bool:
        """Whether no endpoint in a kept slice at an address names another node, as of the last ``pop_changed``."""
        slices = filter(self.is_kept, self._slices_at(address))
        return all(name == node for known in slices for name in known.endpoints.nodes_with(address))

    def is_kept(self, known: EndpointSlice) -> bool:
        """Whether the endpoints of a slice may locate clients: it is managed, and its Service selects pods."""
        return self._obstacle_of_slice(known) is None

    def only_node_at(self, address: bytes) -> tuple[str, EndpointSlice] | None:
        """Return the node, as its kept slice says, of the only endpoint at an address; None may mean anything else."""
        key = self._keys.get(address)
        known = self._slices.get(key) if isinstance(key, str) else None
        if known is None or not self.is_kept(known) or len(nodes := known.endpoints.nodes_with(address)) != 1:
            return None
        return None if nodes[0] is None else (nodes[0], known)

    def kept_at(self, address: bytes) -> list[EndpointHolder]:
        """Return the kept endpoints that have an address, the first of which decides."""
        slices = [known for known in self._slices_at(address) if self.is_kept(known)]
        holders = [found for found in _holders(slices, address) if self._obstacle(found, address) is None]
        return sorted(holders, key=attrgetter("rank")) if len(holders) > 1 else holders

    def addresses_of(self, found: EndpointHolder) -> tuple[bytes, ...]:
        """Return the addresses of an endpoint in all kept slices of its Service, as its answers join them."""
        pod, endpoint = found.pod, found.endpoint
        keys = self._by_pod.keys("pod", pod) if pod is not None else ()
        if pod is None or len(keys) < 2:
            return endpoint.addresses
        slices = (self._slices.get(key) for key in sorted(keys))
        same = [
            other.addresses
            for known in slices
            if known is not None and known.service_key == found.slice.service_key and self.is_kept(known)
            for other in known.endpoints.of_pod(known.namespace, pod)
            if (other.node, other.ready, other.cluster) == (endpoint.node, endpoint.ready, endpoint.cluster)
        ]
        return tuple(dict.fromkeys(chain.from_iterable(same)))

    def addresses_beside(self, known: EndpointSlice) -> Iterator[bytes]:
        """Yield the addresses in all slices that have an endpoint of a pod that *known* has, too."""
        for key in {key for pod in _pods(known) for key in self._by_pod.keys("pod", pod)}:
            if (other := self._slices.get(key)) is not None:
                yield from other.endpoints.all_addresses()

    def addresses_in(self, network: Network) -> Iterator[bytes]:
        """Yield the addresses in a network that some endpoint has, kept or not, in no order."""
        return (address for address, _ in self._keys.within(network))

    def slices_at(self, addresses: Iterable[bytes]) -> Iterator[str]:
        """Yield the keys of the slices with an endpoint at some addresses, as of the last ``pop_changed``."""
        return (key for address in addresses for key in keys_at(self._keys, address))

    def overlooked(self, address: bytes) -> str:
        """Say which endpoint has an address and is not kept, and what would make it count; empty if there is none."""
        for found in sorted(_holders(self._slices_at(address), address), key=attrgetter("rank")):
            obstacle = self._obstacle_of_slice(found.slice) or self._obstacle(found, address)
            if obstacle is not None:
                return f"{found.slice.kind} {found.slice.namespace}/{found.slice.name} has it, but {obstacle}"
        return ""

    def _obstacle(self, found: EndpointHolder, address: bytes) -> str | None:
        """Say why an endpoint of a kept slice does not count, None if it does."""
        pod = None if found.pod is None else self._pods.get(found.pod)
        if pod is not None and not self._has_address(pod, address):
            return f"its pod {pod.key} does not have the address"
        return None

    def _obstacle_of_slice(self, known: EndpointSlice) -> str | None:
        """Say why no endpoint of a slice counts, None if Kubernetes' own controller keeps it."""
        service = self._services.get(known.service_key or "")
        if service is None:
            wanted = "kubernetes.io/service-name of a Service with a selector"
            missing = f"there is no Service {known.service_key}" if known.service_key else f"no label {wanted}"
            return f"does not locate clients: {missing}"
        if service.alias is not None:
            return f"does not locate clients: Service {service.key} is of type ExternalName, which has no endpoints"
        if not service.selects_pods:
            return (
                f"does not locate clients: Service {service.key} has no selector, so anybody may write such endpoints; "
                "give the Service a selector, or topodns a --subnet around the address"
            )
        if known.deleting:
            return "does not locate clients: the slice has been deleted, and waits for its finalizers"
        if not known.managed:
            return f"does not locate clients without the label {MANAGED_BY}: {SLICE_CONTROLLER}"
        return None

    def _slices_at(self, address: bytes) -> Iterator[EndpointSlice]:
        """Yield the slices with an endpoint at an address, as of the last ``pop_changed``."""
        slices = (self._slices.get(key) for key in keys_at(self._keys, address))  # one may be gone since
        return (known for known in slices if known is not None)


def _holders(slices: Iterable[EndpointSlice], address: bytes) -> list[EndpointHolder]:
    """Return the endpoints in some slices that have an address, in no order."""
    return [
        EndpointHolder(known, endpoint, position)
        for known in slices
        for position, endpoint in enumerate(known.endpoints.with_address(address))
    ]


def _pods(known: EndpointSlice) -> Iterable[str]:
    return filter(None, known.endpoints.pod_keys(known.namespace))


def endpoint_text(known: EndpointSlice) -> str:
    """Return what people call an endpoint of a slice."""
    service = known.service_key
    return f"endpoint of {service}" if service else f"endpoint in slice {known.key}"
