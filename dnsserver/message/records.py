# SPDX-License-Identifier: Apache-2.0

"""Resource records as values, and the names of record types."""

from __future__ import annotations

import ipaddress

import dnslib
from msgspec import Struct


class AddressData(Struct, frozen=True, gc=False):
    """A or AAAA data: 4 or 16 bytes."""

    packed: bytes

    def __str__(self) -> str:
        return str(ipaddress.ip_address(self.packed))


class Srv(Struct, frozen=True, gc=False):
    """SRV data (RFC 2782)."""

    weight: int
    port: int
    target: str
    priority: int = 0

    def __str__(self) -> str:
        return f"{self.priority} {self.weight} {self.port} {self.target}."


class Soa(Struct, frozen=True, gc=False):
    """SOA data (RFC 1035, section 3.3.13), times in seconds."""

    mname: str
    rname: str
    serial: int
    minimum: int
    refresh: int = 7200
    retry: int = 1800
    expire: int = 86400

    def __str__(self) -> str:
        times = f"{self.refresh} {self.retry} {self.expire} {self.minimum}"
        return f"{self.mname}. {self.rname}. {self.serial} {times}"


class Host(Struct, frozen=True, gc=False):
    """NS, CNAME and PTR data: a domain name without its final dot."""

    name: str

    def __str__(self) -> str:
        return f"{self.name}."


class HostInfo(Struct, frozen=True, gc=False):
    """HINFO data, the answer to ANY (RFC 8482, section 4.2)."""

    cpu: str
    os: str

    def __str__(self) -> str:
        return f'"{self.cpu}" "{self.os}"'


class Text(Struct, frozen=True, gc=False):
    """TXT data: one string of at most 255 octets."""

    text: str

    def __str__(self) -> str:
        return f'"{self.text}"'


class Opaque(Struct, frozen=True, gc=False):
    """Data of any type as octets, without compressed names (RFC 3597). ``text`` is it as in a zone file, if known."""

    octets: bytes
    text: str = ""

    def __str__(self) -> str:
        return self.text or f"\\# {len(self.octets)} {self.octets.hex()}"


Data = AddressData | Srv | Soa | Host | HostInfo | Text | Opaque


class Record(Struct, frozen=True, gc=False):
    """A resource record of class IN. The name has no final dot; the TTL is in seconds."""

    name: str
    rtype: int
    ttl: int
    data: Data


def type_number(text: str) -> int:
    """Return the number of a record type, named like ``A`` or ``TYPE65280`` (RFC 3597). Raises ValueError."""
    number = dnslib.QTYPE.reverse.get(text.upper())
    if (
        number is None
        and text.upper().startswith("TYPE")
        and text[4:].isascii()
        and text[4:].isdigit()
        and len(text) < 10
    ):
        number = int(text[4:])
    if number is None or number > 65535:
        raise ValueError(f"{text!r} is not a record type")
    return int(number)


def type_name(number: int) -> str:
    """Return the name of a record type, or like ``TYPE65280`` if it has none (RFC 3597)."""
    name = dnslib.QTYPE.forward.get(number)
    return name if name else f"TYPE{number}"
