# SPDX-License-Identifier: Apache-2.0

"""The numbers of the DNS protocol that topodns uses (IANA's registries of DNS parameters)."""

from __future__ import annotations

HEADER = 12  # octets

A, NS, CNAME, SOA, PTR, HINFO, MX, TXT, AAAA, SRV, OPT = 1, 2, 5, 6, 12, 13, 15, 16, 28, 33, 41
IXFR, AXFR, ANY = 251, 252, 255
IN = 1

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED", 16: "BADVERS"}

QR, AA, TC, RD, AD, CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0020, 0x0010
OPCODE = 0x7800
DO = 0x8000  # in the OPT record's flags

NSID = 3  # RFC 5001
CLIENT_SUBNET = 8  # RFC 7871
EXTENDED_ERROR = 15  # RFC 8914
# The option by which our own tools say that they only look, and its content: a code for local use (RFC 6891, 9).
PROBE, PROBE_TEXT = 65107, b"topodns doctor"
EDE_OTHER, EDE_STALE, EDE_NOT_READY, EDE_NO_REACHABLE_AUTHORITY, EDE_NETWORK_ERROR = 0, 3, 14, 22, 23
