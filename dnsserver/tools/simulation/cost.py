# SPDX-License-Identifier: Apache-2.0

"""Figures without constraints and with them, and what traffic between zones costs. Pure."""

from __future__ import annotations

from msgspec import Struct


class BeforeAndAfter(Struct, frozen=True):
    """A figure without any constraint, and with the constraints that were simulated."""

    before: float
    after: float


class Price(Struct, frozen=True):
    """What a gigabyte between zones costs, and how many of them each Service's clients get in a month."""

    per_gb: float
    traffic: float

    def of(self, crossing: float) -> float:
        """Return what a month costs if *crossing* of one Service's traffic, a fraction, crosses zones."""
        return self.per_gb * self.traffic * crossing
