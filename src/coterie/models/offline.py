"""A stand-in that needs no network and no key, and never pretends to be a language model."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from coterie.core.message import ImagePart, Message, Part, TextPart, ToolCall, Usage
from coterie.core.ports import ModelEvent, ModelRequest, Reply, TextDelta
from coterie.models import offline_together, tour

BACKLOG = "[Backlog]"
LONGEST_COMMAND = 2000
QUOTED = 200
REPORTED = 2000
LOOKS = 4
"""How often the clock is looked at when it is watched."""
LOOK_SECONDS = 2.0
"""The pause before each look: time to say something else."""
WORD_SECONDS = 0.03
"""Between the words of a tour, so that they are seen to come."""

_TIME = re.compile(r"\b(what time|the time|what day|what date|today's date)\b", re.I)
_WATCH = re.compile(r"\bwatch the clock\b", re.I)
_LIST = re.compile(r"\blist\b.{0,40}\bfiles\b", re.I)
_WRITE = re.compile(r"^(?:please )?write |\bwrite ", re.I)
_TO = re.compile(r" to ", re.I)
# In the middle of a sentence only what looks like a file is one: people also read books and write to friends.
_FILE = re.compile(r"\S*\w\.\w+")
_READ = re.compile(
    r"^(?:please )?read (?:the )?(?:file )?(\S+)$|\bread (?:the )?(?:file )?(\S*\w\.\w+)", re.I
)
_PIECE = re.compile(r"\S+\s*|\s+")
_REMEMBER = re.compile(r"^(?:please )?remember (?:that )?(.+)$", re.I | re.S)
_RECALL = re.compile(r"\bwhat do you (?:remember|know) about (.+)", re.I | re.S)

_SELF = re.compile(r"\b(who|what) are you\b", re.I)

_QUOTES = "\"'“”‘’`"

_EXAMPLES = {
    "system_time": "“what time is it”",
    "files_list": "“list files”",
    "files_write": "“write hello to note.txt”",
    "files_read": "“read note.txt”",
    "memory_remember": "“remember that the boat is blue”",
    "memory_recall": "“what do you remember about the boat?”",
    **offline_together.EXAMPLES,
}
_WHO = "I am Coterie's offline demo, not a language model."
_ASIDE = "(I am the offline demo, not a language model: I only pass this on.)"


@dataclass(frozen=True, slots=True)
class _Answer:
    """Words, a call, or both."""

    text: str = ""
    tool: str | None = None
    arguments: str = "{}"
    pause: float = 0.0
    """Seconds before anything comes."""
    pace: float = 0.0
    """Seconds between words."""


class OfflineModel:
    """Echoes, shows a few tools at work, and leads a newcomer around. Implements the Model port."""

    def __init__(self, name: str = "offline/demo", *, pauses: bool = True) -> None:
        self._name = name
        self._slowness = 1 if pauses else 0

    @property
    def name(self) -> str:
        return self._name

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The answer word by word, then one Reply."""
        answer = respond(request)
        parts: list[Part] = []
        await asyncio.sleep(answer.pause * self._slowness)
        if answer.text:
            for word in _PIECE.findall(answer.text):
                yield TextDelta(word)
                await asyncio.sleep(answer.pace * self._slowness)
            parts.append(TextPart(answer.text))
        if answer.tool is not None:
            parts.append(ToolCall(f"call_{uuid.uuid4().hex[:24]}", answer.tool, answer.arguments))
        yield Reply(tuple(parts), Usage(cost=0.0), "stop" if answer.tool is None else "tool_calls")


def respond(request: ModelRequest) -> _Answer:
    """What to say or call. The results behind the newest user message are counted, so it cannot go on for ever."""
    messages = request.messages
    if (told := offline_together.woken(request)) is not None:
        return _Answer("\n".join([told, *_aside(request)]))
    newest = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if newest is None:
        return _Answer(_introduction(request).rstrip() or "There is nothing to answer.")
    said, earlier = messages[newest], messages[:newest]
    asked = said.text if len(said.text) <= LONGEST_COMMAND else ""
    results = [message for message in messages[newest + 1 :] if message.role == "tool"]
    if _WATCH.search(asked) and _offered(request, "system_time"):
        return _watch(request, newest, len(results))
    if results:
        return _Answer(_report(request, results, earlier))
    if asked.startswith(BACKLOG):
        return _resume(request, earlier)
    if any(isinstance(part, ImagePart) for part in said.parts):
        return _Answer(f"{_introduction(request)}You sent {_pictures(said)}, which I cannot see.")
    if shown := tour.show(asked, earlier, _tools(request)):
        who = "" if _is_known(request) else f"{_WHO} "
        return _Answer(f"{who}{shown}", pace=WORD_SECONDS)
    command = _command(request, asked)
    if command is None:
        invitation = tour.invitation(earlier, _tools(request))
        said_so = f"You said: “{_short(said.text, QUOTED)}”{_reminded(request)}"
        return _Answer(f"{_introduction(request)}{invitation} {said_so}")
    if not _offered(request, command.tool or ""):
        needed = f"For that I would need the tool {command.tool}, which this agent does not have."
        return _Answer(f"{_introduction(request)}{needed}")
    return command


def _reminded(request: ModelRequest) -> str:
    """What memory put into the trailing context, for all to see."""
    _, found, block = (request.context or "").partition("\nmemory: ")
    lines = [line for line in block.splitlines() if line.startswith("- [")]
    return "\nThat reminds me of:\n" + "\n".join(lines) if found and lines else ""


