# SPDX-License-Identifier: Apache-2.0

"""Certificates for tests."""

from __future__ import annotations

from collections.abc import Collection

from locator.cluster.certificates.issuing import Pair, issue, new_authority


def issued(names: Collection[str], now: float, lifetime: float) -> tuple[bytes, Pair]:
    """Return a new CA, and a certificate by it for *names*, from *now* (Unix time) for *lifetime* seconds."""
    authority = new_authority(now, lifetime)
    return authority.certificate, issue(authority, names, now, lifetime)
