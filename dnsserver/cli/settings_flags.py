# SPDX-License-Identifier: Apache-2.0

"""Adds the settings to a command as flags, and reads them from flags, environment and configuration file."""

from __future__ import annotations

import json
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict, TypeVar

from dnsserver.cli.errors import WrongInput
from dnsserver.cli.log_format import set_up_logging
from dnsserver.cli.parser import CommandParser, read_file
from dnsserver.settings.flags import SERVING, Flag, flags_in
from dnsserver.settings.reading import CONFIG_VARIABLE, InvalidSetting, log_format_of, option, read_flags, read_settings
from dnsserver.settings.settings import FLAGS, OLD_NAMES, Settings

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

T = TypeVar("T")

log = logging.getLogger("topodns")

# Of commands that look at what is served: as kubectl means them, they look at one namespace.
ONE_NAMESPACE = {"serve_namespace": ("-n", "--namespace")}
# Before the name of a setting, and of a command's own flag, among the parsed arguments: one name may be both.
_SETTING, _OWN = "setting_", "own_"
_PATHS = "paths"


def add_settings(
    parser: CommandParser, command: str, *, common: Sequence[str] = (), also: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Add the flags of *command*'s settings, grouped by theme, those of the fields *common* before all groups.

    *also* has further flags for some, by field. ``serve`` takes their old names, too. A command that reads dumps takes
    their paths also as arguments.
    """
    defaults = Settings()
    assert any(command in flag.commands for flag in FLAGS.values()), f"no settings of {command}: see settings/flags.py"
    for title in dict.fromkeys(flag.theme for flag in FLAGS.values()):
        group = parser.add_argument_group(title)  # one without flags is not shown
        for name, flag in FLAGS.items():
            if flag.theme != title or command not in flag.commands:
                continue
            spelled = *(also or {}).get(name, ()), option(name)
            where = parser.flags if name in common else group
            _add_flag(parser, where, _SETTING + name, flag, getattr(defaults, name), spelled)
            if flag.old_name and command in SERVING:
                group.add_argument(
                    option(flag.old_name),
                    dest=_SETTING + flag.old_name,
                    metavar=flag.syntax.metavar,
                    action="append",
                    help=f"Old name of {option(name)}, which a later version does not take",
                )
    parser.flags.add_argument(
        "--config", metavar="FILE", help="Read settings from this YAML file. Its keys are the flags without --"
    )
    if command in FLAGS["snapshot"].commands:
        parser.usage = str(parser.usage).replace("[flags]", "[PATH...] [flags]")
        parser.positionals.add_argument(
            _PATHS,
            metavar="PATH",
            nargs="*",
            help="A file or folder to read the cluster from, as --snapshot; without one and without --snapshot, the "
            "live cluster is read",
        )


def add_flags(parser: CommandParser, record: type) -> None:
    """Add the flags of *record*, which this command alone has, and only on the command line."""
    defaults = record()
    for name, flag in flags_in(record).items():
        spelled = (flag.short, option(name)) if flag.short else (option(name),)
        _add_flag(parser, parser.flags, _OWN + name, flag, getattr(defaults, name), spelled)


def _add_flag(
    parser: CommandParser, group: _ArgumentGroup, destination: str, flag: Flag, default: object, spelled: Sequence[str]
) -> None:
    group.add_argument(
        *spelled,
        dest=destination,
        metavar=flag.syntax.metavar,
        action="append",
        nargs="?" if flag.switch else None,
        help=flag.described(default).replace("%", "%%"),
    )
    if flag.switch:
        parser.switches.add(spelled[-1])
    elif flag.syntax.words:
        parser.words[destination] = flag.syntax.words


def flags_of(arguments: Namespace, record: type[T]) -> T:
    """Return the command's own flags, as they were given. Raises WrongInput."""
    names = flags_in(record)
    given = {name: texts for name in names if (texts := getattr(arguments, _OWN + name)) is not None}
    try:
        return read_flags(record, given)
    except InvalidSetting as error:
        raise WrongInput(str(error)) from None


def settings_of(arguments: Namespace) -> Settings:
    """Return the settings, set up logging and log warnings about them. Raises WrongInput."""
    given = _given(arguments, os.environ, file_content)
    set_up_logging(log_format_of(**given))  # for errors in other settings
    settings, warnings = _read(given)
    set_up_logging(settings.log_format, settings.log_level)
    for warning in warnings:
        log.warning("%s", warning)
    return settings


def given_settings(
    arguments: Namespace, environment: Mapping[str, str], read: Callable[[str], bytes]
) -> tuple[Settings, list[str]]:
    """Return the settings and warnings about them, wherever the command runs. Raises WrongInput.

    *read* returns the content of a file, and may raise WrongInput.
    """
    return _read(_given(arguments, environment, read))


class _Given(TypedDict):
    """Where settings are given: what ``reading.read_settings`` takes."""

    flags: Mapping[str, Sequence[str]]
    environment: Mapping[str, str]
    file: tuple[str, object] | None


def _given(arguments: Namespace, environment: Mapping[str, str], read: Callable[[str], bytes]) -> _Given:
    flags = given_flags(arguments)
    path = arguments.config or environment.get(CONFIG_VARIABLE)
    file = None if path is None else (path, _content(path, read(path)))
    return {"flags": flags, "environment": environment, "file": file}


def _read(given: _Given) -> tuple[Settings, list[str]]:
    try:
        return read_settings(**given)
    except InvalidSetting as error:
        raise WrongInput(str(error)) from None


def given_flags(arguments: Namespace) -> dict[str, list[str]]:
    """Return the texts of the settings that the command line itself has, by field, or by its old name."""
    names = (*FLAGS, *OLD_NAMES)
    given = {name: texts for name in names if (texts := getattr(arguments, _SETTING + name, None)) is not None}
    if paths := getattr(arguments, _PATHS, ()):
        given["snapshot"] = [*given.get("snapshot", ()), *paths]
    return given


def file_content(path: str) -> bytes:
    """Return the content of a configuration file. Raises WrongInput."""
    return read_file(path, "a configuration file")


def _content(path: str, text: bytes) -> object:
    """Return the parsed content of a configuration file. Raises WrongInput."""
    from locator.api.yaml_text import NotYAML, documents  # loaded late: most commands run without a file

    expected = "expected settings as KEY: VALUE"
    try:
        contents = [json.loads(document) for document, _ in documents(text)]
    except NotYAML as error:
        line = f"line {error.line}: " if error.line else ""
        raise WrongInput(f"{path}: {line}not YAML ({' '.join(str(error).split())}), {expected}") from None
    except RecursionError:
        raise WrongInput(f"{path}: nested too deeply, {expected}") from None
    if len(contents) > 1:
        raise WrongInput(f"{path}: {len(contents)} documents found, expected one")
    return contents[0] if contents else None