def _command(request: ModelRequest, text: str) -> _Answer | None:
    """The call that a sentence asks for."""
    if together := offline_together.command(request, text):
        return _call(together[0], **together[1])
    if match := _REMEMBER.search(text.strip()):
        return _call("memory_remember", content=match.group(1).strip())
    if match := _RECALL.search(text.strip()):
        return _call("memory_recall", query=match.group(1).rstrip("?.!").strip())
    if written := _written(text.strip()):
        content, path = written
        return _call("files_write", path=_bare(path), content=content.strip().strip(_QUOTES))
    if match := _READ.search(text.strip()):
        return _call("files_read", path=_bare(match.group(1) or match.group(2)))
    if _LIST.search(text):
        return _call("files_list")
    if _TIME.search(text):
        return _call("system_time")
    return None


def _written(text: str) -> tuple[str, str] | None:
    """What to write, and to which file."""
    begins = _WRITE.search(text)
    ends = [] if begins is None else list(_TO.finditer(text, begins.end() + 1))
    if begins is None or not ends:
        return None
    path = text[ends[-1].end() :]
    if begins.start() == 0 and path and not any(map(str.isspace, path)):
        return text[begins.end() : ends[-1].start()], path
    for end in reversed(ends):
        if file := _FILE.match(text, end.end()):
            return text[begins.end() : end.start()], file[0]
    return None


def _watch(request: ModelRequest, newest: int, behind: int) -> _Answer:
    """A task of several rounds, which other messages may interrupt: all looks since it was asked for count."""
    messages = request.messages
    begun = max(
        (
            i
            for i, message in enumerate(messages)
            if message.role == "user" and _WATCH.search(message.text) and not message.text.startswith(BACKLOG)
        ),
        default=newest,
    )
    looks = [m for m in messages[begun + 1 :] if m.tool_name == "system_time" and m.role == "tool"]
    seen = [look.text for look in looks if "skipped" not in look.text.lower()]
    if len(seen) < LOOKS and behind < LOOKS:
        return _Answer(f"Look {len(seen) + 1} of {LOOKS}.", "system_time", pause=LOOK_SECONDS)
    interrupted = begun != newest
    went_on = "You spoke in between, and I went on where I was. " if interrupted else ""
    last = seen[-1] if seen else "nothing"
    return _Answer(
        f"I looked {len(seen)} times; at last the clock said: {_short(last, QUOTED)}.\n\n"
        f"{went_on}{tour.invitation(messages[:newest], _tools(request))}"
    )


def _resume(request: ModelRequest, earlier: Sequence[Message]) -> _Answer:
    """Take up the call that an interruption skipped; where there is none, say what was found so far."""
    results = [message for message in earlier if message.role == "tool"]
    if not results:
        return _Answer(f"{_introduction(request)}Nothing of the interrupted task is left that I could do.")
    last = results[-1]
    if "skipped" not in last.text.lower():
        return _Answer(_report(request, [last], earlier))
    calls = (call for message in earlier for call in message.tool_calls)
    skipped = next((call for call in calls if call.id == last.call_id), None)
    if skipped is None or not _offered(request, skipped.name):
        return _Answer(f"{_introduction(request)}The call that was skipped cannot be made any more.")
    return _Answer(tool=skipped.name, arguments=skipped.arguments)


def _report(request: ModelRequest, results: Sequence[Message], earlier: Sequence[Message]) -> str:
    lines = [
        f"{result.tool_name or 'The tool'} answered: {_short(result.text, REPORTED)}" for result in results
    ]
    lines += _aside(request)
    if tour.is_under_way(earlier):
        lines.append("Say “next” to go on with the tour.")
    return "\n".join(lines)


def _is_known(request: ModelRequest) -> bool:
    """It said who it is in this conversation already."""
    return any(m.role == "assistant" and (_WHO in m.text or _ASIDE in m.text) for m in request.messages)


def _aside(request: ModelRequest) -> list[str]:
    return [] if _is_known(request) else [_ASIDE]


def _introduction(request: ModelRequest) -> str:
    """Once in a conversation, and whenever somebody asks."""
    asked = next((m.text for m in reversed(request.messages) if m.role == "user"), "")
    if _is_known(request) and not _SELF.search(asked[:LONGEST_COMMAND]):
        return ""
    shown = [example for tool, example in _EXAMPLES.items() if _offered(request, tool)]
    can = (
        f"I can show tools at work: try {', '.join(shown)}." if shown else "I can only repeat what I am told."
    )
    return f"{_WHO} {can} "


def _pictures(message: Message) -> str:
    images = [part for part in message.parts if isinstance(part, ImagePart)]
    kinds = ", ".join(f"{image.media_type}, {len(image.data)} bytes" for image in images)
    return f"an image ({kinds})" if len(images) == 1 else f"{len(images)} images ({kinds})"


def _tools(request: ModelRequest) -> set[str]:
    return {schema.name for schema in request.tools}


def _offered(request: ModelRequest, tool: str) -> bool:
    return tool in _tools(request)


def _call(tool: str, **arguments: str) -> _Answer:
    return _Answer(tool=tool, arguments=json.dumps(arguments, ensure_ascii=False))


def _bare(path: str) -> str:
    return path.rstrip("?!,;.").strip(_QUOTES)


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
