# SPDX-License-Identifier: Apache-2.0

"""``docs/constraints.md``: what it shows is asked as a dump, before and after a real API server takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import yaml

from dnsserver.programs.from_settings import store_of
from locator.cluster import dump_files
from locator.cluster.dumps.reading import Input
from tests.kit import kustomize
from tests.kit.api_objects import namespace
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, settings_of, take_in
from tests.kit.kube import ControlPlane
from tests.kit.kustomize import EVERYTHING, objects_of
from tests.kit.page_commands import Entry, entries
from tests.kit.this_machine import ROOT

PAGE = ROOT / "docs" / "constraints.md"
EXAMPLE = ROOT / "examples" / "cluster.yaml"
WHERE = "shop"
SINCE_REMOVED = "topologyKeys"  # the field that an API server of today does not know


class Asked(NamedTuple):
    """A query on the page: the client, the name, the addresses in the answer, and why (``nearest, by policy``)."""

    client: str
    name: str
    answer: set[str]
    outcome: str
    source: str | None


class Section(NamedTuple):
    """Blocks of YAML of one section, and what is asked after them."""

    title: str
    blocks: list[str]
    asked: list[Asked]


def _sections() -> Iterator[Section]:
    """Yield a section for each block of queries: with all blocks of YAML before it under the same heading."""
    for text in re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        title, blocks = text.partition("\n")[0], list[str]()
        for language, block in re.findall(r"```(yaml|console)\n(.*?)```", text, re.DOTALL):
            if language == "yaml":
                blocks.append(block)
            elif asked := list(map(_asked, entries(block))):
                yield Section(f"{title} {len(blocks)}", list(blocks), [query for query in asked if query is not None])


def _asked(entry: Entry) -> Asked | None:
    if not entry.command.startswith("ask "):
        return None
    asked = re.fullmatch(r"ask \+subnet=(\S+)/32 (\S+)", entry.command)
    why = re.fullmatch(r".*: (\w+)(?:, by ([\w-]+))?", entry.comment)
    assert asked is not None and why is not None, entry
    return Asked(asked[1], asked[2], {*entry.output.split()}, why[1], why[2])


def _is_object(block: str) -> bool:
    return "kind:" in block


SECTIONS = [section for section in _sections() if section.asked]
SETTINGS: dict[str, Any] = {}
for _section in SECTIONS:
    for _block in _section.blocks:
        SETTINGS |= {} if _is_object(_block) else yaml.safe_load(_block)


def objects(section: Section) -> list[str]:
    """Return a section's blocks of objects; the others are settings."""
    return [block for block in section.blocks if _is_object(block)]


def test_the_page_shows_each_source() -> None:
    """Each source that ``explain`` can name has a query, and each outcome."""
    asked = [query for section in SECTIONS for query in section.asked]
    assert {query.source for query in asked} == {
        *("policy", "annotation", "field", "hints", "traffic-distribution", "zone-default", "zonal-name", None)
    }
    assert {query.outcome for query in asked} == {"nearest", "all", "unmet", "unconstrained"}
    assert SETTINGS["default-topology-keys"]


def check(section: Section, blocks: Sequence[str]) -> None:
    """Beside the example cluster, the blocks give the answers of the page, for the reasons that it names."""
    store = store_of(settings_of(SETTINGS))
    inputs = [Input(f"block-{number}.yaml", block.encode()) for number, block in enumerate(blocks)]
    dump = dump_files.read_here([Input(str(EXAMPLE), None), *inputs])
    assert {finding.code for finding in dump.findings} <= {"ObjectTwice"}
    take_in(store, dump.objects)
    snapshot = store.publish(NOW)
    for query in section.asked:
        found = explanation_of(snapshot, query.name, query.client, flags=SETTINGS)
        assert {answer.data for answer in found.answers} == query.answer, query
        assert found.outcome == query.outcome, query
        if query.source is not None:
            assert found.constraint.source == query.source, query


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_as_a_dump(section: Section) -> None:
    """The blocks as they stand there."""
    check(section, objects(section))


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with the CRDs, and with the namespace of the page."""
    control_plane.settle(WHERE)
    with kustomize.installed(control_plane, objects_of(EVERYTHING, "CustomResourceDefinition")):
        control_plane.api.create(namespace(WHERE))
        yield control_plane
        control_plane.api.delete(namespace(WHERE))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_applied(cluster: ControlPlane, section: Section) -> None:
    """The blocks as an API server keeps what ``kubectl apply`` sends it, without a warning."""
    apply = ("apply", "--dry-run=server", "-o", "yaml", "-f", "-")
    if any(SINCE_REMOVED in block for block in objects(section)):
        with pytest.raises(AssertionError, match=f'unknown field "spec.{SINCE_REMOVED}"'):
            cluster.kubectl(*apply, stdin=section.blocks[0])
    else:
        check(section, [cluster.kubectl(*apply, stdin=block) for block in objects(section)])
