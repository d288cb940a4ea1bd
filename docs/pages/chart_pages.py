# SPDX-License-Identifier: Apache-2.0

"""What the chart's files say of the code.

The schema of the settings comes from the flags; the tables of the chart's page from ``values.yaml`` and its comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dnsserver.settings.flags import SERVING, Flag
from dnsserver.settings.reading import option
from dnsserver.settings.settings import FLAGS
from dnsserver.settings.values import CLIENT_SOURCES
from tests.kit.this_machine import ROOT

CHART = ROOT / "manifests" / "chart"
VALUES, SCHEMA, PAGE = CHART / "values.yaml", CHART / "values.schema.json", CHART / "README.md"
COMMANDS = ("serve", "controller", "webhook")
# Flags that are no settings of the chart: what it sets them by, or why it does not.
SET_BY = {
    "listen": "port 1053 of the Service's pods",
    "webhook_listen": "port 8443 of the Service's pods",
    "http": "port 9153, where the kubelet and Prometheus ask",
    "kubeconfig": "nothing: pods use their ServiceAccount. For other clusters, `clustersSecret`",
    "context": "nothing: see `--kubeconfig`",
    "snapshot": "`dns.snapshot`",
    "cluster": "`clusters` with a `context`",
    "cluster_dir": "`clustersSecret`, `clusters`",
    "federate": "`controller.federate`",
    "lease": "the name of the release",
    "tls_cert": "`webhook.certificate.secret`",
    "tls_key": "`webhook.certificate.secret`",
    "tls_secret": "the name of the release",
    "webhook_configuration": "the name of the release",
}
# The chart reads this one: which rights topodns needs follows from it, and from `pods`.
CLIENT_SOURCE = "^(pods|nodes|podlocators)( *, *(pods|nodes|podlocators))*$"
OF_SERVER = {"cluster_name"}  # of the controller, which takes it from dns.settings
BOUNDS = re.compile(r"a (?:whole )?number(?: of seconds)? from (\d+) to (\d+).*")
SWITCHED_OFF = ", or off"  # YAML reads a bare off as false, which the chart turns back


def settings_schema(command: str) -> Mapping[str, Any]:
    """Return the schema of the settings of a command."""
    flags = {
        option(name).removeprefix("--"): flag
        for name, flag in FLAGS.items()
        if command in flag.commands and name not in SET_BY and not (command == "controller" and name in OF_SERVER)
    }
    properties = {name: {"description": f"{flag.help}.", **_schema_of(flag)} for name, flag in flags.items()}
    for name, flag in flags.items():
        if flag.old_name and command in SERVING:
            properties[flag.old_name] = {**properties[name], "description": f"Old name of {name}.", "deprecated": True}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema() -> str:
    """Return the schema of all values: that of the file, with the settings that there are."""
    content = json.loads(SCHEMA.read_text())
    _require_all(content)
    content["$defs"] |= {command: settings_schema(command) for command in COMMANDS}
    return json.dumps(content, indent=2) + "\n"


def _require_all(section: dict[str, Any]) -> None:
    """Make all values of a section necessary: who writes a section and leaves it empty takes the defaults away."""
    if "properties" in section:
        section["required"] = [name for name in section["properties"] if name != "global"]
        for below in section["properties"].values():
            _require_all(below)


def _schema_of(flag: Flag) -> Mapping[str, Any]:
    one = _schema_of_one(flag)
    return {"type": "array", "minItems": 1, "items": one} if flag.repeatable else one


def _schema_of_one(flag: Flag) -> Mapping[str, Any]:
    if flag.switch:
        return {"type": "boolean"}
    least = {} if _accepts(flag, "") else {"minLength": 1}
    off = ["string", "boolean"] if flag.syntax.expected.endswith(SWITCHED_OFF) else []
    if bounds := BOUNDS.fullmatch(flag.syntax.expected):
        numbers = {"minimum": int(bounds[1]), "maximum": int(bounds[2])}
        return {"type": [*off, "integer"], **least, **numbers} if off else {"type": "integer", **numbers}
    if words := _choice(flag):
        return {"enum": [*words, False] if "off" in words else words}
    if flag.syntax is CLIENT_SOURCES:
        return {"type": "string", "pattern": CLIENT_SOURCE}
    return {"type": off or "string", **least}


def _choice(flag: Flag) -> list[str]:
    """Return the words that a flag accepts, if it accepts no others."""
    words = re.split(", | or ", flag.syntax.expected)
    return words if all(_accepts(flag, word) for word in words) and not _accepts(flag, "no such word") else []


def _accepts(flag: Flag, text: str) -> bool:
    try:
        flag.syntax.read(text)
    except ValueError:
        return False
    return True


def values_rows() -> Iterator[tuple[str, str, str]]:
    """Yield each value that ``values.yaml`` comments on: its path, its default as JSON, and the comment above it."""
    text = VALUES.read_text()
    yield from _rows(yaml.compose(text), yaml.safe_load(text), text.splitlines(), "")


def _rows(node: Any, values: Mapping[str, Any], lines: list[str], path: str) -> Iterator[tuple[str, str, str]]:
    for key, below in node.value:
        comment = _comment_above(lines, key.start_mark.line)
        value, name = values[key.value], f"{path}{key.value}"
        nested = list(_rows(below, value, lines, f"{name}.")) if isinstance(value, dict) else []
        if nested:
            yield from nested
        elif comment:
            yield name, json.dumps(value, ensure_ascii=False), comment


def _comment_above(lines: list[str], line: int) -> str:
    found: list[str] = []
    while line and (text := lines[line - 1].strip()).startswith("#"):
        found.insert(0, text.removeprefix("#").strip())
        line -= 1
    return " ".join(found)


def page() -> str:
    """Return the chart's page: what stands there, with the tables that there are."""
    values = "".join(f"| `{name}` | `{default}` | {comment} |\n" for name, default, comment in values_rows())
    flags = "".join(f"| `{option(name)}` | {by} |\n" for name, by in SET_BY.items())
    text = _between(PAGE.read_text(), "values", f"| value | default | meaning |\n| --- | --- | --- |\n{values}")
    return _between(text, "flags", f"| flag | set by |\n| --- | --- |\n{flags}")


def _between(text: str, name: str, table: str) -> str:
    """Return *text* with *table* between the marks of a name."""
    before, begin, rest = text.partition(f"<!-- {name}: begin -->\n")
    _, end, after = rest.partition(f"<!-- {name}: end -->\n")
    assert begin and end, f"no place for {name}"
    return f"{before}{begin}{table}{end}{after}"


def documents() -> Mapping[Path, str]:
    """Return the files of the chart that are made from code."""
    return {SCHEMA: schema(), PAGE: page()}
