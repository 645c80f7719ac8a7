"""The HTTP API: the same methods as RPC, under paths, with a document that describes them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocket

from coterie import __version__
from coterie.api import docs_page, gateway_chat, memory_http, openai, responses
from coterie.api import payloads as p
from coterie.api.guard import Guard
from coterie.api.methods import perform
from coterie.api.rpc import Connection
from coterie.core.errors import (
    Conflict,
    CoterieError,
    Forbidden,
    Internal,
    InvalidRequest,
    NotFound,
    RateLimited,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from coterie.core.token import Scope
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

log = logging.getLogger("coterie.api")

_MEANING: dict[type[CoterieError], str] = {
    InvalidRequest: "The request is not right; the message says how.",
    Unauthorized: "The token is missing or wrong.",
    Forbidden: "The token does not allow this, or the page or host may not ask.",
    NotFound: "There is no such thing.",
    Conflict: "It cannot be done in the present state.",
    TooLarge: "The request is too large.",
    RateLimited: "Too many wrong tokens.",
    Unavailable: "It cannot be done now; a later try may work.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    error.http_status: {"model": p.Error, "description": meaning} for error, meaning in _MEANING.items()
}

AgentId = Annotated[
    str, Path(alias="id", description="An agent's id; `default` is whoever is the default now.")
]
SessionRef = Annotated[str, Path(alias="id", max_length=1000, description="A session's id or its key.")]
RunId = Annotated[str, Path(alias="runId", max_length=200, description="A run's id.")]
FileName = Annotated[str, Path(description="As in SOUL.md or memory/2026-05-01.md.")]


def create_app(
    gateway: Gateway, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]], host: str
) -> FastAPI:
    """The application that uvicorn serves on this host."""
    app = FastAPI(
        title="Coterie",
        version=__version__,
        summary="One service that hosts a household of AI agents.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=ERRORS,
        separate_input_output_schemas=False,
    )
    app.router.route_class = _ScopeFirst
    _add_errors(app)
    _add_house(app, gateway)
    _add_subagents(app, gateway)
    _add_agents(app, gateway)
    _add_sessions(app, gateway)
    for door in (openai, responses, gateway_chat):
        app.include_router(door.router(gateway, _needs))
    app.include_router(memory_http.router(gateway, _needs, _ScopeFirst))
    _describe(app)
    app.add_middleware(
        Guard, access=gateway.access, settings=lambda: gateway.registry.sync.config.gateway, host=host
    )
    return app


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


class _ScopeFirst(APIRoute):
    """FastAPI reads the body before it asks any dependency; who may not do this is told so first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        checks = [needed.call for needed in self.dependant.dependencies if needed.name == "caller"]

        async def handle_if_allowed(request: Request) -> Response:
            for check in checks:
                assert check is not None
                await check(request)
            return await handle(request)

        return handle_if_allowed


def _needs(scope: Scope) -> Any:
    """A dependency that checks the scope before the parameters are looked at."""

    async def check(request: Request) -> Caller:  # a plain function would go through a thread
        caller = _caller(request)
        caller.require(scope)
        return caller

    return Depends(check)


def _add_house(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/healthz", tags=["house"])
    async def healthz() -> p.Health:
        """The process answers. Needs no token."""
        return p.Health()

    @app.get("/readyz", tags=["house"])
    async def readyz(caller: Caller = _needs("read")) -> p.Ready:
        """The store answers too."""
        await asyncio.to_thread(gateway.registry.default)
        return p.Ready()

    @app.get("/api/models", tags=["house"])
    async def list_models(
        asked: Annotated[p.ModelsList, Query()], caller: Caller = _needs("read")
    ) -> p.ModelList:
        """Models that can be used now; with `all`, also those that lack a key."""
        answer: p.ModelList = await _do(gateway, caller, "models.list", all=asked.all)
        return answer

    @app.get("/", include_in_schema=False)
    async def front() -> Response:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page.HTML, media_type="text/html")

    @app.get("/docs/page.js", include_in_schema=False)
    async def docs_script() -> Response:
        return Response(docs_page.SCRIPT, media_type="text/javascript")

    @app.get("/docs/page.css", include_in_schema=False)
    async def docs_style() -> Response:
        return Response(docs_page.STYLE, media_type="text/css")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)

    @app.websocket("/ws")
    async def ws(socket: WebSocket) -> None:
        await Connection(gateway, socket).serve()


