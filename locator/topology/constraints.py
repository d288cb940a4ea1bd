# SPDX-License-Identifier: Apache-2.0

"""What a Service asks for: the sources of constraints, their precedence, and their validity.

``SOURCES`` has all of them in order of precedence; a new source is one more row in it. The first source that declares a
constraint decides, even if the constraint is invalid: topodns never falls back to a later source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from locator.findings import ClusterCode
from locator.labels import valid_label_key
from locator.model import HOSTNAME, ZONE, Service, ServicePolicy
from locator.printable import cut, quoted
from locator.topology.annotations import (
    MIN_ENDPOINTS,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODES,
    field_of,
    has_mode_auto,
    min_endpoints,
    trimmed,
)
from locator.topology.selection import ANY_ENDPOINT, Constraint, FirstMatch, Hinted, Narrowing, Unconstrained

MAX_KEYS = 16  # KEP-536
MAX_KEY = 317  # characters: a domain of 253, a slash, and a name of 63
MAX_LISTS = 256  # of keys that are remembered as valid or not: most Services of a cluster ask for one of few

ZONAL_NAME = "zonal-name"
POLICY = "policy"
ANNOTATION = "annotation"
FIELD = "field"
HINTS = "hints"
TRAFFIC_DISTRIBUTION = "traffic-distribution"
ZONE_DEFAULT = "zone-default"

REQUIRED, PREFERRED, IGNORED = "Required", "Preferred", "Ignored"
MODES = (REQUIRED, PREFERRED, IGNORED)  # of a ServicePolicy
MODE_ALIASES = {mode.lower(): mode for mode in MODES}  # as they were first spelled

LOCAL_TRAFFIC = "topology keys cannot be used together with externalTrafficPolicy: Local"
NOT_HEADLESS = "the Service is not headless"
OF_PEERS = "the Service publishes addresses that are not ready, so only its own topology keys apply"
SWITCHED_OFF = "switched off by --traffic-distribution ignore"
SOME_HINTS = "some ready endpoints have no hint, so none counts"
NO_HINTS = "the Service's topology mode is Auto, and no ready endpoint has a hint"

# All that Kubernetes knows as spec.trafficDistribution -> the keys that mean the same (KEP-4444, KEP-3015). PreferClose
# is an alias.
DISTRIBUTIONS = {
    "PreferSameZone": (ZONE, ANY_ENDPOINT),
    "PreferClose": (ZONE, ANY_ENDPOINT),
    "PreferSameNode": (HOSTNAME, ZONE, ANY_ENDPOINT),
}


class Declaration(Struct, frozen=True, gc=False):
    """The constraint that one source declares for a Service, valid or not.

    ``error`` says why it is invalid, None if it is valid. ``without_effect`` says why it cannot change a DNS answer,
    None if it can. ``ignored`` says why it does not even count where no other source declares one, None if it does.
    ``unmatched``: it is ignored although it asks Kubernetes for near endpoints, which gives no hints that count.
    ``policies`` are the names of the ServicePolicies that declare it, in the order of their keys; ``policy_keys``
    has the key of each, empty if it has none.
    """

    source: str
    constraint: Constraint
    error: str | None = None
    without_effect: str | None = None
    ignored: str | None = None
    unmatched: bool = False
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


class Declared(Struct, frozen=True, gc=False):
    """The objects in which the sources of constraints are written.

    ``policies`` are all ServicePolicies of the Service's namespace, ``hinted`` is the constraint by its hints.
    ``honor_kubernetes`` says whether Kubernetes' own sources count.
    """

    service: Service
    policies: Sequence[ServicePolicy] = ()
    hinted: Hinted | None = None
    honor_kubernetes: bool = True


class ConstraintSource(Struct, frozen=True):
    """A source of constraints. Its position in ``SOURCES`` is its precedence.

    ``read`` yields what it declares for a Service. It is None for what the queried name or its DNS zone declares.
    ``field`` is the field of the Service to which findings point. Messages name the source by ``title``, else by that.
    ``annotations`` are those of a Service that it is read from; all that topodns has of its own are read, too.
    ``own``: it is about this Service alone, and so constrains a Service of peers, too.
    ``in_another_object``: that may be about several Services and has findings of its own.
    ``of_kubernetes``: Kubernetes has it for virtual IPs. Whoever writes any other one wants DNS to choose.
    ``code`` and ``expected`` are those of the finding that it is invalid.
    ``decides`` says why it is effective, and ``overrides`` why another source is not where it is.
    """

    name: str
    read: Callable[[Declared], Iterator[Declaration]] | None
    field: str = ""
    title: str = ""
    annotations: tuple[str, ...] = ()
    own: bool = False
    in_another_object: bool = False
    of_kubernetes: bool = False
    code: ClusterCode = ClusterCode.InvalidTopologyKeys
    expected: str = f"at most {MAX_KEYS} distinct label keys, '*' only last, no externalTrafficPolicy: Local"
    decides: str = "the first source that declares one"
    overrides: str = ""


def declarations_of(
    service: Service,
    policies: Sequence[ServicePolicy] = (),
    hinted: Hinted | None = None,
    *,
    honor_kubernetes: bool = True,
) -> tuple[Declaration, ...]:
    """Return what all sources declare for *service*, in order of precedence; ``deciding`` picks the one that decides.

    The arguments are those of ``Declared``. A Service with ``publishNotReadyAddresses`` is for peers that must find
    each other, so only its own annotation or field constrains it, and goes before policies. Never raises.
    """
    declared = Declared(service, policies, hinted, honor_kubernetes)
    found = [one for read in _READERS for one in read(declared)]
    return in_order(service, found) if service.publishes_unready else tuple(found)


def in_order(service: Service, declarations: Iterable[Declaration]) -> tuple[Declaration, ...]:
    """Return what sources declare for *service* in their order of precedence."""
    return tuple(sorted(declarations, key=lambda declaration: _rank(declaration.source, service)))


def _rank(source: str, service: Service) -> tuple[bool, int]:
    return service.publishes_unready and not SOURCE[source].own, _RANKS[source]


def deciding(declarations: Iterable[Declaration]) -> Declaration | None:
    """Return the first of *declarations*, which are in order, that is not ignored: it overrides all others."""
    return next((declaration for declaration in declarations if declaration.ignored is None), None)


def in_effect(declaration: Declaration | None) -> Constraint:
    """Return the constraint that chooses endpoints: *declaration*'s, or none if that is absent or not effective."""
    return declaration.constraint if declaration is not None and declaration.effective else Unconstrained()


