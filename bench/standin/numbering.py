# SPDX-License-Identifier: Apache-2.0

"""The stand-in's cluster by numbers: what its nodes, Services and pods are called, and where they are.

All values of one sort have the same length, that of the recorded one: the lengths that protobuf states stay right.
"""

from __future__ import annotations

from bench.publishing import ENDPOINTS, NAMESPACES, NODES, SERVICES, node_of
from tests.kit.api_objects import ZONE as ZONE_KEY

__all__ = ["ENDPOINTS", "NAMESPACES", "NODES", "PODS", "SERVICES", "ZONE_KEY", "node_of"]

PODS = SERVICES * ENDPOINTS  # each is an endpoint of its Service
ZONES = "abc"
RACKS = 25
GENERATIONS = 5  # of a pod until one has the address of the first again
_ROWS = 150  # nodes whose addresses share the second octet: octets have three digits, from 100 to 249
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes the ends of names of


def namespace(service: int) -> str:
    """Return the namespace of a Service."""
    return f"ns-{service % NAMESPACES:03}"


def service_name(service: int) -> str:
    """Return the absolute name of a Service."""
    return f"{service_label(service)}.{namespace(service)}.svc.cluster.local."


def service_label(service: int) -> str:
    """Return a Service's name in its namespace."""
    return f"service-{service:05}"


def node_name(node: int) -> str:
    """Return a node's name."""
    return f"node-{node:04}"


def zone(node: int) -> str:
    """Return a node's zone."""
    return f"region-1{ZONES[node % len(ZONES)]}"


def block(node: int) -> str:
    """Return the first three octets of a node's pod CIDR, a /24."""
    return f"10.{100 + node // _ROWS}.{100 + node % _ROWS}"


def host(node: int) -> str:
    """Return a node's own address."""
    return f"172.{16 + node // (_ROWS * _ROWS)}.{100 + node // _ROWS % _ROWS}.{100 + node % _ROWS}"


def pod_address(pod: int, generation: int) -> str:
    """Return the address of a pod; no other pod of that time has it."""
    turn = generation % GENERATIONS
    return f"{block(node_of(pod, turn))}.{100 + pod // NODES + PODS // NODES * turn}"


def suffix(number: int) -> str:
    """Return the end of a name: five characters, as Kubernetes draws them."""
    drawn = ""
    for _ in range(5):
        number, letter = divmod(number, len(_LETTERS))
        drawn += _LETTERS[letter]
    return drawn


def uid(kind: int, number: int, generation: int = 0) -> str:
    """Return the uid of an object."""
    return f"{number:08x}-{generation & 0xFFFF:04x}-4{kind:03x}-8000-{number * 48_271 & 0xFFFFFFFFFFFF:012x}"
