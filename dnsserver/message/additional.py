# SPDX-License-Identifier: Apache-2.0

"""Additional records: the addresses of the targets of SRV and NS records, as many as fit into a reply.

The owner's name of such a record has two forms. Compressed against the question, it does not depend on the rotation, so
the same bytes serve every reply. If that form is too large, the owner is a pointer to the record with that target: RFC
2782 forbids compressing the target of an SRV record, but allows other names to point to it. Targets move when the
answer is rotated, so this form is written for each reply.

No additional record begins where no pointer reaches, not even in a third form: each owner whole where it first occurs.
Some programs read a message and write it again like that, with broken pointers to owners that a pointer cannot reach
(c-ares as in Node.js 20). Then their users would get nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

POINTER = 0xC000  # RFC 1035, section 4.1.4
OWNER = 2  # octets of a name that is a pointer
REACH = 0x4000  # octets from the start of a message: a pointer has 14 bits


class AddressedTarget(Struct, frozen=True, eq=False, gc=False):
    """The target of an SRV or NS record, with its addresses.

    The target's name is the last ``octets`` octets of every such record. ``owner`` is the name compressed against the
    question; ``addresses`` are packed address records without their owner.
    """

    octets: int
    owner: bytes
    addresses: tuple[bytes, ...]


class AdditionalRecords:
    """The addresses of all targets of an answer.

    *targets* has one target for each record of the answer that rotates; records may share a target. *spares* has one
    for each record behind those, with the offset of its end, counted from there. *start* is the offset of the first
    record in the reply. ``whole`` is all of them in the form that does not depend on the rotation; ``count`` is how
    many they are.
    """

    def __init__(
        self, targets: Sequence[AddressedTarget], spares: Sequence[tuple[AddressedTarget, int]] = (), *, start: int
    ) -> None:
        self._targets = (*targets, *targets)
        self._spares = tuple(spares)
        self._start = start
        known = dict.fromkeys((*targets, *(target for target, _ in spares)))
        records = [target.owner + address for target in known for address in target.addresses]
        self.whole, self.count = b"".join(records), len(records)
        self._rewritten = sum(map(_rewritten, known))

    @property
    def weight(self) -> int:
        """The approximate memory use in octets."""
        return 16 * len(self._targets) + 100 * self.count

    def is_in_reach(self, octets: int) -> bool:
        """Whether all of them stay within ``REACH`` in the third form, behind rotating records of so many *octets*."""
        return self._begin(octets) + self._rewritten <= REACH

    def fitting(self, room: int, *, turn: int, offsets: Sequence[int]) -> tuple[int, bytes]:
        """Return the number of records that fit into *room* octets and stay within ``REACH``, and these records.

        The answer begins with record *turn*, and the addresses of its target come first. *offsets* are those of the
        answer's records, as in ``RenderedAnswer``.
        """
        count = len(self._targets) // 2
        last = turn + count
        ends: dict[AddressedTarget, int] = {}  # target -> end of the first record with it
        for target, end in zip(self._targets[turn:last], offsets[turn + 1 : last + 1], strict=True):
            ends.setdefault(target, end)
        for target, end in self._spares:
            ends.setdefault(target, offsets[last] + end)
        shift = self._start - offsets[turn]
        in_reach = self.is_in_reach(offsets[count])
        rewritten = self._begin(offsets[count])  # octets of the message in the third form
        records: list[bytes] = []
        for target, end in ends.items():
            if not in_reach:
                rewritten += _rewritten(target)
                if rewritten > REACH:
                    break
            for address in target.addresses:
                size = OWNER + len(address)
                if size <= room:  # a later, shorter one may fit when this one does not
                    records.append((POINTER | shift + end - target.octets).to_bytes(2) + address)
                    room -= size
        return len(records), b"".join(records)

    def _begin(self, octets: int) -> int:
        """Return the offset of the first additional record, behind rotating records of so many *octets*."""
        return self._start + octets + (self._spares[-1][1] if self._spares else 0)


def _rewritten(target: AddressedTarget) -> int:
    """Return the octets of a target's addresses in the third form."""
    owners = target.octets + OWNER * (len(target.addresses) - 1)
    return owners + sum(map(len, target.addresses)) if target.addresses else 0
