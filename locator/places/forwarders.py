# SPDX-License-Identifier: Apache-2.0

"""Discovers the cluster's forwarders: the endpoints of its DNS Services, trusted for 30 s after they leave.

A DNS server that shuts down still forwards queries, but another pod may get its address at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from locator.model import EndpointSlice, Service

# Kubernetes removes an endpoint from its slice when it asks the pod to terminate, and kills the pod after
# terminationGracePeriodSeconds, by default 30.
GRACE_SECONDS = 30

# The cluster's DNS Service: kubeadm and most distributions keep kube-dns's name or label, whatever server runs
# behind it; OpenShift has a name of its own.
DNS_NAMESPACE = "kube-system"
DNS_SERVICES = frozenset((f"{DNS_NAMESPACE}/kube-dns", "openshift-dns/dns-default"))
DNS_SERVICE_LABEL, DNS_SERVICE_LABEL_VALUE = "k8s-app", "kube-dns"

PodKeys = frozenset[str]  # the pods that had a forwarder's address, as their slices say


class DnsServices:
    """The Services whose endpoints are trusted forwarders: the *configured* ones, or the discovered ones if None.

    ``keys`` has their keys. topodns discovers a Service by its name (its slices are enough), or by its label.
    """

    def __init__(self, configured: Iterable[str] | None) -> None:
        self._discovering = configured is None
        self.keys: set[str] = set(DNS_SERVICES if configured is None else configured)

    @property
    def text(self) -> str:
        """The Services to look for, as a message names them."""
        named = ", ".join(sorted(DNS_SERVICES if self._discovering else self.keys))
        labelled = f" or a Service of {DNS_NAMESPACE} labelled {DNS_SERVICE_LABEL}: {DNS_SERVICE_LABEL_VALUE}"
        return f"{named}{labelled}" if self._discovering else named

    def update_service(self, key: str, after: Service | None) -> bool:
        """Record a Service, None if it is deleted; return whether this changed the trusted Services."""
        if not self._discovering or key in DNS_SERVICES:
            return False
        was_trusted, trusted = key in self.keys, after is not None and _is_labelled(after)
        (self.keys.add if trusted else self.keys.discard)(key)
        return was_trusted != trusted


def _is_labelled(service: Service) -> bool:
    return service.namespace == DNS_NAMESPACE and service.labels.get(DNS_SERVICE_LABEL) == DNS_SERVICE_LABEL_VALUE


class Forwarders:
    """The trusted forwarders among the endpoints of one cluster, by address."""

    def __init__(self) -> None:
        self._present: dict[bytes, PodKeys] = {}
        self._leaving: dict[bytes, tuple[float, PodKeys]] = {}  # with the time at which trust ends

    @property
    def addresses(self) -> set[bytes]:
        """The addresses of all trusted forwarders."""
        return {*self._present, *self._leaving}

    @property
    def due(self) -> float | None:
        """When trust in the next leaving forwarder ends, None if none is leaving."""
        return min((until for until, _ in self._leaving.values()), default=None)

    def update_slices(self, slices: Iterable[EndpointSlice], now: float) -> None:
        """Record all slices of the DNS Services at *now*; topodns trusts their endpoints, ready or not."""
        before, self._present = self._present, present_in(slices)
        for address, pods in before.items():
            if address not in self._present:
                self._leaving[address] = now + GRACE_SECONDS, pods
        for address in self._present:
            self._leaving.pop(address, None)

    def end_trust(self, now: float, held_by_another: Callable[[bytes, PodKeys], bool]) -> None:
        """Forget the forwarders that left ``GRACE_SECONDS`` ago, and those whose address another running pod has."""
        for address, (until, pods) in list(self._leaving.items()):
            if now >= until or held_by_another(address, pods):
                del self._leaving[address]


def present_in(slices: Iterable[EndpointSlice]) -> dict[bytes, PodKeys]:
    """Return the addresses in some slices, each with the keys of the pods that have it there."""
    pods_at: dict[bytes, set[str]] = {}
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            for address in endpoint.addresses:
                pods = pods_at.setdefault(address, set())
                if (pod := endpoint.pod_key(endpoint_slice.namespace)) is not None:
                    pods.add(pod)
    return {address: frozenset(pods) for address, pods in pods_at.items()}
