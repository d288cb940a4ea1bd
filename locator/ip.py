# SPDX-License-Identifier: Apache-2.0

"""IP addresses and networks, as packed bytes and as text."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from locator.printable import quoted

_OCTETS = {str(octet): octet for octet in range(256)}


class Network(NamedTuple):
    """A network: its packed address, host bits zero, and its prefix length in bits."""

    address: bytes
    length: int

    @property
    def is_host(self) -> bool:
        """Whether the network is a single address."""
        return self.length == 8 * len(self.address)


# Where no load balancer is that clients reach: on the link, at many hosts at once, at none, and at the metadata
# services of clouds, which tell secrets to whoever asks from inside (AWS, Azure, Alibaba; others are link-local).
# Loopback is the prober's own container, where there is nothing to find.
NO_BALANCERS = tuple(
    Network(block.network_address.packed, block.prefixlen)
    for block in map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255", "168.63.129.16", "100.100.100.200"),
            *("::/128", "fe80::/10", "ff00::/8", "fd00:ec2::/32"),
            "64:ff9b::a9fe:0/112",  # 169.254.0.0/16 through NAT64 (RFC 6052)
        ),
    )
)


def may_be_balancer(address: bytes) -> bool:
    """Whether a load balancer can have an address, so that it may be probed."""
    return not any(is_within(host_network(address), block) for block in NO_BALANCERS)


def host_network(address: bytes) -> Network:
    """Return the network that is a single address."""
    return Network(address, 8 * len(address))


def is_within(network: Network, around: Network) -> bool:
    """Whether a network is a part of another one, or the same."""
    if len(network.address) != len(around.address) or network.length < around.length:
        return False
    return around.address <= network.address <= network_end(around)


def network_end(network: Network) -> bytes:
    """Return the last address of a network."""
    size = len(network.address)
    return (int.from_bytes(network.address) | ((1 << (8 * size - network.length)) - 1)).to_bytes(size)


def parse_address(text: str) -> bytes:
    """Return an address as 4 or 16 bytes; an IPv4-mapped IPv6 address becomes IPv4. Raises ValueError.

    Refuses an address with a zone (``fe80::1%eth0``), since the packed form cannot hold the zone.
    """
    try:
        first, second, third, fourth = text.split(".")
        return bytes((_OCTETS[first], _OCTETS[second], _OCTETS[third], _OCTETS[fourth]))
    except (KeyError, ValueError):  # not IPv4; the library reads that, too, but takes five times as long
        pass
    try:
        if "%" in text:
            raise ValueError
        return plain_address(ipaddress.ip_address(text).packed)
    except ValueError:
        raise ValueError(f"{quoted(text)} is no IP address") from None


def is_address(text: str) -> bool:
    """Whether ``parse_address`` accepts a text."""
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def plain_address(packed: bytes) -> bytes:
    """Return an IPv4-mapped IPv6 address as IPv4, and any other address unchanged."""
    if len(packed) == 16 and packed.startswith(b"\0\0\0\0\0\0\0\0\0\0\xff\xff"):
        return packed[12:]
    return packed


def parse_network(text: str, *, strict: bool = True) -> Network:
    """Return a network; *strict* refuses an address with host bits set. Raises ValueError."""
    try:
        block = ipaddress.ip_network(text, strict=strict)
    except ValueError as error:
        if "host bits" in str(error):
            whole = ipaddress.ip_network(text, strict=False)
            raise ValueError(f"{quoted(text)} has host bits set; the block around it is {whole}") from None
        raise ValueError(f"{quoted(text)} is no CIDR") from None
    return plain_network(Network(block.network_address.packed, block.prefixlen))


def parse_client(text: str) -> Network:
    """Return an address as a /32 or /128 network, or a network, whose host bits are ignored. Raises ValueError."""
    if "/" in text:
        return parse_network(text, strict=False)
    return host_network(parse_address(text))


def plain_network(network: Network) -> Network:
    """Return a network of IPv4-mapped addresses as IPv4, and any other network unchanged."""
    address = plain_address(network.address)
    if len(address) == 4 and len(network.address) == 16 and network.length >= 96:
        return Network(address, network.length - 96)
    return network


def address_text(address: bytes) -> str:
    """Return an address as text."""
    if len(address) == 4:  # ten times as fast as below; names of endpoints are made of such texts
        return ".".join(map(str, address))
    return str(ipaddress.ip_address(address))


def network_text(network: Network) -> str:
    """Return a network in CIDR notation."""
    return f"{address_text(network.address)}/{network.length}"
