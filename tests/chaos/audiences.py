"""Looks for leaks between audiences: random questions by every door, and whether anybody hears what is not for them.

    python -m tests.chaos.audiences --questions 10000

Every text carries a mark. Of each mark it is written down whose it is and who heard it, and every request that the model
server gets is held against that, whole: what stands in it is what a model could say aloud.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import httpx

from tests.chaos import leaks
from tests.support.gateway import GatewayProcess, Rpc, RpcError, coterie
from tests.support.mock import FENCED, Exchange, ModelServer, model_server

OWNER = "owner"
ONCE = "one-off"
"""A single request that names nobody. Each is an audience of its own: `one-off 17`."""


# The rule, said once more, apart from the program


@dataclass(frozen=True, slots=True)
class Member:
    """An agent: whose memories it reads, and what it gives to people outside."""

    reads: tuple[str, ...] | None
    """None: everybody's."""
    shares: bool
    """What is the owner's, with everybody."""
    tools: tuple[str, ...] = ("memory_remember", "memory_recall", "system_time", "results_read")


HOUSE = {
    "main": Member(None, False),
    "ada": Member(None, True, ("*",)),
    "bea": Member((), False, ("*",)),
    "cleo": Member((), True),
    "dora": Member(("ada", "main"), False, ("*",)),
    "edna": Member(("bea", "dora"), True, ("memory_*", "subagents_spawn")),
}


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody, or a room, and how their keys are spelled behind the agent."""

    audience: str
    rights: str = "guest"
    tails: tuple[str, ...] = ()
    sender: tuple[str, str, bool] | None = None
    """Channel, peer and whether that is a room, as a channel says it."""
    user: str | None = None
    """As an API client says it."""


def _dm(peer: str, *tails: str) -> Person:
    return Person(f"dm:{peer}", tails=(f"dm:{peer}", f"direct:{peer}", *tails))


def _on(channel: str, peer: str, *, room: bool = False) -> Person:
    tail = f"{channel}:{'group' if room else 'dm'}:{peer}"
    return Person(tail, tails=(tail,), sender=(channel, peer, room))


def _api(user: str) -> Person:
    encoded = user.replace("%", "%25").replace(":", "%3A")
    return Person(f"api:{encoded}", "api", (f"api:{encoded}",), user=user)


OWNERS = (
    Person(OWNER, "owner", ("main",)),
    Person(OWNER, "owner", ("telegram:dm:me",), ("telegram", "me", False)),
)
OUTSIDE = (
    _dm("bob", "dm:b%6Fb"),
    _dm("Bob"),
    _dm("BOB"),
    _dm("anna"),
    _dm("owner"),
    _dm("main"),
    _dm("me"),
    _dm("outside0"),
    _dm("bøb", "dm:b%C3%B8b"),
    _dm("100%25"),
    _dm("bob%3Athread%3A1"),
    _dm("agent%3Amain%3Amain"),
    _on("telegram", "bob"),
    _on("telegram", "anna"),
    _on("matrix", "bob"),
    _on("matrix", "Bob"),
    _on("matrix", "me"),
    _on("api", "bob"),
    _on("once", "bob"),
    _on("telegram", "bob", room=True),
    _on("telegram", "room", room=True),
    _on("matrix", "room", room=True),
    _on("once", "room", room=True),
    _on("owner", "room", room=True),
    _api("bob"),
    _api("alice"),
    _api("owner"),
    _api("once"),
    _api("dm:bob"),
    _api("agent:main:main"),
    _api("telegram:group:room"),
)
NOBODY = Person(ONCE, "api")
PEOPLE = (*OWNERS, *OUTSIDE, NOBODY)
AUDIENCES = (OWNER, *(person.audience for person in OUTSIDE), ONCE)


@dataclass(frozen=True, slots=True)
class Mark:
    kind: str
    """said, memory or file."""
    agents: frozenset[str]
    """Who said it or was told; of a memory, its owner."""
    audience: str
    private: bool
    words: tuple[str, ...]
    """To ask for it with."""


def is_once(audience: str) -> bool:
    return audience.startswith(ONCE)


def may_see(agent: str | None, audience: str, mark: Mark) -> bool:
    """Whether a text may be shown to an agent that is heard by this audience; None is nobody in particular."""
    if mark.kind == "said":
        heard = audience == mark.audience or (audience == OWNER and not is_once(mark.audience))
        return heard and agent in mark.agents
    if mark.audience == OWNER:
        heard = audience == OWNER or (agent is not None and HOUSE[agent].shares)
    else:
        heard = audience in (mark.audience, OWNER)
    if not heard or agent in mark.agents:
        return heard
    reads = None if agent is None else HOUSE[agent].reads
    return mark.kind == "memory" and not mark.private and (reads is None or not mark.agents.isdisjoint(reads))


def may_find(agent: str | None, mark: Mark) -> bool:
    """Whether the owner's search over transcripts may find a text."""
    return not is_once(mark.audience) and (agent is None or agent in mark.agents or mark.kind != "said")


