# SPDX-License-Identifier: Apache-2.0

"""Adds the settings to a command as flags, and reads them from flags, environment and configuration file."""

from __future__ import annotations

import json
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TypedDict

from dnsserver.cli.errors import WrongInput
from dnsserver.cli.log_format import set_up_logging
from dnsserver.cli.parser import CommandParser, read_file
from dnsserver.settings.fields import FLAGS, OLD_NAMES, Settings
from dnsserver.settings.flags import SERVING, THEMES
from dnsserver.settings.reading import CONFIG_VARIABLE, InvalidSetting, log_format_of, option, read_settings

log = logging.getLogger("topodns")

# Of commands that look at what is served: as kubectl means them, they look at one namespace.
ONE_NAMESPACE = {"serve_namespace": ("-n", "--namespace")}
_PREFIX = "setting_"  # of a setting among the parsed arguments: keeps it apart from the command's own arguments


def add_settings(
    parser: CommandParser,
    command: str,
    *,
    common: Sequence[str] = (),
    also: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add the flags of *command*'s settings, grouped by theme, those of the fields *common* before all groups.

    *also* has further flags for some, by field. ``serve`` takes their old names, too.
    """
    defaults = Settings()
    for theme in THEMES:
        flags = {name: flag for name, flag in FLAGS.items() if flag.theme == theme and command in flag.commands}
        if not flags:
            continue
        group = parser.add_argument_group(theme)  # one without flags is not shown
        for name, flag in flags.items():
            default = flag.shown or getattr(defaults, name)
            repeatable = "; repeatable" if flag.repeatable else ""
            (parser.flags if name in common else group).add_argument(
                *(also or {}).get(name, ()),
                option(name),
                dest=_PREFIX + name,
                metavar=flag.syntax.metavar,
                action="append",
                nargs="?" if flag.switch else None,
                help=f"{flag.help} (default: {default}{repeatable})".replace("%", "%%"),
            )
            if flag.switch:
                parser.switches.add(option(name))
            elif flag.syntax.words:
                parser.words[_PREFIX + name] = flag.syntax.words
            if flag.old_name and command in SERVING:
                group.add_argument(
                    option(flag.old_name),
                    dest=_PREFIX + flag.old_name,
                    metavar=flag.syntax.metavar,
                    action="append",
                    help=f"Old name of {option(name)}, which a later version does not take",
                )
    parser.flags.add_argument(
        "--config", metavar="FILE", help="Read settings from this YAML file. Its keys are the flags without --"
    )


def give(arguments: Namespace, name: str, texts: Sequence[str]) -> None:
    """Add values of the setting *name* that the command line has without its flag."""
    if texts:
        setattr(arguments, _PREFIX + name, [*(getattr(arguments, _PREFIX + name) or ()), *texts])


def settings_of(arguments: Namespace) -> Settings:
    """Return the settings, set up logging and log warnings about them. Raises WrongInput."""
    given = _given(arguments, os.environ, file_content)
    set_up_logging(log_format_of(**given))  # for errors in other settings
    settings, warnings = _read(given)
    set_up_logging(settings.log_format, settings.log_level)
    for warning in warnings:
        log.warning("%s", warning)
    return settings


def early_log_format(argv: Sequence[str]) -> str:
    """Return the log format that a command line, the environment or the configuration file asks for.

    The command line may be wrong otherwise, and a file that cannot be read asks for nothing. A pipe is read only once.
    """
    given = dict[str, str]()
    for word, following in zip_longest(argv, argv[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        given[name] = value if equals else following
    path, file = given.get("--config") or os.environ.get(CONFIG_VARIABLE, ""), None
    if os.path.isfile(path):
        with suppress(WrongInput):
            file = path, _content(path, file_content(path))
    flag = option("log_format")
    flags = {"log_format": [given[flag]]} if flag in given else {}
    return log_format_of(flags=flags, environment=os.environ, file=file)


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
    return {name: texts for name in names if (texts := getattr(arguments, _PREFIX + name, None)) is not None}


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
