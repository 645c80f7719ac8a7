"""Memories over HTTP: the same methods as RPC, under paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request

from coterie.api import payloads as p
from coterie.api.methods import perform
from coterie.core.errors import InvalidRequest
from coterie.core.token import Scope
from coterie.engine.access import Caller
from coterie.engine.gateway import Gateway

MemoryId = Annotated[str, Path(alias="id", min_length=1, max_length=200, description="A memory's id.")]
AsAgent = Annotated[
    str | None,
    Query(alias="agentId", max_length=200, description="As whom; without it, nobody in particular."),
]
Key = Annotated[str | None, Header(max_length=200, min_length=1)]
_JSON_LINES: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "JSON lines, whatever type the request names.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
}


def router(gateway: Gateway, needs: Callable[[Scope], Any], route_class: type[Any]) -> APIRouter:
    routes = APIRouter(tags=["memory"], route_class=route_class)

    async def do(caller: Caller, method: str, /, **params: Any) -> Any:
        given = {key: value for key, value in params.items() if value is not None}
        return await perform(gateway, caller, method, given)

    @routes.post("/api/memory/remember", status_code=201)
    async def remember(
        body: p.MemoryRememberBody, idempotency_key: Key = None, caller: Caller = needs("write")
    ) -> p.MemoryInfo:
        """Remember something: global unless it says private, the default agent's unless it names one."""
        answer: p.MemoryInfo = await do(
            caller, "memory.remember", idempotency_key=idempotency_key, **body.model_dump(exclude_unset=True)
        )
        return answer

    @routes.post("/api/memory/recall")
    async def recall(body: p.MemoryRecall, caller: Caller = needs("read")) -> p.MemoryHits:
        """What fits a question best, of what the agent may see."""
        answer: p.MemoryHits = await do(caller, "memory.recall", **body.model_dump(exclude_unset=True))
        return answer

    @routes.post("/api/memory/import", openapi_extra=_JSON_LINES)
    async def import_(
        request: Request, agent_id: AsAgent = None, caller: Caller = needs("write")
    ) -> p.MemoryImported:
        """Add memories: JSON lines of what remembering takes, or of an export. Nothing is merged."""
        try:
            text = (await request.body()).decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest("the body is not UTF-8 text") from None
        answer: p.MemoryImported = await do(caller, "memory.import", content=text, agent_id=agent_id)
        return answer

    @routes.get("/api/memories")
    async def list_memories(
        asked: Annotated[p.MemoryListQuery, Query()], caller: Caller = needs("read")
    ) -> p.MemoryPage:
        """What the agent may see, in order of arrival."""
        given = asked.model_dump(exclude_unset=True, exclude={"tags"})
        tags = [tag.strip() for tag in (asked.tags or "").split(",") if tag.strip()]
        answer: p.MemoryPage = await do(caller, "memory.list", tags=tags or None, **given)
        return answer

    @routes.get("/api/memories/{id}")
    async def get_memory(
        memory_id: MemoryId, agent_id: AsAgent = None, caller: Caller = needs("read")
    ) -> p.MemoryInfo:
        """One memory, by id."""
        answer: p.MemoryInfo = await do(caller, "memory.get", id=memory_id, agent_id=agent_id)
        return answer

    @routes.patch("/api/memories/{id}")
    async def update_memory(
        memory_id: MemoryId, body: p.MemoryPatch, caller: Caller = needs("write")
    ) -> p.MemoryInfo:
        """Edit, tag, pin or share a memory; what is not given stays."""
        answer: p.MemoryInfo = await do(
            caller, "memory.update", id=memory_id, **body.model_dump(exclude_unset=True)
        )
        return answer

    @routes.delete("/api/memories/{id}")
    async def forget_memory(
        memory_id: MemoryId, agent_id: AsAgent = None, caller: Caller = needs("write")
    ) -> p.MemoryForgotten:
        """Delete a memory and what it took the place of."""
        answer: p.MemoryForgotten = await do(caller, "memory.forget", id=memory_id, agent_id=agent_id)
        return answer

    @routes.get("/api/memory/stats")
    async def memory_stats(agent_id: AsAgent = None, caller: Caller = needs("read")) -> p.MemoryStats:
        """How much the agent may see, by owner, and how far the vectors are."""
        answer: p.MemoryStats = await do(caller, "memory.stats", agent_id=agent_id)
        return answer

    @routes.get("/memory/search")
    async def search(
        q: Annotated[str, Query(max_length=2_000)],
        agent_id: AsAgent = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 10,
        caller: Caller = needs("read"),
    ) -> p.MemoryHits:
        """As recall, for whoever prefers GET."""
        answer: p.MemoryHits = await do(caller, "memory.recall", query=q, agent_id=agent_id, limit=limit)
        return answer

    return routes
