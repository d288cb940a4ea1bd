# SPDX-License-Identifier: Apache-2.0

"""Joins the endpoints of a Service's slices: one for each pod, and one for each address without a pod."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from msgspec.structs import replace

from locator.endpoints import SliceEndpoints, compact
from locator.model import Endpoint, EndpointSlice, Hints, Port


def joined_endpoints(slices: Sequence[EndpointSlice], *, ready: bool = True) -> tuple[Endpoint, ...]:
    """Return the endpoints of a Service's slices that are *ready*, or those that are not.

    There is one for each pod, and one for each address without a pod.

    ``EndpointIdentities`` says which endpoints are the same.
    """
    if ready and len(slices) == 1 and are_joined(slices[0].endpoints):
        return tuple(slices[0].endpoints)
    joined: dict[object, Endpoint] = {}
    joined_ports: dict[tuple[int, int], tuple[Port, ...]] = {}  # of two lists by identity: slices share theirs
    identities = EndpointIdentities()
    for endpoints in living_endpoints(slices):
        if not ready and not endpoints.unready:
            continue
        for endpoint in endpoints:
            if endpoint.ready is not ready:
                continue
            key = identities.of(endpoint)
            other = joined.get(key)
            if other is None:
                joined[key] = endpoint
            else:
                both = id(other.ports), id(endpoint.ports)
                if (ports := joined_ports.get(both)) is None:
                    ports = joined_ports[both] = tuple(dict.fromkeys((*other.ports, *endpoint.ports)))
                joined[key] = replace(
                    other,
                    addresses=tuple(dict.fromkeys((*other.addresses, *endpoint.addresses))),
                    ports=ports,
                    hints=_joined_hints(other.hints, endpoint.hints),
                )
    return tuple(joined.values())


def living_endpoints(slices: Iterable[EndpointSlice]) -> list[SliceEndpoints]:
    """Return the endpoints of each of a Service's slices, less the addresses that the living have from the dying."""
    all_of_them = [endpoint_slice.endpoints for endpoint_slice in slices]
    living = living_addresses(all_of_them)
    if not living:
        return all_of_them
    return [
        compact(left for endpoint in endpoints if (left := less(endpoint, living)) is not None)
        for endpoints in all_of_them
    ]


def living_addresses(all_of_them: Collection[SliceEndpoints]) -> set[tuple[str | None, bytes]]:
    """Return the addresses of the endpoints in a Service's slices that do not terminate, each with its cluster.

    Where an endpoint that terminates has one of them, its pod is dead, and the address is used again. If none
    terminates, the result is empty: nobody loses an address.
    """
    if not any(endpoints.terminating for endpoints in all_of_them):
        return set()
    return {
        (endpoint.cluster, address)
        for endpoints in all_of_them
        for endpoint in endpoints
        if not endpoint.terminating
        for address in endpoint.addresses
    }


def less(endpoint: Endpoint, living: Container[tuple[str | None, bytes]]) -> Endpoint | None:
    """Return what is left of an endpoint without the addresses that the *living* have from it, None if nothing is."""
    if not endpoint.terminating:
        return endpoint
    left = tuple(address for address in endpoint.addresses if (endpoint.cluster, address) not in living)
    return replace(endpoint, addresses=left) if left else None


def are_joined(endpoints: SliceEndpoints) -> bool:
    """Whether to join these endpoints, if they are all that a Service has, is to take them as they are."""
    if endpoints.unready or endpoints.terminating or not endpoints.pods:
        return False
    pods = endpoints.pod_names()
    if None in pods:
        return False
    return len(set(pods)) == len(pods) or len({*zip(pods, endpoints.nodes, strict=True)}) == len(pods)


class EndpointIdentities:
    """Says which ready endpoints of one Service's slices are the same endpoint.

    A pod may be in several slices (IPv4, IPv6, ports). It is one endpoint, so that one selection holds for A, AAAA and
    SRV. Two pods on their node's network may share an address and remain two, and so do endpoints in two clusters.
    """

    def __init__(self) -> None:
        # By address, and by cluster where slices name one: the identity of the first endpoint that has it.
        self._keys: dict[object, object] = {}

    def of(self, endpoint: Endpoint) -> object:
        """Return the identity of an endpoint; equal ones mean the same endpoint. Slices count in their order."""
        keys, cluster = self._keys, endpoint.cluster
        key: object = (endpoint.pod_namespace, endpoint.pod, endpoint.node, cluster)
        addresses: Sequence[object] = endpoint.addresses
        if cluster is not None:  # clusters may use the same addresses
            addresses = [(address, cluster) for address in addresses]
        if endpoint.pod is None:  # its addresses identify it
            fresh = tuple(address for address in addresses if address not in keys)
            key = next((keys[address] for address in addresses if address in keys), fresh)
        for address in addresses:
            keys.setdefault(address, key)
        return key


def _joined_hints(one: Hints | None, other: Hints | None) -> Hints | None:
    """Return the nodes and zones that either names: kube-proxy takes an endpoint by each of its slices."""
    if one is None or other is None or one == other:
        return one or other
    return Hints(
        tuple(dict.fromkeys((*one.nodes, *other.nodes))),
        tuple(dict.fromkeys((*one.zones, *other.zones))),
    )