def _add_subagents(app: FastAPI, gateway: Gateway) -> None:
    """Before the agents: `subagents` is no agent's id."""
    do = partial(_do, gateway)

    @app.post("/api/agents/subagents/spawn", tags=["subagents"], status_code=201)
    async def spawn_subagent(body: p.SubagentSpawn, caller: Caller = _needs("write")) -> p.SubagentReceipt:
        """Start a child on one task."""
        answer: p.SubagentReceipt = await do(caller, "subagents.spawn", **body.model_dump(exclude_unset=True))
        return answer

    @app.get("/api/agents/subagents", tags=["subagents"])
    async def list_subagents(
        asked: Annotated[p.SubagentsList, Query()], caller: Caller = _needs("read")
    ) -> p.SubagentRunList:
        """Runs, newest first, each with how its result got back."""
        answer: p.SubagentRunList = await do(caller, "subagents.list", **asked.model_dump(exclude_unset=True))
        return answer

    @app.get("/api/agents/subagents/{runId}", tags=["subagents"])
    async def get_subagent(run_id: RunId, caller: Caller = _needs("read")) -> p.SubagentRunInfo:
        """One run, with its result."""
        answer: p.SubagentRunInfo = await do(caller, "subagents.get", run_id=run_id)
        return answer

    @app.delete("/api/agents/subagents/{runId}", tags=["subagents"])
    async def delete_subagent(run_id: RunId, caller: Caller = _needs("write")) -> p.SubagentRunInfo:
        """Cancel a live run, remove a finished one."""
        answer: p.SubagentRunInfo = await do(caller, "subagents.delete", run_id=run_id)
        return answer

    @app.post("/api/agents/subagents/{runId}/retry", tags=["subagents"])
    async def retry_subagent(run_id: RunId, caller: Caller = _needs("write")) -> p.SubagentRunInfo:
        """Send a blocked announcement on its way again."""
        answer: p.SubagentRunInfo = await do(caller, "subagents.retry", run_id=run_id)
        return answer


