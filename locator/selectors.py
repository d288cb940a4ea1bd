"""Label selectors as ``kubectl -l`` writes them, and which Services are served by them.

``app=web,tier in (front,back),!canary``: the grammar of the API's ``labelSelector`` parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from locator.constraints import valid_label_key
from locator.model import Namespace, Service

EXISTS, ABSENT, IN, NOT_IN, ABOVE, BELOW = "exists", "absent", "in", "notin", ">", "<"

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_REQUIREMENT = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<lacked>[^\s!=<>(),]+)"
    r"|(?P<key>[^\s!=<>(),]+)"
    r"(?:\s+(?P<sets>in|notin)\s*\((?P<values>[^()]*)\)|\s*(?P<sign>==|=|!=|>|<)\s*(?P<value>[^\s!=<>(),]*))?)"
    r"\s*(?:,|$)"
)
_SIGNS = {"=": IN, "==": IN, "!=": NOT_IN, ">": ABOVE, "<": BELOW}


class Requirement(Struct, frozen=True):
    """One thing that labels must fulfil."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether *labels* fulfil it; a label that is not there is in no set, and so ``notin`` every one."""
        value = labels.get(self.key)
        if self.operator in (EXISTS, ABSENT):
            return (value is not None) == (self.operator == EXISTS)
        if self.operator in (IN, NOT_IN):
            return (value in self.values) == (self.operator == IN)
        if value is None or not _is_number(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == ABOVE else int(value) < int(bound)


class Selector(Struct, frozen=True):
    """Requirements all of which must hold; without any, every label set is selected."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether *labels* are selected."""
        return all(each.holds(labels) for each in self.requirements)

    def relevant(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return those of *labels* that can make a difference."""
        keys = {each.key for each in self.requirements}
        return {key: value for key, value in labels.items() if key in keys}


class Scope(Struct, frozen=True):
    """Which Services are served: those of some namespaces, if any are named, and those that selectors select."""

    namespaces: frozenset[str] = frozenset()
    namespace_selector: Selector | None = None
    service_selector: Selector | None = None

    def exposes(self, namespace: str, known: Namespace | None) -> bool:
        """Whether a namespace is served; *known* is its object, without which it has no labels to be selected by."""
        if self.namespaces and namespace not in self.namespaces:
            return False
        return self.namespace_selector is None or (known is not None and self.namespace_selector.matches(known.labels))

    def serves(self, service: Service) -> bool:
        """Whether a Service of an exposed namespace is served."""
        return self.service_selector is None or self.service_selector.matches(service.labels)

    def relevant_labels(self, each: Namespace | Service) -> dict[str, str]:
        """Return those labels of a namespace or Service on which this depends."""
        selector = self.namespace_selector if isinstance(each, Namespace) else self.service_selector
        return {} if selector is None else selector.relevant(each.labels)


def parse_selector(text: str) -> Selector:
    """Return the selector that *text* writes, as the API's ``labelSelector`` parameter has it. Raises ValueError."""
    requirements: list[Requirement] = []
    position = 0
    while not requirements or position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() == len(text) and text.rstrip().endswith(",")):
            raise ValueError(f"{text!r} is no label selector")
        requirements.append(_requirement(match))
        position = match.end()
    return Selector(tuple(requirements))


def _requirement(match: re.Match[str]) -> Requirement:
    key, operator, values = match["key"], EXISTS, [""]
    if match["absent"]:
        key, operator = match["lacked"], ABSENT
    elif match["sets"]:
        operator, values = match["sets"], [value.strip() for value in match["values"].split(",")]
    elif match["sign"]:
        operator, values = _SIGNS[match["sign"]], [match["value"]]
    if not valid_label_key(key):
        raise ValueError(f"{key!r} is no valid label key")
    for value in values:
        if not _VALUE.fullmatch(value):
            raise ValueError(f"{value!r} is no valid label value")
        if operator in (ABOVE, BELOW) and not _is_number(value):
            raise ValueError(f"{value!r} is no number")
    return Requirement(key, operator, frozenset(values) if operator not in (EXISTS, ABSENT) else frozenset())


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit() and text.isascii() and len(text) < 20
