# SPDX-License-Identifier: Apache-2.0

"""What a Service asks for: the sources of constraints, their precedence, and their validity.

``SOURCES`` holds them in order of precedence; a new source is one more row in it. The first source that declares a
constraint decides, even if the constraint is invalid: topodns never falls back to a later source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from locator.labels import valid_label_key
from locator.model import HOSTNAME, ZONE, Service, ServicePolicy
from locator.printable import cut, quoted
from locator.topology.annotations import trimmed
from locator.topology.hints import Hinted
from locator.topology.selection import ANY, Constraint, FirstMatch, Narrowing, Unconstrained

MAX_KEYS = 16  # KEP-536
MAX_KEY = 317  # characters: a domain of 253, a slash, and a name of 63
MAX_LISTS = 256  # of keys that are remembered as valid or not: most Services of a cluster ask for one of few

PREFIX = "topodns.io/"
TOPOLOGY_KEYS = "topodns.io/topology-keys"
MIN_ENDPOINTS = "topodns.io/min-endpoints"
HEALTH = "topodns.io/health"
TOPOLOGY_MODE = "service.kubernetes.io/topology-mode"
FEDERATED = "topodns.io/federated"
ANNOTATIONS = (TOPOLOGY_KEYS, MIN_ENDPOINTS, HEALTH, FEDERATED)

REQUIRED, PREFERRED, IGNORED = "Required", "Preferred", "Ignored"
LOCAL_TRAFFIC = "topology keys cannot be used together with externalTrafficPolicy: Local"
NOT_HEADLESS = "the Service is not headless"
OF_PEERS = "the Service publishes addresses that are not ready, so only its own topology keys apply"
SWITCHED_OFF = "switched off by --traffic-distribution ignore"
SOME_HINTS = "some ready endpoints have no hint, so none counts"
NO_HINTS = "the Service's topology mode is Auto, and no ready endpoint has a hint"
MODES = (REQUIRED, PREFERRED, IGNORED)  # of a ServicePolicy
MODE_ALIASES = {mode.lower(): mode for mode in MODES}  # as they were first spelled

POLICY = "policy"
ANNOTATION = "annotation"
FIELD = "field"
HINTS = "hints"
TRAFFIC_DISTRIBUTION = "traffic-distribution"
ZONE_DEFAULT = "zone-default"  # of the DNS zone that is asked, whatever the Service says
ZONAL_NAME = "zonal-name"  # the queried name declares it, not the Service

# spec.trafficDistribution -> the keys that mean the same (KEP-4444, KEP-3015). PreferClose is an alias.
DISTRIBUTIONS = {
    "PreferSameZone": (ZONE, ANY),
    "PreferClose": (ZONE, ANY),
    "PreferSameNode": (HOSTNAME, ZONE, ANY),
}
# Values of Kubernetes' topology annotations that let its own controller decide, and turn trafficDistribution off.
AUTO = ("Auto", "auto")


class Declaration(Struct, frozen=True, gc=False):
    """The constraint that one source declares for a Service, valid or not.

    ``error`` says why it is invalid, None if it is valid. ``without_effect`` says why it cannot change a DNS answer,
    None if it can. ``unheard`` says why it does not even count where no other source speaks, None if it does.
    ``in_vain``: it does not count, although it asks Kubernetes for near endpoints.
    ``policies`` are the names of the ServicePolicies that declare it, in the order of their keys; ``policy_keys``
    has the key of each.
    """

    source: str
    constraint: Constraint
    error: str | None = None
    without_effect: str | None = None
    unheard: str | None = None
    in_vain: bool = False
    policies: tuple[str, ...] = ()
    policy_keys: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the constraint obeys the rules."""
        return self.error is None

    @property
    def effective(self) -> bool:
        """Whether the constraint changes DNS answers."""
        return self.error is None and self.without_effect is None


def in_effect(declaration: Declaration | None) -> Constraint:
    """Return the constraint that chooses endpoints: *declaration*'s, or none if that is absent or not effective."""
    return declaration.constraint if declaration is not None and declaration.effective else Unconstrained()


def heard(declarations: Iterable[Declaration]) -> Declaration | None:
    """Return the declaration that counts: the first in order of precedence, None if there is none."""
    return next((declaration for declaration in declarations if declaration.unheard is None), None)


def asks_in_vain(declarations: Iterable[Declaration]) -> bool:
    """Whether a source asks Kubernetes for near endpoints, and does not count."""
    return any(declaration.in_vain for declaration in declarations)


class Sources(Struct, frozen=True, gc=False):
    """What the sources of constraints are read from.

    ``policies`` are all ServicePolicies of the Service's namespace, ``hinted`` is the constraint by its hints.
    ``honor_kubernetes`` says whether the hints and ``trafficDistribution`` count.
    """

    service: Service
    policies: Sequence[ServicePolicy] = ()
    hinted: Hinted | None = None
    honor_kubernetes: bool = True


