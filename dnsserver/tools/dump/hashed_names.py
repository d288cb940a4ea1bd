# SPDX-License-Identifier: Apache-2.0

"""Hashed names: replaces names and addresses by words that tell nothing, for who shows a cluster to others.

The same name becomes the same word wherever it stands, so whatever is computed from the result is the same up to the
names. A word depends on a random key that nobody keeps: who has no key can neither undo it nor try names.
"""

from __future__ import annotations

import re
from base64 import b32encode
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.names import MAX_LABEL
from locator.api.schema import OwnerReference
from locator.ip import Network, address_text, host_network, is_within, network_text, parse_address, parse_network
from locator.places.forwarders import DNS_SERVICE_LABEL, DNS_SERVICE_LABEL_VALUE, DNS_SERVICES
from locator.topology.annotations import MAX_OVERLOAD, MIN_ENDPOINTS

DIGITS = 10  # of a word, in base 32: two of 300,000 names get one word in one of 25,000 clusters
# What every cluster has, and what topodns knows by its name.
KNOWN = frozenset(
    (
        *("default", "kube-public", "kube-node-lease", "kubernetes", "coredns", "node-local-dns"),
        *("topodns", "topodns-controller", "topodns-webhook", "serve", "controller", "webhook"),
        *(word for key in DNS_SERVICES for word in key.split("/")), DNS_SERVICE_LABEL, DNS_SERVICE_LABEL_VALUE,
        *("cluster", "local", "svc", "pod", "clusterset", "in-addr", "ip6", "arpa", "zone", "pin", "prefer"),
        *("control-plane", "true", "false", "on", "off", "all", "none", "unknown", "auto", "disabled", "in", "notin"),
        *("waiting", "running", "terminated"),  # of a container's state
        *("dns", "dns-tcp", "http", "https", "tcp", "udp", "sctp", "metrics"),
    )
)  # fmt: skip
# Networks whose addresses have a meaning: what lies in one stays in it. Those of WHOLE are not hashed at all.
WHOLE = tuple(
    map(parse_network, ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/127", "fe80::/10", "ff00::/8"))
)
PRIVATE = tuple(
    map(parse_network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "2000::/3", "fc00::/7"))
)
# What keys that Kubernetes defines have before kubernetes.io or k8s.io. Others may write names of theirs there.
DOMAINS = (
    *("app", "apps", "batch", "beta", r"failure-domain\.beta", "multicluster", "node", "service", "statefulset"),
    *("endpoints", "endpointslice", "endpointslice-controller", "endpointslicemirroring-controller", "topology"),
)
_TOKEN = re.compile(
    r"(?P<address>(?<![\w.:-])(?:\d+(?:\.\d+){3}(?![\w.-])|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*))(?P<length>/\d+)?"
    # Keys and names that Kubernetes and topodns define, variables of topodns, and ports.
    rf"|(?<![\w.-])(?:(?:{'|'.join(DOMAINS)})\.)?(?:k8s|x-k8s|kubernetes|topodns)\.io(?![\w.-])(?:/[\w.-]+)?"
    r"|(?<![\w.-])node-(?:role|restriction)\.kubernetes\.io(?=/)"  # the names in these are those of the cluster
    r"|TOPODNS_\w+|(?<=:)\d+(?![\w.-])"
    r"|(?P<name>[^\W_](?:[\w.-]*\w)?)"
)
# Fields of words that Kubernetes or topodns defines, of times and of numbers: they stay as they are.
PLAIN = frozenset(
    (
        *("created", "deleted", "version", "at", "since", "renew_time", "event_time", "last_transition_time"),
        *("first_timestamp", "last_timestamp", "started_at", "finished_at", "over_capacity", "resources"),
        *("type", "status", "reason", "phase", "protocol", "address_type", "kind", "operator", "mode"),
        *("external_traffic_policy", "traffic_distribution"),
        *("command", "args"),  # ``dumped`` hashes them: it knows flags
    )
)
OWNERS = (
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
    "DaemonSet",
    "Job",
    "Node",
)  # other kinds are names, too
FREE_TEXT = "message"  # the field that says something in words: it is left out
NUMBERS = (MIN_ENDPOINTS, MAX_OVERLOAD)  # annotations that are numbers


