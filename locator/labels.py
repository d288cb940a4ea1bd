# SPDX-License-Identifier: Apache-2.0

"""Kubernetes labels: which keys and values are valid, label selectors, and which pods somebody means by them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from locator.printable import quoted

EXISTS, ABSENT, IN, NOT_IN, ABOVE, BELOW = "exists", "absent", "in", "notin", ">", "<"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)

_SPACES = " \t\r\n"  # what Kubernetes allows between the words of a selector
_REQUIREMENT = re.compile(
    rf"[{_SPACES}]*(?:(?P<absent>!)[{_SPACES}]*(?P<lacked>[^{_SPACES}!=<>(),]+)"
    rf"|(?P<key>[^{_SPACES}!=<>(),]+)"
    rf"(?:[{_SPACES}]+(?P<sets>in|notin)[{_SPACES}]*\((?P<values>[^()]*)\)"
    rf"|[{_SPACES}]*(?P<sign>==|=|!=|>|<)[{_SPACES}]*(?P<value>[^{_SPACES}!=<>(),]*))?)"
    rf"[{_SPACES}]*(?:,|$)"
)
_SIGNS = {"=": IN, "==": IN, "!=": NOT_IN, ">": ABOVE, "<": BELOW}


class Requirement(Struct, frozen=True):
    """One requirement of a label selector."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether *labels* meet the requirement; as in Kubernetes, a missing label meets every ``notin``."""
        value = labels.get(self.key)
        if self.operator in (EXISTS, ABSENT):
            return (value is not None) == (self.operator == EXISTS)
        if self.operator in (IN, NOT_IN):
            return (value in self.values) == (self.operator == IN)
        if value is None or not is_number(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == ABOVE else int(value) < int(bound)


class Selector(Struct, frozen=True):
    """Requirements that must all hold; a selector without requirements matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether *labels* meet every requirement."""
        return all(requirement.holds(labels) for requirement in self.requirements)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the labels that this selector looks at."""
        return frozenset(requirement.key for requirement in self.requirements)

    def relevant(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the part of *labels* that this selector looks at."""
        keys = self.keys
        return {key: value for key, value in labels.items() if key in keys}

    def labels_among(self, labelled: Iterable[Mapping[str, str]]) -> list[str]:
        """Return, as ``KEY=VALUE`` and in order, what some objects have of the labels that this selector looks at."""
        return sorted({f"{key}={value}" for labels in labelled for key, value in self.relevant(labels).items()})


class ClientSelector(Struct, frozen=True):
    """The pods of a namespace that ask, those that the label selector matches; ``text`` is what was written."""

    namespace: str
    selector: Selector
    text: str

    def matches(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod in *namespace* with these *labels* is one of them."""
        return namespace == self.namespace and self.selector.matches(labels)


def requirement(key: str, operator: str, values: Iterable[str] = ()) -> Requirement:
    """Return a requirement. Raises ValueError if Kubernetes would reject it."""
    distinct = frozenset(values)
    if not valid_label_key(key):
        raise ValueError(f"{quoted(key)} is no valid label key")
    for value in sorted(distinct):
        if not valid_label_value(value):
            raise ValueError(f"{quoted(value)} is no valid label value")
        if operator in (ABOVE, BELOW) and not is_number(value):
            raise ValueError(f"{quoted(value)} is no number")
    if operator in (EXISTS, ABSENT) and distinct:
        raise ValueError(f"{quoted(key)} has values, but Exists and DoesNotExist take none")
    if operator not in (EXISTS, ABSENT) and not distinct:
        raise ValueError(f"{quoted(key)} has no value")
    return Requirement(key, operator, distinct)


def valid_label_key(key: str) -> bool:
    """Whether *key* is a label key: a name of at most 63 characters, optionally after ``DNS-DOMAIN/``."""
    prefix, slash, name = key.rpartition("/")
    if slash and not is_dns_subdomain(prefix):
        return False
    return _NAME.fullmatch(name) is not None


def nearest_label_key(key: str, known: Collection[str]) -> str:
    """Return the one of *known*, which must not be empty, that *key* was probably meant to be.

    The name after the slash says more than the prefix: ``kubernetes.io/zone`` was not meant to be ``kubernetes.io/os``.
    A name alone means Kubernetes' own key if there is one: clouds have a ``zone`` of theirs beside it.
    """
    prefix, _, name = key.lower().rpartition("/")
    same_name = [other for other in known if other.lower().rpartition("/")[2] == name]
    own = [] if prefix else [other for other in same_name if other.rpartition("/")[0].endswith("kubernetes.io")]
    return difflib.get_close_matches(key, sorted(own or same_name or known), 1, 0.0)[0]


def valid_label_value(text: str) -> bool:
    """Whether *text* is a label value: at most 63 characters, possibly none."""
    return not text or _NAME.fullmatch(text) is not None


def is_dns_label(text: str) -> bool:
    """Whether *text* is a lower-case DNS label: 1 to 63 letters, digits and inner hyphens (RFC 1123, section 2.1)."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str) -> bool:
    """Whether *text* is what a Node may be called: lower-case labels with dots between them, at most 253 characters."""
    return len(text) <= 253 and _DOMAIN.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Whether *text* is a whole number of at most 19 characters, which ``>`` and ``<`` can compare."""
    return text.removeprefix("-").isdigit() and text.isascii() and len(text) < 20


def parse_selector(text: str) -> Selector:
    """Parse a selector in the syntax of ``kubectl -l``: ``app=web,tier in (front,back),!canary``. Raises ValueError."""
    requirements: list[Requirement] = []
    position = 0
    while not requirements or position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() == len(text) and text.endswith(",")):
            raise ValueError(f"{quoted(text)} is no label selector")
        requirements.append(_requirement(match))
        position = match.end()
    return Selector(tuple(requirements))


def parse_client_selector(text: str) -> ClientSelector:
    """Parse ``NAMESPACE``, or ``NAMESPACE/SELECTOR`` with a label selector. Raises ValueError."""
    namespace, slash, selector = text.partition("/")
    if not is_dns_label(namespace):
        raise ValueError(quoted(namespace))
    return ClientSelector(namespace, parse_selector(selector) if slash else Selector(), text)


def _requirement(match: re.Match[str]) -> Requirement:
    key, operator, values = match["key"], EXISTS, list[str]()
    if match["absent"]:
        key, operator = match["lacked"], ABSENT
    elif match["sets"]:
        operator, values = match["sets"], [value.strip(_SPACES) for value in match["values"].split(",")]
    elif match["sign"]:
        operator, values = _SIGNS[match["sign"]], [match["value"]]
    return requirement(key, operator, values)
