# SPDX-License-Identifier: Apache-2.0

"""The findings about objects of a federation API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from locator.distribution.federation_status import NOT_OURS, REFUSED, ClusterStatus
from locator.distribution.instructions import Problem
from locator.distribution.records import Key
from locator.findings import ClusterCode
from locator.model import Finding
from locator.topology.annotations import ADOPT


def about(code: ClusterCode, key: Key, problem: Problem) -> Finding:
    """Return the finding about a problem of an object."""
    return code.finding(
        key.kind, key.namespace, key.name, field=problem.field, message=problem.message, expected=problem.expected
    )


def invalid(key: Key, problem: Problem) -> Finding:
    """Return the finding about bad input."""
    return about(ClusterCode.InvalidFederation, key, problem)


def refusals(key: Key, statuses: Mapping[str, ClusterStatus]) -> Iterator[Finding]:
    """Yield the findings about clusters that refuse an object, or have one of somebody else in its place."""
    for cluster, status in statuses.items():
        message = f"cluster {cluster}: {status.message}"
        if status.state == NOT_OURS:
            expected = f'{ADOPT}: "true" here to take it over, or another name'
            yield about(ClusterCode.NotOurs, key, Problem("metadata.name", message, expected))
        elif status.state == REFUSED:
            yield about(ClusterCode.Refused, key, Problem("", message, ""))