def declarations_of(
    service: Service,
    policies: Sequence[ServicePolicy] = (),
    hinted: Hinted | None = None,
    *,
    honor_kubernetes: bool = True,
) -> tuple[Declaration, ...]:
    """Return what all sources declare for *service*, in order of precedence; ``heard`` picks the one that counts.

    The arguments are those of ``Sources``. A Service with ``publishNotReadyAddresses`` is for peers that must find each
    other, so only its own annotation or field constrains it, and goes before policies. Never raises.
    """
    sources = Sources(service, policies, hinted, honor_kubernetes)
    return in_order(service, (declaration for row in SOURCES for declaration in row.read(sources)))


def in_order(service: Service, declarations: Iterable[Declaration]) -> tuple[Declaration, ...]:
    """Return what sources declare for *service* in their order of precedence."""
    peers = service.publishes_unready

    def rank(declaration: Declaration) -> tuple[bool, int]:
        return peers and declaration.source not in OF_SERVICE, _RANKS[declaration.source]

    return tuple(sorted(declarations, key=rank))


def is_federated(service: Service) -> bool:
    """Whether a Service's own annotation exports it to all clusters."""
    return service.annotations.get(FEDERATED) == "true"


def federated_constraint(service: Service, policies: Sequence[ServicePolicy]) -> Declaration | None:
    """Return the constraint that a Service declares for its federated name, None if it declares none.

    *policies* are as in ``Sources``. What is about the pods of one cluster does not count, nor does the rule that
    topology keys exclude ``externalTrafficPolicy: Local``: that is about the load balancer of one cluster, too.
    """
    annotations = {key: text for key, text in service.annotations.items() if key != MIN_ENDPOINTS}
    alone = replace(service, external_traffic_policy="", headless=True, annotations=annotations)
    declarations = declarations_of(alone, policies, honor_kubernetes=False)
    return heard(declaration for declaration in declarations if declaration.without_effect is None)


def _policies(sources: Sources) -> Iterator[Declaration]:
    """Read every ServicePolicy that selects the Service: required ones first, then by age and name."""
    service = sources.service
    matching = [policy for policy in sources.policies if policy.selector.matches(service.labels)]
    matching.sort(key=lambda policy: (policy.mode != REQUIRED, policy.created, policy.name))
    selecting = [policy for policy in matching if policy.mode != IGNORED]
    if selecting:
        yield _joint(service, selecting)
    for policy in matching:
        if policy.mode == IGNORED:
            keys = (policy.topology_key,)
            unheard = f"its mode is {IGNORED}"
            yield Declaration(POLICY, Narrowing(keys), unheard=unheard, policies=(policy.name,), policy_keys=keys)


def _joint(service: Service, policies: Sequence[ServicePolicy]) -> Declaration:
    """Return what *policies*, which all select the Service, declare together."""
    keys = tuple(dict.fromkeys(policy.topology_key for policy in policies))  # two policies may name the same key
    errors = (f"ServicePolicy {policy.name}: {wrong[1]}" for policy in policies if (wrong := policy_error(policy)))
    # A policy covers many Services; externalTrafficPolicy contradicts it only on headless ones.
    error = next(errors, None) or (_service_keys_error(keys, service) if service.headless else keys_error(keys))
    required = tuple(dict.fromkeys(policy.topology_key for policy in policies if policy.mode == REQUIRED))
    return Declaration(
        POLICY,
        Narrowing(keys if error is None else _as_shown(keys), required, at_least=min_endpoints(service) or 1),
        error=error,
        without_effect=_why_without_effect(service, POLICY),
        policies=tuple(policy.name for policy in policies),
        policy_keys=tuple(policy.topology_key for policy in policies),
    )


def _annotation(sources: Sources) -> Iterator[Declaration]:
    text = trimmed(sources.service.annotations.get(TOPOLOGY_KEYS, ""))
    if text:
        yield _topology_keys(ANNOTATION, tuple(map(trimmed, text.split(","))), sources.service)


def _field(sources: Sources) -> Iterator[Declaration]:
    if sources.service.topology_keys:
        yield _topology_keys(FIELD, sources.service.topology_keys, sources.service)


def _hints(sources: Sources) -> Iterator[Declaration]:
    """Read hints, and those that are missing although Kubernetes was asked for them."""
    service, unheard = sources.service, _why_unheard(sources)
    hinted, without_effect = sources.hinted, _why_without_effect(service, HINTS)
    if hinted is not None and hinted.complete:
        yield Declaration(HINTS, hinted, without_effect=without_effect, unheard=unheard)
    elif service.headless and (hinted is not None or service.topology_mode in AUTO):
        missing, in_vain = NO_HINTS if hinted is None else SOME_HINTS, unheard is None and without_effect is None
        yield Declaration(HINTS, Hinted(), without_effect=without_effect, unheard=unheard or missing, in_vain=in_vain)


