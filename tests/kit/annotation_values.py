# SPDX-License-Identifier: Apache-2.0

"""Values of topodns' annotations, valid and invalid.

Each row holds for our own functions and for the admission policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.kit.api_objects import HOSTNAME, ZONE

SIXTEEN = ",".join([*(f"example.com/k{number}" for number in range(15)), "*"])

# topodns.io/topology-keys: the text, and a word of what is wrong, None if it is valid
KEYS: Sequence[tuple[str, str | None]] = (
    (ZONE, None),
    ("*", None),
    (f"{HOSTNAME},{ZONE},*", None),
    (f" {HOSTNAME} , {ZONE} ", None),
    (SIXTEEN, None),
    ("zone", None),
    ("Zone_1.x-y", None),
    (f"{'a' * 63}", None),
    (f"{'a.' * 126}a/zone", None),
    (f"{ZONE},failure-domain.beta.kubernetes.io/zone", None),  # two names of one label
    (f"{SIXTEEN[:-1]}one,two", "17 keys"),
    ("a," * 100, "101 keys"),
    (f"{HOSTNAME},{HOSTNAME}", "twice"),
    (f"{HOSTNAME}, {HOSTNAME} ,a b", "twice"),
    ("*,*", "last"),
    (f"*,{ZONE}", "last"),
    (f"{HOSTNAME},*,{ZONE},*", "key 2 of 4"),
    (f"{ZONE},", "label key"),
    (f",{ZONE}", "label key"),
    (",", "label key"),
    ("/zone", "label key"),
    ("example.com/", "label key"),
    ("a/b/c", "label key"),
    ("-zone", "label key"),
    ("zone-", "label key"),
    ("zo ne", "label key"),
    ("zöne", "label key"),
    ("Example.com/zone", "label key"),
    ("example..com/zone", "label key"),
    ("a" * 64, "label key"),
    (f"{'a' * 254}/zone", "label key"),
    (f"{'a' * 253}/{'b' * 63}", None),
    (f"{'a' * 253}/{'b' * 64}", "label key"),
    ("zone\n", None),  # white space around a key is not part of it
    ("\u00a0zone\u3000,\u2009*", None),
    ("zone\x1f", "label key"),  # a control character, and no white space for Unicode
    ("zone\u200b", "label key"),
    (f"{HOSTNAME}\n{ZONE}\n", "label key"),
    ("**", "label key"),
    (f"{ZONE}=a", "label key"),
    (f'["{ZONE}"]', "label key"),
    (f"{HOSTNAME};{ZONE}", "label key"),
    ("it's", "label key"),
    ("a\\b", "label key"),
)

# topodns.io/min-endpoints: the text, and the number, None if it is invalid
MIN_ENDPOINTS: Sequence[tuple[str, int | None]] = (
    ("1", 1),
    ("3", 3),
    (" 2 ", 2),
    ("\u00a02\n", 2),
    ("250", 250),
    ("007", 7),
    ("999999999", 999999999),
    ("1000000000", None),
    ("0", None),
    ("000", None),
    ("-1", None),
    ("+1", None),
    ("1.5", None),
    ("1 2", None),
    ("two", None),
    ("", None),
    (" ", None),
    ("²", None),
    ("\u0663", None),
    ("2\x1f", None),
    ("9" * 4000, None),
)

# topodns.io/health: the text, and whether it is valid
HEALTH: Sequence[tuple[str, bool]] = (
    ("tcp", True),
    (" tcp\n", True),
    ("tcp:1", True),
    ("tcp:65535", True),
    ("http:80/", True),
    ("http:8080/healthz?full=1&x=a%20b", True),
    ("http:80//a:b/@c", True),
    ("", False),
    (" ", False),
    ("TCP", False),
    ("tcp:", False),
    ("tcp:0", False),
    ("tcp:65536", False),
    ("tcp:100000", False),
    ("tcp:080", False),
    ("tcp:+80", False),
    ("tcp: 80", False),
    ("tcp:http", False),
    ("tcp:80/", False),
    ("tcp\x1f", False),
    ("tcp:\u0661", False),
    ("udp:53", False),
    ("http", False),
    ("http:80", False),
    ("http:/", False),
    ("http:65536/", False),
    ("http:80/" + "a" * 1000, False),
    ("http:80/a b", False),
    ("http:80/a\nb", False),
    ("http:80/ä", False),
    ("http://10.1.2.3:80/", False),
    ("https:443/", False),
)
