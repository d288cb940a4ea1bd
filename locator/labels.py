"""Labels: what their keys and values may be, and what selects objects by them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

EXISTS, ABSENT, IN, NOT_IN, ABOVE, BELOW = "exists", "absent", "in", "notin", ">", "<"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)

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
        if value is None or not is_number(value):
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


def requirement(key: str, operator: str, values: Iterable[str] = ()) -> Requirement:
    """Return what Kubernetes lets labels be selected by. Raises ValueError."""
    wanted = frozenset(values)
    if not valid_label_key(key):
        raise ValueError(f"{key!r} is no valid label key")
    for value in sorted(wanted):
        if not valid_label_value(value):
            raise ValueError(f"{value!r} is no valid label value")
        if operator in (ABOVE, BELOW) and not is_number(value):
            raise ValueError(f"{value!r} is no number")
    if operator in (EXISTS, ABSENT) and wanted:
        raise ValueError(f"values stand beside {key!r}, which is to be there or not, whatever its value")
    if operator not in (EXISTS, ABSENT) and not wanted:
        raise ValueError(f"no value stands beside {key!r}")
    return Requirement(key, operator, wanted)


def valid_label_key(key: str) -> bool:
    """Return whether *key* is a label key: a name of at most 63 characters, perhaps with a DNS prefix."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DOMAIN.fullmatch(prefix)):
        return False
    return _NAME.fullmatch(name) is not None


def valid_label_value(text: str) -> bool:
    """Return whether *text* is a label's value: at most 63 characters, perhaps none."""
    return not text or _NAME.fullmatch(text) is not None


def is_number(text: str) -> bool:
    """Return whether *text* is a whole number that may be compared: one of 64 bits or little more."""
    return text.removeprefix("-").isdigit() and text.isascii() and len(text) < 20


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
    key, operator, values = match["key"], EXISTS, list[str]()
    if match["absent"]:
        key, operator = match["lacked"], ABSENT
    elif match["sets"]:
        operator, values = match["sets"], [value.strip() for value in match["values"].split(",")]
    elif match["sign"]:
        operator, values = _SIGNS[match["sign"]], [match["value"]]
    return requirement(key, operator, values)