def has_unmatched(declarations: Iterable[Declaration]) -> bool:
    """Whether a source asks Kubernetes for near endpoints, and gets no hints that count."""
    return any(declaration.unmatched for declaration in declarations)


def title_of(declaration: Declaration) -> str:
    """Return what declares a constraint, as a message names it."""
    source = SOURCE[declaration.source]
    return f"{source.title or source.field} {', '.join(declaration.policies)}".rstrip()


def federated_constraint(service: Service, policies: Sequence[ServicePolicy]) -> Declaration | None:
    """Return the constraint that a Service declares for its federated name, None if it declares none.

    *policies* are as in ``Declared``. What is about the pods of one cluster does not count, nor does the rule that
    topology keys exclude ``externalTrafficPolicy: Local``: that is about the load balancer of one cluster, too.
    """
    annotations = {key: text for key, text in service.annotations.items() if key != MIN_ENDPOINTS}
    alone = replace(service, external_traffic_policy="", headless=True, annotations=annotations)
    declarations = declarations_of(alone, policies, honor_kubernetes=False)
    return deciding(declaration for declaration in declarations if declaration.without_effect is None)


def zone_default(service: Service, keys: tuple[str, ...]) -> Declaration:
    """Return what the default keys of the DNS zone declare for a Service for which no source declares a constraint."""
    return _topology_keys(ZONE_DEFAULT, keys, Declared(service))