def _add_agents(app: FastAPI, gateway: Gateway) -> None:
    do = partial(_do, gateway)

    @app.get("/api/agents", tags=["agents"])
    async def list_agents(
        asked: Annotated[p.AgentsList, Query()], caller: Caller = _needs("read")
    ) -> p.AgentList:
        """Active agents and folders that no roster names yet."""
        answer: p.AgentList = await do(caller, "agents.list", include_archived=asked.include_archived)
        return answer

    @app.post("/api/agents", tags=["agents"], status_code=201)
    async def create_agent(body: p.AgentCreate, caller: Caller = _needs("admin")) -> p.AgentInfo:
        """A new agent with a folder of its own."""
        answer: p.AgentInfo = await do(caller, "agents.create", **body.model_dump(exclude_unset=True))
        return answer

    @app.get("/api/agents/{id}", tags=["agents"])
    async def get_agent(agent_id: AgentId, caller: Caller = _needs("read")) -> p.AgentInfo:
        """One agent: identity, soul, specification and files."""
        answer: p.AgentInfo = await do(caller, "agents.get", agent_id=agent_id)
        return answer

    @app.patch("/api/agents/{id}", tags=["agents"])
    async def update_agent(
        agent_id: AgentId, body: p.AgentPatch, caller: Caller = _needs("admin")
    ) -> p.AgentInfo:
        """Change what is given; everything else stays."""
        answer: p.AgentInfo = await do(
            caller, "agents.update", agent_id=agent_id, **body.model_dump(exclude_unset=True)
        )
        return answer

    @app.delete("/api/agents/{id}", tags=["agents"])
    async def delete_agent(agent_id: AgentId, caller: Caller = _needs("admin")) -> p.Deleted:
        """Archive an agent: it leaves the roster, its folder stays."""
        answer: p.Deleted = await do(caller, "agents.delete", agent_id=agent_id)
        return answer

    @app.post("/api/agents/{id}/default", tags=["agents"])
    async def set_default_agent(agent_id: AgentId, caller: Caller = _needs("admin")) -> p.DefaultAgent:
        """Make an agent the one that answers when nobody is named."""
        answer: p.DefaultAgent = await do(caller, "agents.set_default", agent_id=agent_id)
        return answer

    @app.post("/api/agents/{id}/restore", tags=["agents"])
    async def restore_agent(agent_id: AgentId, caller: Caller = _needs("admin")) -> p.Deleted:
        """Bring an archived agent back."""
        answer: p.Deleted = await do(caller, "agents.restore", agent_id=agent_id)
        return answer

    @app.get("/api/agents/{id}/files", tags=["agents"])
    async def list_agent_files(agent_id: AgentId, caller: Caller = _needs("read")) -> p.FileList:
        """An agent's files, each own, inherited or missing."""
        answer: p.FileList = await do(caller, "agents.files.list", agent_id=agent_id)
        return answer

    @app.get("/api/agents/{id}/files/{name:path}", tags=["agents"])
    async def get_agent_file(agent_id: AgentId, name: FileName, caller: Caller = _needs("read")) -> p.File:
        """The text that counts for an agent."""
        answer: p.File = await do(caller, "agents.files.get", agent_id=agent_id, name=name)
        return answer

    @app.put("/api/agents/{id}/files/{name:path}", tags=["agents"])
    async def set_agent_file(
        agent_id: AgentId, name: FileName, body: p.FileBody, caller: Caller = _needs("admin")
    ) -> p.File:
        """Write one of an agent's own files."""
        answer: p.File = await do(
            caller, "agents.files.set", agent_id=agent_id, name=name, **body.model_dump(exclude_unset=True)
        )
        return answer


