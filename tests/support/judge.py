"""What of a request is against an OpenAPI document, read from the wire alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import jsonschema_rs
from requests import PreparedRequest

READ = {
    "integer": r"-?(0|[1-9]\d*)(\.0+)?",
    "number": r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    "boolean": "true|false",
}
"""How a value that is no text stands in an address: as in JSON."""


class Judge:
    """Knows neither what a request was meant to be nor what became of it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def wrong(self, path: str, request: PreparedRequest) -> list[str]:
        """Everything that is wrong with a request to what the document has at this path."""
        told = self._document["paths"][path][str(request.method).lower()]
        return [*self._address(path, told.get("parameters", ()), request), *self._body(told, request)]

    def _address(self, path: str, told: Any, request: PreparedRequest) -> Iterator[str]:
        address = urlsplit(str(request.url))
        found = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path), address.path)
        if found is None:
            yield f"{address.path} is not {path}"
            return
        query = parse_qsl(address.query, keep_blank_values=True)
        if len(query) > len(dict(query)):
            yield "a parameter is given twice"
        known = {(one["in"], one["name"]): one for one in told}
        given = {("path", name): unquote(value) for name, value in found.groupdict().items()}
        given |= {("query", name): value for name, value in query}
        headers = [name for place, name in known if place == "header" and name in request.headers]
        given |= {("header", name): str(request.headers[name]) for name in headers}
        for key in given.keys() - known.keys():
            yield f"{key} is not described"
        for key, one in known.items():
            if key in given:
                yield from self._against(one["schema"], _read(given[key], one["schema"]), f"{key}: ")
            elif one["required"]:
                yield f"{key} is missing"

    def _body(self, told: Any, request: PreparedRequest) -> Iterator[str]:
        body = request.body or b""
        assert isinstance(body, bytes | str)
        described = told.get("requestBody", {"required": False, "content": {}})
        if not body and not described["required"]:
            return
        kind = str(request.headers.get("content-type", "")).partition(";")[0].strip()
        if kind not in described["content"]:
            yield f"no body of type {kind!r} is described"
            return
        try:
            value = json.loads(body) if kind == "application/json" else _text(body)
        except ValueError:
            yield f"the body is no {kind}"
            return
        yield from self._against(described["content"][kind]["schema"], value, "body: ")

    def _against(self, schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
        whole = {**schema, "components": self._document["components"]}
        for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value):
            yield f"{where}{error.message}"[:500]


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()


def _read(text: str, schema: Mapping[str, Any]) -> Any:
    """A value as an address has it; one that cannot be read stays text. A list without words is empty."""
    kind = schema.get("type")
    if kind == "array":
        return [_read(word, schema["items"]) for word in text.split(",")] if text else []
    return json.loads(text) if kind in READ and re.fullmatch(READ[kind], text, re.ASCII) else text
