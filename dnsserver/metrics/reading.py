# SPDX-License-Identifier: Apache-2.0

"""Reads the metrics of a server, for ``topodns doctor`` and ``topodns simulate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from dnsserver.metrics import server_families as families
from dnsserver.metrics.server_families import UNKNOWN

Samples = Mapping[str, Mapping[tuple[str, ...], float]]
"""The values of each sample by its name, and by its label values in the order of the labels' names."""


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


ByZone = Mapping[str, int]  # answers by the zone of the client, "" for an unknown one


def answers_by_zone(text: str) -> tuple[ByZone, Mapping[str, ByZone] | None] | None:
    """Return how many answers with endpoints a server has counted by zone, and by Service and zone.

    The second, by ``namespace/name``, is None if it does not count Services by themselves. The result is None if *text*
    is not a server's exposition.
    """
    zones, of_services = Counter[str](), dict[str, Counter[str]]()
    family = families.ANSWER_ZONES.name
    found = False
    try:
        for one in text_string_to_metric_families(text):
            for sample in one.samples if one.name == family else ():
                found = True
                zone = sample.labels["client_zone"]
                zone = "" if zone == UNKNOWN else zone
                zones[zone] += int(sample.value)
                if service := sample.labels.get("service_name"):
                    key = f"{sample.labels['service_namespace']}/{service}"
                    of_services.setdefault(key, Counter())[zone] += int(sample.value)
    except (ValueError, LookupError, OverflowError):
        return None
    if any(number < 0 for number in zones.values()):
        return None
    return (zones, of_services or None) if found else None