class HashedNames:
    """Hashes names by a secret *key* of at least 16 octets."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._word = lru_cache(1 << 20)(self._new_word)
        self._octet = lru_cache(1 << 20)(self._new_octet)

    def text(self, text: str) -> str:
        """Return a text in which each name, address and network is hashed, whatever stands between them.

        Ports stay, and words that are not of this cluster: ``KNOWN``, and the keys that Kubernetes (in ``DOMAINS``) and
        topodns define. The labels of a dotted name are hashed one by one, as far as the result is no longer than 63.
        """
        return _TOKEN.sub(self._token, text)

    def address(self, address: bytes) -> bytes:
        """Return the address that stands for another one.

        Two addresses share as many leading bits as those that they stand for (as in Crypto-PAn), so that a network
        becomes a network. Each of ``PRIVATE`` stays itself; addresses in ``WHOLE`` are not hashed.
        """
        if any(is_within(host_network(address), network) for network in WHOLE):
            return address
        return bytes(self._octet(address[:position], octet, len(address)) for position, octet in enumerate(address))

    def struct(self, value: Any, field: str = "") -> Any:
        """Return a copy of a struct, or of what stands in one as *field*, in which everything is hashed by ``text``.

        Exceptions: ``PLAIN``, ``NUMBERS``, and the keys of annotations. ``FREE_TEXT`` is left out.
        """
        if isinstance(value, OwnerReference) and value.kind not in OWNERS:
            value = replace(value, kind=self.text(value.kind or ""))
        if isinstance(value, Struct):
            names = {name for name in value.__struct_fields__ if name != FREE_TEXT}
            return type(value)(**{name: self.struct(getattr(value, name), name) for name in sorted(names)})
        if field in PLAIN and not (isinstance(value, str) and "/" in value):  # with a slash, somebody else defines it
            return value
        if isinstance(value, dict):
            if field == "annotations":
                return {key: text if key in NUMBERS else self.text(text) for key, text in value.items()}
            return {self.text(key): self.struct(inside) for key, inside in value.items()}
        if isinstance(value, list):
            return [self.struct(inside, field) for inside in value]
        return self.text(value) if isinstance(value, str) else value

    def _token(self, found: re.Match[str]) -> str:
        if found["address"] is not None:
            return self._network(found["address"], found["length"] or "")
        if found["name"] is None:
            return found[0]
        name = found["name"]
        hashed = ".".join(map(self._word, name.split(".")))
        return hashed if len(hashed) <= MAX_LABEL or len(name) > MAX_LABEL else self._word(name)

    def _network(self, text: str, length: str) -> str:
        try:
            address = parse_address(text)
        except ValueError:
            return re.sub(r"[^:]+", lambda found: self._word(found[0]), text) + length
        hashed = self.address(address)
        try:
            network = parse_network(text + length) if length else None
        except ValueError:
            network = None  # host bits are set: they are hashed, too
        if network is None:
            return address_text(hashed) + length
        end = 8 * len(hashed) - network.length  # host bits that were zero stay zero
        return network_text(Network((int.from_bytes(hashed) >> end << end).to_bytes(len(hashed)), network.length))

    def _new_word(self, text: str) -> str:
        if text.lower() in KNOWN or not text:
            return text
        digest = b32encode(blake2b(text.lower().encode(), key=self._key, person=b"word").digest())[:DIGITS]
        word = ("n" if text == text.lower() else "N") + digest.decode().lower()  # what ignores the case sees one word
        return word.ljust(len(text), "x") if len(text) > MAX_LABEL else word  # too long stays too long

    def _new_octet(self, before: bytes, octet: int, size: int) -> int:
        """Return the octet that stands for one that follows others in an address of *size* octets."""
        person = b"IPv4" if size == 4 else b"IPv6"
        flips = int.from_bytes(blake2b(before, key=self._key, digest_size=32, person=person).digest())
        begin, hashed = 8 * len(before), 0
        near = [network for network in (*PRIVATE, *WHOLE) if _leads_to(before, network, size)]
        for depth in range(8):
            path = octet >> (8 - depth)
            kept = any(
                network.length > begin + depth and network.address[len(before)] >> (8 - depth) == path
                for network in near
            )
            bit = octet >> (7 - depth) & 1
            hashed = hashed << 1 | bit ^ (0 if kept else flips >> (1 << depth | path) & 1)
        return hashed


def _leads_to(before: bytes, network: Network, size: int) -> bool:
    """Whether addresses of *size* octets that begin with *before* may lie in a network, or not, by the next octet."""
    return len(network.address) == size and network.length > 8 * len(before) and network.address.startswith(before)
