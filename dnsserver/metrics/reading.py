"""Reads the metrics of a server, as ``topodns doctor`` compares them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

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
