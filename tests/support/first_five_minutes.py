"""A stranger's first five minutes, lived through and written down.

python -m tests.support.first_five_minutes     writes docs/guides/first-five-minutes.md
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.gateway import environment
from tests.support.mock import free_port
from tests.support.terminal import Pane, in_terminal

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guides" / "first-five-minutes.md"

TEXT = """<!-- Written by `python -m tests.support.first_five_minutes`, which does all of this. A test does it again. -->

# The first five minutes

No key, no account, nothing installed but Python 3.11 and `make`. Everything below was printed by the program.

In the checkout, start the house:

```text
$ make serve
{serve}
```

Leave it running. In a second terminal, talk to it; `./coterie` is the program, called `coterie` from here on.
(Without a gateway this works as well: then the chat runs the house itself. And `coterie` alone does the same as
`coterie chat`.)

```text
$ coterie chat
{welcome}
```

Nothing here is a language model yet, and the built-in one says so. It can show you around, though:

```text
{tour}
```

An agent acts through tools. You see each call as it happens:

```text
{tools}
```

Its workspace is a real folder:

```text
{files}
$ cat ~/.coterie/agents/main/workspace/note.txt
{note}
```

A second agent moves in, and takes the conversation over. What was said stays:

```text
{adding}
```

```text
{switching}
```

Speak while an agent works: the message is answered at the next step, and the task goes on where it was.

```text
{steering}
```

What is on record:

```text
{usage}
```

## And then

Put a provider's key into the environment of `make serve`, start it again, and put a line into `~/.coterie/agent.yaml`:

```yaml
default_model: anthropic/claude-sonnet-5      # ANTHROPIC_API_KEY; or openai/…, google/…, openrouter/…, ollama/…
```

`coterie model list` shows what can be used, `coterie model test` whether it answers. The agents keep their files,
their tools and everything that was said. [Agents](agents.md) tells more about them.
"""


def lived() -> str:
    """The page, with what happened just now in it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / ".coterie"
        with _make_serve(home) as serve, in_terminal(home, "chat", rows=70, TZ="UTC") as pane:
            parts = {"serve": serve, **_talk(home, pane)}
        return TEXT.format(**{name: _tidy(text, home) for name, text in parts.items()})


@contextmanager
def _make_serve(home: Path) -> Iterator[str]:
    """The recipe of `make serve`, in the environment that the tests have already."""
    port = free_port()
    command = ["make", "--no-print-directory", "-o", ".venv/.program", "serve"]
    settings = [f"BIN={Path(sys.executable).parent}", f"ARGS=--port {port}"]
    env = {k: v for k, v in environment(home).items() if not k.startswith(("MAKE", "MFLAGS"))}
    log = home.parent / "serve.log"
    seen, terminal = os.openpty()  # its token is shown to a person only
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, *settings], cwd=ROOT, env=env, stdout=terminal, stderr=errors, start_new_session=True
        )
    os.close(terminal)
    try:
        with os.fdopen(seen, encoding="utf-8") as screen:
            lines = [screen.readline() for _ in range(2)]
            assert all(lines), f"the gateway did not start:\n{log.read_text()}"
            yield "".join(lines).replace(str(port), "18790")
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def _talk(home: Path, pane: Pane) -> dict[str, str]:
    talk = _Talk(pane)
    parts = {"welcome": talk.hears("who lives here; /help shows the rest")}
    talk.says("show me around")
    parts["tour"] = talk.hears("Say “next” to go on.")
    talk.says("what time is it")
    parts["tools"] = talk.hears("go on with the tour.")
    talk.says("write hello to note.txt")
    talk.hears("go on with the tour.", keep=True)
    talk.says("read note.txt")
    parts["files"] = talk.hears("files_read answered")
    parts["note"] = (home / "agents" / "main" / "workspace" / "note.txt").read_text()
    words = ("agent", "add", "rose", "--label", "Rose", "--personality", "Knows plants. Speaks softly.")
    parts["adding"] = _shell(home, *words)
    talk.says("/agents")
    talk.hears("Rose (rose)", keep=True)
    talk.says("/agent rose")
    talk.hears("Rose takes over", keep=True)
    talk.says("hello")
    parts["switching"] = talk.hears("You said: “hello”")
    talk.says("watch the clock")
    talk.hears("✓ system_time", keep=True)
    talk.says("who are you?")
    parts["steering"] = talk.hears("You spoke in between")
    talk.says("/quit")
    assert pane.ended() == 0
    parts["usage"] = _shell(home, "usage")
    return parts


def _shell(home: Path, *words: str) -> str:
    command = [sys.executable, "-m", "coterie", *words]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = " ".join(f'"{word}"' if " " in word else word for word in words)
    return f"$ coterie {shown}\n{done.stdout}"


class _Talk:
    """What is on the screen, piece by piece."""

    def __init__(self, pane: Pane) -> None:
        self._pane = pane
        self._from = 0

    def says(self, text: str) -> None:
        self._pane.say(text)

    def hears(self, what: str, *, keep: bool = False) -> str:
        """Everything since the last piece, once this has come and nothing moves any more."""
        deadline = time.monotonic() + 60
        before = ""
        while True:
            now = self._screen()
            flat = " ".join(now[self._from :].split())
            if what in flat and now == before:
                break
            assert time.monotonic() < deadline, f"{what!r} did not come:\n{now}"
            before = now
            time.sleep(0.4 if not keep else 0.05)
        piece = now[self._from :]
        if not keep:
            self._from = len(now)
        return piece.strip("\n")

    def _screen(self) -> str:
        """Without the prompt, its toolbar, and what stood there while the house was opened."""
        lines = [line.rstrip() for line in self._pane.text().rstrip().split("\n")]
        opening = max((i for i, line in enumerate(lines) if line.startswith("opening the house")), default=-1)
        lines = lines[opening + 1 :]
        while lines and (not lines[-1] or lines[-1] == "›" or "· session" in lines[-1]):
            lines.pop()
        return "\n".join(lines) + "\n"


def _tidy(text: str, home: Path) -> str:
    """What differs from one time to the next looks as it might have looked."""
    text = text.replace(str(home), "~/.coterie")
    text = re.sub(r"#token=\S+", "#token=…", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 \w+day", "2026-11-15T12:00:00+00:00 Sunday", text)
    text = re.sub(r"\d{4}-\d\d-\d\d(?!T)", "2026-11-15", text)
    text = re.sub(r"(  )(\d+ ms|\d+\.\d s)$", r"\g<1>1 ms", text, flags=re.M)
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


if __name__ == "__main__":
    PAGE.write_text(lived(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
