# SPDX-License-Identifier: Apache-2.0

"""Builds the settings from flags, environment variables and a configuration file.

Pure: callers pass in the environment and the file's content. A flag overrides a variable, and a variable overrides the
file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from dnsserver.settings.flags import Flag, flags_in
from dnsserver.settings.settings import FLAGS, OLD_NAMES, Settings
from dnsserver.settings.values import OFF, PODS, refused
from dnsserver.spelling import nearest
from locator.ip import network_text
from locator.model import CLUSTER

T = TypeVar("T")

ENVIRONMENT = "TOPODNS_"
CONFIG_VARIABLE = f"{ENVIRONMENT}CONFIG"  # stands for --config, which is not a setting
MAX_BITS = 64  # of a number in a file; Python refuses to print numbers of thousands of digits in decimal
# Settings that have no effect without one of others.
NEEDED = {
    "flat_network": ("federation",),
    "federation_spares": ("federation",),
    "federation_topology_keys": ("federation",),
    "cluster_max_age": ("cluster", "cluster_dir"),
    "federate_selector": ("federate",),
}
_NAMES = (*FLAGS, *OLD_NAMES)
# Variables that Kubernetes sets in pods if there is a Service named topodns.
_SERVICE_LINKS = re.compile(r"TOPODNS_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")


class InvalidSetting(Exception):
    """A setting is invalid. The text says where it was given, what was found and what was expected."""


class _GivenSetting(NamedTuple):
    """The values of a setting as texts, and their source: a flag, a variable, or a file with a key."""

    source: str
    texts: Sequence[str]


def read_settings(
    *, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], file: tuple[str, object] | None
) -> tuple[Settings, list[str]]:
    """Return the settings, and warnings about unknown variables, old names and values that are probably mistakes.

    *flags* maps field names, or old ones, to the texts given on the command line. *file* is a configuration file's name
    and its content as parsed from YAML, or None. Raises InvalidSetting.
    """
    variables, warnings = _from_environment(environment)
    given = dict[str, _GivenSetting]()
    for source, spelled in (
        ({} if file is None else _from_file(*file), _key),
        (variables, _variable),
        ({name: _GivenSetting(option(name), texts) for name, texts in flags.items()}, option),
    ):
        warnings += _rename(source, spelled)
        given |= source
    # mypy cannot check this dictionary; ``flags`` makes sure that each syntax yields values of its field's type.
    values: dict[str, Any] = {name: _value(FLAGS[name], *setting) for name, setting in given.items()}
    settings = Settings(**values)
    sources = {name: setting.source for name, setting in given.items()}
    _check(settings, sources)
    return settings, [*warnings, *_warnings(settings, sources)]


def read_flags(record: type[T], texts: Mapping[str, Sequence[str]]) -> T:
    """Return a command's own flags: a record whose fields have flags, as settings have. Raises InvalidSetting.

    *texts* maps field names to the texts given on the command line, of which the last counts if one was expected.
    """
    values: dict[str, Any] = {}
    for name, flag in flags_in(record).items():
        if given := texts.get(name):
            values[name] = _value(flag, flag.short or option(name), given if flag.repeatable else given[-1:])
    return record(**values)


def log_format_of(
    *, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], file: tuple[str, object] | None
) -> str:
    """Return the format of log lines, from what ``read_settings`` takes; the default if it is wrong.

    Errors in settings are lines in that format, too, so it has to be known before they are read.
    """
    content = file[1] if file is not None else None
    in_file = content.get("log-format") if isinstance(content, dict) else None
    in_environment = environment.get(f"{ENVIRONMENT}LOG_FORMAT", "").strip()
    given = [*flags.get("log_format", ())[-1:], *filter(None, (in_environment, in_file))]
    return "json" if given[:1] == ["json"] else Settings().log_format


def option(name: str) -> str:
    """Return the spelling of a field's flag, such as ``--log-level``, or ``--with`` of the field ``with_``."""
    return f"--{_key(name.removesuffix('_'))}"


def _key(name: str) -> str:
    """Return the spelling of a field in a file, such as ``log-level``."""
    return name.replace("_", "-")


def _variable(name: str) -> str:
    """Return the spelling of a field in the environment, such as ``TOPODNS_LOG_LEVEL``."""
    return ENVIRONMENT + name.upper()