def _traffic_distribution(sources: Sources) -> Iterator[Declaration]:
    service = sources.service
    keys = DISTRIBUTIONS.get(service.traffic_distribution)
    if keys is None:
        return
    if service.topology_mode in AUTO:
        keys = (ANY,)
    yield Declaration(
        TRAFFIC_DISTRIBUTION,
        FirstMatch(keys, at_least=min_endpoints(service) or 1),
        without_effect=_why_without_effect(service, TRAFFIC_DISTRIBUTION),
        unheard=_why_unheard(sources),
    )


class SourceRow(Struct, frozen=True):
    """A source of constraints: how it is read, and the field that it is written in.

    ``meant``: whoever writes it wants to choose endpoints; Kubernetes' own sources mean virtual IPs, too.
    ``of_service``: it is written in the Service itself, and so constrains peers as well.
    """

    name: str
    read: Callable[[Sources], Iterator[Declaration]]
    field: str
    meant: bool = False
    of_service: bool = False


SOURCES = (
    SourceRow(POLICY, _policies, "metadata.labels", meant=True),
    SourceRow(ANNOTATION, _annotation, f"metadata.annotations[{TOPOLOGY_KEYS}]", meant=True, of_service=True),
    SourceRow(FIELD, _field, "spec.topologyKeys", meant=True, of_service=True),  # Kubernetes 1.17 to 1.21
    SourceRow(HINTS, _hints, "endpoints[].hints"),  # by Kubernetes' own controller or by anybody else
    SourceRow(TRAFFIC_DISTRIBUTION, _traffic_distribution, "spec.trafficDistribution"),
)
SOURCE_FIELDS = {row.name: row.field for row in SOURCES}
MEANT = tuple(row.name for row in SOURCES if row.meant)
OF_SERVICE = tuple(row.name for row in SOURCES if row.of_service)
_RANKS = {row.name: position for position, row in enumerate(SOURCES)}


def zone_default(service: Service, keys: tuple[str, ...]) -> Declaration:
    """Return what the default keys of the DNS zone declare for a Service for which no source declares a constraint."""
    return _topology_keys(ZONE_DEFAULT, keys, service)


def _topology_keys(source: str, keys: tuple[str, ...], service: Service) -> Declaration:
    error = _service_keys_error(keys, service)
    return Declaration(
        source,
        FirstMatch(keys if error is None else _as_shown(keys), at_least=min_endpoints(service) or 1),
        error=error,
        without_effect=_why_without_effect(service, source),
    )


def _as_shown(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the part of invalid keys, which choose nothing, that people are shown."""
    return tuple(map(cut, keys[: MAX_KEYS + 1]))


def _why_without_effect(service: Service, source: str) -> str | None:
    if not service.headless:
        return NOT_HEADLESS
    if service.publishes_unready and source not in OF_SERVICE:
        return OF_PEERS
    return None


def _why_unheard(sources: Sources) -> str | None:
    return None if sources.honor_kubernetes else SWITCHED_OFF


def keys_error(keys: tuple[str, ...]) -> str | None:
    """Return why a list of topology keys is invalid (KEP-536), or None."""
    if len(keys) > MAX_KEYS:
        return f"{len(keys)} keys, at most {MAX_KEYS} allowed"
    if long := next((key for key in keys if len(key) > MAX_KEY), None):
        return f"{quoted(long)} is no valid label key"
    return _keys_error(keys)


@lru_cache(MAX_LISTS)  # of lists that are not long: an annotation has up to 256 KiB
def _keys_error(keys: tuple[str, ...]) -> str | None:
    for position, key in enumerate(keys):
        if key == ANY:
            if position != len(keys) - 1:
                return f"{ANY!r} is key {position + 1} of {len(keys)}, but only the last key may be {ANY!r}"
        elif not valid_label_key(key):
            return f"{quoted(key)} is no valid label key"
        if key in keys[:position]:
            return f"{quoted(key)} is listed twice"
    return None


def policy_error(policy: ServicePolicy) -> tuple[str, str, str] | None:
    """Return why a policy is invalid, or None: the field, what was found there, and what was expected."""
    if policy.mode not in MODES:
        return "spec.topology.mode", f"{quoted(policy.mode)} is no mode", ", ".join(MODES)
    if not valid_label_key(policy.topology_key):
        return "spec.topology.key", f"{quoted(policy.topology_key)} is no valid label key", "a label key"
    return None


def _service_keys_error(keys: tuple[str, ...], service: Service) -> str | None:
    if service.external_traffic_policy == "Local":
        return LOCAL_TRAFFIC
    return keys_error(keys)


def min_endpoints(service: Service) -> int | None:
    """Return the value of the annotation ``topodns.io/min-endpoints``, 1 if it is absent, None if it is invalid."""
    text = trimmed(service.annotations.get(MIN_ENDPOINTS, "1"))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return number or None
