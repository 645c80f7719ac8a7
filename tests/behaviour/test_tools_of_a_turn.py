"""I5: the tools that are listed, those that a model is told about and those that it may call are the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie import tool
from coterie.api.methods import perform
from coterie.core.agent import AgentSpec
from coterie.core.policy import SUBAGENT_DENIED, Place, decide, permits
from coterie.core.ports import ModelRequest
from coterie.core.tool import Tool
from coterie.engine.access import Caller
from coterie.testing import Scripted, call
from tests.support.house import FunctionModel, household, run


def made(name: str, *capabilities: str) -> Tool:
    def function() -> str:
        return f"{name} ran"

    return tool(name=name, capabilities=list(capabilities), safe_to_repeat=True)(function)


TOOLS = [
    made("lists_add", "lists.read", "lists.write"),
    made("lists_show", "lists.read"),
    made("web_fetch", "web"),
    made("plain"),
    made("system_reboot", "system.power"),
    made("subagents_spawn"),
    made("agents_switch"),
    made("agents_message"),
]
NAMES = st.none() | st.lists(
    st.sampled_from(["*", "lists_*", "lists_add", "web_fetch", "plain", "system_*", "agents_*"]), max_size=3
)
CAPABILITIES = st.none() | st.lists(
    st.sampled_from(["*", "lists.*", "lists.read", "lists.write", "web", "system.power"]), max_size=3
)
SPECS = st.fixed_dictionaries(
    {
        "tool_allowlist": NAMES,
        "tool_denylist": NAMES,
        "capability_allowlist": CAPABILITIES,
        "capability_denylist": CAPABILITIES,
    }
)


@given(SPECS, st.sampled_from(TOOLS), st.booleans())
def test_the_rules_of_lists_and_capabilities(spec: dict[str, Any], one: Tool, subagent: bool) -> None:
    decision = decide(one, AgentSpec(**spec), Place(subagent))
    denied = any(permits(one.name, [rule], None) for rule in SUBAGENT_DENIED)
    if subagent and denied:
        expected = False
    elif one.name.startswith("system_"):
        expected = True
    else:
        allow, deny = spec["capability_allowlist"], spec["capability_denylist"]
        expected = (
            permits(one.name, spec["tool_allowlist"], spec["tool_denylist"])
            and all(permits(c, allow, None) for c in one.capabilities)
            and not any(not permits(c, None, deny) for c in one.capabilities)
        )
    assert decision.allowed is expected
    assert decision.reason


@given(SPECS, st.sampled_from(TOOLS))
def test_a_subagent_never_has_more_than_its_agent(spec: dict[str, Any], one: Tool) -> None:
    if decide(one, AgentSpec(**spec), Place(subagent=True)).allowed:
        assert decide(one, AgentSpec(**spec)).allowed


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SPECS, st.booleans())
def test_listed_is_told_is_callable(tmp_path_factory: Any, spec: dict[str, Any], subagent: bool) -> None:
    """The same answer from `tools.effective`, in the request, and when every tool is called anyway."""
    home: Path = tmp_path_factory.mktemp("policy") / "home"

    def reply(request: ModelRequest) -> Scripted:
        told.append({schema.name for schema in request.tools})
        if request.messages[-1].role == "user":
            return [call(one.name) for one in TOOLS]
        return "done"

    told: list[set[str]] = []
    chosen = {key: value for key, value in spec.items() if value is not None}

    async def story() -> None:
        roster = f"- {json.dumps({'name': 'rose', **chosen})}"
        async with household(home, FunctionModel(reply), tools=TOOLS, roster=roster) as house:
            session = await house.gateway.sessions.create(agent_id="rose")
            if subagent:
                session = replace(session, kind="subagent")
                with house.power.write() as tx:
                    tx.sessions.save(session)
            caller = Caller("test", "read")
            answer: Any = await perform(house.gateway, caller, "tools.effective", {"session": session.id})
            listed = {d.name for d in answer.tools if d.allowed}
            assert (await house.say("go", session.id)).text == "done"
            ours = {one.name for one in TOOLS}
            results = {m.tool_name: m.text for m in await house.history(session.id) if m.role == "tool"}
            ran = {name for name, text in results.items() if text == f"{name} ran"}
            refused = {name for name, text in results.items() if "tool_not_allowed" in text}
            assert told[0] == told[1] == listed
            assert ran == listed & ours
            assert refused == ours - listed

    run(story())
