# SPDX-License-Identifier: Apache-2.0

"""The findings about objects of a federation API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from locator.distribution.federation_status import NOT_OURS, REFUSED, ClusterStatus
from locator.distribution.instructions import Problem
from locator.distribution.records import KINDS, Key
from locator.findings import ClusterCode
from locator.model import Finding
from locator.topology.annotations import ADOPT


def invalid(key: Key, problem: Problem) -> Finding:
    """Return the finding about bad input."""
    return _about(ClusterCode.InvalidFederation, key, problem)


def not_distributed(key: Key) -> Finding:
    """Return the finding about a workload of a kind that is not distributed."""
    message = f"a {key.kind} is not distributed to clusters"
    return _about(ClusterCode.NotDistributed, key, Problem("", message, f"one of {', '.join(KINDS)}"))


def refusals(key: Key, statuses: Mapping[str, ClusterStatus]) -> Iterator[Finding]:
    """Yield the findings about clusters that refuse an object, or have one of somebody else in its place."""
    for cluster, status in statuses.items():
        message = f"cluster {cluster}: {status.message}"
        if status.state == NOT_OURS:
            expected = f'{ADOPT}: "true" here to take it over, or another name'
            yield _about(ClusterCode.NotOurs, key, Problem("metadata.name", message, expected))
        elif status.state == REFUSED:
            yield _about(ClusterCode.Refused, key, Problem("", message, ""))


def _about(code: ClusterCode, key: Key, problem: Problem) -> Finding:
    return code.finding(
        key.kind, key.namespace, key.name, field=problem.field, message=problem.message, expected=problem.expected
    )
