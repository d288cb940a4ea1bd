# SPDX-License-Identifier: Apache-2.0

"""``did you mean ...?`` is said of what is near, and of nothing else."""

from __future__ import annotations

import pytest

from dnsserver.cli.dispatch import COMMANDS
from dnsserver.settings.reading import option
from dnsserver.settings.settings import FLAGS
from dnsserver.spelling import nearest, nearest_key, nearest_label, suggestion

FLAG_NAMES = [*map(option, FLAGS), "-h", "-o", "-n", "--help", "--config", "--client"]
LABELS = ["kubernetes.io/arch", "kubernetes.io/os", "topology.kubernetes.io/zone"]

NEAR = [
    # what somebody wrote, what is known, what was meant
    ("chek", COMMANDS, "check"),
    ("explan", COMMANDS, "explain"),
    ("Serve", COMMANDS, "serve"),
    ("server", COMMANDS, "serve"),
    ("--tll", FLAG_NAMES, "--ttl"),
    ("--snapshots", FLAG_NAMES, "--snapshot"),
    ("-snapshot", FLAG_NAMES, "--snapshot"),
    ("--kube-config", FLAG_NAMES, "--kubeconfig"),
    ("--trusted-forwarders", FLAG_NAMES, "--trusted-forwarder"),
    ("--trust-forwarder", FLAG_NAMES, "--trusted-forwarder"),
    ("--serve-name-space", FLAG_NAMES, "--serve-namespace"),
    ("--logformat", FLAG_NAMES, "--log-format"),
    ("shpo", ["shop", "default"], "shop"),
]
FAR = [
    ("foo", COMMANDS),
    ("tail-f", ["explain", "check"]),
    ("--foo", FLAG_NAMES),
    ("-x", FLAG_NAMES),
    ("-A", FLAG_NAMES),
    ("--verbose", FLAG_NAMES),
    ("--foo-bar", FLAG_NAMES),
    ("", FLAG_NAMES),
    ("foo", []),
    ("c", ["a", "b"]),
]


@pytest.mark.parametrize(("word", "known", "meant"), NEAR, ids=[row[0] for row in NEAR])
def test_near(word: str, known: list[str], meant: str) -> None:
    """A letter more, less or in another place, capitals, and dashes."""
    assert nearest(word, known) == suggestion(word, list(known)) == f", did you mean {meant}?"


@pytest.mark.parametrize(("word", "known"), FAR, ids=[f"{row[0]}-{number}" for number, row in enumerate(FAR)])
def test_not_near(word: str, known: list[str]) -> None:
    """A silly suggestion helps nobody: none is made."""
    assert nearest(word, known) == ""


@pytest.mark.parametrize(
    ("known", "said"),
    [([], ""), (["a"], "; there is a"), (["b", "a"], "; there are a, b"), ([f"n{n}" for n in range(15)], "")],
    ids=["none", "one", "two", "too-many"],
)
def test_what_there_is(known: list[str], said: str) -> None:
    """Where nothing is near, and what there is fits a line, the message lists it."""
    assert suggestion("foo", known) == said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("zone", ", did you mean topology.kubernetes.io/zone?"),
        ("example.com/zones", ", did you mean topology.kubernetes.io/zone?"),
        ("kubernetes.io/team", "; there are kubernetes.io/arch, kubernetes.io/os, topology.kubernetes.io/zone"),
        ("team", "; there are kubernetes.io/arch, kubernetes.io/os, topology.kubernetes.io/zone"),
    ],
    ids=["without-a-prefix", "another-prefix", "the-same-prefix", "far"],
)
def test_label_keys(key: str, said: str) -> None:
    """The name after the slash counts: that two keys share ``kubernetes.io`` makes none near the other."""
    assert nearest_label(key, LABELS) == said


@pytest.mark.parametrize(
    ("name", "meant"),
    [("db", "lab/db"), ("web", "shop/web"), ("wbe", "shop/web"), ("cahce", "lab/cache"), ("foo", None)],
    ids=["elsewhere", "the-same", "near", "near-elsewhere", "far"],
)
def test_objects(name: str, meant: str | None) -> None:
    """The same name elsewhere, a near name here, a near name elsewhere, in this order."""
    assert nearest_key("shop", name, ["shop/web", "lab/db", "lab/cache", "lab/webb"]) == meant
