# SPDX-License-Identifier: Apache-2.0

"""Collects what is wrong in one object while it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from locator.api import schema
from locator.findings import ClusterCode
from locator.ip import parse_address
from locator.model import Finding, is_dns_label
from locator.printable import quoted

T = TypeVar("T")


class FindingCollector(list[Finding]):
    """The findings about one object, collected while it is converted. They have *code* unless another one is given."""

    def __init__(self, code: ClusterCode, kind: str, namespace: str, name: str) -> None:
        super().__init__()
        self._code = code
        self._object = (kind, namespace, name)

    def wrong(self, field: str, message: str, expected: str, *, code: ClusterCode | None = None) -> None:
        """Add a finding about *field*."""
        self.append((code or self._code).finding(*self._object, field=field, message=message, expected=expected))

    def try_parse(self, field: str, parse: Callable[[str], T], text: str, expected: str) -> T | None:
        """Return ``parse(text)``, or add a finding and return None if that raises ValueError."""
        try:
            return parse(text)
        except ValueError as error:
            self.wrong(field, str(error), expected)
            return None

    def has_dns_names(self, meta: schema.Meta) -> bool:
        """Whether an object's name and namespace can be DNS labels; adds a finding for the one that cannot."""
        expected = "at most 63 lower-case letters, digits and hyphens"
        for field, text in (("metadata.name", meta.name or ""), ("metadata.namespace", meta.namespace or "default")):
            if not is_dns_label(text):
                self.wrong(field, f"{quoted(text)} is no DNS label", expected)
                return False
        return True

    def addresses(self, field: Callable[[int], str], texts: Sequence[str | None]) -> tuple[bytes, ...]:
        """Return the addresses in *texts*, None left out; the one at a position is in ``field(position)``."""
        try:
            return tuple([parse_address(text) for text in texts if text is not None])
        except ValueError:  # say which is wrong, and keep the others
            stated = ((field(position), text) for position, text in enumerate(texts) if text is not None)
            return tuple(chain.from_iterable(self.address(where, text) for where, text in stated))

    def address(self, field: str, text: str) -> tuple[bytes, ...]:
        """Return the address in *text*, or add a finding and return ()."""
        address = self.try_parse(field, parse_address, text, "an IPv4 or IPv6 address")
        return () if address is None else (address,)
