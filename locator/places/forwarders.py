"""Whose queries are asked for others: the cluster's own DNS servers, and for a while those who just left.

A DNS server that shuts down still forwards; its address may be another pod's a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from locator.model import EndpointSlice, Service

# Kubernetes takes an endpoint out of its slice when its pod is told to end, and ends it after at
# most terminationGracePeriodSeconds, 30 unless the pod says otherwise.
GRACE_SECONDS = 30

# Where clusters have their DNS: kubeadm and its kin keep kube-dns's name or label, whatever serves it; OpenShift has
# a name of its own.
DNS_NAMESPACE = "kube-system"
DNS_SERVICES = frozenset((f"{DNS_NAMESPACE}/kube-dns", "openshift-dns/dns-default"))
DNS_LABEL, DNS_LABEL_VALUE = "k8s-app", "kube-dns"

Own = frozenset[str]  # the keys of the pods that a forwarder's address was known to be of


class DnsServices:
    """The Services whose endpoints are trusted forwarders, by key: those *configured*, discovered ones if None.

    A Service is discovered by its name, for which its slices are enough, or by its label.
    """

    def __init__(self, configured: Iterable[str] | None) -> None:
        self._discovering = configured is None
        self.keys: set[str] = set(DNS_SERVICES if configured is None else configured)

    @property
    def text(self) -> str:
        """Which Services that can be, in words."""
        named = ", ".join(sorted(DNS_SERVICES if self._discovering else self.keys))
        labelled = f" or a Service of {DNS_NAMESPACE} labelled {DNS_LABEL}: {DNS_LABEL_VALUE}"
        return f"{named}{labelled}" if self._discovering else named

    def take_service(self, key: str, after: Service | None) -> bool:
        """Note that a Service is *after* now, None if it is gone; return whether it is now trusted or no more."""
        if not self._discovering or key in DNS_SERVICES:
            return False
        before, trusted = key in self.keys, after is not None and _is_labelled(after)
        (self.keys.add if trusted else self.keys.discard)(key)
        return before != trusted


def _is_labelled(service: Service) -> bool:
    return service.namespace == DNS_NAMESPACE and service.labels.get(DNS_LABEL) == DNS_LABEL_VALUE


class Forwarders:
    """The trusted forwarders among the endpoints of one cluster, by address."""

    def __init__(self) -> None:
        self._present: dict[bytes, Own] = {}
        self._leaving: dict[bytes, tuple[float, Own]] = {}  # with the time at which it is over

    @property
    def addresses(self) -> set[bytes]:
        """The addresses that are trusted."""
        return {*self._present, *self._leaving}

    @property
    def due(self) -> float | None:
        """When the next of those who left is trusted no more, None if nobody is leaving."""
        return min((until for until, _ in self._leaving.values()), default=None)

    def take_slices(self, slices: Iterable[EndpointSlice], now: float) -> None:
        """Note the slices of the cluster's DNS as they are *now*; their endpoints are trusted, ready or not."""
        before, self._present = self._present, present_in(slices)
        for address, own in before.items():
            if address not in self._present:
                self._leaving[address] = now + GRACE_SECONDS, own
        for address in self._present:
            self._leaving.pop(address, None)

    def forget_gone(self, now: float, held_by_another: Callable[[bytes, Own], bool]) -> None:
        """Forget those who left long ago, and those whose address another running pod has."""
        for address, (until, own) in list(self._leaving.items()):
            if now >= until or held_by_another(address, own):
                del self._leaving[address]


def present_in(slices: Iterable[EndpointSlice]) -> dict[bytes, Own]:
    """Return the addresses in some slices, each with the keys of the pods that have it there."""
    found: dict[bytes, set[str]] = {}
    for each in slices:
        for endpoint in each.endpoints:
            for address in endpoint.addresses:
                own = found.setdefault(address, set())
                if endpoint.pod is not None:
                    own.add(f"{each.namespace}/{endpoint.pod}")
    return {address: frozenset(own) for address, own in found.items()}
