# SPDX-License-Identifier: Apache-2.0

"""An explanation, asked for as people ask ``topodns explain``."""

from __future__ import annotations

from typing import Any

from dnsserver.message.records import type_number
from dnsserver.names import labels_of
from dnsserver.programs.from_settings import authority_of
from dnsserver.tools.explain.explain import explain
from dnsserver.tools.explain.explanation import Explanation
from locator.ip import parse_client
from locator.state.snapshot import Snapshot
from tests.kit.in_memory import Flags, settings_of


def explanation_of(
    snapshot: Snapshot, name: str, client: str, qtype: str = "A", *, flags: Flags | None = None, **more: Any
) -> Explanation:
    """Return what ``explain`` says to a client at an address or a prefix; *more* is that of the function."""
    authority = authority_of(settings_of(flags))
    return explain(labels_of(name), type_number(qtype), parse_client(client), snapshot, authority, **more)
