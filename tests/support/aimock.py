"""aimock, a server that speaks the providers' protocols. `make fetch` puts it below `.build/`, the tests only use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSION = "1.43.0"
FOLDER = Path(__file__).parents[2] / ".build" / f"aimock-{VERSION}"
PROGRAM = FOLDER / "node_modules" / ".bin" / "llmock"
FIXTURES = {
    "fixtures": [
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "It is sunny in Oslo."},
        },
        {
            "match": {"userMessage": "weather"},
            "response": {
                "reasoning": "They want the weather.",
                "toolCalls": [
                    {"name": "get_weather", "arguments": {"a": "Oslo"}},
                    {"name": "get_time", "arguments": {}},
                ],
            },
        },
        {
            "match": {"userMessage": "too fast"},
            "response": {"error": {"message": "Slow down", "type": "rate_limit_error"}, "status": 429},
        },
        {
            "match": {"userMessage": "think"},
            "response": {"reasoning": "Let me think about this a little.", "content": "I have thought."},
        },
        {
            "match": {"userMessage": "hello"},
            "response": {"content": "Hello there, how are you today, my friend?"},
        },
    ]
}


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running aimock."""
    program = _program()
    fixtures = tmp_path_factory.mktemp("aimock") / "fixtures.json"
    fixtures.write_text(json.dumps(FIXTURES))
    command = ["node", str(program), "-p", "0", "-f", str(fixtures), "--strict"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if found := re.search(r"listening on (http://\S+)", line):
            return found[1]
    pytest.fail("aimock did not start: " + "".join(said))


def _program() -> Path:
    if not PROGRAM.exists():
        reason = f"aimock {VERSION} is not here: `make fetch` gets it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return PROGRAM
