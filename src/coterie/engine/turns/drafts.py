"""Messages that a turn adds to its transcript, before they have their place there."""

from __future__ import annotations

import uuid
from typing import Any

from coterie.core.agent import MAIN
from coterie.core.clock import now_iso
from coterie.core.message import Message, Origin, Role, ToolCall
from coterie.core.steering import STOPPED
from coterie.core.text import all_storable, storable
from coterie.core.turn import TurnJob


def draft(job: TurnJob, role: Role, origin: Origin, text: str, **more: Any) -> Message:
    """What a model or a tool said is mended here: the transcript in memory is the one that is stored."""
    return Message(
        id=uuid.uuid4().hex,
        role=role,
        origin=origin,
        text=storable(text),
        agent_id=job.agent_id or MAIN,
        run_id=job.run_id,
        created_at=now_iso(),
        **all_storable(more),
    )


def result(job: TurnJob, call: ToolCall, text: str, **more: Any) -> Message:
    return draft(job, "tool", "agent", text, call_id=call.id, tool_name=call.name, **more)


def error_note(job: TurnJob, reason: str | None) -> Message:
    """What stands in the transcript where an answer would have stood."""
    text = f"This turn ended without an answer: {reason}"
    return draft(job, "system", "system", text, meta={"error": reason})


def stop_note(job: TurnJob) -> Message:
    """The same where somebody stopped it."""
    return draft(job, "system", "system", STOPPED, meta={"aborted": True})
