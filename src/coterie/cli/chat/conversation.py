"""One session as a person follows it: what is said, what comes back, and what to do after a gap."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from coterie.cli.chat.terminal import short
from coterie.cli.client import BACK, Client, Event, change
from coterie.core.agent import DEFAULT_ALIAS
from coterie.core.errors import InvalidRequest, NotFound
from coterie.core.session import parse_key

EARLIER = 6
"""Messages of the past that are shown."""
SUMMARY = 300
"""Characters of a result that tell that there is one."""
_FINISH = re.compile(r"\[@agent:([^\n#]{1,200})#[a-z0-9-]{1,64}\] finish")
TASK = 60
"""Characters by which a message is called to mind."""


class View(Protocol):
    """Who shows it."""

    async def asked(self, text: str, *, who: str | None = None, elsewhere: bool = False) -> None: ...
    async def earlier(self, who: str | None, text: str) -> None: ...
    async def begins(self, name: str) -> None: ...
    async def thinks(self, text: str) -> None: ...
    async def says(self, text: str) -> None: ...
    async def tool_starts(self, call_id: str, name: str, arguments: str) -> None: ...
    async def tool_ends(
        self, call_id: str, name: str, *, ok: bool, milliseconds: int, result: str
    ) -> None: ...
    async def starts_over(self) -> None: ...
    async def ends(self) -> None: ...
    async def note(self, text: str) -> None: ...
    async def error(self, text: str) -> None: ...


class Unseen:
    """A view that shows nothing: only the outcome counts."""

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> None:
            pass

        return nothing


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line asked for."""

    agent: str | None = None
    session: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended."""

    state: Literal["final", "aborted", "error"]
    text: str
    """The answer, or why there is none."""


@dataclass(slots=True)
class Run:
    """A turn that has not ended."""

    id: str
    task: str | None = None
    """The message that it answers, where we know it."""
    ours: bool = False
    """This client sent the message."""
    interrupted: bool = False
    seq: int = 0
    attempt: int = 1
    streamed: str = ""
    """Of the reply that is coming in."""
    begun: bool = False
    """Something of that reply was shown, thoughts included."""
    ended: asyncio.Future[Outcome] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Conversation:
    def __init__(self, client: Client, view: View) -> None:
        self._client = client
        self._view = view
        self.key = ""
        self.name: str | None = None
        self.exists = False
        """Something was said in it before; a key alone makes a session with its first message."""
        self.agent_id = ""
        self.agent_name = ""
        self.model = ""
        self.model_is_override = False
        self._shown_agent = ""
        """Who the person knows to be here."""
        self._runs: dict[str, Run] = {}
        self._active: str | None = None
        """The turn that runs now."""
        self._sending = 0
        self._sent = asyncio.Event()
        self._sent.set()
        self._gaps = 0
        """How often events may have been missed."""
        self.after_error = ""
        """What a person can do when a turn ended without an answer."""
        self._next: str | None = None
        """The session that an agent takes the person to, once this one is quiet."""

    @classmethod
    async def begin(cls, client: Client, view: View, choice: Choice) -> Conversation:
        """The session that was asked for, else the main one of the agent, else that of the default agent."""
        conversation = cls(client, view)
        await conversation._choose(choice)
        conversation._shown_agent = conversation.agent_id
        return conversation

    @property
    def busy(self) -> bool:
        """Something of this session is under way, as far as we know."""
        return self._active is not None or self._sending > 0 or any(run.ours for run in self._runs.values())

    @property
    def label(self) -> str:
        """The session in few letters: its name, else its key without what is clear anyway."""
        return self.name or self.key.removeprefix("agent:").removeprefix(f"{self.agent_id}:")

    def task(self, run_id: str) -> str:
        """What a run is about, in the words that began it."""
        run = self._runs.get(run_id)
        return run.task if run is not None and run.task else "a message"

    async def _choose(self, choice: Choice) -> None:
        agent: str | None = None
        if choice.agent is not None:
            agent = (await self._client.call("agents.get", agent_id=choice.agent))["id"]
        if choice.session is not None:
            await self._open(choice.session)
            if agent is not None and agent != self.agent_id:
                raise InvalidRequest(
                    f"the session {self.key} is with {self.agent_id}, not {agent}; "
                    f"open it without --agent, and `/agent {agent}` hands it over"
                )
        else:
            agent = agent or (await self._client.call("agents.list"))["default_id"]
            await self._open(f"agent:{agent}:main")
        if choice.model is not None:
            await self.set_model(choice.model)

    async def _open(self, ref: str) -> None:
        try:
            await self._take(await self._client.call("sessions.get", session=ref))
        except NotFound:
            if not ref.startswith("agent:"):
                raise
            self.key = await self._spelled(ref)
            self.exists, self.name = False, None
            await self._take_agent(self.key.split(":")[1], None)
        # A gateway tells of the sessions that somebody looks at, also of one that another client is about to begin.
        await self._history(limit=1)

    async def _spelled(self, key: str) -> str:
        """A key as the session will have it."""
        agent, _, canonical = parse_key(key)
        if agent != DEFAULT_ALIAS:
            return canonical
        default = (await self._client.call("agents.list"))["default_id"]
        return f"agent:{default}{canonical.removeprefix(f'agent:{DEFAULT_ALIAS}')}"

    async def _take(self, session: dict[str, Any]) -> None:
        self.key, self.name, self.exists = session["key"], session["name"], True
        await self._take_agent(session["agent_id"], session["model"])

    async def _take_agent(self, agent_id: str, override: str | None) -> None:
        agent = await self._client.call("agents.get", agent_id=agent_id)
        self.agent_id = agent["id"]
        self.agent_name = " ".join(filter(None, (agent["identity"].get("emoji"), agent["label"])))
        effective = agent.get("effective") or {}
        self.model = override or effective.get("model") or "no model"
        self.model_is_override = bool(override)

    # What a person does

    async def ask(self, text: str) -> Run:
        """Say something. It is on disk when this returns."""
        return await self._send(text, "chat.send", message=text)

    async def retry(self) -> Run:
        """Have the last message answered after all."""
        return await self._send("the last message, once more", "chat.retry")

    async def _send(self, text: str, method: str, **params: str) -> Run:
        self._sending += 1
        self._sent.clear()
        gaps = self._gaps
        try:
            sent = await change(self._client, method, session=self.key, **params)
        finally:
            self._sending -= 1
            if not self._sending:
                self._sent.set()
        self.exists = True
        run = self._run(sent["run_id"])
        run.task, run.ours = text, True
        if sent["status"] != "started" and run.seq < 2 and gaps == self._gaps:
            how = "the running turn makes room for it" if sent["status"] == "steering" else "its turn comes"
            await self._view.note(f"queued: {short(text, TASK)} ({how})")
        if gaps != self._gaps:
            await self.catch_up()  # it may have been answered before we knew its run
        return run

    async def stop(self) -> str:
        """Stop what runs. Says in a word what came of it."""
        if not self.exists:
            return "idle"
        return str((await change(self._client, "chat.abort", session=self.key))["state"])

    async def hand_over(self, agent_id: str) -> None:
        if not self.exists:  # nothing was said that could be handed over
            agent = await self._client.call("agents.get", agent_id=agent_id)
            await self._open(f"agent:{agent['id']}:main")
        else:
            changed = await change(self._client, "sessions.set_agent", session=self.key, agent_id=agent_id)
            await self._take(changed)
        await self._introduce()

    async def set_model(self, model: str) -> None:
        if not self.exists:  # only a session that exists can be changed
            await self._take(await change(self._client, "sessions.create", agent_id=self.agent_id))
        await self._take(await change(self._client, "sessions.patch", session=self.key, model=model))

    async def renew(self) -> bool:
        """Start afresh. False where nothing was said yet."""
        if not self.exists:
            return False
        await self._take(await change(self._client, "sessions.renew", session=self.key))
        self._runs.clear()
        self._active = None
        return True

    # What happens

    async def show_past(self) -> None:
        """The last few messages, and the turn that is under way."""
        page = await self._history(limit=40)
        if page is None:
            return
        past = [message for message in page["messages"] if _is_shown(message)]
        for message in past[-EARLIER:]:
            if message["role"] == "system":
                await self._view.note(told(message))
            elif message["seq"] is None:
                await self._view.note(f"queued: {short(message['text'], TASK)}")
            else:
                await self._view.earlier(_other(message), message["text"])
        if page["running"] is not None:
            await self._join(page["running"])

    async def _join(self, live: dict[str, Any]) -> None:
        """Take up a turn in the middle."""
        run = self._run(live["run_id"])
        self._active = run.id
        run.seq, run.attempt, run.streamed = live["seq"], live["attempt"], live["text"]
        run.begun = bool(live["text"] or live["thinking"])
        run.task = run.task or (await self._task_of(run.id))[0]
        await self._view.note("a reply is under way")
        await self._view.begins(self.agent_name)
        for tool in live["tools"]:
            if tool["state"] == "running":
                await self._view.tool_starts(tool["id"], tool["name"], "")
        if live["thinking"]:
            await self._view.thinks(live["thinking"])
        if live["text"]:
            await self._view.says(live["text"])

    async def follow(self) -> None:
        """Show what happens, for ever."""
        noticing = asyncio.create_task(self._notice_losses())
        try:
            while True:
                await self.handle(await self._client.next_event())
                if self._next is not None and not self.busy:
                    await self._move(self._next)
        finally:
            noticing.cancel()

    async def _notice_losses(self) -> None:
        while True:
            await self._client.lost()
            self._gaps += 1
            await self._view.note("the gateway went away; waiting for it to come back")

    async def _move(self, key: str) -> None:
        """Where an agent took the person."""
        self._next = None
        self._runs.clear()
        self._active = None
        await self._open(key)
        self._shown_agent = self.agent_id
        await self._view.note(f"you are with {self.agent_name} now")
        await self.show_past()

    async def handle(self, event: Event) -> None:
        payload = event.payload
        if event.name == "chat" and payload["session"] == self.key:
            await self._chat(payload)
        elif event.name == "session.changed" and payload.get("key") == self.key:
            if payload.get("change") not in ("message", "ended"):  # what was said comes as chat events
                await self._changed(payload)
        elif event.name == "agents.changed" and payload.get("agent_id") in (None, self.agent_id):
            await self._refresh()
        elif event.name == "session.switched" and payload["from"] == self.key:
            self._next = payload["to"]
        elif event.name == BACK:
            self._gaps += 1
            await self._view.note("the gateway is back")
            await self.catch_up()

    async def _chat(self, payload: dict[str, Any]) -> None:
        await self._sent.wait()  # so that we know our own runs from those of other clients
        state = payload["state"]
        run = self._runs.get(payload["run_id"])
        if run is None:
            if state not in ("queued", "started"):
                return  # ended already, or begun before we came
            run = self._run(payload["run_id"])
        if payload["seq"] <= run.seq:
            return
        run.seq = payload["seq"]
        if payload["attempt"] > run.attempt:
            if run.begun:
                await self._view.starts_over()
            run.attempt, run.streamed, run.begun = payload["attempt"], "", False
        match state:
            case "started":
                await self._started(run)
            case "delta":
                run.streamed += payload["text"]
                run.begun = True
                await self._view.says(payload["text"])
            case "thinking":
                run.begun = True
                await self._view.thinks(payload["text"])
            case "tool_start":
                run.streamed, run.begun = "", False
                await self._view.tool_starts(payload["call_id"], payload["name"], payload["arguments"])
            case "tool_end":
                await self._view.tool_ends(
                    payload["call_id"],
                    payload["name"],
                    ok=payload["ok"],
                    milliseconds=payload["duration_ms"],
                    result=payload["result"],
                )
            case "steered":
                await self._steered(run)
            case "final":
                await self._end(run, Outcome("final", payload["text"]))
                if fallback := payload.get("fallback"):
                    reason = short(fallback["reason"].rstrip("."), 200)
                    await self._view.note(f"{fallback['model']} answered this: {reason}")
            case "aborted":
                await self._end(run, Outcome("aborted", payload.get("reason") or ""))
            case "error":
                await self._end(run, Outcome("error", payload["message"]))

    async def _started(self, run: Run) -> None:
        again = run.interrupted or self._active == run.id
        run.interrupted = False
        run.streamed, run.begun = "", False
        self._active = run.id
        if run.task is None:
            run.task, who = await self._task_of(run.id)
            if run.task is not None and not again:
                await self._view.asked(run.task, who=who, elsewhere=who is None)
            elif run.task is None:
                for line in await self._reasons(run.id):
                    await self._view.note(line)
        if again and run.task:
            await self._view.note(f"goes on: {short(run.task, TASK)}")
        await self._view.begins(self.agent_name)

    async def _steered(self, run: Run) -> None:
        run.interrupted = True
        run.streamed = ""
        self._active = None
        await self._view.ends()
        task = short(run.task, TASK) if run.task else "the task"
        await self._view.note(f"interrupted: {task} (goes on afterwards)")

    async def _end(self, run: Run, outcome: Outcome) -> None:
        self._runs.pop(run.id, None)
        was_active = self._active == run.id
        if was_active:
            self._active = None
        if outcome.state == "final":
            missing = outcome.text.removeprefix(run.streamed)
            if missing == outcome.text and run.streamed:
                await self._view.starts_over()
            if missing:
                await self._view.says(missing)
            await self._view.ends()
        elif outcome.state == "aborted":
            if was_active:
                await self._view.ends()
            task = f": {short(run.task, TASK)}" if run.task else ""
            await self._view.note(f"taken back{task}" if outcome.text == "cancelled" else f"stopped{task}")
        else:
            if was_active:
                await self._view.ends()
            await self._view.error(outcome.text)
            if self.after_error:
                await self._view.note(self.after_error)
        if not run.ended.done():
            run.ended.set_result(outcome)

    async def catch_up(self) -> None:
        """After a gap: end what ended meanwhile, and take up what runs."""
        await self._refresh()
        page = await self._history(limit=100)
        if page is None:
            return
        queue = await self._client.call("chat.queue", session=self.key)
        unfinished = {entry["run_id"] for entry in queue["entries"]}
        for run in [run for run in self._runs.values() if run.id not in unfinished]:
            await self._end(run, _outcome(run.id, page["messages"]))
        live = page["running"]
        if live is None or live["run_id"] not in unfinished:
            self._active = None
            return
        run = self._run(live["run_id"])
        if self._active != run.id:
            await self._join(live)
        elif live["text"].startswith(run.streamed):
            missing = live["text"][len(run.streamed) :]
            run.streamed = live["text"]
            if missing:
                await self._view.says(missing)
        else:
            await self._view.starts_over()
            run.streamed = live["text"]
            await self._view.says(live["text"])
        run.seq, run.attempt = live["seq"], live["attempt"]

    async def _changed(self, payload: dict[str, Any]) -> None:
        if payload.get("deleted"):
            self.exists = False
            await self._view.note("this session was deleted; what you say next begins a new one")
            return
        await self._refresh()
        await self._introduce()

    async def _introduce(self) -> None:
        """Say once that another agent is here."""
        if self.agent_id != self._shown_agent:
            self._shown_agent = self.agent_id
            await self._view.note(f"{self.agent_name} takes over")

    async def _refresh(self) -> None:
        try:
            await self._take(await self._client.call("sessions.get", session=self.key))
        except NotFound:
            self.exists = False
            await self._take_agent(self.agent_id, None)

    async def _history(self, limit: int) -> dict[str, Any] | None:
        try:
            return await self._client.call("chat.history", session=self.key, limit=limit)
        except NotFound:
            return None

    async def _task_of(self, run_id: str) -> tuple[str | None, str | None]:
        """What another client asked, and who, where that is not the person themself."""
        page = await self._history(limit=20)
        for message in reversed(page["messages"] if page else []):
            if (
                message.get("run_id") == run_id
                and message["role"] == "user"
                and message["origin"] != "system"
            ):
                return str(message["text"]), _other(message)
        return None, None

    async def _reasons(self, run_id: str) -> list[str]:
        """Who finished something, where a turn answers for that and for nobody's message."""
        page = await self._history(limit=20)
        before = [m for m in (page["messages"] if page else []) if m.get("run_id") != run_id]
        lines: list[str] = []
        while before and "announce" in (before[-1].get("meta") or {}):
            lines.insert(0, told(before.pop()))
        return lines

    def _run(self, run_id: str) -> Run:
        return self._runs.setdefault(run_id, Run(run_id))


