"""The HTTP API: the operations that have a route, and a document that describes them."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import cache
from itertools import groupby
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.alias_generators import to_camel
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as Place
from starlette.websockets import WebSocket

from coterie.api.frames import check_text, read_object
from coterie.api.guard import Guard, error_body
from coterie.api.methods import OPERATIONS, carry_out
from coterie.api.openapi import LONGEST, document
from coterie.api.operation import Operation, Route, Streamed, Whole
from coterie.api.rpc import Connection
from coterie.api.shapes import Params, parse
from coterie.api.streaming import NoAnswer
from coterie.core.errors import CoterieError, Internal, InvalidRequest, NotFound
from coterie.core.threads import on_thread
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway
from coterie.engine.turns.live import FellBehind

log = logging.getLogger("coterie.api")

PAGE = Path(__file__).parent / "page"
NOBODY = Caller("", "read")
"""Whoever asks for what needs no token."""
NUMERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""A number in an address, written as in JSON."""


def create_app(
    gateway: Gateway, lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]], host: str
) -> Starlette:
    """The application that uvicorn serves on this host."""

    async def ws(socket: WebSocket) -> None:
        await Connection(gateway, socket).serve()

    handlers: dict[Any, Any] = {CoterieError: _refused, HTTPException: _by_status, Exception: _unexpected}
    app = Starlette(
        routes=[*_pages(), WebSocketRoute("/ws", ws), *_places(gateway)],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.add_middleware(
        Guard, access=gateway.access, settings=lambda: gateway.registry.sync.config.gateway, host=host
    )
    return app


def _places(gateway: Gateway) -> Iterator[BaseRoute]:
    """One per path, the more exact ones first: `subagents` is no agent's id."""
    found = [(route, operation) for operation in OPERATIONS.values() for route in operation.routes]
    found.sort(key=lambda pair: _exactness(pair[0].path))
    for path, here in groupby(found, key=lambda pair: pair[0].path):
        verbs = {route.verb: (route, operation) for route, operation in here}
        yield Place(path, _endpoint(gateway, verbs), methods=list(verbs))


def _exactness(path: str) -> tuple[list[int], str]:
    kinds = [(2 if ":path" in part else 1) if "{" in part else 0 for part in path.split("/")]
    return [*kinds, 3], path


def _endpoint(
    gateway: Gateway, verbs: dict[str, tuple[Route, Operation]]
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        route, operation = verbs["GET" if request.method == "HEAD" else request.method]
        caller: Caller = request.state.caller if operation.scope is not None else NOBODY
        if operation.scope is not None:
            caller.require(operation.scope)
        params = parse(operation.params, await _given(request, route, operation.params), _spelling(route))
        try:
            outcome = await carry_out(gateway, caller, operation, params)
        except NoAnswer as error:
            refused = await _refused(request, error)
            await _deliver(request, gateway, refused, error.run_id)
            return refused
        if isinstance(outcome, Streamed):
            return StreamingResponse(_told(gateway, outcome), media_type="text/event-stream")
        value = outcome.answer if isinstance(outcome, Whole) else outcome
        whole = Response(value.model_dump_json(by_alias=True), route.status, media_type="application/json")
        if isinstance(outcome, Whole):
            await _deliver(request, gateway, whole, outcome.run_id)
        return whole

    return answer


async def _told(gateway: Gateway, streamed: Streamed) -> AsyncIterator[bytes]:
    """The pieces; whoever leaves before the last one was written does not come to the end of this."""
    try:
        async for piece in streamed.pieces:
            yield piece
    except FellBehind as error:
        log.info("run %s is no longer told: %s", streamed.run_id, error.message)
        return
    gateway.deliveries.note(streamed.run_id)


async def _deliver(request: Request, gateway: Gateway, response: Response, run_id: str) -> None:
    """Note that it was written, unless nobody is there any more: then nothing is, and nobody says so."""
    if not _has_left(request):
        response.background = BackgroundTask(_note, gateway, run_id)


def _has_left(request: Request) -> bool:
    """Whether the connection is known to be closed. Asked in every turn, so without a task that is then cancelled."""
    asking = request.receive().__await__()
    try:
        next(asking)
    except StopIteration as told:
        return bool(told.value["type"] == "http.disconnect")
    finally:
        asking.close()
    return False


async def _note(gateway: Gateway, run_id: str) -> None:
    gateway.deliveries.note(run_id)


async def _given(request: Request, route: Route, model: type[Params]) -> dict[str, Any]:
    """Path, query, headers and body as one set of parameters."""
    given: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        if name in given:
            wrong = {"field": name[:200], "message": "given twice"}
            raise InvalidRequest(f"{name[:200]}: given twice", details={"fields": [wrong]})
        given[name] = value

    for name, value in request.path_params.items():
        put(route.names.get(name, name), value)
    for name, value in request.query_params.multi_items():
        field = route.names.get(name, name)
        kind = _kinds(model).get(field)
        if len(value) > LONGEST and kind is not list:
            raise InvalidRequest(f"{name[:200]}: an address has room for {LONGEST} characters of it")
        put(field, _read(value, kind))
    for header, name in model.HEADERS.items():
        if (value := request.headers.get(header)) is not None:
            put(name, value)
    for name, value in (await _body(request, route)).items():
        put(name, value)
    return given


async def _body(request: Request, route: Route) -> dict[str, Any]:
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise InvalidRequest("the request ended before its body did") from None
    if route.text is not None:
        try:
            return {route.text: raw.decode()}
        except UnicodeDecodeError:
            raise InvalidRequest("the body is not UTF-8 text") from None
    if not raw or route.verb == "GET":
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequest("the body is JSON: send it with content-type: application/json")
    body = read_object(raw, "body")
    if b"\\u" in raw:
        check_text(body, "body")
    return body


def _read(text: str, kind: type | None) -> Any:
    """A parameter as an address has it. What cannot be read stays text, which is then refused as such."""
    if kind is list:
        return [word.strip() for word in text.split(",")]
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float) and NUMERAL.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text


@cache
def _kinds(model: type[Params]) -> dict[str, type]:
    """What the parameters are that are no text, by either spelling."""
    return {
        spelling: kind
        for name, field in model.model_fields.items()
        if (kind := _kind(field.annotation)) is not None
        for spelling in (name, field.alias or name)
    }


def _kind(annotation: Any) -> type | None:
    origin = get_origin(annotation)
    if origin in (Union, UnionType, Annotated):
        return next((kind for part in get_args(annotation) if (kind := _kind(part)) is not None), None)
    return next((kind for kind in (list, bool, int, float) if kind in (origin, annotation)), None)


def _spelling(route: Route) -> dict[str, str]:
    """What the address calls a parameter, for whoever got it wrong."""
    return {spelling: name for name, field in route.names.items() for spelling in (field, to_camel(field))}


# What needs no operation


def _pages() -> Iterator[BaseRoute]:
    """At / what this is and how to talk to it; at /docs the API's document. Both ask with the visitor's token, and no
    third party."""
    yield Place("/", _always(FileResponse, PAGE / "home.html"))
    yield Place("/docs", _always(FileResponse, PAGE / "index.html"))
    for name in ("home.js", "page.js", "page.css"):
        yield Place(f"/docs/{name}", _always(FileResponse, PAGE / name))
    yield Place("/favicon.ico", _always(Response, status_code=204))
    yield Place("/openapi.json", _openapi)


def _always(
    kind: Callable[..., Response], *content: object, **options: Any
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return kind(*content, **options)

    return answer


async def _openapi(_: Request) -> Response:
    return JSONResponse(await on_thread("files", document))


# Errors


def _error(error: CoterieError, path: str, status: int | None = None, headers: Any = None) -> Response:
    return JSONResponse(error_body(error, path), status or error.http_status, headers)


async def _refused(request: Request, error: CoterieError) -> Response:
    return _error(error, request.url.path, headers=getattr(error, "headers", None))


async def _by_status(request: Request, error: HTTPException) -> Response:
    kind = NotFound if error.status_code == 404 else InvalidRequest
    return _error(kind(str(error.detail)), request.url.path, error.status_code, error.headers)


async def _unexpected(request: Request, error: Exception) -> Response:
    reference = secrets.token_hex(4)
    log.error("%s %s failed (%s)", request.method, request.url.path, reference, exc_info=error)
    wrong = Internal(f"something went wrong here; the log says what ({reference})")
    return _error(wrong, request.url.path)
