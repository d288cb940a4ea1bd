# SPDX-License-Identifier: Apache-2.0

"""The findings about topology keys that no node carries: misspelled ones, mostly.

The labels of ``--subnet`` do not count. They say where clients are, and a key needs endpoints that carry it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from locator.finding_codes import ClusterCode
from locator.labels import nearest_label_key
from locator.model import CLUSTER, ERROR, SUCCESSORS, WARNING, Finding, Location, Service, ServicePolicy
from locator.topology.constraints import POLICY, REQUIRED, SOURCE_FIELDS, Declaration
from locator.topology.selection import ANY

_nearest = lru_cache(maxsize=1024)(nearest_label_key)  # difflib takes a millisecond


class CarriedKeys:
    """The label *keys* that nodes carry. If they are empty, no node is known, and any key may be carried."""

    def __init__(self, keys: frozenset[str] = frozenset()) -> None:
        self.keys = keys

    def nearest(self, key: str) -> str | None:
        """Return the key that nodes carry and that is most like a topology key; None if they may carry that itself."""
        if not self.keys or key in (ANY, CLUSTER) or SUCCESSORS.get(key, key) in self.keys:
            return None
        return _nearest(key, self.keys)

    def missing(self, keys: Iterable[str], locations: Iterable[Location] = ()) -> Iterator[tuple[str, str]]:
        """Yield those of some topology keys that neither a node nor one of *locations* carries, with the nearest."""
        for key in keys:
            nearest = self.nearest(key)
            if nearest is not None and all(location.value(key) is None for location in locations):
                yield key, nearest


def service_key_findings(
    service: Service, declaration: Declaration, locations: Sequence[Location], carried: CarriedKeys
) -> Iterator[Finding]:
    """Yield a finding for each key of *declaration*, which decides about *service*, that no node carries.

    *locations* are those of its endpoints. ServicePolicies have findings of their own.
    """
    if declaration.source == POLICY:
        return
    severity = WARNING if declaration.constraint.soft else ERROR
    for key, nearest in carried.missing(declaration.constraint.keys, locations):
        field = SOURCE_FIELDS[declaration.source]
        yield ClusterCode.KeyOnNoNode.about(service, field, _message(key), nearest, severity=severity)


def policy_key_findings(
    policy: ServicePolicy, locations: Iterable[Location], carried: CarriedKeys
) -> Iterator[Finding]:
    """Yield a finding if no node carries the key of a valid policy; *locations* are those of its endpoints."""
    severity = ERROR if policy.mode == REQUIRED else WARNING
    for key, nearest in carried.missing([policy.topology_key], locations):
        yield ClusterCode.KeyOnNoNode.about(policy, "spec.topology.key", _message(key), nearest, severity=severity)


def default_key_findings(defaults: Mapping[str, Sequence[str]], carried: CarriedKeys) -> Iterator[Finding]:
    """Yield a finding for each default key of a DNS zone that no node carries; *defaults* has the keys by zone."""
    for zone, keys in defaults.items():
        severity = WARNING if keys[-1:] == (ANY,) else ERROR
        for key, nearest in carried.missing(keys):
            yield ClusterCode.KeyOnNoNode.finding(
                "",
                "",
                "",
                field="--default-topology-keys",
                message=f"{zone}: {_message(key)}",
                expected=nearest,
                severity=severity,
            )


def _message(key: str) -> str:
    return f"no node has the label {key}"
