# SPDX-License-Identifier: Apache-2.0

"""Makes HTML of what a page shows. Whatever stands in a name, a label or an annotation, it is text there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dnsserver import __version__
from dnsserver.metrics.relations import RELATIONS
from dnsserver.text import duration, grouped, number_text, percent
from dnsserver.tools.console.causes import cluster_code, finding_key, fixing_command
from dnsserver.tools.console.page import segment
from dnsserver.tools.console.pages.areas import site_troubles
from dnsserver.tools.console.pages.gains import MAX_RANKED
from dnsserver.tools.console.pages.services import type_of
from dnsserver.tools.console.traffic import DAY, HOUR, curve_points, rate
from dnsserver.tools.console.troubles.traffic import trusting_flag
from dnsserver.tools.console.wording import in_page, meant
from dnsserver.tools.explain.explanation import EndpointBalanced, Explanation
from dnsserver.tools.explain.explanation_text import balance_lines
from dnsserver.tools.simulation import MAX_OVERLOAD
from dnsserver.tools.simulation.as_if import annotating_command
from dnsserver.tools.simulation.gains import OWN_ZONE
from dnsserver.tools.simulation.picture import inline_picture
from dnsserver.tools.simulation.service import Simulated, described, exceeds, first_address
from dnsserver.tools.simulation.text import (
    balance_text,
    constraint_text,
    domain_text,
    greatest_shares,
    largest_domains,
    named,
)
from locator.findings import documentation
from locator.ip import address_text, network_text
from locator.model import CLUSTER, ZONE, object_key
from locator.printable import MAX_TEXT, cut
from locator.topology.annotations import MAX_OVERLOAD as MAX_OVERLOAD_KEY
from locator.topology.annotations import TOPOLOGY_KEYS
from locator.topology.constraints import has_unmatched

MAX_WORDS = 27_000  # characters of texts on a page, before the others are cut to BRIEF
BRIEF = 24
FOLDER = Path(__file__).parent / "templates"


_left: ContextVar[int] = ContextVar("left")  # of MAX_WORDS on the page that is made now


def environment() -> Environment:
    """Return the templates, which escape everything, and end with an error rather than leave something out."""
    templates = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_shown,
    )
    templates.filters.update(FILTERS)
    templates.globals.update(GLOBALS)
    return templates


def rendered(templates: Environment, name: str, parts: Mapping[str, Any]) -> str:
    """Return a page. However long the texts in it are, and whoever wrote them, it has few of their octets."""
    _left.set(MAX_WORDS)
    return templates.get_template(name).render(parts)


def _shown(value: object) -> object:
    """Return what a page shows of a text that others may have written."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    left = _left.get()
    shown = escape(cut(value, MAX_TEXT) if left > 0 else cut(value, BRIEF, said=False))
    _left.set(left - len(shown))
    return shown


def _short(key: str) -> str:
    """Return the name of a label key, without its prefix."""
    return key.rpartition("/")[2]


def _expected_by_address(explanation: Explanation) -> dict[str, EndpointBalanced]:
    """Return how many clients each endpoint of a balanced Service expects, by its first address; else nothing."""
    return {row.address: row for row in explanation.balance.endpoints} if explanation.balance else {}


def _pod_of(holder: str) -> tuple[str, str]:
    """Return the namespace and the name of the pod that holds an address, empty if it is none: ``pod shop/web-0``."""
    namespace, slash, name = holder.removeprefix("pod ").partition("/")
    return (namespace, name) if slash and holder.startswith("pod ") else ("", "")


def _segment(text: str) -> Markup:
    """Return a text as one segment of a path."""
    return Markup(segment(text))  # a link that is cut leads nowhere


def _path(text: str) -> Markup:
    """Return a path whose parts are quoted already."""
    return escape(text)  # not shown, and so not cut


def _percent_of(part: int, whole: int) -> int:
    """Return a part in percent: 0 and 100 only where that is exact."""
    if not 0 < part < whole:
        return 100 if part else 0
    return min(99, max(1, round(100 * part / whole)))


FILTERS: Mapping[str, Callable[..., Any]] = {
    "address": address_text,
    "annotating_command": annotating_command,
    "balance_lines": balance_lines,
    "balance_text": balance_text,
    "cluster_code": cluster_code,
    "constraint_text": constraint_text,
    "curve_points": curve_points,
    "described": described,
    "documentation": documentation,
    "domain_text": domain_text,
    "duration": duration,
    "expected_by_address": _expected_by_address,
    "finding_key": finding_key,
    "first_address": first_address,
    "fixing_command": fixing_command,
    "greatest_shares": greatest_shares,
    "grouped": grouped,
    "in_page": in_page,
    "has_unmatched": has_unmatched,
    "largest_domains": largest_domains,
    "meant": meant,
    "named": named,
    "network": network_text,
    "number_text": number_text,
    "overloaded": partial(exceeds, max_overload=MAX_OVERLOAD),
    "path": _path,
    "percent": percent,
    "percent_of": _percent_of,
    "pod_of": _pod_of,
    "picture": partial(inline_picture, max_overload=MAX_OVERLOAD),
    "rate": rate,
    "rated": partial(Simulated.rating, max_overload=MAX_OVERLOAD),
    "segment": _segment,
    "short": _short,
    "site_troubles": site_troubles,
    "thousands": "{:,}".format,
    "trusting_flag": trusting_flag,
    "type_of": type_of,
    "unshortened": escape,
}
GLOBALS = {
    "cluster_key": CLUSTER,
    "columns_of_day": DAY,
    "columns_of_hour": HOUR,
    "max_overload": MAX_OVERLOAD,
    "max_overload_key": MAX_OVERLOAD_KEY,
    "max_ranked": MAX_RANKED,
    "object_key": object_key,
    "own_zone_keys": OWN_ZONE[TOPOLOGY_KEYS].split(","),
    "program_version": __version__,
    "relations": RELATIONS,
    "topology_keys": TOPOLOGY_KEYS,
    "zone_key": ZONE,
}
