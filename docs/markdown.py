"""Shapes and tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def properties(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"{type_of(schema)}\n"
    rows = []
    for name, said in schema.get("properties", {}).items():
        required = "required" if name in schema.get("required", []) else ""
        rows.append((f"`{name}`", type_of(said), required, sentence(said.get("description"))))
    return table(("Field", "Type", "", ""), rows) if rows else "Nothing.\n"


def type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{anchor(name)})"
    if "allOf" in schema:
        return " and ".join(type_of(part) for part in schema["allOf"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(part) for part in schema[key]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"mapping to {type_of(schema['additionalProperties'])}"
    return {"object": "mapping", "null": "null", None: "anything"}.get(kind, str(kind))


def table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c in "-_")


def sentence(text: str | None) -> str:
    return " ".join((text or "").split())
