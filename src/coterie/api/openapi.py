"""The OpenAPI document, made from the operations when somebody asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    fields = dict(_fields(operation, schema))
    if parameters := list(_parameters(route, operation, fields, schema)):
        told["parameters"] = parameters
    if route.text is not None:
        said = fields[route.text]
        content = {"text/plain": {"schema": {"type": "string"}}}
        told["requestBody"] = {"required": True, "description": said.get("description"), "content": content}
    elif fields and not _in_query(route):
        # Whatever neither the address nor a header holds.
        needed = [said["_key"] for said in fields.values() if said["_key"] in schema.get("required", ())]
        body = {**schema, "properties": {said.pop("_key"): said for said in fields.values()}}
        body = {**body, "required": needed} if needed else {k: v for k, v in body.items() if k != "required"}
        name = operation.params.__name__
        assert schemas.setdefault(name, body) == body, f"two bodies are called {name}"
        content = {"application/json": {"schema": {"$ref": REF.format(model=name)}}}
        told["requestBody"] = {"required": bool(needed), "content": content}
    return told


def _fields(operation: Operation, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schemas by the fields' own names, each with the name that the wire has for it."""
    for name, field in operation.params.model_fields.items():
        key = field.alias or name
        yield name, {**schema["properties"][key], "_key": key}


def _parameters(
    route: Route, operation: Operation, fields: dict[str, Any], schema: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Takes what the path, the headers and the query hold out of the fields."""
    called = {field: name for name, field in route.names.items()}
    in_path = re.findall(r"{(\w+)", route.path)
    headers = {field: header for header, field in operation.params.HEADERS.items()}
    for name in list(fields):
        shown = called.get(name, fields[name]["_key"])
        if shown in in_path:
            place = "path"
        elif name in headers:
            place, shown = "header", headers[name]
        elif _in_query(route) and name != route.text:
            place = "query"
        else:
            continue
        said = fields.pop(name)
        needed = said.pop("_key") in schema.get("required", ()) or place == "path"
        yield _parameter(shown, place, needed, said)


def _parameter(name: str, place: str, needed: bool, said: dict[str, Any]) -> dict[str, Any]:
    """An address has no null: there a parameter is missing or it is something."""
    about = said.pop("description", None)
    said.pop("title", None)
    kinds = [kind for kind in said.pop("anyOf", ()) if kind.get("type") != "null"]
    if len(kinds) == 1:
        about = about or kinds[0].get("description")
        said = {**kinds[0], **{key: value for key, value in said.items() if value is not None}}
        said.pop("description", None)
    elif kinds:
        said["anyOf"] = kinds
    if place == "query" and said.get("type") == "string":
        said["maxLength"] = min(said.get("maxLength", LONGEST), LONGEST)
    told: dict[str, Any] = {"name": name, "in": place, "required": needed, "schema": said}
    if about:
        told["description"] = about
    if said.get("type") == "array":
        told |= {"style": "form", "explode": False}
    return told


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _in_query(route: Route) -> bool:
    return route.verb in ("GET", "DELETE") or route.text is not None


def _plain(path: str) -> str:
    return path.replace(":path}", "}")


def _name(ref: dict[str, Any]) -> str:
    return str(ref["$ref"]).rsplit("/", 1)[-1]
