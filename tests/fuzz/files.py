"""agent.yaml: saved under a running gateway in every state of disrepair, and read by commands."""

from __future__ import annotations

from random import Random

from tests.fuzz.hostile import damaged, text
from tests.fuzz.world import Finding, World, config
from tests.support.gateway import RpcError, coterie

Case = tuple[bytes, bool]
"""The file without its beginning, and whether a command reads it as well."""
MORE = b"""    - {name: rose, description: "She reads.", tool_denylist: [memory_*], limits: {concurrency: 2}}
    - name: dot
      model: {primary: chat/m, fallbacks: [offline/demo]}
      system_prompt: |
        You are Dot.
        You count.
      outside: {memory: private, tool_allowlist: [system_*]}
    - &base {name: base, ui_visible: false}
    - {name: heir, extends: base}
  default: main
memory: {embeddings: {provider: none}}
delegation: {max_depth: 2}
plugins: {disabled: []}
prompt: {file_characters: 20000}
"""
PIECES = (
    b"&a [*a]",
    b"<<: *base",
    b"!!python/object/apply:os.system ['true']",
    b"!!binary '%%%'",
    b"? {a: b}\n: c",
    b"%YAML 9.9\n---\n",
    b"---\n...\n---\n",
    b"'",
    b'"\\x"',
    b"\t",
    b"{" * 2000,
    b"- " * 2000,
    b"a: " * 500,
    b"|+\n" + b"\n" * 2000,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"# " + b"c" * 5000,
    b"0x1F",
    b".inf",
    b"2026-02-30",
    b"1e400",
    b"~",
    b"=",
    b"null",
    b"agents: {roster: 5}",
    b"version: 99",
    b"roster:",
    b"&b [*b,*b,*b,*b]",
    b"9" * 5000,
)


def case(rng: Random) -> Case:
    raw = bytearray(b"\0" + MORE)
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.5:
            place = rng.randint(0, len(raw))
            piece = (
                rng.choice(PIECES) if rng.random() < 0.8 else text(rng, 300).encode("utf-8", "surrogatepass")
            )
            raw[place:place] = piece
        else:
            raw = bytearray(damaged(rng, bytes(raw), 1))
    return bytes(raw), rng.random() < 0.05


def play(world: World, case: Case) -> None:
    raw, by_command = case
    good = config(world.model.url).encode()
    path = world.home / "agent.yaml"
    path.write_bytes(raw.replace(b"\0", good))
    with world.gateway.rpc() as rpc:
        for method in ("agents.apply", "agents.list", "status"):
            try:
                rpc.call(method)
            except RpcError as error:
                if error.code == "INTERNAL":
                    raise Finding(f"{method}: {error}") from None
    if by_command:
        for arguments in (("doctor",), ("agent", "list")):
            done = coterie(world.home, *arguments, TEST_KEY="sk-test-0123456789")
            if "Traceback" in done.stderr + done.stdout:
                raise Finding(f"coterie {' '.join(arguments)}: {done.stderr[-3000:]}")


def restore(world: World) -> None:
    (world.home / "agent.yaml").write_text(config(world.model.url))
    with world.gateway.rpc() as rpc:
        rpc.call("agents.apply", yes=True)
