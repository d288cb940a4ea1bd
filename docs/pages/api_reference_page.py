# SPDX-License-Identifier: Apache-2.0

"""Prints ``docs/api-reference.md`` from the OpenAPI description of the HTTP API: ``make docs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dnsserver.tools.api.operations import EVENT_STREAM, description

HEAD = """\
# The HTTP API, in full

Every operation, parameter and field of [the HTTP API](api.md), as its description (`/api/v1/openapi.json`) has them.
All operations are GET, and only read. What they return else is a [Problem](#problem): [errors](api.md#errors).

| path | returns |
| --- | --- |
"""
FOOT = """
<!-- Printed by "make docs" from the OpenAPI description. -->
"""


def document() -> str:
    """Return the page."""
    api = description()
    operations = {path: methods["get"] for path, methods in api["paths"].items()}
    overview = "".join(f"| [`{path}`](#{_anchor(path)}) | {got['summary']} |\n" for path, got in operations.items())
    sections = "".join(f"\n## {path}\n\n{_operation(got)}" for path, got in operations.items())
    objects = "".join(f"\n### {name}\n\n{_object(of)}" for name, of in sorted(api["components"]["schemas"].items()))
    return f"{HEAD}{overview}{sections}\n## Objects\n{objects}{FOOT}"


def _anchor(heading: str) -> str:
    return heading.replace("/", "").replace(".", "")


def _operation(got: Mapping[str, Any]) -> str:
    parameters = "".join(_parameter(parameter) for parameter in got.get("parameters", ()))
    head = "| parameter | type | meaning |\n| --- | --- | --- |\n"
    ((media, content),) = got["responses"]["200"]["content"].items()
    event = " Each event has a [TailLine](#tailline)." if media == EVENT_STREAM else ""
    return f"{got['summary']}.\n\n{head}{parameters}\nReturns `{media}`: {_type(content['schema'])}.{event}\n"


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    words = [parameter["description"]]
    if "default" in schema:
        words.append(f"Default: `{_written(schema['default'])}`.")
    if "example" in parameter:
        words.append(f"For example `{parameter['example']}`.")
    needed = ", required" if parameter.get("required") else ""
    return f"| `{parameter['name']}` | {_type(schema)}{needed} | {_cell(' '.join(words))} |\n"


def _object(schema: Mapping[str, Any]) -> str:
    text = f"{' '.join(schema['description'].split())}\n\n" if "description" in schema else ""
    rows = "".join(_fields(schema))
    return f"{text}| field | type |\n| --- | --- |\n{rows}"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"| `{name}` | {_type(field)} |\n"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type in words; that of an object is a link."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": forms} | {"oneOf": forms}:
            return " or ".join(map(_type, forms))
        case {"allOf": [only]}:
            return _type(only)
        case {"enum": values}:
            return ", ".join(f"`{_written(value)}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": values} if isinstance(values, Mapping):
            return f"map to {_type(values)}"
        case {"type": "null"}:
            return "`null`"
        case {"minimum": least, "maximum": most}:
            return f"{schema['type']}, {least} to {most}"
        case {"type": str(kind)}:
            return kind
    return "any"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    print(document(), end="")
