# SPDX-License-Identifier: Apache-2.0

"""Writes the pages that are made from code: ``make docs``.

Each is a template in ``templates/``, with what ``PAGES`` gives it: tables of the product, which it prints as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dnsserver.cli.dispatch import COMMANDS, parser_of
from dnsserver.cli.parser import CommandParser
from dnsserver.metrics.families import ANY_VALUE, HISTOGRAM, Family
from dnsserver.metrics.tables import TABLES
from dnsserver.settings.flags import Flag, flags_in
from dnsserver.settings.reading import ENVIRONMENT, option
from dnsserver.settings.settings import FLAGS, THEMES, Settings
from dnsserver.settings.values import parse_upstream
from dnsserver.tools.api.operations import EVENT_STREAM, description
from dnsserver.tools.corefile.caddyfile import parse
from dnsserver.tools.corefile.codes import CorefileCode
from dnsserver.tools.corefile.stub_blocks import COREDNS, stub_block
from dnsserver.tools.doctor.providers import CUSTOM_CONFIG, CUSTOM_KEY, PROVIDERS, STUB_DOMAINS, ConfigMapEdit, Provider
from dnsserver.tools.doctor.steps import StepCode
from dnsserver.tools.simulation.codes import SimulationCode
from docs.pages import chart_pages, schemas
from locator.findings import ClusterCode
from tests.kit import go_programs
from tests.kit.this_machine import ROOT
from tests.peers.comparison.differences import DIFFERENCES

WIDTH = 120  # columns
RULES = ROOT / "manifests" / "chart" / "files" / "monitoring" / "prometheusrule.yaml"
CRDS = ("servicepolicies.yaml", "podlocators.yaml", "servicehealths.yaml")


# -- flags


def own_arguments(parser: CommandParser) -> Iterator[tuple[str, argparse.Action]]:
    """Yield the arguments of a command and its flags that are no settings, or are written otherwise, too."""
    settings = {option(name) for name in FLAGS}
    for action in sorted(parser.actions(), key=lambda action: bool(action.option_strings)):
        names = action.option_strings or [""]
        if not settings.issuperset(names) and "--help" not in names:
            value = action.metavar or ("|".join(action.choices) if action.choices else "")
            value = "" if action.option_strings and action.nargs == "?" else value  # of a switch
            words = (f"`{f'{name} {value}'.strip()}`" for name in names)
            yield cell(", ".join(words)), action


def themes() -> Mapping[str, Mapping[str, Flag]]:
    """Return the flags of each theme of the settings, by its title and their names."""
    return {theme.title: {name: FLAGS[name] for name in flags_in(theme.settings)} for theme in THEMES}


def themes_of(command: str) -> list[str]:
    """Return the titles of the themes of the settings of a command."""
    return [title for title, flags in themes().items() if any(command in flag.commands for flag in flags.values())]


# -- metrics and alerts


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """Return the names of topodns' metrics in a query."""
    return set(re.findall(r"\btopodns_\w+", re.sub(r'"[^"]*"', "", expression)))


def series_of(family: Family) -> set[str]:
    """Return the names by which queries find a metric."""
    if family.kind == HISTOGRAM:
        return {f"{family.name}_{suffix}" for suffix in ("bucket", "sum", "count")}
    return {family.shown_name}


def alerts_on(family: Family) -> list[str]:
    """Return the names of the alerts that ask for a metric."""
    return [rule["alert"] for rule in rules() if names_in(rule["expr"]) & series_of(family)]


# -- providers

TO, ZONE = "10.96.0.53", "shop.svc.cluster.local"
STUB = stub_block(COREDNS, [parse_upstream(TO)], [ZONE])
TODAY = """\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa
    forward . /etc/resolv.conf
    cache 30
    reload
}
"""


def what_to_change(provider: Provider) -> str:
    """Return the object that a provider leaves to its users."""
    if not provider.config_map:
        return "nothing: its DNS cannot be configured so"
    if provider.own_part:
        return f"ConfigMap `{CUSTOM_CONFIG}`"
    commands = edit_commands(provider)
    if "HelmChartConfig" in commands:
        return "HelmChartConfig `kube-system/rke2-coredns`"
    if "dns.operator" in commands:
        return "`dns.operator/default`"
    return "the add-on's value `corefile`" if "eks" in commands else f"ConfigMap `{provider.config_map}`"


