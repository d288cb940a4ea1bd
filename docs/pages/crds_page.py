# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/crds.md`` from the CustomResourceDefinitions: ``make docs``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.kit.this_machine import ROOT

NAMES = ("servicepolicies.yaml", "podlocators.yaml", "servicehealths.yaml")
PURPOSES = {
    "ServicePolicy": "You write it: it says how near the endpoints of some Services must be. "
    "[Constraints](constraints.md#1-servicepolicies) has examples, and says what its status means.",
    "PodLocator": "`topodns controller` writes one for each Pod, and `topodns serve` reads it. "
    "[Large clusters](scale.md) says when that pays.",
    "ServiceHealth": "`topodns controller --health` writes it, and `topodns serve` of every cluster reads it. "
    "[Health by quorum](health.md) says what it is for.",
}

HEAD = """\
# Custom resources

topodns works without any of these. Each comes with the part that needs it: see [the manifests](../manifests/README.md).
`kubectl explain servicepolicy.spec` prints the same, and `kubectl get topodns -A` shows all of them.

| kind | resource | short name | scope | versions |
| --- | --- | --- | --- | --- |
"""
FOOT = """
<!-- Printed by "make docs" from the schemas of the CRDs in manifests/. -->
"""


def crds() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions."""
    paths = [path for name in NAMES for path in (ROOT / "manifests").rglob(name)]
    return [yaml.safe_load(path.read_text()) for path in paths]


def document() -> str:
    """Return the page."""
    found = crds()
    return HEAD + "".join(map(_row, found)) + "".join(map(_kind, found)) + FOOT


def _row(crd: Mapping[str, Any]) -> str:
    spec = crd["spec"]
    kind = spec["names"]["kind"]
    versions = ", ".join(f"`{spec['group']}/{version['name']}`" for version in spec["versions"])
    short = ", ".join(f"`{alias}`" for alias in spec["names"]["shortNames"])
    name = crd["metadata"]["name"]
    return f"| [{kind}](#{kind.lower()}) | `{name}` | {short} | {spec['scope'].lower()} | {versions} |\n"


def _kind(crd: Mapping[str, Any]) -> str:
    kind = crd["spec"]["names"]["kind"]
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    rows = "".join(f"| `{path}` | {form} | {text} |\n" for path, form, text in _fields("", schema))
    head = "| field | type | meaning |\n| --- | --- | --- |\n"
    return f"\n## {kind}\n\n{_text(schema)}\n\n{PURPOSES[kind]}\n\n{head}{rows}"


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and meaning of each field below a schema."""
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if path or name not in ("apiVersion", "kind", "metadata"):
            here = f"{path}.{name}".removeprefix(".")
            yield here, _type(field) + (", required" if name in needed else ""), _meaning(field)
            yield from _fields(here, field)
            yield from _fields(f"{here}[]", field.get("items", {}))


def _type(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": values}:
            return f"map to {_type(values)}"
        case {"x-kubernetes-int-or-string": True}:
            return "integer or string"
        case {"format": form}:
            return f"{schema['type']} ({form})"
    return str(schema["type"])


def _meaning(schema: Mapping[str, Any]) -> str:
    """Return what a field means, and what the API server accepts."""
    words = [_text(schema)]
    if "enum" in schema:
        words.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
    if "default" in schema:
        words.append(f"Default: `{schema['default']}`.")
    words += [f"At most {schema[name]} {of}." for name, of in (("maxItems", "items"), ("maxLength", "characters"))
              if name in schema]  # fmt: skip
    for rule in schema.get("x-kubernetes-validations", ()):
        words.append(f"Rule: {' '.join(rule['message'].split())}.")
    return " ".join(word for word in words if word).replace("|", r"\|")


def _text(schema: Mapping[str, Any]) -> str:
    return re.sub(r"\s+", " ", schema.get("description", "")).strip()


if __name__ == "__main__":
    print(document(), end="")
