"""IP addresses and blocks of them as packed bytes, and as people write them."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple


class Network(NamedTuple):
    """An address block: packed address with the host bits zero, and prefix length in bits."""

    address: bytes
    length: int


def network_end(network: Network) -> bytes:
    """Return the last address of a block."""
    size = len(network.address)
    return (int.from_bytes(network.address) | ((1 << (8 * size - network.length)) - 1)).to_bytes(size)


def parse_address(text: str) -> bytes:
    """Return an address as 4 or 16 bytes; IPv4-mapped IPv6 is IPv4. Raises ValueError.

    One with an interface (``fe80::1%eth0``) is none: it would be lost.
    """
    try:
        if "%" in text:
            raise ValueError
        return plain_address(ipaddress.ip_address(text).packed)
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None


def plain_address(packed: bytes) -> bytes:
    """Return the 4 bytes of an IPv4-mapped IPv6 address, and any other address as it is."""
    if len(packed) == 16 and packed.startswith(b"\0\0\0\0\0\0\0\0\0\0\xff\xff"):
        return packed[12:]
    return packed


def parse_network(text: str, *, strict: bool = True) -> Network:
    """Return an address block; *strict* refuses host bits. Raises ValueError."""
    try:
        block = ipaddress.ip_network(text, strict=strict)
    except ValueError as error:
        if "host bits" in str(error):
            whole = ipaddress.ip_network(text, strict=False)
            raise ValueError(f"{text!r} has host bits set; the block around it is {whole}") from None
        raise ValueError(f"{text!r} is no CIDR") from None
    return plain_network(Network(block.network_address.packed, block.prefixlen))


def parse_client(text: str) -> Network:
    """Return an address as a block as long as it, or a block; host bits are passed over. Raises ValueError."""
    if "/" in text:
        return parse_network(text, strict=False)
    address = parse_address(text)
    return Network(address, 8 * len(address))


def plain_network(network: Network) -> Network:
    """Return the IPv4 form of a block of IPv4-mapped addresses, and any other as it is."""
    address = plain_address(network.address)
    if len(address) == 4 and len(network.address) == 16 and network.length >= 96:
        return Network(address, network.length - 96)
    return network


def address_text(address: bytes) -> str:
    """Return an address as people write it."""
    return str(ipaddress.ip_address(address))


def network_text(network: Network) -> str:
    """Return a block as people write it."""
    return f"{address_text(network.address)}/{network.length}"
