# SPDX-License-Identifier: Apache-2.0

"""Certificates for tests."""

from __future__ import annotations

import ssl
import time
from collections.abc import Collection

from locator.cluster.certificates.issuing import Pair, issue, new_authority
from locator.cluster.certificates.serving import ServingCertificate

NAME = "topodns-webhook.topodns.svc"


def issued(names: Collection[str], now: float, lifetime: float) -> tuple[bytes, Pair]:
    """Return a new CA, and a certificate by it for *names*, from *now* (Unix time) for *lifetime* seconds."""
    authority = new_authority(now, lifetime)
    return authority.certificate, issue(authority, names, now, lifetime)


def shakes_hands(serving: ServingCertificate, authorities: bytes, name: str = NAME) -> bool:
    """Whether a client that trusts *authorities* accepts the certificate for a name."""
    trusting = ssl.create_default_context(cadata=authorities.decode())
    wires = [ssl.MemoryBIO() for _ in range(2)]
    server = serving.context.wrap_bio(wires[0], wires[1], server_side=True)
    client = trusting.wrap_bio(wires[1], wires[0], server_hostname=name)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return len(done) == 2


def with_an_extension_twice() -> Pair:
    """Return a pair whose certificate has its names in the place of its key's usage, too, and so has them twice."""
    pair = issued([NAME], time.time(), 86400.0)[1]
    octets = ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
    twice = octets.replace(b"\x06\x03\x55\x1d\x0f", b"\x06\x03\x55\x1d\x11")
    return Pair(ssl.DER_cert_to_PEM_cert(twice).encode(), pair.key)
