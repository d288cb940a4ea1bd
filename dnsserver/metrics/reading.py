# SPDX-License-Identifier: Apache-2.0

"""Reads the metrics of a server, for ``topodns doctor`` and ``topodns simulate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from dnsserver.metrics.relations import UNKNOWN
from dnsserver.metrics.server import ANSWER_ZONES

Samples = Mapping[str, Mapping[tuple[str, ...], float]]
"""The values of each sample by its name, and by its label values in the order of the labels' names."""
ByZone = Mapping[str, int]
"""Answers by the zone of the client, "" for an unknown one."""


def read_samples(text: str) -> Samples | None:
    """Return the samples of an exposition, None if it is none."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
    except ValueError:
        return None
    return found


def answers_by_zone(text: str) -> tuple[ByZone, Mapping[str, ByZone] | None] | None:
    """Return how many answers with endpoints a server has counted by zone, and by Service and zone.

    The second, by ``namespace/name``, is None if it does not count Services by themselves. The result is None if *text*
    is not a server's exposition.
    """
    zones, of_services = Counter[str](), dict[str, Counter[str]]()
    found = (read_samples(text) or {}).get(ANSWER_ZONES.shown_name)
    try:
        for (_, zone, *service), value in (found or {}).items():  # answer, client_zone, service_name, service_namespace
            zone = "" if zone == UNKNOWN else zone
            zones[zone] += int(value)
            name, namespace = service or ("", "")
            if name:
                of_services.setdefault(f"{namespace}/{name}", Counter())[zone] += int(value)
    except (ValueError, OverflowError):
        return None
    if found is None or any(number < 0 for number in zones.values()):
        return None
    return zones, of_services or None
