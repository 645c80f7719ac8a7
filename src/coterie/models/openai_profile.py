"""What OpenAI's models can be told, by the library's list."""

from __future__ import annotations

from typing import Literal

from pydantic_ai.profiles.openai import OpenAIModelProfile


def takes_temperature(
    profile: OpenAIModelProfile, thinking: bool | Literal["low", "medium", "high"] | None
) -> bool:
    """Whether the model accepts a temperature in a request with this much thinking."""
    if not profile.get("openai_supports_reasoning", False):
        return True
    if not profile.get("openai_supports_reasoning_effort_none", False):
        return False
    return not (profile.get("thinking_enabled_by_default", False) if thinking is None else thinking)
