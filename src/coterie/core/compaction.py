"""When a transcript outgrows a model's window: what is summarised, and what the model is told about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from coterie.core.fence import closed
from coterie.core.message import ImagePart, Message

DEFAULT_WINDOW = 128_000
CHARACTERS_PER_TOKEN = 3.5
"""On the safe side for English; other scripts take more tokens, and are counted by their bytes."""
FULL = 0.75
"""Share of the window at which a transcript is shortened; the rest is for the reply and for miscounting."""
KEPT = 0.3
"""Share of the window that the newest messages may keep."""
RESULT = 0.1
"""Share of the window that one tool result may take."""
MESSAGE_OVERHEAD = 60
IMAGE = 5600
"""What a picture counts for, whatever its file's size: about the 1,600 tokens that providers charge at most."""
ASK = (
    "Summarise the conversation so far for yourself, because the older part of it will no longer be shown to you. "
    "Keep names, facts, numbers, decisions, promises and what is still to be done; leave out pleasantries. "
    "At most {words} words. Answer with the summary only."
)
SYSTEM = "You compress conversations without losing what matters in them."


def tokens(size: int) -> int:
    """About how many tokens so many bytes are."""
    return int(size / CHARACTERS_PER_TOKEN)


def message_size(message: Message) -> int:
    """About how many bytes a message takes in a request."""
    size = _bytes(message.text) + MESSAGE_OVERHEAD
    for call in message.tool_calls:
        size += _bytes(call.arguments) + len(call.name) + MESSAGE_OVERHEAD
    if message.role == "user":
        size += IMAGE * sum(isinstance(part, ImagePart) for part in message.parts)
    return size


def cut_point(messages: Sequence[Message], window: int) -> int:
    """How many of the oldest messages give way to a summary. Never between a call and its result, and never the
    newest message or round, which is still to be answered."""
    room = window * KEPT * CHARACTERS_PER_TOKEN
    index = len(messages)
    while index > 0 and (room := room - message_size(messages[index - 1])) >= 0:
        index -= 1
    newest = max((place for place, message in enumerate(messages) if message.role != "tool"), default=0)
    # Forward to where a round begins; better where a person begins.
    begin = min(index, newest)
    while begin < len(messages) and messages[begin].role == "tool":
        begin += 1
    for candidate in range(begin, len(messages)):
        if messages[candidate].role == "user":
            return candidate
    return begin


def summarisable(messages: Sequence[Message], window: int) -> list[Message]:
    """What of these fits into one request for a summary: a message that no window holds is left out, the oldest go first."""
    room = window * FULL * CHARACTERS_PER_TOKEN
    kept = [m for m in messages if m.role == "tool" or m.tool_calls or message_size(m) <= room / 2]
    size = sum(map(message_size, kept))
    first = 0
    while first < len(kept) and (size > room or kept[first].role == "tool"):
        size -= message_size(kept[first])
        first += 1
    return kept[first:]


def summary_text(summary: str, first: int, last: int) -> str:
    return f"Summary of messages {first} to {last} of this conversation, which are no longer shown:\n{summary.strip()}"


def without_summary(first: int, last: int) -> str:
    return f"Messages {first} to {last} of this conversation are no longer shown, and no summary of them could be made."


def shortened(text: str, limit: int, result_id: str, marks: Collection[str] = ()) -> str:
    """A long tool result as the model sees it, with the way to the rest; its fences are closed where it is cut."""
    return (
        f"{closed(text[:limit], marks)}\n[shortened: {len(text)} characters in all; "
        f'results_read {{"id": "{result_id}", "offset": {limit}}} reads on]'
    )


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
