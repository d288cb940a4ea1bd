"""What a query looks like from its question on: recognised by its bytes, without being read again.

Clients and forwarders write queries in a handful of ways. What stands behind the question, but
for the address of a client subnet, is remembered as it was read once: an ``EdnsProfile``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dnsserver.message.edns import MIN_UDP_REPLY, Error, opt_head, opt_record, udp_limit
from dnsserver.message.rendering import HEAD_BITS, head_index
from dnsserver.message.wire import Edns, Query
from locator.bounded_map import BoundedMap

MAX_PROFILES = 1024

SUBNET_AT = 19  # octets from an OPT record's begin to the address of a client subnet that stands first in it
CONTENT_AT = 15  # and to the content of that option

# Flags and counts of a plain query -> index of the reply's head; whatever else is set is read with care.
HEADS: Mapping[bytes, int] = {
    struct.pack("!HHHHH", bits | ad, 1, 0, 0, opt): head_index(bits, opt=bool(opt))
    for bits in HEAD_BITS
    for ad in (0, 0x0020)
    for opt in (0, 1)
}
WITH_OPT = 4  # indices of heads from here on are of queries with an OPT record


class EdnsProfile(Struct, frozen=True):
    """What stands behind a question, but for the client subnet's address: what the reply needs of it.

    ``opts`` is the reply's OPT record without that address, for an answer that did not depend
    on the client and one that did. ``octets`` is how many octets of address make the message
    complete, ``host`` whether they are one host's.
    """

    edns: Edns | None
    limit: int
    opts: tuple[bytes, bytes]
    octets: int = 0
    host: bool = True


NO_EDNS = EdnsProfile(None, MIN_UDP_REPLY, (b"", b""))


class EdnsProfiles:
    """The profiles of queries to one server. ``known`` has them by the octets that follow the question.

    *nsid* is what names the server to those who ask (RFC 5001), empty for nothing.
    """

    def __init__(self, nsid: bytes) -> None:
        self.nsid = nsid
        self._profiles: BoundedMap[bytes, EdnsProfile] = BoundedMap(MAX_PROFILES)
        self.known: Mapping[bytes, EdnsProfile] = self._profiles.recent
        self.standing: tuple[Error, ...] = ()
        """The extended errors that every reply tells."""

    def tell(self, standing: tuple[Error, ...]) -> None:
        """Tell these extended errors in every reply from now on."""
        if standing != self.standing:
            self.standing = standing
            self._profiles.clear()  # they hold the OPT record that goes with an answer

    def of(self, query: bytes, read: Query) -> EdnsProfile:
        """Return the profile of a query that was read, and remember it where the address alone varies."""
        edns, tail = read.edns, query[read.end :]
        if edns is None:
            return NO_EDNS
        key, subnet = tail[:SUBNET_AT], edns.subnet
        # Of whole octets, so that whatever the address is, no bits stand beyond its prefix.
        whole = subnet is not None and 0 < subnet.source == 8 * len(subnet.address)
        first = tail[11:13] == b"\0\x08" and tail[0:3] == b"\0\0\x29"
        octets = len(subnet.address) if subnet is not None else 0
        recognisable = (whole and first and len(tail) == SUBNET_AT + octets) or (len(tail) == 11 and subnet is None)
        if recognisable and (known := self._profiles.get(key)) is not None:
            return known
        profile = self._profile(edns)
        if recognisable:
            self._profiles[key] = profile
        return profile

    def _profile(self, edns: Edns) -> EdnsProfile:
        independent, dependent = (
            opt_head(edns, nsid=self.nsid, dependent=dependent, errors=self.standing) for dependent in (False, True)
        )
        subnet = edns.subnet
        octets, host = (len(subnet.address), subnet.host) if subnet is not None else (0, True)
        return EdnsProfile(edns, udp_limit(edns), (independent, dependent), octets, host)

    def opt(self, profile: EdnsProfile, errors: Sequence[Error], *, dependent: bool, address: bytes) -> bytes:
        """Return the OPT record of one reply that has *errors* of its own to tell; empty without EDNS."""
        if not errors or profile.edns is None:
            return profile.opts[dependent] + address
        told = (*errors, *self.standing)
        return opt_record(profile.edns, nsid=self.nsid, dependent=dependent, errors=told, address=address)
