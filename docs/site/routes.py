"""The REST API as pages: its routes by task, and the documents that they take and return.

``sphinxcontrib-openapi`` shows no bodies, and fails on OpenAPI 3.1 with its other renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

#: A schema of JSON, or another object of the description.
Json = Mapping[str, Any]
_DOCUMENTS = "documents.md"
_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "maxLength": "characters at most:",
    "maxItems": "entries at most:",
}


def routes(description: Json) -> Iterator[str]:
    """Yield the lines of the page of the routes."""
    calls = [
        (call.get("tags", ["other"])[0], method.upper(), path, call)
        for path, calls in description["paths"].items()
        for method, call in calls.items()
    ]
    yield from ["# REST routes", "", description["info"]["description"], ""]
    yield "The same as [OpenAPI](openapi.json), for programs. A controller serves it at `/openapi.json`."
    yield from ["", "## Errors", "", "| status | meaning |", "|---|---|"]
    errors: dict[str, str] = {}
    for *_, call in calls:
        for code in _errors(call):
            errors.setdefault(code, call["responses"][code]["description"])
    for code, meaning in sorted(errors.items()):
        yield f"| {code} | {_cell(meaning)} |"
    for tag, of_tag in groupby(sorted(calls, key=lambda call: call[0]), lambda call: call[0]):
        yield from ["", f"## {tag[0].upper()}{tag[1:]}", ""]
        for _, method, path, call in of_tag:
            yield from _route(f"{method} {path}", call)


def _route(title: str, call: Json) -> Iterator[str]:
    yield from [f"### `{title}`", "", call.get("description", call["summary"]), ""]
    if parameters := call.get("parameters"):
        yield from ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        for one in parameters:
            name = f"`{one['name']}`{', required' if one.get('required') else ''}"
            meaning = _cell(one.get("description", one["schema"].get("description", "")))
            yield f"| {name} | {one['in']} | {type_of(one['schema'])} | {meaning} |"
        yield ""
    if body := call.get("requestBody"):
        yield from [f"Body: {_content(body)}.", ""]
    answers = call["responses"]
    for code in sorted(set(answers).difference(_errors(call))):
        yield from [f"Answer {code}: {_content(answers[code])}.", ""]
    if errors := _errors(call):
        yield from [f"Errors: {', '.join(errors)}.", ""]


def _errors(call: Json) -> list[str]:
    """Return the statuses of a call's errors."""
    return sorted(code for code in call["responses"] if code >= "400")


def _content(body: Json) -> str:
    """Return the types of a body, with their media type unless it is JSON."""
    types = [
        type_of(content.get("schema", {}))
        + ("" if media == "application/json" else f" (`{media}`)")
        for media, content in body.get("content", {}).items()
    ]
    return ", or ".join(types) or "nothing"


def documents(description: Json) -> Iterator[str]:
    """Yield the lines of the page of the documents."""
    yield from ["# REST documents", "", "The JSON that [routes](routes.md) take and return.", ""]
    for name, schema in sorted(description["components"]["schemas"].items()):
        yield from [f"## {name}", "", _text(schema.get("description", "")), ""]
        fields = schema.get("properties")
        if not fields:
            yield from [f"{type_of(schema).capitalize()}.", ""]
            continue
        yield from ["| field | type | meaning |", "|---|---|---|"]
        for field, of_field in fields.items():
            required = ", required" if field in schema.get("required", ()) else ""
            meaning = _cell(of_field.get("description", ""))
            yield f"| `{field}`{required} | {type_of(of_field)} | {meaning} |"
        yield ""


def type_of(schema: Json) -> str:
    """Return a schema's type in Markdown, with a link if it is a document's."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({_DOCUMENTS}#{name.lower()})"
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(map(type_of, parts)))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{value}`" for value in values)
    match schema.get("type"):
        case "array":
            parts = schema.get("prefixItems")
            of = ", ".join(map(type_of, parts)) if parts else type_of(schema.get("items", {}))
            return f"list of {of}{_limits(schema)}"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"mapping to {type_of(schema['additionalProperties'])}"
        case None:
            return "any value"
        case kind:
            return f"{kind}{_limits(schema)}"


def _limits(schema: Json) -> str:
    return "".join(f", {word} {schema[key]:,}" for key, word in _LIMITS.items() if key in schema)


def _text(text: str) -> str:
    return text.replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
