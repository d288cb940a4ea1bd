"""The settings as flags of a command, and what flags, environment and configuration file together say."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path

from dnsserver.cli.errors import WrongInput
from dnsserver.cli.log_format import set_up_logging
from dnsserver.cli.parser import Parser
from dnsserver.settings.fields import FLAGS, Settings
from dnsserver.settings.flags import THEMES
from dnsserver.settings.reading import CONFIG_VARIABLE, InvalidSetting, option, read_settings

log = logging.getLogger("topodns")

_FIELD = "setting_"  # before a field's name among the arguments, which commands have of their own, too


def add_settings(parser: Parser, command: str) -> None:
    """Add the flags of the settings that *command* has, grouped by theme."""
    defaults = Settings()
    for theme in THEMES:
        flags = {name: flag for name, flag in FLAGS.items() if flag.theme == theme and command in flag.commands}
        if not flags:
            continue
        group = parser.add_argument_group(theme)
        for name, flag in flags.items():
            default = flag.shown or getattr(defaults, name)
            again = "; repeatable" if flag.repeatable else ""
            group.add_argument(
                option(name),
                dest=_FIELD + name,
                metavar=flag.syntax.metavar,
                action="append",
                nargs="?" if flag.switch else None,
                help=f"{flag.help} (default: {default}{again})".replace("%", "%%"),
            )
            if flag.switch:
                parser.switches.add(option(name))
    parser.flags.add_argument(
        "--config", metavar="FILE", help="Read settings from this YAML file. Its keys are the flags without the dashes"
    )


def settings_of(arguments: Namespace) -> Settings:
    """Return the settings, and log as they say from now on. Raises WrongInput."""
    given = {name: texts for name in FLAGS if (texts := getattr(arguments, _FIELD + name, None)) is not None}
    path = arguments.config or os.environ.get(CONFIG_VARIABLE)
    file = None if path is None else (path, _content(path))
    try:
        settings, warnings = read_settings(flags=given, environment=os.environ, file=file)
    except InvalidSetting as error:
        raise WrongInput(str(error)) from None
    set_up_logging(settings)
    for warning in warnings:
        log.warning("%s", warning)
    return settings


def _content(path: str) -> object:
    """Return what a configuration file holds."""
    import yaml  # most commands are given no such file

    try:
        return yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror}, expected a file of settings") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise WrongInput(f"{path}: {line}not YAML ({error.problem}), expected settings as KEY: VALUE") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise WrongInput(f"{path}: not YAML ({reason}), expected settings as KEY: VALUE") from None