def _is_shown(message: dict[str, Any]) -> bool:
    """People's and agents' words and who took over; not tool results, nor notes of the engine to itself."""
    if message["role"] == "system":
        return bool(message["text"])
    return bool(message["text"].strip()) and (
        message["role"] == "assistant" or (message["role"] == "user" and message["origin"] != "system")
    )


def told(message: dict[str, Any]) -> str:
    """A line of the engine as a person would put it; the transcript keeps it to the letter."""
    announced = (message.get("meta") or {}).get("announce")
    return readable(message["text"], announced["result"] if announced else None)


def readable(text: str, result: dict[str, Any] | None = None) -> str:
    """`[@agent:Rose#rose] finish` in words, with what came of it where that is known."""
    line = _FINISH.fullmatch(text)
    if line is None:
        return text
    status, summary = (result["status"], short(result["summary"], SUMMARY)) if result else ("ok", "")
    said = {
        "ok": "has finished",
        "cancelled": "was stopped",
        "timeout": "did not finish in time",
    }.get(status, "could not finish")
    return f"{line[1]} {said}" + (f": {summary}" if summary and status in ("ok", "error") else "")


def _other(message: dict[str, Any]) -> str | None:
    """Who said something that the person at this terminal did not."""
    speaker = str(message["speaker"])
    if speaker == "assistant":
        return message["agent_id"] or "a purged agent"
    return None if speaker == "user" else speaker


def _outcome(run_id: str, messages: list[dict[str, Any]]) -> Outcome:
    """How a turn ended, from what it left in the transcript."""
    for message in reversed(messages):
        if message.get("run_id") != run_id:
            continue
        meta = message.get("meta") or {}
        if "error" in meta:
            return Outcome("error", str(meta["error"]))
        if meta.get("aborted") or meta.get("cancelled"):
            break
        if message["role"] == "assistant" and not message.get("tool_calls"):
            return Outcome("final", message["text"])
    return Outcome("aborted", "")
