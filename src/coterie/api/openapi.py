"""The OpenAPI document, made from the operations when somebody asks for it."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from coterie import __version__
from coterie.api.methods import OPERATIONS
from coterie.api.operation import Operation, Route
from coterie.api.shapes import Error
from coterie.core.errors import (
    Conflict,
    CoterieError,
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
)

MEANING: dict[type[CoterieError], str] = {
    InvalidRequest: "The request is not right; the message says how.",
    Unauthorized: "The token is missing or wrong.",
    Forbidden: "The token does not allow this, or the page or host may not ask.",
    NotFound: "There is no such thing.",
    Conflict: "It cannot be done in the present state.",
    TooLarge: "The request is too large.",
    RateLimited: "Too many wrong tokens.",
    Unavailable: "It cannot be done now; a later try may work.",
}
HEAD = "The address and the headers are too large."
LONGEST = 2_000
"""Characters of a parameter in an address; a body has room for more."""
REF = "#/components/schemas/{model}"


@cache
def document() -> dict[str, Any]:
    """Every route, by path."""
    routes = [(route, operation) for operation in OPERATIONS.values() for route in operation.routes]
    used: set[tuple[type[BaseModel], JsonSchemaMode]] = {(Error, "serialization")}
    used |= {(operation.params, "validation") for _, operation in routes}
    used |= {(operation.answer, "serialization") for _, operation in routes}
    refs, definitions = models_json_schema(
        sorted(used, key=lambda one: (one[0].__name__, one[1])), ref_template=REF
    )
    schemas: dict[str, Any] = definitions["$defs"]
    params = {op.name: schemas[_name(refs[op.params, "validation"])] for _, op in routes}
    for name in {_name(refs[op.params, "validation"]) for _, op in routes}:
        schemas.pop(name)  # what is left of one for a body comes back below
    errors = {
        str(error.http_status): _answer(meaning, refs[Error, "serialization"])
        for error, meaning in MEANING.items()
    }
    errors["431"] = _answer(HEAD, refs[Error, "serialization"])
    paths: dict[str, Any] = {}
    for route, operation in sorted(routes, key=lambda pair: pair[0].path):
        told = _described(route, operation, params[operation.name], schemas)
        gives = _answer("Done.", refs[operation.answer, "serialization"])
        if operation.streams:
            gives["content"]["text/event-stream"] = {}
        told["responses"] = {str(route.status): gives, **errors}
        paths.setdefault(_plain(route.path), {})[route.verb.lower()] = told
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Coterie",
            "summary": "One service that hosts a household of AI agents.",
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(route: Route, operation: Operation, schema: dict[str, Any], schemas: Any) -> dict[str, Any]:
    first = route is operation.routes[0]
    told: dict[str, Any] = {
        "tags": [operation.name.partition(".")[0]],
        "summary": operation.summary,
        "operationId": operation.name if first else f"{operation.name}.{route.verb.lower()}",
    }
    if operation.scope is not None:
        told |= {"security": [{"bearer": []}], "x-scope": operation.scope}
    if operation.rpc:
        told["x-rpc"] = operation.name
    needed = schema.get("required", [])
    body = dict(schema["properties"]) if "properties" in schema else {}
    parameters = []
    for key in list(body):
        name, place = _place(route, operation, key)
        if place != "body":
            said = body.pop(key)
            parameters.append(_parameter(name, place, key in needed or place == "path", said))
    if parameters:
        told["parameters"] = parameters
    if route.text is not None:
        content = {"text/plain": {"schema": {"type": "string"}}}
        told["requestBody"] = {"required": True, "content": content, **_about(body[route.text])}
    elif body:
        needed = [key for key in needed if key in body]
        shape = {**schema, "properties": body, "required": needed}
        name = operation.params.__name__
        assert schemas.setdefault(name, shape) == shape, f"two bodies are called {name}"
        content = {"application/json": {"schema": {"$ref": REF.format(model=name)}}}
        told["requestBody"] = {"required": bool(needed), "content": content}
    return told


def _place(route: Route, operation: Operation, key: str) -> tuple[str, str]:
    """What a request calls a parameter, and where it has it."""
    fields = operation.params.model_fields
    [field] = [name for name, info in fields.items() if key in (name, info.alias)]
    name = next((name for name, renamed in route.names.items() if renamed == field), key)
    header = next((header for header, named in operation.params.HEADERS.items() if named == field), None)
    if f"{{{name}}}" in route.path or f"{{{name}:" in route.path:
        return name, "path"
    if header is not None:
        return header, "header"
    in_query = route.verb in ("GET", "DELETE") or route.text not in (None, field)
    return name, "query" if in_query else "body"


def _parameter(name: str, place: str, needed: bool, said: dict[str, Any]) -> dict[str, Any]:
    """An address has no null: there a parameter is missing or it is something."""
    kinds = [kind for kind in said.get("anyOf", ()) if kind.get("type") != "null"]
    about = _about(kinds[0] if kinds else said) | _about(said)
    schema = {**said, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})}
    if len(kinds) == 1:
        del schema["anyOf"]
    if schema.get("default", ...) is None:
        del schema["default"]
    for word in ("description", "title"):
        schema.pop(word, None)
    if place == "query" and schema.get("type") == "string":
        schema["maxLength"] = min(schema.get("maxLength", LONGEST), LONGEST)
    told = {"name": name, "in": place, "required": needed, "schema": schema, **about}
    return {**told, "style": "form", "explode": False} if schema.get("type") == "array" else told


def _about(said: dict[str, Any]) -> dict[str, str]:
    return {"description": said["description"]} if "description" in said else {}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _name(ref: dict[str, Any]) -> str:
    return str(ref["$ref"]).rsplit("/", 1)[-1]
