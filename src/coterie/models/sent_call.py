"""A tool call of any model in a form that every provider takes back."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Any

from coterie.core.ports import ModelRequest
from coterie.core.text import well_formed

LONGEST_ID = 40
_ID = re.compile(rf"[a-zA-Z0-9_-]{{1,{LONGEST_ID}}}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_FIRST = re.compile(r"[a-zA-Z_]")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
INVALID = "INVALID_JSON"
"""The key under which arguments stand that are no JSON object."""


def sent_id(call_id: str) -> str:
    """The id itself where any provider takes it, else one that is always the same for the same id."""
    if _ID.fullmatch(call_id):
        return call_id
    return "call_" + hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:24]


def chat_id(call_id: str) -> str:
    """The id for the OpenAI chat protocol, where any characters will do: some models read meaning into their ids."""
    fits = len(call_id) <= LONGEST_ID and well_formed(call_id) is call_id
    return call_id if fits else sent_id(call_id)


class DistinctIds:
    """The ids of a reply's calls. Some endpoints leave them empty, or count from call_0 in every reply."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
        self._taken: set[str] | None = None

    def own(self, call_id: str) -> str:
        """The id itself, or another where the transcript or this reply has it already."""
        if self._taken is None:
            self._taken = {call.id for message in self._request.messages for call in message.tool_calls}
        if not call_id or call_id in self._taken:
            call_id = f"call_{uuid.uuid4().hex[:24]}"
        self._taken.add(call_id)
        return call_id


def sent_name(name: str) -> str:
    """The tool's name. A model may have made one up that its own provider would refuse to read again."""
    if _NAME.fullmatch(name):
        return name
    legal = _ILLEGAL.sub("_", name)
    if not _FIRST.match(legal):
        legal = "_" + legal
    return legal[:64]


def arguments_object(arguments: str) -> dict[str, Any] | None:
    """The arguments as an object; None where they are something else, or cannot be written as JSON again."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        if not isinstance(value, dict):
            return None
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if well_formed(written) is not written:
        value = json.loads(well_formed(written))
    return dict(value)


def sent_object(arguments: str) -> dict[str, Any]:
    """The arguments for a protocol that has objects."""
    value = arguments_object(arguments)
    return {INVALID: well_formed(arguments)} if value is None else value


def sent_string(arguments: str) -> str:
    """The arguments for a protocol that has strings: the model's own, unless they are no object."""
    if arguments_object(arguments) is None:
        return json.dumps({INVALID: well_formed(arguments)}, ensure_ascii=False)
    return well_formed(arguments) if arguments.strip() else "{}"
