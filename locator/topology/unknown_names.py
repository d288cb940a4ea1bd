# SPDX-License-Identifier: Apache-2.0

"""Annotations and labels that begin as those of topodns do, and are none of them: they are probably misspelled."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping

from locator.model import and_more
from locator.topology.annotations import ANNOTATIONS, FEDERATION, PREFIXES
from locator.topology.hints import OPT_IN_LABELS

MAX_UNKNOWN = 8  # annotations and labels of one object that findings name: it may have ten thousand


def own_names(names: Iterable[str]) -> list[str]:
    """Return the *names* of annotations or labels that begin as those of topodns do."""
    return [name for name in names if name.startswith(PREFIXES)]


def unknown_names(annotations: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the field of each unknown annotation and label of an object, what is wrong there, and what is meant.

    The last one of MAX_UNKNOWN counts those that are left out.
    """
    unknown = [(name, "annotation") for name in own_names(annotations) if name not in ANNOTATIONS]
    unknown += [(name, "label") for name in own_names(labels) if name not in (*OPT_IN_LABELS, FEDERATION)]
    for number, (name, kind) in enumerate(unknown[:MAX_UNKNOWN], 1):
        (nearest,) = difflib.get_close_matches(name, (*ANNOTATIONS, OPT_IN_LABELS[0]), 1, 0.0)
        meant = "label" if nearest in OPT_IN_LABELS else "annotation"
        expected = nearest if meant == kind else f"the {meant} {nearest}"
        more = and_more(len(unknown) - number + 1) if number == MAX_UNKNOWN else ""
        yield f"metadata.{kind}s[{name}]", f"unknown {kind}{more}", expected
