# SPDX-License-Identifier: Apache-2.0

"""Compares resourceVersions, which say which of two versions of an object is the later one.

They are decimal numbers without leading zeros, and comparable within one resource (KEP-5504, Kubernetes 1.35).
"""

from __future__ import annotations


def version_order(version: str) -> tuple[int, str]:
    """Return what sorts resourceVersions, the earliest first; those that are no numbers come before all others."""
    return (len(version), version) if version.isascii() and version.isdigit() else (0, "")


def precedes(version: str, other: str) -> bool:
    """Whether *version* is earlier than *other*, both of one resource; False if that is unknown."""
    return (0, "") < version_order(version) < version_order(other)
