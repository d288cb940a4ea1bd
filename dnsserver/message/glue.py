"""Glue: the addresses that go along with SRV and NS records, as many as a reply has room for.

There are two ways to write the owner of such an address. One does not depend on the rotation and
so costs nothing: compressed against the question, like every other name. Where that takes too much
room, the owner is a pointer to the record that names it as its target. RFC 2782 forbids to compress
the target itself, but other names may point to it. Targets move when the answer is rotated, so
such glue is put together for each reply.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

POINTER = 0xC000  # RFC 1035, section 4.1.4
REACH = 0x4000  # octets from the begin of a message: no pointer leads further


class Target(Struct, frozen=True, eq=False):
    """What a record of the answer names, and its addresses.

    The name takes up the last ``octets`` of every record that names it. ``owner`` is the name,
    compressed against the question; ``addresses`` are the address records without their owner.
    """

    octets: int
    owner: bytes
    addresses: tuple[bytes, ...]


class Glue:
    """The addresses of what an answer's records name.

    *targets* holds for each record what it names; several may name the same. The first record
    stands *begin* octets into the reply. ``whole`` is all of the glue, in the form that stays
    the same when the answer is rotated, and ``count`` how many records it has.
    """

    def __init__(self, targets: Sequence[Target], *, begin: int) -> None:
        self._targets = (*targets, *targets)
        self._begin = begin
        records = [target.owner + address for target in dict.fromkeys(targets) for address in target.addresses]
        self.whole, self.count = b"".join(records), len(records)

    @property
    def weight(self) -> int:
        """How many octets of memory it takes, roughly."""
        return 16 * len(self._targets) + 100 * self.count

    def fitting(self, room: int, *, turn: int, offsets: Sequence[int]) -> tuple[int, bytes]:
        """Return how many records fit into *room* octets when the answer begins with record *turn*, and these.

        What that record names comes first, and so on. *offsets* are where the answer's records
        begin, twice over.
        """
        last = turn + len(self._targets) // 2
        ends: dict[Target, int] = {}  # of the first record that names it
        for target, end in zip(self._targets[turn:last], offsets[turn + 1 : last + 1], strict=True):
            ends.setdefault(target, end)
        moved = self._begin - offsets[turn]
        records: list[bytes] = []
        for target, end in ends.items():
            position = moved + end - target.octets
            owner = (POINTER | position).to_bytes(2) if position < REACH else target.owner
            for address in target.addresses:
                room -= len(owner) + len(address)
                if room < 0:
                    return len(records), b"".join(records)
                records.append(owner + address)
        return len(records), b"".join(records)