def _policies(declared: Declared) -> Iterator[Declaration]:
    """Read every ServicePolicy that selects the Service: required ones first, then by age and name."""
    matching = [policy for policy in declared.policies if policy.selector.matches(declared.service.labels)]
    matching.sort(key=lambda policy: (policy.mode != REQUIRED, policy.created, policy.name))
    speaking = [policy for policy in matching if silence_of(policy) is None]
    if speaking:
        yield _joint(declared, speaking)
    for policy in matching:
        if (why := silence_of(policy)) is not None:
            yield _declaration(POLICY, Narrowing(keys_of([policy])), declared, ignored=why, policies=[policy])


def _joint(declared: Declared, policies: Sequence[ServicePolicy]) -> Declaration:
    """Return what *policies*, which all select the Service, declare together."""
    service = declared.service
    keys = keys_of(policies)
    errors = (f"ServicePolicy {policy.name}: {wrong[1]}" for policy in policies if (wrong := policy_error(policy)))
    # A policy covers many Services; externalTrafficPolicy contradicts it only on headless ones.
    error = next(errors, None) or (_service_keys_error(keys, service) if service.headless else keys_error(keys))
    required = keys_of(policy for policy in policies if policy.mode == REQUIRED)
    shown = keys if error is None else _as_shown(keys)
    constraint = Narrowing(shown, required, at_least=min_endpoints(service) or 1)
    return _declaration(POLICY, constraint, declared, error=error, policies=policies)


def _annotation(declared: Declared) -> Iterator[Declaration]:
    text = trimmed(declared.service.annotations.get(TOPOLOGY_KEYS, ""))
    if text:
        yield _topology_keys(ANNOTATION, tuple(map(trimmed, text.split(","))), declared)


def _field(declared: Declared) -> Iterator[Declaration]:
    if declared.service.topology_keys:
        yield _topology_keys(FIELD, declared.service.topology_keys, declared)


def _hints(declared: Declared) -> Iterator[Declaration]:
    """Read hints, and those that are missing although Kubernetes was asked for them."""
    service, found = declared.service, declared.hinted
    if found is not None and found.complete:
        yield _declaration(HINTS, found, declared)
    elif service.headless and (found is not None or has_mode_auto(service)):
        yield _declaration(HINTS, Hinted(), declared, ignored=NO_HINTS if found is None else SOME_HINTS, unmatched=True)


def _traffic_distribution(declared: Declared) -> Iterator[Declaration]:
    service = declared.service
    keys = DISTRIBUTIONS.get(service.traffic_distribution)
    if keys is not None:
        keys = (ANY_ENDPOINT,) if has_mode_auto(service) else keys
        constraint = FirstMatch(keys, at_least=min_endpoints(service) or 1)
        yield _declaration(TRAFFIC_DISTRIBUTION, constraint, declared)


