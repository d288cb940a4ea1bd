"""Compares resourceVersions, which say which of two versions of an object is the later one."""

from __future__ import annotations


def precedes(version: str, other: str) -> bool:
    """Whether *version* is earlier than *other*, both of one resource (Kubernetes 1.35); False if that is unknown."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)
