# SPDX-License-Identifier: Apache-2.0

"""What explanations and errors say, on a page: without flags of a command, and with a link to what was meant."""

from __future__ import annotations

import re
from typing import NamedTuple

from dnsserver.tools.explain.naming import CLIENT, NAME

# What a page says in place of flags that only a command has. Other flags are settings of the server.
WORDS = {
    "; -n names another namespace": "; the field Namespace names another one",
    "--client": "the labels of the client",
    "(--client-source)": "(setting client-source)",
}
SETTING = re.compile(r"--([a-z][a-z-]*[a-z])")
NAMESPACE_FLAG = re.compile(r" \(-n \S+\)")
FLAG = re.compile("|".join(map(re.escape, sorted(WORDS, key=len, reverse=True))) + r"(?![a-z-])")
MEANT = re.compile(
    r"\bno (?P<kind>Service|Pod|Node) (?:(?P<asked>[^\s/,]+)/)?[^\s,]+"
    r", did you mean (?:(?P<namespace>[^\s/?]+)/)?(?P<name>[^\s/?]+)(?: \(-n \S+\))?\?$"
)


class Meant(NamedTuple):
    """What a text says ``before`` it asks whether somebody meant something: ``value``, in a ``field`` of the form."""

    before: str
    field: str
    value: str


def in_page(text: str) -> str:
    """Return a text without flags."""
    return SETTING.sub(r"setting \1", FLAG.sub(lambda found: WORDS[found[0]], NAMESPACE_FLAG.sub("", text)))


def meant(text: str) -> Meant | None:
    """Return what a text asks whether somebody meant, None if it does not."""
    found = MEANT.search(text)
    if found is None:
        return None
    kind, name, namespace = found["kind"], found["name"], found["namespace"] or found["asked"]
    before = in_page(text[: text.index(", did you mean ", found.start())])
    if kind == "Node":
        return Meant(before, CLIENT, f"node/{name}")
    key = f"{namespace}/{name}"
    return Meant(before, NAME, key) if kind == "Service" else Meant(before, CLIENT, f"pod/{key}")
