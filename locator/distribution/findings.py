# SPDX-License-Identifier: Apache-2.0

"""The findings about objects of a federation API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from locator.distribution.instructions import Problem
from locator.distribution.records import Key
from locator.distribution.told import NOT_OURS, REFUSED, InCluster
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


def refusals(key: Key, states: Mapping[str, InCluster]) -> Iterator[Finding]:
    """Yield the findings about clusters that refuse an object, or have one of somebody else in its place."""
    for cluster, found in states.items():
        message = f"cluster {cluster}: {found.message}"
        if found.state == NOT_OURS:
            expected = f'{ADOPT}: "true" here to take it over, or another name'
            yield about(ClusterCode.NotOurs, key, Problem("metadata.name", message, expected))
        elif found.state == REFUSED:
            yield about(ClusterCode.Refused, key, Problem("", message, ""))
