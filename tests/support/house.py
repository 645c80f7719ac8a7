"""What tests add to the public test kit: a model that keeps every request as a strict provider would see it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from bench import mock_llm
from coterie.core.message import Message
from coterie.core.ports import ModelEvent, ModelRequest
from coterie.models.openai_wire import request_body
from coterie.testing import Scripted, ScriptedModel
from coterie.testing.house import MAIN, House, PowerCut, household, run, until, write_config

__all__ = [
    "MAIN",
    "FunctionModel",
    "House",
    "PowerCut",
    "household",
    "last_user",
    "roles",
    "run",
    "until",
    "why_illegal",
    "wire",
    "write_config",
]

why_illegal: Callable[[str, dict[str, Any]], str | None] = mock_llm.illegal


class FunctionModel:
    """A model that is a function of the request. Keeps what it was asked as the provider would have seen it."""

    def __init__(
        self, reply: Callable[[ModelRequest], Scripted | Awaitable[Scripted]], name: str = "scripted/test"
    ) -> None:
        self.reply = reply
        self.name = name
        self.bodies: list[dict[str, Any]] = []
        """Every request so far in its wire form."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.bodies.append(json.loads(json.dumps(request_body(request))))
        async for event in ScriptedModel(self.reply, name=self.name).stream(request):
            yield event

    @property
    def refused(self) -> list[str]:
        """Why a strict provider would have refused a request, for each one that it would have."""
        return [why for body in self.bodies if (why := why_illegal("/chat/completions", body))]


def last_user(request: ModelRequest) -> str:
    """The newest message that somebody sent, notes and the trailing context aside."""
    return next((m.text for m in reversed(request.messages) if m.role == "user"), "")


def roles(messages: Sequence[Message]) -> list[str]:
    return [m.role for m in messages]


def wire(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Messages of a request as bytes would be compared."""
    return [json.dumps(m) for m in messages]
