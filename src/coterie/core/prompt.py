"""The stable part of a prompt: which sections, in which order. The same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GLOBAL_DEFAULT = "You are a helpful assistant."
SECTIONS = ("AGENTS.md", "USER.md", "TOOLS.md", "MEMORY.md")
"""Files behind the base, in this order, each under its own heading."""


@dataclass(frozen=True, slots=True)
class PromptInputs:
    label: str
    description: str | None
    system_prompt: str | None
    files: Mapping[str, str]
    """Effective texts by name; what is missing is absent."""


def system_prompt(inputs: PromptInputs) -> str:
    """Base, then the files that say something."""
    parts = [_base(inputs)]
    for name in SECTIONS:
        text = inputs.files.get(name, "").strip()
        if text:
            parts.append(f"## {name}\n{text}")
    return "\n\n".join(parts)


def _base(inputs: PromptInputs) -> str:
    """The agent's own prompt, else identity and soul, else a sentence, else the global default."""
    if inputs.system_prompt:
        return inputs.system_prompt.strip()
    texts = [inputs.files.get(name, "").strip() for name in ("IDENTITY.md", "SOUL.md")]
    who = f"You are {inputs.label}."
    if any(texts):
        return "\n\n".join([who, *(text for text in texts if text)])
    if inputs.description:
        return f"{who} {inputs.description}"
    return GLOBAL_DEFAULT if inputs.label == "main" else who


def context_message(lines: Mapping[str, str]) -> str:
    """The one trailing message of a request. Made for it and never stored."""
    body = "\n".join(f"{name}: {value}" for name, value in lines.items())
    return f"<context>\n{body}\n</context>"
