"""What a Service asks for: who may say it, who is heard first, and what is valid.

The precedence is the tuple ``READERS``; a new source is one more row in it. The first that
speaks decides, even if what it says is invalid: no later source steps in.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from locator.model import ERROR, WARNING, Finding, Service

ANY = "*"
MAX_KEYS = 16  # KEP-536

PREFIX = "topodns.io/"
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS)

ANNOTATION = "annotation"
FIELD = "field"
ZONAL_NAME = "zonal-name"  # not said by the Service, but by who asks

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


class Constraint(Struct, frozen=True):
    """What a Service asks for, by one source, valid or not.

    ``error`` says what makes it invalid (KEP-536's rules), None if nothing does. ``effective``
    is whether DNS narrows by it. ``min_endpoints`` is how many a tier must hold to decide.
    """

    source: str
    keys: tuple[str, ...]
    error: str | None
    headless: bool
    min_endpoints: int = 1

    @property
    def valid(self) -> bool:
        """Whether the keys obey the rules."""
        return self.error is None

    @property
    def soft(self) -> bool:
        """Whether any endpoint will do where none is near: without a final ``*`` the constraint is hard."""
        return self.keys[-1] == ANY

    @property
    def effective(self) -> bool:
        """Whether the constraint narrows what DNS answers."""
        return self.error is None and self.headless


def constraint_of(service: Service) -> Constraint | None:
    """Return what *service* asks for, or None where no source speaks. Never raises."""
    for source, read in READERS:
        keys = read(service)
        if keys:
            return Constraint(
                source,
                keys,
                _error(keys, service),
                headless=service.headless,
                min_endpoints=_min_endpoints(service) or 1,
            )
    return None


def _annotation(service: Service) -> tuple[str, ...]:
    text = service.annotations.get(TOPOLOGY_KEYS, "").strip()
    return tuple(key.strip() for key in text.split(",")) if text else ()


def _field(service: Service) -> tuple[str, ...]:
    return service.topology_keys or ()


READERS: tuple[tuple[str, Callable[[Service], tuple[str, ...]]], ...] = (
    (ANNOTATION, _annotation),  # topodns.io/topology-keys
    (FIELD, _field),  # spec.topologyKeys, Kubernetes 1.17 to 1.21
)

SPELLED = {ANNOTATION: f"metadata.annotations[{TOPOLOGY_KEYS}]", FIELD: "spec.topologyKeys"}


def keys_error(keys: Sequence[str]) -> str | None:
    """Return what is wrong with a list of topology keys by KEP-536's rules, or None."""
    if len(keys) > MAX_KEYS:
        return f"{len(keys)} keys, at most {MAX_KEYS} allowed"
    for position, key in enumerate(keys):
        if key == ANY:
            if position != len(keys) - 1:
                return f"{ANY!r} stands at place {position + 1} of {len(keys)}, only the last is allowed"
        elif not valid_label_key(key):
            return f"{key!r} is no valid label key"
        if key in keys[:position]:
            return f"{key!r} stands twice"
    return None


def valid_label_key(key: str) -> bool:
    """Return whether *key* is a label key: a name of at most 63 characters, perhaps with a DNS prefix."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DOMAIN.fullmatch(prefix)):
        return False
    return _NAME.fullmatch(name) is not None


def _error(keys: Sequence[str], service: Service) -> str | None:
    if service.external_traffic_policy == "Local":
        return "topology keys cannot be used together with externalTrafficPolicy: Local"
    return keys_error(keys)


def _min_endpoints(service: Service) -> int | None:
    text = service.annotations.get(MIN_ENDPOINTS, "1").strip()
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number or None


def findings(service: Service, constraint: Constraint | None) -> Iterator[Finding]:
    """Yield what is wrong in how *service* asks."""

    def finding(severity: str, field: str, message: str, expected: str = "") -> Finding:
        return Finding(severity, "Service", service.namespace, service.name, field, message, expected)

    if constraint is not None:
        field = SPELLED[constraint.source]
        if constraint.error is not None:
            expected = f"at most {MAX_KEYS} distinct label keys, '*' only last, no externalTrafficPolicy: Local"
            yield finding(ERROR, field, f"invalid constraint: {constraint.error}", expected)
        elif not constraint.headless:
            yield finding(WARNING, field, "constraint without effect: the Service is not headless", "clusterIP: None")
    if _min_endpoints(service) is None:
        message = f"{service.annotations[MIN_ENDPOINTS]!r} counts as 1"
        yield finding(WARNING, f"metadata.annotations[{MIN_ENDPOINTS}]", message, "a whole number from 1")
    for name in service.annotations:
        if name not in ANNOTATIONS:
            near = difflib.get_close_matches(name, ANNOTATIONS, 1, 0.0)[0]
            yield finding(WARNING, f"metadata.annotations[{name}]", "unknown annotation", near)
