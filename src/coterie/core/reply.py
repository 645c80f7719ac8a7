"""What a model sent, looked at once where every reply passes: a provider's JSON may say anything under any name, and what is
stored under a wrong type would meet every later turn of its session."""

from __future__ import annotations

import math
from typing import get_args

from coterie.core.message import Part, TextPart, ThinkingPart, ToolCall, Usage
from coterie.core.ports import Finish, ModelEvent, Reply, TextDelta, ThinkingDelta

MOST_TOKENS = 2**53
_FINISHES = frozenset(get_args(Finish))


def problem_in(event: ModelEvent) -> str | None:
    """What is wrong with it; None where it is what it should be."""
    match event:
        case TextDelta(text) | ThinkingDelta(text):
            return None if isinstance(text, str) else "a piece of its text is no text"
        case Reply(parts, usage, finish):
            if not isinstance(finish, str) or finish not in _FINISHES:
                return "it ends in no known way"
            return next(filter(None, map(_of_part, parts)), None) or _of_usage(usage)
    return "it is no event of a reply"


def _of_part(part: Part) -> str | None:
    match part:
        case TextPart(text):
            return None if isinstance(text, str) else "its text is no text"
        case ThinkingPart(text, signature, model):
            fine = isinstance(text, str) and all(isinstance(x, str | None) for x in (signature, model))
            return None if fine else "what it thought is no text"
        case ToolCall(call_id, name, arguments):
            fine = all(isinstance(x, str) for x in (call_id, name, arguments))
            return None if fine else "a call has no name, no id or no arguments"
    return "a part of it is neither text, thought nor call"


def _of_usage(usage: Usage) -> str | None:
    counts = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    if not all(isinstance(count, int) and 0 <= count < MOST_TOKENS for count in counts):
        return "its tokens cannot be counted"
    if usage.cost is not None and not (isinstance(usage.cost, int | float) and math.isfinite(usage.cost)):
        return "its cost is no number"
    return None
