"""What a line that begins with a slash does."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.cli.chat.conversation import Conversation, readable
from coterie.cli.chat.screen import Screen
from coterie.cli.chat.terminal import short
from coterie.cli.client import Client
from coterie.core.agent import label_key


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    what: str
    run: Callable[[Commands, str], Awaitable[None]]


class Leave(Exception):
    """The person wants to go."""


class Commands:
    """The slash commands of one chat, and what can stand behind them."""

    def __init__(self, client: Client, conversation: Conversation, screen: Screen) -> None:
        self._client = client
        self._conversation = conversation
        self._screen = screen
        self.agent_ids: list[str] = []
        self.models: list[str] = []

    async def learn(self) -> None:
        """What can be completed behind /agent and /model."""
        agents = await self._agents()
        self.agent_ids = [agent["id"] for agent in agents]
        known = {agent["model"] for agent in agents if agent["model"]} | {self._conversation.model}
        self.models = sorted(known | {"offline/demo"} | set(await self._model_names()))

    async def run(self, line: str) -> None:
        """A line that begins with a slash."""
        name, _, rest = line[1:].partition(" ")
        command = TABLE.get(name.strip().lower())
        if command is None:
            near = difflib.get_close_matches(name.lower(), TABLE, n=1, cutoff=0.5)
            hint = f"Did you mean /{near[0]}?" if near else "/help shows what there is."
            await self._screen.note(
                f"There is no command /{short(name, 40)}. {hint} A message that begins with / is written with //."
            )
            return
        await command.run(self, rest.strip())

    async def agent(self, agent_id: str) -> None:
        if not agent_id:
            c = self._conversation
            model = f"{c.model} (of this session)" if c.model_is_override else c.model
            await self._screen.lines(f"{c.agent_name} ({c.agent_id}), {model}, session {c.key}")
            return
        former = self._conversation.agent_id
        await self._conversation.hand_over(await self._named(agent_id))
        if self._conversation.agent_id == former:
            await self._screen.note(f"{self._conversation.agent_name} is with you already")

    async def agents(self, _: str) -> None:
        lines = []
        for agent in await self._agents():
            mark = "*" if agent["id"] == self._conversation.agent_id else " "
            name = " ".join(filter(None, (agent["emoji"], agent["label"])))
            about = f": {agent['description']}" if agent["description"] else ""
            shown = name if agent["label"] == agent["id"] else f"{name} ({agent['id']})"
            lines.append(f"{mark} {shown}{about}")
        await self._screen.lines("\n".join(lines), "    ")
        if len(lines) == 1:
            await self._screen.note("`coterie agent add NAME` brings another one into the house.")

    async def model(self, name: str) -> None:
        if not name:
            c = self._conversation
            whose = "of this session" if c.model_is_override else f"of {c.agent_name}"
            await self._screen.lines(f"{c.model} ({whose})")
            return
        await self._conversation.set_model("" if name == "default" else name)
        await self._screen.note(f"the model is {self._conversation.model} now{await self._doubt()}")

    async def list_models(self, _: str) -> None:
        names = await self._model_names()
        lines = [("* " if n == self._conversation.model else "  ") + n for n in names]
        await self._screen.lines("\n".join(lines))
        await self._screen.note("/model takes any <provider>/<model>, also one that is not listed.")

    async def new(self, _: str) -> None:
        fresh = await self._conversation.renew()
        await self._screen.note("a new conversation" if fresh else "this conversation is new already")

    async def queue(self, _: str) -> None:
        if not self._conversation.exists:
            await self._screen.lines("steer-backlog: nothing waits")
            return
        found = await self._client.call("chat.queue", session=self._conversation.key)
        lines = [
            f"{entry['state']}: {short(readable(entry['text'] or self._conversation.task(entry['run_id'])), 100)}"
            for entry in found["entries"]
        ]
        await self._screen.lines(
            "\n".join([f"{found['mode']}:", *lines] if lines else [f"{found['mode']}: nothing waits"])
        )

    async def stop(self, _: str) -> None:
        if await self._conversation.stop() == "idle":
            await self._screen.note("nothing runs")

    async def retry(self, _: str) -> None:
        await self._conversation.retry()

    async def help(self, _: str) -> None:
        width = max(len(command.usage) for command in TABLE.values())
        seen = dict.fromkeys(TABLE.values())
        lines = [f"{command.usage:<{width}}  {command.what}" for command in seen]
        new_line = "Alt-Enter begins a new line" if self._screen.terminal.escapes else "\\ at the end goes on"
        keys = f"Enter sends, {new_line}, Ctrl-C stops the reply, Ctrl-D leaves."
        await self._screen.lines("\n".join(lines), "    ")
        await self._screen.note(f"{keys} What you send while a reply comes in is taken up at its next step.")

    async def quit(self, _: str) -> None:
        raise Leave

    async def _doubt(self) -> str:
        """What is known to be missing before the model can answer."""
        name = self._conversation.model
        found = await self._client.call("models.list", all=True)
        provider = next((p for p in found["providers"] if p["name"] == name.partition("/")[0]), None)
        if provider is not None and not provider["has_key"]:
            return (
                f"; it needs {' or '.join(provider['key_names'])} in the environment where the gateway runs"
            )
        listed = [m["name"] for m in found["models"] if m["provider"] == name.partition("/")[0]]
        if listed and name not in listed:
            return "; it is not among the known ones, so whether it answers will be seen"
        return ""

    async def _agents(self) -> list[dict[str, Any]]:
        """Those that are shown: a hidden one is a template, or answers where it is named by its id."""
        found = (await self._client.call("agents.list"))["agents"]
        return [agent for agent in found if agent["state"] == "active" and agent["ui_visible"]]

    async def _named(self, name: str) -> str:
        """The id of whoever has it, else this label."""
        agents = await self._agents()
        if any(agent["id"] == name for agent in agents):
            return name
        labels = {label_key(agent["label"]): agent["id"] for agent in agents}
        return str(labels.get(label_key(name), name))

    async def _model_names(self) -> list[str]:
        found = await self._client.call("models.list")
        return [str(model["name"]) for model in found["models"] if model["available"]]


_LIST = (
    (
        "agent",
        Command(
            "/agent [name]", "who answers here; with an id or a label, hand over to that one", Commands.agent
        ),
    ),
    ("agents", Command("/agents", "who lives here", Commands.agents)),
    ("model", Command("/model [p/m]", "the model here; `default` takes a choice back", Commands.model)),
    ("models", Command("/models", "models to choose from", Commands.list_models)),
    ("new", Command("/new", "start afresh; what was said is kept", Commands.new)),
    ("queue", Command("/queue", "what runs and what waits", Commands.queue)),
    ("stop", Command("/stop", "stop the reply", Commands.stop)),
    ("retry", Command("/retry", "have the last message answered after an error", Commands.retry)),
    ("help", Command("/help", "this list", Commands.help)),
    ("quit", Command("/quit", "leave", Commands.quit)),
    ("exit", Command("/quit", "leave", Commands.quit)),
)
TABLE: Mapping[str, Command] = dict(_LIST)
