# SPDX-License-Identifier: Apache-2.0

"""What the HTTP server says when something is wrong: apart from all else, because every server may say it."""

from __future__ import annotations

from typing import NotRequired, TypedDict

PROBLEM_JSON = "application/problem+json"


class Problem(TypedDict):
    """What went wrong (RFC 9457). ``parameter`` is the one that is wrong, if it is one."""

    type: str
    title: str
    status: int
    detail: str
    parameter: NotRequired[str]