def edit_commands(provider: Provider) -> str:
    """Return the commands that ``topodns doctor`` prints for ``ZONE``, where the Corefile is ``TODAY``."""
    corefile = TODAY + STUB
    config_map = CUSTOM_CONFIG if provider.own_part else provider.config_map
    text = json.dumps({ZONE: [TO]}) if provider.key == STUB_DOMAINS else corefile
    key, text = (CUSTOM_KEY, STUB) if provider.own_part else (provider.key, text)
    blocks = parse(TODAY if provider.below else corefile)
    edit = ConfigMapEdit("kubectl", config_map, None, key, text=text, blocks=blocks, zones=[ZONE], to=[TO])
    return "\n".join(provider.edit(edit))


# -- all pages


def cell(text: str) -> str:
    """Return Markdown as a cell of a table."""
    return text.replace("|", r"\|")


def plain(text: str) -> str:
    """Return a text as a cell of a table: neither its stars nor its angle brackets nor its bars mean anything."""
    return re.sub(r"([*|<_])", r"\\\1", text)


def wrapped(text: str) -> str:
    """Return a paragraph in lines."""
    return "\n".join(textwrap.wrap(text, WIDTH, break_on_hyphens=False))


def anchor(heading: str) -> str:
    """Return a heading as forges write it in links."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _api() -> Mapping[str, Any]:
    api = description()
    operations = {path: methods["get"] for path, methods in api["paths"].items()}
    return {"operations": operations, "schemas": api["components"]["schemas"], "event_stream": EVENT_STREAM}


def _crds() -> Mapping[str, Any]:
    paths = [path for name in CRDS for path in (ROOT / "manifests").rglob(name)]
    return {"crds": [yaml.safe_load(path.read_text()) for path in paths], "fields": schemas.fields_below}


def _flags() -> Mapping[str, Any]:
    return {
        "commands": {name: (summary, parser_of(name)) for name, summary in COMMANDS.items()},
        "themes": themes(),
        "themes_of": themes_of,
        "own_arguments": own_arguments,
        "environment": ENVIRONMENT,
        "defaults": Settings(),
    }


def _providers() -> Mapping[str, Any]:
    ordered = sorted(PROVIDERS, key=lambda provider: (" with coredns" in provider.name, provider.name.lower()))
    return {"providers": ordered, "zone": ZONE, "to": TO}


PAGES: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "api-reference.md": _api,
    "compared-with-coredns.md": lambda: {
        "differences": DIFFERENCES,
        "kubernetes": go_programs.KUBERNETES.removeprefix("v"),
        "coredns": go_programs.COREDNS.removeprefix("v"),
    },
    "crds.md": _crds,
    "doctor.md": lambda: {"steps": StepCode},
    "findings.md": lambda: {
        "sections": {
            "In a cluster": ClusterCode,
            "In a Corefile": CorefileCode,
            "In a simulation": SimulationCode,
        }
    },
    "flags.md": _flags,
    "metrics.md": lambda: {"tables": TABLES, "any_value": ANY_VALUE, "alerts_on": alerts_on},
    "providers.md": _providers,
}


def document(name: str) -> str:
    """Return a page of ``PAGES``."""
    templates = Environment(
        loader=FileSystemLoader(ROOT / "docs" / "pages" / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    templates.filters |= {
        "anchor": anchor,
        "cell": cell,
        "edit_commands": edit_commands,
        "field_meaning": schemas.meaning_of_field,
        "field_type": schemas.type_of_field,
        "one_line": schemas.one_line,
        "option": option,
        "parameter_meaning": schemas.meaning_of_parameter,
        "plain": plain,
        "type": schemas.type_in_words,
        "what_to_change": what_to_change,
        "wrapped": wrapped,
    }
    return templates.get_template(f"{name}.j2").render(PAGES[name]())


def made_from_code() -> Mapping[str, str]:
    """Return every file that is made from code: its text by its path in the project."""
    return {
        **{f"docs/{name}": document(name) for name in PAGES},
        **{path.relative_to(ROOT).as_posix(): text for path, text in chart_pages.documents().items()},
    }


if __name__ == "__main__":
    for path, text in made_from_code().items():
        (ROOT / path).write_text(text)
