"""MEMORY.md and memory/*.md as memories: each section is one, private to its agent, and follows every edit."""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from coterie.core.clock import now_iso
from coterie.core.errors import CoterieError, InvalidRequest, NotFound
from coterie.core.memory import Memory
from coterie.engine.household.workspace import MAX_CONTENT, MemorySignature, Workspace

if TYPE_CHECKING:
    from coterie.store.transaction import Store

MEMORY = "MEMORY.md"
LONGEST_HEADING = 500
LONG = 1_500
"""Characters of a section that become one memory; longer ones are cut between paragraphs."""
_FENCE = re.compile(r"^\s*(```|~~~)")
_BLANK = re.compile(r"\n\s*\n")
_DATED = re.compile(r"memory/(\d{4}-\d\d-\d\d)\b")

Embed = Callable[[Sequence[str]], tuple[list[bytes | None], str | None]]


@dataclass(frozen=True, slots=True)
class Section:
    file: str
    heading: str
    text: str

    @property
    def source_ref(self) -> str:
        return f"{self.file}#{self.heading}" if self.heading else self.file


class MemoryFiles:
    """Looks at an agent's files whenever its memories are asked for: nothing has to be told that a file changed."""

    def __init__(self, store: Store, embed: Embed) -> None:
        self._store = store
        self._embed = embed
        self._seen: dict[str, MemorySignature] = {}
        self._lock = threading.Lock()

    def changed(self, workspace: Workspace) -> bool:
        return self._seen.get(workspace.agent_id) != workspace.memory_signature()

    def forget(self, agent_id: str) -> None:
        self._seen.pop(agent_id, None)

    def follow(self, workspace: Workspace) -> bool:
        """Bring the index up to the files. True if something changed."""
        signature = workspace.memory_signature()
        if self._seen.get(workspace.agent_id) == signature:
            return False
        with self._lock:
            wanted = [
                section
                for file in workspace.memory_files()
                for section in sections(file, workspace.effective(file)[1])
            ]
            changed = self._bring(workspace.agent_id, wanted)
            self._seen[workspace.agent_id] = signature
            return changed

    def _bring(self, agent_id: str, wanted: Sequence[Section]) -> bool:
        with self._store.read() as tx:
            known = tx.memories.sections(agent_id)
        gone, new = _difference(known, wanted)
        if not gone and not new:
            return False
        vectors, model = self._embed([section.text for section in new])
        by_text = {section.text: vector for section, vector in zip(new, vectors, strict=True)}
        with self._store.write() as tx:
            # Another process may have been here meanwhile.
            gone, new = _difference(tx.memories.sections(agent_id), wanted)
            tx.memories.remove([memory.id for memory in gone])
            at = now_iso()
            tx.memories.add(
                [_memory(agent_id, section, at) for section in new],
                [by_text.get(section.text) for section in new],
                model,
            )
        return True


def sections(file: str, text: str) -> list[Section]:
    """The parts of a Markdown text under its headings, long ones cut between paragraphs."""
    found: list[Section] = []
    heading, fenced = "", False
    lines: list[str] = []

    def close() -> None:
        body = "\n".join(lines).strip()
        if body:
            for part in _cut(body):
                found.append(Section(file, heading, f"{heading}\n{part}" if heading else part))

    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        title = None if fenced else _title(line)
        if title is None:
            lines.append(line)
            continue
        close()
        heading, lines = title[:LONGEST_HEADING], []
    close()
    return found


def _title(line: str) -> str | None:
    """Of a line that is a heading. In one pass: an expression for this took hours over a line of spaces."""
    rest = line.lstrip("#")
    if not 1 <= len(line) - len(rest) <= 6 or not rest[:1].isspace():
        return None
    return rest.strip().rstrip("#").rstrip() or None


def append_to_log(workspace: Workspace, text: str) -> str:
    """One line more in today's log; returns the file's name."""
    now = datetime.now().astimezone()
    name = f"memory/{now:%Y-%m-%d}.md"
    try:
        before = workspace.get(name).content
    except NotFound:
        before = f"# {now:%Y-%m-%d}\n"
    line = " ".join(text.split())
    if not line:
        raise InvalidRequest("there is nothing to note")
    content = f"{before.rstrip()}\n\n- {now:%H:%M} {line}\n"
    if len(content.encode()) > MAX_CONTENT:
        raise InvalidRequest(f"{name} is full")
    workspace.set(name, content)
    return name


def edit_memory_file(workspace: Workspace, old: str, new: str) -> None:
    """Replace one passage of MEMORY.md; without an old one, add at the end."""
    try:
        file = workspace.get(MEMORY)
        before = file.content if file.state == "own" else ""
    except CoterieError:
        before = ""
    if not old:
        content = f"{before.rstrip()}\n\n{new.strip()}\n".lstrip()
    elif before.count(old) != 1:
        raise InvalidRequest(
            f"the passage must occur exactly once in {MEMORY}; it occurs {before.count(old)} times"
        )
    else:
        content = before.replace(old, new)
    workspace.set(MEMORY, content)


def _difference(known: Sequence[Memory], wanted: Sequence[Section]) -> tuple[list[Memory], list[Section]]:
    """What is in the index and no longer in the files, and the other way round."""
    left = Counter((section.source_ref, section.text) for section in wanted)
    gone = []
    for memory in known:
        key = (memory.source_ref or "", memory.content)
        if left[key] > 0:
            left[key] -= 1
        else:
            gone.append(memory)
    new = []
    for section in wanted:
        key = (section.source_ref, section.text)
        if left[key] > 0:
            left[key] -= 1
            new.append(section)
    return gone, new


def _memory(agent_id: str, section: Section, at: str) -> Memory:
    dated = _DATED.match(section.file)
    return Memory(
        id=uuid.uuid4().hex,
        agent_id=agent_id,
        scope="private",
        content=section.text,
        thread=f"file:{section.file}",
        source_ref=section.source_ref,
        file=section.file,
        occurred_at=f"{dated.group(1)}T00:00:00Z" if dated else None,
        created_at=at,
        updated_at=at,
    )


def _cut(body: str) -> list[str]:
    parts: list[str] = []
    for paragraph in _BLANK.split(body):
        paragraph = paragraph.strip("\n")
        while len(paragraph) > 4 * LONG:
            parts.append(paragraph[: 4 * LONG])
            paragraph = paragraph[4 * LONG :]
        if parts and len(parts[-1]) + len(paragraph) < LONG:
            parts[-1] = f"{parts[-1]}\n\n{paragraph}"
        elif paragraph.strip():
            parts.append(paragraph)
    return parts
