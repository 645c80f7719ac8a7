"""docs/reference/rpc.md: enough to write a client from, and every method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from docs.markdown import anchor, properties, sentence, table

OPENING = """# RPC

One WebSocket at `GET /ws`, for requests, their answers and events as they happen. Every frame is one JSON object in a
text frame. Names are in snake_case; camelCase is accepted as well. Times are ISO 8601 with a zone.

[A client](#a-client) · [Handshake](#handshake) · [Frames](#frames) · [Order](#order) · [Errors](#errors) ·
[Scopes](#scopes) · [Repeats](#repeats) · [Session keys](#session-keys) · [Watching](#watching) · [Events](#events) ·
[Methods](#methods) · [Shapes](#shapes)

## A client

Complete; it needs `pip install websockets`. `coterie serve` prints the address, and its token is in the file `token` of
the home folder.
"""

HANDSHAKE = """## Handshake

1. The server speaks first: the event `connect.challenge` with `{nonce, ts}`. Nothing has to be done with it.
2. The client's first request is `connect`, within %(connect_seconds)s seconds. Anything else is answered with an error and ends the
   connection (close code 1008).
3. The answer is `{type: "hello-ok", protocol, server: {name, version}, features: {methods, events}, auth: {scopes}, policy:
   {max_frame_bytes, tick_interval_ms}}`. `features` lists what this server has; `auth.scopes` is what may be done here.

`connect` takes:

%(connect)s
Browsers may connect from the gateway's own pages and from `gateway.allowed_origins`. When a token is revoked, its
connections end at once.
"""

FRAMES = """## Frames

```
→ {"type": "req", "id": 7, "method": "chat.send", "params": {"session": "agent:main:main", "message": "Hello"}}
← {"type": "res", "id": 7, "ok": true, "payload": {"message_id": "…", "run_id": "…", "status": "started"}}
← {"type": "res", "id": 7, "ok": false, "error": {"code": "NOT_FOUND", "message": "…", "details": {…}, "retryable": true}}
← {"type": "event", "event": "chat", "payload": {…}, "seq": 12}
```

`id` is a string or a number of the client's choosing, at most 200 characters long. `params` may be left out. `details` and
`retryable` stand only where there is something to say. `seq` counts the events of this connection without a gap. A
frame has at most %(frame)s bytes; one of more than %(hard)s ends the connection.

A client that does not read falls behind: after 2,000 events it is cut off, and has to connect again and look at
its sessions anew (`chat.history`).
"""

ORDER = """## Order

Requests may be sent without waiting for earlier answers. Those that change something are done one after the other, in
the order sent: two messages arrive in the order they were written. Those that only look run beside them, so answers can come in
another order; `id` says which is which, and whoever wants to see a change waits for its answer. `chat.abort` and
`chat.cancel_queued` wait for nothing. A client that goes away cancels nothing that it asked for.
"""

SCOPES = """## Scopes

A token has one of three scopes, each with those before it: `read` looks, `write` talks and remembers, `admin` changes agents,
configuration and tokens. The scope is checked before the parameters. `connect` can ask for less than its token allows.
"""

REPEATS = """## Repeats

Every method that changes something takes `idempotency_key`, at most 200 characters (over HTTP the header
`Idempotency-Key`). A repeat with the same key and the same parameters gets the first answer and changes nothing; one that comes while the first is
under way waits for it. With other parameters it is a CONFLICT. Keys belong to the token and the method, are kept for a day,
and a refusal is not kept. The keys of messages belong to the session and are kept as long as the message.
"""

KEYS = """## Session keys

`session` is always an id or a key. An id stays with one conversation for ever. A key names a place, and
`sessions.renew` gives it to a fresh session; the old one is then `<key>:old:<n>`.
"""

KEYS_MORE = """
`agent:default:…` is whoever is the default agent. Inside a peer's name `:` and `%` are written `%3A` and `%25`. A
message to a key of the forms `main`, `dm`, `group` or `api` makes its session; the other forms are made by the gateway.
"""

WATCHING = """## Watching

A socket gets the `chat` events of the sessions that it watches: those it named to `sessions.watch`, `chat.send` or
`chat.history` and those it made with `sessions.create`; or of all, with `sessions.watch {"all": true}`. All other events come to
every socket.

A key is watched as a key, whichever session has it, also before there is one; an id as that one session. To come into a
conversation without missing anything, call `chat.history`: its `running` is the turn so far, with the `seq` up to which it is
told, and the events after it follow.
"""

EVENTS = """## Events

"""


def rpc_page() -> str:
    from coterie.api.events import EVENTS as events
    from coterie.api.frames import MAX_FRAME
    from coterie.api.methods import METHODS
    from coterie.api.rpc import CONNECT_SECONDS, HARD_LIMIT, Connect

    shapes: dict[str, Any] = {}
    client = (Path(__file__).parent / "rpc_client.py").read_text(encoding="utf-8")
    parts = [
        OPENING,
        f"```python\n{client}```\n",
        HANDSHAKE % {"connect_seconds": CONNECT_SECONDS, "connect": _fields(Connect, shapes, "validation")},
        FRAMES % {"frame": f"{MAX_FRAME:,}", "hard": f"{HARD_LIMIT:,}"},
        ORDER,
        _errors(),
        SCOPES,
        REPEATS,
        KEYS,
        _keys(),
        KEYS_MORE,
        WATCHING,
        EVENTS,
    ]
    for name, model in events.items():
        parts.append(f"### `{name}`\n\n{sentence(model.__doc__)}\n")
        parts.append(_fields(model, shapes, "serialization", by_alias=name == "session.switched"))
    methods = [METHODS[name] for name in sorted(METHODS)]
    parts.append("## Methods\n")
    rows = [(f"[`{m.name}`](#{anchor(m.name)})", str(m.scope), sentence(m.summary)) for m in methods]
    parts.append(table(("Method", "Scope", ""), rows))
    for method in methods:
        parts.append(f"## `{method.name}`\n")
        http = ", ".join(f"`{r.verb} {r.path.replace(':path', '')}`" for r in method.routes)
        parts.append(
            f"{sentence(method.summary)} Scope: {method.scope}.{f' HTTP: {http}.' if http else ''}\n"
        )
        parts.append(f"Takes:\n\n{_fields(method.params, shapes, 'validation')}")
        parts.append(f"Gives:\n\n{_fields(method.answer, shapes, 'serialization')}")
    parts.append("# Shapes\n")
    parts += [f"## {name}\n\n{properties(shapes[name])}" for name in sorted(shapes)]
    return "\n".join(parts)


def _errors() -> str:
    from coterie.api.openapi import MEANING
    from coterie.core.errors import BY_CODE

    told = {kind.code: meaning for kind, meaning in reversed(MEANING.items()) if kind in BY_CODE.values()}
    told["UNKNOWN_METHOD"] = "This server has no such method; `features.methods` lists those it has."
    told["INTERNAL"] = "Our fault; the gateway's log says more under the reference in the message."
    rows = [
        (f"`{code}`", "yes" if kind.retryable else "", str(kind.http_status), told[code])
        for code, kind in BY_CODE.items()
    ]
    about = "`message` is for people. `details.fields` lists what is wrong with parameters, as `{field, message}`.\n"
    return f"## Errors\n\n{about}\n{table(('Code', 'Retryable', 'HTTP', ''), rows)}"


def _keys() -> str:
    from coterie.core.session import (
        api_key,
        dm_key,
        group_key,
        main_key,
        subagent_key,
        web_key,
    )

    forms = [
        (main_key("rose"), "The agent's main conversation."),
        (dm_key("rose", "ada"), "With one person, wherever they write from."),
        (dm_key("rose", "4711", "telegram"), "With one person on one channel."),
        (group_key("rose", "telegram", "-100"), "A group."),
        (group_key("rose", "telegram", "-100", "7"), "A thread in a group."),
        (api_key("rose", "ada"), "A user of `/v1`."),
        (web_key("rose", "<id>"), "Made by `sessions.create` and `sessions.fork`."),
        (subagent_key("rose", "<id>"), "A child at work on a task."),
        ("agent:rose:cron:<id>", "A schedule's own session."),
    ]
    return table(("Key", ""), [(f"`{key}`", about) for key, about in forms])


def _fields(model: type[BaseModel], shapes: dict[str, Any], mode: Any, by_alias: bool = False) -> str:
    schema = model.model_json_schema(by_alias=by_alias, mode=mode)
    for name, shape in schema.get("$defs", {}).items():
        shapes.setdefault(name, shape)
    return properties(schema)
