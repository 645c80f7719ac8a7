"""A stand-in that needs no network and no key, and never pretends to be a language model."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from coterie.core.message import Message, Part, TextPart, ToolCall, Usage
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta

BACKLOG = "[Backlog]"
LONGEST_COMMAND = 2000
QUOTED = 200
REPORTED = 2000

_TIME = re.compile(r"\b(what time|the time|what day|what date|today's date)\b", re.I)
_LIST = re.compile(r"\blist\b.{0,40}\bfiles\b", re.I)
# In the middle of a sentence only what looks like a file is one: people also read books and write to friends.
_WRITE = re.compile(r"^(?:please )?write (.+) to (\S+)$|\bwrite (.+) to (\S*\w\.\w+)", re.I | re.S)
_READ = re.compile(
    r"^(?:please )?read (?:the )?(?:file )?(\S+)$|\bread (?:the )?(?:file )?(\S*\w\.\w+)", re.I
)
_REMEMBER = re.compile(r"^(?:please )?remember (?:that )?(.+)$", re.I | re.S)
_RECALL = re.compile(r"\bwhat do you (?:remember|know) about (.+?)[?.!]*$", re.I | re.S)

_QUOTES = "\"'“”‘’`"

_EXAMPLES = {
    "system_time": "“what time is it”",
    "files_list": "“list files”",
    "files_write": "“write hello to note.txt”",
    "files_read": "“read note.txt”",
    "memory_remember": "“remember that the boat is blue”",
    "memory_recall": "“what do you remember about the boat?”",
}


@dataclass(frozen=True, slots=True)
class _Command:
    tool: str
    arguments: str


class OfflineModel:
    """Echoes, and shows a few tools at work. Implements the Model port."""

    def __init__(self, name: str = "offline/demo") -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer word by word, then one Reply."""
        answer = respond(request)
        if isinstance(answer, _Command):
            call: Part = ToolCall(f"call_{uuid.uuid4().hex[:24]}", answer.tool, answer.arguments)
            yield Reply((call,), Usage(cost=0.0), "tool_calls")
            return
        for word in re.findall(r"\S+\s*|\s+", answer):
            yield TextDelta(word)
            await asyncio.sleep(0)
        yield Reply((TextPart(answer),), Usage(cost=0.0), "stop")


def respond(request: ModelRequest) -> _Command | str:
    """What to say or call. Results behind the newest user message end the matter, so it cannot go on for ever."""
    messages = request.messages
    newest = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if newest is None:
        return _introduction(request)
    results = [message for message in messages[newest + 1 :] if message.role == "tool"]
    if results:
        return _report(results)
    asked = messages[newest].text
    if asked.startswith(BACKLOG):
        return _resume(request, messages[:newest])
    command = _command(asked) if len(asked) <= LONGEST_COMMAND else None
    if command is None:
        return f"{_introduction(request)} You said: “{_short(asked, QUOTED)}”{_reminded(request)}"
    if not _offered(request, command.tool):
        return f"{_introduction(request)} For that I would need the tool {command.tool}, which this agent does not have."
    return command


def _reminded(request: ModelRequest) -> str:
    """What memory put into the trailing context, for all to see."""
    _, found, block = (request.context or "").partition("\nmemory: ")
    lines = [line for line in block.splitlines() if line.startswith("- [")]
    return "\nThat reminds me of:\n" + "\n".join(lines) if found and lines else ""


def _command(text: str) -> _Command | None:
    if match := _REMEMBER.search(text.strip()):
        return _call("memory_remember", content=match.group(1).strip())
    if match := _RECALL.search(text.strip()):
        return _call("memory_recall", query=match.group(1).strip())
    if match := _WRITE.search(text.strip()):
        content, path = match.group(1) or match.group(3), match.group(2) or match.group(4)
        return _call("files_write", path=_bare(path), content=content.strip().strip(_QUOTES))
    if match := _READ.search(text.strip()):
        return _call("files_read", path=_bare(match.group(1) or match.group(2)))
    if _LIST.search(text):
        return _call("files_list")
    if _TIME.search(text):
        return _call("system_time")
    return None


def _resume(request: ModelRequest, earlier: Sequence[Message]) -> _Command | str:
    """Take up the call that an interruption skipped; where there is none, say what was found so far."""
    results = [message for message in earlier if message.role == "tool"]
    if not results:
        return f"{_introduction(request)} Nothing of the interrupted task is left that I could do."
    last = results[-1]
    if "skipped" not in last.text.lower():
        return _report([last])
    calls = (call for message in earlier for call in message.tool_calls)
    skipped = next((call for call in calls if call.id == last.call_id), None)
    if skipped is None or not _offered(request, skipped.name):
        return f"{_introduction(request)} The call that was skipped cannot be made any more."
    return _Command(skipped.name, skipped.arguments)


def _report(results: Sequence[Message]) -> str:
    lines = [
        f"{result.tool_name or 'The tool'} answered: {_short(result.text, REPORTED)}" for result in results
    ]
    return "\n".join([*lines, "(I am the offline demo, not a language model: I only pass this on.)"])


def _introduction(request: ModelRequest) -> str:
    shown = [example for tool, example in _EXAMPLES.items() if _offered(request, tool)]
    can = (
        f"I can show tools at work: try {', '.join(shown)}." if shown else "I can only repeat what I am told."
    )
    return f"I am Coterie's offline demo, not a language model. {can}"


def _offered(request: ModelRequest, tool: str) -> bool:
    return any(schema.name == tool for schema in request.tools)


def _call(tool: str, **arguments: str) -> _Command:
    return _Command(tool, json.dumps(arguments, ensure_ascii=False))


def _bare(path: str) -> str:
    return path.rstrip("?!,;.").strip(_QUOTES)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
