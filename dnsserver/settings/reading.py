"""Reads the settings: flags, environment variables and a configuration file become one record.

Pure: the environment and the content of the file are handed in. A flag counts before a variable, and that before the
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dnsserver.settings.fields import FLAGS, Settings
from dnsserver.settings.spelling import nearest
from dnsserver.settings.values import PODS
from locator.ip import network_text

ENVIRONMENT = "TOPODNS_"
CONFIG_VARIABLE = f"{ENVIRONMENT}CONFIG"  # as --config, which is no setting
MAX_BITS = 64  # of a number in a file; Python does not write out one of thousands of digits in decimal
# What Kubernetes sets in pods if there is a Service that is called topodns.
_SERVICE_LINKS = re.compile(r"TOPODNS_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)")


class InvalidSetting(Exception):
    """A setting that cannot be used; the text says where it stands, what was found and what was expected."""


class _Given(NamedTuple):
    """The texts that a setting was given as, and where: a flag, a variable, or a file and key."""

    where: str
    texts: Sequence[str]


def read_settings(
    *, flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], file: tuple[str, object] | None
) -> tuple[Settings, list[str]]:
    """Return the settings, and warnings about variables that nobody reads and values that are hardly meant.

    *flags* are the texts given on the command line, by field name. *file* is the name of a configuration file, and its
    content as YAML gives it. Raises InvalidSetting.
    """
    given = {} if file is None else _from_file(*file)
    found, unknown = _from_environment(environment)
    given |= found
    given |= {name: _Given(option(name), texts) for name, texts in flags.items()}
    # The one place where names decide about types; ``fields`` holds each value to the type of its field.
    values: dict[str, Any] = {name: _value(name, *setting) for name, setting in given.items()}
    settings = Settings(**values)
    places = {name: setting.where for name, setting in given.items()}
    _check(settings, places)
    return settings, [*unknown, *_warnings(settings, places)]


def option(name: str) -> str:
    """Return the flag of a field."""
    return "--" + name.replace("_", "-")


def _value(name: str, where: str, texts: Sequence[str]) -> object:
    """Return what a setting was given as, read."""
    syntax, repeatable = FLAGS[name].syntax, FLAGS[name].repeatable
    values = []
    for text in texts:
        try:
            values.append(syntax.read(text))
        except ValueError as error:
            found = str(error)
            if repr(text) not in found:
                found = f"{text!r}: {found}"
            raise InvalidSetting(f"{where}: {found}, expected {syntax.expected}") from None
    if repeatable:
        return tuple(value for value in values if value is not None)
    if len(values) != 1:
        raise InvalidSetting(f"{where}: {len(values)} values found, expected one")
    return values[0]


def _check(settings: Settings, places: Mapping[str, str]) -> None:
    """Raise InvalidSetting for settings that do not go together."""
    if all(zone.reverse for zone in settings.zone):
        raise InvalidSetting(f"{places['zone']}: only reverse zones found, expected a zone for the names of Services")
    live = [name for name in ("kubeconfig", "context") if name in places]
    if settings.snapshot and live:
        raise InvalidSetting(f"{places[live[0]]}: given together with {places['snapshot']}, expected only one of them")
    networks = [subnet.network for subnet in settings.subnet]
    for index, network in enumerate(networks):
        if network in networks[:index]:
            raise InvalidSetting(
                f"{places['subnet']}: {network_text(network)} is given twice, expected each network once"
            )


def _warnings(settings: Settings, places: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about values that are allowed and hardly meant."""
    for network in dict.fromkeys(settings.trusted_forwarder):
        if network.length == 0:
            yield (
                f"{places['trusted_forwarder']}: {network_text(network)} trusts everybody: anyone who sends a query "
                "may give any address as the client's, and a client that gives none is unknown"
            )
    if settings.client_source == {PODS}:
        yield (
            f"{places['client_source']}: with pods alone, topodns knows on which node a client is, but not in which "
            "zone"
        )


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, _Given], list[str]]:
    known = {ENVIRONMENT + name.upper(): name for name in FLAGS}
    found, warnings = {}, []
    for variable, text in sorted(environment.items()):
        if variable in known:
            name = known[variable]
            if text.strip():  # manifests leave a variable empty to say nothing
                found[name] = _Given(variable, text.split() if FLAGS[name].repeatable else [text.strip()])
        elif (
            variable.startswith(ENVIRONMENT) and variable != CONFIG_VARIABLE and not _SERVICE_LINKS.fullmatch(variable)
        ):
            warnings.append(f"{variable}: unknown environment variable{nearest(variable, known)}")
    return found, warnings


def _from_file(path: str, content: object) -> dict[str, _Given]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSetting(f"{path}: {type(content).__name__} found, expected settings as KEY: VALUE")
    known = {option(name).removeprefix("--"): name for name in FLAGS}
    found = {}
    for key, value in content.items():
        name = known.get(key)
        if name is None:
            raise InvalidSetting(f"{path}: {key}: unknown key{nearest(str(key), known)}")
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, (dict, list)) or item is None for item in items):
            expected = FLAGS[name].syntax.expected
            raise InvalidSetting(f"{path}: {key}: {type(value).__name__} found, expected {expected}")
        found[name] = _Given(f"{path}: {key}", [_scalar(item) for item in items])
    return found


def _scalar(item: object) -> str:
    """Return what a file's value would be on the command line."""
    if isinstance(item, bool):
        return "on" if item else "off"
    if isinstance(item, int) and item.bit_length() > MAX_BITS:
        return hex(item)
    return str(item)