def _rename(given: dict[str, _GivenSetting], spelled: Callable[[str], str]) -> Iterator[str]:
    """Give fields in *given* their present name, which counts if both are there; yield a warning for each old one."""
    for old, name in OLD_NAMES.items():
        if old in given:
            setting = given.pop(old)
            given.setdefault(name, setting)
            yield f"{setting.source}: an old name, expected {spelled(name)}; a later version does not know it"


def _value(flag: Flag, source: str, texts: Sequence[str]) -> Any:
    """Parse the value of a setting. Raises InvalidSetting."""
    values: list[Any] = []
    for text in texts:
        try:
            values.append(flag.syntax.read(text))
        except ValueError as error:
            raise InvalidSetting(f"{source}: {refused(text, error)}, expected {flag.syntax.expected}") from None
    if flag.several:
        return tuple(dict.fromkeys(chain.from_iterable(values)))
    if flag.repeatable:
        return tuple(value for value in values if value is not None)
    if len(values) != 1:
        raise InvalidSetting(f"{source}: {len(values)} values found, expected one")
    return values[0]


def _check(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise InvalidSetting if settings contradict each other. *sources* maps a given field to its source."""
    if all(zone.reverse for zone in settings.zone) and not settings.federation and not settings.multicluster:
        raise InvalidSetting(f"{sources['zone']}: only reverse zones found, expected a zone for the names of Services")
    live = [name for name in ("kubeconfig", "context") if name in sources]
    if settings.snapshot and live:
        given, snapshot = sources[live[0]], sources["snapshot"]
        raise InvalidSetting(f"{given}: given together with {snapshot}, expected only one of them")
    _check_defaults(settings, sources)
    _check_clusters(settings, sources)
    _check_zones(settings, sources)
    if settings.publish and not settings.federation:
        raise InvalidSetting(f"{sources['publish']}: given without --federation, expected the zone of its names")
    _check_certificate(sources)
    networks = [subnet.network for subnet in settings.subnet]
    for index, network in enumerate(networks):
        if network in networks[:index]:
            raise InvalidSetting(
                f"{sources['subnet']}: {network_text(network)} is given twice, expected each network once"
            )


def _check_defaults(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise InvalidSetting unless each zone with default topology keys is served, and has them once."""
    zones = (*(zone for zone in settings.zone if not zone.reverse), *settings.multicluster)
    served, seen = [zone.name for zone in zones], list[str]()
    for default in settings.default_topology_keys:
        name = default.zone.name
        if name not in served:
            expected = f"one of --zone{' and --multicluster' if settings.multicluster else ''}: {', '.join(served)}"
            raise InvalidSetting(f"{sources['default_topology_keys']}: {name} is not served, expected {expected}")
        if name in seen:
            raise InvalidSetting(f"{sources['default_topology_keys']}: {name} is given twice, expected each zone once")
        seen.append(name)


def _check_clusters(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise InvalidSetting unless each cluster has a name of its own, and flat networks name known clusters."""
    known = [settings.cluster_name]
    for cluster in settings.cluster:
        if cluster.name in known:
            other = "the own cluster's (--cluster-name)" if cluster.name == known[0] else "given twice"
            raise InvalidSetting(
                f"{sources['cluster']}: the name {cluster.name} is {other}, expected a name of its own"
            )
        known.append(cluster.name)
    for names in settings.flat_network if settings.cluster_dir is None else ():  # a folder may have any, some day
        for name in sorted(names):
            if name not in known:
                raise InvalidSetting(
                    f"{sources['flat_network']}: no cluster {name}{nearest(name, known)}, expected names of clusters: "
                    f"{', '.join(known)}"
                )


def _check_zones(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise InvalidSetting if a zone of federated or multi-cluster names is, contains or hides another zone."""
    names = [(name, zone) for name in ("federation", "multicluster") for zone in getattr(settings, name)]
    served = [*settings.zone, *settings.federation, *settings.multicluster]
    for position, (name, zone) in enumerate(names, start=len(settings.zone)):
        source = sources[name]
        if zone.reverse:
            raise InvalidSetting(f"{source}: {zone.name} is a reverse zone, expected one for names")
        for other in (*served[:position], *served[position + 1 :]):
            if other.labels[-len(zone.labels) :] == zone.labels:
                relation = "served already" if other == zone else f"above the zone {other.name}"
                raise InvalidSetting(f"{source}: {zone.name} is {relation}, expected a zone of its own")
            if zone.labels in ((b"svc", *other.labels), (b"pod", *other.labels)):
                raise InvalidSetting(
                    f"{source}: {zone.name} hides all such names of the zone {other.name}, expected a zone of its own"
                )


def _check_certificate(sources: Mapping[str, str]) -> None:
    """Raise InvalidSetting if it is unclear which certificate the webhook serves."""
    if len(pair := {"tls_cert", "tls_key"} & sources.keys()) == 1:
        (given,) = pair
        (other,) = {"tls_cert", "tls_key"} - pair
        raise InvalidSetting(f"{sources[given]}: given without {option(other)}, expected both or neither")
    own = [name for name in ("tls_secret", "webhook_configuration") if name in sources]
    if own and "tls_cert" in sources:
        raise InvalidSetting(
            f"{sources[own[0]]}: given together with {sources['tls_cert']}, expected only one of them: it is for the "
            "webhook's own certificate"
        )


def _warnings(settings: Settings, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about values that are valid but probably mistakes."""
    for network in dict.fromkeys(settings.trusted_forwarder):
        if network.length == 0:
            yield (
                f"{sources['trusted_forwarder']}: {network_text(network)} trusts every sender: anyone can claim any "
                "client address, and a client that queries topodns without naming an address is unknown"
            )
    if settings.client_source == {PODS}:
        yield (
            f"{sources['client_source']}: with pods alone, topodns knows the node of a client, but not the node's "
            "labels, such as its zone"
        )
    # A folder may have further clusters some day, and an MCS controller may know some.
    if settings.federation and not settings.multicluster and settings.cluster_dir is None:
        known = [settings.cluster_name, *(cluster.name for cluster in settings.cluster)]
        given = [value for subnet in settings.subnet for key, value in subnet.labels if key == CLUSTER]
        for name in dict.fromkeys(given):
            if name not in known:
                found, expected = f"no cluster {name}{nearest(name, known)}", f"expected one of {', '.join(known)}"
                yield f"{sources['subnet']}: {found}, {expected}: to federated names, its clients are in no cluster"
    if settings.console and settings.http == OFF:
        yield f"{sources['console']} has no effect with {sources['http']} off"
    for name, others in NEEDED.items():
        if name in sources and not any(getattr(settings, other) for other in others):
            yield f"{sources[name]} has no effect without {' or '.join(map(option, others))}"


def _flag(name: str) -> Flag:
    """Return the flag of a field by its present or its old name."""
    return FLAGS[OLD_NAMES.get(name, name)]


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, _GivenSetting], list[str]]:
    """Return the settings in the environment, and warnings about unknown ``TOPODNS_`` variables."""
    known = {_variable(name): name for name in _NAMES}
    given, warnings = {}, []
    for variable, text in sorted(environment.items()):
        if variable in known:
            name = known[variable]
            if text.strip():  # manifests set a variable to an empty string to leave it out
                given[name] = _GivenSetting(variable, text.split() if _flag(name).repeatable else [text.strip()])
        elif (
            variable.startswith(ENVIRONMENT) and variable != CONFIG_VARIABLE and not _SERVICE_LINKS.fullmatch(variable)
        ):
            warnings.append(f"{variable}: unknown environment variable{nearest(variable, known)}")
    return given, warnings


def _from_file(path: str, content: object) -> dict[str, _GivenSetting]:
    """Return the settings in a configuration file. Raises InvalidSetting."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSetting(f"{path}: {_words_of(content)} found, expected settings as KEY: VALUE")
    known = {_key(name): name for name in _NAMES}
    given = {}
    for key, value in content.items():
        name = known.get(key)
        if name is None:
            raise InvalidSetting(f"{path}: {key}: unknown key{nearest(str(key), known)}")
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, (dict, list)) or item is None for item in items):
            expected = _flag(name).syntax.expected
            raise InvalidSetting(f"{path}: {key}: {_words_of(value)} found, expected {expected}")
        given[name] = _GivenSetting(f"{path}: {key}", [_scalar(item) for item in items])
    return given


def _words_of(value: object) -> str:
    """Return what a value of YAML is called."""
    names = {str: "a text", list: "a list", dict: "a mapping", type(None): "nothing"}
    return names.get(type(value), repr(value))


def _scalar(item: object) -> str:
    """Return a value of the file as it would be written on the command line."""
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, int) and item.bit_length() > MAX_BITS:
        return hex(item)
    return str(item)
