# SPDX-License-Identifier: Apache-2.0

"""A cluster of three zones with clients, in which a zone may lose all endpoints: ``hard`` stays in the zone, ``soft``
goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.kit.api_objects import RACK, ZONE, Item, endpoint, endpoint_slice, namespace, node, pod, service
from tests.kit.finding_rows import DNS

CLIENTS = {"a": 3, "b": 2, "c": 1}
ZONES = tuple(CLIENTS)


def three_zones(*more: Item, lost: Sequence[str] = (), hard: str = ZONE, zones: Sequence[str] = ZONES) -> list[Item]:
    """Return the cluster and *more*: ``hard`` (with these keys) and ``soft`` have an endpoint in each of the *zones*.

    In the zones that are *lost*, none is ready.
    """
    rows = [endpoint(f"10.{ZONES.index(zone)}.9.1", nodeName=f"{zone}1", ready=zone not in lost) for zone in zones]
    return [
        *(item for item in DNS if item["kind"] != "Namespace"),
        namespace("shop"),
        *(node(f"{zone}1", {ZONE: zone, RACK: f"r{zone}"}) for zone in ZONES),
        *(
            pod(f"web-{zone}{number}", [f"10.{place}.1.{number}"], f"{zone}1")
            for place, (zone, clients) in enumerate(CLIENTS.items())
            for number in range(1, clients + 1)
        ),
        service("hard", keys=hard, labels={"app": "hard"}),
        endpoint_slice("hard", 1, rows),
        service("soft", keys=f"{ZONE},*"),
        endpoint_slice("soft", 1, rows),
        *more,
    ]