def _add_sessions(app: FastAPI, gateway: Gateway) -> None:
    do = partial(_do, gateway)

    @app.get("/api/sessions", tags=["sessions"])
    async def list_sessions(
        agent_id: Annotated[str | None, Query(alias="agentId", max_length=200)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        before: Annotated[str | None, Query(max_length=200)] = None,
        caller: Caller = _needs("read"),
    ) -> p.SessionList:
        """Sessions, pinned ones first, then by last update."""
        answer: p.SessionList = await do(
            caller, "sessions.list", agent_id=agent_id, limit=limit, before=before
        )
        return answer

    @app.post("/api/sessions", tags=["sessions"], status_code=201)
    async def create_session(body: p.SessionCreate, caller: Caller = _needs("write")) -> p.SessionInfo:
        """A new session."""
        answer: p.SessionInfo = await do(caller, "sessions.create", **body.model_dump(exclude_unset=True))
        return answer

    @app.get("/api/sessions/{id:path}/messages", tags=["sessions"])
    async def list_messages(
        session: SessionRef,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        before: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
        after: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
        with_data: Annotated[bool, Query(alias="withData")] = False,
        caller: Caller = _needs("read"),
    ) -> p.HistoryPage:
        """A page of messages, ascending."""
        answer: p.HistoryPage = await do(
            caller,
            "chat.history",
            session=session,
            limit=limit,
            before=before,
            after=after,
            with_data=with_data,
        )
        return answer

    @app.post("/api/sessions/{id:path}/messages", tags=["sessions"], status_code=202)
    async def send_message(
        session: SessionRef,
        body: p.ChatSendBody,
        idempotency_key: Annotated[str | None, Header(max_length=200, min_length=1)] = None,
        caller: Caller = _needs("write"),
    ) -> p.Sent:
        """Say something. Answered once the message is on disk."""
        answer: p.Sent = await do(
            caller,
            "chat.send",
            session=session,
            idempotency_key=idempotency_key,
            **body.model_dump(exclude_unset=True),
        )
        return answer

    @app.post("/api/sessions/{id:path}/retry", tags=["sessions"], status_code=202)
    async def retry_message(session: SessionRef, caller: Caller = _needs("write")) -> p.Sent:
        """Have the last message answered after all, where its turn ended with an error."""
        answer: p.Sent = await do(caller, "chat.retry", session=session)
        return answer

    @app.post("/api/sessions/{id:path}/clear", tags=["sessions"])
    async def clear_session(session: SessionRef, caller: Caller = _needs("write")) -> p.SessionInfo:
        """Stop what runs and wipe the history."""
        answer: p.SessionInfo = await do(caller, "sessions.clear", session=session)
        return answer

    @app.post("/api/sessions/{id:path}/fork", tags=["sessions"], status_code=201)
    async def fork_session(
        session: SessionRef, body: p.SessionForkBody, caller: Caller = _needs("write")
    ) -> p.SessionInfo:
        """A copy of a session up to a message."""
        answer: p.SessionInfo = await do(
            caller, "sessions.fork", session=session, **body.model_dump(exclude_unset=True)
        )
        return answer

    @app.post("/api/sessions/{id:path}/abort", tags=["sessions"])
    async def abort_session(session: SessionRef, caller: Caller = _needs("write")) -> p.Stopped:
        """Stop whatever runs in a session."""
        answer: p.Stopped = await do(caller, "chat.abort", session=session)
        return answer

    @app.get("/api/sessions/{id:path}", tags=["sessions"])
    async def get_session(session: SessionRef, caller: Caller = _needs("read")) -> p.SessionInfo:
        """One session, by id or key."""
        answer: p.SessionInfo = await do(caller, "sessions.get", session=session)
        return answer

    @app.patch("/api/sessions/{id:path}", tags=["sessions"])
    async def patch_session(
        session: SessionRef, body: p.SessionPatchBody, caller: Caller = _needs("write")
    ) -> p.SessionInfo:
        """Change name, pin, attributes, model or agent."""
        answer: p.SessionInfo = await do(
            caller, "sessions.patch", session=session, **body.model_dump(exclude_unset=True)
        )
        return answer

    @app.delete("/api/sessions/{id:path}", tags=["sessions"])
    async def delete_session(session: SessionRef, caller: Caller = _needs("write")) -> p.SessionDeleted:
        """Stop what runs and remove the session."""
        answer: p.SessionDeleted = await do(caller, "sessions.delete", session=session)
        return answer


async def _do(gateway: Gateway, caller: Caller, method: str, /, **params: Any) -> Any:
    """A method by name; what was not given is left out."""
    return await perform(gateway, caller, method, {k: v for k, v in params.items() if v is not None})


def _add_errors(app: FastAPI) -> None:
    def answer(
        error: CoterieError, status: int | None = None, headers: dict[str, str] | None = None
    ) -> Response:
        return JSONResponse({"error": error.payload()}, status or error.http_status, headers)

    @app.exception_handler(CoterieError)
    async def typed(_: Request, error: CoterieError) -> Response:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def not_right(_: Request, error: RequestValidationError) -> Response:
        found = [
            {"field": ".".join(str(step) for step in item["loc"][1:])[:200], "message": str(item["msg"])}
            for item in error.errors()
        ]
        first = found[0]
        text = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
        return answer(InvalidRequest(text.replace("Value error, ", ""), details={"fields": found[:20]}))

    @app.exception_handler(HTTPException)
    async def by_status(_: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, TooLarge):
            return answer(error.__cause__)
        kind = NotFound if error.status_code == 404 else InvalidRequest
        return answer(kind(str(error.detail)), error.status_code, dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        reference = secrets.token_hex(4)
        log.error("%s %s failed (%s)", request.method, request.url.path, reference, exc_info=error)
        return answer(Internal(f"something went wrong here; the log says what ({reference})"))


def _describe(app: FastAPI) -> None:
    """Wrong parameters are 400 here, never 422, and every path but health takes a bearer token."""
    generate = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = generate()
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path != "/healthz":
                    operation["security"] = [{"bearer": []}]
        components = schema["components"]
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = document  # type: ignore[method-assign]
