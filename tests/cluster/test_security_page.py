# SPDX-License-Identifier: Apache-2.0

"""The page about security says who may read what, as the manifests have it."""

from __future__ import annotations

import re

import pytest

from tests.kit.kustomize import FEDERATION, object_of, rights_in
from tests.kit.page_commands import table
from tests.kit.this_machine import ROOT

SECURITY = ROOT / "docs" / "security.md"
# What the page says -> the manifests, and the roles in them.
PROGRAMS = {
    "`topodns serve`": ("base", "topodns"),
    "`topodns controller`": ("base with controller", "topodns-controller"),
    "`topodns webhook`": ("base with webhook", "topodns-webhook"),
    "`topodns controller --federate`, in the federation API": ("federation api", FEDERATION),
    "... in each cluster": ("federation cluster", FEDERATION),
    "topodns in another cluster (`--cluster`, `--cluster-dir`)": ("remote", "topodns-reader"),
}


def resources(text: str) -> set[str]:
    """Return the resources of the kinds that a text names."""
    kinds = re.findall(r"\b(?:[A-Z][a-z]+){1,3}(?:ies|s)\b|\bPodLocators\b|\bEndpointSlices\b", text)
    return {kind.lower() for kind in kinds}


@pytest.mark.parametrize("program", PROGRAMS)
def test_who_may_read_what(program: str) -> None:
    """The page names exactly the kinds that a program's ClusterRole lets it list."""
    said = table(SECURITY, "What it may do in the cluster")
    reads = said[program][0].replace("what `serve` reads", said["`topodns serve`"][0])
    variant, name = PROGRAMS[program]
    rights = rights_in(object_of(variant, "ClusterRole", name)["rules"])
    listed = {resource for _, resource, verb in rights if verb == "list"}
    assert resources(reads) == listed
