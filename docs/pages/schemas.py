# SPDX-License-Identifier: Apache-2.0

"""A JSON schema in words, for the pages about the HTTP API and the custom resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def type_in_words(schema: Schema) -> str:
    """Return the type of a field; that of an object of the API is a link to it."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": forms} | {"oneOf": forms}:
            return " or ".join(map(type_in_words, forms))
        case {"allOf": [only]}:
            return type_in_words(only)
        case {"enum": values}:
            return ", ".join(f"`{_as_json(value)}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {type_in_words(items)}"
        case {"type": "object", "additionalProperties": values} if isinstance(values, Mapping):
            return f"map to {type_in_words(values)}"
        case {"type": "null"}:
            return "`null`"
        case {"x-kubernetes-int-or-string": True}:
            return "integer or string"
        case {"minimum": least, "maximum": most}:
            return f"{schema['type']}, {least} to {most}"
        case {"type": str(kind), "format": form}:
            return f"{kind} ({form})"
        case {"type": str(kind)}:
            return kind
    return "any"


def type_of_field(schema: Schema) -> str:
    """Return the type of a custom resource's field: its meaning says which values the API server accepts."""
    return type_in_words({key: value for key, value in schema.items() if key != "enum"})


def meaning_of_parameter(parameter: Schema) -> str:
    """Return what a parameter of the HTTP API means, its default, and an example."""
    words = [parameter["description"]]
    if "default" in parameter["schema"]:
        words.append(f"Default: `{_as_json(parameter['schema']['default'])}`.")
    if "example" in parameter:
        words.append(f"For example `{parameter['example']}`.")
    return " ".join(words)


def meaning_of_field(schema: Schema) -> str:
    """Return what a custom resource's field means, and which values the API server accepts."""
    words = [one_line(schema.get("description", ""))]
    if "enum" in schema:
        words.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
    if "default" in schema:
        words.append(f"Default: `{schema['default']}`.")
    words += [f"At most {schema[name]} {of}." for name, of in (("maxItems", "items"), ("maxLength", "characters"))
              if name in schema]  # fmt: skip
    words += [f"Rule: {one_line(rule['message'])}." for rule in schema.get("x-kubernetes-validations", ())]
    return " ".join(filter(None, words))


def fields_below(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield each field of a custom resource, at any depth: its path, its schema, and whether it is required."""
    for name, field in schema.get("properties", {}).items():
        if path or name not in ("apiVersion", "kind", "metadata"):
            here = f"{path}.{name}".removeprefix(".")
            yield here, field, name in schema.get("required", ())
            yield from fields_below(field, here)
            yield from fields_below(field.get("items", {}), f"{here}[]")


def _as_json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
