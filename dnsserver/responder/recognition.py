# SPDX-License-Identifier: Apache-2.0

"""Recognises the part of a query after its question by its bytes, so that it need not be parsed again.

Clients and forwarders write queries in a few ways only. The octets after the question, without the
address of a client subnet, lead to an ``EdnsProfile`` that was read from an earlier query.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dnsserver.message.edns import MIN_UDP_REPLY, Error, opt_head, opt_record, udp_limit
from dnsserver.message.rendering import HEAD_BITS, head_index
from dnsserver.message.wire import Edns, Query
from locator.bounded_map import BoundedMap

MAX_PROFILES = 1024

AD = 0x0020  # what a query says with it does not matter (RFC 6840, section 5.7)
OPT_FIXED = 11  # octets of an OPT record before its options
# Octets from the start of an OPT record, if client subnet is its first option: to the option's content, and to the
# address in that.
SUBNET_CONTENT_AT = OPT_FIXED + 4
SUBNET_ADDRESS_AT = SUBNET_CONTENT_AT + 4

# Flags and counts of a plain query -> index of the reply's head. Queries with other flags are parsed.
HEAD_INDEXES: Mapping[bytes, int] = {
    struct.pack("!HHHHH", bits | ad, 1, 0, 0, opt): head_index(bits, opt=bool(opt))
    for bits in HEAD_BITS
    for ad in (0, AD)
    for opt in (0, 1)
}
WITH_OPT = 4  # the first index of heads for queries with an OPT record


class EdnsProfile(Struct, frozen=True, gc=False):
    """What a reply needs to know of its query's EDNS, without the address of the client subnet.

    ``limit`` is the size of a UDP reply. ``opts`` is the reply's OPT record without that address:
    for an answer that does not depend on the client, and for one that does. ``octets`` is the
    length of that address in the query; ``host`` is whether it is a whole address.
    """

    edns: Edns | None
    limit: int
    opts: tuple[bytes, bytes]
    octets: int = 0
    host: bool = True

    def edns_of(self, address: bytes) -> Edns | None:
        """Return the EDNS of the query with this profile and this address of the client subnet, empty without one."""
        edns = self.edns
        if edns is None or edns.subnet is None:
            return edns
        return replace(edns, subnet=replace(edns.subnet, address=address))


NO_EDNS = EdnsProfile(None, MIN_UDP_REPLY, (b"", b""))


class EdnsProfiles:
    """The profiles of queries to one server; ``known`` has them by the octets after the question.

    *nsid* is the server's identifier for clients that ask for it (RFC 5001), empty for none. No UDP reply has more than
    *max_udp_size* octets.
    """

    def __init__(self, nsid: bytes, max_udp_size: int) -> None:
        self.nsid = nsid
        self._max_udp_size = max_udp_size
        self._profiles: BoundedMap[bytes, EdnsProfile] = BoundedMap(MAX_PROFILES)
        self.known: Mapping[bytes, EdnsProfile] = self._profiles.recent
        self.common_errors: tuple[Error, ...] = ()
        """The extended errors in every reply."""

    def set_common_errors(self, errors: tuple[Error, ...]) -> bool:
        """Put these extended errors into every reply from now on; return whether they differ from those before."""
        if errors == self.common_errors:
            return False
        self.common_errors = errors
        self._profiles.clear()  # their OPT records have the errors from before
        return True

    def of(self, query: bytes, parsed: Query, *, remember: bool) -> EdnsProfile:
        """Return the profile of a parsed query.

        *remember* allows a remembered profile, and remembers a new one if only the address can vary.
        """
        edns, tail = parsed.edns, query[parsed.end :]
        if edns is None:
            return NO_EDNS
        key, subnet = tail[:SUBNET_ADDRESS_AT], edns.subnet
        # Only a prefix of whole octets: an address with bits beyond its prefix is FORMERR, which only parsing finds.
        whole = subnet is not None and 0 < subnet.prefix_length == 8 * len(subnet.address)
        first = tail[OPT_FIXED : OPT_FIXED + 2] == b"\0\x08" and tail[0:3] == b"\0\0\x29"
        octets = len(subnet.address) if subnet is not None else 0
        only_subnet = whole and first and len(tail) == SUBNET_ADDRESS_AT + octets
        recognisable = only_subnet or (len(tail) == OPT_FIXED and subnet is None)
        if not (remember and recognisable):
            return self._profile(edns)
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profile(edns)
            self._profiles[key] = profile
        return profile

    def _profile(self, edns: Edns) -> EdnsProfile:
        independent, dependent = (
            opt_head(edns, nsid=self.nsid, dependent=dependent, errors=self.common_errors)
            for dependent in (False, True)
        )
        subnet = edns.subnet
        octets, host = (len(subnet.address), subnet.host) if subnet is not None else (0, True)
        return EdnsProfile(edns, udp_limit(edns, self._max_udp_size), (independent, dependent), octets, host)

    def opt(self, profile: EdnsProfile, errors: Sequence[Error], *, dependent: bool, address: bytes) -> bytes:
        """Return the OPT record of a reply with *errors* of its own; empty without EDNS."""
        if not errors or profile.edns is None:
            return profile.opts[dependent] + address
        every = (*errors, *self.common_errors)
        return opt_record(profile.edns, nsid=self.nsid, dependent=dependent, errors=every, address=address)
