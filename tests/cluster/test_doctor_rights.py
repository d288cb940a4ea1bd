# SPDX-License-Identifier: Apache-2.0

"""The rights that ``topodns doctor`` looks for are those that the manifests give."""

from __future__ import annotations

import pytest
from kubernetes.client import V1Deployment

from dnsserver.cli.reading.installed import settings_in
from dnsserver.programs.from_settings import store_of
from dnsserver.tools.doctor.facts import Right
from dnsserver.tools.doctor.installation import needed_rights
from tests.kit.kustomize import SERVER, object_of, objects_of, rights_in

VARIANTS = ("base", "base without pods", "base with podlocators", "base with multicluster", "clusters", "snapshot")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rights_that_serve_needs(variant: str) -> None:
    """By its settings: they are those that the manifests give it."""
    made = object_of(variant, "Deployment", SERVER)
    settings = settings_in(V1Deployment.from_dict(made), ())
    needed = needed_rights(() if settings.snapshot else store_of(settings).kinds)
    roles = [role for role in objects_of(variant, "ClusterRole") if role["metadata"]["name"] == SERVER]
    assert set(needed) == {Right(*right) for role in roles for right in rights_in(role["rules"])}
