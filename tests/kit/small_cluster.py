# SPDX-License-Identifier: Apache-2.0

"""The small cluster that many tests serve."""

from __future__ import annotations

import json

from tests.kit.api_objects import endpoint, endpoint_slice, external, large, listed, namespace, service

WEB = "web.shop.svc.cluster.local"
MANY = "many.shop.svc.cluster.local"
# A small Service and a large one, without constraints.
WEB_AND_MANY = listed(
    [
        namespace("shop"),
        service("web"),
        endpoint_slice("web", 0, [endpoint("10.0.0.1"), endpoint("10.0.0.2")]),
        *large("many", 250),
    ]
)


# The same, and two ExternalName Services, for example.org and example.net.
OUT, OUT_2 = "out.shop.svc.cluster.local", "out-2.shop.svc.cluster.local"
WITH_ALIASES = listed(
    [*json.loads(WEB_AND_MANY)["items"], external("out", "example.org"), external("out-2", "example.net")]
)