SOURCES = (
    # The queried name declares it.
    ConstraintSource(ZONAL_NAME, None, own=True, decides="the name states it",
                     overrides="the name states a constraint of its own"),
    ConstraintSource(POLICY, _policies, field="metadata.labels", title="ServicePolicy", in_another_object=True,
                     code=ClusterCode.InvalidServicePolicy,
                     expected=f"valid policies, at most {MAX_KEYS} keys in all, no externalTrafficPolicy: Local"),
    ConstraintSource(ANNOTATION, _annotation, field=field_of(TOPOLOGY_KEYS), title=f"the annotation {TOPOLOGY_KEYS}",
                     annotations=(TOPOLOGY_KEYS,), own=True),
    # Kubernetes 1.17 to 1.21 have this field.
    ConstraintSource(FIELD, _field, field="spec.topologyKeys", own=True),
    # Kubernetes' own controller writes hints, or anybody else.
    ConstraintSource(HINTS, _hints, field="endpoints[].hints", annotations=TOPOLOGY_MODES, of_kubernetes=True),
    ConstraintSource(TRAFFIC_DISTRIBUTION, _traffic_distribution, field="spec.trafficDistribution",
                     annotations=TOPOLOGY_MODES, of_kubernetes=True),
    # The DNS zone that is asked declares it, whatever the Service says.
    ConstraintSource(ZONE_DEFAULT, None, decides="no other source declares one"),
)  # fmt: skip
SOURCE = {row.name: row for row in SOURCES}
_READERS = tuple(row.read for row in SOURCES if row.read is not None)
_RANKS = {row.name: position for position, row in enumerate(SOURCES)}
SERVICE_ANNOTATIONS = frozenset(name for row in SOURCES for name in row.annotations)


def _topology_keys(source: str, keys: tuple[str, ...], declared: Declared) -> Declaration:
    error = _service_keys_error(keys, declared.service)
    shown = keys if error is None else _as_shown(keys)
    constraint = FirstMatch(shown, at_least=min_endpoints(declared.service) or 1)
    return _declaration(source, constraint, declared, error=error)


def _declaration(
    source: str,
    constraint: Constraint,
    declared: Declared,
    *,
    error: str | None = None,
    ignored: str | None = None,
    unmatched: bool = False,
    policies: Sequence[ServicePolicy] = (),
) -> Declaration:
    """Return what a source declares, by the rules that hold for all sources."""
    row, service, without_effect = SOURCE[source], declared.service, None
    if not service.headless:
        without_effect = NOT_HEADLESS
    elif service.publishes_unready and not row.own:
        without_effect = OF_PEERS
    if row.of_kubernetes and not declared.honor_kubernetes:
        ignored = SWITCHED_OFF
    unmatched = unmatched and ignored != SWITCHED_OFF and without_effect is None
    names, keys = [policy.name for policy in policies], [policy.topology_key or "" for policy in policies]
    return Declaration(source, constraint, error, without_effect, ignored, unmatched, tuple(names), tuple(keys))


def _as_shown(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the part of invalid keys, which choose nothing, that people are shown."""
    return tuple(map(cut, keys[: MAX_KEYS + 1]))


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
        if key == ANY_ENDPOINT:
            if position != len(keys) - 1:
                return f"{key!r} is key {position + 1} of {len(keys)}, but only the last key may be {key!r}"
        elif not valid_label_key(key):
            return f"{quoted(key)} is no valid label key"
        if key in keys[:position]:
            return f"{quoted(key)} is listed twice"
    return None


def silence_of(policy: ServicePolicy) -> str | None:
    """Return why a policy asks for nothing although it is valid, or None."""
    if policy.mode == IGNORED:
        return f"its mode is {IGNORED}"
    return "it has no topology key" if policy.mode in MODES and policy.topology_key is None else None


def keys_of(policies: Iterable[ServicePolicy]) -> tuple[str, ...]:
    """Return the keys of *policies* in their order. Two of them may name the same key, and some none."""
    return tuple(dict.fromkeys(policy.topology_key for policy in policies if policy.topology_key is not None))


def policy_error(policy: ServicePolicy) -> tuple[str, str, str] | None:
    """Return why a policy is invalid, or None: the field, what was found there, and what was expected."""
    if policy.mode not in MODES:
        return "spec.topology.mode", f"{quoted(policy.mode)} is no mode", ", ".join(MODES)
    if policy.topology_key is not None and not valid_label_key(policy.topology_key):
        return "spec.topology.key", f"{quoted(policy.topology_key)} is no valid label key", "a label key"
    return None


def _service_keys_error(keys: tuple[str, ...], service: Service) -> str | None:
    return LOCAL_TRAFFIC if service.external_traffic_policy == "Local" else keys_error(keys)
