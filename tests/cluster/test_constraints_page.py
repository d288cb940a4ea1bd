# SPDX-License-Identifier: Apache-2.0

"""``docs/constraints.md``: whatever it shows is applied to a real API server, read as a dump, and asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import dns.edns
import dns.message
import pytest
import yaml

from dnsserver.programs.from_settings import store_of
from locator.cluster import dump_files
from locator.cluster.dumps.reading import Input
from tests.kit import kustomize
from tests.kit.api_objects import Item, namespace
from tests.kit.consoles import Entry, entries
from tests.kit.explanations import explanation_of
from tests.kit.in_memory import NOW, settings_of, take_in
from tests.kit.kube import ControlPlane
from tests.kit.kustomize import EVERYTHING, objects_of
from tests.kit.live_server import RECOVERY, addresses, serving_live
from tests.kit.this_machine import ROOT
from tests.kit.topodns_process import Server
from tests.kit.waiting import until

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


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_as_a_dump(section: Section) -> None:
    """Beside the example cluster, the blocks give the answers of the page, for the reasons that it names."""
    store = store_of(settings_of(SETTINGS))
    inputs = [Input(f"block-{number}.yaml", block.encode()) for number, block in enumerate(objects(section))]
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


def applied(*kinds: str) -> list[Item]:
    """Return objects of the example cluster as somebody applies them, and as a kubelet reports them."""
    items = [item for item in yaml.safe_load(EXAMPLE.read_text())["items"] if item["kind"] in kinds]
    kept = ("name", "namespace", "labels", "annotations")
    for item in items:
        item["metadata"] = {key: item["metadata"][key] for key in kept if key in item["metadata"]}
        for container in item["spec"].get("containers", ()):
            container.pop("volumeMounts", None)  # of a token, which the real cluster adds
    return [item for item in items if item["metadata"].get("namespace", WHERE) == WHERE]


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The example cluster on a real control plane, and the CRDs."""
    with kustomize.installed(control_plane, objects_of(EVERYTHING, "CustomResourceDefinition")):
        stage = [namespace(WHERE), *applied("Node", "Pod")]
        control_plane.api.create(*stage)
        yield control_plane
        control_plane.api.delete(*(item for item in stage if item["kind"] != "Namespace"), stage[0])


@pytest.fixture(scope="module")
def server(cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_live(tmp_path_factory.mktemp("page"), cluster.kubeconfig, flags=SETTINGS) as running:
        yield running


def answer_to(server: Server, query: Asked) -> set[str]:
    """Ask what ``dig +subnet`` asks; an answer without records is empty."""
    subnet = dns.edns.ECSOption(query.client, 32)
    return addresses(server.ask(dns.message.make_query(query.name, "A", use_edns=0, options=[subnet])))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_applied(cluster: ControlPlane, server: Server, section: Section) -> None:
    """``kubectl apply`` takes the blocks, and the answers of a live server become those of the page."""
    headless = [item for item in applied("Service") if item["spec"]["clusterIP"] == "None"]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(headless))
    if any(SINCE_REMOVED in block for block in objects(section)):
        with pytest.raises(AssertionError, match=f'unknown field "spec.{SINCE_REMOVED}"'):
            cluster.kubectl("apply", "-f", "-", stdin=section.blocks[0])
        return
    with ExitStack() as stack:
        for block in objects(section):
            cluster.kubectl("apply", "-f", "-", stdin=block)
            stack.callback(cluster.api.delete, *yaml.safe_load_all(block))  # the next section applies Services again
        for query in section.asked:
            until(
                lambda query=query: answer_to(server, query) == query.answer,
                lambda query=query: f"{query}, but {answer_to(server, query)}",
                within=RECOVERY,
            )
