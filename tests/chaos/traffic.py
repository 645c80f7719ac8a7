"""The senders: people who talk over RPC or /v1, repeat what was not acknowledged, and never wait politely."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from random import Random
from typing import Any

import httpx

from tests.chaos.house import AGAIN, AGENTS, STUCK, House
from tests.chaos.line import Lost
from tests.chaos.world import Said, World
from tests.support.gateway import RpcError

OPEN_AT_ONCE = 4
"""Unanswered messages after which a sender waits."""
LIFETIME = 20
"""Messages of one session; then its sender begins another, so that transcripts stay short over long runs."""
GIVES_UP = 0.15
PLACES = ("main:thread:", "dm:", "telegram:dm:", "telegram:group:")
"""The owner's conversations, and those of people outside."""


class Crowd:
    """As many senders as asked for, as long as it is open."""

    def __init__(self, house: House, seed: int, sessions: int, *, trouble: bool = False) -> None:
        self.house = house
        self.world = house.world
        self.closing = False
        self._seed = seed
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        over_http = max(1, sessions // 6)
        for _ in range(sessions - over_http - 1):
            self._keep(self._talkers())
        for _ in range(over_http):
            self._keep(self._callers())
        self._keep(self._clearers())
        if trouble:
            self._keep(self._stuck())

    async def close(self) -> None:
        """Nobody begins anything new; what was begun is sent until it is acknowledged."""
        self.closing = True
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks)
            for task in done:
                task.result()
            self._tasks -= done

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raise what a sender raised."""
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    def fork(self, session_id: str) -> None:
        """Somebody goes on in a copy for a few messages."""
        self.world.forks += 1
        label, random = self._next("f")
        self.world.sessions[label] = session_id
        self._keep(Talker(self, label, session_id, random).talk(random.randint(1, 4)))

    def _next(self, kind: str) -> tuple[str, Random]:
        self._count += 1
        label = f"{kind}{self._count}"
        return label, Random(f"{self._seed} {label}")

    def _keep(self, work: Any) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _talkers(self) -> None:
        while not self.closing:
            label, random = self._next("s")
            key = f"agent:{random.choice(AGENTS)}:{random.choice(PLACES)}{label}"
            self.world.sessions[label] = key
            await Talker(self, label, key, random).talk(LIFETIME)

    async def _callers(self) -> None:
        while not self.closing:
            label, random = self._next("u")
            agent = random.choice(AGENTS)
            self.world.sessions[label] = f"agent:{agent}:api:{label}"
            await Caller(self.house, label, agent, random).talk(self, LIFETIME // 2)

    async def _clearers(self) -> None:
        while not self.closing:
            label, random = self._next("x")
            key = f"agent:{random.choice(AGENTS)}:{random.choice(PLACES)}{label}"
            await Clearer(self, label, key, random).talk(LIFETIME)

    async def _stuck(self) -> None:
        while not self.closing:
            label, random = self._next("h")
            key = f"agent:{random.choice(AGENTS)}:main:thread:{label}"
            await Stuck(self, label, key, random).talk(LIFETIME)


class Talker:
    """One session over RPC: bursts, tasks, interruptions, hand-overs, copies."""

    def __init__(self, crowd: Crowd, label: str, session: str, random: Random) -> None:
        self._crowd = crowd
        self._house = crowd.house
        self._world: World = crowd.world
        self._label = label
        self._session = session
        self._random = random
        self._open: list[str] = []
        self._number = 0
        self._seen_life = -1

    async def talk(self, messages: int) -> None:
        while self._number < messages and not self._crowd.closing:
            await self._patience()
            await self._act()
            await asyncio.sleep(self._random.uniform(0, 0.3))

    async def _act(self) -> None:
        choice = self._random.random()
        if choice < 0.40:
            await self._say(self._delay())
        elif choice < 0.55:
            for _ in range(3):
                await self._say("")
        elif choice < 0.90:
            await self._task()
            for _ in range(self._random.randint(0, 2)):
                await asyncio.sleep(self._random.uniform(0, 0.2))
                # What interrupts a task is at times a task itself.
                await (self._task() if self._random.random() < 0.2 else self._say(self._delay()))
        elif choice < 0.95:
            self._world.switched.add(self._label)
            await self._change("sessions.set_agent", agent_id=self._random.choice(AGENTS))
        elif self._number:
            made = await self._change("sessions.fork")
            if made is not None:
                self._crowd.fork(made["id"])

    async def _task(self) -> None:
        rounds = self._random.randint(1, 4)
        first = f' CALL {AGAIN} {{"ms": 30}}' if self._random.random() < 0.4 else ""
        await self._say(f"TOOLS {rounds} {self._delay()}{first}", rounds)

    def _delay(self) -> str:
        return f"DELAY {self._random.choice((20, 60, 120, 250))}" if self._random.random() < 0.6 else ""

    async def _say(self, directives: str, rounds: int = 0) -> Said:
        """Send until it is acknowledged, always under the same key; now and then give up when the line breaks."""
        self._number += 1
        said = self._world.say(self._label, self._number, directives, rounds)
        key = uuid.UUID(int=self._random.getrandbits(128)).hex
        while True:
            line = await self._house.line(self._label)
            said.sent = said.sent or time.time()
            try:
                receipt = await line.call(
                    "chat.send", session=self._session, message=said.text, idempotency_key=key
                )
            except Lost:
                if self._random.random() < GIVES_UP:
                    said.abandoned = True
                    return said
                self._world.repeats += 1
                await asyncio.sleep(0.005)
                continue
            except RpcError as error:
                self._world.surprises.append(f"chat.send {said.tag}: {error}")
                said.abandoned = True
                return said
            await self._world.acknowledge(said, receipt["run_id"], time.time())
            self._open.append(receipt["run_id"])
            return said

    async def _change(self, method: str, **params: Any) -> dict[str, Any] | None:
        """A change of the session itself; one that got lost is not repeated."""
        line = await self._house.line(self._label)
        try:
            return await line.call(method, session=self._session, **params)
        except Lost:
            return None
        except RpcError as error:
            # A session whose first message got lost was never made.
            if error.code != "NOT_FOUND":
                self._world.surprises.append(f"{method} {self._label}: {error}")
            return None

    async def _patience(self) -> None:
        while not self._crowd.closing:
            life = await self._house.up()
            if life != self._seen_life and self._open:
                queue = await self._change("chat.queue")
                if queue is None:
                    continue
                left = {entry["run_id"] for entry in queue["entries"]}
                self._open = [run_id for run_id in self._open if run_id in left]
            self._seen_life = life
            self._open = [run_id for run_id in self._open if run_id not in self._world.ended]
            if len(self._open) < OPEN_AT_ONCE:
                return
            await asyncio.sleep(0.02)


class Clearer(Talker):
    """Says things and wipes them. Nothing here is counted, but no request may be refused."""

    async def _act(self) -> None:
        if self._random.random() < 0.3:
            self._world.clears += 1
            self._open.clear()
            await self._change("sessions.clear")
            return
        await self._say(f'{self._delay()} CALL {AGAIN} {{"ms": 30}}', 1)


class Stuck(Talker):
    """Calls tools that never come back, and gives them up; remembers and asks where the embeddings hang, too. Nothing here
    is counted, but no request may be refused."""

    async def talk(self, messages: int) -> None:
        """At its end nothing is left: what still hangs is stopped."""
        await super().talk(messages)
        while self._number and await self._change("sessions.clear") is None:
            line = await self._house.line(self._label)
            try:
                await line.call("sessions.get", session=self._session)
            except Lost:
                continue
            except RpcError:
                return  # none of its messages arrived
            await asyncio.sleep(0.02)

    async def _act(self) -> None:
        said = await self._say(f"CALL {STUCK} {{}}", 1)
        await self._ask("memory.remember", content=f"The boat of {said.tag} lies at pier {self._number}.")
        await self._ask("memory.recall", query="where does the boat lie")
        if said.run_id is not None:
            await self._ask("chat.abort", run_id=said.run_id)

    async def _ask(self, method: str, **params: Any) -> None:
        line = await self._house.line(self._label)
        try:
            await line.call(method, **params)
        except Lost:
            pass
        except RpcError as error:
            self._world.surprises.append(f"{method} {self._label}: {error}")


class Caller:
    """One user of /v1, streaming or not, who asks again like an SDK until there is an answer."""

    def __init__(self, house: House, label: str, agent: str, random: Random) -> None:
        self._house = house
        self._world = house.world
        self._label = label
        self._agent = agent
        self._random = random

    async def talk(self, crowd: Crowd, messages: int) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            for number in range(1, messages + 1):
                if crowd.closing:
                    return
                await self._ask(client, number)
                await asyncio.sleep(self._random.uniform(0, 0.2))

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        rounds = self._random.choice((0, 0, 2))
        directives = f"{f'TOOLS {rounds} ' if rounds else ''}DELAY {self._random.choice((20, 100))}"
        said = self._world.say(self._label, number, directives, rounds)
        stream = self._random.random() < 0.6
        body = {
            "model": f"coterie/{self._agent}",
            "user": self._label,
            "stream": stream,
            "messages": [{"role": "user", "content": said.text}],
        }
        with_key = self._random.random() < 0.5
        key = uuid.UUID(int=self._random.getrandbits(128)).hex
        tries = 0
        while True:
            await self._house.up()
            headers = {"Authorization": f"Bearer {self._house.token}"}
            headers |= {"Idempotency-Key": key} if with_key else {"x-stainless-retry-count": str(tries)}
            said.sent = said.sent or time.time()
            try:
                answer = await (self._streamed if stream else self._whole)(client, headers, body, said)
            except (httpx.TransportError, OSError):
                tries += 1
                self._world.repeats += 1
                await asyncio.sleep(0.005)
                continue
            if f"[t:{said.tag}]" not in answer:
                said.wrong_answer = answer
            return

    async def _whole(
        self, client: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any], said: Said
    ) -> str:
        response = await client.post(f"{self._house.url}/v1/chat/completions", headers=headers, json=body)
        if response.status_code != 200:
            return f"{response.status_code} {response.text[:200]}"
        found = response.json()
        await self._world.acknowledge(said, found["id"].removeprefix("chatcmpl-"), time.time())
        return str(found["choices"][0]["message"]["content"])

    async def _streamed(
        self, client: httpx.AsyncClient, headers: dict[str, str], body: dict[str, Any], said: Said
    ) -> str:
        text = ""
        url = f"{self._house.url}/v1/chat/completions"
        async with client.stream("POST", url, headers=headers, json=body) as response:
            if response.status_code != 200:
                return f"{response.status_code} {(await response.aread()).decode()[:200]}"
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return f"error in the stream: {chunk['error']['message']}"
                if said.run_id is None:
                    await self._world.acknowledge(said, chunk["id"].removeprefix("chatcmpl-"), time.time())
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
        return text
