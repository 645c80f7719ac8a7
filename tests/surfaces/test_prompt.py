"""What a model is told: `prompt show` prints what goes over the wire, to the last byte."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.support.gateway import coterie, running
from tests.support.providers import KEY, PROTOCOLS, Asked, Said, serving

TYPES = {
    "chat": ("openai", "/v1", "gpt-5.2"),
    "responses": ("openai-responses", "/v1", "gpt-5.2"),
    "anthropic": ("anthropic", "", "claude-sonnet-5"),
    "google": ("google", "", "gemini-2.5-pro"),
}
CONFIG = """version: 1
default_model: it/{model}
models:
  providers:
    it: {{type: {type}, base_url: "{url}", api_key_env: TEST_KEY}}
agents:
  roster:
    - {{name: main, temperature: 0.4, max_tokens: 500}}
"""


def timeless(body: bytes) -> bytes:
    """The trailing context tells the time."""
    return re.sub(rb"\d{4}-\d\d-\d\dT[\d:]+[+-]\d\d:\d\d", b"NOW", body)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_prompt_show_is_what_goes_over_the_wire(protocol: str, home: Path) -> None:
    kind, path, model = TYPES[protocol]

    async def scene() -> None:
        async with serving(Said("Well met – é")) as server:
            home.mkdir()
            text = CONFIG.format(type=kind, url=f"{server.url}{path}", model=model)
            (home / "agent.yaml").write_text(text)
            (home / "SOUL.md").write_text("Fond of “typography” — and of \U0001f98a.\n")
            await asyncio.to_thread(talk, server.asked)

    def talk(asked: list[Asked]) -> None:
        def show(*words: str) -> bytes:
            done = coterie(home, "prompt", "show", "--raw", *words, TEST_KEY=KEY)
            assert done.returncode == 0, done.stderr
            return done.stdout.encode()

        first = show("--message", "hellö")
        assert asked == [], "nothing is sent by looking"
        assert coterie(home, "chat", "hellö", TEST_KEY=KEY).stdout == "Well met – é\n"
        second = show("--session", "agent:main:main", "--message", "again")
        assert len(asked) == 1
        with running(home, TEST_KEY=KEY) as gateway, gateway.rpc() as rpc:
            # The gateway says the same as the command that opens the store itself.
            seen = rpc.call("prompt.preview", session="agent:main:main", message="again")
            assert timeless(seen["body"].encode()) == timeless(second)
            assert seen["total_bytes"] == len(seen["body"].encode())
            run = rpc.call("chat.send", session="agent:main:main", message="again")
            rpc.wait_for("chat", run_id=run["run_id"], state="final")
        sent = [timeless(one.raw) for one in asked]
        assert [timeless(first), timeless(second)] == sent
        assert "typography" in first.decode() and b"NOW" in sent[0]

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_a_model_without_a_wire_says_so(home: Path) -> None:
    done = coterie(home, "prompt", "show", "--raw")
    assert done.returncode == 1 and "offline/demo" in done.stderr
    seen = json.loads(coterie(home, "prompt", "show", "--json").stdout)
    assert seen["body"] is None and 500 < seen["total_bytes"] < 6000


@pytest.mark.parametrize(
    ("soul", "cut"),
    [
        ("Kind. " * 900_000, True),
        ("\u200b\u200c\u200d\ufeff" * 1000, False),
        ("\u202eevil\u202c" * 1000, False),
    ],
    ids=["5 MB", "zero-width characters", "text that runs backwards"],
)
def test_a_soul_that_is_none_leaves_a_prompt_that_works(home: Path, soul: str, cut: bool) -> None:
    (home / "agents" / "main").mkdir(parents=True)
    (home / "agents" / "main" / "SOUL.md").write_text(soul)
    done = coterie(home, "prompt", "show", "--json")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["total_bytes"] < 60_000
    assert any(section["cut"] for section in seen["sections"]) == cut
    if cut:
        assert "more characters did not fit" in seen["system"]
    assert coterie(home, "chat", "what time is it").stdout.startswith("system_time answered")