def may_use(agent: str, rights: str, tool: str) -> bool:
    if rights == "owner":
        return True
    if tool in ("memory_edit", "memory_log"):
        return False
    return rights == "api" or any(fnmatchcase(tool, pattern) for pattern in HOUSE[agent].tools)


# What is counted

MORE = """anchor apple basket bell bridge candle carpet castle cellar cherry clock cloud copper cousin desk dragon feather
fence flute forest glove hammer honey horse jacket kettle ladder lemon marble meadow mirror needle ocean orchard oven paper
pepper piano pillow pocket pond queen rabbit ribbon roof saddle sailor shadow silver spoon stone sugar summer temple thunder
tower valley velvet village wagon wedding wheel wool"""
MARK = re.compile(r"zq(\d+)x")
PLAN = re.compile(r"plan(\d+)")
I_AM = re.compile(r"You are agent (\w+)\.")
WORDS = [*leaks.WORDS, *MORE.split()]
ODD = (
    '"',
    "*",
    "NEAR",
    "OR",
    "NOT",
    "outside0",
    "shared0",
    "part:",
    "heard_by",
    "-",
    "🦊",
    "today",
    "dm:bob",
    "once",
)
TURNS = {
    "turn": 0.17,
    "tool": 0.07,
    "delegate": 0.025,
    "child": 0.02,
    "switch": 0.01,
    "fork": 0.015,
    "pry": 0.015,
}
"""Doors where a model is asked."""
LOOKS = {
    "preview": 0.15,
    "tools": 0.14,
    "sessions.recall": 0.10,
    "sessions.search": 0.11,
    "sessions.list": 0.005,
    "sessions.export": 0.05,
    "memory.recall": 0.10,
    "memory.list": 0.01,
    "memory.export": 0.01,
}
"""Doors where the owner looks."""
CLI = "cli"
SHARES = {**TURNS, **LOOKS, CLI: 0.001}
DOORS = tuple(SHARES)
EACH_THREAD = 8
"""Threads of one person with one agent in which questions are asked."""


@dataclass(slots=True)
class Tally:
    asked: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    """Marks that came back, by door."""
    found: Counter[str] = field(default_factory=Counter)
    """How often each audience was given something of its own, by recall."""
    requests: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    leaks: list[str] = field(default_factory=list)

    @property
    def blind(self) -> list[str]:
        """Doors that showed nothing, and audiences that never found their own: nothing could leak there."""
        doors = [door for door in DOORS if not self.seen[door]]
        return doors + [audience for audience in AUDIENCES if not self.found[audience]]


# What is asked


@dataclass(frozen=True, slots=True)
class Plan:
    """What a model does when it is told so: these calls, one after the other, and then this reply."""

    door: str
    person: Person
    audience: str
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    reply: str = "noted"


@dataclass(frozen=True, slots=True)
class Place:
    """A session that is there."""

    ref: str
    agent: str
    person: Person


