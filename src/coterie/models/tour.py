"""The guided first conversation: what the offline model shows a newcomer, step by step."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from coterie.core.message import Message


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    text: str
    needs: tuple[str, ...] = ()
    """Tools without which there would be nothing to show; then the step is left out."""


STEPS = (
    Step(
        "streaming",
        "These words were written beforehand, but they reach you one by one, as every model's do, in every "
        "client that watches this conversation. Ctrl-C or /stop would stop me in the middle and keep what "
        "was said so far.",
    ),
    Step(
        "tools",
        "An agent acts through tools. Say “what time is it”: I call the tool system_time, and you see the "
        "call, how long it took, and what I make of its result. `coterie prompt show` lists all the tools "
        "that this agent may call.",
        ("system_time",),
    ),
    Step(
        "files",
        "Each agent has a workspace of its own. Say “write hello to note.txt”, then “read note.txt” or "
        "“list files”. It is a real file in the home folder, and no other agent can reach it.",
        ("files_write", "files_read", "files_list"),
    ),
    Step(
        "agents",
        "A household has as many agents as you like. In another terminal, `coterie agent add rose --label "
        "Rose` brings one in. Here, /agents shows who lives in the house, and “/agent rose” hands this "
        "conversation over: what was said stays, and from the next message on Rose's character, tools and "
        "model count. “/agent main” hands it back.",
    ),
    Step(
        "steering",
        "You may speak while an agent works. Say “watch the clock”: I look at it four times, with a pause "
        "before each. Meanwhile say something else. You get your answer at the next step, and then I go on "
        "where I was, repeating nothing. Even a crash in the middle changes nothing about that.",
        ("system_time",),
    ),
    # Memory, delegation and subagents join here, each with the tools it needs; offline.py's _command
    # is where their sentences become calls.
)
END = (
    "That was the tour. With a real model the same house thinks for itself: put a provider's key into the "
    "environment and a line such as `default_model: openai/gpt-5.2` into agent.yaml. `coterie model list` shows "
    "names, `coterie model test` whether one answers."
)

_ASKED = re.compile(r"\b(show me around|(the|a) tour|guide me|what can you do)\b|^(help|tour)\W*$", re.I)
_NEXT = re.compile(r"^(next|go on|continue|more|next please|and now)\W*$", re.I)
_STEP = re.compile(r"\bStep \d+ of \d+: (\w+)\.")


def show(asked: str, earlier: Sequence[Message], tools: Collection[str]) -> str | None:
    """The step that is asked for; None where no tour is."""
    steps = _possible(tools)
    if _ASKED.search(asked.strip()):
        return _told(steps, 0)
    if not _NEXT.match(asked.strip()) or (last := _last_title(earlier)) is None:
        return None
    place = next((i for i, step in enumerate(steps) if step.title == last), -1)
    return _told(steps, place + 1) if place + 1 < len(steps) else END


def invitation(earlier: Sequence[Message], tools: Collection[str]) -> str:
    """How the tour begins, or goes on."""
    if is_under_way(earlier):
        return "Say “next” to go on with the tour."
    return f"Say “show me around” for a tour of {len(_possible(tools))} steps."


def is_under_way(earlier: Sequence[Message]) -> bool:
    return _last_title(earlier) is not None


def _possible(tools: Collection[str]) -> list[Step]:
    return [step for step in STEPS if all(tool in tools for tool in step.needs)]


def _told(steps: Sequence[Step], place: int) -> str:
    step = steps[place]
    return f"Step {place + 1} of {len(steps)}: {step.title}. {step.text}\n\nSay “next” to go on."


def _last_title(earlier: Sequence[Message]) -> str | None:
    """The step that was shown last, unless the tour has ended since."""
    for message in reversed(earlier):
        if message.role != "assistant":
            continue
        if message.text.endswith(END):
            return None
        if found := _STEP.search(message.text):
            return found[1]
    return None