class World:
    def __init__(self, gateway: GatewayProcess, rpc: Rpc, client: httpx.Client, seed: int) -> None:
        self.gateway = gateway
        self.rpc = rpc
        self.client = client
        self.random = random.Random(seed)
        self.tally = Tally()
        self._lock = threading.Lock()
        self._marks: list[Mark] = []
        self._of: dict[str, list[int]] = {}
        """Marks by audience."""
        self._plans: list[Plan] = []
        self._places: list[Place] = []
        self._runs: list[dict[str, Any]] = []
        self._ids: list[str] = []
        self._doors: dict[str, Callable[[], None]] = {
            "turn": self._turn,
            "tool": self._tool,
            "delegate": self._delegate,
            "child": self._child,
            "switch": self._switch,
            "fork": self._fork,
            "pry": self._pry,
            "preview": self._preview,
            "tools": self._tools,
            "sessions.recall": self._sessions_recall,
            "sessions.search": self._sessions_search,
            "sessions.list": self._sessions_list,
            "sessions.export": self._sessions_export,
            "memory.recall": self._memory_recall,
            "memory.list": self._memory_list,
            "memory.export": self._memory_export,
            CLI: self._cli,
        }

    def ask(self, door: str) -> None:
        self.tally.asked[door] += 1
        self._doors[door]()

    # Texts

    def text(self, kind: str, agents: Iterable[str], audience: str, *, private: bool = True) -> str:
        """A new text with a mark, and a word of its own that no other has."""
        number = len(self._marks)
        own = "hy" + "".join("bcdfghjklmnpqrtv"[int(digit, 16)] for digit in f"{number:x}")
        words = (*self.random.sample(WORDS, 5), own)
        self._marks.append(Mark(kind, frozenset(agents), audience, private, words))
        self._of.setdefault(audience, []).append(number)
        self.tally.marks[kind] += 1
        return f"{' '.join(words)} zq{number}x"

    def learnt(self, agent: str, audience: str) -> tuple[str, dict[str, Any]]:
        """The call that remembers a new text."""
        private = self.random.random() < 0.5
        content = self.text("memory", [agent], audience, private=private)
        return "memory_remember", {"content": content, "scope": "private" if private else "global"}

    def question(self, agent: str | None, audience: str, *, own: bool | None = None) -> str:
        """For something that the audience may hear, or for anything at all. Without its mark: a question is said, too."""
        own = self.random.random() < 0.5 if own is None else own
        numbers = self._of.get(audience, []) if own else range(len(self._marks))
        mark = self._marks[self.random.choice(numbers)] if numbers else None
        if own:
            for _ in range(20):
                if mark is None or may_see(agent, audience, mark):
                    break
                mark = self._marks[self.random.choice(numbers)]
        words = [self.random.choice(WORDS)]
        if mark is not None:
            words = [*self.random.sample(mark.words[:-1], self.random.randint(1, 3)), mark.words[-1]]
        if not own and self.random.random() < 0.2:
            words.insert(0, self.random.choice(ODD))
        return " ".join(words)

    def recalling(self, query: str) -> tuple[str, dict[str, Any]]:
        return "memory_recall", {"query": query, "limit": self.random.choice((5, 10, 20))}

    # Telling a model what to do

    def plan(
        self,
        door: str,
        person: Person,
        audience: str,
        *calls: tuple[str, dict[str, Any]],
        reply: str = "noted",
    ) -> str:
        self._plans.append(Plan(door, person, audience, calls, reply))
        return f"plan{len(self._plans) - 1}"

    def somebody(self, *needs: str, person: Person | None = None) -> tuple[str, Person, str]:
        """An agent, who speaks with it, and the audience; such that these tools can be called."""
        people = PEOPLE if person is None else (person,)
        while True:
            person, agent = self.random.choice(people), self.random.choice(list(HOUSE))
            if all(may_use(agent, person.rights, tool) for tool in needs):
                return agent, person, self.audience(person)

    def audience(self, person: Person) -> str:
        return f"{ONCE} {len(self._plans)}" if person is NOBODY else person.audience

    def say(
        self, agent: str, person: Person, text: str, *, before: Sequence[str] = (), thread: str = ""
    ) -> None:
        """By any way that leads there. Comes back when it is answered."""
        if person is NOBODY:
            roles = ("system", "user", "assistant")
            said = [{"role": role, "content": one} for role, one in zip(roles, before, strict=False)]
            self._v1(agent, [*said, {"role": "user", "content": text}])
            return
        key = f"agent:{agent}:{self.random.choice(person.tails)}"
        if thread:
            key += f":thread:{thread}"
        elif person.user is not None and self.random.random() < 0.7:
            self._v1(agent, [{"role": "user", "content": text}], user=person.user)
            return
        elif person.sender is not None and self.random.random() < 0.7:
            channel, peer, room = person.sender
            where = {"channel": channel, "isGroup": room, "chatId" if room else "peerId": peer}
            self._chat({"agentId": agent, "text": text, **where})
            return
        if key.isascii() and self.random.random() < 0.1:
            self._v1(agent, [{"role": "user", "content": text}], session=key)
        else:
            self._chat({"sessionKey": key, "text": text})

    def _chat(self, body: dict[str, Any]) -> None:
        self.client.post("/api/gateway/chat", json=body).raise_for_status()

    def _v1(self, agent: str, messages: list[dict[str, str]], session: str = "", **more: str) -> None:
        headers = {"x-coterie-session": session} if session else {}
        body = {"model": f"coterie/{agent}", "messages": messages, **more}
        self.client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()

    def thread(self) -> str:
        """None at all, or one of some."""
        number = self.random.randrange(EACH_THREAD + 1)
        return f"q{number}" if number else ""

    # The model

    def answer(self, exchange: Exchange) -> None:
        system, *messages, context = exchange.body["messages"]
        said = [(place, _bare(str(m["content"]))) for place, m in enumerate(messages) if m["role"] == "user"]
        plans = [self._plans[int(n)] for _, text in said for n in PLAN.findall(text)]
        agent = I_AM.search(str(system["content"]))
        if not plans or agent is None:
            self.leak("nobody knows for whom a request is", json.dumps(exchange.body)[:500])
            exchange.reply("what?")
            return
        self._look_at(agent[1], plans, exchange.body, messages, str(context["content"]))
        place, text = said[-1]
        done = sum(1 for m in messages[place:] if m["role"] == "assistant")
        plan = plans[-1]
        if text.startswith("[") or not PLAN.search(text):
            exchange.reply("heard")  # a result was brought, or a task is taken up again
        elif done < len(plan.calls):
            name, arguments = plan.calls[done]
            exchange.calls((name, json.dumps(arguments)))
        else:
            exchange.reply(plan.reply)

    def _look_at(
        self,
        agent: str,
        plans: list[Plan],
        body: dict[str, Any],
        messages: list[dict[str, Any]],
        context: str,
    ) -> None:
        """Everything in a request, against the rule."""
        plan = plans[-1]
        heard = {one.audience for one in plans}
        if len(heard) > 1:
            self.leak(plan.door, f"{agent} has one transcript for {sorted(heard)}")
        self.check(plan.door, agent, plan.audience, json.dumps(body, ensure_ascii=False))
        self._check_tools(
            plan.door, agent, plan.person, [t["function"]["name"] for t in body.get("tools", ())]
        )
        last = messages[-1]
        if last["role"] == "tool":
            self._check_result(plan, str(last["content"]))
        fresh = context if last["role"] == "user" else str(last["content"])
        with self._lock:
            self.tally.requests += 1
            self._count_own(plan.audience, fresh)

    def _check_result(self, plan: Plan, result: str) -> None:
        """Nobody but the owner changes files."""
        if plan.person.rights != "owner" and ("MEMORY.md is changed" in result or "noted in " in result):
            self.leak(plan.door, f"{plan.audience} wrote into a memory file")

    def _check_tools(self, door: str, agent: str, person: Person, names: Iterable[str]) -> None:
        for name in names:
            if not may_use(agent, person.rights, name):
                self.leak(door, f"{person.audience} has the tool {name} of {agent}")

    def _count_own(self, audience: str, shown: str) -> None:
        own = any(self._marks[int(n)].audience == audience for n in MARK.findall(shown))
        self.tally.found[ONCE if is_once(audience) else audience] += own

    def check(self, door: str, agent: str | None, audience: str, shown: str) -> None:
        self._check_all(door, shown, lambda mark: may_see(agent, audience, mark), f"{audience} with {agent}")

    def _check_all(self, door: str, shown: str, allowed: Callable[[Mark], bool], who: str) -> None:
        numbers = {int(n) for n in MARK.findall(shown)}
        with self._lock:
            self.tally.seen[door] += len(numbers)
        for number in numbers:
            mark = self._marks[number]
            if not allowed(mark):
                scope = "private" if mark.private else "global"
                whose = f"{scope} {mark.kind} {number} of {'+'.join(sorted(mark.agents))} for {mark.audience}"
                self.leak(door, f"{who} saw {whose}")

    def leak(self, door: str, what: str) -> None:
        with self._lock:
            self.tally.leaks.append(f"{door}: {what}")

    # Doors where a model is asked

    def _turn(self) -> None:
        agent, person, audience = self.somebody()
        self._ask(agent, person, audience, "turn", self.question(agent, audience))

    def _tool(self) -> None:
        agent, person, audience = self.somebody("memory_recall")
        calls = [self.recalling(self.question(agent, audience))]
        if person is NOBODY or self.random.random() < 0.2:
            calls.insert(0, self.learnt(agent, audience))
            calls.append(self.recalling(self.question(agent, audience, own=True)))
        self._ask(agent, person, audience, "tool", "look it up", *calls)

    def _ask(
        self,
        agent: str,
        person: Person,
        audience: str,
        door: str,
        text: str,
        *calls: tuple[str, dict[str, Any]],
    ) -> None:
        reply, before = "noted", []
        if person is NOBODY:
            before = [self.text("said", [agent], audience) for _ in range(self.random.randint(0, 3))]
        if self.random.random() < 0.1:
            reply = self.text("said", [agent], audience)
        told = self.plan(door, person, audience, *calls, reply=reply)
        self.say(agent, person, f"{text} {told}", before=before, thread=self.thread())

    def _for_another(self, door: str, agent: str, target: str, person: Person, audience: str) -> str:
        """What one agent says to another, who looks something up and answers. Both know what was said."""
        both = (agent, target)
        calls = [self.recalling(self.question(target, audience))]
        if self.random.random() < 0.2:
            calls.append(self.learnt(target, audience))
        told = self.plan(door, person, audience, *calls, reply=self.text("said", both, audience))
        return f"{self.question(target, audience)} {self.text('said', both, audience)} {told}"

    def _delegate(self, asker: Person | None = None) -> None:
        agent, person, audience = self.somebody("agents_message", person=asker)
        target = self.random.choice([name for name in HOUSE if name != agent])
        asked = {"agentId": target, "content": self._for_another("delegate", agent, target, person, audience)}
        asked["session"] = self.random.choice(("latest-or-create", "latest-or-create", "create"))
        asked["mode"] = self.random.choice(("sync", "sync", "async"))
        self._ask(agent, person, audience, "delegate", "ask another", ("agents_message", asked))

    def _child(self, asker: Person | None = None) -> None:
        agent, person, audience = self.somebody("subagents_spawn", person=asker)
        target = self.random.choice(list(HOUSE))
        task = self._for_another("child", agent, target, person, audience)
        self._ask(
            agent, person, audience, "child", "start", ("subagents_spawn", {"task": task, "agentId": target})
        )

    def _switch(self) -> None:
        agent, person, audience = self.somebody("agents_switch")
        target = self.random.choice([name for name in HOUSE if name != agent])
        message = self._for_another("switch", agent, target, person, audience)
        call = ("agents_switch", {"agentId": target, "message": message})
        self._ask(agent, person, audience, "switch", "take me there", call)

    def _fork(self) -> None:
        """A copy, or a fresh start under the same key, is for the same people."""
        place = self.random.choice(self._places)
        audience = place.person.audience
        told = self.plan("fork", place.person, audience, self.recalling(self.question(place.agent, audience)))
        ref = place.ref
        if self.random.random() < 0.7:
            ref = self.rpc.call("sessions.fork", session=place.ref)["id"]
        else:
            with suppress(RpcError):  # a result may just be brought there
                ref = self.rpc.call("sessions.renew", session=place.ref)["id"]
        self._chat({"sessionKey": ref, "text": f"{self.question(place.agent, audience)} {told}"})

    def _pry(self) -> None:
        """Somebody whose model tries what it should not."""
        agent, person, audience = self.somebody()
        files = (
            "../MEMORY.md",
            "../USER.md",
            "../memory/2026-05-01.md",
            "../../../USER.md",
            "../../main/MEMORY.md",
        )
        run = self.random.choice(self._runs) if self._runs else {"run_id": "x", "agent_id": "ada"}
        told = self.plan("pry", person, audience, reply="no")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("files_read", {"path": self.random.choice(files)}),
            ("results_read", {"id": run["run_id"]}),
            ("subagents_status", {"runId": run["run_id"]}),
            ("subagents_list", {}),
            ("memory_recall", {"query": self.question(agent, audience), "limit": 50}),
        ]
        if person.rights != "owner":
            calls.append(("memory_log", {"text": "boat"}))
            calls.append(("memory_edit", {"new": "boat"}))
        if self._ids:
            other = {
                "agentId": run["agent_id"],
                "content": f"go on {told}",
                "session": self.random.choice(self._ids),
            }
            calls.append(("agents_message", other))
        self._ask(agent, person, audience, "pry", "try", *self.random.sample(calls, 3))

    # Doors where the owner looks

    def _preview(self) -> None:
        place = self.random.choice(self._places)
        agent, audience = place.agent, place.person.audience
        seen = self.rpc.call("prompt.preview", session=place.ref, message=self.question(agent, audience))
        self.check("preview", agent, audience, json.dumps(seen, ensure_ascii=False))
        self._check_tools("preview", agent, place.person, [tool["name"] for tool in seen["tools"]])
        with self._lock:
            self._count_own(audience, seen["context"])

    def _tools(self) -> None:
        place = self.random.choice(self._places)
        found = self.rpc.call("tools.effective", session=place.ref)["tools"]
        names = [tool["name"] for tool in found if tool["verdict"] != "deny"]
        self._check_tools("tools", place.agent, place.person, names)
        self.tally.seen["tools"] += len(names)

    def _sessions_recall(self) -> None:
        agent = self.random.choice(list(HOUSE))
        found = self.rpc.call("sessions.recall", agent_id=agent, query=self.question(agent, OWNER), limit=20)
        self.check("sessions.recall", agent, OWNER, json.dumps(found))

    def _sessions_search(self) -> None:
        agent = self.random.choice((*HOUSE, None, None))
        number = self.random.randrange(len(self._marks))
        query = self.random.choice(
            (f"zq{number}x", self._marks[number].words[-1], self.random.choice(WORDS), "zq")
        )
        given = {} if agent is None else {"agent_id": agent}
        found = self.rpc.call("sessions.search", query=query, limit=self.random.choice((20, 200)), **given)
        self._check_all(
            "sessions.search", json.dumps(found), lambda mark: may_find(agent, mark), f"of {agent}"
        )
        self._check_listed("sessions.search", [hit["session"] for hit in found["hits"]])

    def _sessions_list(self) -> None:
        self.look_at_list(self.random.choice((*HOUSE, None)))

    def look_at_list(self, agent: str | None) -> None:
        given = {} if agent is None else {"agent_id": agent}
        found = self.rpc.call("sessions.list", limit=1000, **given)["sessions"]
        self._check_all("sessions.list", json.dumps(found), lambda mark: may_find(None, mark), "the list")
        self._check_listed("sessions.list", found)
        self._ids = [session["id"] for session in found if session["kind"] in ("agent", "subagent")]
        self._runs = self.rpc.call("subagents.list", limit=200)["runs"]

    def _check_listed(self, door: str, sessions: Iterable[dict[str, Any]]) -> None:
        for one in sessions:
            if one["kind"] == "once" or one["audience"] not in (*AUDIENCES, "telegram:dm:me"):
                self.leak(
                    door, f"a session of kind {one['kind']} for {one['audience'].split(':')[0]} is shown"
                )

    def _sessions_export(self) -> None:
        place = self.random.choice(self._places)
        form = self.random.choice(("jsonl", "markdown"))
        found = self.rpc.call("sessions.export", session=place.ref, format=form)
        self.check("sessions.export", place.agent, place.person.audience, found["content"])

    def _reader(self) -> tuple[str | None, dict[str, Any]]:
        agent = self.random.choice((*HOUSE, None))
        return agent, {} if agent is None else {"agent_id": agent}

    def _memory_recall(self) -> None:
        agent, given = self._reader()
        asked = {"query": self.question(agent, OWNER), "limit": self.random.randint(1, 50)}
        if self.random.random() < 0.5:
            asked["mode"] = self.random.choice(("hybrid", "text", "vector"))
            found = json.dumps(self.rpc.call("memory.recall", **asked, **given))
        else:
            named = {} if agent is None else {"agentId": agent}
            found = self.client.post("/api/memory/recall", json={**asked, **named}).raise_for_status().text
        self.check("memory.recall", agent, OWNER, found)

    def _memory_list(self) -> None:
        agent, given = self._reader()
        found = self.rpc.call("memory.list", limit=1000, superseded=True, **given)
        self.check("memory.list", agent, OWNER, json.dumps(found))

    def _memory_export(self) -> None:
        agent, given = self._reader()
        form = self.random.choice(("jsonl", "markdown"))
        self.check(
            "memory.export", agent, OWNER, self.rpc.call("memory.export", format=form, **given)["content"]
        )

    def _cli(self) -> None:
        place = self.random.choice(self._places)
        agent, audience = place.agent, OWNER
        query = self.question(agent, OWNER).lstrip("-")
        which = self.random.choice(("recall", "list", "export", "prompt"))
        words = {
            "recall": ("recall", "--agent", agent, "--", query),
            "list": ("memory", "list", "--agent", agent),
            "export": ("memory", "export", "--agent", agent, "-"),
            "prompt": ("prompt", "show", "--raw", "--session", place.ref, "--message", query),
        }
        if which == "prompt":
            audience = place.person.audience
        done = coterie(self.gateway.home, *words[which])
        assert done.returncode == 0, done.stderr
        self.check(CLI, agent, audience, done.stdout)

    # The house

    def furnish(self, each: int, rows: int) -> None:
        """Everybody has talked with so many agents; each agent has so many memories of each scope from the owner."""
        lines = []
        for agent in HOUSE:
            for number in range(2 * rows):
                lines.append(self._line(agent, OWNER, private=number % 2 == 0))
            for person in self.random.sample(OUTSIDE, min(rows, len(OUTSIDE))):
                lines.append(self._line(agent, person.audience, private=self.random.random() < 0.5))
            folder = self.gateway.home / "agents" / agent
            (folder / "memory").mkdir(parents=True, exist_ok=True)
            sections = [f"# {n}\n\n{self.text('file', [agent], OWNER)}" for n in range(rows)]
            (folder / "memory" / "2026-05-01.md").write_text("\n\n".join(sections))
            (folder / "MEMORY.md").write_text(self.text("file", [agent], OWNER))
        (self.gateway.home / "USER.md").write_text(self.text("file", HOUSE, OWNER))
        self.random.shuffle(lines)
        body = "".join(json.dumps(line) + "\n" for line in lines)
        self.client.post("/api/memory/import", content=body.encode()).raise_for_status()
        self._pin(6)
        for place, person in enumerate(PEOPLE):
            for number in range(each):
                agent = list(HOUSE)[(place + number) % len(HOUSE)]
                self._talk(agent, person, f"past{number}" if number % 2 else "")
                if person is not NOBODY:
                    thread = f":thread:past{number}" if number % 2 else ""
                    self._places.append(Place(f"agent:{agent}:{person.tails[0]}{thread}", agent, person))
        for agent in HOUSE:
            made = self.rpc.call("sessions.create", agent_id=agent)
            self._places.append(Place(made["id"], agent, OWNERS[0]))
            told = self.plan("turn", OWNERS[0], OWNER, reply=self.text("said", [agent], OWNER))
            self._chat({"sessionKey": made["id"], "text": f"{self.text('said', [agent], OWNER)} {told}"})

    def _pin(self, count: int) -> None:
        """Some of the owner's and some that were learnt outside: they come to every turn that may have them."""
        for agent in HOUSE:
            found = self.rpc.call("memory.list", agent_id=agent, owner=agent, limit=1000)["memories"]
            for outside in (False, True):
                some = [one for one in found if one["file"] is None and (one["audience"] != OWNER) == outside]
                for one in self.random.sample(some, min(len(some), count // len(HOUSE))):
                    self.rpc.call("memory.update", agent_id=agent, id=one["id"], pinned=True)

    def _line(self, agent: str, audience: str, *, private: bool) -> dict[str, Any]:
        content = self.text("memory", [agent], audience, private=private)
        line = {"content": content, "agentId": agent, "scope": "private" if private else "global"}
        return {**line, "thread": f"t{self.random.randrange(3)}", "audience": audience}

    def _talk(self, agent: str, person: Person, thread: str) -> None:
        audience = self.audience(person)
        reply = self.text("said", [agent], audience)
        told = self.plan("turn", person, audience, self.learnt(agent, audience), reply=reply)
        self.say(agent, person, f"{self.text('said', [agent], audience)} {told}", thread=thread)

    def everybody(self) -> None:
        """One question of each for what is their own; and a child and a colleague of somebody who names nobody."""
        for person in PEOPLE:
            audience = self.audience(person)
            agent = next((place.agent for place in self._places if place.person is person), "main")
            learnt = [self.learnt(agent, audience)] if person is NOBODY else []
            look = self.recalling(self.question(agent, audience, own=True))
            self.tally.asked["tool"] += 1
            self._ask(agent, person, audience, "tool", "look it up", *learnt, look)
        for door, ask in (("delegate", self._delegate), ("child", self._child)):
            self.tally.asked[door] += 1
            ask(NOBODY)

    def settle(self, seconds: float = 60) -> None:
        """Until no child is at work any more."""
        deadline = time.monotonic() + seconds
        while any(
            self.rpc.call("subagents.list", status=status, limit=1)["runs"]
            for status in ("queued", "running")
        ):
            assert time.monotonic() < deadline, "children do not come to an end"
            time.sleep(0.05)


def _bare(text: str) -> str:
    """Another agent's words out of their fence."""
    fenced = FENCED.fullmatch(text)
    return text if fenced is None else fenced[2]


def hunt(
    folder: Path, questions: int, seed: int, *, least: int = 10, each: int = len(HOUSE), rows: int = 12
) -> Tally:
    """Ask so many questions, at least `least` by each door."""
    home = folder / "home"
    home.mkdir(parents=True)
    with model_server() as server:
        (home / "agent.yaml").write_text(json.dumps(_config(server)))
        gateway = GatewayProcess(home).wait()
        try:
            with gateway.rpc() as rpc, gateway.http() as client:
                world = World(gateway, rpc, client, seed)
                server.answer = world.answer
                world.furnish(each, rows)
                world.everybody()
                plan = [door for door in DOORS for _ in range(max(least, int(questions * SHARES[door])))]
                world.random.shuffle(plan)
                for door in plan:
                    world.ask(door)
                    server.raw.clear()
                world.settle()
                world.look_at_list(None)
                return world.tally
        finally:
            gateway.stop()


def _config(server: ModelServer) -> dict[str, Any]:
    """JSON is YAML, too."""
    provider = {"type": "openai-compatible", "base_url": server.base_url, "context_window": 1_000_000}
    roster = []
    for name, member in HOUSE.items():
        memory: dict[str, Any] = {"read_policy": "shared"}
        if member.reads is not None:
            memory = {"read_policy": "group" if member.reads else "isolated", "group": list(member.reads)}
        outside = {"memory": "shared" if member.shares else "none", "tool_allowlist": list(member.tools)}
        prompt = f"You are agent {name}."
        roster.append({"name": name, "memory": memory, "outside": outside, "system_prompt": prompt})
    return {
        "version": 1,
        "default_model": "mock/mock-1",
        "models": {"providers": {"mock": provider}},
        "channels": {"telegram": {"accounts": {"house": {"owner": ["me"]}}}},
        "delegation": {"trace_turns": 1000},
        "agents": {"roster": roster},
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="audiences", description=__doc__)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=9)
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="coterie-audiences-") as folder:
        tally = hunt(Path(folder), given.questions, given.seed)
    by_door = Counter(leak.partition(": ")[0] for leak in tally.leaks)
    for door in DOORS:
        asked = f"{door:26} {tally.asked[door]:>7,} asked {tally.seen[door]:>9,} marked texts came back"
        print(f"{asked} {by_door[door]:>5,} leaks")
    print()
    for audience in AUDIENCES:
        print(f"{audience:26} {tally.found[audience]:>7,} times found its own")
    made = ", ".join(f"{count:,} {kind}" for kind, count in tally.marks.items())
    print(f"\n{len(HOUSE)} agents, {len(AUDIENCES)} audiences; texts: {made}")
    print(
        f"{tally.asked.total():,} asked, {tally.requests:,} requests to the model, {len(tally.leaks)} leaks, "
        f"{time.monotonic() - started:.0f} s, seed {given.seed}"
    )
    for leak, count in Counter(tally.leaks).most_common(30):
        print(f"{count:>5} x {leak}")
    if tally.blind:
        print("saw nothing:", ", ".join(tally.blind))
    return 1 if tally.leaks or tally.blind else 0


if __name__ == "__main__":
    sys.exit(main())
